--- Qwen3-MoE (arXiv 2505.09388): Qwen3 with a mixture of experts in place of the MLP of most layers.
---
--- In memory the experts of a layer are two tensors, mlp.experts.gate_up_proj and down_proj. On disk each expert has
--- its own, mlp.experts.7.gate_proj.weight; folders with packed experts are read, too, in either orientation.

local decoder = require "lockstep.models.decoder"
local experts = require "lockstep.models.experts"
local options = require "lockstep.options"

---@class models.Qwen3Moe: models.CausalLM
local Qwen3Moe = decoder.CausalLM:subclass("Qwen3MoeForCausalLM")
Qwen3Moe.model_type = "qwen3_moe"
Qwen3Moe.keys = decoder.keys { attention_bias = false, use_sliding_window = false, sliding_window = 4096,
  max_window_layers = 28, decoder_sparse_step = 1, mlp_only_layers = {}, moe_intermediate_size = options.required,
  num_experts = options.optional, num_local_experts = options.optional, num_experts_per_tok = options.required,
  norm_topk_prob = false, output_router_logits = false, router_aux_loss_coef = 0.001 }

--- See CausalLM.read.
---@param c table<string, any>
function Qwen3Moe.read(c)
  c.qk_norm, c.qkv_bias, c.output_bias = true, c.attention_bias, c.attention_bias
  c.num_experts = c.num_experts or c.num_local_experts or 128
  if c.use_sliding_window then
    c.windows = {}
    for i = 1, c.num_hidden_layers do c.windows[i] = c.sliding_window or false end
  end
end

--- Whether a layer has experts, by its index from 0.
---@param c table<string, any>
---@param index integer
---@return boolean
local function is_sparse(c, index)
  for _, dense in ipairs(c.mlp_only_layers) do
    if dense == index then return false end
  end
  return c.num_experts > 0 and (index + 1) % c.decoder_sparse_step == 0
end

--- See CausalLM.mlp.
---@param c table<string, any>
---@param index integer from 1
---@return nn.Module
function Qwen3Moe.mlp(c, index)
  if not is_sparse(c, index - 1) then return decoder.Mlp(c.hidden_size, c.intermediate_size) end
  return experts.Mixture { hidden = c.hidden_size, intermediate = c.moe_intermediate_size,
    experts = c.num_experts, per_token = c.num_experts_per_tok, normalize = c.norm_topk_prob }
end

--- See CausalLM:balance_loss.
---@param router_logits torch.Tensor[] [tokens, experts] of each layer with experts
---@return torch.Tensor?
function Qwen3Moe:balance_loss(router_logits)
  local c, before = self.settings, self.stage_input and self.stage_input.carry
  if not c.output_router_logits or #router_logits == 0 and not before then return nil end
  return experts.balance_loss(router_logits, c.num_experts_per_tok, before) * c.router_aux_loss_coef
end

--- Returns the number of elements of balance_statistics; nil where there is no balance loss.
---@return integer?
function Qwen3Moe:balance_size()
  local c = self.settings
  return c.output_router_logits and c.num_experts > 0 and 2 * c.num_experts + 1 or nil
end

--- Returns what the balance loss of these layers and those before is computed from, for the next stage of a pipeline.
---@param router_logits torch.Tensor[]
---@param before torch.Tensor?
---@param like torch.Tensor the hidden states
---@return torch.Tensor # [balance_size] float64 if `like` is, else float32
function Qwen3Moe:balance_statistics(router_logits, before, like)
  local c = self.settings
  return experts.statistics(router_logits, c.num_experts_per_tok, c.num_experts, before, like)
end

--- See CausalLM:layouts.
---@return table<string, torch.Tensor>[]
function Qwen3Moe:layouts()
  local state = self:state_dict()
  return { experts.one_by_one(state), state, experts.transposed(state) }
end

return { Qwen3Moe = Qwen3Moe, is_sparse = is_sparse }
