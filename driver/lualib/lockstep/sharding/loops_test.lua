--- sharding.accumulate and sharding.evaluate with both wrappers. Every rank computes the expected values from all
--- ranks' data.

local dist = require "lockstep.distributed"
local fixture = require "fully_shard_fixture"
local nn = require "lockstep.nn"
local optim = require "lockstep.optim"
local sharding = require "lockstep.sharding"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local RANK, WORLD = dist.rank(), dist.world_size()
torch.set_default_dtype(torch.float64)

local WRAPPERS = { "data_parallel", "fully_shard" }

--- Micro-batches of a rank, of different lengths.
local function batches_of(rank, step)
  local batches = {}
  for i = 1, 3 do batches[i] = (torch.arange(2 + i + rank) * (rank + 2) + step + i):remainder(13) end
  return batches
end

--- The tokens of a step over all ranks.
local function tokens_of(step)
  local count = 0
  for rank = 0, WORLD - 1 do
    for _, batch in ipairs(batches_of(rank, step)) do count = count + #batch end
  end
  return count
end

local function loss_sum(model, tokens)
  return nn.cross_entropy(model(tokens), (tokens * 5 + 1):remainder(13), { reduction = "sum" })
end

--- One rank trains on all ranks' data, as it stands in a textbook.
local function train_alone(steps)
  local net, losses, norms = fixture.net(), {}, {}
  local optimizer = optim.AdamW(net:parameters(), { lr = 0.05 })
  for step = 1, steps do
    local sum = torch.zeros({})
    for rank = 0, WORLD - 1 do
      for _, batch in ipairs(batches_of(rank, step)) do sum = sum + loss_sum(net, batch) end
    end
    local loss = sum / tokens_of(step)
    loss:backward()
    losses[step], norms[step] = loss:item(), optim.clip_grad_norm(net:parameters(), 0.5):item()
    optimizer:step()
    optimizer:zero_grad()
  end
  return losses, norms, net:state_dict()
end

local function train(model, steps, opts)
  local losses, norms = {}, {}
  local optimizer = optim.AdamW(model:parameters(), { lr = 0.05 })
  for step = 1, steps do
    local loss = sharding.accumulate(model, batches_of(RANK, step), tokens_of(step), function(batch)
      return loss_sum(model, batch)
    end, opts)
    losses[step], norms[step] = loss:item(), optim.clip_grad_norm(model:parameters(), 0.5):item()
    optimizer:step()
    optimizer:zero_grad()
  end
  return losses, norms, model:state_dict()
end

for _, name in ipairs(WRAPPERS) do
  local wrap = sharding[name]
  for _, sync in ipairs { "last", "each" } do
    t.test("ParallelChoosesTheWrapperByItsName", function()
  for _, kind in ipairs(WRAPPERS) do
    local model = sharding.parallel(fixture.net(), kind, { fully_shard = { prefetch = 0 } })
    t.truthy(getmetatable(model) == getmetatable(sharding[kind](fixture.net())))
    t.truthy((model(fixture.tokens(1)) - fixture.net()(fixture.tokens(1))):abs():max():item() < 1e-12)
  end
  t.raises('expected "data_parallel", "fully_shard" or a table of sizes, not "ddp"', sharding.parallel, fixture.net(),
    "ddp")
  t.raises('unknown option "prefetch"', sharding.parallel, fixture.net(), "fully_shard", { prefetch = 0 })
  t.raises('did you mean "find_unused"', sharding.parallel, fixture.net(), "data_parallel",
    { data_parallel = { find_unusd = true } })
end)

