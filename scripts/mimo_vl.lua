-- Fine-tunes Qwen3-VL or Qwen2.5-VL with its vision tower and its language model on ranks of their own.
--
--     ./run --nproc 4 scripts/mimo_vl.lua --set model=Qwen/Qwen3-VL-2B-Instruct --set data=chats.jsonl
--         --set vision_ranks=1
--
-- The conversations are those of finetune.lua, with none, one or several pictures each. Every rank reads the same
-- micro-batches and loads its part of the model. The tower's tokens, with those of its deeper layers (DeepStack), cross
-- the bridge to the ranks of the language model, and their gradients come back. On one rank both parts share it, and
-- the losses are the same. The parts of all ranks are written as one folder, which finetune.lua and transformers load.

local data = require "lockstep.data"
local dist = require "lockstep.distributed"
local images = require "lockstep.images"
local log = require "lockstep.log"
local mimo = require "lockstep.mimo"
local models = require "lockstep.models"
local optim = require "lockstep.optim"
local run = require "lockstep.run"
local text = require "lockstep.text"
local torch = require "lockstep.torch"

local config = run.config({
  model = "", -- a folder with config.json, weights, tokenizer.json and a chat template, or a name in the Hub's cache
  ignore = "", -- keys of config.json to pass over, split by commas
  data = "", -- conversations
  seed = 1, steps = 100,
  samples = 8, micro_batches = 2, -- samples of a micro-batch, over all ranks; micro-batches of a step
  vision_ranks = 1, -- the others run the language model
  precision = "auto", -- "bf16" on GPUs, "float32" on CPUs; in float64 the order in which ranks add up leaves no trace
  fully_shard = false, -- each module's weights, gradients and moments are shared out over its ranks
  lr = 1e-5, weight_decay = 0.0, warmup_steps = 10, max_norm = 1.0, save_every = 100,
}, { at_least = { seed = 0, steps = 1, samples = 1, micro_batches = 1, vision_ranks = 1, warmup_steps = 0,
  save_every = 1 } })
torch.manual_seed(config.seed)

-- Which rank runs what.
local language_ranks = math.max(1, dist.world_size() - config.vision_ranks)
local is_colocated = dist.world_size() == 1
local topology = mimo.topology { modules = {
  { name = "vision", dp = config.vision_ranks },
  { name = "language", dp = language_ranks, first_rank = is_colocated and 0 or config.vision_ranks },
} }
local order = is_colocated and "sequential" or "1f1b"
topology:validate { micro_batch_size = config.samples, global_batch_size = config.samples * config.micro_batches,
  uneven = true, order = order }
log.print(mimo.draw(topology, { micro_batch_size = config.samples }))

