--- Losses that are NaN or infinite in sharding.accumulate and sharding.evaluate, with both wrappers, against one rank
--- that computes with all ranks' batches but these. Also ranks without a batch.

local dist = require "lockstep.distributed"
local fixture = require "fully_shard_fixture"
local nn = require "lockstep.nn"
local optim = require "lockstep.optim"
local sharding = require "lockstep.sharding"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local RANK, WORLD = dist.rank(), dist.world_size()
local WRAPPERS = { "data_parallel", "fully_shard" }
local MICRO_BATCHES = 4
torch.set_default_dtype(torch.float64)

--- Batches of a rank of different lengths. `is_bad(rank, i)` says which have a loss that is not finite.
local function batches_of(rank, count, is_bad)
  local batches = {}
  for i = 1, count do
    batches[i] = { tokens = (torch.arange(2 + i + rank) * (rank + 2) + i):remainder(13),
      weight = is_bad(rank, i) and (i % 2 == 0 and math.huge or 0 / 0) or 1, lengths = { 2 + i + rank } }
  end
  return batches
end

local function loss_of(model, batch)
  local tokens = batch.tokens
  return nn.cross_entropy(model(tokens), (tokens * 5 + 1):remainder(13), { reduction = "sum" }) * batch.weight, #tokens
end

local function iterator(list)
  local i = 0
  return function()
    i = i + 1
    return list[i]
  end
end

local function uneven(rank) return 1 + 2 * rank end
local function every_second(rank, i) return (rank + i) % 2 == 0 end
local function none() return false end
local function all() return true end

-- evaluate ------------------------------------------------------------------------------------------

for _, name in ipairs(WRAPPERS) do
  t.test("EvaluationLeavesOutBatchesWhoseLossIsNotFinite(" .. name .. ")", function()
    local net, sum, count, naive, excluded = fixture.net(), 0, 0, 0, 0
    for rank = 0, WORLD - 1 do
      for i, batch in ipairs(batches_of(rank, uneven(rank), every_second)) do
        local loss, tokens = loss_of(net, batch)
        naive = naive + loss:item()
        if every_second(rank, i) then
          excluded = excluded + 1
        else
          sum, count = sum + loss:item(), count + tokens
        end
      end
    end
    local model = sharding[name](fixture.net())

    local mean, num_excluded = sharding.evaluate(model, iterator(batches_of(RANK, uneven(RANK), every_second)),
      function(batch) return loss_of(model, batch) end)

    t.equal(num_excluded, excluded)
    t.truthy(math.abs(mean - sum / count) < 1e-12)
    if WORLD > 1 then t.truthy(naive - naive ~= 0, "without the library the mean is no number") end
  end)
end

