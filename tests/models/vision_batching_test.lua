-- batching takes the models with pictures as they are: micro-batches of packed, padded and cut samples have the losses
-- of the samples alone.

local batching = require "lockstep.batching"
local data = require "lockstep.data"
local models = require "lockstep.models"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local IMAGE, VIDEO = 57, 58

--- The three sequences of a folder's answers as samples for batching, with the types of their tokens.
local function samples_of(folder)
  local a = data.safetensors("tests/models/" .. folder .. "/answers.safetensors")
  local lengths = a.seq_lens:totable()
  local ids, masks = a.input_ids:split(lengths), a.loss_mask:split(lengths)
  local pixels, grids = a.pixel_values:split { 24 + 32, 0, 12 }, a.image_grid_thw:split { 2, 0, 1 }
  local samples = {}
  for i = 1, 3 do
    samples[i] = { input_ids = ids[i], loss_mask = masks[i],
      mm_token_type_ids = ids[i]:eq(IMAGE):to(torch.int64) + 2 * ids[i]:eq(VIDEO):to(torch.int64) }
  end
  for _, i in ipairs { 1, 3 } do samples[i].pixel_values, samples[i].image_grid_thw = pixels[i], grids[i] end
  samples[3].pixel_values_videos, samples[3].video_grid_thw = a.pixel_values_videos, a.video_grid_thw
  samples[3].second_per_grid_ts = a.second_per_grid_ts
  return samples, a
end

--- The loss of samples in micro-batches, the tokens that count, and the number of samples by kind.
local function packed_loss(model, samples, opts)
  local batches = batching.prepare { samples = samples, seq_len = opts.seq_len, ranks = 1, pad_to_multiple_of = 8,
    token_types = "mm_token_type_ids", mix_kinds = opts.mix_kinds, check = false }
  local sum, count, kinds = 0, 0, {}
  for _, batch in ipairs(batches[1]) do
    local loss, n = torch.no_grad(model.loss, model, batch)
    sum, count = sum + loss:item(), count + n
    kinds[batch.kind] = #batch.seq_lens
  end
  return sum, count, kinds
end

for _, folder in ipairs { "qwen3_vl", "qwen2_5_vl" } do
  t.test("PackedMicroBatchesHaveTheLossOfTheirSamplesIn_" .. folder, function()
    local samples, answers = samples_of(folder)
    local model = models.load("tests/models/" .. folder)
    samples[4], samples[5] = samples[1], samples[2]
    local expected, tokens = answers.loss:item(), answers.count:item()
    for i = 1, 2 do
      local loss, n = torch.no_grad(model.loss, model, samples[i])
      expected, tokens = expected + loss:item(), tokens + n
    end

    local sum, count, kinds = packed_loss(model, samples, { seq_len = 80, mix_kinds = false })
    t.equal(kinds, { image = 2, ["image+video"] = 1, text = 2 })
    t.equal(count, tokens)
    t.near(sum / expected, 1, 1e-5)

    -- Texts beside images, and images beside images and videos: one micro-batch holds all.
    sum, count, kinds = packed_loss(model, samples, { seq_len = 400 })
    t.equal(kinds, { ["image+video"] = 5 })
    t.equal(count, tokens)
    t.near(sum / expected, 1, 1e-5)

    -- Positions of each sample, before packing.
    for _, i in ipairs { 1, 3 } do samples[i].position_ids = models.position_ids(model.config, samples[i]) end
    t.near(packed_loss(model, samples, { seq_len = 80, mix_kinds = false }) / expected, 1, 1e-5)
    t.near(packed_loss(model, samples, { seq_len = 400 }) / expected, 1, 1e-5)
  end)

  t.test("ASampleThatIsCutLosesWholePicturesIn_" .. folder, function()
    local samples = samples_of(folder)
    local model = models.load("tests/models/" .. folder)

    -- The first picture ends at token 10, the second at token 22.
    local batches = batching.prepare { samples = { samples[1] }, seq_len = 15, ranks = 1,
      token_types = "mm_token_type_ids", check = false }
    local batch = batches[1][1]
    local logits = torch.no_grad(model, batch)

    t.equal(batch.image_grid_thw:size(0), 1)
    local whole = torch.no_grad(model, samples[1])
    t.near(logits, whole:narrow(0, 0, logits:size(0)), 1e-5)
  end)
end
