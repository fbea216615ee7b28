--- A micro-batch's whole numbers travel in one copy. The CPU stands in for a device: a copy to it is a clone.

local attention = require "lockstep.nn.attention"
local calls = require "calls_fixture"
local lockstep = require "lockstep"
local models = require "lockstep.models"
local plain = require "lockstep.plain"
local sending = require "lockstep.models.sending"
local t = require "lockstep.testing"
local tiled_mlp = require "lockstep.tiled_mlp"
local torch = require "lockstep.torch"

local VOCAB = 50

local function tiny_model()
  torch.manual_seed(1)
  return models.build { architectures = { "Qwen3ForCausalLM" }, model_type = "qwen3", tie_word_embeddings = true,
    max_position_embeddings = 64, rope_theta = 10000, vocab_size = VOCAB, hidden_size = 16, num_hidden_layers = 2,
    num_attention_heads = 2, num_key_value_heads = 1, head_dim = 8, intermediate_size = 32 }
end

--- Calls fn as if the model were on a device. on_copy is called with each copy.
local function away(on_copy, fn)
  local engine = sending.engine
  sending.engine = { is_away = function() return true end, copy = function(x)
    on_copy(x)
    return x:clone()
  end }
  return plain.finally(function() sending.engine = engine end, fn)
end

--- Returns fn's results, behind the number of copies.
local function count_copies(fn)
  local copies = 0
  local function finish(...) return copies, ... end
  return finish(away(function() copies = copies + 1 end, fn))
end

local function random_batch(seed)
  torch.manual_seed(seed)
  math.randomseed(seed)
  local batch, tokens, mask = { seq_lens = {} }, 0, {}
  for i = 1, math.random(4) do
    batch.seq_lens[i] = math.random(9)
    tokens = tokens + batch.seq_lens[i]
  end
  batch.input_ids = torch.randint(0, VOCAB, { tokens }, { dtype = seed % 2 == 0 and torch.int64 or torch.int32 })
  for i = 1, tokens do mask[i] = math.random(0, 1) end
  if seed % 3 > 0 then
    batch.loss_mask = torch.tensor(mask, { dtype = seed % 3 == 1 and torch.int64 or torch.float32 })
  end
  if seed % 4 == 0 then batch.position_ids = torch.arange(tokens) end
  if seed % 5 == 0 then batch.seq_lens = nil end
  return batch
end

local function gradients_of(net)
  local found = {}
  for name, p in net:named_parameters() do
    found[name] = p.grad and p.grad:clone()
    p.grad = nil
  end
  return found
end

t.test("WhatTravelsTogetherKeepsItsValuesAndShapes", function()
  local tensors = { ids = torch.arange(6), mask = torch.tensor { true, false, true }, one = torch.tensor(7):int(),
    grid = torch.arange(12):view(3, 4), none = torch.zeros({ 0, 2 }, { dtype = torch.int64 }), x = torch.ones { 2 } }
  local copies, sent = count_copies(function() return sending.together(tensors, "cpu") end)

  t.equal(copies, 1)
  for name, tensor in pairs(tensors) do
    t.equal(sent[name].shape, tensor.shape)
    t.truthy(torch.equal(sent[name]:double(), tensor:double()), name)
  end
  t.equal({ sent.ids.dtype, sent.mask.dtype, sent.x.dtype }, { torch.int64, torch.int64, torch.float32 })
end)

t.test("RandomBatchesHaveTheSameLossAndGradientsBitForBitWithOneCopy", function()
  local net = tiny_model()
  for seed = 1, 30 do
    local batch = random_batch(seed)
    local loss, count = net:loss(batch)
    loss:backward()
    local expected = gradients_of(net)

    local copies, sent_loss, sent_count = count_copies(function() return net:loss(batch) end)
    sent_loss:backward()

    t.equal({ copies, sent_loss:item(), sent_count }, { 1, loss:item(), count }, "seed " .. seed)
    for name, gradient in pairs(gradients_of(net)) do
      t.truthy(torch.equal(gradient, expected[name]), seed .. " " .. name)
    end
  end
end)

t.test("RandomBatchesHaveTheSameLogProbabilitiesWithOneCopy", function()
  local net = tiny_model()
  for seed = 1, 10 do
    local batch = random_batch(seed)
    batch.loss_mask = nil
    local expected, entropy = net:log_probs(batch)
    local copies, log_probs, sent_entropy = count_copies(function() return net:log_probs(batch) end)

    t.equal(copies, 1)
    t.truthy(torch.equal(log_probs, expected) and torch.equal(sent_entropy, entropy), seed)
  end
end)

