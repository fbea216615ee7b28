--- Llama 3 (arXiv 2407.21783), Qwen2 and Qwen2.5 (arXiv 2412.15115): the shared decoder as it is. Qwen has biases in
--- the projections of queries, keys and values.

local config = require "lockstep.models.config"
local decoder = require "lockstep.models.decoder"
local options = require "lockstep.options"

---@class models.Llama: models.CausalLM
local Llama = decoder.CausalLM:subclass("LlamaForCausalLM")
Llama.model_type = "llama"
Llama.keys = decoder.keys { attention_bias = false, mlp_bias = false }

--- See CausalLM.read.
---@param c table<string, any>
function Llama.read(c) c.qkv_bias, c.output_bias = c.attention_bias, c.attention_bias end

---@class models.Qwen2: models.CausalLM
local Qwen2 = decoder.CausalLM:subclass("Qwen2ForCausalLM")
Qwen2.model_type = "qwen2"
Qwen2.keys = decoder.keys { use_sliding_window = false, sliding_window = 4096, max_window_layers = 28,
  layer_types = options.optional }

--- See CausalLM.read.
---@param c table<string, any>
function Qwen2.read(c)
  c.qkv_bias = true
  c.windows = config.windows(c)
end

return { Llama = Llama, Qwen2 = Qwen2 }
