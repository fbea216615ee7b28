--- Attributes, items, slices and calls of values.

local limits = require "lockstep.text.jinja.limits"
local methods = require "lockstep.text.jinja.methods"
local unicode = require "lockstep.text.jinja.unicode"
local values = require "lockstep.text.jinja.values"

jit.off(true, true) -- compiling traces of a template takes longer than it saves

local M = {}

local none = values.none
local fail, type_name = values.fail, values.type_name

-- Values that stand for what is not there, by the owner's type and the name. Emptied when they are many.
local MAX_ABSENT = 1024
local absent, num_absent = {}, 0

--- Returns the undefined value of an attribute or item that a value lacks.
local function undefined_item(object, name)
  local owner = type_name(object)
  local names = absent[owner]
  if not names then
    names = {}
    absent[owner] = names
  end
  local key = type(name) == "string" and name or values.repr(name)
  local value = names[key]
  if not value then
    value = values.undefined(type(name) == "string" and ("a %s has no attribute or item %s"):format(owner,
      values.repr(name)) or ("a %s has no item %s"):format(owner, values.repr(name)))
    if num_absent == MAX_ABSENT then
      names, num_absent = {}, 0
      absent = { [owner] = names }
    end
    names[key], num_absent = value, num_absent + 1
  end
  return value
end

-- The class of methods that a value has.
local CLASSES = { list = "list", tuple = "tuple", dict = "dict", markup = "str", range = "tuple" }

local function class_of(value)
  local t = type(value)
  if t == "string" then return "str" end
  return t == "table" and CLASSES[value.kind] or nil
end

--- Returns the method of a value, bound to it; nil where its class has none of that name.
local function bound_method(object, name)
  local class = class_of(object)
  if not class or not methods.has(class, name) then return nil end
  return { kind = "method", object = object, name = name, class = class }
end

local LOOP = {
  index = function(loop) return loop.i end,
  index0 = function(loop) return loop.i - 1 end,
  revindex = function(loop) return loop.n - loop.i + 1 end,
  revindex0 = function(loop) return loop.n - loop.i end,
  first = function(loop) return loop.i == 1 end,
  last = function(loop) return loop.i == loop.n end,
  length = function(loop) return loop.n end,
  depth = function() return 1 end,
  depth0 = function() return 0 end,
  previtem = function(loop)
    if loop.i == 1 then return values.undefined("there is no previous item") end
    return loop.items[loop.before + loop.i - 1]
  end,
  nextitem = function(loop)
    if loop.i == loop.n then return values.undefined("there is no next item") end
    return loop.items[loop.before + loop.i + 1]
  end,
}

local LOOP_METHODS = { cycle = true, changed = true }

--- Returns `object.name`. Methods come before the items of a dict, as in Python.
---@param object any
---@param name string
---@return any
function M.attribute(object, name)
  if type(object) == "table" then
    local kind = object.kind
    if kind == "dict" then
      if methods.dict[name] == nil then
        local value = object.map[name]
        if value ~= nil then return value end
      end
    elseif kind == "namespace" then
      local value = object.map[name]
      if value ~= nil then return value end
    elseif kind == "loop" then
      if LOOP[name] then return LOOP[name](object) end
      if LOOP_METHODS[name] then return { kind = "method", object = object, name = name, class = "loop" } end
    elseif kind == "undefined" then
      values.fail_undefined(object)
    elseif kind == "macro" and name == "name" then
      return object.signature.name
    end
  end
  return bound_method(object, name) or undefined_item(object, name)
end

--- Returns an index as an integer; nil for any other value.
local function index_of(value)
  if type(value) == "number" and value % 1 == 0 then return value end
  if type(value) == "boolean" then return value and 1 or 0 end
end

