--- Mixtral (arXiv 2401.04088): Mistral with a mixture of experts in each layer.
---
--- On disk a layer's mixture is block_sparse_moe, and each expert has w1 (gate), w3 (up) and w2 (down). In memory it is
--- mlp, with two tensors for all experts, as in Qwen3-MoE; folders with such packed experts are read, too.

local config = require "lockstep.models.config"
local decoder = require "lockstep.models.decoder"
local experts = require "lockstep.models.experts"
local options = require "lockstep.options"
local qwen3_moe = require "lockstep.models.qwen3_moe"
local plain = require "lockstep.plain"

---@class models.Mixtral: models.CausalLM
local Mixtral = decoder.CausalLM:subclass("MixtralForCausalLM")
Mixtral.model_type = "mixtral"
Mixtral.keys = decoder.keys { num_key_value_heads = 8, rms_norm_eps = 1e-5, rope_theta = 1e6,
  sliding_window = options.optional, num_experts_per_tok = 2, num_local_experts = 8, output_router_logits = false,
  router_aux_loss_coef = 0.001, router_jitter_noise = 0 }

--- See CausalLM.read.
---@param c table<string, any>
function Mixtral.read(c)
  plain.check(c.router_jitter_noise == 0,
    'models: MixtralForCausalLM: "router_jitter_noise" is %s; only 0 is supported', tostring(c.router_jitter_noise))
  for _, key in ipairs { "num_experts_per_tok", "num_local_experts" } do
    config.check_whole("MixtralForCausalLM", key, c[key])
  end
  c.num_experts = c.num_local_experts -- for balance_loss
  c.use_sliding_window, c.max_window_layers = true, 0
  c.windows = config.windows(c)
end

--- See CausalLM.mlp.
---@param c table<string, any>
---@return nn.Module
function Mixtral.mlp(c)
  return experts.Mixture { hidden = c.hidden_size, intermediate = c.intermediate_size,
    experts = c.num_local_experts, per_token = c.num_experts_per_tok, normalize = true }
end

for _, name in ipairs { "balance_loss", "balance_size", "balance_statistics" } do
  Mixtral[name] = qwen3_moe.Qwen3Moe[name]
end

local NUMBERS = { gate_proj = "w1", up_proj = "w3", down_proj = "w2" }

--- Returns the state with Mixtral's names: block_sparse_moe.experts.7.w1.weight.
local function renamed(state)
  local result = {}
  for name, tensor in pairs(state) do
    local new = name:gsub("%.mlp%.(experts%.%d+%.)([%a_]+)%.weight$", function(expert, which)
      return ".block_sparse_moe." .. expert .. NUMBERS[which] .. ".weight"
    end):gsub("%.mlp%.gate%.", ".block_sparse_moe.gate.")
    result[new] = tensor
  end
  return result
end

--- See CausalLM:layouts.
---@return table<string, torch.Tensor>[]
function Mixtral:layouts()
  local state = self:state_dict()
  return { renamed(experts.one_by_one(state)), state }
end

return { Mixtral = Mixtral }
