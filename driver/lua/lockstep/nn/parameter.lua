--- Parameters of layers, and models that are built before their weights exist.
---
---     local net = parameter.on_meta(Net, 64)       -- shapes and names, no memory
---     for _, place in ipairs(nn.parameter_places(net)) do
---       place.fields[place.name] = weights[place.name]:requires_grad_(true)
---     end

local core = require "lockstep.core"
local torch = require "lockstep.torch"

local M = {}

local device = "cpu"

--- Returns a parameter of this size. Calls fill(tensor) to set its first values, unless it has no memory.
---@param size integer[]
---@param fill fun(tensor: torch.Tensor)
---@return torch.Tensor # float32, requires grad
function M.new(size, fill)
  local tensor = torch.empty(size, { device = device })
  if device ~= "meta" then fill(tensor) end
  return tensor:requires_grad_(true)
end

--- Returns the value. Throws unless it is a whole number of at least 1.
---@param class string of the layer, "Linear"
---@param name string of the argument
---@param value any
---@return integer
function M.positive(class, name, value)
  if type(value) ~= "number" or value < 1 or value % 1 ~= 0 then
    core.raise(string.format("nn.%s: %s must be a whole number of at least 1, not %s", class, name, tostring(value)))
  end
  return value
end

--- Calls fn(...). Layers that are built inside have parameters on the device "meta": a shape without memory.
---@param fn function
---@param ... any
---@return any ...
function M.on_meta(fn, ...)
  local outer = device
  device = "meta"
  local function finish(ok, ...)
    device = outer
    if not ok then error((...), 0) end
    return ...
  end
  return finish(pcall(fn, ...))
end

return M
