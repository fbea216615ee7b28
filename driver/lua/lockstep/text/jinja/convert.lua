--- Lua values as values of templates.

local core = require "lockstep.core"
local unicode = require "lockstep.text.jinja.unicode"
local values = require "lockstep.text.jinja.values"

local M = {}

local MAX_DEPTH = 128

local shapes -- of tables that came from JSON

local convert

local function convert_text(text, path)
  local at = text:find("[\128-\255]") and unicode.find_invalid(text)
  if at then values.fail(("%s is not UTF-8 at byte %d"):format(path, at)) end
  return text
end

local function convert_list(list, shape, path, depth)
  local items, n = { kind = "list" }, #list
  local floats = shape and shape.floats
  for i = 1, n do
    local value = list[i]
    if floats and type(value) == "number" and (floats == true or floats[i]) then
      items[i] = values.float(value)
    elseif type(value) == "string" and not value:find("[\128-\255]") then
      items[i] = value
    else
      items[i] = convert(value, path, i, depth)
    end
  end
  items.n = n
  return items
end

local function sorted_rest(object, taken, path)
  local rest = {}
  for key in pairs(object) do
    if type(key) ~= "string" then
      values.fail(("%s has the key %s; expected strings, or 1 to n without holes"):format(path, tostring(key)))
    end
    if not taken[key] then rest[#rest + 1] = key end
  end
  table.sort(rest)
  return rest
end

local function convert_dict(object, shape, path, depth)
  local map = {}
  local dict, n = { kind = "dict", map = map }, 0
  local floats = shape and shape.floats
  local function add(key, value)
    n = n + 1
    dict[n] = convert_text(key, path)
    if floats and floats[key] and type(value) == "number" then
      map[key] = values.float(value)
    elseif type(value) == "string" and not value:find("[\128-\255]") then
      map[key] = value
    else
      map[key] = convert(value, path, key, depth)
    end
  end
  local taken = {}
  if shape and shape.keys then
    for _, key in ipairs(shape.keys) do
      taken[key] = true
      if object[key] ~= nil then add(key, object[key]) end
    end
  end
  for _, key in ipairs(sorted_rest(object, taken, path)) do add(key, object[key]) end
  dict.n = n
  return dict
end

--- Converts `value`, which is `key` of what `path` names.
convert = function(value, path, key, depth)
  local t = type(value)
  if t == "boolean" or value == values.none then return value end
  if t == "number" then
    if value % 1 == 0 and (value > 2 ^ 53 or value < -2 ^ 53) then return values.float(value) end
    return value
  end
  path = key and (type(key) == "number" and ("%s[%d]"):format(path, key) or path .. "." .. key) or path
  if t == "string" then return convert_text(value, path) end
  if t ~= "table" then return "<" .. t .. ">" end
  if depth >= MAX_DEPTH then
    values.fail(("%s is nested more than %d deep, or contains itself"):format(path, MAX_DEPTH))
  end
  local shape = shapes[value]
  if value[1] ~= nil or shape and shape.array and next(value) == nil then
    local list = convert_list(value, shape, path, depth + 1)
    local count = 0
    for _ in pairs(value) do count = count + 1 end
    if count ~= list.n then
      values.fail(("%s is an array with holes or with keys; put data.null where nothing is"):format(path))
    end
    return list
  end
  return convert_dict(value, shape, path, depth + 1)
end

--- Wraps a Lua function. It gets and returns strings, numbers and booleans.
local function convert_function(name, fn)
  return { kind = "function", name = name, fn = function(args, n)
    for i = 1, n do
      if type(args[i]) == "table" then
        values.fail(("%s() takes strings, numbers and booleans, got a %s"):format(name, values.type_name(args[i])))
      end
    end
    local result = fn(unpack(args, 1, n))
    return result == nil and values.none or convert(result, name .. "()", nil, 0)
  end }
end

--- Converts the variables of a render.
---@param variables table<string, any>
---@return table
function M.variables(variables)
  shapes = core.json_shapes()
  values.position.line = 0
  local converted = {}
  for name, value in pairs(variables) do
    if type(value) == "function" then
      converted[name] = convert_function(name, value)
    else
      converted[name] = convert(value, name, nil, 0)
    end
  end
  return converted
end

return M
