--- Compares gradients with finite differences.

local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local M = {}

--- Fails unless the gradient of fn at `x`, float64, is what central differences give.
---@param fn fun(x: torch.Tensor): torch.Tensor of one element
---@param x torch.Tensor
function M.check(fn, x)
  local point = x:detach():clone():requires_grad_(true)
  fn(point):backward()
  local step, numeric = 1e-6, torch.zeros_like(x):reshape(-1)
  for i = 0, x:numel() - 1 do
    local function at(change)
      local moved = x:detach():clone()
      local flat = moved:view(-1)
      flat[i] = flat[i]:item() + change
      return fn(moved):item()
    end
    numeric[i] = (at(step) - at(-step)) / (2 * step)
  end
  t.near(point.grad:reshape(-1), numeric, 1e-7, "gradient: ")
end

return M
