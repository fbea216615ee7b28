--- Mistral (arXiv 2310.06825): Llama with a window in each layer, unless `sliding_window` is null. Ministral has
--- windows in the layers that `layer_types` names.

local config = require "lockstep.models.config"
local decoder = require "lockstep.models.decoder"
local options = require "lockstep.options"

---@class models.Mistral: models.CausalLM
local Mistral = decoder.CausalLM:subclass("MistralForCausalLM")
Mistral.model_type = "mistral"
Mistral.keys = decoder.keys { sliding_window = 4096, num_key_value_heads = 8 }

--- See CausalLM.read.
---@param c table<string, any>
function Mistral.read(c)
  c.use_sliding_window, c.max_window_layers = true, 0
  c.windows = config.windows(c)
end

---@class models.Ministral: models.CausalLM
local Ministral = decoder.CausalLM:subclass("MinistralForCausalLM")
Ministral.model_type = "ministral"
Ministral.keys = decoder.keys { sliding_window = 4096, num_key_value_heads = 8, layer_types = options.optional }
Ministral.read = Mistral.read

return { Mistral = Mistral, Ministral = Ministral }
