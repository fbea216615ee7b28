--- Parameters of layers, and models that are built before their weights exist.
---
---     local net = parameter.on_meta(Net, 64)       -- shapes and names, no memory
---     for _, place in ipairs(nn.parameter_places(net)) do
---       place.fields[place.name] = weights[place.name]:requires_grad_(true)
---     end

local core = require "lockstep.core"
local plain = require "lockstep.plain"
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
  plain.check(plain.is_whole(value, 1), "nn.%s: %s must be a whole number of at least 1, not %s", class, name, value)
  return value
end

--- Returns `dims` whole numbers of at least `least`, from one number or an array.
---@param class string of the layer
---@param name string of the argument
---@param value integer|integer[]
---@param dims integer
---@param least integer
---@return integer[]
function M.per_dim(class, name, value, dims, least)
  local list, ok = {}, type(value) ~= "table" or #value == dims
  for i = 1, dims do
    local n = type(value) == "table" and value[i] or value
    ok = ok and plain.is_whole(n, least)
    list[i] = n
  end
  if not ok then
    local given = type(value) == "table" and "{" .. table.concat(value, ", ") .. "}" or tostring(value)
    core.raise(string.format("nn.%s: %s must be a whole number of at least %d, or an array of %d of them, not %s",
      class, name, least, dims, given))
  end
  return list
end

--- Raises an error that names every difference unless `state` has a tensor of the same shape for each name of `own`,
--- and no other name.
---@param caller string
---@param state any
---@param own table<string, torch.Tensor>
function M.check_state(caller, state, own)
  plain.check(type(state) == "table", "%s: the state must be a table of tensors by name, not a %s", caller, type(state))
  local problems = {}
  for name, tensor in pairs(own) do
    local given = state[name]
    if not torch.is_tensor(given) then
      problems[#problems + 1] = name .. (given == nil and " is missing" or " is a " .. type(given) .. ", not a tensor")
    elseif tostring(given.shape) ~= tostring(tensor.shape) then
      problems[#problems + 1] = ("%s has shape %s, not %s"):format(name, tostring(given.shape), tostring(tensor.shape))
    end
  end
  for name in pairs(state) do
    if not own[name] then problems[#problems + 1] = tostring(name) .. " is not a name of this module" end
  end
  table.sort(problems)
  plain.check(#problems == 0, "%s: %s", caller, table.concat(problems, "; "))
end

--- Calls fn(...). Layers that are built inside have parameters on the device "meta": a shape without memory.
---@param fn function
---@param ... any
---@return any ...
function M.on_meta(fn, ...)
  local outer = device
  device = "meta"
  return plain.finally(function() device = outer end, fn, ...)
end

return M
