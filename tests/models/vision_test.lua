-- Models with pictures against the answers of transformers (see make_vision.py): position ids, logits, loss, gradients,
-- generated ids. Then the fields of a batch, and its errors.

local core = require "lockstep.core"
local data = require "lockstep.data"
local models = require "lockstep.models"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local parity = dofile "tests/models/parity_fixture.lua"

local FOLDERS = { "qwen3_vl", "qwen3_vl_moe", "qwen2_5_vl" }
local VISUAL = { "pixel_values", "image_grid_thw", "pixel_values_videos", "video_grid_thw", "second_per_grid_ts" }
local IMAGE = 57

local function path_of(folder) return "tests/models/" .. folder end

local function answers_of(folder)
  local answers = data.safetensors(path_of(folder) .. "/answers.safetensors")
  local batch = { input_ids = answers.input_ids, position_ids = answers.position_ids, loss_mask = answers.loss_mask,
    seq_lens = answers.seq_lens:totable() }
  for _, key in ipairs(VISUAL) do batch[key] = answers[key] end
  return answers, batch
end

local function load(folder) return models.load(path_of(folder)) end

local function config_of(folder) return core.json_decode(t.read_file(path_of(folder) .. "/config.json")) end

local function with(batch, changes)
  local result = {}
  for key, value in pairs(batch) do result[key] = value end
  for key, value in pairs(changes) do
    result[key] = value
    if value == core.null then result[key] = nil end
  end
  return result
end

--- The three sequences of a batch, each with its own pictures.
local function samples_of(batch)
  local lengths = batch.seq_lens
  local ids = batch.input_ids:split(lengths)
  local patches = { 24 + 32, 0, 12 }
  local pixels = batch.pixel_values:split(patches)
  local grids = batch.image_grid_thw:split { 2, 0, 1 }
  return {
    { input_ids = ids[1], pixel_values = pixels[1], image_grid_thw = grids[1] },
    { input_ids = ids[2] },
    { input_ids = ids[3], pixel_values = pixels[3], image_grid_thw = grids[3],
      pixel_values_videos = batch.pixel_values_videos, video_grid_thw = batch.video_grid_thw,
      second_per_grid_ts = batch.second_per_grid_ts },
  }
end

t.test("PositionsAfterVideosAreThoseOfTransformersBefore5_3", function()
  local config = config_of "qwen2_5_vl"
  for i, case in ipairs(core.json_decode(t.read_file(path_of "positions/positions.json"))) do
    local sample = { input_ids = case.input_ids }
    for _, key in ipairs { "image_grid_thw", "video_grid_thw" } do
      if #case[key] > 0 then sample[key] = torch.tensor(case[key], { dtype = torch.int64 }) end
    end
    sample.second_per_grid_ts = case.second_per_grid_ts

    local positions = models.position_ids(config, sample)

    t.equal(positions:totable(), case.position_ids, "case " .. i)
    t.equal(positions:max():item() + 1, case.next) -- of the first new token
  end
end)

