--- Granite 3 (IBM): Llama with four multipliers, of embeddings, residuals, attention scores and logits (muP,
--- arXiv 2203.03466).

local decoder = require "lockstep.models.decoder"

--- Both residuals are multiplied before they are added.
---@class models.GraniteLayer: models.Layer
local Layer = decoder.Layer:subclass("GraniteDecoderLayer")

function Layer:init(c, index, mlp)
  decoder.Layer.init(self, c, index, mlp)
  self.multiplier = c.residual_multiplier
end

function Layer:forward(x, pass)
  x = x + self.self_attn(self.input_layernorm(x), pass) * self.multiplier
  return x + self.mlp(self.post_attention_layernorm(x)) * self.multiplier
end

---@class models.Granite: models.CausalLM
local Granite = decoder.CausalLM:subclass("GraniteForCausalLM")
Granite.model_type = "granite"
Granite.keys = decoder.keys { attention_bias = false, mlp_bias = false, embedding_multiplier = 1,
  residual_multiplier = 1, attention_multiplier = 1, logits_scaling = 1 }

--- See CausalLM.read.
---@param c table<string, any>
function Granite.read(c)
  c.qkv_bias, c.output_bias, c.attention_scale = c.attention_bias, c.attention_bias, c.attention_multiplier
end

--- See CausalLM.layer.
---@param c table<string, any>
---@param index integer from 1
---@param mlp nn.Module
---@return nn.Module
function Granite.layer(c, index, mlp) return Layer(c, index, mlp) end

--- See CausalLM:inputs.
---@param batch models.Batch
---@return torch.Tensor x
---@return torch.Tensor angles
---@return integer[] seq_lens
function Granite:inputs(batch)
  local x, angles, seq_lens = decoder.CausalLM.inputs(self, batch)
  local is_later_stage = self.stage_input and self.stage_input.x
  return is_later_stage and x or x * self.settings.embedding_multiplier, angles, seq_lens
end

--- See CausalLM:hidden. The hidden states are divided in place of the logits, so that every loss has it.
---@param ... any
---@return torch.Tensor
---@return table
function Granite:hidden(...)
  local y, seconds = decoder.CausalLM.hidden(self, ...)
  if self.stage_input and not self.stage_input.stage.is_last then return y, seconds end
  return y / self.settings.logits_scaling, seconds
end

--- See CausalLM.staged_inputs.
Granite.staged_inputs, Granite.staged_hidden = Granite.inputs, Granite.hidden

return { Granite = Granite }
