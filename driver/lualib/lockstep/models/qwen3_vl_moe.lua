--- Qwen3-VL with a mixture of experts in the text model. On disk the experts of a layer are two tensors, transposed.

local core = require "lockstep.core"
local decoder = require "lockstep.models.decoder"
local experts = require "lockstep.models.experts"
local options = require "lockstep.options"
local qwen3_moe = require "lockstep.models.qwen3_moe"
local qwen3_vl = require "lockstep.models.qwen3_vl"
local vision_language = require "lockstep.models.vision_language"

---@class models.Qwen3VLMoe: models.Qwen3VL
local Qwen3VLMoe = qwen3_vl.Qwen3VL:subclass("Qwen3VLMoeForConditionalGeneration")
Qwen3VLMoe.model_type = "qwen3_vl_moe"
Qwen3VLMoe.keys = decoder.keys { attention_bias = false, decoder_sparse_step = 1, mlp_only_layers = {},
  moe_intermediate_size = options.required, num_experts = options.optional, num_local_experts = options.optional,
  num_experts_per_tok = options.required, norm_topk_prob = true, output_router_logits = false,
  router_aux_loss_coef = 0.001, sliding_window = options.optional }
for _, name in ipairs { "mlp", "balance_loss", "balance_size", "balance_statistics" } do
  Qwen3VLMoe[name] = qwen3_moe.Qwen3Moe[name]
end

--- See CausalLM.read.
---@param c table<string, any>
function Qwen3VLMoe.read(c)
  if not c.norm_topk_prob or c.sliding_window then
    core.raise("models: Qwen3VLMoe: norm_topk_prob must be true and sliding_window null, as transformers computes it")
  end
  c.num_experts = c.num_experts or c.num_local_experts or 60
  c.qk_norm, c.qkv_bias, c.output_bias = true, c.attention_bias, c.attention_bias
  vision_language.read(Qwen3VLMoe, c)
end

--- See CausalLM:layouts.
---@return table<string, torch.Tensor>[]
function Qwen3VLMoe:layouts()
  local state = self:state_dict()
  return { experts.transposed(state), state, experts.one_by_one(state) }
end

return { Qwen3VLMoe = Qwen3VLMoe }
