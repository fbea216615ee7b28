--- Samples that groups of ranks share for a micro-step: several ranks learn what one rank learns from each sample
--- alone, in float64. Random lengths, costs, groups, padding and wrappers.

local batching = require "lockstep.batching"
local checkpoint = require "lockstep.checkpoint"
local chunk_table = require "lockstep.nn.context.table"
local dist = require "lockstep.distributed"
local fixture = require "lockstep.sharding.parallelize_fixture"
local optim = require "lockstep.optim"
local plain = require "lockstep.plain"
local sharding = require "lockstep.sharding"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local RANK, WORLD = dist.rank(), dist.world_size()
local STEPS, MAX_NORM, SEQ_LEN = 3, 0.5, 60

local function random(from, to) return torch.randint(from, to + 1, { 1 }):item() end

--- Returns a few long samples, and short ones. For a model of pictures some have a picture.
local function draw_samples(form, seed)
  torch.manual_seed(seed)
  local samples = {}
  for i = 1, random(3, 4 * WORLD) do
    local tokens = i <= 2 and random(30, SEQ_LEN) or random(1, 14)
    local sample = { input_ids = torch.randint(56, { tokens }), loss_mask = torch.rand({ tokens }):gt(0.3) }
    sample.loss_mask[tokens - 1] = true
    if form == "qwen3_vl" and i % 3 == 0 then
      sample.image_grid_thw = torch.tensor({ { 1, 2, 4 } }, { dtype = torch.int64 })
      sample.pixel_values = torch.randn({ 8, 24 }, { dtype = torch.float64 })
      sample.input_ids = torch.cat { torch.tensor { 5, 57, 57 }:to(torch.int64), sample.input_ids }
      sample.loss_mask = torch.cat { torch.zeros({ 3 }):bool(), sample.loss_mask }
    end
    samples[i] = sample
  end
  return samples
end

local function new_optimizer(model) return optim.AdamW(model:parameters(), { lr = 0.01, weight_decay = 0.1 }) end

--- Trains on one rank, one sample at a time. Returns the losses, the norms and the model.
local function train_alone(case)
  local model, losses, norms = fixture.build(case.form, case.seed), {}, {}
  local optimizer = new_optimizer(model)
  for step = 1, STEPS do
    local sums, count = {}, 0
    for i, sample in ipairs(draw_samples(case.form, 100 * case.seed + step)) do
      local sum, own = model:loss(sample)
      sums[i], count = sum, count + own
    end
    local loss = torch.stack(sums):sum() / count
    loss:backward()
    losses[step], norms[step] = loss:item(), optim.clip_grad_norm(model:parameters(), MAX_NORM):item()
    optimizer:step()
    optimizer:zero_grad()
  end
  return losses, norms, model
end

--- Trains on the ranks. Returns the losses, the norms, and how many samples were split.
local function train(model, case, options)
  local optimizer, losses, norms, num_split = new_optimizer(model), {}, {}, 0
  for step = 1, STEPS do
    local prepared = { samples = draw_samples(case.form, 100 * case.seed + step), seq_len = SEQ_LEN,
      cost = { linear = 1, quadratic = case.quadratic }, image_token_id = 57 }
    for name, value in pairs(options) do prepared[name] = value end
    local batches, report = batching.prepare(prepared)
    local own = batches[prepared.rank + 1]
    local loss = sharding.accumulate(model, own, report.loss_tokens, function(batch) return model(batch, "loss") end)
    losses[step], norms[step] = loss:item(), optim.clip_grad_norm(model:parameters(), MAX_NORM):item()
    optimizer:step()
    optimizer:zero_grad()
    num_split = num_split + report.split_samples
  end
  return losses, norms, num_split
end

local function check(case, model, options)
  local what = ("%s, seed %d, rank %d"):format(case.form, case.seed, RANK)
  local losses, norms, alone = train_alone(case)
  local own_losses, own_norms, num_split = train(model, case, options)
  fixture.same(own_losses, losses, what .. ", loss")
  fixture.same(own_norms, norms, what .. ", norm")
  fixture.same(fixture.whole(model), alone:state_dict(), what)
  return num_split
end

local WRAPPERS = {
  data_parallel = function(net) return sharding.data_parallel(net, { find_unused = true }) end,
  fully_shard = function(net) return sharding.fully_shard(net) end,
  checkpointed = function(net)
    net.checkpoint = checkpoint.new {}
    return sharding.fully_shard(net)
  end,
}

for _, form in ipairs { "qwen3", "qwen3_few_kv", "qwen3_vl" } do
  for _, name in ipairs { "data_parallel", "fully_shard", "checkpointed" } do
    t.test(("SharedSamplesTeachAsWholeOnes_%s_%s"):format(form, name), function()
      local num_split = 0
      for seed = 1, 3 do
        local case = { form = form, seed = seed, quadratic = 0.05 * seed }
        num_split = num_split + check(case, WRAPPERS[name](fixture.build(form, seed)), { rank = RANK,
          pad_to_multiple_of = seed, split = { max_group = seed == 2 and 2 or 4 } })
      end
      t.equal(num_split > 0, WORLD > 1)
    end)
  end
end