for _, folder in ipairs(FOLDERS) do
  t.test("PositionIdsOf_" .. folder, function()
    local answers, batch = answers_of(folder)
    local config = config_of(folder)

    local parts = {}
    for i, sample in ipairs(samples_of(batch)) do parts[i] = models.position_ids(config, sample) end

    t.equal(torch.cat(parts, 1), answers.position_ids)
    t.equal(load(folder):position_ids(samples_of(batch)[3]), parts[3])
    -- Ids may be an array.
    local counting = { 0, 1, 2 }
    t.equal(models.position_ids(config, { input_ids = { 3, 4, 5 } }):totable(), { counting, counting, counting })
  end)

  t.test("LogitsOf_" .. folder, function()
    local answers, batch = answers_of(folder)
    local model = load(folder)

    local logits = torch.no_grad(model, batch)

    t.equal(logits.shape, answers.logits.shape)
    t.near(logits, answers.logits, 5e-5)
    -- Without position ids, and with those that batching makes, the model finds its own.
    t.equal(torch.no_grad(model, with(batch, { position_ids = core.null })), logits)
    local counting = {}
    for i, length in ipairs(batch.seq_lens) do counting[i] = torch.arange(length) end
    t.equal(torch.no_grad(model, with(batch, { position_ids = torch.cat(counting) })), logits)
  end)

  parity.add_tests(folder, answers_of)

  t.test("PackedRowsAreTheSequencesAloneIn_" .. folder, function()
    local answers, batch = answers_of(folder)
    local model = load(folder)

    local parts = {}
    for i, sample in ipairs(samples_of(batch)) do parts[i] = torch.no_grad(model, sample) end

    t.near(torch.cat(parts), answers.logits, 5e-5)
  end)

  t.test("GreedyIdsAfterPicturesTextAndAVideoOf_" .. folder, function()
    local answers, batch = answers_of(folder)
    local model = load(folder)
    local samples = samples_of(batch)
    local expected = answers.generated:totable()

    t.equal(models.generate(model, samples, { max_new_tokens = 24 }), expected, "together")
    for i, sample in ipairs(samples) do
      t.equal(models.generate(model, { sample }, { max_new_tokens = 24 }), { expected[i] }, "alone")
    end
  end)

  t.test("TextAloneRunsNoTowerIn_" .. folder, function()
    local _, batch = answers_of(folder)
    local model = load(folder)
    function model.model.visual.forward() error("the tower ran") end
    local text = samples_of(batch)[2]

    model:loss(text):backward()

    for name, p in model:named_parameters() do
      t.equal(p.grad == nil, name:find("visual", 1, true) ~= nil, name)
    end
    t.raises("the tower ran", model, samples_of(batch)[1])
    -- A batch that batching made of text and empty tensors is text.
    model(with(text, { pixel_values = torch.zeros { 0, 54 }, image_grid_thw = torch.zeros({ 0, 3 },
      { dtype = torch.int64 }) }))
  end)

  t.test("TheTowerMayRunElsewhereIn_" .. folder, function()
    local answers, batch = answers_of(folder)
    local model = load(folder)

    local visual = model:visual(batch)
    local logits = model(with(batch, { visual = visual, pixel_values = core.null, pixel_values_videos = core.null }))

    t.equal(visual:size(0), 6 + 8 + 3 + 12)
    t.near(logits:detach(), answers.logits, 5e-5)
  end)

  t.test("AFolderIsWrittenAsItWasReadIn_" .. folder, function()
    local _, batch = answers_of(folder)
    local model = load(folder)
    local dir = (os.getenv("TEST_TMPDIR") or os.getenv("TMPDIR") or "/tmp") .. "/saved_" .. folder
    os.execute("rm -rf '" .. dir .. "'")

    models.save(model, dir)

    local before, after = data.safetensors(path_of(folder) .. "/model.safetensors"),
      data.safetensors(dir .. "/model.safetensors")
    for name, tensor in pairs(before) do t.truthy(torch.equal(after[name], tensor), name) end
    for name in pairs(after) do t.truthy(before[name], name) end
    t.equal(torch.no_grad(models.load(dir), batch), torch.no_grad(model, batch))
  end)

  t.test("PlaceholdersThatDoNotMatchAreAnErrorIn_" .. folder, function()
    local _, batch = answers_of(folder)
    local model = load(folder)
    local sample = samples_of(batch)[1]
    local ids, grid = sample.input_ids:totable(), sample.image_grid_thw
    local function refused(message, changes) t.raises(message, model, with(sample, changes)) end
    local function changed(f)
      local copy = { unpack(ids) }
      f(copy)
      return { input_ids = torch.tensor(copy, { dtype = torch.int64 }) }
    end

    refused("image 0 needs 6 placeholders (id 57) from token 4 on, as image_grid_thw says, but there are 5",
      changed(function(copy) table.remove(copy, 6) end))
    refused("token 25 is a placeholder of an image (id 57), but image_grid_thw describes only 2",
      changed(function(copy) copy[26] = IMAGE end))
    refused("image_grid_thw describes 3 images, but input_ids has no placeholders (id 57) for image 2",
      { image_grid_thw = torch.cat { grid, grid[{ { 0, 1 } }] } })
    refused("but image_grid_thw describes only 1", { image_grid_thw = grid[{ { 0, 1 } }] })
    refused("pixel values must be [56, 54]", { pixel_values = sample.pixel_values[{ { 0, 55 } }] })
    refused("h and w multiples of 2", { image_grid_thw = grid + 1 })
    refused("image_grid_thw must be a tensor of whole numbers [items, 3]", { image_grid_thw = grid:to(torch.float32) })
    refused("pictures need pixel_values and image_grid_thw", { pixel_values = core.null })
    refused("input_ids has placeholders of an image (id 57), but the batch has no",
      { pixel_values = core.null, image_grid_thw = core.null })
    t.raises("models: position_ids must have shape [T] or [3, T], got {2, 4}", load(folder), { input_ids =
      torch.arange(4), position_ids = torch.zeros({ 2, 4 }, { dtype = torch.int64 }) })
    refused("position_ids of a batch with images must be [3, T]",
      { position_ids = torch.arange(#ids) + 3 })
    refused("the visual tokens have shape {13, 20}", { visual = torch.zeros { 13, 20 }, pixel_values = core.null })
  end)

  t.test("ConfigsThatWouldChangeResultsAreRefusedIn_" .. folder, function()
    local function refused(message, change)
      local config = config_of(folder)
      change(config, config.text_config or config)
      t.raises(message, models.build, config)
    end
    refused('lacks "vision_config"', function(c) c.vision_config = nil end)
    refused('hidden_act is "relu"', function(c) c.vision_config.hidden_act = "relu" end)
    refused("mrope_section must be three numbers that add up to head_dim / 2", function(_, text)
      (text.rope_scaling or text.rope_parameters).mrope_section = { 1, 1, 1 }
    end)
    refused("out_hidden_size 12 must be the text's hidden_size", function(c) c.vision_config.out_hidden_size = 12 end)
    refused("image_token_id is 61, but vocab_size is 61", function(c) c.image_token_id = 61 end)
    local config = config_of(folder)
    config.vision_config.registers, (config.text_config or config).router = 4, 4
    local model, heard = t.listening(models.build, config)
    t.truthy(model:num_parameters() > 10000)
    t.truthy(heard:find('vision_config reads no "registers" of the config', 1, true), heard)
    t.truthy(heard:find('reads no "router" of the config', 1, true), heard)
    local labelled = config_of(folder)
    local name = labelled.architectures[1]:gsub("ForConditionalGeneration$", "ForSequenceClassification")
    labelled.num_labels, labelled.architectures = 3, { name }
    local judge, nothing = t.listening(models.build, labelled)
    t.equal({ judge.num_labels, nothing }, { 3, "" })
    config.quantization_config = { bits = 4 }
    t.raises("are read, not any without quant_method", models.build, config)
    t.truthy(models.build(config, { ignore = "quantization_config, registers, router" }))
  end)
end
