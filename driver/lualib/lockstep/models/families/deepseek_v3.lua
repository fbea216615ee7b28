--- DeepSeek-V3 (arXiv 2412.19437), R1, and Kimi-K2: queries, keys and values come from latents of low rank, and a part
--- of each head turns with its position (MLA). After the first layers a mixture of experts, of which one is shared by
--- all tokens, takes the place of the MLP. A router chooses groups of experts first, and a bias that no gradient
--- changes moves its choice.
---
--- Folders hold the experts one by one, in FP8 (models.quantized) or not. The layers that predict further tokens, after
--- the last one of num_hidden_layers, are passed over, as in transformers.

local config = require "lockstep.models.config"
local core = require "lockstep.core"
local decoder = require "lockstep.models.decoder"
local experts = require "lockstep.models.experts"
local nn = require "lockstep.nn"
local options = require "lockstep.options"
local parameter = require "lockstep.nn.parameter"
local plain = require "lockstep.plain"
local splits = require "lockstep.nn.splits"
local torch = require "lockstep.torch"

local NAME = "DeepseekV3ForCausalLM"

---@class models.DeepseekV3Attention: models.Attention
local Attention = nn.Module:subclass("DeepseekV3Attention")

function Attention:init(c, index)
  local hidden, heads, bias = c.hidden_size, c.num_attention_heads, { bias = c.attention_bias }
  local query = c.qk_nope_head_dim + c.qk_rope_head_dim
  self.index, self.window, self.scale, self.interleaved = index, false, c.attention_scale, c.rope_interleave
  self.still, self.turned, self.rank, self.value = c.qk_nope_head_dim, c.qk_rope_head_dim, c.kv_lora_rank, c.v_head_dim
  if c.q_lora_rank then
    self.q_a_proj = nn.Linear(hidden, c.q_lora_rank, bias)
    self.q_a_layernorm = nn.RMSNorm(c.q_lora_rank, { eps = 1e-6 })
    self.q_b_proj = nn.Linear(c.q_lora_rank, heads * query, { bias = false })
  else
    self.q_proj = nn.Linear(hidden, heads * query, { bias = false })
  end
  self.kv_a_proj_with_mqa = nn.Linear(hidden, c.kv_lora_rank + c.qk_rope_head_dim, bias)
  self.kv_a_layernorm = nn.RMSNorm(c.kv_lora_rank, { eps = 1e-6 })
  self.kv_b_proj = nn.Linear(c.kv_lora_rank, heads * (c.qk_nope_head_dim + c.v_head_dim), { bias = false })
  self.o_proj = nn.Linear(heads * c.v_head_dim, hidden, bias)
end

--- Turns pairs of neighbours, or pairs whose second number stands half a head further. The result has the latter order.
local function turn(self, x, pass)
  if self.interleaved then x = x:unflatten(-1, { -1, 2 }):transpose(-1, -2):flatten(-2) end
  return nn.rotate(x:contiguous(), pass.cos, pass.sin)
end

--- Returns x with zeros behind each head, which add nothing to scores or values.
local function pad(x, size)
  return size > x:size(-1) and torch.constant_pad_nd(x, { 0, size - x:size(-1) }) or x
end

function Attention:forward(x, pass)
  local split = { self.still, self.turned }
  local q = self.q_proj and self.q_proj(x) or self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x)))
  local tokens = q:size(0) -- sharding.tensor_parallel may split the tokens of x
  q = q:view(tokens, -1, self.still + self.turned)
  local q_still, q_turned = unpack(q:split(split, -1))
  local latent, k_turned = unpack(self.kv_a_proj_with_mqa(x):split({ self.rank, self.turned }, -1))
  local kv = self.kv_b_proj(self.kv_a_layernorm(latent:contiguous())):view(tokens, q:size(1), -1)
  local k_still, v = unpack(kv:split({ self.still, self.value }, -1))
  k_turned = splits.entered(self.kv_b_proj.weight, k_turned) -- all heads take it
  k_turned = turn(self, k_turned:unsqueeze(1), pass):expand(-1, q:size(1), -1)
  q = torch.cat({ q_still, turn(self, q_turned, pass) }, -1)
  -- A cache wants keys and values of one size.
  local size = math.max(q:size(-1), self.value)
  if not pass.takes_smaller_values then v = pad(v, size) end
  local y = pass.attend(pad(q, size), pad(torch.cat({ k_still, k_turned }, -1), size), v, self)
  return self.o_proj(y:narrow(-1, 0, self.value):reshape(tokens, -1))
end

---@class models.DeepseekV3Router: nn.Module
local Router = nn.Module:subclass("DeepseekV3TopkRouter")

function Router:init(c)
  self.weight = parameter.new({ c.n_routed_experts, c.hidden_size }, function(w) w:normal_(0, 0.02) end)
  self.e_score_correction_bias = torch.zeros { c.n_routed_experts } -- a buffer, always in float32
end

--- Returns the logits, in float32, and in float64 where the model is.
function Router:forward(x)
  local dtype = x.dtype == torch.float64 and torch.float64 or torch.float32
  return torch.linear(x:to(dtype), self.weight:to(dtype))
end

---@class models.DeepseekV3Mixture: models.Mixture
local Mixture = experts.Mixture:subclass("DeepseekV3MoE")

function Mixture:init(c)
  experts.Mixture.init(self, { hidden = c.hidden_size, intermediate = c.moe_intermediate_size,
    experts = c.n_routed_experts, per_token = c.num_experts_per_tok, normalize = c.norm_topk_prob })
  self.gate = Router(c)
  self.shared_experts = decoder.Mlp(c.hidden_size, c.moe_intermediate_size * c.n_shared_experts)
  self.groups, self.groups_per_token, self.factor = c.n_group, c.topk_group, c.routed_scaling_factor
