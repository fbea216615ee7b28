-- Gemma 3 with pictures against the answers of transformers (see make_vision.py): logits, loss, gradients, generated
-- ids. The tokens of a picture see each other, in layers with a window too.

local core = require "lockstep.core"
local data = require "lockstep.data"
local lora = require "lockstep.lora"
local models = require "lockstep.models"
local nn = require "lockstep.nn"
local optim = require "lockstep.optim"
local run = require "lockstep.run"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local parity = dofile "tests/models/parity_fixture.lua"

local FOLDER = "gemma3_vision"
local PATH = "tests/models/" .. FOLDER

local function answers_of()
  local answers = data.safetensors(PATH .. "/answers.safetensors")
  return answers, { input_ids = answers.input_ids, loss_mask = answers.loss_mask, pixel_values = answers.pixel_values,
    seq_lens = answers.seq_lens:totable(), image_grid_thw = answers.image_grid_thw }
end

--- The three sequences of a batch, each with its own pictures.
local function samples_of(batch)
  local ids, pixels, grid = batch.input_ids:split(batch.seq_lens), batch.pixel_values, batch.image_grid_thw
  return { { input_ids = ids[1], pixel_values = pixels[{ { 0, 72 } }], image_grid_thw = grid[{ { 0, 2 } }] },
    { input_ids = ids[2] },
    { input_ids = ids[3], pixel_values = pixels[{ { 72, 108 } }], image_grid_thw = grid[{ { 2, 3 } }] } }
end

t.test("LogitsOfPicturesPackedAndAlone", function()
  local answers, batch = answers_of()
  local model, parts = models.load(PATH), {}

  t.near(torch.no_grad(model, batch), answers.logits, 5e-5)
  for i, sample in ipairs(samples_of(batch)) do parts[i] = torch.no_grad(model, sample) end
  t.near(torch.cat(parts), answers.logits, 5e-5)
end)

parity.add_tests(FOLDER, answers_of)

t.test("GreedyIdsAfterPicturesAndText", function()
  local answers, batch = answers_of()
  local model, samples = models.load(PATH), samples_of(batch)
  local expected = answers.generated:totable()

  t.equal(models.generate(model, samples, { max_new_tokens = 24 }), expected, "together")
  for i, sample in ipairs(samples) do
    t.equal(models.generate(model, { sample }, { max_new_tokens = 24 }), { expected[i] }, "alone")
  end
end)

t.test("RecomputedLayersAndATowerElsewhereChangeNothing", function()
  local answers, batch = answers_of()
  local plain, model = models.load(PATH), models.load(PATH)
  plain:loss(batch):backward()

  model.checkpoint = {}
  model:loss(batch):backward()

  local gradients = {}
  for name, p in plain:named_parameters() do gradients[name] = p.grad end
  for name, p in model:named_parameters() do t.near(p.grad, gradients[name], 1e-5, name) end
  local visual = torch.no_grad(function() return model:visual(batch) end)
  t.equal(visual.shape, { 27, 18 })
  batch.visual, batch.pixel_values = visual, nil
  t.near(torch.no_grad(model, batch), answers.logits, 5e-5)
end)

t.test("LoraLearnsMergesAndIsSaved", function()
  local _, batch = answers_of()
  local model = models.load(PATH)
  lora.apply(model, { r = 4, alpha = 8, targets = "all-linear" })
  local optimizer, losses = optim.AdamW(model:parameters(), { lr = 0.01 }), {}
  for step = 1, 4 do
    local sum, count = model:loss(batch)
    losses[step] = sum:item() / count
    ;(sum / count):backward()
    optimizer:step()
    optimizer:zero_grad()
  end
  t.truthy(losses[4] < losses[1], losses[4] .. " after " .. losses[1])
  local logits = torch.no_grad(model, batch)
  lora.merge(model)

  for name, like in pairs { like = PATH, alone = false } do
    models.save(model, run.dir .. "/gemma_" .. name, { like = like or nil })
    t.near(torch.no_grad(models.load(run.dir .. "/gemma_" .. name), batch), logits, 1e-4, name)
  end
end)

t.test("FoldersOfEachFormAreRead", function()
  local answers, batch = answers_of()
  local tensors = data.safetensors(PATH .. "/model.safetensors")
  for i, layout in ipairs { { "vision_tower.vision_model.", "vision_tower." },
    { "^(%l+_%l+)", "model.%1" } } do
    local path, renamed = run.dir .. "/gemma_form_" .. i, {}
    for name, tensor in pairs(tensors) do
      local new = name:gsub("vision_tower%.vision_model%.", "vision_tower.")
      if i == 2 then new = new:gsub("^language_model%.model", "language_model"):gsub(unpack(layout)) end
      renamed[new] = tensor
    end
    renamed["model.vision_tower.vision_model.head.probe"] = torch.zeros { 1 } -- takes no part
    core.make_folder(path)
    core.write_file(path .. "/config.json", { t.read_file(PATH .. "/config.json") })
    data.save_safetensors(path .. "/model.safetensors", renamed)

    t.near(torch.no_grad(models.load(path), batch), answers.logits, 5e-5)
  end
end)

t.test("WhatDoesNotMatchIsAnError", function()
  local _, batch = answers_of()
  local model, sample = models.load(PATH), samples_of(batch)[3]
  local function refused(message, changes)
    local changed = {}
    for key, value in pairs(sample) do changed[key] = value end
    for key, value in pairs(changes) do changed[key] = value or nil end
    t.raises(message, model, changed)
  end
  refused("image_grid_thw[0] is {1, 4, 6}; each picture has {1, 6, 6} patches", { pixel_values = torch.zeros { 24, 27 },
    image_grid_thw = torch.tensor({ { 1, 4, 6 } }, { dtype = torch.int64 }),
    input_ids = torch.tensor({ 57, 57, 57, 57, 57, 57, 1 }, { dtype = torch.int64 }) })
  refused("image 0 needs 9 placeholders (id 57) from token 0 on", { input_ids = torch.tensor({ 57, 57, 1 },
    { dtype = torch.int64 }) })
  refused("pixel values must be [36, 27]", { pixel_values = torch.zeros { 36, 26 } })
  refused("input_ids has placeholders of an image (id 57), but the batch has no", { pixel_values = false,
    image_grid_thw = false })
  local config = core.json_decode(t.read_file(PATH .. "/config.json"))
  config.mm_tokens_per_image = 10
  t.raises("mm_tokens_per_image 10 must be a square that divides the 6 x 6 patches", models.build, config)
  t.raises("blocks must be a tensor [T] of 3 whole numbers", nn.attention, torch.zeros { 3, 1, 2 },
    torch.zeros { 3, 1, 2 }, torch.zeros { 3, 1, 2 }, { blocks = torch.zeros { 2 } })
end)