--- Returns how often Lua reads a value in fn(net, batch) behind the copy.
local function reads_behind_the_copy(fn)
  local net, batch = tiny_model(), random_batch(2)
  local before
  local counted = calls.of(function(so_far)
    away(function() before = so_far.item + so_far.totable end, function() return fn(net, batch) end)
  end)
  return counted.item + counted.totable - before
end

t.test("AStepReadsNoValueBehindTheCopy", function()
  t.equal(reads_behind_the_copy(function(net, batch) net:loss(batch):backward() end), 0)
end)

t.test("WithoutTheCountOfTheHostACrossEntropyReadsIt", function()
  local reads = reads_behind_the_copy(function(net, batch)
    local hidden = net:hidden(batch)
    tiled_mlp.cross_entropy { hidden = hidden, weight = net:head_weight(), labels = batch.input_ids:long() }
  end)

  t.equal(reads, 1)
end)

t.test("ACountThatIsNoneIsAnError", function()
  for _, count in ipairs { -1, 0.5, "x" } do
    local ok, message = pcall(tiled_mlp.cross_entropy, { hidden = torch.ones { 2, 4 }, weight = torch.ones { 3, 4 },
      labels = torch.zeros({ 2 }, { dtype = torch.int64 }), count = count })
    t.truthy(not ok and tostring(message):find("count must be a whole number of labels", 1, true), message)
  end
end)

t.test("TheLayersOfAPassFindTheLengthsOnTheDevice", function()
  local batch = random_batch(2)
  local copies = count_copies(function()
    sending.send(batch, batch.input_ids, torch.arange(batch.input_ids:size(0)), batch.seq_lens, "cpu")
  end)
  t.equal(copies, 1)

  local counted = calls.of(function()
    local first, longest = attention.cumulative_lengths(batch.seq_lens, "cpu")
    assert(rawequal(first, (attention.cumulative_lengths(batch.seq_lens, "cpu"))))
    assert(first.dtype == torch.int32 and longest == math.max(unpack(batch.seq_lens)))
  end)
  t.equal(next(counted), nil) -- no operator, no read

  local sums = { 0 }
  for i, length in ipairs(batch.seq_lens) do sums[i + 1] = sums[i] + length end
  t.equal(attention.cumulative_lengths(batch.seq_lens, "cpu"):totable(), sums)
end)

t.test("LengthsThatChangeAreSentAgain", function()
  local lengths = { 3, 4 }
  attention.cumulative_lengths(lengths, "cpu")
  lengths[2] = 5

  t.equal(attention.cumulative_lengths(lengths, "cpu"):totable(), { 0, 3, 8 })
end)

t.test("AStepIsRecordedAwayFromTheCpu", function()
  if require("lockstep.distributed").world_size() > 1 then return end
  local model = tiny_model()
  local ids, lengths = torch.randint(0, VOCAB, { 12 }), { 5, 7 }
  local step = lockstep.graph(function(input)
    local sum = model({ input_ids = input, seq_lens = lengths }, "loss")
    sum:backward()
    local gradient = model:parameters()[1].grad:clone()
    for _, p in ipairs(model:parameters()) do p.grad:zero_() end
    return sum, gradient
  end)
  away(function() end, function()
    for i = 1, 8 do
      local input = (ids + i) % VOCAB
      local sum, gradient = step(input)
      local expected = model({ input_ids = input, seq_lens = lengths }, "loss")
      t.truthy(torch.allclose(sum, expected), i)
      t.truthy(gradient:abs():sum():item() > 0)
    end
  end)
  t.truthy(step.hits > 0, "the graph repeats its recording")
end)

t.test("LayersWithoutLengthsShareThoseOfOneSequence", function()
  local first = attention.of_one_sequence(7)
  local sums = attention.cumulative_lengths(first, "cpu")

  t.truthy(rawequal(attention.of_one_sequence(7), first))
  t.truthy(rawequal((attention.cumulative_lengths(attention.of_one_sequence(7), "cpu")), sums))
  t.equal({ attention.of_one_sequence(5)[1], sums:totable() }, { 5, { 0, 7 } })
end)
