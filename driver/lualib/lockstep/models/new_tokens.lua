--- Runs a decoder's layer on one new token of each sequence by two operators, in place of two dozen.
---
--- Reading a layer's weights displaces everything else from the caches, so the next operator finds neither its code nor
--- its inputs there. Generation therefore has one operator for a layer's attention and one for its MLP. Each calls the
--- kernels of its steps directly: see kernels/generation/new_tokens.cc.

local fused = require "lockstep.nn.fused"
local hooks = require "lockstep.nn.hooks"
local nn = require "lockstep.nn"

local M = {}

--- A function that takes the place of a layer's forward for new tokens.
---@alias models.NewTokens fun(x: torch.Tensor, pass: models.Pass): torch.Tensor, torch.Tensor?

--- Returns whether calling a module does what its class does, and nothing else. (One with a forward of its own does not
--- run in inference mode, and does not come here.)
local function is_plain(class, module) return getmetatable(module) == class and not hooks.has(module) end

--- Returns the weights and biases of linear layers, or nil unless all are plain. Biases are those of the first layers:
--- none may follow a layer that has none.
local function read_linears(...)
  local weights, biases = {}, {}
  for i, linear in ipairs { ... } do
    if not is_plain(nn.Linear, linear) then return nil end
    weights[i] = linear.weight
    if linear.bias then
      if #biases ~= i - 1 then return nil end
      biases[i] = linear.bias
    end
  end
  return weights, biases
end

--- Returns whether all tensors are on the CPU and have the dtype of the cached values. In autocast weights have
--- another dtype, so that layers run as they are: the operators do not follow autocast.
local function are_like(values, ...)
  for _, list in ipairs { ... } do
    for _, tensor in ipairs(list) do
      if tensor.dtype ~= values.dtype or tensor.device ~= "cpu" then return false end
    end
  end
  return true
end

--- Returns a function for the attention of a layer with its norm, or nil.
local function attention_of(kernels, decoder, layer, cache, settings)
  local attention, norm = layer.self_attn, layer.input_layernorm
  if not is_plain(decoder.Attention, attention) or not is_plain(nn.RMSNorm, norm) or attention.scale then return nil end
  if (settings.rotary_dim or settings.head_dim) ~= settings.head_dim then return nil end -- the kernel turns whole heads
  local weights, biases = read_linears(attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj)
  if not weights or not (#biases == 0 or #biases >= 3) then return nil end
  local head_norms = {}
  if attention.q_norm then
    for i, head_norm in ipairs { attention.q_norm, attention.k_norm } do
      if not is_plain(nn.RMSNorm, head_norm) or head_norm.eps ~= norm.eps then return nil end
      head_norms[i] = head_norm.weight
    end
  end
  local index, window, scale, eps = attention.index, attention.window, norm.weight, norm.eps
  if not are_like(cache.values[index], weights, biases, head_norms, { scale }) then return nil end
  return function(x, pass)
    return kernels.attention_of_new_tokens(x, scale, weights, biases, head_norms, eps, pass.cos, pass.sin,
      cache.keys[index], cache.values[index], cache.used, cache:first(window), cache.mask)
  end
end

--- Returns a function for the MLP of a layer with its norm and both sums, or nil.
local function mlp_of(kernels, decoder, layer, cache)
  local mlp, norm = layer.mlp, layer.post_attention_layernorm
  if not is_plain(decoder.Mlp, mlp) or not is_plain(nn.RMSNorm, norm) then return nil end
  local weights, biases = read_linears(mlp.gate_proj, mlp.up_proj, mlp.down_proj)
  if not weights or #biases % 3 ~= 0 then return nil end
  local scale, eps = norm.weight, norm.eps
  if not are_like(cache.values[layer.self_attn.index], weights, biases, { scale }) then return nil end
  return function(attended, x) return kernels.mlp_of_new_tokens(attended, x, scale, weights, biases, eps) end
end

--- Returns a function for each layer that these operators can replace. Returns none on GPUs, with nn.use_fused(false),
--- and for layers that are not as models.Layer made them: with adapters, float8 or hooks.
---@param model models.CausalLM
---@param cache models.Cache that has the prompts
---@return table<models.Layer, models.NewTokens>
function M.layers(model, cache)
  local decoder = require "lockstep.models.decoder" -- which requires this file
  local found, kernels = {}, fused.kernels_of("cpu")
  for _, layer in ipairs(kernels and model:decoder().layers or {}) do
    local attend = is_plain(decoder.Layer, layer) and attention_of(kernels, decoder, layer, cache, model.settings)
    if attend then
      local mlp = mlp_of(kernels, decoder, layer, cache)
      found[layer] = function(x, pass)
        local attended = attend(x, pass)
        if mlp then return mlp(attended, x) end
        return layer:after_attention(attended, x)
      end
    end
  end
  return found
end

return M
