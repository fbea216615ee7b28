--- Qwen3 (arXiv 2505.09388): queries and keys are normalised per head before the rotation, and head_dim is a key of
--- its own, not hidden_size / num_attention_heads.

local config = require "lockstep.models.config"
local decoder = require "lockstep.models.decoder"
local options = require "lockstep.options"

---@class models.Qwen3: models.CausalLM
local Qwen3 = decoder.CausalLM:subclass("Qwen3ForCausalLM")
Qwen3.model_type = "qwen3"
Qwen3.keys = decoder.keys { head_dim = 128, attention_bias = false, use_sliding_window = false,
  sliding_window = 4096, max_window_layers = 28, layer_types = options.optional }

--- See CausalLM.read.
---@param c table<string, any>
function Qwen3.read(c)
  c.qk_norm, c.qkv_bias, c.output_bias = true, c.attention_bias, c.attention_bias
  c.windows = config.windows(c)
end

return { Qwen3 = Qwen3 }
