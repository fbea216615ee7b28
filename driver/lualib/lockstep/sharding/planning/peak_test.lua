--- The most bytes that a rank of a grid of 4 ranks holds in a step, measured, against the formula of docs/propose.md.
---
--- Counted are the tensors on the CPU, from their allocation to their release by any thread. Garbage of Lua is
--- collected within each layer, forward and backward: the model does not need it. Kernels of a CPU take memory while
--- they run. It is measured on one product and on one attention, and the formula gets it as `scratch`.

local cost = require "lockstep.sharding.planning.cost"
local dist = require "lockstep.distributed"
local models = require "lockstep.models"
local nn = require "lockstep.nn"
local optim = require "lockstep.optim"
local plain = require "lockstep.plain"
local shapes = require "lockstep.sharding.planning.shape"
local sharding = require "lockstep.sharding"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"
local watching = require "lockstep.core.watching"

local TOKENS, HIDDEN, WIDTH, VOCABULARY, HEADS, KV_HEADS, DIM = 256, 128, 384, 1024, 8, 4, 16
local EXPERTS = 8

local QWEN3 = { model_type = "qwen3", vocab_size = VOCABULARY, hidden_size = HIDDEN, intermediate_size = WIDTH,
  num_attention_heads = HEADS, num_key_value_heads = KV_HEADS, head_dim = DIM, num_hidden_layers = 2 }
local MIXTURE = plain.copy(QWEN3, { model_type = "qwen3_moe", num_experts = EXPERTS, num_experts_per_tok = 2,
  moe_intermediate_size = 64, norm_topk_prob = true })

local tracker

local function collect()
  collectgarbage()
  collectgarbage()
end

local is_measured = false

--- Frees what backward does not need, in the step that is measured.
local function collect_if_measured()
  if is_measured then collect() end
end

--- Counts from here on alone: an earlier case may have left something.
local function track()
  tracker = nil
  collect() -- which ends the last tracker, before another one begins
  tracker = watching.memory_tracker "cpu"
end

--- Returns the bytes that `run` takes at the most, without the tensors that it returns.
local function scratch_of(run)
  collect()
  local before, results = tracker:report().held_bytes, 0
  tracker:reset_peak()
  for _, x in ipairs { run() } do results = results + x:numel() * x:element_size() end
  return tracker:report().peak_bytes - before - results
end

--- Returns what kernels take for a weight's gradient of the head and of an MLP, and for the gradients of attention.
local function measured_scratch(grid, dtype)
  local function random(...) return torch.randn({ ... }, { dtype = dtype }) end
  track()
  local tokens, kv = TOKENS / grid.cp, KV_HEADS / grid.tp
  local scores, hidden, gate = random(tokens, VOCABULARY), random(tokens, HIDDEN), random(tokens, WIDTH / grid.tp)
  local q, k, v = random(TOKENS, HEADS / grid.tp, DIM), random(TOKENS, kv, DIM), random(TOKENS, kv, DIM)
  for _, x in ipairs { q, k, v } do x:requires_grad_(true) end
  local y, dy = nn.attention(q, k, v, {}), random(TOKENS, HEADS / grid.tp, DIM)
  return { loss = scratch_of(function() return scores:t():matmul(hidden) end),
    mlp = scratch_of(function() return gate:t():matmul(hidden) end),
    attention = scratch_of(function()
      y:backward(dy)
      return q.grad, k.grad, v.grad
    end) }
end

--- Sends each token to other experts in turn, so that all experts get the same number.
local function balance(mixture)
  local route = mixture.route
  mixture.route = function(self, x)
    local shares, chosen, logits = route(self, x)
    return shares, (torch.arange(chosen:numel()) % EXPERTS):view(chosen.shape), logits
  end
end

local function collect_both_ways(_, _, y)
  collect_if_measured()
  if y.requires_grad then y:register_hook(collect_if_measured) end
end

local function prepare(net)
  for _, layer in ipairs(net:decoder().layers) do
    layer.input_layernorm:register_forward_hook(collect_both_ways)
    layer.post_attention_layernorm:register_forward_hook(collect_both_ways)
    if layer.mlp.experts then balance(layer.mlp) end
  end
  net:decoder().norm:register_forward_hook(collect_if_measured) -- before the loss
  return net
end

