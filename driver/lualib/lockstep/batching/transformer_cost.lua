--- batching.cost.transformer: the cost of a model from its Hugging Face configuration.

local core = require "lockstep.core"
local core_batching = require "lockstep.core.batching"
local options = require "lockstep.options"
local plain = require "lockstep.plain"

local M = {}

local CALLER = "batching.cost.transformer"
local NAMES = { "hidden_size", "num_hidden_layers", "vocab_size", "num_attention_heads", "num_key_value_heads",
  "head_dim", "q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim",
  "intermediate_size", "num_experts", "n_routed_experts", "num_local_experts", "num_experts_per_tok",
  "moe_intermediate_size", "n_shared_experts", "shared_expert_intermediate_size", "first_k_dense_replace" }
local VISION = { "hidden_size", "depth", "intermediate_size" }

--- Returns the value under `name`, which must be a number, or nil. null stands for nil, as in config.json.
local function number(config, name)
  local value = config[name]
  if value == nil or value == core.null then return nil end
  plain.check(type(value) == "number", "%s: %s must be a number, not a %s", CALLER, name, type(value))
  return value
end

--- Returns whether a table is a whole config.json. Only some of its keys tell the cost. In a table of a script's own
--- an unknown key is a mistake.
local function is_whole(config) return config.model_type ~= nil or config.architectures ~= nil end

--- Adds the vision tower. Qwen2-VL calls its width embed_dim, and by hidden_size means what it hands to the decoder.
local function add_vision(shape, given, is_of_whole)
  plain.check(type(given) == "table", "%s: vision_config must be a table, not a %s", CALLER, type(given))
  local vision = plain.copy(given)
  if is_of_whole or is_whole(vision) then
    local width = number(vision, "embed_dim") or number(vision, "hidden_size")
    local ratio = number(vision, "mlp_ratio")
    vision = { hidden_size = width, depth = number(vision, "depth") or number(vision, "num_hidden_layers"),
      intermediate_size = number(vision, "intermediate_size") or width and ratio and math.floor(width * ratio) }
  end
  local required = {}
  for _, name in ipairs(VISION) do required[name] = options.required end
  vision = options.read(CALLER .. ": vision_config", vision, required)
  for _, name in ipairs(VISION) do shape["vision_" .. name] = number(vision, name) end
end

--- See batching.cost.transformer.
---@param config table<string, any>
---@return {linear: number, quadratic: number, image_linear: number, image_quadratic: number}
function M.of(config)
  plain.check(type(config) == "table", "%s: the configuration must be a table, not a %s", CALLER, type(config))
  config = plain.copy(config) -- without metatables: a run's configuration complains about keys that it lacks
  local vision = config.vision_config
  local whole = is_whole(config)
  if whole and type(config.text_config) == "table" then
    config = plain.copy(config, config.text_config)
  elseif not whole then
    local known = { vision_config = true }
    for _, name in ipairs(NAMES) do known[name] = true end
    options.check_known(CALLER, config, known)
  end
  local shape = {}
  for _, name in ipairs(NAMES) do shape[name] = number(config, name) end
  shape.num_experts = shape.num_experts or shape.n_routed_experts or shape.num_local_experts
  -- Mixtral's experts are as wide as its intermediate_size; DeepSeek's shared ones as the routed.
  if shape.num_experts then shape.moe_intermediate_size = shape.moe_intermediate_size or shape.intermediate_size end
  if shape.n_shared_experts then
    shape.shared_expert_intermediate_size = shape.n_shared_experts * (shape.moe_intermediate_size or 0)
  end
  shape.n_routed_experts, shape.num_local_experts, shape.n_shared_experts = nil, nil, nil
  if vision ~= nil and vision ~= core.null then add_vision(shape, vision, whole) end
  local linear, quadratic, image_linear, image_quadratic = core_batching.transformer_cost(shape)
  return { linear = linear, quadratic = quadratic, image_linear = image_linear, image_quadratic = image_quadratic }
end

return M
