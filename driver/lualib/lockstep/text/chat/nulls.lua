--- Tables without the keys whose value is null. Rows of Parquet files have every key of their type, and templates ask
--- which keys there are.

local core = require "lockstep.core"

local M = {}

--- Returns a value whose tables lack keys with null, also inside lists. Elements of lists stay. Tables that change are
--- copies, whose keys keep their order.
---@param value any
---@param as_it_is string? the key of values that stay as they are
---@return any
function M.dropped(value, as_it_is)
  if type(value) ~= "table" then return value end
  local is_list, copy = value[1] ~= nil, nil
  for key, element in pairs(value) do
    local new = element
    if element == core.null and not is_list then
      new = nil
    elseif key ~= as_it_is then
      new = M.dropped(element, as_it_is)
    end
    if new ~= element then
      if not copy then
        copy = {}
        for name, own in pairs(value) do copy[name] = own end
      end
      copy[key] = new
    end
  end
  if not copy then return value end
  local shapes = core.json_shapes()
  local shape, keys = shapes[value], nil
  for _, key in ipairs(shape and shape.keys or {}) do
    keys = keys or {}
    if copy[key] ~= nil then keys[#keys + 1] = key end
  end
  if shape then shapes[copy] = { array = shape.array, keys = keys, floats = shape.floats } end
  return copy
end

return M
