--- Lua values as values of templates.
---
--- A table is converted when the template first looks into it: many tables, such as those of tools, only ever become
--- JSON, which is written from the Lua table itself.

local core = require "lockstep.core"
local limits = require "lockstep.text.jinja.limits"
local unicode = require "lockstep.text.jinja.unicode"
local values = require "lockstep.text.jinja.values"

jit.off(true, true) -- compiling traces through a template's closures takes longer than it saves

local M = {}

--- The largest depth of nested tables.
M.MAX_DEPTH = 128

local shapes -- of tables that came from JSON

--- Returns the path of a value: "messages[2].content". `value` is the table that it is in.
local function path_of(value, key)
  local steps = { key }
  while value do
    steps[#steps + 1] = value.key
    value = value.parent
  end
  local path = steps[#steps]
  for i = #steps - 1, 1, -1 do
    path = path .. (type(steps[i]) == "number" and ("[%d]"):format(steps[i]) or "." .. tostring(steps[i]))
  end
  return path
end

--- Returns whether a Lua table is an array: it has an element 1, or is empty and marked as one.
---@param object table
---@param shape lockstep.core.JsonShape?
---@return boolean
function M.is_list(object, shape)
  return object[1] ~= nil or shape ~= nil and shape.array == true and next(object) == nil
end

--- Returns the shape of a table that came from JSON.
---@param object table
---@return lockstep.core.JsonShape?
function M.shape_of(object) return shapes[object] end

--- Returns the keys of a Lua table in order, and how many: those of its shape first, the others sorted.
---@param object table
---@param shape lockstep.core.JsonShape?
---@param value table the value that stands for it, for messages
---@param keys table? gets the keys; default: a new table
---@return string[] keys
---@return integer n
function M.ordered_keys(object, shape, value, keys)
  local n, count = 0, 0
  keys = keys or {}
  for key in pairs(object) do
    if type(key) ~= "string" then
      values.fail(("%s has the key %s; expected strings, or 1 to n without holes"):format(path_of(value),
        tostring(key)))
    end
    count = count + 1
  end
  local known = shape and shape.keys
  for i = 1, known and #known or 0 do
    if object[known[i]] ~= nil then
      n = n + 1
      keys[n] = known[i]
    end
  end
  if n == count then return keys, n end
  local seen, rest = {}, {}
  for i = 1, n do seen[keys[i]] = true end
  for key in pairs(object) do
    if not seen[key] then rest[#rest + 1] = key end
  end
  table.sort(rest)
  for i = 1, #rest do keys[n + i] = rest[i] end
  return keys, count
end

--- Throws where an array has holes or other keys.
---@param list table
---@param value table the value that stands for it, for messages
---@return integer n
function M.check_list(list, value)
  local n, count = #list, 0
  for _ in pairs(list) do count = count + 1 end
  if count == n then return n end
  values.fail(("%s is an array with holes or with keys; put data.null where nothing is"):format(path_of(value)))
end

-- Values that wait --------------------------------------------------------------------------------------

local Waiting = {}

local function wait(object, parent, key)
  local is_list = object[1] ~= nil or M.is_list(object, shapes[object])
  return setmetatable({ kind = is_list and "list" or "dict", raw = object, parent = parent, key = key }, Waiting)
end

--- Returns how many tables a value is in. Throws where these are too many.
---@param value table
---@return integer
function M.depth_of(value)
  local depth, key = 0, value.key
  while value do
    depth, value = depth + 1, value.parent
  end
  if depth <= M.MAX_DEPTH then return depth end
  values.fail(("%s is nested more than %d deep, or contains itself"):format(key, M.MAX_DEPTH))
end

--- Converts what is under `key` of the table that `parent` stands for.
local function convert(value, parent, key, as_float)
  local t = type(value)
  if t == "string" then return value end
  if t == "table" then return wait(value, parent, key) end
  if t == "boolean" or value == values.none then return value end
  if t ~= "number" then return "<" .. t .. ">" end
  if as_float or value % 1 == 0 and (value > 2 ^ 53 or value < -2 ^ 53) then return values.float(value) end
  return value
end

local function fill_list(value, list, floats)
  local n = M.check_list(list, value)
  value.n = n
  for i = 1, n do
    local element = list[i]
    if type(element) == "table" then
      value[i] = wait(element, value, i)
    else
      value[i] = convert(element, value, i, floats and (floats == true or floats[i]))
    end
  end
end

local function fill_dict(value, object, shape)
  local keys, n = M.ordered_keys(object, shape, value, value)
  local map, floats = {}, shape and shape.floats
  value.n, value.map = n, map
  for i = 1, n do
    local key = keys[i]
    local element = object[key]
    if type(element) == "string" then
      map[key] = element
    else
      map[key] = convert(element, value, key, floats and floats[key])
    end
  end
end

--- Fills a value from its Lua table when something of it is first asked for.
function Waiting.__index(value, key)
  setmetatable(value, nil)
  local object = value.raw
  local shape = shapes[object]
  M.depth_of(value)
  value.raw = nil
  if value.kind == "list" then
    fill_list(value, object, shape and shape.floats)
  else
    fill_dict(value, object, shape)
  end
  return value[key]
end

-- Variables ---------------------------------------------------------------------------------------------

--- Wraps a Lua function. It gets and returns strings, numbers and booleans.
local function convert_function(name, fn)
  return { kind = "function", name = name, fn = function(args, n)
    for i = 1, n do
      if type(args[i]) == "table" then
        values.fail(("%s() takes strings, numbers and booleans, got a %s"):format(name, values.type_name(args[i])))
      end
    end
    local result = fn(unpack(args, 1, n))
    return result == nil and values.none or convert(result, nil, name .. "()")
  end }
end

--- Returns the path of a text that is not UTF-8 in `value`, and the byte; nil where all of it is UTF-8.
local function find_invalid(value, path, depth)
  if type(value) == "string" then
    local at = unicode.find_invalid(value)
    if at then return path, at end
  elseif type(value) == "table" and depth < M.MAX_DEPTH then
    for key, element in pairs(value) do
      local step = type(key) == "number" and ("[%d]"):format(key) or "." .. tostring(key)
      local found, at = find_invalid(element, path .. step, depth + 1)
      if not found then found, at = find_invalid(key, path .. step, depth) end
      if found then return found, at end
    end
  end
end

--- Throws where a rendered text is not UTF-8: names the variable that brought it.
---@param text string
---@param variables table<string, any>
function M.check_text(text, variables)
  if not unicode.find_invalid(text) then return end
  for name, value in pairs(variables) do
    local path, at = find_invalid(value, name, 0)
    if path then values.fail_at(0, ("%s is not UTF-8 at byte %d"):format(path, at)) end
  end
  values.fail_at(0, "the text is not UTF-8")
end

--- Converts the variables of a render.
---@param variables table<string, any>
---@return table
function M.variables(variables)
  shapes = core.json_shapes()
  limits.begin()
  local converted, shape = {}, shapes[variables]
  local floats = shape and shape.floats or {}
  for name, value in pairs(variables) do
    converted[name] = type(value) == "function" and convert_function(name, value)
      or convert(value, nil, name, floats[name])
  end
  return converted
end

return M
