--- Copies of modules.

local plain = require "lockstep.plain"
local torch = require "lockstep.torch"

---@class nn.copy
local M = {}

local FIELDS, HOOKS = "_fields", "_forward_hooks"

--- Tensors that the original shares, the copy shares too. Tables with a metatable are not modules' own, and stay.
local function copy_of(value, seen)
  if seen[value] ~= nil then return seen[value] end
  if torch.is_tensor(value) then
    seen[value] = value:detach():clone():requires_grad_(value.requires_grad)
  elseif type(value) == "table" and (rawget(value, FIELDS) ~= nil or getmetatable(value) == nil) then
    local copy = {}
    seen[value] = copy
    for key, inner in next, value do
      if key ~= HOOKS then copy[key] = copy_of(inner, seen) end
    end
    setmetatable(copy, getmetatable(value))
  else
    return value
  end
  return seen[value]
end

--- Returns a copy of a module with its own parameters, buffers and submodules, as copy.deepcopy does. The copy has no
--- gradients and no forward hooks.
---
---     local average = nn.copy(model):requires_grad_(false)
---@generic T: nn.Module
---@param module T
---@return T
function M.copy(module)
  plain.check(type(module) == "table" and rawget(module, FIELDS) ~= nil,
    "nn.copy: expected a module, not a %s", type(module))
  return copy_of(module, {})
end

return M
