-- Mistakes with stages on several ranks: each is one error that names the rank.

local cut = require "lockstep.sharding.pipeline.cut"
local dist = require "lockstep.distributed"
local fixture = require "pipeline_fixture"
local grids_fixture = require "lockstep.sharding.parallelize_fixture"
local lora = require "lockstep.lora"
local schedule = require "lockstep.sharding.pipeline.schedule"
local sharding = require "lockstep.sharding"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local RANK = dist.rank()
local grid = sharding.grid { pp = 2 }

local function new_model(order) return fixture.divide(fixture.build("llama", { layers = 4 }), grid, order) end
local function loss_of(model) return function(b) return model(b, "loss") end end

local function micro_batches(count)
  local draw, list = fixture.drawer(3), {}
  for i = 1, count do list[i] = fixture.micro_batch(draw) end
  return list
end

t.test("AnEmptyStageIsAnError", function()
  t.raises("4 stages need as many layers, but the model has 3", sharding.parallelize,
    fixture.build("llama", { layers = 3 }), grid, { order = "interleaved", chunks = 2 })
end)

t.test("LayersThatTakeFeaturesOfPicturesAreOnOneStage", function()
  t.raises("4 stages need as many layers, but the model has 3, and the first 2, which take features of pictures, are "
    .. "on one stage, so a stage would be empty", sharding.parallelize, grids_fixture.build("qwen3_vl", 1), grid,
    { order = "interleaved", chunks = 2 })
  local stages = cut.plan(grids_fixture.build("qwen3_vl", 1), 2)
  t.equal({ stages[1].last, stages[2].first, stages[2].last }, { 2, 3, 3 })
end)

t.test("AModelWithAnotherPassCannotBeCut", function()
  local net = grids_fixture.build("qwen3", 1)
  function net:hidden(batch) return getmetatable(net).hidden(self, batch) end
  t.raises("pp cannot cut a Qwen3ForCausalLM, whose pass is not the one of Llama", sharding.parallelize, net, grid)
end)

t.test("OrdersAndChunksAreChecked", function()
  local net = fixture.build("llama", { layers = 4 })

  t.raises('order must be "1f1b"', sharding.parallelize, net, grid, { order = "zero_bubble" })
  t.raises('take order = "interleaved"', sharding.parallelize, net, grid, { order = "1f1b", chunks = 2 })
end)

t.test("OptionsOfReplicasAndAdaptersByThemselvesAreErrors", function()
  t.raises("data_parallel has no options where pp is 2", sharding.parallelize, fixture.build("llama", { layers = 4 }),
    grid, { fully_shard = false, data_parallel = {} })
  local net = fixture.build("llama", { layers = 4 })
  lora.apply(net, { r = 2, targets = { "q_proj" } })
  local model = sharding.parallelize(net, grid)
  t.raises("lora.save: the model has no adapters; call lora.apply before sharding.parallelize", lora.save,
    new_model({ order = "1f1b" }), "adapter")
  t.raises("lora.merge: the model's layers are divided into stages (pp)", lora.merge, model)
  -- Replicas of the stage would not learn of new adapters, and drift apart.
  t.raises("the module has a pipeline's stages; call this before sharding.parallelize", lora.apply,
    new_model({ order = "1f1b" }).module, { r = 2, targets = { "q_proj" } })
end)

t.test("AStageByItselfHasTheOptionsOfFullyShard", function()
  local model = sharding.parallelize(fixture.build("llama", { layers = 4 }), grid,
    { fully_shard = { param_dtype = torch.bfloat16 } })
  local batch = micro_batches(1)[1]
  local sum, count = fixture.build("llama", { layers = 4 }):loss(batch)
  local loss = sharding.accumulate(model, { batch }, count, loss_of(model)):item()
  local exact = sum:item() / count
  t.truthy(loss ~= exact and math.abs(loss - exact) < 0.05 * exact, loss) -- computed in bfloat16
  for _, p in ipairs(model:parameters()) do t.equal(p.dtype, torch.float64) end
end)

t.test("RanksOfTpCutTheSameStages", function()
  -- A part of the vocabulary is smaller on the last rank of tp. In a tie of costs that moved a layer.
  local net = fixture.build("llama", { layers = 4 })
  local whole = cut.costs(net)
  sharding.tensor_parallel(net)
  local own = cut.costs(net)
  t.equal(dist.all_gather_object(own)[1], dist.all_gather_object(own)[2])
  t.truthy(own[1] < whole[1], own[1])
end)

t.test("AnotherMicroBatchOfOneRankIsAnErrorThatNamesIt", function()
  local model, batches = new_model { order = "1f1b" }, micro_batches(2)
  if RANK == 1 then batches[2] = { input_ids = torch.arange(9), seq_lens = { 9 } } end

  t.raises("seq_lens: 9: rank 1", sharding.accumulate, model, batches, 10, loss_of(model))
end)

t.test("ATiedEmbeddingThatOneStageFreezesAloneIsNamed", function()
  local model = fixture.divide(fixture.build("llama_tied", { layers = 2 }), grid, { order = "1f1b" })
  if RANK == 1 then model.tied:requires_grad_(false) end

  t.raises('embed_tokens.weight" is frozen on rank 1, and trained on rank 0', sharding.accumulate, model,
    micro_batches(1), 10, loss_of(model))
end)