t.test("SharesOfSamplesTakeSinks", function()
  local form = "gpt_oss_without_balance" -- a balance loss is of one rank's micro-batch
  fixture.CONFIGS[form] = plain.copy(fixture.CONFIGS.gpt_oss, { output_router_logits = false })
  local model = sharding.fully_shard(fixture.build(form, 2))
  local num_split = check({ form = form, seed = 2, quadratic = 0.1 }, model, { rank = RANK, split = { max_group = 4 } })
  t.equal(num_split > 0, WORLD > 1)
end)

t.test("RowsOfAGridShareSamples", function()
  if WORLD ~= 4 then return end
  local grid = sharding.grid { tp = 2 }
  for seed = 1, 3 do
    local case = { form = "qwen3", seed = seed, quadratic = 0.1 }
    local model = sharding.parallelize(fixture.build("qwen3", seed), grid, { fully_shard = seed > 1 and {} or false,
      sequence = seed == 3 })
    local num_split = check(case, model, { rank = grid:rank "dp", ranks = grid.dp, pad_to_multiple_of = 2,
      split = { max_group = 8, group = grid:group "dp" } })
    t.truthy(num_split > 0)
  end
end)

--- One long sample and short ones, with a plan in which all ranks share the long one.
local function of_all(more)
  torch.manual_seed(9)
  local samples = { { input_ids = torch.randint(56, { 16 * WORLD }), loss_mask = torch.ones { 16 * WORLD } } }
  for i = 2, WORLD + 1 do samples[i] = { input_ids = torch.randint(56, { 3 }), loss_mask = torch.ones { 3 } } end
  local options = { samples = samples, seq_len = 16 * WORLD, split = { max_group = WORLD } }
  for name, value in pairs(more or {}) do options[name] = value end
  return samples, batching.prepare(options)
end

t.test("EachRankHoldsItsPiecesOfASample", function()
  if WORLD == 1 then return end
  local samples, batches, report = of_all { streams = { weight = 0 } }
  t.equal(report.split_samples, 1)
  batching.verify(batches)
  local seen, ids = 0, samples[1].input_ids
  for rank = 0, WORLD - 1 do
    local batch = batches[rank + 1][1]
    local share = batch.shares[1]
    t.equal({ share.sample, share.tokens, share.first_rank, share.ranks, share.place, batch.shares.largest_group,
      batch.samples[1] }, { 1, 16 * WORLD, 0, WORLD, rank, WORLD, 1 })
    local own = chunk_table.balanced({ share.tokens }, WORLD):index(rank, "cpu")
    local count = batch.seq_lens[1]
    t.equal(batch.position_ids:narrow(0, 0, count), own)
    t.equal(batch.input_ids:narrow(0, 0, count), ids:index_select(0, own))
    for i = 0, count - 1 do
      local position = own[i]:item()
      t.equal(batch.shares.labels[i]:item(), position + 1 < share.tokens and ids[position + 1]:item() or -100)
    end
    seen = seen + count
  end
  t.equal(seen, 16 * WORLD)
  local _, _, unsplit = of_all { split = { max_group = 1 } }
  t.equal(unsplit.split_samples, 0)
  t.truthy(report.makespan < unsplit.makespan)
end)

t.test("AStreamSplitsToo", function()
  if WORLD == 1 then return end
  local samples, i = of_all(), 0
  local stream = batching.stream { source = function()
    i = i + 1
    return samples[i]
  end, buffer = 100, seq_len = 16 * WORLD, split = { max_group = WORLD } }
  local batches, report = stream()
  t.equal(report.split_samples, 1)
  t.equal(batches[1].shares.rank, RANK)
  local model = sharding.data_parallel(fixture.build("qwen3", 1))
  model(batches[1], "loss"):backward()
end)

t.test("MistakesAreNamed", function()
  if WORLD == 1 then return end
  local model = fixture.build("qwen3", 1)
  local _, batches = of_all()
  local own, other = batches[RANK + 1][1], batches[(RANK + 1) % WORLD + 1][1]
  t.raises("models.log_probs: the batch has shares of samples", model.log_probs, model, own)
  t.raises(("shares of rank %d of %d, but this is rank %d"):format((RANK + 1) % WORLD, WORLD, RANK), model.loss, model,
    other)
  local positions = own.position_ids
  own.position_ids = nil
  t.raises("needs the position_ids and seq_lens that batching.prepare gave it", model.loss, model, own)
  own.position_ids = positions
  local group = RANK < 2 and dist.group { ranks = { 0, 1 } } or nil
  if group then
    t.raises(WORLD == 2 and "but the plan is for 3" or "split.group has 2 ranks", of_all,
      { ranks = WORLD == 2 and 3 or nil, split = { max_group = 2, group = group } })
  end
  t.raises("a sample cannot be split if the cost is a function", of_all, { cost = function() return 1 end })
  t.raises("max_group must be a power of two from 1 to 1048576, not 3", of_all, { split = { max_group = 3 } })
  t.raises('the option "max_group" is missing', of_all, { split = {} })
  t.raises("which round_robin does not weigh", of_all, { balance = "round_robin" })
end)

-- A cp group has the same micro-batch, whose samples it cuts itself.
t.test("ChunksOfContextParallelRefuseShares", function()
  if WORLD ~= 2 then return end
  local model = sharding.parallelize(fixture.build("qwen3", 1), sharding.grid { cp = 2 })
  local _, batches = of_all()
  t.raises("a batch with shares of samples cannot also be cut into chunks (cp)", model, batches[RANK + 1][1], "loss")
end)
