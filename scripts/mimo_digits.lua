-- Trains the model of digits_vlm.lua with its vision tower and its language model on ranks of their own.
--
--     ./run --nproc 3 scripts/mimo_digits.lua --set vision_ranks=2
--
-- Every rank reads the same micro-batches and each module keeps its part; features go to the language model's ranks and
-- their gradients come back. One rank or four: the same curve, and 9 of 10 held-out digits come out right.

local dist = require "lockstep.distributed"
local log = require "lockstep.log"
local mimo = require "lockstep.mimo"
local optim = require "lockstep.optim"
local run = require "lockstep.run"
local sharding = require "lockstep.sharding"
local torch = require "lockstep.torch"
local digits = require "digits_data"
local model_of = require "digits_model"

local config = run.config({
  seed = 1, steps = 600,
  micro_batches = 2, -- of a step
  samples = 36, -- of a micro-batch, over all ranks: two thirds of them images, the others text
  held_out = 360, -- digits that are shown at the end
  vision_ranks = 1, -- the others run the language model
  scalable_reads = false, -- each rank reads its module's part of a micro-batch alone
  lr = 1.5e-3,
  max_norm = 1.0,
  precision = "float64", -- so that the order in which ranks add up leaves no trace
  vision = { hidden = 64, heads = 4, depth = 2, patch_dim = 4, patches = 16 },
  text = { hidden = 64, heads = 4, depth = 2, intermediate = 192 },
}, { at_least = { seed = 0, steps = 1, micro_batches = 1, samples = 1, held_out = 1, vision_ranks = 1 } })
torch.set_default_dtype(run.dtype(config.precision))
torch.manual_seed(config.seed)

-- The module of each rank.
local language_ranks = dist.world_size() - config.vision_ranks
local topology = mimo.topology { modules = {
  { name = "vision", dp = config.vision_ranks },
  { name = "language", dp = math.max(1, language_ranks), first_rank = language_ranks > 0 and config.vision_ranks or 0 },
} }
topology:validate { micro_batch_size = config.samples, global_batch_size = config.samples * config.micro_batches,
  uneven = true, order = "all_forwards_first" }
local bridge = mimo.bridge { topology = topology, from = "vision", to = "language" }
local has_vision, has_language = topology:peers("vision", "dp") ~= nil, topology:peers("language", "dp") ~= nil
log.print(mimo.draw(topology, { micro_batch_size = config.samples }))

-- Micro-batches: samples, their ids, and how many tokens the image of each becomes.
local train, held_out = digits.load()

