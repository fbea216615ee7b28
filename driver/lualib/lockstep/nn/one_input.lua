--- Calls several layers that read one input. The input's gradient is a sum with one term for each layer. Autograd
--- writes each term as a tensor of the input's size, and reads all of them again to add them. Here a single node of
--- autograd adds each term where it is computed: see Linears and RmsNormAndInput in kernels/kernels.h.
---
---     local q, k, v = one_input.linears(x, self.q_proj, self.k_proj, self.v_proj)
---     local normalised, x = one_input.norm(self.input_layernorm, x)
---
--- Layers are called one by one where one of them is not plain: where it has an adapter or hooks, is in float8 or few
--- bits, or is divided over ranks. Private to the library.

local fused = require "lockstep.nn.fused"
local hooks = require "lockstep.nn.hooks"
local nn = require "lockstep.nn"

local M = {}

--- Returns whether calling a module does what its class does, and nothing else.
---@param class table
---@param module nn.Module
---@return boolean
function M.is_plain(class, module)
  return getmetatable(module) == class and not hooks.has(module) and nn.fields(module).forward == nil
end

--- Returns the weights and biases of linear layers, or nil unless all are plain and all or none have a bias.
local function read(...)
  local weights, biases, count = {}, {}, select("#", ...)
  for i = 1, count do
    local layer = select(i, ...)
    if not M.is_plain(nn.Linear, layer) then return nil end
    local fields = nn.fields(layer)
    weights[i] = fields.weight
    if fields.bias then
      if #biases ~= i - 1 then return nil end
      biases[i] = fields.bias
    end
  end
  if #biases > 0 and #biases < count then return nil end
  return weights, biases
end

local function call_each(x, layer, ...)
  if select("#", ...) == 0 then return layer(x) end
  return layer(x), call_each(x, ...)
end

--- Calls two or three linear layers with one input.
---@param x torch.Tensor [..., in]
---@param ... nn.Module
---@return torch.Tensor ... [..., out], the result of each layer
function M.linears(x, ...)
  local weights, biases = read(...)
  local results = weights and fused.linears(x, weights, biases)
  if results then return unpack(results) end
  return call_each(x, ...)
end

--- Calls a norm, and returns its input for what else reads it.
---@param norm nn.Module
---@param x torch.Tensor [..., size]
---@return torch.Tensor normalised [..., size]
---@return torch.Tensor x
function M.norm(norm, x)
  if not M.is_plain(nn.RMSNorm, norm) then return norm(x), x end
  local normalised, same = fused.rms_norm_and_input(x, norm.weight, norm.eps)
  if normalised then return normalised, same end
  return norm(x), x
end

return M