t.test("AnEvaluationWithoutAFiniteLossIsAnErrorThatNamesTheBatches", function()
  local net = fixture.net()
  local named = {}
  for rank = 0, WORLD - 1 do named[#named + 1] = ("rank %d, batch 1"):format(rank) end
  t.raises(("of %d batches %d have a sum or count that is NaN or infinite (%s)"):format(2 * WORLD, 2 * WORLD,
    table.concat(named, "; ")), sharding.evaluate, net, iterator(batches_of(RANK, 2, all)),
    function(batch) return loss_of(net, batch) end)
end)

t.test("ABatchOfSeveralNumbersIsLeftOutAsAWhole", function()
  local net, left = fixture.net(), 2

  local means, excluded = sharding.evaluate(net, function()
    left = left - 1
    return left >= 0 and left or nil
  end, function(batch) return torch.tensor { 3, batch == 0 and 0 / 0 or 5 }, 1 end)

  t.equal({ means:totable(), excluded }, { { 3, 5 }, WORLD })
end)

for _, name in ipairs { "data_parallel", "fully_shard", "plain" } do
  t.test("ARankWithoutABatchTakesACopyOfAnothers(" .. name .. ")", function()
    local net = fixture.net()
    local model = name == "plain" and net or sharding[name](net)
    local sum, count, calls, seen = 0, 0, 0, nil
    for rank = 1, WORLD - 1 do
      for _, batch in ipairs(batches_of(rank, rank, none)) do
        local loss, tokens = loss_of(fixture.net(), batch)
        sum, count = sum + loss:item(), count + tokens
      end
    end
    local function run()
      return sharding.evaluate(model, iterator(batches_of(RANK, RANK, none)), function(batch)
        calls, seen = calls + 1, seen or batch
        return loss_of(model, batch)
      end)
    end
    if WORLD == 1 then return t.raises("is there a held-out batch", run) end

    local mean = run()

    t.truthy(math.abs(mean - sum / count) < 1e-12)
    t.equal(calls, WORLD - 1)
    if RANK == 0 then
      local expected = batches_of(1, 1, none)[1]
      t.equal({ seen.tokens, seen.lengths, seen.weight }, { expected.tokens, expected.lengths, 1 })
    end
  end)
end

t.test("ABatchThatCannotBeCopiedIsAnErrorOnlyWhereTheModelIsSharded", function()
  if WORLD == 1 then return end
  local called = 0
  local function run(model)
    return sharding.evaluate(model, iterator(RANK == 1 and { print } or {}), function()
      called = called + 1
      return torch.tensor { 6, 8 }, 2
    end)
  end

  t.equal(run(fixture.net()):totable(), { 3, 4 })

  t.equal(called, RANK == 1 and 1 or 0)
  t.raises("have no batch; the model is sharded, so each rank needs one, and rank 1's cannot be sent: ", run,
    sharding.fully_shard(fixture.net()))
end)

t.test("AnErrorOfTheFirstBatchIsRaisedOnEveryRank", function()
  t.raises(WORLD == 1 and "broken" or "rank 0", sharding.evaluate, fixture.net(), function()
    if RANK == 0 then error "broken" end
  end, loss_of)
end)

-- accumulate ----------------------------------------------------------------------------------------

--- The tokens of all ranks' micro-batches.
local function tokens_of(is_bad, is_left_out)
  local count = 0
  for rank = 0, WORLD - 1 do
    for i, batch in ipairs(batches_of(rank, MICRO_BATCHES, is_bad)) do
      if not is_left_out(i) then count = count + #batch.tokens end
    end
  end
  return count
end

--- Mean loss and gradients of one rank with all ranks' micro-batches but those left out.
local function learn_alone(is_left_out)
  local net, sum = fixture.net(), torch.zeros {}
  for rank = 0, WORLD - 1 do
    for i, batch in ipairs(batches_of(rank, MICRO_BATCHES, none)) do
      if not is_left_out(i) then sum = sum + loss_of(net, batch) end
    end
  end
  local loss, gradients = sum / tokens_of(none, is_left_out), {}
  loss:backward()
  for name, p in net:named_parameters() do gradients[name] = p.grad end
  return loss:item(), gradients
end

--- The whole gradients of a model of either wrapper.
local function gradients_of(name, model)
  if name == "fully_shard" then return fixture.whole_gradients(model) end
  local gradients = {}
  for parameter, p in model:named_parameters() do gradients[parameter] = p.grad:reshape { -1 } end
  return gradients
end

local function accumulate(model, is_bad, opts)
  return sharding.accumulate(model, batches_of(RANK, MICRO_BATCHES, is_bad), tokens_of(is_bad, none),
    function(batch) return loss_of(model, batch) end, opts)
end

t.test("WithoutTheLibraryOneMicroBatchMakesEveryGradientNaN", function()
  local net = fixture.net()
  for _, batch in ipairs(batches_of(0, MICRO_BATCHES, function(_, i) return i == 2 end)) do
    local loss = loss_of(net, batch)
    loss:backward()
  end
  for name, p in net:named_parameters() do t.equal(p.grad:isfinite():all():item(), false, name) end
end)

for _, name in ipairs(WRAPPERS) do
  t.test("ALossThatIsNotFiniteIsAnErrorOnEveryRankAndLeavesNoGradient(" .. name .. ")", function()
    local model, fresh = sharding[name](fixture.net()), sharding[name](fixture.net())
    local bad = WORLD - 1

    t.raises(("sharding.accumulate: the loss of micro-batch 2 on rank %d is NaN or infinite"):format(bad), accumulate,
      model, function(rank, i) return rank == bad and i >= 2 end)

    local norms = {}
    for i, one in ipairs { model, fresh } do
      accumulate(one, none)
      norms[i] = optim.clip_grad_norm(one:parameters(), math.huge):item()
    end
    -- Not the same bits: buckets are laid out anew after a backward, and then add ranks up in another order.
    t.truthy(math.abs(norms[1] - norms[2]) <= 1e-12 * norms[2], ("%.17g, not %.17g"):format(norms[1], norms[2]))
  end)

  t.test("GradientsFromBeforeTheCallStayAsTheyAre(" .. name .. ")", function()
    local function is_left_out(i) return i == 2 end
    local _, first = learn_alone(none)
    local _, second = learn_alone(is_left_out)
    local model = sharding[name](fixture.net())

    accumulate(model, none, { on_nan = "skip" })
    accumulate(model, function(rank, i) return rank == 0 and i == 2 end, { on_nan = "skip" })

    for parameter, gradient in pairs(gradients_of(name, model)) do
      local sum = (first[parameter] + second[parameter]):reshape { -1 }
      t.truthy((gradient - sum):abs():max():item() < 1e-12, parameter)
    end
  end)

  for _, sync in ipairs { "last", "each" } do
    --- Which micro-batches of which rank: in the middle, the last, the first and the last, and all but one.
    for _, one in ipairs {
      { "none", none },
      { "middle", function(rank, i) return rank == 0 and i == 2 end },
      { "last", function(rank, i) return rank == WORLD - 1 and i == MICRO_BATCHES end },
      { "ends", function(rank, i) return rank == 0 and i == 1 or rank == WORLD - 1 and i == MICRO_BATCHES end },
      { "all but one", function(_, i) return i ~= 2 end },
    } do
      local case, is_bad = unpack(one)
      t.test(("EveryRankLeavesOutThatMicroBatch(%s, %s, %s)"):format(name, sync, case), function()
        local function is_left_out(i)
          for rank = 0, WORLD - 1 do
            if is_bad(rank, i) then return true end
          end
          return false
        end
        local expected_loss, expected = learn_alone(is_left_out)
        local expected_skipped = 0
        for i = 1, MICRO_BATCHES do expected_skipped = expected_skipped + (is_left_out(i) and 1 or 0) end
        local model = sharding[name](fixture.net())

        for step = 1, 2 do -- the second shows that the first left nothing behind
          local loss, skipped = accumulate(model, is_bad, { sync = sync, on_nan = "skip" })

          t.equal(skipped, expected_skipped)
          t.truthy(math.abs(loss:item() - expected_loss) < 1e-12, "loss of step " .. step)
          local found = gradients_of(name, model)
          for parameter, gradient in pairs(expected) do
            t.near(found[parameter], gradient:reshape { -1 }, 1e-12, parameter)
          end
          model:zero_grad()
        end
      end)
    end
  end

  t.test("AStepWithoutAFiniteLossIsAnErrorAlsoWithSkip(" .. name .. ")", function()
    local model = sharding[name](fixture.net())
    t.raises("sharding.accumulate: no micro-batch of this step has a finite loss on every rank: micro-batch 1: loss is "
      .. "nan on rank 0", accumulate, model, function(rank) return rank == 0 end, { on_nan = "skip" })
  end)
end

t.test("ALossThatIsLeftOutNeedsNoGraph", function()
  local model = sharding.data_parallel(fixture.net())
  local function learn(skipped)
    local i = 0
    return sharding.accumulate(model, { 1, 2 }, 6 * WORLD, function()
      i = i + 1
      if i == 1 and skipped then return torch.tensor(0 / 0), 3 end
      return loss_of(model, batches_of(RANK, 1, none)[1]), 3
    end, { on_nan = "skip" })
  end
  local expected = learn(false):item()
  local loss, left_out = learn(true)
  t.near(loss:item(), expected, 1e-9)
  t.equal(left_out, 1)
end)

t.test("RanksThatGiveDifferentOptionsAreTold", function()
  local model = sharding.data_parallel(fixture.net())
  if WORLD == 1 then return end
  t.raises('the ranks give different options: sync = "last", on_nan = "error": rank', accumulate, model, none,
    { on_nan = RANK == 1 and "skip" or "error" })
end)

t.test("MistakesAreNamed", function()
  local model = sharding.data_parallel(fixture.net())
  t.raises('on_nan must be "error" or "skip", not "go_on"', accumulate, model, none, { on_nan = "go_on" })
  t.raises('on_nan = "skip" needs the count of each micro-batch', sharding.accumulate, model,
    batches_of(RANK, 1, none), 9, function(batch) return (loss_of(model, batch)) end, { on_nan = "skip" })
end)
