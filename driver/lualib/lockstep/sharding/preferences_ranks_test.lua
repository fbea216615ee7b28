--- Losses of log-probabilities and of scores on grids: ranks learn what one rank learns, in float64.

local across = require "lockstep.sharding.across"
local dist = require "lockstep.distributed"
local fixture = require "lockstep.sharding.parallelize_fixture"
local losses = require "lockstep.losses"
local models = require "lockstep.models"
local runs = require "lockstep.sharding.grid_runs_fixture"
local sharding = require "lockstep.sharding"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local WORLD = dist.world_size()
local F64 = { dtype = torch.float64 }

--- Returns two pairs of sequences, 16 tokens together. Some ranks of cp have no token of a sequence.
function fixture.new_batch(_, seed)
  torch.manual_seed(seed)
  local first = 2 + torch.randint(5, {}):item()
  local batch = { input_ids = torch.randint(56, { 16 }), seq_lens = { first, 8 - first, 3, 5 },
    loss_mask = torch.rand({ 16 }):gt(0.3), reference = torch.randn({ 2, 2 }, F64),
    advantages = torch.randn({ 16 }, F64), desirable = torch.tensor({ 1, 0, 0, 1 }),
    old_log_probs = torch.randn({ 16 }, F64) * 0.3 - 3.5 }
  batch.lengths = torch.tensor(batch.seq_lens, { dtype = torch.int64 }):view(2, 2)
  batch.loss_mask[9] = true
  return batch
end

--- The loss of each use, and the number of what it counts in a micro-batch.
local USES = {
  pairs = { function(model, batch)
    local scores, means = losses.pairs.score(model, batch, "sigmoid")
    return losses.pairs.loss { scores = scores, means = means, reference = batch.reference, rpo_alpha = 0.3 }
  end, 2 },
  answers = { function(model, batch)
    local scores = losses.per_sequence(model(batch, "log_probs"), { seq_lens = batch.seq_lens,
      loss_mask = batch.loss_mask })
    return losses.kto { log_probs = scores, reference = batch.reference:view(-1), desirable = batch.desirable,
      kl = 0.1 }
  end, 4 },
  policy = { function(model, batch)
    return losses.grpo { log_probs = model(batch, "log_probs", { temperature = 0.7 }),
      old_log_probs = batch.old_log_probs, advantages = batch.advantages, loss_mask = batch.loss_mask }
  end },
  scores = { function(model, batch)
    local scores = model(batch):view(-1, 2)
    return losses.reward { chosen = scores:select(1, 0), rejected = scores:select(1, 1), center = 0.1 }
  end, 2 },
}

--- Calls fn where the fixture trains on a loss.
local function with_loss(use, fn)
  local loss_of, count, is_whole = fixture.loss_of, fixture.count, fixture.is_whole
  fixture.is_whole = true
  function fixture.loss_of(model, batch)
    local sum, own_count = USES[use][1](model, batch)
    return sum, own_count
  end
  function fixture.count(batches)
    local sum = 0
    for _, row in ipairs(batches) do
      for _, batch in ipairs(row) do sum = sum + (USES[use][2] or batch.loss_mask:sum():item()) end
    end
    return sum
  end
  require("lockstep.plain").finally(function()
    fixture.loss_of, fixture.count, fixture.is_whole = loss_of, count, is_whole
  end, fn)
end

for _, use in ipairs { "pairs", "answers", "policy", "scores" } do
  for _, row in ipairs(runs.of("preferences_ranks", use, WORLD)) do
    t.test(("RanksLearnAsOne_%s_%s"):format(use, runs.name(row)), function()
      with_loss(use, function() fixture.check(row.sizes, row.options, { form = row.family, seed = row.index }) end)
    end)
  end
end

--- A grid of each axis that log-probabilities come through.
local GRIDS = { { cp = 2 }, { tp = 2 }, { pp = 2 }, { cp = WORLD > 2 and 2 or 1, pp = 2 } }

