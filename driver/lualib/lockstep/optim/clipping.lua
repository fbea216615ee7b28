--- The norm of gradients, and the number that clips them: for optim.clip_grad_norm, and for optimizer:step.

local core = require "lockstep.core"
local plain = require "lockstep.plain"
local precision = require "lockstep.optim.precision"
local spread = require "lockstep.nn.spread"
local torch = require "lockstep.torch"

local M = {}

--- Raises unless `max_norm` is a number above 0.
---@param what string what the number is, and the caller's name
---@param max_norm any
function M.check(what, max_norm)
  if type(max_norm) ~= "number" or max_norm <= 0 or max_norm ~= max_norm then
    core.raise(what .. " must be a number above 0, not " .. tostring(max_norm))
  end
end

--- Returns the gradients of an array of parameters. Raises where one of them is no tensor.
---@param name string of the caller
---@param params torch.Tensor[]
---@return torch.Tensor[]
function M.gradients(name, params)
  local grads = {}
  for i, p in ipairs(params) do
    plain.check(torch.is_tensor(p), "%s: parameter %d is a %s, not a tensor", name, i, type(p))
    grads[#grads + 1] = p.grad
  end
  return grads
end

--- Returns the joint norm of gradients, and the number to multiply them by so that it is at most `max_norm`. Both are
--- scalar tensors, in float32 for gradients of lower precision. Reads each gradient once. Without gradients the norm is
--- 0, and there is no number. Collective where the elements of a parameter lie on several ranks (nn.spread). For
--- torch.no_grad.
---@param params torch.Tensor[]
---@param grads torch.Tensor[] theirs
---@param max_norm number
---@param p_norm number which norm it is; math.huge: the largest magnitude
---@return torch.Tensor norm
---@return torch.Tensor? scale
function M.norm(params, grads, max_norm, p_norm)
  local has_low, has_double = false, false
  for _, grad in ipairs(grads) do
    has_low = has_low or precision.is_low(grad)
    has_double = has_double or grad.dtype == torch.float64
  end
  -- The norm of float16 gradients may be above float16's largest number, and would scale them to 0.
  local dtype = has_low and (has_double and torch.float64 or torch.float32) or nil
  local function norm_of(list)
    return torch.linalg_vector_norm(torch.stack(torch._foreach_norm(list, p_norm, dtype)), p_norm)
  end
  local norm = spread.gradient_norm(params, norm_of, p_norm)
  if #grads == 0 then return norm or torch.zeros({}) end
  if norm then
    norm = norm:to { device = grads[1].device, dtype = has_double and torch.float64 or torch.float32 }
  else
    norm = norm_of(grads)
  end
  return norm, torch.clamp(max_norm / (norm + 1e-6), { max = 1 })
end

--- Scales the gradients of parameters so that their joint norm is at most `max_norm`, and returns the norm before.
--- Collective where M.norm is.
---@param name string of the caller
---@param params torch.Tensor[]
---@param max_norm number
---@param p_norm number
---@return torch.Tensor
function M.clip(name, params, max_norm, p_norm)
  return torch.no_grad(function()
    local grads = M.gradients(name, params)
    local norm, scale = M.norm(params, grads, max_norm, p_norm)
    if scale then torch._foreach_mul_(grads, scale) end
    return norm
  end)
end

return M
