--- batching.cost.transformer: the cost of a model from its Hugging Face configuration.

local core = require "lockstep.core"
local core_batching = require "lockstep.core.batching"
local options = require "lockstep.options"

local M = {}

--- See batching.cost.transformer.
---@param config table<string, integer|table>
---@return {linear: number, quadratic: number, image_linear: number, image_quadratic: number}
function M.of(config)
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
  for name, value in pairs(config) do
    if name ~= "vision_config" and type(value) ~= "number" then
      core.raise(("batching.cost.transformer: %s must be a number, not a %s"):format(name, type(value)))
    end
    shape[name] = value
  end
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