t.test("ReferencesAreThoseOfOneRankOnEveryRank", function()
  local alone = fixture.build("qwen3", 3)
  local batches = {}
  for i = 1, 3 do batches[i] = fixture.new_batch("qwen3", i) end
  for _, sizes in ipairs(GRIDS) do
    local model, grid = sharding.parallel(fixture.build("qwen3", 3), sizes)
    local found = sharding.infer(model, batches, function(batch)
      t.equal(torch.is_grad_enabled(), false)
      return losses.pairs.score(model, batch, "sigmoid")
    end)
    t.equal(#found, 3)
    for i, batch in ipairs(batches) do
      t.near(found[i], torch.no_grad(losses.pairs.score, alone, batch, "sigmoid"), 1e-10, tostring(grid))
    end
    t.equal(#sharding.infer(model, {}, function() end), 0)
  end
end)

t.test("AModelInfersOutOfTrainingMode", function()
  local net = fixture.build("qwen3", 3)
  local model, mode = sharding.parallel(net, { tp = 2 }), nil
  net.model.layers[1]:eval()
  local function fn()
    mode = net.training
    return 1
  end
  t.raises("sharding.infer: the function must return a tensor for each batch, not a number", sharding.infer, model,
    { {} }, fn)
  t.equal({ mode, net.training, net.model.layers[1].training, net.model.layers[2].training },
    { false, true, false, true })
  local Tower = {}
  across.add(Tower)
  t.raises("sharding.infer: not for a model with a tower, which computes the loss alone", sharding.infer,
    setmetatable({ what = "a model with a tower" }, Tower), {}, fn)
end)

t.test("ALossOfTheWholeBatchOnEachRankOfCpSaysSo", function()
  local model = sharding.parallel(fixture.build("qwen3", 3), { cp = 2 })
  local batch = fixture.new_batch("qwen3", 1)
  local function fn()
    local sum, count = USES.pairs[1](model, batch)
    return sum, count
  end
  local rows = WORLD / 2
  t.raises(("the divisor is %d, but the function summed the losses of %d"):format(2 * rows, 4 * rows),
    sharding.accumulate, model, { batch }, 2 * rows, fn)
end)

-- Stages know the lengths of a batch's sequences before they run it.
t.test("PairsAreDealtAsTwoSequencesEach", function()
  local batch = fixture.new_batch("qwen3", 1)
  local pair = { kind = "pair", input_ids = batch.input_ids, loss_mask = batch.loss_mask,
    lengths = torch.tensor({ { 9, 7 } }, { dtype = torch.int64 }) }
  local grid = sharding.grid { tp = WORLD }
  local batches = losses.deal({ pair, pair }, { seq_len = 32, grid = grid })
  t.equal({ #batches, batches[1].seq_lens }, { 1, { 9, 7, 9, 7 } })
end)

-- With `sequence` ranks of tp divide the tokens, which their number must allow.
t.test("PairsOfOddLengthsArePaddedForSequenceParallelism", function()
  local net, judge = fixture.build("qwen3", 3), fixture.build("qwen3_judge", 3)
  local pairs_of, judged, samples = {}, {}, {}
  for i = 1, 3 do
    local batch = fixture.new_batch("qwen3", i)
    local length = 12 + i
    samples[i] = { kind = "pair", input_ids = batch.input_ids:narrow(0, 0, length),
      loss_mask = batch.loss_mask:narrow(0, 0, length),
      lengths = torch.tensor({ { 9, length - 9 } }, { dtype = torch.int64 }) }
    pairs_of[i] = torch.no_grad(losses.pairs.score, net, samples[i], "sigmoid")
    judged[i] = torch.no_grad(judge, losses.pairs.batch(samples[i])):view(1, 2)
  end
  for cp = 1, WORLD / 2 do
    local sizes = { tp = 2, cp = cp, sequence = true, fully_shard = false }
    local model, grid = sharding.parallel(fixture.build("qwen3", 3), sizes)
    local scorer = sharding.parallel(fixture.build("qwen3_judge", 3), sizes)
    t.equal(grid.token_multiple, 2 * cp)

    local num_pairs = 0
    for _, batch in ipairs((losses.deal(samples, { seq_len = 16, grid = grid }))) do
      t.equal(#batch.input_ids % (2 * cp), 0)
      local scores = torch.no_grad(losses.pairs.score, model, batch, "sigmoid")
      local values = torch.no_grad(scorer, losses.pairs.batch(batch)):narrow(0, 0, 2 * #batch.lengths):view(-1, 2)
      for i, number in ipairs(batch.samples) do
        t.near(scores[i - 1], pairs_of[number][0], 1e-10)
        t.near(values[i - 1], judged[number][0], 1e-10)
        num_pairs = num_pairs + 1
      end
    end
    t.equal(dist.all_reduce(torch.tensor(num_pairs), "sum", { group = grid:group "dp" }):item(), 3)
  end
  t.equal(select(2, sharding.parallel(net, { cp = 2, sequence = true })).token_multiple, 1)
end)

t.test("OneRankOfThoseThatWriteTheSameAnswersRunsTheTools", function()
  local num_run = 0
  local answers = models.generate_turns({ { messages = {}, prompt = { input_ids = torch.arange(2) } } }, {
    group = sharding.grid({ tp = WORLD }):group "tp_ep", max_new_tokens = 9, max_turns = 2,
    chat = { tool_results = function(_, _, _, results) return { tonumber(results[1]) } end },
    tokenizer = { decode = function() return "" end },
    parse = function() return { { name = "rank", arguments = {} } }, "" end,
    tools = { { name = "rank", fn = function()
      num_run = num_run + 1
      return tostring(dist.rank() + 5)
    end } },
    generate = function(_, _, turn, _, places)
      t.equal(places, { 1 })
      return { { turn } }
    end,
  })
  t.equal({ answers[1].ids, answers[1].loss_mask }, { { 1, 5, 2 }, { 1, 0, 1 } })
  t.equal(num_run, dist.rank() == 0 and 1 or 0)
end)