end

--- See Mixture:route. A group counts as much as its two best experts.
---@param x torch.Tensor
---@return torch.Tensor shares
---@return torch.Tensor chosen
---@return torch.Tensor logits
function Mixture:route(x)
  local logits = self.gate(x)
  local scores = logits:sigmoid()
  local chosen = torch.no_grad(function()
    local biased = (scores + self.gate.e_score_correction_bias):view(x:size(0), self.groups, -1)
    local of_groups = (biased:topk(2, -1)):sum({ -1 })
    local _, groups = of_groups:topk(self.groups_per_token, -1)
    local is_out = torch.ones_like(of_groups):scatter(-1, groups, 0):to(torch.bool):unsqueeze(-1)
    local _, best = biased:masked_fill(is_out, -math.huge):flatten(1):topk(self.per_token, -1)
    return best
  end)
  local shares = scores:gather(-1, chosen)
  if self.normalize then shares = shares / (shares:sum({ -1 }, true) + 1e-20) end
  return shares * self.factor, chosen, logits
end

function Mixture:forward(x)
  local y, logits = experts.Mixture.forward(self, x)
  return y + self.shared_experts(x), logits
end

---@class models.DeepseekV3: models.CausalLM
local DeepseekV3 = decoder.CausalLM:subclass(NAME)
DeepseekV3.model_type = "deepseek_v3"
-- head_dim is that of the rotary part in transformers, which reads it nowhere else.
DeepseekV3.keys = decoder.keys { attention_bias = false, head_dim = 64, qk_head_dim = options.optional,
  moe_intermediate_size = 2048, n_shared_experts = 1, n_routed_experts = 256, num_local_experts = options.optional,
  routed_scaling_factor = 2.5, kv_lora_rank = 512, q_lora_rank = 1536, qk_rope_head_dim = 64, qk_nope_head_dim = 128,
  v_head_dim = 128, n_group = 8, topk_group = 4, num_experts_per_tok = 8, first_k_dense_replace = 3,
  norm_topk_prob = true, rope_interleave = true, output_router_logits = false,
  num_nextn_predict_layers = options.optional, num_mtp_layers = options.optional }

local function fail(message, ...) core.raise(("models: %s: " .. message):format(NAME, ...)) end

local function check(c)
  for _, key in ipairs { "n_routed_experts", "n_group", "topk_group", "num_experts_per_tok", "kv_lora_rank",
    "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim", "moe_intermediate_size", "n_shared_experts" } do
    config.check_whole(NAME, key, c[key])
  end
  local experts_of_group = c.n_routed_experts / c.n_group
  if experts_of_group % 1 ~= 0 or experts_of_group < 2 then
    fail("n_routed_experts %d must be at least 2 in each of n_group %d groups, and as many in each",
      c.n_routed_experts, c.n_group)
  elseif c.topk_group > c.n_group or c.num_experts_per_tok > c.topk_group * experts_of_group then
    fail("topk_group %d of %d groups of %d experts cannot give num_experts_per_tok %d", c.topk_group, c.n_group,
      experts_of_group, c.num_experts_per_tok)
  elseif c.num_key_value_heads ~= c.num_attention_heads then
    fail("num_key_value_heads %d must be num_attention_heads %d: each head has its own keys", c.num_key_value_heads,
      c.num_attention_heads)
  end
end

--- See CausalLM.read. YaRN also scales the scores.
---@param c table<string, any>
function DeepseekV3.read(c)
  c.n_routed_experts = c.num_local_experts or c.n_routed_experts
  check(c)
  c.rotary_dim = c.qk_rope_head_dim
  local scale, rope = (c.qk_nope_head_dim + c.qk_rope_head_dim) ^ -0.5, c.rope
  local all_dim = rope.rope_type ~= "default" and rope.mscale_all_dim or 0
  if all_dim ~= 0 and rope.factor > 1 then scale = scale * (0.1 * all_dim * math.log(rope.factor) + 1) ^ 2 end
  c.attention_scale = scale
end

--- See CausalLM.tensor_plan. Latents belong to all heads, so every rank computes them.
---@return table<string, "column"|"row"|"vocabulary">
function DeepseekV3.tensor_plan()
  return plain.copy(decoder.CausalLM.tensor_plan(), { ["layers.*.self_attn.q_b_proj"] = "column",
    ["layers.*.self_attn.kv_b_proj"] = "column", ["layers.*.mlp.shared_experts.gate_proj"] = "column",
    ["layers.*.mlp.shared_experts.up_proj"] = "column", ["layers.*.mlp.shared_experts.down_proj"] = "row" })
end

--- See CausalLM.mlp.
---@param c table<string, any>
---@param index integer from 1
---@return nn.Module
function DeepseekV3.mlp(c, index)
  if index <= c.first_k_dense_replace then return decoder.Mlp(c.hidden_size, c.intermediate_size) end
  return Mixture(c)
end

--- See CausalLM.layer.
---@param c table<string, any>
---@param index integer from 1
---@param mlp nn.Module
---@return nn.Module
function DeepseekV3.layer(c, index, mlp) return decoder.Layer(c, index, mlp, Attention(c, index)) end

--- Whether a tensor belongs to a layer after the last one. See loading.
---@param name string
---@return boolean
function DeepseekV3:is_unread(name)
  local layer = tonumber(name:match "^model%.layers%.(%d+)%.")
  return layer ~= nil and layer >= self.settings.num_hidden_layers
end

--- See CausalLM:layouts.
---@return table<string, torch.Tensor>[]
function DeepseekV3:layouts()
  local state = self:state_dict()
  return { experts.one_by_one(state), state }
end

return { DeepseekV3 = DeepseekV3 }
