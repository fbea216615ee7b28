--- Qwen3-Next: three of four layers have a state of fixed size in place of keys and values (delta_rule.lua). The other
--- layers have attention whose output passes a gate, and a quarter of each head turns with its position. Norms are
--- stored less 1. Each token has an expert of its own beside the experts that a router chooses.
---
--- Tensors that predict further tokens, mtp.*, are passed over, as in transformers.

local config = require "lockstep.models.config"
local decoder = require "lockstep.models.decoder"
local delta_rule = require "lockstep.models.families.delta_rule"
local experts = require "lockstep.models.experts"
local gemma3 = require "lockstep.models.families.gemma3"
local nn = require "lockstep.nn"
local options = require "lockstep.options"
local parameter = require "lockstep.nn.parameter"
local qwen3_moe = require "lockstep.models.qwen3_moe"
local plain = require "lockstep.plain"
local torch = require "lockstep.torch"

local NAME = "Qwen3NextForCausalLM"

local check = plain.checks("models: " .. NAME .. ": ")

local function wide(x) return x:to(x.dtype == torch.float64 and torch.float64 or torch.float32) end

-- Attention -----------------------------------------------------------------------------------------------

--- q_proj gives each head its query and its gate.
---@class models.Qwen3NextAttention: models.Attention
local Attention = decoder.Attention:subclass("Qwen3NextAttention")

function Attention:init(c, index)
  decoder.Attention.init(self, c, index)
  self.q_proj = nn.Linear(c.hidden_size, 2 * c.num_attention_heads * c.head_dim, { bias = c.qkv_bias })
  self.q_norm, self.k_norm = gemma3.Norm(c.head_dim, c.rms_norm_eps), gemma3.Norm(c.head_dim, c.rms_norm_eps)
end

function Attention:forward(x, pass)
  local tokens, dim = x:size(0), self.head_dim
  local q, gate = unpack(self.q_proj(x):view(tokens, -1, 2 * dim):chunk(2, -1))
  local k, v = self.k_proj(x):view(tokens, -1, dim), self.v_proj(x):view(tokens, -1, dim)
  q, k = self:turn(self.q_norm(q), pass), self:turn(self.k_norm(k), pass)
  local y = pass.attend(q, k, v, self):reshape(tokens, -1)
  return self.o_proj(y * gate:reshape(tokens, -1):sigmoid())
end

-- Layers with a state -------------------------------------------------------------------------------------

local Convolution = nn.Module:subclass("Conv1d") -- gives the weight the name that it has on disk

function Convolution:init(channels, width)
  self.weight = parameter.new({ channels, 1, width }, function(w) w:uniform_(-width ^ -0.5, width ^ -0.5) end)
end

--- Normalises, scales by the weight, and by silu of the gate.
---@class models.GatedNorm: nn.Module
local GatedNorm = nn.Module:subclass("Qwen3NextRMSNormGated")

function GatedNorm:init(size, eps)
  self.eps, self.weight = eps, parameter.new({ size }, function(w) w:fill_(1) end)
end

function GatedNorm:forward(x, gate)
  local normalised = wide(x)
  normalised = normalised * torch.rsqrt((normalised * normalised):mean({ -1 }, true) + self.eps)
  return (self.weight * normalised:to(gate.dtype) * torch.silu(wide(gate))):to(gate.dtype)
end

--- What draws the first values of parameters that are neither weights nor biases of a layer: see first_values.
local FIRST = { dt_bias = function(t) t:fill_(1) end, A_log = function(t) t:uniform_(0.01, 16):log_() end }

--- A layer with a state. It calls pass.attend as attention does, with its input before the convolution, the logarithms
--- of the decay and beta in place of queries, keys and values. pass.attend calls `recur` in turn, and keeps the state.
---@class models.GatedDeltaNet: nn.Module
---@field index integer the layer, from 1
local DeltaNet = nn.Module:subclass("Qwen3NextGatedDeltaNet")

function DeltaNet:init(c, index)
  self.index, self.groups, self.key_dim, self.value_dim = index, c.linear_num_key_heads, c.linear_key_head_dim,
    c.linear_value_head_dim
  self.repeats = c.linear_num_value_heads / c.linear_num_key_heads
  local key, value = self.groups * self.key_dim, c.linear_num_value_heads * self.value_dim
  self.sizes, self.first_values = { key, key, value }, FIRST
  self.in_proj_qkvz = nn.Linear(c.hidden_size, 2 * key + 2 * value, { bias = false })
  self.in_proj_ba = nn.Linear(c.hidden_size, 2 * c.linear_num_value_heads, { bias = false })
  self.conv1d = Convolution(2 * key + value, c.linear_conv_kernel_dim)
  self.dt_bias = parameter.new({ c.linear_num_value_heads }, FIRST.dt_bias)
  self.A_log = parameter.new({ c.linear_num_value_heads }, FIRST.A_log)
  self.norm = GatedNorm(self.value_dim, c.rms_norm_eps)
  self.out_proj = nn.Linear(value, c.hidden_size, { bias = false })
