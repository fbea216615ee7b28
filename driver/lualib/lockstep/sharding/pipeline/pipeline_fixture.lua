--- Models, micro-batches and steps for the tests of pipelines: one rank with the whole model is the reference.

local dist = require "lockstep.distributed"
local models = require "lockstep.models"
local optim = require "lockstep.optim"
local sharding = require "lockstep.sharding"
local splits = require "lockstep.nn.splits"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local M = {}

local VOCABULARY = 31

--- Draws the same numbers on every rank.
function M.drawer(seed)
  local state = seed * 7919 + 12345
  return function(n)
    state = (state * 1103515245 + 12345) % 2 ^ 31
    return math.floor(state / 65536) % n + 1
  end
end

local KINDS = {
  llama = { architectures = { "LlamaForCausalLM" }, model_type = "llama" },
  llama_tied = { architectures = { "LlamaForCausalLM" }, model_type = "llama", tie_word_embeddings = true },
  qwen3 = { architectures = { "Qwen3ForCausalLM" }, model_type = "qwen3", head_dim = 4 },
  qwen3_moe = { architectures = { "Qwen3MoeForCausalLM" }, model_type = "qwen3_moe", head_dim = 4,
    moe_intermediate_size = 4, num_experts = 4, num_experts_per_tok = 2, norm_topk_prob = true,
    output_router_logits = true, router_aux_loss_coef = 0.3, mlp_only_layers = { 0 } },
}

--- Returns a small model in float64, the same on every rank.
---@param kind "llama"|"llama_tied"|"qwen3"|"qwen3_moe"
---@param o {layers: integer, tied: boolean?, seed: integer?}
function M.build(kind, o)
  local raw = { vocab_size = VOCABULARY, hidden_size = 8, intermediate_size = 12, num_hidden_layers = o.layers,
    num_attention_heads = 4, num_key_value_heads = 2, rms_norm_eps = 1e-6, tie_word_embeddings = o.tied or false,
    initializer_range = 0.3, hidden_act = "silu", max_position_embeddings = 512 }
  for key, value in pairs(KINDS[kind]) do raw[key] = value end
  torch.manual_seed(o.seed or 1)
  return models.build(raw, { dtype = torch.float64 })
end

--- Returns a micro-batch of sequences of random lengths.
function M.micro_batch(draw)
  local lengths, tokens = {}, 0
  for i = 1, draw(3) do
    lengths[i] = 1 + draw(6)
    tokens = tokens + lengths[i]
  end
  if tokens % 2 == 1 then lengths[1], tokens = lengths[1] + 1, tokens + 1 end -- for sequence = true of two ranks
  local ids, mask = {}, {}
  for i = 1, tokens do ids[i], mask[i] = draw(VOCABULARY) - 1, draw(5) > 1 and 1 or 0 end
  mask[2] = 1
  return { input_ids = torch.tensor(ids, { dtype = torch.int64 }), seq_lens = lengths,
    loss_mask = torch.tensor(mask, { dtype = torch.int64 }):to(torch.bool) }
end

--- Returns micro-batches of a step: of each row of dp, equally many.
function M.step_of(draw, rows, count)
  local step = { count = 0 }
  for row = 1, rows do
    step[row] = {}
    for i = 1, count do step[row][i] = M.micro_batch(draw) end
  end
  return step
end

--- Counts the loss tokens of a step with a whole model.
function M.count(net, step)
  local total = 0
  for _, row in ipairs(step) do
    for _, batch in ipairs(row) do total = total + select(2, net:loss(batch)) end
  end
  return total
end

local function optimizer_of(params) return optim.AdamW(params, { lr = 0.01, weight_decay = 0.1 }) end

--- Trains the reference: one rank, all micro-batches.
---@return number[] losses
---@return number[] norms
function M.train_alone(net, steps)
  local optimizer, losses, norms = optimizer_of(net:parameters()), {}, {}
  for i, step in ipairs(steps) do
    local total, loss = M.count(net, step), 0
    for _, row in ipairs(step) do
      for _, batch in ipairs(row) do
        local sum = net:loss(batch) / total
        sum:backward()
        loss = loss + sum:item()
      end
    end
    losses[i], norms[i] = loss, optim.clip_grad_norm(net:parameters(), 0.5):item()
    optimizer:step()
    optimizer:zero_grad()
  end
  return losses, norms, optimizer
end

--- The same on rank 0 alone; the other ranks are given its weights. Collective.
---@return number[] losses
---@return number[] norms
function M.train_on_rank_0(net, steps)
  local losses, norms
  if dist.rank() == 0 then losses, norms = M.train_alone(net, steps) end
  for _, p in ipairs(net:parameters()) do dist.broadcast(p:detach(), 0) end
  return unpack(dist.all_gather_object { losses, norms }[1])
end

--- Trains a model on this rank's row of micro-batches, as a script does.
function M.train(model, steps, row, whole)
  local optimizer, losses, norms = optimizer_of(model:parameters()), {}, {}
  for i, step in ipairs(steps) do
    local loss = sharding.accumulate(model, step[row], M.count(whole, step), function(b) return model(b, "loss") end)
    losses[i], norms[i] = loss:item(), optim.clip_grad_norm(model:parameters(), 0.5):item()
    optimizer:step()
    optimizer:zero_grad()
  end
  return losses, norms, optimizer
end

--- Fails unless this rank's parameters are those of the whole model.
function M.compare_parameters(model, whole, tolerance)
  local expected, count, state = whole:state_dict(), 0, model:state_dict()
  for name, p in model:named_parameters() do
    t.truthy(expected[name], name)
    local split = splits.of(p)
    local own = split and splits.whole(p, split) or state[name]:detach()
    t.near(own, expected[name], tolerance, ("rank %d: %s"):format(dist.rank(), name))
    count = count + 1
  end
  t.truthy(count > 0)
end

--- Makes a pipeline whose operations are compared with the schedule's.
---@param o {order: string, chunks: integer?, sequence: boolean?, fully_shard: table|false|nil}
function M.divide(net, grid, o)
  local model = sharding.parallelize(net, grid, { fully_shard = o.fully_shard or false, order = o.order,
    chunks = o.chunks or 1, sequence = o.sequence or false })
  model.checks_operations = true
  return model
end

return M