t.test("AccumulationTrainsAsOneRankOnAllTheData(" .. name .. ", " .. sync .. ")", function()
      local losses, norms, expected = train_alone(4)

      local found_losses, found_norms, found = train(wrap(fixture.net()), 4, { sync = sync })

      for step = 1, 4 do
        t.truthy(math.abs(found_losses[step] - losses[step]) < 1e-12, "loss of step " .. step)
        t.truthy(math.abs(found_norms[step] - norms[step]) < 1e-12, "norm of step " .. step)
      end
      t.truthy(fixture.distance(found, expected) < 1e-12)
    end)
  end

  t.test("FurtherSumsAreDividedLikewise(" .. name .. ")", function()
    local model = wrap(fixture.net())

    local loss, largest, none = sharding.accumulate(model, batches_of(RANK, 1), tokens_of(1), function(batch)
      return loss_sum(model, batch), #batch, (batch * 2):sum()
    end)

    t.equal({ loss.dtype, none }, { torch.float64, nil })
    local sum = 0
    for rank = 0, WORLD - 1 do
      for _, batch in ipairs(batches_of(rank, 1)) do sum = sum + 2 * batch:sum():item() end
    end
    t.truthy(math.abs(largest:item() - sum / tokens_of(1)) < 1e-12)
  end)

  t.test("EvaluationIsTheMeanOverAllRanksBatches(" .. name .. ")", function()
    local net = fixture.net()
    net.dropout = nn.Dropout(0.5)
    net.dropout:eval() -- stays as it is, though the rest is in training mode
    local sum, count = 0, 0
    for rank = 0, WORLD - 1 do
      for i = 1, 1 + 2 * rank do -- the last rank has most
        local batch = batches_of(rank, i)[1]
        sum, count = sum + loss_sum(net, batch):item(), count + #batch
      end
    end
    local model, i, called, modes = wrap(net), 0, 0, {}
    local function next_batch()
      i = i + 1
      return i <= 1 + 2 * RANK and batches_of(RANK, i)[1] or nil
    end

    local mean = sharding.evaluate(model, next_batch, function(batch)
      called, modes[tostring(net.layers[1].training)] = called + 1, true
      local loss = loss_sum(model, batch)
      t.equal(loss.requires_grad, false)
      return loss, #batch
    end)

    t.truthy(math.abs(mean - sum / count) < 1e-12)
    t.equal(called, 2 * WORLD - 1) -- on every rank, as a sharded model needs
    t.equal(modes, { ["false"] = true })
    t.equal({ net.training, net.layers[1].training, net.dropout.training }, { true, true, false })
  end)

  t.test("FullShowsWholeValuesToEachRank(" .. name .. ")", function()
    local net, expected = fixture.net(), fixture.net().head.weight
    local model = wrap(net)

    local weight, second = model:full(function(a, b) return net.head.weight:detach():clone(), a + b end, 1, 2)

    t.equal(weight, expected:detach())
    t.equal(second, 3)
  end)
end

t.test("KindsThatDifferAreAnErrorOnEveryRank", function()
  if WORLD == 1 then return end
  local others = WORLD == 2 and "rank 0" or "ranks 0, 2"
  for _, kind in ipairs { "fully_shard", "fully_shrad" } do
    t.raises(("sharding.parallel: every rank must give the same kind, got data_parallel: %s; %s: rank 1"):format(others,
      kind), sharding.parallel, fixture.net(), RANK == 1 and kind or "data_parallel")
  end
end)

