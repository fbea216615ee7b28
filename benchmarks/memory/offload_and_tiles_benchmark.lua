-- Measures the memory and the CPU time of a training step of Qwen3-VL with adapters, plain, with its layers in regions,
-- with their inputs on the host, with its MLPs in tiles, and with both. Draws the memory in the run's folder.
--
--     lockstep --nproc 2 benchmarks/memory/offload_and_tiles_benchmark.lua [--set tokens=2048 --set tiles=8]

local dist = require "lockstep.distributed"
local ffi = require "ffi"
local log = require "lockstep.log"
local lora = require "lockstep.lora"
local models = require "lockstep.models"
local run = require "lockstep.run"
local sharding = require "lockstep.sharding"
local torch = require "lockstep.torch"

local config = run.config { tokens = 2048, layers = 12, hidden = 128, intermediate = 512, tiles = 8, rounds = 3 }
torch.set_num_threads(1)

ffi.cdef "typedef struct { long s, ns; } bench_time; int clock_gettime(int clock, bench_time *time);"
local function cpu_seconds()
  local time = ffi.new "bench_time"
  ffi.C.clock_gettime(2, time) -- of this process
  return tonumber(time.s) + 1e-9 * tonumber(time.ns)
end

local IMAGE = 500
local function build()
  torch.manual_seed(1)
  local net = models.build {
    architectures = { "Qwen3VLForConditionalGeneration" }, model_type = "qwen3_vl", image_token_id = IMAGE,
    video_token_id = 501, vision_start_token_id = 502, vision_end_token_id = 503, tie_word_embeddings = false,
    text_config = { vocab_size = 512, hidden_size = config.hidden, intermediate_size = config.intermediate,
      num_hidden_layers = config.layers, num_attention_heads = 4, num_key_value_heads = 2, head_dim = 32,
      rms_norm_eps = 1e-6, hidden_act = "silu", max_position_embeddings = 65536, rope_parameters = {
        rope_type = "default", rope_theta = 10000, mrope_section = { 8, 4, 4 }, mrope_interleaved = true } },
    vision_config = { depth = 2, hidden_size = 64, intermediate_size = 128, num_heads = 2, patch_size = 4,
      spatial_merge_size = 2, temporal_patch_size = 2, in_channels = 3, out_hidden_size = config.hidden,
      num_position_embeddings = 64, deepstack_visual_indexes = { 0 }, hidden_act = "gelu_pytorch_tanh" },
  }
  lora.apply(net, { r = 8, targets = { "q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "down_proj", "qkv",
    "linear_fc1", "linear_fc2" } })
  return net
end

--- A picture of 16 x 16 patches, 64 tokens, and text behind it; another for each rank and number.
local function batch_of(number)
  torch.manual_seed(10 * number + dist.rank())
  local ids = torch.randint(499, { config.tokens }, { dtype = torch.int64 })
  ids:narrow(0, 1, 64):fill_(IMAGE)
  return { input_ids = ids, pixel_values = torch.randn { 256, 96 },
    image_grid_thw = torch.tensor({ { 1, 16, 16 } }, { dtype = torch.int64 }) }
end

local HOST = { offload = "host" }
local PARTS = {
  { "plain" }, { "checkpoint", {} }, { "offload", HOST }, { "tiles", nil, { tiles = config.tiles } },
  { "offload, tiles", HOST, { tiles = config.tiles } },
}

for _, kind in ipairs { "data_parallel", "fully_shard" } do
  local net = build()
  local model = sharding.parallel(net, kind)
  local batches = { batch_of(1), batch_of(2) }
  local total = 2 * (config.tokens - 1) * dist.world_size()
  local function step()
    local loss = sharding.accumulate(model, batches, total, function(batch) return model(batch, "loss") end):item()
    model:zero_grad()
    return loss
  end
  local function use(part) net.checkpoint, net.tiled_mlp = part[2], part[3] end
  local drawn, losses, best = {}, {}, {}
  for i, part in ipairs(PARTS) do
    best[i] = math.huge
    use(part)
    step() -- warm
    drawn[i] = { part[1], function()
      use(part)
      losses[i] = step()
    end }
  end
  local peaks = log.memory(kind .. ".svg", drawn, { title = kind })
  for i, part in ipairs(PARTS) do
    log.print(("%s, %s: %.0f MiB, loss %.6f"):format(kind, part[1], peaks[part[1]] / 2 ^ 20, losses[i]))
  end
  for _ = 1, config.rounds do -- the parts take turns
    for i, part in ipairs(PARTS) do
      use(part)
      dist.barrier()
      local start = cpu_seconds()
      step()
      best[i] = math.min(best[i], cpu_seconds() - start)
    end
  end
  for i, part in ipairs(PARTS) do
    log.print(("%s, %s: %.2f s of CPU, %.2f of plain"):format(kind, part[1], best[i], best[i] / best[1]))
  end
end
