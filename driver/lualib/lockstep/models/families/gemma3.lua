--- Gemma 3, the models of text (arXiv 2503.19786).
---
--- There are norms before and after attention and MLP, whose weights are stored less 1. Embeddings are scaled, queries
--- and keys are normalised per head. Five of six layers have windows, and a rotary base of their own.

local config = require "lockstep.models.config"
local core = require "lockstep.core"
local decoder = require "lockstep.models.decoder"
local fused = require "lockstep.nn.fused"
local nn = require "lockstep.nn"
local one_input = require "lockstep.nn.one_input"
local options = require "lockstep.options"
local parameter = require "lockstep.nn.parameter"
local rotaries = require "lockstep.models.families.rotaries"
local torch = require "lockstep.torch"

--- Scales by weight + 1, in float32. Weights are 0 at first.
---@class models.Gemma3Norm: nn.Module
local Norm = nn.Module:subclass("Gemma3RMSNorm")

function Norm:init(size, eps)
  self.size, self.eps, self.first_value = { size }, eps, 0
  self.weight = parameter.new({ size }, function(w) w:zero_() end)
end

function Norm:forward(x)
  local dtype = x.dtype == torch.float64 and torch.float64 or torch.float32
  return fused.rms_norm(x:to(dtype), self.weight:to(dtype) + 1, self.size, self.eps):to(x.dtype)
end

---@class models.Gemma3Attention: models.AttentionOfTwoRotaries
local Attention = rotaries.Attention:subclass("Gemma3Attention")

function Attention:init(c, index)
  rotaries.Attention.init(self, c, index)
  self.q_norm, self.k_norm = Norm(c.head_dim, c.rms_norm_eps), Norm(c.head_dim, c.rms_norm_eps)
end

--- down(gelu(gate(x)) * up(x)).
---@class models.Gemma3Mlp: models.Mlp
local Mlp = decoder.Mlp:subclass("Gemma3MLP")

function Mlp:forward(x)
  local gate, up = one_input.linears(x, self.gate_proj, self.up_proj)
  return self.down_proj(torch.gelu(gate, { approximate = "tanh" }) * up)
end

---@class models.Gemma3Layer: nn.Module
local Layer = nn.Module:subclass("Gemma3DecoderLayer")

function Layer:init(c, index, mlp)
  self.self_attn, self.mlp = Attention(c, index), mlp
  for _, name in ipairs { "input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm",
    "post_feedforward_layernorm" } do
    self[name] = Norm(c.hidden_size, c.rms_norm_eps)
  end
end

function Layer:forward(x, pass)
  x = x + self.post_attention_layernorm(self.self_attn(self.input_layernorm(x), pass))
  return x + self.post_feedforward_layernorm(self.mlp(self.pre_feedforward_layernorm(x)))
end

---@class models.Gemma3: models.CausalLM
local Gemma3 = decoder.CausalLM:subclass("Gemma3ForCausalLM")
Gemma3.model_type = "gemma3_text"
-- Version 5 writes _sliding_window_pattern, and reads layer_types.
Gemma3.keys = decoder.keys { attention_bias = false, head_dim = 256, num_key_value_heads = 4,
  tie_word_embeddings = true, hidden_activation = "gelu_pytorch_tanh", query_pre_attn_scalar = 256,
  rope_theta = 1e6, rope_local_base_freq = 1e4, max_position_embeddings = options.optional, sliding_window = 4096,
  sliding_window_pattern = 6, _sliding_window_pattern = options.optional, layer_types = options.optional,
  final_logit_softcapping = options.optional, attn_logit_softcapping = options.optional,
  use_bidirectional_attention = false }

local function refuse(key, value, expected)
  core.raise(("models: Gemma3ForCausalLM: \"%s\" is %s; only %s is supported"):format(key, tostring(value), expected))
end

--- See CausalLM.read.
---@param c table<string, any>
function Gemma3.read(c)
  if c.hidden_activation ~= "gelu_pytorch_tanh" then
    refuse("hidden_activation", c.hidden_activation, "gelu_pytorch_tanh")
  end
  if c.use_bidirectional_attention then refuse("use_bidirectional_attention", true, "false") end
  for _, key in ipairs { "final_logit_softcapping", "attn_logit_softcapping" } do
    if c[key] then refuse(key, c[key], "null") end
  end
  c.qkv_bias, c.output_bias, c.attention_scale = c.attention_bias, c.attention_bias, c.query_pre_attn_scalar ^ -0.5
  if not c.layer_types then
    c.layer_types = {}
    for i = 1, c.num_hidden_layers do
      c.layer_types[i] = i % c.sliding_window_pattern ~= 0 and "sliding_attention" or "full_attention"
    end
  end
  c.use_sliding_window, c.max_window_layers = true, 0
  c.windows = config.windows(c)
  c.rope, c.windowed_rope = rotaries.read(c, c.rope_theta, c.rope_local_base_freq)
end

--- See CausalLM.mlp.
---@param c table<string, any>
---@return nn.Module
function Gemma3.mlp(c) return Mlp(c.hidden_size, c.intermediate_size) end

--- See CausalLM.layer.
---@param c table<string, any>
---@param index integer from 1
---@param mlp nn.Module
---@return nn.Module
function Gemma3.layer(c, index, mlp) return Layer(c, index, mlp) end

--- Gives a model what differs in Gemma: the last norm, and two rotary embeddings.
local function complete(model, layers)
  local c = model.settings
  layers.norm = Norm(c.hidden_size, c.rms_norm_eps)
  model.rotary = rotaries.of(c.rope, c.windowed_rope, c.head_dim)
end

--- Returns scaled embeddings. The factor has their dtype, as in training: 33.94 is 34 in bfloat16.
local function scaled(model, x)
  return x * torch.tensor({ math.sqrt(model.settings.hidden_size) }, { dtype = x.dtype }):item()
end

function Gemma3:init(raw, opts)
  decoder.CausalLM.init(self, raw, opts)
  complete(self, self.model)
end

--- See CausalLM:inputs.
---@param batch models.Batch
---@return torch.Tensor x
---@return torch.Tensor[] angles
---@return integer[] seq_lens
function Gemma3:inputs(batch)
  local x, angles, seq_lens = decoder.CausalLM.inputs(self, batch)
  local is_later_stage = self.stage_input and self.stage_input.x
  return is_later_stage and x or scaled(self, x), angles, seq_lens
end

--- See CausalLM.staged_inputs.
Gemma3.staged_inputs = Gemma3.inputs

return { Gemma3 = Gemma3, Attention = Attention, Norm = Norm, complete = complete, scaled = scaled }