t.test("AMeanIsOverTheModelsGroup", function()
  local net, tokens = fixture.net(), batches_of(RANK, 1)
  local expected = loss_sum(net, tokens[1]) / #tokens[1]
  expected:backward()
  local gradient = net.head.weight.grad:clone()
  net:zero_grad()
  local model = sharding.data_parallel(net, { group = dist.group { ranks = { RANK } } })

  local loss = sharding.accumulate(model, { tokens[1] }, #tokens[1], function(batch) return loss_sum(model, batch) end)

  t.near(loss, expected:detach(), 1e-12)
  t.near(net.head.weight.grad, gradient, 1e-12)
end)

t.test("EvaluationOfSeveralNumbersAtOnce", function()
  local net, done = fixture.net(), false
  local function once()
    if done then return nil end
    done = true
    return RANK
  end

  local means = sharding.evaluate(net, once, function(rank) return torch.tensor { rank, 1 }, 2 end)

  t.equal(means:totable(), { (WORLD - 1) / 4, 0.5 })
end)

t.test("ARankWithoutBatchesTakesTheFillers", function()
  local i = 0
  local function next_batch()
    i = i + 1
    return i <= RANK and i or nil
  end
  local function run(filler)
    return sharding.evaluate(fixture.net(), next_batch, function(batch) return batch, 1 end, { filler = filler })
  end

  if WORLD == 1 then
    t.raises("sharding.evaluate: the count over all ranks is 0; is there a held-out batch", run)
  else
    t.equal(run(function() return 1e9 end), WORLD == 2 and 1 or 4 / 3)
    i = 0
    t.equal(run(), WORLD == 2 and 1 or 4 / 3) -- a copy of another rank's
  end
end)

t.test("AnErrorOfTheFunctionDropsTheStepsGradients", function()
  for _, kind in ipairs(WRAPPERS) do
    local model, calls = sharding[kind](fixture.net()), 0
    local function failing(batch)
      calls = calls + 1
      if calls == 2 then error("in the second") end
      return loss_sum(model, batch)
    end
    t.raises("in the second", sharding.accumulate, model, batches_of(RANK, 1), tokens_of(1), failing)
    local fresh = sharding[kind](fixture.net())
    local norms = {}
    for i, one in ipairs { model, fresh } do
      sharding.accumulate(one, batches_of(RANK, 2), tokens_of(2), function(batch) return loss_sum(one, batch) end)
      norms[i] = optim.clip_grad_norm(one:parameters(), math.huge):item()
    end
    t.equal(norms[1], norms[2], kind)
  end
end)

t.test("CountsAndNumbersOfMicroBatchesThatDifferAreAnErrorOnEveryRank", function()
  if WORLD == 1 then return end
  for _, kind in ipairs(WRAPPERS) do
    local model, called = sharding[kind](fixture.net()), 0
    local function learn(num_micro_batches, count)
      local batches = batches_of(RANK, 1)
      for i = num_micro_batches + 1, #batches do batches[i] = nil end
      sharding.accumulate(model, batches, count, function(batch)
        called = called + 1
        return loss_sum(model, batch)
      end)
    end
    local others = WORLD == 2 and "rank 0" or "ranks 0, 2"
    local message = "sharding.accumulate: every rank needs equally many micro-batches and the same count, that of all "
      .. "ranks, as report.loss_tokens of batching; got "
    local function differs(one, other, num_micro_batches, count)
      t.raises(("%s%s: %s; %s: rank 1"):format(message, one, others, other), learn, num_micro_batches, count)
    end
    differs("3 micro-batches and a count of 1000000", "3 micro-batches and a count of 1000001", 3,
      RANK == 1 and 1000001 or 1000000)
    differs("3 micro-batches and a count of 9", "2 micro-batches and a count of 9", RANK == 1 and 2 or 3, 9)
    differs("0 micro-batches and a count of 9", "3 micro-batches and a count of 9", RANK == 1 and 3 or 0, 9)
    t.equal(called, 0)
    learn(3, 0.1)
    t.equal(called, 3)
  end
end)

t.test("RanksOfAGroupAreNamedAsInTheWorld", function()
  if WORLD < 3 or RANK == 1 then return end
  local group = dist.group { ranks = { 2, 0 } }
  local model = sharding.data_parallel(fixture.net(), { group = group })
  t.raises("got 1 micro-batches and a count of 2: rank 2; 1 micro-batches and a count of 1: rank 0",
    sharding.accumulate, model, { torch.arange(3) }, RANK == 2 and 2 or 1, function(x) return loss_sum(model, x) end)
end)

t.test("AnErrorInAnEvaluationLeavesTheModeAsItWas", function()
  local model = sharding.data_parallel(fixture.net())
  t.raises("bad batch", sharding.evaluate, model, function() error("bad batch") end, function() return 0, 1 end)
  t.equal(model.module.training, true)
end)

t.test("MistakesAreNamed", function()
  local model = sharding.data_parallel(fixture.net())
  local tokens = batches_of(RANK, 1)
  local function sum(batch) return loss_sum(model, batch) end
  local function complains(message, ...) t.raises("sharding.accumulate: " .. message, sharding.accumulate, ...) end
  complains("expected what sharding.data_parallel, fully_shard or parallelize returned, not the module itself; write "
    .. "local model = sharding.data_parallel(net)", fixture.net(), tokens, 1, sum)
  complains("expected what sharding.data_parallel, fully_shard or parallelize returned, not 5", 5, tokens, 1, sum)
  for _, without_graph in ipairs {
    function(batch) return sum(batch):detach(), 3 end,
    function(batch) return torch.no_grad(sum, batch), 3 end,
  } do
    complains("the loss of micro-batch 1 does not require a gradient: it is detached,", model, tokens, 1, without_graph)
  end
  complains("expected this rank's list of micro-batches, got an empty table", model, {}, 1, sum)
  complains("expected this rank's list of micro-batches, got a nil", model, nil, 1, sum)
  complains("the count is 0: no token of this step has a loss", model, tokens, 0, sum)
  complains("expected a function that returns a micro-batch's sum of losses, not a nil", model, tokens, 1)
  complains("the function must return the sum of a micro-batch's losses, a tensor of one element, not a tensor of "
    .. "shape {3, 13}", model, { torch.arange(3) }, 1, function(batch) return model(batch) end)
  complains('sync must be "last" or "each", not "never"', model, tokens, 1, sum, { sync = "never" })
  complains("result 2 of the function must be the count of what it summed, a number, not a string", model, tokens, 1,
    function(batch) return sum(batch), "kl" end)
  complains("result 3 of the function must be a number or a tensor of one element, not a string", model, tokens, 1,
    function(batch) return sum(batch), nil, "kl" end)
  local calls = 0
  complains("the function returned 1 sums for this micro-batch, and 2 for the one before", model, tokens, 1,
    function(batch)
      calls = calls + 1
      return sum(batch), nil, calls == 1 and 0 or nil
    end)
  for _, wrong in ipairs { { "nil" }, { "table", {} }, { "function", sum } } do
    t.raises("sharding.evaluate: the model must be a module, or what sharding.data_parallel or sharding.fully_shard "
      .. "returned, not a " .. wrong[1], sharding.evaluate, wrong[2], function() end, sum)
  end
  t.raises("sharding.evaluate: the function must return a batch's sum and count; its count is a nil", function()
    local left = 1
    sharding.evaluate(model, function()
      left = left - 1
      return left >= 0 and tokens[1] or nil
    end, function() return 1 end)
  end)
  for _, one in ipairs {
    { torch.ones { 2, 3 }, torch.tensor { 1, 2, 4 }, { { 1, 0.5, 0.25 }, { 1, 0.5, 0.25 } } },
    { torch.ones { 2, 2 }, torch.tensor { { 1 }, { 2 } }, { { 1, 1 }, { 0.5, 0.5 } } },
    { torch.ones { 2 }, torch.full({ 1, 1 }, 4), { 0.25, 0.25 } },
  } do
    local left = 2
    local mean = sharding.evaluate(model, function()
      left = left - 1
      return left >= 0 and one or nil
    end, unpack)
    t.equal(mean:totable(), one[3])
  end
  for _, one in ipairs {
    { { torch.ones { 2, 1 }, 1 }, { torch.ones { 1, 2 }, 1 }, "has shape {1, 2}, and that of the batches before" },
    { { torch.ones { 3 }, torch.ones { 2 } }, { 1, 1 }, "the count of this batch has shape {2}, and its sum {3}" },
    { { 12, -3 }, { 1, 1 }, "the count of a batch must be at least 0, not -3" },
    { { torch.ones({}, { dtype = torch.complex64 }), 1 }, { 1, 1 }, "the sum of a batch is " },
  } do
    local i = 0
    t.raises(one[3], sharding.evaluate, model, function()
      i = i + 1
      return i < 3 and one[i] or nil
    end, unpack)
  end
  t.raises("sharding.evaluate: the sum of this batch has shape {1}, and that of the batches before {3}", function()
    local size = 5
    sharding.evaluate(model, function()
      size = size - 2
      return size > 0 and size or nil
    end, function(n) return torch.ones { n }, 1 end)
  end)
end)