end

function DeltaNet:forward(x, pass)
  local tokens, of_values = x:size(0), self.repeats * self.value_dim
  -- The rows of both weights lie by heads of keys.
  local q, k, v, z = unpack(self.in_proj_qkvz(x):view(tokens, self.groups, -1)
    :split({ self.key_dim, self.key_dim, of_values, of_values }, -1))
  local b, a = unpack(self.in_proj_ba(x):view(tokens, self.groups, -1):chunk(2, -1))
  local mixed = torch.cat({ q:flatten(1), k:flatten(1), v:flatten(1) }, -1)
  local decay = torch.softplus(wide(a:flatten(1)) + self.dt_bias) * -wide(self.A_log):exp()
  local y = pass.attend(mixed, decay, b:flatten(1):sigmoid(), self)
  local gate = z:reshape(tokens, -1, self.value_dim)
  return self.out_proj(self.norm(y, gate):flatten(1))
end

local function unit(x) return x * torch.rsqrt((x * x):sum({ -1 }, true) + 1e-6) end

--- DeltaNet:recur in the dtypes of its arguments.
local function recur(self, mixed, decay, beta, seq_lens, before)
  local weight = wide(self.conv1d.weight)
  local convolved, tails, y, states
  if before then
    convolved, tails = delta_rule.convolve_next(mixed, weight, before.tails)
  else
    convolved, tails = delta_rule.convolve(mixed, weight, seq_lens)
  end
  -- Rounds to the model's dtype, as transformers does.
  local q, k, v = unpack(wide(torch.silu(convolved:to(mixed.dtype))):split(self.sizes, -1))
  local function of_groups(x)
    return unit(x:view(mixed:size(0), -1, self.key_dim)):repeat_interleave(self.repeats, 1)
  end
  q, k, v = of_groups(q) * self.key_dim ^ -0.5, of_groups(k), v:reshape(mixed:size(0), -1, self.value_dim)
  if before then
    y, states = delta_rule.next_tokens(q, k, v, decay, wide(beta), before.states)
  else
    y, states = delta_rule.sequences(q, k, v, decay, wide(beta), seq_lens)
  end
  return y:to(mixed.dtype), { tails = tails, states = states }
end

--- Returns the outputs of tokens [T, heads, value_dim], and what later tokens need. Private to whoever is pass.attend.
---@param mixed torch.Tensor [T, channels]
---@param decay torch.Tensor [T, heads]
---@param beta torch.Tensor [T, heads]
---@param seq_lens integer[]? of whole sequences; nil: each token goes on from `before`
---@param before {tails: torch.Tensor, states: torch.Tensor}?
---@return torch.Tensor
---@return {tails: torch.Tensor, states: torch.Tensor}
function DeltaNet:recur(mixed, decay, beta, seq_lens, before)
  -- Autocast would round the products of the rule.
  return torch.autocast({ device = (mixed.device:gsub(":.*", "")), enabled = false }, recur, self, mixed, decay, beta,
    seq_lens, before)
end

-- Experts -------------------------------------------------------------------------------------------------

---@class models.Qwen3NextMixture: models.Mixture
local Mixture = experts.Mixture:subclass("Qwen3NextSparseMoeBlock")

function Mixture:init(c)
  experts.Mixture.init(self, { hidden = c.hidden_size, intermediate = c.moe_intermediate_size,
    experts = c.num_experts, per_token = c.num_experts_per_tok, normalize = c.norm_topk_prob })
  self.shared_expert = decoder.Mlp(c.hidden_size, c.shared_expert_intermediate_size)
  self.shared_expert_gate = nn.Linear(c.hidden_size, 1, { bias = false })
end

function Mixture:forward(x)
  local y, logits = experts.Mixture.forward(self, x)
  return y + self.shared_expert_gate(x):sigmoid() * self.shared_expert(x), logits
end

-- The model -----------------------------------------------------------------------------------------------

---@class models.Qwen3NextLayer: models.Layer
local Layer = decoder.Layer:subclass("Qwen3NextDecoderLayer")