local function micro_batches(first, last, sample_of) -- the ids [first, last], then those a micro-batch further
  return function()
    local batch = { samples = {}, ids = {}, rows = {} }
    for id = first, last do
      local sample = sample_of(id)
      if not sample then break end
      batch.samples[#batch.samples + 1], batch.ids[#batch.ids + 1] = sample, id
      table.insert(batch.rows, sample.pixel_values and sample.pixel_values:size(0) / 4 or 0) -- 4 patches are a token
    end
    first, last = first + config.samples, last + config.samples
    return #batch.ids > 0 and batch or nil
  end
end

local function own_samples(reader, batch, name) -- those that this rank's replica of the module keeps
  local dp_rank, dp_size = reader:dp_info(name)
  return mimo.slice(batch, dp_rank, dp_size, { batch_size = #batch.samples, uneven = true }).samples
end

-- Samples behind one another, as the language model reads them.
local function pack(samples)
  local ids, mask, positions, lengths = {}, {}, {}, {}
  for _, sample in ipairs(samples) do
    for i, id in ipairs(sample.input_ids) do
      ids[#ids + 1], mask[#mask + 1], positions[#positions + 1] = id, (sample.loss_mask[i] == 1), i - 1
    end
    lengths[#lengths + 1] = #sample.input_ids
  end
  return { input_ids = torch.tensor(ids, { dtype = torch.int64 }), loss_mask = torch.tensor(mask),
    position_ids = torch.tensor(positions, { dtype = torch.int64 }), seq_lens = lengths }
end

-- Model and optimizer.
local model = model_of.VisionLanguageModel { vision = config.vision, text = config.text,
  vocab_size = digits.vocab_size, image_token = digits.IMAGE }
local modules = { vision = has_vision and model.visual or nil, language = has_language and model or nil }
model.visual = function(features) return features end -- they come over the bridge
local groups = {}
for _, module in pairs(modules) do groups[#groups + 1] = { params = module:parameters() } end
local optimizer = optim.AdamW(groups, { lr = config.lr, weight_decay = 0.05 })
local schedule = optim.schedule.warmup_cosine { warmup_steps = math.min(40, config.steps), total_steps = config.steps }

-- A micro-batch through the tower and over the bridge: on ranks of the language model the packed samples, ready for it.
local function see(reader, batch, whole)
  local features
  if has_vision then
    local pixels, grids = {}, {}
    for _, sample in ipairs(own_samples(reader, batch, "vision")) do
      pixels[#pixels + 1], grids[#grids + 1] = sample.pixel_values, sample.image_grid_thw
    end
    features = #pixels > 0 and modules.vision(torch.cat(pixels), torch.cat(grids))
      or torch.zeros({ 0, config.text.hidden }):requires_grad_(true) -- no image, but a gradient to wait for
  end
  features = bridge(features, whole)
  if not has_language then return nil, features end
  local packed = pack(own_samples(reader, batch, "language"))
  packed.pixel_values = features
  return packed
end

-- Training.
local first, last = 1, config.samples
if config.scalable_reads then
  local dp_rank, dp_size = topology:sampling_info(nil, true)
  first, last = topology:reads({ micro_batch_size = last, num_samples = last }, 0, dp_rank, dp_size)
end
local reader = mimo.loader { topology = topology, samples = "ids", ownership = "rows",
  micro_batches = config.micro_batches, scalable_reads = config.scalable_reads,
  source = micro_batches(first, last, function(id) return digits.draw(train, 1e6 * config.seed + id) end) }
for step in run:steps(function() return true end, config.steps) do
  local losses, tokens, loss_sum = {}, 0, torch.zeros {}
  for i = 1, config.micro_batches do
    local packed, y = see(reader, reader())
    losses[i] = packed and model_of.loss_sum(model, packed) or torch.sum(y)
    tokens, loss_sum = tokens + (packed and packed.loss_mask:sum():item() or 0), loss_sum + losses[i]:detach()
  end
  for _, loss in ipairs(losses) do loss:backward() end
  tokens = mimo.reduce_gradients { topology = topology, modules = modules, loss = "sum", tokens = tokens }
  local grad_norm = mimo.clip_grad_norm { topology = topology, modules = modules, max_norm = config.max_norm }
  optimizer:step(schedule(step))
  optimizer:zero_grad()
  log.step { loss = dist.all_reduce(loss_sum) / tokens, grad_norm = grad_norm, lr = config.lr * schedule(step) }
end

-- Held-out digits: an answer is right where each of its tokens is the likeliest.
local right, seen, count = 0, 0, math.min(config.held_out, #held_out)
local held_out_reader = mimo.loader { topology = topology, samples = "ids", ownership = "rows",
  source = micro_batches(1, config.samples, function(id) return id <= count and digits.image_sample(held_out[id]) end) }
for batch, whole in held_out_reader do
  torch.no_grad(function()
    local packed = see(held_out_reader, batch, whole)
    if not packed then return end
    -- The next token of each; the last one's, and those of questions, do not count.
    local is_wrong = model(packed):argmax(-1):ne(packed.input_ids:roll(-1)):logical_and(packed.loss_mask:roll(-1))
    local start = 0
    for _, length in ipairs(packed.seq_lens) do
      right = right + (is_wrong:narrow(0, start, length - 1):any():item() and 0 or 1)
      start, seen = start + length, seen + 1
    end
  end)
end
log.record("held-out digits", { accuracy = sharding.weighted_mean(right, seen) })