--- Returns the most bytes of this rank in a step, once the steps before have made all that stays.
local function measured(config, grid, o)
  track()
  torch.manual_seed(1)
  local shards = o.fully_shard and { reshard_after_forward = o.reshard or false, reduce_dtype = torch.float32,
    param_dtype = o.bf16 and torch.bfloat16 or nil } or false
  local dtype = o.bf16 and not o.fully_shard and torch.bfloat16 or torch.float32
  local model = sharding.parallelize(prepare(models.build(config, { dtype = dtype })), grid, { fully_shard = shards,
    sequence = o.sequence, checkpoint = o.checkpoint and {} or nil, cp = o.cp, order = o.order, chunks = o.chunks })
  local optimizer, batches = optim.AdamW(model:parameters(), { lr = 1e-3 }), {}
  for i = 1, o.micro_batches do batches[i] = { input_ids = torch.arange(TOKENS) % VOCABULARY } end
  local function step()
    sharding.accumulate(model, batches, o.micro_batches * (TOKENS - 1) * grid.dp, function(b)
      local sum, count = model(b, "loss")
      collect_if_measured()
      return sum, count
    end, { sync = o.reshard and "each" or nil })
    optimizer:step()
    optimizer:zero_grad()
  end
  step()
  step()
  collect()
  tracker:reset_peak()
  is_measured = true
  step()
  is_measured = false
  return tracker:report().peak_bytes
end

local function formula(config, grid, o, scratch)
  local shape, weight_bytes = shapes.of(config), o.bf16 and 2 or 4
  local c = { tp = grid.tp, cp = grid.cp, ep = grid.ep, pp = grid.pp, dp = grid.dp, chunks = o.chunks or 1,
    sequences = 1, micro_batches = o.micro_batches, checkpoint = o.checkpoint or false, reshard = o.reshard or false,
    sequence = o.sequence or false, replicas = not o.fully_shard, ring = o.cp == "ring", order = o.order,
    weight_bytes = weight_bytes, master_bytes = o.fully_shard and 4 or weight_bytes, reduce_bytes = 4,
    scratch = scratch }
  local stage = shapes.stages(shape, c.pp, c.chunks, true)[grid:rank "pp" + 1]
  return cost.total(cost.parts(shape, TOKENS, c, stage))
end

-- A mixture has no modules within, so these functions of it collect.
for owner, name in pairs { [torch] = "embedding", [dist.functional] = "all_to_all" } do
  local fn = owner[name]
  owner[name] = function(...)
    collect_if_measured()
    return fn(...)
  end
end

local CASES = {
  { sizes = {} },
  { sizes = {}, fully_shard = true },
  { sizes = {}, fully_shard = true, reshard = true },
  { sizes = {}, fully_shard = true, bf16 = true },
  { sizes = {}, fully_shard = true, bf16 = true, reshard = true, checkpoint = true },
  { sizes = { tp = 2 }, checkpoint = true },
  { sizes = { tp = 2 }, bf16 = true },
  { sizes = { tp = 2 }, sequence = true },
  { sizes = { tp = 2 }, fully_shard = true, bf16 = true },
  { sizes = { cp = 2 }, cp = "ring" },
  { sizes = { cp = 2 }, cp = "all_to_all" },
  { sizes = { tp = 2, cp = 2 }, cp = "ring" },
  { sizes = { tp = 2, cp = 2 }, cp = "all_to_all" },
  { sizes = { pp = 2 }, micro_batches = 4 },
  { sizes = { pp = 2 }, micro_batches = 4, order = "all_forwards_first" },
  { sizes = { pp = 2 }, micro_batches = 4, order = "interleaved", chunks = 2, layers = 4 },
  { sizes = { pp = 2 }, micro_batches = 4, fully_shard = true, bf16 = true },
  { sizes = { cp = 2, pp = 2 }, micro_batches = 4 },
  { sizes = { tp = 2, pp = 2 }, micro_batches = 4 },
  { sizes = { ep = 2 }, config = MIXTURE, fully_shard = true, layers = 3 },
  { sizes = { ep = 2, pp = 2 }, config = MIXTURE, fully_shard = true, micro_batches = 4 },
}

for i, case in ipairs(CASES) do
  local words = { tostring(i) }
  for _, part in ipairs { case.sizes, case } do
    for _, name in ipairs(plain.keys(part)) do
      local value = part[name]
      if type(value) ~= "table" then words[#words + 1] = name .. "_" .. tostring(value) end
    end
  end
  t.test("ThePeakIsThatOfTheFormula_" .. table.concat(words, "_"), function()
    local o = plain.copy({ micro_batches = 2, layers = 2 }, case)
    local config = plain.copy(o.config or QWEN3, { num_hidden_layers = o.layers })
    local grid = sharding.grid(o.sizes)
    local expected = formula(config, grid, o, measured_scratch(grid, o.bf16 and torch.bfloat16 or torch.float32))

    local peak = measured(config, grid, o)

    t.truthy(math.abs(peak / expected - 1) < 0.02, ("%.1f KiB, by the formula %.1f: %.4f of it")
      :format(peak / 1024, expected / 1024, peak / expected))
  end)
end