function Layer:init(c, index, mlp)
  if c.layer_types[index] == "linear_attention" then
    self.linear_attn = DeltaNet(c, index)
  else
    self.self_attn = Attention(c, index)
  end
  self.mlp = mlp
  self.input_layernorm = gemma3.Norm(c.hidden_size, c.rms_norm_eps)
  self.post_attention_layernorm = gemma3.Norm(c.hidden_size, c.rms_norm_eps)
end

function Layer:forward(x, pass)
  local mixer = self.linear_attn or self.self_attn
  x = x + mixer(self.input_layernorm(x), pass)
  local y, logits = self.mlp(self.post_attention_layernorm(x))
  return x + y, logits
end

---@class models.Qwen3Next: models.Qwen3Moe
local Qwen3Next = qwen3_moe.Qwen3Moe:subclass(NAME)
Qwen3Next.model_type = "qwen3_next"
Qwen3Next.needs_whole_sequences = true
Qwen3Next.has_states = true -- a state has seen all tokens before
Qwen3Next.tensor_plan = false -- the rows of in_proj_qkvz lie by heads of keys, and a convolution follows
Qwen3Next.splits_tokens = false
Qwen3Next.keys = decoder.keys { attention_bias = false, head_dim = 256, num_key_value_heads = 2,
  partial_rotary_factor = 0.25, full_attention_interval = 4, layer_types = options.optional,
  linear_conv_kernel_dim = 4, linear_key_head_dim = 128, linear_value_head_dim = 128, linear_num_key_heads = 16,
  linear_num_value_heads = 32, decoder_sparse_step = 1, mlp_only_layers = {}, moe_intermediate_size = 512,
  shared_expert_intermediate_size = 512, num_experts = options.optional, num_local_experts = options.optional,
  num_experts_per_tok = 10, norm_topk_prob = true, output_router_logits = false, router_aux_loss_coef = 0.001 }

local KINDS = { linear_attention = true, full_attention = true }

local function read_layer_types(c)
  if not c.layer_types then
    c.layer_types = {}
    for i = 1, c.num_hidden_layers do
      c.layer_types[i] = i % c.full_attention_interval == 0 and "full_attention" or "linear_attention"
    end
  end
  for i = 1, c.num_hidden_layers do
    check(KINDS[c.layer_types[i]],
      'layer_types[%d] is "%s"; expected linear_attention or full_attention for each of %d layers', i - 1,
      tostring(c.layer_types[i]), c.num_hidden_layers)
  end
end

--- See CausalLM.read.
---@param c table<string, any>
function Qwen3Next.read(c)
  c.num_experts = c.num_experts or c.num_local_experts or 512
  for _, key in ipairs { "linear_conv_kernel_dim", "linear_key_head_dim", "linear_value_head_dim",
    "linear_num_key_heads", "linear_num_value_heads", "full_attention_interval" } do
    config.check_whole(NAME, key, c[key])
  end
  check(c.linear_num_value_heads % c.linear_num_key_heads == 0,
    "linear_num_value_heads %d is not a multiple of linear_num_key_heads %d", c.linear_num_value_heads,
    c.linear_num_key_heads)
  local share = c.rope.partial_rotary_factor or c.partial_rotary_factor
  check(type(share) == "number" and share > 0 and share <= 1,
    "partial_rotary_factor must be a number above 0 and at most 1, got %s", tostring(share))
  c.rope.partial_rotary_factor, c.rotary_dim = nil, math.floor(c.head_dim * share)
  c.qkv_bias, c.output_bias = c.attention_bias, c.attention_bias
  read_layer_types(c)
end

--- See CausalLM.mlp.
---@param c table<string, any>
---@param index integer from 1
---@return nn.Module
function Qwen3Next.mlp(c, index)
  if not qwen3_moe.is_sparse(c, index - 1) then return decoder.Mlp(c.hidden_size, c.intermediate_size) end
  return Mixture(c)
end

--- See CausalLM.layer.
---@param c table<string, any>
---@param index integer from 1
---@param mlp nn.Module
---@return nn.Module
function Qwen3Next.layer(c, index, mlp) return Layer(c, index, mlp) end

function Qwen3Next:init(raw, opts)
  qwen3_moe.Qwen3Moe.init(self, raw, opts)
  self.model.norm = gemma3.Norm(self.settings.hidden_size, self.settings.rms_norm_eps)
end

--- Returns what a tensor is that takes no part. See loading.
---@param name string
---@return string|boolean
function Qwen3Next:is_unread(name) -- luacheck: ignore 212
  return name:find "^mtp%." ~= nil and "multi-token prediction (mtp.*)"
end

return { Qwen3Next = Qwen3Next }