--- Returns `object[key]`. The items of a dict come before methods.
---@param object any
---@param key any
---@return any
function M.item(object, key)
  local t = type(object)
  if t == "table" then
    local kind = object.kind
    if kind == "dict" then
      local value
      if type(key) == "string" then
        value = object.map[key]
      else
        if type(key) == "table" and key.kind == "undefined" then return undefined_item(object, none) end
        value = object.map[values.key_of(key)]
      end
      if value ~= nil then return value end
    elseif kind == "list" or kind == "tuple" or kind == "range" then
      local index = index_of(key)
      if index then
        if index < 0 then index = index + object.n end
        if index >= 0 and index < object.n then return object[index + 1] end
      end
    elseif kind == "undefined" then
      values.fail_undefined(object)
    elseif kind == "markup" and index_of(key) then
      local character = M.item(object.text, key)
      return type(character) == "string" and values.markup(character) or character
    end
  elseif t == "string" then
    local index = index_of(key)
    if index then
      local is_ascii = unicode.is_ascii(object)
      local characters = not is_ascii and unicode.characters(object)
      local n = is_ascii and #object or #characters
      if index < 0 then index = index + n end
      if index >= 0 and index < n then
        return is_ascii and object:sub(index + 1, index + 1) or characters[index + 1]
      end
    end
  end
  if type(key) == "string" then
    if t == "table" and (object.kind == "loop" or object.kind == "namespace") then return M.attribute(object, key) end
    local method = bound_method(object, key)
    if method then return method end
  end
  return undefined_item(object, key)
end

-- Slices ------------------------------------------------------------------------------------------------

local function bound_of(value)
  if value == nil or value == none then return nil end
  return index_of(value) or fail(("a slice needs integers, got a %s"):format(type_name(value)))
end

--- Returns the indices of a slice of n elements, from 0 on: first, behind the last, step.
local function slice_range(n, start, stop, step)
  step = bound_of(step) or 1
  if step == 0 then fail("the step of a slice cannot be 0") end
  start, stop = bound_of(start), bound_of(stop)
  local low, high = step > 0 and 0 or -1, step > 0 and n or n - 1
  local function clamp(index, default)
    if not index then return default end
    if index < 0 then index = index + n end
    return math.max(low, math.min(high, index))
  end
  return clamp(start, step > 0 and low or high), clamp(stop, step > 0 and high or low), step
end

local function slice_items(items, n, start, stop, step)
  local first, last, by = slice_range(n, start, stop, step)
  local result, count = {}, 0
  limits.reserve_array(math.max(0, math.ceil((last - first) / by)))
  for i = first, by > 0 and last - 1 or last + 1, by do
    count = count + 1
    result[count] = items[i + 1]
  end
  return result, count
end

