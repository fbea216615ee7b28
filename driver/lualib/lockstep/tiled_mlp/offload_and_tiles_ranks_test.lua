--- The recipe of Unsloth's pull request 4240, whole: Qwen3-VL with adapters on q, k, v and the MLPs, layers in regions
--- whose inputs wait in host memory, MLPs in tiles, pictures, several micro-batches in a step, replicas or shards.
--- Losses and trained weights are those of the plain run, and each gradient arrives once in each backward. The last
--- test shows what the usual tiled MLP does in the same recipe.

local dist = require "lockstep.distributed"
local lora = require "lockstep.lora"
local models = require "lockstep.models"
local optim = require "lockstep.optim"
local sharding = require "lockstep.sharding"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

torch.set_num_threads(1) -- small tensors

local IMAGE = 57
local CONFIG = {
  architectures = { "Qwen3VLForConditionalGeneration" }, model_type = "qwen3_vl", image_token_id = IMAGE,
  video_token_id = 58, vision_start_token_id = 55, vision_end_token_id = 56, tie_word_embeddings = false,
  text_config = { vocab_size = 61, hidden_size = 20, intermediate_size = 36, num_hidden_layers = 3,
    num_attention_heads = 6, num_key_value_heads = 2, head_dim = 16, rms_norm_eps = 1e-5, hidden_act = "silu",
    max_position_embeddings = 512, rope_parameters = { rope_type = "default", rope_theta = 5000,
      mrope_section = { 4, 2, 2 }, mrope_interleaved = true } },
  vision_config = { depth = 3, hidden_size = 24, intermediate_size = 28, num_heads = 2, patch_size = 3,
    spatial_merge_size = 2, temporal_patch_size = 2, in_channels = 3, out_hidden_size = 20,
    num_position_embeddings = 25, deepstack_visual_indexes = { 0, 1 }, hidden_act = "gelu_pytorch_tanh" },
}
local TARGETS = { "q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "down_proj", "qkv", "linear_fc1", "linear_fc2" }
local LAYERS, STEPS, MICRO_BATCHES = 3 + 3, 3, 2 -- of the decoder and of the tower

local function build()
  torch.manual_seed(1)
  local net = models.build(CONFIG)
  lora.apply(net, { r = 4, targets = TARGETS })
  for name, p in net:named_parameters() do
    if name:find "lora_B" then torch.no_grad(function() p:normal_(0, 0.1) end) end
  end
  return net
end

--- One or two pictures with text around them, others on each rank, in each step and micro-batch.
local function batch_of(step, number)
  torch.manual_seed(100 * step + 10 * number + dist.rank())
  local ids, grid, patches = {}, {}, 0
  local function add(...)
    for _, id in ipairs { ... } do ids[#ids + 1] = id end
  end
  for picture = 1, 1 + (step + number + dist.rank()) % 2 do
    local height, width = 2 * picture, 4
    grid[picture], patches = { 1, height, width }, patches + height * width
    add(55)
    for _ = 1, height * width / 4 do add(IMAGE) end
    add(56)
    for i = 1, 5 + 3 * dist.rank() do add((7 * i + step) % 50) end
  end
  return { input_ids = torch.tensor(ids, { dtype = torch.int64 }), pixel_values = torch.randn { patches, 54 },
    image_grid_thw = torch.tensor(grid, { dtype = torch.int64 }) }
end

--- Trains, and returns the losses, the adapters at the end, and how often each gradient arrived.
local function train(net, wrap)
  local model = wrap(net)
  local arrivals = {}
  for name, p in net:named_parameters() do
    if p.requires_grad then
      arrivals[name] = 0
      p:register_hook(function() arrivals[name] = arrivals[name] + 1 end)
    end
  end
  -- Not AdamW: it would turn the rounding of a gradient near 0 into a whole step.
  local optimizer, losses = optim.SGD(model:parameters(), { lr = 0.3 }), {}
  for step = 1, STEPS do
    local micro_batches, tokens = {}, torch.zeros {}
    for number = 1, MICRO_BATCHES do
      micro_batches[number] = batch_of(step, number)
      tokens = tokens + micro_batches[number].input_ids:size(0) - 1
    end
    local total = dist.all_reduce(tokens, "sum"):item()
    losses[step] = sharding.accumulate(model, micro_batches, total, function(batch) return model(batch, "loss") end)
      :item()
    optimizer:step(1, { max_grad_norm = 1 })
    optimizer:zero_grad()
  end
  local state = {}
  for name, tensor in pairs(model:state_dict()) do
    if name:find "lora_" then state[name] = tensor:clone() end
  end
  return { losses = losses, state = state, arrivals = arrivals, model = model }
end

local WRAPS = { { "data_parallel", sharding.data_parallel }, { "fully_shard", sharding.fully_shard } }

local PARTS = {
  { "checkpoint", function(net) net.checkpoint = {} end },
  { "offload", function(net) net.checkpoint = { offload = "host", keep_last = 0, min_bytes = 1 } end },
  { "tiles", function(net) net.tiled_mlp = { tiles = 4 } end },
  { "another number of tiles on each rank", function(net) net.tiled_mlp = { tiles = 2 + 3 * dist.rank() } end },
  { "offload and tiles", function(net)
    net.checkpoint = { offload = "host", keep_last = 0, min_bytes = 1 }
    net.tiled_mlp = { tiles = 4 }
  end },
  { "offload and memory", function(net)
    net.checkpoint = { offload = "host", keep_last = 0, min_bytes = 1 }
    net.tiled_mlp = { memory_gib = 1e-5 }
  end },
}

for _, entry in ipairs(WRAPS) do
  t.test("LossesAndWeightsAreThoseOfThePlainRun(" .. entry[1] .. ")", function()
    local wrap = entry[2]
    local plain = train(build(), wrap)
    local before, moved = build():state_dict(), 0
    for name, tensor in pairs(plain.state) do moved = math.max(moved, (tensor - before[name]):abs():max():item()) end
    t.truthy(moved > 0.01, "the adapters learn")
    for _, part in ipairs(PARTS) do
      local net = build()
      part[2](net)

      local other = train(net, wrap)

      for step = 1, STEPS do t.near(other.losses[step], plain.losses[step], 1e-5, part[1]) end
      for name, tensor in pairs(plain.state) do t.near(other.state[name], tensor, 1e-4, part[1] .. ": " .. name) end
      for name, count in pairs(plain.arrivals) do
        t.equal(other.arrivals[name], count, part[1] .. ": " .. name)
        if entry[1] == "data_parallel" then t.equal(count, STEPS * MICRO_BATCHES, name) end
      end
      if entry[1] == "fully_shard" then
        t.equal(other.model:sharding_stats().reductions, plain.model:sharding_stats().reductions)
      end
      local regions, tiles = net.checkpoint and net.checkpoint:stats(), net.tiled_mlp and net.tiled_mlp:stats()
      if regions then t.equal(regions.regions, STEPS * MICRO_BATCHES * LAYERS) end
      if regions then t.equal(regions.recomputes, STEPS * MICRO_BATCHES * LAYERS) end
      if part[1]:find "offload" then t.truthy(regions.offloaded_bytes > 0) end
      if tiles then t.truthy(tiles.tiles > tiles.calls and tiles.untiled == 0, part[1]) end
    end
  end)
end

--- The usual tiled MLP: its weights are hidden from autograd, and each tile runs a backward of its own.
local function run_usual_tiles(mlp, forward, x, tiles)
  local y = torch.no_grad(function() return forward(mlp, x) end)
  local inside = x:detach()
  local joined = (y - inside) + x -- the value of y; its gradient passes the hook and goes to x
  joined:register_hook(function(grad)
    local gradients = {}
    for i, tile in ipairs(inside:chunk(tiles, 0)) do
      tile = tile:detach():requires_grad_(true)
      torch.enable_grad(function() forward(mlp, tile):backward(grad:chunk(tiles, 0)[i]) end)
      gradients[i] = tile.grad
    end
    return torch.cat(gradients, 0)
  end)
  return joined
end

t.test("TheUsualTilesAreMarkedReadyTwice", function()
  local net = build()
  for name, module in net:named_modules() do
    if name:find "%.mlp$" then
      local forward = getmetatable(module).forward
      module.forward = function(mlp, x) return run_usual_tiles(mlp, forward, x, 4) end
    end
  end
  local model = sharding.data_parallel(net)

  t.raises("Expected to mark a variable ready only once", function() (model(batch_of(1, 1), "loss")):backward() end)
end)
