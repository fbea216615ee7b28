-- Two ranks run a vision-language model whose layers are sharded: a layer's weights are gathered from all
-- ranks when it runs. A text sample leaves the vision tower out, and with it the tower's gathers.
--
-- lockstep --nproc 2 multimodal.lua MODE: "each_its_own", every rank takes its samples as they come, or
-- "prepared", by batching.prepare. See hang_test.cc.

local batching = require "lockstep.batching"
local dist = require "lockstep.distributed"
local run = require "lockstep.run"
local torch = require "lockstep.torch"

local HIDDEN = 8
local mode = run.args[1]

-- A layer: this rank's half of the weights, marked with the layer's number.
local function new_layer(name, number)
  return { name = name, number = number, shard = torch.full({ HIDDEN / 2, HIDDEN }, number) }
end

local vision = { new_layer("vision.1", 1), new_layer("vision.2", 2) }
local language = { new_layer("language.1", 3), new_layer("language.2", 4) }
local names = { "vision.1", "vision.2", "language.1", "language.2" }
local vision_runs, mixed = 0, 0

-- Collective: every rank runs the same layers in the same order, or else...
local function run_layer(layer, x)
  local shards = dist.all_gather(layer.shard)
  for _, shard in ipairs(shards) do
    local number = shard:max():item()
    if number ~= layer.number then
      mixed = mixed + 1
      print(("rank %d gathered %s with %s"):format(dist.rank(), layer.name, names[number]))
    end
  end
  return torch.tanh(torch.matmul(x, torch.cat(shards)))
end

local function forward(batch)
  local x = torch.ones({ #batch.input_ids, HIDDEN })
  if batch.pixel_values then
    vision_runs = vision_runs + 1
    for _, layer in ipairs(vision) do x = run_layer(layer, x) end
  end
  for _, layer in ipairs(language) do x = run_layer(layer, x) end
  return x:sum()
end

local function text(length)
  return { input_ids = torch.arange(length), loss_mask = torch.ones({ length }, { dtype = torch.bool }) }
end

local function image(length)
  local sample = text(length)
  sample.pixel_values = torch.ones({ 4, HIDDEN })
  return sample
end

-- What each rank would take: images fall to rank 0 first.
local samples_of = { { image(6), text(5), image(4), text(7) }, { text(6), text(3), image(5), text(2) } }
local batches = samples_of[dist.rank() + 1]
if mode == "prepared" then
  local all = {}
  for _, samples in ipairs(samples_of) do
    for _, sample in ipairs(samples) do all[#all + 1] = sample end
  end
  batches = batching.prepare({ samples = all, seq_len = 8 })[dist.rank() + 1]
end

for _, batch in ipairs(batches) do dist.all_reduce(forward(batch)) end
print(("rank %d is done: %d micro-batches, %d through the vision tower, %d gathers mixed"):format(dist.rank(), #batches,
  vision_runs, mixed))
