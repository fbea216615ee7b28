-- A second tower: Qwen3-VL's vision tower, an encoder of sounds and the language model on ranks of their own train as
-- the three on one rank. A sample has pictures, sounds, both or neither.

local mimo = require "lockstep.mimo"
local models = require "lockstep.models"
local nn = require "lockstep.nn"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local FOLDER = "tests/models/qwen3_vl"
local SAMPLES, MICRO_BATCHES, BANDS, SOUND = 5, 3, 4, 7 -- SOUND: the id of a sound's tokens

torch.set_default_dtype(torch.float64)

-- The modules -------------------------------------------------------------------------------------

--- From frames [F, BANDS] of sounds to tokens [F / 2, hidden]; the tokens of a sound know its mean.
local Ear = nn.Module:subclass("Ear")
function Ear:init(hidden) self.fc1, self.fc2 = nn.Linear(2 * BANDS, 8), nn.Linear(8, hidden) end

function Ear:forward(sounds)
  local tokens = {}
  for i, frames in ipairs(sounds) do
    local x = torch.gelu(self.fc1(frames:reshape(-1, 2 * BANDS)))
    tokens[i] = self.fc2(x + x:mean({ 0 }):unsqueeze(0))
  end
  if #tokens > 0 then return torch.cat(tokens) end
  return torch.zeros { 0, self.fc2.weight:size(0) }
end

--- Lets a language model read batch.sounds in the places of SOUND.
local function hears(model)
  local inputs = model.inputs
  model.inputs = function(self, batch)
    local x, angles, seq_lens, after = inputs(self, batch)
    local places = batch.input_ids:eq(SOUND):nonzero():squeeze(1)
    return x:index_copy(0, places, batch.sounds:to(x.dtype)), angles, seq_lens, after
  end
  return model
end

local function load_part(part) return models.load(FOLDER, { dtype = torch.float64, part = part }) end

local function ear()
  torch.manual_seed(2)
  return Ear(models.load(FOLDER).settings.hidden_size)
end

-- The data ----------------------------------------------------------------------------------------

local config = models.load(FOLDER).config
local values = 3 * config.vision_config.temporal_patch_size * config.vision_config.patch_size ^ 2

--- The micro-batch of a number: the same on every rank.
local function draw(number)
  math.randomseed(number)
  torch.manual_seed(number)
  local batch = { ids = {}, samples = {}, vision = {}, audio = {} }
  for i = 1, SAMPLES do
    local sample = { input_ids = {}, grids = {}, pixels = {}, sounds = {} }
    local function add(id, count)
      for _ = 1, count do table.insert(sample.input_ids, id) end
    end
    batch.ids[i], batch.vision[i], batch.audio[i] = number * SAMPLES + i, 0, 0
    for j = 1, math.random(0, 2) do
      local h, w = 2 * math.random(2), 2 * math.random(2)
      sample.grids[j], sample.pixels[j] = { 1, h, w }, torch.randn { h * w, values }
      batch.vision[i] = batch.vision[i] + h * w / 4
      add(config.image_token_id, h * w / 4)
      add(math.random(10, 20), 1)
    end
    for j = 1, math.random(0, 2) do
      local tokens = math.random(3)
      sample.sounds[j], batch.audio[i] = torch.randn { 2 * tokens, BANDS }, batch.audio[i] + tokens
      add(SOUND, tokens)
      add(math.random(10, 20), 1)
    end
    for _ = 1, math.random(3, 6) do add(math.random(10, 20), 1) end
    batch.samples[i] = sample
  end
  return batch
end

local function joined(samples, field)
  local list = {}
  for _, sample in ipairs(samples) do
    for _, each in ipairs(sample[field]) do list[#list + 1] = each end
  end
  return list
end

local function pictures(samples)
  local pixels, grids = joined(samples, "pixels"), joined(samples, "grids")
  return #pixels > 0 and torch.cat(pixels) or nil, #grids > 0 and torch.tensor(grids, { dtype = torch.int64 }) or nil
end

--- The tokens of the samples, packed.
local function pack(samples)
  local lengths = {}
  for i, sample in ipairs(samples) do lengths[i] = #sample.input_ids end
  local ids = torch.tensor(joined(samples, "input_ids"), { dtype = torch.int64 })
  local _, grids = pictures(samples)
  return { input_ids = ids, seq_lens = lengths, image_grid_thw = grids,
    loss_mask = ids:ne(config.image_token_id):logical_and(ids:ne(SOUND)) }
end

-- Training ----------------------------------------------------------------------------------------

t.test("TwoTowersAndALanguageModelTrainAsOnOneRank", function()
  local topology = mimo.topology { modules = { { name = "vision" }, { name = "audio", first_rank = 1, dp = 2 },
    { name = "language", first_rank = 3 } } }
  local name = topology:module()
  local bridges = {}
  for i, from in ipairs { "vision", "audio" } do
    if name == from or name == "language" then
      bridges[i] = mimo.bridge { topology = topology, from = from, to = "language" }
    end
  end
  local module = name == "audio" and ear() or name == "vision" and load_part "visual" or hears(load_part "language")
  local tokens = 0
  local functions = {}
  function functions.vision(mine)
    local pixels, grids = pictures(mine.samples)
    local y = module { pixel_values = pixels or torch.zeros { 4, values },
      image_grid_thw = grids or torch.tensor({ { 1, 2, 2 } }, { dtype = torch.int64 }) }
    return pixels and y or y:narrow(0, 0, 0)
  end
  function functions.audio(mine) return module(joined(mine.samples, "sounds")) end
  function functions.language(mine, seen, heard)
    local batch = pack(mine.samples)
    batch.visual, batch.sounds = batch.image_grid_thw and seen or nil, heard
    local sum, count = module:loss(batch)
    tokens = tokens + count
    return sum
  end
  local run_step = mimo.step { topology = topology, modules = { [name] = functions[name] }, bridges = bridges,
    micro_batches = MICRO_BATCHES, micro_batch_size = SAMPLES,
    slice = { batch_size = SAMPLES, batch_dims = { samples = 0 }, uneven = true },
    call = function(batch, _, bridge) return { rows_per_sample = batch[bridge.from], samples = batch.ids } end }
  local number = 0

  local losses = run_step(mimo.loader { topology = topology, samples = "ids", micro_batches = MICRO_BATCHES,
    source = function()
      number = number + 1
      return draw(number)
    end })
  local all = mimo.reduce_gradients { topology = topology, modules = { [name] = module }, loss = "sum",
    tokens = tokens }

  -- The same on one rank, with the whole model.
  local model, own_ear, sum = hears(load_part()), ear(), 0
  for i = 1, MICRO_BATCHES do
    local samples = draw(i).samples
    local batch = pack(samples)
    batch.pixel_values, batch.sounds = pictures(samples), own_ear(joined(samples, "sounds"))
    local loss = model:loss(batch)
    if name == "language" then t.near(losses[i]:item() / loss:item(), 1, 1e-10) end
    sum = sum + loss
  end
  (sum / all):backward()
  local count = 0
  for parameter, p in (name == "audio" and own_ear or model):named_parameters() do
    for other, q in module:named_parameters() do
      if other == parameter then
        t.truthy((q.grad - p.grad):abs():max():item() <= 1e-9 * p.grad:abs():max():item() + 1e-13, parameter)
        count = count + 1
      end
    end
  end
  t.truthy(count >= 4)
end)