--- Returns `object[start:stop:step]`; nil stands for a bound that is left out.
---@param object any
---@param start any
---@param stop any
---@param step any
---@return any
function M.slice(object, start, stop, step)
  if type(object) == "string" then
    if unicode.is_ascii(object) and (step == nil or step == 1) then
      local first, last = slice_range(#object, start, stop)
      limits.reserve(math.max(0, last - first))
      return object:sub(first + 1, last)
    end
    local characters = unicode.characters(object)
    return table.concat((slice_items(characters, #characters, start, stop, step)))
  end
  if type(object) == "table" then
    local kind = object.kind
    if kind == "list" or kind == "range" then return values.list(slice_items(object, object.n, start, stop, step)) end
    if kind == "tuple" then return values.tuple(slice_items(object, object.n, start, stop, step)) end
    if kind == "markup" then return values.markup(M.slice(object.text, start, stop, step)) end
    if kind == "undefined" then values.fail_undefined(object) end
  end
  return undefined_item(object, "[:]")
end

-- Calls -------------------------------------------------------------------------------------------------

--- Puts arguments given by name in the places of `params`. Throws where a name is unknown or its place is taken.
---@param what string for messages
---@param params string[]
---@param args table changed
---@param n integer how many arguments are given by place
---@param kwargs table {{name, value}, ...}
---@return integer n
function M.place_arguments(what, params, args, n, kwargs)
  for _, pair in ipairs(kwargs) do
    local place
    for i, param in ipairs(params) do
      if param == pair[1] then place = i end
    end
    if not place then fail(("%s has no parameter %s"):format(what, pair[1])) end
    if place <= n and args[place] ~= nil then fail(("%s got two values for %s"):format(what, pair[1])) end
    args[place] = pair[2]
    n = math.max(n, place)
  end
  return n
end

--- Calls the method of a value.
---@param object any
---@param name string
---@param args table
---@param n integer
---@param kwargs table
---@return any
function M.call_method(object, name, args, n, kwargs)
  local class = class_of(object)
  local method = class and methods[class][name]
  if class and methods.has(class, name) then
    if not method then
      if methods.CHANGES[name] and class ~= "str" then
        fail(("%s.%s() changes its object, which templates may not do"):format(class, name))
      end
      fail(("the method %s of a %s is not supported by this interpreter"):format(name, class))
    end
    if #kwargs > 0 then n = M.place_arguments(class .. "." .. name .. "()", method.params, args, n, kwargs) end
    if n > #method.params and not method.variadic then
      fail(("%s.%s() takes %d arguments, got %d"):format(class, name, #method.params, n))
    end
    if type(object) == "table" and object.kind == "markup" then return method.markup(object, unpack(args, 1, n)) end
    return method.fn(object, unpack(args, 1, n))
  end
  return M.call(M.attribute(object, name), args, n, kwargs, name)
end

local function call_loop(loop, name, args, n)
  if name == "cycle" then
    if n == 0 then fail("loop.cycle() needs arguments") end
    return args[(loop.i - 1) % n + 1]
  end
  local now = values.tuple({ unpack(args, 1, n) }, n)
  if loop.last_value and values.equal(loop.last_value, now) then return false end
  loop.last_value = now
  return true
end

--- Moves the arguments that are given by name into their places. Returns the others, and the caller.
local function sort_macro_arguments(signature, args, kwargs)
  local name, places, uses = signature.name, signature.places, signature.uses
  local others, caller = values.dict(), nil
  for _, pair in ipairs(kwargs) do
    local key = pair[1]
    local place = places[key]
    if place and args[place] ~= nil then fail(("the macro %s got two values for %s"):format(name, key)) end
    if place then
      args[place] = pair[2]
    elseif key == "caller" and uses.caller then
      caller = pair[2]
    elseif uses.kwargs then
      values.set_item(others, key, pair[2])
    else
      fail(("the macro %s has no parameter %s"):format(name, key))
    end
  end
  return others, caller
end

--- Calls a macro. Its function takes `varargs`, `kwargs`, `caller` and the values of the parameters, nil where none is
--- given; where these are many, it takes them as one array.
local function call_macro(macro, args, n, kwargs)
  local signature = macro.signature
  local size, uses = signature.size, signature.uses
  local others, caller, rest
  if #kwargs > 0 or uses.kwargs then others, caller = sort_macro_arguments(signature, args, kwargs) end
  if n > size then
    if not uses.varargs then fail(("the macro %s takes %d arguments, got %d"):format(signature.name, size, n)) end
    rest = values.tuple({ unpack(args, size + 1, n) }, n - size)
  end
  if signature.is_large then return macro.run(rest, others, caller, args) end
  return macro.run(rest, others, caller, unpack(args, 1, size))
end

--- Calls a value: a macro, a function or a bound method.
---@param name string? what the template calls it, for messages
---@param callee any
---@param args table
---@param n integer
---@param kwargs table
---@return any
function M.call(callee, args, n, kwargs, name)
  local kind = type(callee) == "table" and callee.kind
  if kind == "macro" then return call_macro(callee, args, n, kwargs) end
  if kind == "function" then return callee.fn(args, n, kwargs) end
  if kind == "method" then
    if callee.class == "loop" then return call_loop(callee.object, callee.name, args, n) end
    return M.call_method(callee.object, callee.name, args, n, kwargs)
  end
  if kind == "undefined" then values.fail_undefined(callee) end
  fail(("%s is a %s, which cannot be called"):format(name or "the value", type_name(callee)))
end

return M
