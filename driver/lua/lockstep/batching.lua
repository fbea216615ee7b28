--- Micro-batches of one kind at every step on every rank: the library `batching` for scripts.
---
---     local batches, report = batching.prepare {
---       samples = samples, seq_len = 4096, ranks = dist.world_size(), rank = dist.rank(),
---     }
---     for _, batch in ipairs(batches[dist.rank() + 1]) do ... end

local core = require "lockstep.core"
local core_batching = require "lockstep.core.batching"
local dist = require "lockstep.distributed"
local options = require "lockstep.options"

local M = { cost = {} }

---@class batching.Sample
---@field input_ids torch.Tensor|integer[]
---@field loss_mask torch.Tensor|boolean[]|integer[] which tokens are trained on
---@field position_ids torch.Tensor|integer[]?
---@field kind string? default "image" where there are pixel_values, else "text"
---@field [string] torch.Tensor|number[]|number streams (per token; a number holds for all), tensors

---@class batching.MicroBatch
---@field input_ids torch.Tensor int64 [length]
---@field loss_mask torch.Tensor bool [length]
---@field position_ids torch.Tensor int64 [length], starting anew at each sample
---@field seq_lens integer[] tokens of each sample; they sum to the length
---@field cu_seqlens torch.Tensor int32 [#seq_lens + 1]: 0 and the running sums
---@field kind string
---@field padding boolean copies with no loss token, which only keep the ranks aligned
---@field samples integer[] indices into `samples`; none for padding
---@field cost number
---@field [string] torch.Tensor the streams, and the other tensors concatenated on dimension 0

---@class batching.Report
---@field micro_steps integer
---@field tokens integer of the samples, after the cut
---@field loss_tokens integer of these, those with loss
---@field padding_tokens integer
---@field padding_micro_batches integer
---@field truncated_samples integer
---@field truncated_tokens integer
---@field dropped_samples integer samples of which the cut left nothing
---@field makespan number the sum over micro-steps of the dearest rank's cost
---@field ideal number total cost / ranks
---@field lower_bound number no plan has a smaller makespan; 0 where the cost is a function

--- Cuts samples to seq_len (never inside an image), packs them, pads each kind by itself and deals the
--- micro-batches out: `batches[rank + 1][micro_step + 1]`. Ranks that prepare the same samples get the
--- same plan, without asking each other.
---
--- Options: samples; seq_len; ranks (default: the world's size); rank: make this rank's micro-batches
--- alone, the other lists stay empty; pad_to_multiple_of = 1 (tokens); pad_token_id = 0;
--- balance = "lockstep" or "round_robin"; cost = batching.cost.tokens(), batching.cost.transformer{...}
--- or function(seq_lens); streams = {name = fill}; token_types = "mm_token_type_ids";
--- worth_a_step = 0.005: the share of the makespan for which one more micro-step is worth it.
---@param opts {samples: batching.Sample[], seq_len: integer, ranks: integer?, rank: integer?, [string]: any}
---@return batching.MicroBatch[][] batches
---@return batching.Report report
function M.prepare(opts)
  local o = options.read("batching.prepare", opts, {
    samples = options.required, seq_len = options.required, ranks = dist.world_size(), rank = options.optional,
    pad_to_multiple_of = 1, pad_token_id = 0, balance = "lockstep", cost = options.optional, streams = {},
    token_types = "mm_token_type_ids", worth_a_step = 0.005,
  })
  return core_batching.prepare(o)
end

--- A micro-batch costs its tokens.
function M.cost.tokens()
  return { linear = 1, quadratic = 0 }
end

--- A micro-batch costs the floating-point operations of a decoder, by the fields of its Hugging Face
--- configuration: hidden_size, num_hidden_layers, num_attention_heads, num_key_value_heads, head_dim,
--- intermediate_size, vocab_size; for latent attention q_lora_rank, kv_lora_rank, qk_nope_head_dim,
--- qk_rope_head_dim, v_head_dim; for experts num_experts (or n_routed_experts, num_local_experts),
--- num_experts_per_tok, moe_intermediate_size, n_shared_experts or shared_expert_intermediate_size,
--- first_k_dense_replace; and vision_config = {hidden_size, depth, intermediate_size}.
---@param config table<string, integer|table>
function M.cost.transformer(config)
  local known = {
    n_routed_experts = true, num_local_experts = true, n_shared_experts = true, vision_config = true,
  }
  for _, name in ipairs { "hidden_size", "num_hidden_layers", "vocab_size", "num_attention_heads",
    "num_key_value_heads", "head_dim", "q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim",
    "v_head_dim", "intermediate_size", "num_experts", "num_experts_per_tok", "moe_intermediate_size",
    "shared_expert_intermediate_size", "first_k_dense_replace" } do
    known[name] = true
  end
  if type(config) ~= "table" then
    core.raise("batching.cost.transformer: the configuration must be a table, not a " .. type(config))
  end
  options.check_known("batching.cost.transformer", config, known)
  local shape = {}
  for name, value in pairs(config) do shape[name] = value end
  shape.num_experts = config.num_experts or config.n_routed_experts or config.num_local_experts
  -- Mixtral's experts are as wide as its intermediate_size; DeepSeek's shared ones as the routed.
  if shape.num_experts then shape.moe_intermediate_size = config.moe_intermediate_size or config.intermediate_size end
  if config.n_shared_experts then
    shape.shared_expert_intermediate_size = config.n_shared_experts * (shape.moe_intermediate_size or 0)
  end
  if config.vision_config then
    local vision = options.read("batching.cost.transformer: vision_config", config.vision_config,
      { hidden_size = options.required, depth = options.required, intermediate_size = options.required })
    shape.vision_hidden_size, shape.vision_depth = vision.hidden_size, vision.depth
    shape.vision_intermediate_size = vision.intermediate_size
  end
  local linear, quadratic, image_linear, image_quadratic = core_batching.transformer_cost(shape)
  return { linear = linear, quadratic = quadratic, image_linear = image_linear, image_quadratic = image_quadratic }
end

return M
