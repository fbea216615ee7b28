-- The vision tower on a rank of its own: rank 0 runs the tower, rank 1 the language model. The gradients of both are
-- those of the whole model on one rank. And so are those of two replicas that divide a packed batch. Each rank may load
-- its part alone; the parts of all ranks are saved as one folder.

local data = require "lockstep.data"
local dist = require "lockstep.distributed"
local mimo = require "lockstep.mimo"
local models = require "lockstep.models"
local run = require "lockstep.run"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local topology = mimo.topology { world_size = 2, modules = {
  { name = "vision", first_rank = 0 }, { name = "language", first_rank = 1 } } }

local function difference(a, b) return (a - b):abs():max():item() end

--- The part of each rank, and whether a parameter is of it.
local PART = dist.rank() == 0 and "visual" or "language"
local DIR = dist.all_gather_object(run.dir)[1]
local function is_own(name) return (name:find("visual", 1, true) ~= nil) == (PART == "visual") end

--- The loss of the batch on rank 1 from parts of a model, after backward.
local function cross(part, answers)
  local bridge = mimo.bridge { topology = topology, from = "vision", to = "language", dim = 0 }
  local batch = { input_ids = answers.input_ids, seq_lens = answers.seq_lens:totable(), loss_mask = answers.loss_mask,
    image_grid_thw = answers.image_grid_thw, video_grid_thw = answers.video_grid_thw,
    second_per_grid_ts = answers.second_per_grid_ts }
  if PART == "visual" then
    batch.pixel_values, batch.pixel_values_videos = answers.pixel_values, answers.pixel_values_videos
    torch.sum(bridge(part(batch))):backward()
  else
    batch.visual = bridge(nil)
    local loss = part(batch, "loss")
    loss:backward()
    return loss:item()
  end
end

for _, folder in ipairs { "qwen3_vl", "qwen2_5_vl", "qwen3_vl_moe" } do
  t.test("PartsThatRanksLoadAloneTrainAsTheWholeAndAreSavedAsOneFolder_" .. folder, function()
    local dir = "tests/models/" .. folder
    local answers = data.safetensors(dir .. "/answers.safetensors")
    local whole = models.load(dir)
    local part = models.load(dir, { part = PART })

    local loss = cross(part, answers)

    if loss then t.near(loss / whole:loss { input_ids = answers.input_ids, seq_lens = answers.seq_lens:totable(),
      loss_mask = answers.loss_mask, image_grid_thw = answers.image_grid_thw, video_grid_thw = answers.video_grid_thw,
      second_per_grid_ts = answers.second_per_grid_ts, pixel_values = answers.pixel_values,
      pixel_values_videos = answers.pixel_values_videos }:item(), 1, 1e-6) end
    local count = 0
    for name, p in part:named_parameters() do
      t.truthy(is_own(name), name)
      local expected = answers["gradient." .. name]
      if expected then t.truthy(difference(p.grad, expected) <= 1e-4 * expected:abs():max():item(), name) end
      count = count + 1
    end
    for name in whole:named_parameters() do count = count - (is_own(name) and 1 or 0) end
    t.equal(count, 0)

    models.save(part, DIR .. "/parts-" .. folder, { like = dir })
    t.equal(models.load(DIR .. "/parts-" .. folder):state_dict(), whole:state_dict())
    models.save(part, DIR .. "/own-" .. folder)
    t.equal(models.load(DIR .. "/own-" .. folder):state_dict(), whole:state_dict())
  end)
end

t.test("APartMayBeSharded", function()
  local dir = "tests/models/qwen3_vl"
  local answers = data.safetensors(dir .. "/answers.safetensors")
  local part = models.load(dir, { part = PART, shard = { group = dist.group { ranks = { dist.rank() } } } })

  local loss = cross(part, answers)

  if loss then t.near(loss / answers.loss:item(), 1, 1e-5) end
  models.save(part, DIR .. "/sharded", { like = dir })
  t.equal(models.load(DIR .. "/sharded"):state_dict(), models.load(dir):state_dict())
end)

t.test("BothPartsOfARankAreSavedAsOneFolder", function()
  local dir = "tests/models/qwen3_vl"
  local list = { models.load(dir, { part = "visual" }), models.load(dir, { part = "language" }) }
  models.save(list, DIR .. "/list", { like = dir })
  t.equal(models.load(DIR .. "/list"):state_dict(), models.load(dir):state_dict())
end)

