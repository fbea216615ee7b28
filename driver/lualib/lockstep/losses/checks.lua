--- Checks of what losses are given. Private to the library.

local core = require "lockstep.core"
local masks = require "lockstep.losses.mask"
local torch = require "lockstep.torch"

local M = {}

--- Throws an error that names the loss.
---@param caller string the function of losses: "grpo"
---@param message string a format
---@param ... any its values
function M.fail(caller, message, ...) core.raise("losses." .. caller .. ": " .. message:format(...)) end

--- Returns the dtype and the shape of a tensor, or the type of another value, for messages.
---@param value any
---@return string
function M.describe(value)
  if not torch.is_tensor(value) then return "a " .. type(value) end
  return tostring(value.dtype):gsub("^torch%.", "") .. " " .. tostring(value.shape)
end

--- Checks a tensor of numbers with the shape of `like`, or of one dimension.
---@param caller string the function of losses: "grpo"
---@param name string of the input
---@param x any
---@param like torch.Tensor?
function M.tensor(caller, name, x, like)
  if not torch.is_tensor(x) or not x:is_floating_point() then
    M.fail(caller, "%s must be a tensor of floating-point numbers, got %s", name, M.describe(x))
  end
  if like and tostring(x.shape) ~= tostring(like.shape) then
    M.fail(caller, "%s must have shape %s, got %s", name, tostring(like.shape), tostring(x.shape))
  end
  if not like and x:dim() ~= 1 then M.fail(caller, "%s must have one dimension, got %s", name, tostring(x.shape)) end
  if not like and x.dtype ~= torch.float32 and x.dtype ~= torch.float64 then
    M.fail(caller, "%s must be float32 or float64, got %s: a difference of two log-probabilities needs the digits",
      name, M.describe(x))
  end
end

--- Returns where the mask is 0, as booleans on the device of `like`, and how many elements count.
---@param caller string the function of losses: "grpo"
---@param name string of the input
---@param mask torch.Tensor?
---@param like torch.Tensor
---@return torch.Tensor # bool [T]
---@return integer
function M.read_mask(caller, name, mask, like)
  local tokens = like:size(0)
  if mask == nil then return torch.zeros({ tokens }, { dtype = torch.bool, device = like.device }), tokens end
  if not torch.is_tensor(mask) or mask:dim() ~= 1 or mask:size(0) ~= tokens then
    M.fail(caller, "%s must have shape {%d}, got %s", name, tokens, M.describe(mask))
  end
  local left_out = masks.left_out(mask, ("losses.%s: %s"):format(caller, name))
  return left_out:to(like.device), tokens - left_out:sum():item()
end

--- Checks that a value is one of a list.
---@param caller string the function of losses: "grpo"
---@param name string of the input
---@param value any
---@param known string[]
function M.choice(caller, name, value, known)
  for _, one in ipairs(known) do
    if value == one then return end
  end
  local nearest = type(value) == "string" and core.nearest(value, known)
  M.fail(caller, '%s must be one of %s, got "%s"%s', name, table.concat(known, ", "), tostring(value),
    nearest and ('; did you mean "%s"?'):format(nearest) or "")
end

--- Checks a number by what was computed of it.
---@param caller string the function of losses: "grpo"
---@param name string of the input
---@param value any
---@param holds boolean
---@param expected string
function M.number(caller, name, value, holds, expected)
  if not holds then M.fail(caller, "%s must be %s, got %s", name, expected, tostring(value)) end
end

return M
