-- Trains a vision-language model whose layers are sharded: each rank keeps a part of a layer's weights, and
-- gathers the rest from all ranks when the layer runs. A text sample leaves the vision tower out, and with it
-- the tower's gathers.
--
-- lockstep --nproc N multimodal.lua MODE: "round_robin" deals the samples out as they come, sample i to rank
-- i mod N; "prepared" is by batching.prepare. See hang_test.cc.

local batching = require "lockstep.batching"
local dist = require "lockstep.distributed"
local run = require "lockstep.run"
local torch = require "lockstep.torch"

local RANK, WORLD = dist.rank(), dist.world_size()
local HIDDEN, STEPS, LEARNING_RATE = 8, 5, 0.5
local prepared = run.args[1] == "prepared"

-- A layer: this rank's rows of the weights, which are the same for any number of ranks. The first column
-- marks the layer, so that the test sees which layer was gathered; it is not trained.
local function new_layer(name, number)
  torch.manual_seed(number)
  local weights = torch.randn { HIDDEN, HIDDEN + 1 }
  weights:select(1, 0):fill_(number)
  local rows = HIDDEN / WORLD
  return { name = name, number = number, shard = weights:narrow(0, RANK * rows, rows):clone() }
end

local vision = { new_layer("vision.1", 1), new_layer("vision.2", 2) }
local language = { new_layer("language.1", 3), new_layer("language.2", 4) }
local layers = { vision[1], vision[2], language[1], language[2] }
local vision_runs, mixed = 0, 0

-- Collective: every rank runs the same layers in the same order, or else...
local function run_layer(layer, x)
  local shards = dist.all_gather(layer.shard)
  for _, shard in ipairs(shards) do
    local number = shard[{ 0, 0 }]:item()
    if number ~= layer.number then
      mixed = mixed + 1
      print(("rank %d gathered %s with %s"):format(RANK, layer.name, layers[number].name))
    end
  end
  local weights = torch.cat(shards):narrow(1, 1, HIDDEN):clone():requires_grad_(true)
  layer.gathered[#layer.gathered + 1] = weights
  return torch.tanh(torch.matmul(x, weights))
end

-- The sum over loss tokens of a distance to what the next token says. Each token reads the images' mean.
local function loss_of(batch)
  local x = torch.outer(torch.cos(batch.input_ids), torch.ones { HIDDEN })
  if batch.pixel_values then
    vision_runs = vision_runs + 1
    local patches = batch.pixel_values
    for _, layer in ipairs(vision) do patches = run_layer(layer, patches) end
    x = x + patches:mean({ 0 })
  end
  for _, layer in ipairs(language) do x = run_layer(layer, x) end
  local distance = torch.pow(x:sum({ 1 }) - torch.sin(batch.input_ids), 2)
  return torch.sum(distance * batch.loss_mask)
end

-- Each rank adds its gradients up, then all do, and each steps its own rows.
local function step_layers(tokens)
  for _, layer in ipairs(layers) do
    local gradient = torch.zeros { HIDDEN, HIDDEN }
    for _, weights in ipairs(layer.gathered) do gradient = gradient + weights.grad end
    dist.all_reduce(gradient)
    local rows = layer.shard:size(0)
    layer.shard:narrow(1, 1, HIDDEN):sub_(gradient:narrow(0, RANK * rows, rows) * (LEARNING_RATE / tokens))
  end
end

local function text(first, tokens)
  return { input_ids = torch.arange(first, first + tokens), loss_mask = torch.ones({ tokens }):bool() }
end

local function image(first, tokens)
  local sample = text(first, tokens)
  sample.pixel_values = torch.cos(torch.arange(4 * HIDDEN) * first):view(4, HIDDEN)
  return sample
end

-- As they come, two images fall to rank 0 and one to rank 1. Each fills a micro-batch alone, so that it
-- has its images to itself on any number of ranks.
local samples = {
  image(1, 6), text(2, 6), text(3, 5), image(4, 5), image(5, 7), text(6, 7), text(7, 8), text(8, 5),
}

local function micro_batches()
  if prepared then return batching.prepare({ samples = samples, seq_len = 8, rank = RANK })[RANK + 1] end
  local mine = {}
  for i, sample in ipairs(samples) do
    if (i - 1) % WORLD == RANK then mine[#mine + 1] = sample end
  end
  return mine
end

local num_batches
for step = 1, STEPS do
  for _, layer in ipairs(layers) do layer.gathered = {} end
  local batches = micro_batches()
  num_batches = #batches
  local sums = torch.zeros { 2 } -- loss, tokens
  for _, batch in ipairs(batches) do
    local loss = loss_of(batch)
    loss:backward()
    sums = sums + torch.stack { loss:detach(), batch.loss_mask:sum():to(torch.float32) }
  end
  dist.all_reduce(sums)
  local tokens = sums[1]:item()
  step_layers(tokens)
  if RANK == 0 then print(("step %d: loss %.6f over %d tokens"):format(step, sums[0]:item() / tokens, tokens)) end
end
print(("rank %d is done: %d micro-batches a step, %d through the vision tower, %d gathers mixed"):format(RANK,
  num_batches, vision_runs, mixed))
