--- Lua values as values of templates.
---
--- A table is converted when the template first looks into it: many tables, such as those of tools, only ever become
--- JSON, which is written from the Lua table itself.

local core = require "lockstep.core"
local limits = require "lockstep.text.jinja.limits"
local plain = require "lockstep.plain"
local unicode = require "lockstep.text.jinja.unicode"
local values = require "lockstep.text.jinja.values"

jit.off(true, true) -- compiling traces of a template takes longer than it saves

local M = {}

--- The largest depth of nested tables.
M.MAX_DEPTH = 128

local none = values.none

local shapes -- of tables that came from JSON

--- Returns the key under which `parent`, a value or the name of a variable, holds a value.
local function key_of(value, parent)
  if type(parent) == "string" then return parent end
  for key, element in pairs(parent.kind == "list" and parent or parent.map) do
    if element == value then return key end
  end
end

--- Returns the path of a value: "messages[2].content".
local function path_of(value)
  local path = ""
  while type(value) == "table" do
    local parent = value.parent
    local key = key_of(value, parent)
    path = (type(key) == "number" and ("[%d]"):format(key) or "." .. tostring(key)) .. path
    value = parent
  end
  return path:sub(2)
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

local Waiting, Keyless = {}, {}

--- `parent` is the value that holds this one, or the name of a variable.
local function wait(object, parent)
  if object[1] ~= nil or M.is_list(object, shapes[object]) then
    return setmetatable({ kind = "list", raw = object, parent = parent, n = nil }, Waiting)
  end
  return setmetatable({ kind = "dict", raw = object, parent = parent, map = nil }, Waiting)
end

--- Returns how many tables a value is in. Throws where these are too many.
---@param value table
---@return integer
function M.depth_of(value)
  local depth, outer = 0, value
  while type(outer) == "table" do
    depth, outer = depth + 1, outer.parent
  end
  if depth <= M.MAX_DEPTH then return depth end
  values.fail(("%s is nested more than %d deep, or contains itself"):format(key_of(value, value.parent), M.MAX_DEPTH))
end

--- Returns the text that stands for a tensor or another object. Throws where `parent` holds what has no meaning to a
--- template, such as a function.
---@param value any
---@param parent table|string the value that holds it, or the name of a variable
---@return string
function M.stand_in(value, parent)
  local t = type(value)
  if t == "userdata" then return "<userdata>" end
  values.fail(("%s holds a %s; expected a string, a number, a boolean, a table or a tensor"):format(
    type(parent) == "string" and parent or path_of(parent), t))
end

--- Converts what `parent` holds.
local function convert(value, parent, as_float)
  local t = type(value)
  if t == "string" then return value end
  if t == "table" then return wait(value, parent) end
  if t == "boolean" or value == none then return value end
  if t ~= "number" then return M.stand_in(value, parent) end
  if as_float or value % 1 == 0 and (value > 2 ^ 53 or value < -2 ^ 53) then return values.float(value) end
  return value
end

local function fill_list(value, list, floats)
  local n = M.check_list(list, value)
  value.n = n
  for i = 1, n do
    local element = list[i]
    if type(element) == "table" then
      value[i] = wait(element, value)
    else
      value[i] = convert(element, value, floats and (floats == true or floats[i]))
    end
  end
end

--- Returns the items of a dict. The Lua table itself holds them where none needs another form: nothing in a template
--- changes a dict.
local function items_of(value, object, floats)
  local map = object
  for key, element in pairs(object) do
    local t = type(element)
    if type(key) ~= "string" then M.ordered_keys(object, nil, value) end -- raises the error
    if t ~= "string" and t ~= "boolean" and element ~= none then
      if map == object then map = plain.copy(object) end
      map[key] = convert(element, value, floats and floats[key])
    end
  end
  return map
end

--- Fills a value from its Lua table when something of it is first asked for; a dict's keys wait for longer.
function Waiting.__index(value, key)
  local object = value.raw
  local shape = shapes[object]
  local is_list = value.kind == "list"
  setmetatable(value, not is_list and Keyless or nil)
  M.depth_of(value)
  if is_list then
    fill_list(value, object, shape and shape.floats)
    return value[key]
  end
  value.map = items_of(value, object, shape and shape.floats)
  return value[key]
end

--- Fills in the keys of a dict.
function Keyless.__index(value, key)
  if key ~= "n" and type(key) ~= "number" then return nil end
  setmetatable(value, nil)
  local object, _ = value.raw, nil
  _, value.n = M.ordered_keys(object, shapes[object], value, value)
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
    local ok, result = pcall(fn, unpack(args, 1, n))
    if not ok and type(result) == "string" then values.fail(("%s() failed: %s"):format(name, result)) end
    if not ok then error(result, 0) end
    return result == nil and none or convert(result, name .. "()")
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

--- Begins a rendering.
function M.begin()
  shapes = core.json_shapes()
  limits.begin()
end

--- Converts a variable of a rendering; nil becomes `missing`.
---@param variables table<string, any>
---@param name string
---@param missing any
---@return any
function M.variable(variables, name, missing)
  local value = variables[name]
  if type(value) == "string" then return value end
  if value == nil then return missing end
  if type(value) == "function" then return convert_function(name, value) end
  local shape = shapes[variables]
  return convert(value, name, shape and shape.floats and shape.floats[name])
end

return M