t.test("VisualTokensThatAreNotTheTowersAreRefused", function()
  local dir = "tests/models/qwen3_vl"
  local language = models.load(dir, { part = "language" })
  local d = data.safetensors(dir .. "/answers.safetensors")
  local seen = models.load(dir, { part = "visual" }):visual(d)
  local hidden = language.settings.hidden_size
  for _, one in ipairs {
    { seen:long(), "must be a floating-point tensor [tokens, columns], not torch.int64 of shape" },
    { { seen }, "must be a floating-point tensor [tokens, columns], not a table" },
    { seen:narrow(1, 0, hidden), ("and each needs the %d columns that model:visual returns"):format(seen:size(1)) },
    { seen:narrow(0, 1, seen:size(0) - 1), ("but input_ids has %d placeholders"):format(seen:size(0)) },
  } do
    t.raises(one[2], language.loss, language,
      { input_ids = d.input_ids, seq_lens = d.seq_lens:totable(), loss_mask = d.loss_mask, visual = one[1],
        image_grid_thw = d.image_grid_thw, video_grid_thw = d.video_grid_thw })
  end
end)

t.test("PartsThatDoNotMakeAModelAreRefused", function()
  local dir = "tests/models/qwen3_vl"
  local visual, language = models.load(dir, { part = "visual" }), models.load(dir, { part = "language" })
  local path = DIR .. "/refused"

  t.raises('no rank gives the part "language"', models.save, visual, path)
  t.raises("gives a whole model, and rank", models.save, PART == "visual" and visual or models.load(dir), path)
  t.raises('the part "visual" has no language model', visual.loss, visual, { input_ids = torch.arange(3) })
  t.raises('the part "language" has no vision tower', language.visual, language, {})
  t.raises('part = audio: Qwen3VLForConditionalGeneration has the parts "visual" and "language"', models.load, dir,
    { part = "audio" })
  t.raises("part = visual: LlamaForCausalLM has no parts", models.load, "tests/models/llama", { part = "visual" })
end)

for _, folder in ipairs { "qwen3_vl", "qwen2_5_vl" } do
  t.test("GradientsCrossTheBridgeIn_" .. folder, function()
    local answers = data.safetensors("tests/models/" .. folder .. "/answers.safetensors")
    local model = models.load("tests/models/" .. folder)
    local bridge = mimo.bridge { topology = topology, from = "vision", to = "language", dim = 0 }
    local batch = { input_ids = answers.input_ids, seq_lens = answers.seq_lens:totable(),
      loss_mask = answers.loss_mask, image_grid_thw = answers.image_grid_thw,
      video_grid_thw = answers.video_grid_thw, second_per_grid_ts = answers.second_per_grid_ts }
    local sees = topology:module(dist.rank()) == "vision"

    if sees then
      batch.pixel_values, batch.pixel_values_videos = answers.pixel_values, answers.pixel_values_videos
      torch.sum(bridge(model:visual(batch))):backward()
    else
      batch.visual = bridge(nil)
      local loss = model:loss(batch)
      t.near(loss:item() / answers.loss:item(), 1, 1e-5)
      loss:backward()
    end

    local count = 0
    for name, p in model:named_parameters() do
      if (name:find("visual", 1, true) ~= nil) == sees then
        local expected = answers["gradient." .. name]
        t.truthy(difference(p.grad, expected) <= 1e-4 * expected:abs():max():item(), name)
        count = count + 1
      else
        t.equal(p.grad, nil, name)
      end
    end
    t.truthy(count > 10)
  end)

  t.test("PartsOfAPackedBatchTrainAsTheWholeOf_" .. folder, function()
    local answers = data.safetensors("tests/models/" .. folder .. "/answers.safetensors")
    local model = models.load("tests/models/" .. folder)
    local batch, of_sample = { seq_lens = answers.seq_lens:totable() }, {}
    for _, key in ipairs { "input_ids", "loss_mask", "position_ids", "pixel_values", "image_grid_thw",
      "pixel_values_videos", "video_grid_thw", "second_per_grid_ts" } do
      batch[key] = answers[key]
    end
    for key, token in pairs { image_grid_thw = model.config.image_token_id,
      video_grid_thw = model.config.video_token_id } do
      local start, rows, grid = 0, {}, batch[key]:prod({ dim = 1 }):totable()
      for i, length in ipairs(batch.seq_lens) do
        local patches = batch.input_ids:narrow(0, start, length):eq(token):sum():item() * 4
        rows[i], start = 0, start + length
        while patches > 0 do
          patches, rows[i] = patches - table.remove(grid, 1), rows[i] + 1
        end
      end
      of_sample[key] = rows
    end

    local mine = mimo.slice(batch, dist.rank(), 2, { uneven = true, rows_per_sample = of_sample })
    local loss = model:loss(mine)
    loss:backward()

    t.near(dist.all_reduce(loss:detach()):item() / answers.loss:item(), 1, 1e-5)
    for name, p in model:named_parameters() do
      local expected = answers["gradient." .. name]
      local grad = dist.all_reduce(p.grad or torch.zeros_like(p))
      t.truthy(difference(grad, expected) <= 1e-4 * expected:abs():max():item(), name)
    end
  end)
end
