--- SmolLM3: Llama without rotary embeddings in every fourth layer (arXiv 2501.18795), or where `no_rope_layers` has
--- a 0. With `use_sliding_window` those layers have windows, or the ones that `layer_types` names.

local config = require "lockstep.models.config"
local core = require "lockstep.core"
local decoder = require "lockstep.models.decoder"
local options = require "lockstep.options"

--- Attention that does not see where its tokens are.
---@class models.UnturnedAttention: models.Attention
local Unturned = decoder.Attention:subclass("UnturnedAttention")

--- See Attention:turn.
---@param x torch.Tensor
---@return torch.Tensor
function Unturned:turn(x) return x end -- luacheck: ignore 212

---@class models.SmolLM3: models.CausalLM
local SmolLM3 = decoder.CausalLM:subclass("SmolLM3ForCausalLM")
SmolLM3.model_type = "smollm3"
SmolLM3.keys = decoder.keys { attention_bias = false, mlp_bias = false, num_key_value_heads = 4,
  tie_word_embeddings = true, rope_theta = 2e6, use_sliding_window = false, sliding_window = options.optional,
  layer_types = options.optional, no_rope_layers = options.optional, no_rope_layer_interval = 4 }

--- Returns whether each layer rotates its queries and keys.
local function turns(c)
  local given, result = c.no_rope_layers, {}
  if given ~= nil and (type(given) ~= "table" or #given < c.num_hidden_layers) then
    core.raise(("models: SmolLM3ForCausalLM: no_rope_layers must be an array of 0 and 1 for each of %d layers, got %s")
      :format(c.num_hidden_layers, type(given) == "table" and #given .. " elements" or tostring(given)))
  end
  for i = 1, c.num_hidden_layers do
    if given then result[i] = given[i] == 1 else result[i] = i % c.no_rope_layer_interval ~= 0 end
  end
  return result
end

--- See CausalLM.read.
---@param c table<string, any>
function SmolLM3.read(c)
  c.qkv_bias, c.output_bias, c.turns = c.attention_bias, c.attention_bias, turns(c)
  if not c.layer_types then
    c.layer_types = {}
    for i, turns_here in ipairs(c.turns) do
      local slides = c.use_sliding_window and c.sliding_window and not turns_here
      c.layer_types[i] = slides and "sliding_attention" or "full_attention"
    end
  end
  for i, kind in ipairs(c.layer_types) do
    if kind == "sliding_attention" and not c.use_sliding_window then
      core.raise(('models: SmolLM3ForCausalLM: layer_types[%d] is "sliding_attention", but use_sliding_window is '
        .. 'false; in transformers the kernel decides which holds'):format(i - 1))
    end
  end
  c.max_window_layers = 0
  c.windows = config.windows(c)
end

--- See CausalLM.layer.
---@param c table<string, any>
---@param index integer from 1
---@param mlp nn.Module
---@return nn.Module
function SmolLM3.layer(c, index, mlp)
  return decoder.Layer(c, index, mlp, not c.turns[index] and Unturned(c, index) or nil)
end

return { SmolLM3 = SmolLM3 }
