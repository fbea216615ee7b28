--- batching from Lua: the translation of samples and results. What a plan guarantees is tested beside the
--- library, in C++.

local batching = require "lockstep.batching"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local function text(tokens, fields)
  local sample = { input_ids = {}, loss_mask = {} }
  for i = 1, tokens do sample.input_ids[i], sample.loss_mask[i] = 100 + i, i > 1 end
  for name, value in pairs(fields or {}) do sample[name] = value end
  return sample
end

local function image(patches)
  local types = { 0 }
  for i = 2, patches / 4 + 1 do types[i] = 1 end
  types[#types + 1] = 0
  return text(#types, {
    mm_token_type_ids = types, pixel_values = torch.ones({ patches, 3 }),
    image_grid_thw = torch.tensor({ { 1, 2, patches / 2 } }, { dtype = torch.int64 }),
  })
end

t.test("TheContractsExampleRuns", function()
  local batches, report = batching.prepare {
    samples = { text(6), text(3), image(8), text(4) }, seq_len = 8, ranks = 2,
    pad_to_multiple_of = 1, balance = "lockstep", cost = batching.cost.tokens(), streams = { advantages = 0.0 },
    token_types = "mm_token_type_ids",
  }

  t.equal(#batches, 2)
  t.equal(#batches[1], report.micro_steps)
  t.equal(#batches[2], report.micro_steps)
  t.equal(report.micro_steps, 2)
  t.equal(report.tokens, 17)
  t.equal(report.padding_micro_batches, 1)
  for step = 1, 2 do t.equal(batches[1][step].kind, batches[2][step].kind) end
end)

t.test("AMicroBatchHasTheFieldsOfTheContract", function()
  local batches = batching.prepare {
    samples = { text(3), text(2, { advantages = { 0.5, 0.25 } }) }, seq_len = 8, ranks = 1, streams = { advantages = -1 },
  }
  local batch = batches[1][1]
  t.equal(batch.input_ids, torch.tensor({ 101, 102, 103, 101, 102 }, { dtype = torch.int64 }))
  t.equal(batch.loss_mask, torch.tensor { false, true, true, false, true })
  t.equal(batch.position_ids, torch.tensor({ 0, 1, 2, 0, 1 }, { dtype = torch.int64 }))
  t.equal(batch.advantages:totable(), { -1, -1, -1, 0.5, 0.25 })
  t.equal(batch.seq_lens, { 3, 2 })
  t.equal(batch.cu_seqlens:totable(), { 0, 3, 5 })
  t.equal(batch.samples, { 1, 2 })
  t.equal(batch.kind, "text")
  t.equal(batch.padding, false)
end)

t.test("SamplesMayBeTensorsOrArrays", function()
  local ids = torch.tensor({ 7, 8 }, { dtype = torch.int64 })
  for _, mask in ipairs { { true, false }, { 1, 0 }, torch.tensor { true, false }, torch.tensor({ 1, 0 }, { dtype = torch.int64 }) } do
    for _, input_ids in ipairs { { 7, 8 }, ids, ids:to(torch.int32) } do
      local batches = batching.prepare { samples = { { input_ids = input_ids, loss_mask = mask } }, seq_len = 4, ranks = 1 }
      t.equal(batches[1][1].input_ids, ids)
      t.equal(batches[1][1].loss_mask, torch.tensor { true, false })
    end
  end
end)

t.test("PaddingKeepsImagesAndHasNoLoss", function()
  local batches = batching.prepare { samples = { image(8) }, seq_len = 8, ranks = 2 }
  local padding = batches[1][1].padding and batches[1][1] or batches[2][1]
  t.equal(padding.padding, true)
  t.equal(padding.samples, {})
  t.equal(padding.pixel_values:size(0), 8)
  t.equal(padding.loss_mask:any():item(), false)
end)

t.test("KindMayBeNamed", function()
  local batches = batching.prepare { samples = { text(2, { kind = "audio" }), text(2) }, seq_len = 8, ranks = 1 }
  t.equal(batches[1][1].kind, "audio")
  t.equal(batches[1][2].kind, "text")
end)

t.test("RoundRobinDealsInOrder", function()
  local batches = batching.prepare { samples = { text(4), text(4), text(4) }, seq_len = 4, ranks = 2, balance = "round_robin" }
  t.equal(batches[1][1].samples, { 1 })
  t.equal(batches[2][1].samples, { 2 })
  t.equal(batches[1][2].samples, { 3 })
  t.equal(batches[2][2].padding, true)
end)

t.test("TheCostMayBeAFunctionOfTheSequences", function()
  local function square(seq_lens)
    local sum = 0
    for _, n in ipairs(seq_lens) do sum = sum + n * n end
    return sum
  end
  local _, report = batching.prepare { samples = { text(6), text(3), text(2) }, seq_len = 8, ranks = 1, cost = square }
  t.equal(report.makespan, 36 + 9 + 4)
  t.equal(report.ideal, 36 + 9 + 4)
end)

t.test("TheCostOfATransformerTakesHuggingFaceFields", function()
  local cost = batching.cost.transformer {
    hidden_size = 8, num_hidden_layers = 2, num_attention_heads = 2, num_key_value_heads = 1, intermediate_size = 16,
    vocab_size = 10,
  }
  -- Per layer and token: q, k, v and o of 8 x (8 + 4 + 4 + 8), the MLP's three of 8 x 16; then the head of 8 x 10.
  t.equal(cost.linear, 2 * 2 * (8 * 24 + 3 * 8 * 16) + 2 * 8 * 10)
  t.truthy(cost.quadratic > 0)
  local with_vision = batching.cost.transformer {
    hidden_size = 8, num_hidden_layers = 2, num_attention_heads = 2, intermediate_size = 16, vocab_size = 10,
    vision_config = { hidden_size = 4, depth = 1, intermediate_size = 8 },
  }
  t.truthy(with_vision.image_linear > 0)
end)

t.test("CutsAreCounted", function()
  local _, report = batching.prepare { samples = { text(10), text(3) }, seq_len = 8, ranks = 1 }
  t.equal(report.truncated_samples, 1)
  t.equal(report.truncated_tokens, 2)
end)

t.test("NoSamplesGiveEmptyLists", function()
  local batches, report = batching.prepare { samples = {}, seq_len = 8, ranks = 2 }
  t.equal(batches, { {}, {} })
  t.equal(report.micro_steps, 0)
end)

t.test("ErrorsNameTheSampleAsLuaCountsIt", function()
  local function prepare(sample, opts)
    local o = { samples = { text(2), sample }, seq_len = 8, ranks = 1 }
    for k, v in pairs(opts or {}) do o[k] = v end
    return batching.prepare(o)
  end
  t.raises("sample 2 has no input_ids", prepare, {})
  t.raises("sample 2: loss_mask has shape [1], but input_ids has 2 tokens", prepare, { input_ids = { 1, 2 }, loss_mask = { true } })
  t.raises("sample 2: advantages", prepare, text(2, { advantages = { 1, 2 } }))
  t.raises("seq_len must be at least 1, not 0", prepare, text(1), { seq_len = 0 })
  t.raises('"lockstep" or "round_robin", not "fair"', prepare, text(1), { balance = "fair" })
  t.raises('did you mean "seq_len"?', batching.prepare, { samples = {}, seqlen = 8 })
  t.raises('"samples" is missing', batching.prepare, { seq_len = 8 })
end)
