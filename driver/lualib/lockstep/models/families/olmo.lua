--- OLMo 2 (arXiv 2501.00656) and OLMo 3 (arXiv 2512.13961): norms after attention and MLP in place of before, and
--- queries and keys normalised over all heads together. OLMo 3 has windows in three of four layers, whose rotary
--- embeddings are not scaled for long contexts.

local config = require "lockstep.models.config"
local decoder = require "lockstep.models.decoder"
local nn = require "lockstep.nn"
local options = require "lockstep.options"
local plain = require "lockstep.plain"
local rotaries = require "lockstep.models.families.rotaries"

---@class models.Olmo2Attention: models.Attention
local Olmo2Attention = decoder.Attention:subclass("Olmo2Attention")

function Olmo2Attention:init(c, index)
  decoder.Attention.init(self, c, index)
  self.q_norm = nn.RMSNorm(c.num_attention_heads * c.head_dim, { eps = c.rms_norm_eps })
  self.k_norm = nn.RMSNorm(c.num_key_value_heads * c.head_dim, { eps = c.rms_norm_eps })
end

--- See Attention:project.
---@param x torch.Tensor
---@return torch.Tensor q
---@return torch.Tensor k
---@return torch.Tensor v
function Olmo2Attention:project(x)
  local q, k, dim = self.q_norm(self.q_proj(x)), self.k_norm(self.k_proj(x)), self.head_dim
  local tokens = q:size(0) -- sharding.tensor_parallel may split the tokens of x
  return q:view(tokens, -1, dim), k:view(tokens, -1, dim), self.v_proj(x):view(tokens, -1, dim)
end

---@class models.Olmo3Attention: models.Olmo2Attention
local Olmo3Attention = Olmo2Attention:subclass("Olmo3Attention")
Olmo3Attention.turn = rotaries.Attention.turn

---@class models.OlmoLayer: nn.Module
local Layer = nn.Module:subclass("OlmoDecoderLayer")

function Layer:init(c, attention, mlp)
  self.self_attn, self.mlp = attention, mlp
  self.post_attention_layernorm = nn.RMSNorm(c.hidden_size, { eps = c.rms_norm_eps })
  self.post_feedforward_layernorm = nn.RMSNorm(c.hidden_size, { eps = c.rms_norm_eps })
end

function Layer:forward(x, pass)
  x = x + self.post_attention_layernorm(self.self_attn(x, pass))
  return x + self.post_feedforward_layernorm(self.mlp(x))
end

---@class models.Olmo2: models.CausalLM
local Olmo2 = decoder.CausalLM:subclass("Olmo2ForCausalLM")
Olmo2.model_type = "olmo2"
Olmo2.keys = decoder.keys { attention_bias = false, rms_norm_eps = 1e-5 }

--- See CausalLM.tensor_plan. The norms of queries and keys see all heads.
---@return table<string, "column"|"row"|"vocabulary">
function Olmo2.tensor_plan()
  return plain.copy(decoder.CausalLM.tensor_plan(), { ["layers.*.self_attn.q_norm"] = "column",
    ["layers.*.self_attn.k_norm"] = "column" })
end

--- See CausalLM.read.
---@param c table<string, any>
function Olmo2.read(c) c.qkv_bias, c.output_bias = c.attention_bias, c.attention_bias end

--- See CausalLM.layer.
---@param c table<string, any>
---@param index integer from 1
---@param mlp nn.Module
---@return nn.Module
function Olmo2.layer(c, index, mlp) return Layer(c, Olmo2Attention(c, index), mlp) end

---@class models.Olmo3: models.Olmo2
local Olmo3 = Olmo2:subclass("Olmo3ForCausalLM")
Olmo3.model_type = "olmo3"
Olmo3.keys = decoder.keys { attention_bias = false, rms_norm_eps = 1e-5, rope_theta = 5e5, sliding_window = 4096,
  layer_types = options.optional, max_position_embeddings = options.optional }

--- See CausalLM.read. The rope_theta that version 4 of transformers writes is the base of both kinds of layers, as it
--- was in training with version 4. Version 5 takes 500000 for layers with a window.
---@param c table<string, any>
function Olmo3.read(c)
  Olmo2.read(c)
  if not c.layer_types then
    c.layer_types = {}
    for i = 1, c.num_hidden_layers do
      c.layer_types[i] = i % 4 ~= 0 and "sliding_attention" or "full_attention"
    end
  end
  c.use_sliding_window, c.max_window_layers = true, 0
  c.windows = config.windows(c)
  c.rope, c.windowed_rope = rotaries.read(c, c.rope_theta, c.rope_theta)
end

--- See CausalLM.layer.
---@param c table<string, any>
---@param index integer from 1
---@param mlp nn.Module
---@return nn.Module
function Olmo3.layer(c, index, mlp) return Layer(c, Olmo3Attention(c, index), mlp) end

function Olmo3:init(raw, opts)
  Olmo2.init(self, raw, opts)
  self.rotary = rotaries.of(self.settings.rope, self.settings.windowed_rope, self.settings.head_dim)
end

return { Olmo2 = Olmo2, Olmo3 = Olmo3 }
