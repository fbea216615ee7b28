--- Masks that say which tokens have a loss.

local core = require "lockstep.core"
local torch = require "lockstep.torch"

local M = {}

--- Returns where a mask is 0 or false, as booleans on its device. Throws where it holds another value than 0, 1, true
--- and false: as booleans 0.5 and NaN would count as 1.
---@param mask torch.Tensor [T]
---@param name string of the mask, for messages: "losses.grpo: loss_mask"
---@return torch.Tensor # bool [T]
function M.left_out(mask, name)
  if mask.dtype == torch.bool then return mask:logical_not() end
  local left_out = mask:eq(0)
  local wrong = left_out:eq(mask:eq(1)) -- neither 0 nor 1
  if wrong:any():item() then
    local position = wrong:nonzero()[{ 0, 0 }]:item()
    core.raise(("%s holds %g at position %d; each element must be 0, 1, true or false"):format(name,
      mask[position]:item(), position))
  end
  return left_out
end

return M