t.test("ACallOutsideTheLoopsIsAnError", function()
  local model = new_model { order = "1f1b" }

  t.raises("within sharding.accumulate and sharding.evaluate", model, micro_batches(1)[1], "loss")
  t.raises('computes model(batch, "loss") or "log_probs" alone, not "logits"', model, micro_batches(1)[1])
end)

t.test("AnEvaluationWithoutACountIsAnErrorButInADryRunOfTheFirstStage", function()
  local model = new_model { order = "1f1b" }
  local function mean()
    local batches = micro_batches(1)
    return sharding.evaluate(model, function() return table.remove(batches) end, function(b)
      local sum = model(b, "loss")
      return sum * 0, 0
    end)
  end

  t.raises("the count over all ranks is 0", mean)
  package.loaded["lockstep.dry_run"] = true
  local ok, value = pcall(mean)
  package.loaded["lockstep.dry_run"] = nil
  t.equal({ ok, value }, { true, 0 })
end)

t.test("AFunctionThatDoesNotCallTheModelIsAnError", function()
  local model = new_model { order = "1f1b" }

  t.raises("does not call the model for micro-batch 1", sharding.accumulate, model, micro_batches(1), 10,
    function() return torch.zeros({}, { requires_grad = true }), 1 end)
end)

t.test("AWrongDivisorIsAnErrorOnEveryRank", function()
  local model, batches = new_model { order = "1f1b" }, micro_batches(2)

  t.raises("the divisor is 3, but the function summed the losses of", sharding.accumulate, model, batches, 3,
    loss_of(model))
  for _, p in ipairs(model:parameters()) do t.equal(p.grad, nil) end
end)

t.test("ALossThatIsNotANumberIsAnErrorOnEveryRank", function()
  local model, batches = new_model { order = "1f1b" }, micro_batches(2)
  local whole = fixture.build("llama", { layers = 4 })
  local count = whole:loss(batches[1]) and select(2, whole:loss(batches[1])) + select(2, whole:loss(batches[2]))
  local calls = 0

  t.raises("loss of micro-batch 2 on rank 1 is NaN or infinite", sharding.accumulate, model, batches, count,
    function(b)
      calls = calls + 1
      local sum, own_count = model(b, "loss")
      return calls == 2 and sum * math.huge or sum, own_count
    end)
end)

t.test("LeavingMicroBatchesOutIsAnError", function()
  local model = new_model { order = "1f1b" }

  t.raises('on_nan = "skip" is not for a model with pp', sharding.accumulate, model, micro_batches(1), 10,
    loss_of(model), { on_nan = "skip" })
end)

t.test("TheDebugModeNamesTheFirstOperationThatDiffers", function()
  local model, batches = new_model { order = "1f1b" }, micro_batches(3)
  local whole, count = fixture.build("llama", { layers = 4 }), 0
  for _, b in ipairs(batches) do count = count + select(2, whole:loss(b)) end
  local plan = schedule.make { ranks = 2, chunks = 1, micro_batches = 3, order = "1f1b" }
  model.schedules["3 1 nil"] = plan -- what runs; the debug mode makes its own
  sharding.accumulate(model, batches, count, loss_of(model))
  -- Both ranks run the first two micro-batches in the other order: the run would end, with results mixed up.
  for _, op in ipairs(plan.lists[RANK + 1]) do
    if op.kind == "forward" and op.micro_batch < 3 then op.micro_batch = 3 - op.micro_batch end
  end

  t.raises(('rank %d: operation %d is "forward of micro-batch 2 on stage %d", but the schedule that was proven has '
    .. '"forward of micro-batch 1'):format(RANK, RANK + 1, RANK + 1), sharding.accumulate, model, batches, count,
    loss_of(model))
end)

t.test("CostsAreDividedEvenly", function()
  t.equal(cut.divide({ 1, 1, 1, 1 }, 2), { 2, 4 })
  t.equal(cut.divide({ 1, 1, 1, 3 }, 2), { 3, 4 })
  t.equal(cut.divide({ 5, 1, 1, 1, 1, 1 }, 3), { 1, 3, 6 })
  -- Against all divisions.
  local draw = fixture.drawer(11)
  for _ = 1, 60 do
    local costs, parts = {}, draw(3)
    for i = 1, parts + draw(4) do costs[i] = draw(9) end
    local ends, largest, first = cut.divide(costs, parts), 0, 1
    for _, last in ipairs(ends) do
      local sum = 0
      for i = first, last do sum = sum + costs[i] end
      largest, first = math.max(largest, sum), last + 1
    end
    local function best(from, left)
      if left == 0 then return from > #costs and 0 or math.huge end
      local least, sum = math.huge, 0
      for last = from, #costs do
        sum = sum + costs[last]
        least = math.min(least, math.max(sum, best(last + 1, left - 1)))
      end
      return least
    end
    t.equal(largest, best(1, parts))
    t.equal(ends[#ends], #costs)
  end
end)