-- This rank's part of the model, or both.
local parts, list, parameters, dtype = {}, {}, {}, run.dtype(config.precision)
for _, pair in ipairs { { "vision", "visual" }, { "language", "language" } } do
  local name, part = unpack(pair)
  if topology:peers(name, "dp") then
    local group = topology:group(name, "dp-cp") -- nil where one rank has the module
    parts[name] = models.load(config.model, { device = dist.device(), dtype = dtype, part = part,
      ignore = config.ignore, shard = config.fully_shard and group and { group = group } or nil })
    list[#list + 1] = parts[name]
    for _, p in ipairs(parts[name]:parameters()) do parameters[#parameters + 1] = p end
  end
end
local bridge = mimo.bridge { topology = topology, from = "vision", to = "language" }
local optimizer = optim.AdamW(parameters, { lr = config.lr, weight_decay = config.weight_decay })
local schedule = optim.schedule.warmup_cosine { warmup_steps = math.min(config.warmup_steps, config.steps),
  total_steps = config.steps }

-- Micro-batches: samples, their ids, and how many tokens the pictures of each become.
local chat, process = text.chat(config.model), images.processor(config.model)
local merge = list[1].visual_layout.merge -- patches of a token's side
local folder = config.data:match("^(.*)/") or "." -- of relative paths of pictures
local conversations = data.conversations(config.data, { kind = "conversation" })
local samples = data.loader { source = conversations, seed = config.seed, rank = 0, world = 1,
  map = function(sample) return chat:encode_sample(sample, { processor = process, folder = folder }) end }
local read_so_far = { samples = 0 }
local function read()
  local batch = { samples = {}, ids = {}, rows = {} }
  for i = 1, config.samples do
    local sample = samples()
    read_so_far.samples = read_so_far.samples + 1
    batch.samples[i], batch.ids[i] = sample, read_so_far.samples
    batch.rows[i] = sample.image_grid_thw and sample.image_grid_thw:prod({ dim = 1 }):sum():item() / merge ^ 2 or 0
  end
  return batch
end
local reader = mimo.loader { topology = topology, samples = "ids", ownership = "rows", source = read,
  micro_batches = config.micro_batches }

-- Returns the pictures of samples, one behind the other; nothing if there are none.
local function pictures(of)
  local pixels, grids = {}, {}
  for _, sample in ipairs(of) do
    if sample.pixel_values then pixels[#pixels + 1], grids[#grids + 1] = sample.pixel_values, sample.image_grid_thw end
  end
  if #pixels > 0 then return torch.cat(pixels), torch.cat(grids) end
end

-- The modules. A replica packs its samples after they were sliced.
local tokens, functions = 0, {}
function functions.vision(mine)
  local pixels, grids = pictures(mine.samples)
  if pixels then return parts.vision { pixel_values = pixels, image_grid_thw = grids } end
  -- Without pictures the tower sees a blank one, so that all replicas run the same layers, and sends no token of it.
  pixels = torch.zeros { merge ^ 2, parts.vision.model.visual.settings.patch_values }
  grids = torch.tensor({ { 1, merge, merge } }, { dtype = torch.int64 })
  return parts.vision { pixel_values = pixels, image_grid_thw = grids }:narrow(0, 0, 0)
end
function functions.language(mine, seen)
  local ids, mask, lengths = {}, {}, {}
  for i, sample in ipairs(mine.samples) do
    for j, id in ipairs(sample.input_ids) do ids[#ids + 1], mask[#mask + 1] = id, sample.loss_mask[j] == 1 end
    lengths[i] = #sample.input_ids
  end
  local _, grids = pictures(mine.samples)
  local sum, count = parts.language({ input_ids = torch.tensor(ids, { dtype = torch.int64 }), seq_lens = lengths,
    loss_mask = torch.tensor(mask), image_grid_thw = grids, visual = grids and seen or nil }, "loss")
  tokens = tokens + count
  return sum
end
local own = { vision = parts.vision and functions.vision, language = parts.language and functions.language }
local run_step = mimo.step { topology = topology, modules = own, bridges = { bridge }, order = order,
  micro_batches = config.micro_batches, micro_batch_size = config.samples,
  slice = function(batch) return { batch_size = #batch.samples, batch_dims = { samples = 0 }, uneven = true } end }

run:state({ own = mimo.state { modules = parts, optimizer = optimizer }, samples = samples, read = read_so_far },
  { every = config.save_every, keep = 2 })
run:resume()

-- Training.
for step in run:steps(function() return true end, config.steps) do
  tokens = 0
  local loss_sum = torch.zeros({}, { dtype = torch.float64 })
  for _, loss in ipairs(run_step(reader)) do loss_sum = loss_sum + loss:cpu() end
  local all = mimo.reduce_gradients { topology = topology, modules = parts, loss = "sum", tokens = tokens }
  local grad_norm = mimo.clip_grad_norm { topology = topology, modules = parts, max_norm = config.max_norm }
  optimizer:step(schedule(step))
  optimizer:zero_grad()
  log.step { loss = dist.all_reduce(loss_sum:to(dist.device())) / all, grad_norm = grad_norm,
    lr = optimizer.groups[1].lr * schedule(step), tokens = all }
end

models.save(list, run.dir .. "/model", { like = config.model })
log.print("wrote " .. run.dir .. "/model")
