--- gpt-oss (OpenAI, arXiv 2508.10925): attention with sinks, a window in every other layer, and a mixture of experts
--- with biases and a clamped SwiGLU in each.
---
--- The experts of a layer are two tensors, on disk as in memory: gate_up_proj [experts, hidden, 2 * intermediate], with
--- columns of gate and up in turn, and down_proj [experts, intermediate, hidden]. Folders with MXFP4 weights are read,
--- too: see models.quantized.

local config = require "lockstep.models.config"
local core = require "lockstep.core"
local decoder = require "lockstep.models.decoder"
local experts = require "lockstep.models.experts"
local nn = require "lockstep.nn"
local options = require "lockstep.options"
local parameter = require "lockstep.nn.parameter"
local plain = require "lockstep.plain"
local qwen3_moe = require "lockstep.models.qwen3_moe"
local torch = require "lockstep.torch"

local Qwen3Moe = qwen3_moe.Qwen3Moe

---@class models.GptOssAttention: models.Attention
local Attention = decoder.Attention:subclass("GptOssAttention")

function Attention:init(c, index)
  decoder.Attention.init(self, c, index)
  self.first_value = 0 -- of the sinks
  self.sinks = parameter.new({ c.num_attention_heads }, function(s) s:zero_() end)
end

---@class models.GptOssExperts: models.Experts
local Experts = experts.Experts:subclass("GptOssExperts")

function Experts:init(c)
  local count, hidden, inner = c.num_local_experts, c.hidden_size, c.intermediate_size
  local function normal(w) w:normal_(0, 0.02) end
  local function zero(w) w:zero_() end
  self.gate_up_proj = parameter.new({ count, hidden, 2 * inner }, normal)
  self.gate_up_proj_bias = parameter.new({ count, 2 * inner }, zero)
  self.down_proj = parameter.new({ count, inner, hidden }, normal)
  self.down_proj_bias = parameter.new({ count, hidden }, zero)
  self.alpha, self.limit = c.swiglu_alpha, c.swiglu_limit
end

--- See Experts:forward of models.experts.
function Experts:forward(x, ends, list)
  local multiply, rows = experts.multiplier(ends, list, self.float8_recipe), x:size(0)
  local of_row = torch.searchsorted(ends, torch.arange(rows, { dtype = torch.int32, device = x.device }),
    { right = true })
  local gate_up = multiply(x, self:weight "gate_up_proj":transpose(1, 2))
    + torch.embedding(self:weight "gate_up_proj_bias", of_row)
  local pairs_of = gate_up:view(rows, gate_up:size(1) / 2, 2) -- there may be no row
  local gate, up = pairs_of:select(-1, 0):clamp_max(self.limit), pairs_of:select(-1, 1):clamp(-self.limit, self.limit)
  local y = (up + 1) * (gate * torch.sigmoid(gate * self.alpha))
  return multiply(y, self:weight "down_proj":transpose(1, 2)) + torch.embedding(self:weight "down_proj_bias", of_row)
end

--- The shares of a token's experts are the softmax of their logits alone.
---@class models.GptOssMixture: models.Mixture
local Mixture = experts.Mixture:subclass("GptOssMLP")

function Mixture:init(c)
  if c.num_experts_per_tok > c.num_local_experts then
    core.raise(("models: num_experts_per_tok is %d, but there are %d experts"):format(c.num_experts_per_tok,
      c.num_local_experts))
  end
  self.num_experts, self.per_token = c.num_local_experts, c.num_experts_per_tok
  self.router = nn.Linear(c.hidden_size, c.num_local_experts)
  self.experts = Experts(c)
end

--- See Mixture:route.
---@param x torch.Tensor
---@return torch.Tensor shares
---@return torch.Tensor chosen
---@return torch.Tensor logits
function Mixture:route(x)
  local logits = self.router(x)
  local largest, chosen = logits:topk(self.per_token, -1)
  return largest:softmax(-1), chosen, logits
end

---@class models.GptOss: models.CausalLM
local GptOss = decoder.CausalLM:subclass("GptOssForCausalLM")
GptOss.model_type = "gpt_oss"
GptOss.keys = decoder.keys { attention_bias = true, head_dim = 64, num_key_value_heads = 8, rms_norm_eps = 1e-5,
  rope_theta = 150000, rope_parameters = options.optional, rope_scaling = options.optional, sliding_window = 128,
  layer_types = options.optional, num_local_experts = options.optional, num_experts = options.optional,
  num_experts_per_tok = 4, swiglu_alpha = 1.702, swiglu_limit = 7, output_router_logits = false,
  router_aux_loss_coef = 0.001 }

local ROPE = { rope_type = "yarn", factor = 32, beta_fast = 32, beta_slow = 1, truncate = false,
  original_max_position_embeddings = 4096 }

--- See CausalLM.read.
---@param c table<string, any>
function GptOss.read(c)
  c.num_local_experts = c.num_local_experts or c.num_experts or 128
  c.num_experts = c.num_local_experts -- for balance_loss
  for _, key in ipairs { "num_experts_per_tok", "num_local_experts" } do
    config.check_whole("GptOssForCausalLM", key, c[key])
  end
  if not c.rope_parameters and not c.rope_scaling then
    c.rope = config.rope({ rope_parameters = ROPE, rope_theta = c.rope.rope_theta })
  end
  c.qkv_bias, c.output_bias = c.attention_bias, c.attention_bias
  if not c.layer_types then
    c.layer_types = {}
    for i = 1, c.num_hidden_layers do c.layer_types[i] = i % 2 == 1 and "sliding_attention" or "full_attention" end
  end
  c.use_sliding_window, c.max_window_layers = true, 0
  c.windows = config.windows(c)
end

--- See CausalLM.tensor_plan. A rank has the sinks of its heads.
---@return table<string, "column"|"row"|"vocabulary">
function GptOss.tensor_plan()
  return plain.copy(decoder.CausalLM.tensor_plan(), { ["layers.*.self_attn.sinks"] = "column" })
end

--- See CausalLM.mlp.
---@param c table<string, any>
---@return nn.Module
function GptOss.mlp(c) return Mixture(c) end

--- See CausalLM.layer.
---@param c table<string, any>
---@param index integer from 1
---@param mlp nn.Module
---@return nn.Module
function GptOss.layer(c, index, mlp) return decoder.Layer(c, index, mlp, Attention(c, index)) end

for _, name in ipairs { "balance_loss", "balance_size", "balance_statistics" } do GptOss[name] = Qwen3Moe[name] end

return { GptOss = GptOss }
