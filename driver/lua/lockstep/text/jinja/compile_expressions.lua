--- Compiles expressions to closures: function(registers) -> value. Statements are in lockstep.text.jinja.compiler.
---
--- Registers are the slots of an activation (lockstep.text.jinja.scope), with `up`, those of the activation around it,
--- `variables`, what the caller gave, and `out`, where text goes.

local access = require "lockstep.text.jinja.access"
local builtins = require "lockstep.text.jinja.builtins"
local core = require "lockstep.core"
local filters = require "lockstep.text.jinja.filters"
local methods = require "lockstep.text.jinja.methods"
local plain = require "lockstep.plain"
local tests = require "lockstep.text.jinja.tests"
local values = require "lockstep.text.jinja.values"

jit.off(true, true) -- compiling traces through a template's closures takes longer than it saves

local M = {}

local attribute, item = access.attribute, access.item

local COMPILE = {}

local NO_NAMES = {} -- the arguments by name of most calls

---@param node table
---@param scope lockstep.jinja.Scope
---@return fun(registers: table): any
function M.compile(node, scope) return COMPILE[node.type](node, scope) end

local compile = M.compile

--- Compiles each node.
---@param nodes table[]
---@param scope lockstep.jinja.Scope
---@return function[]
function M.compile_all(nodes, scope)
  local compiled = {}
  for i, node in ipairs(nodes) do compiled[i] = compile(node, scope) end
  return compiled
end

local compile_all = M.compile_all

-- Names and literals ------------------------------------------------------------------------------------

COMPILE.const = function(node)
  local value = node.value
  return function() return value end
end

-- Made by the compiler itself.
COMPILE.compiled = function(node) return node.run end

--- Returns a closure that looks a name up in the variables of the call.
local function variable(name)
  local builtin = builtins[name]
  local missing = builtin or values.undefined(("%s is undefined"):format(name))
  return function(registers)
    local value = registers.variables[name]
    if value == nil then return missing end
    return value
  end
end

--- Returns a closure that looks a name up in its places from the first one on, and then in the variables.
local function look_up(name, places, first)
  local find = variable(name)
  -- From the outermost place inwards, each closure asks the next one where its own slot is empty.
  for i = #places, first, -1 do
    local slot, up, otherwise = places[i].slot, places[i].up, find
    if up == 0 then
      find = function(registers)
        local value = registers[slot]
        if value == nil then return otherwise(registers) end
        return value
      end
    else
      find = function(registers)
        local outer = registers
        for _ = 1, up do outer = outer.up end
        local value = outer[slot]
        if value == nil then return otherwise(registers) end
        return value
      end
    end
  end
  return find
end

COMPILE.name = function(node, scope) return look_up(node.name, scope:places(node.name), 1) end

local function compile_sequence(make)
  return function(node, scope)
    local items = compile_all(node.items, scope)
    local n = #items
    return function(registers)
      local result = {}
      for i = 1, n do result[i] = items[i](registers) end
      return make(result, n)
    end
  end
end

COMPILE.list = compile_sequence(values.list)
COMPILE.tuple = compile_sequence(values.tuple)

COMPILE.dict = function(node, scope)
  local keys, entries = compile_all(node.keys, scope), compile_all(node.values, scope)
  return function(registers)
    local dict = values.dict()
    for i = 1, #keys do values.set_item(dict, keys[i](registers), entries[i](registers)) end
    return dict
  end
end

-- Attributes, items, slices -----------------------------------------------------------------------------

--- Returns the slot that a node reads if it is a name of this activation, and a closure for where that is empty.
local function slot_of(node, scope)
  if node.type ~= "name" then return nil end
  local places = scope:places(node.name)
  if not places[1] or places[1].up ~= 0 then return nil end
  return places[1].slot, look_up(node.name, places, 2)
end

--- Compiles `object.name` and `object["name"]`; `get` is for what is neither a dict's item nor a namespace's.
local function compile_member(node, scope, name, get)
  local slot, otherwise = slot_of(node.object, scope)
  if slot then
    return function(registers)
      local value = registers[slot]
      if value == nil then value = otherwise(registers) end
      if type(value) == "table" then
        local kind = value.kind
        if kind == "dict" or kind == "namespace" then
          local found = value.map[name]
          if found ~= nil then return found end
        end
      end
      return get(value, name)
    end
  end
  local object = compile(node.object, scope)
  return function(registers)
    local value = object(registers)
    if type(value) == "table" and value.kind == "dict" then
      local found = value.map[name]
      if found ~= nil then return found end
    end
    return get(value, name)
  end
end

COMPILE.attribute = function(node, scope)
  local name = node.name
  if methods.dict[name] == nil then return compile_member(node, scope, name, attribute) end
  local object = compile(node.object, scope)
  return function(registers) return attribute(object(registers), name) end
end

COMPILE.item = function(node, scope)
  if node.index.type == "const" and type(node.index.value) == "string" then
    return compile_member(node, scope, node.index.value, item)
  end
  local object = compile(node.object, scope)
  local index = compile(node.index, scope)
  return function(registers)
    local value = object(registers)
    return item(value, index(registers))
  end
end

COMPILE.slice = function(node, scope)
  local function bound(part) return part and compile(part, scope) or function() end end
  local object, start, stop, step = compile(node.object, scope), bound(node.start), bound(node.stop), bound(node.step)
  return function(registers)
    local value = object(registers)
    return access.slice(value, start(registers), stop(registers), step(registers))
  end
end

-- Calls -------------------------------------------------------------------------------------------------

--- Returns closures that give the arguments by place, and those by name as {{name, value}, ...}.
local function compile_arguments(node, scope)
  local args, names, by_name = compile_all(node.args, scope), {}, {}
  for i, pair in ipairs(node.kwargs) do names[i], by_name[i] = pair[1], compile(pair[2], scope) end
  local n = #args
  local function place(registers)
    local result = {}
    for i = 1, n do result[i] = args[i](registers) end
    return result
  end
  if #names == 0 then return place, n, function() return NO_NAMES end end
  return place, n, function(registers)
    local pairs_ = {}
    for i = 1, #names do pairs_[i] = { names[i], by_name[i](registers) } end
    return pairs_
  end
end

local function nothing() end

--- Calls of methods of str and dict that most templates make run without a table of arguments.
local function compile_method_call(node, scope)
  local object, name = compile(node.callee.object, scope), node.callee.name
  local args, n, kwargs = compile_arguments(node, scope)
  local of_str, of_dict = methods.str[name], methods.dict[name]
  if (of_str or of_dict) and #node.kwargs == 0 and n <= 2 then
    local first = node.args[1] and compile(node.args[1], scope) or nothing
    local second = node.args[2] and compile(node.args[2], scope) or nothing
    local str_fn = of_str and n <= #of_str.params and of_str.fn
    local dict_fn = of_dict and n <= #of_dict.params and of_dict.fn
    return function(registers)
      local value = object(registers)
      if type(value) == "string" then
        if str_fn then
          local argument = first(registers)
          return str_fn(value, argument, second(registers))
        end
      elseif dict_fn and type(value) == "table" and value.kind == "dict" then
        local argument = first(registers)
        return dict_fn(value, argument, second(registers))
      end
      return access.call_method(value, name, args(registers), n, NO_NAMES)
    end
  end
  return function(registers)
    local value = object(registers)
    return access.call_method(value, name, args(registers), n, kwargs(registers))
  end
end

COMPILE.call = function(node, scope)
  if node.callee.type == "attribute" then return compile_method_call(node, scope) end
  local callee, name = compile(node.callee, scope), node.callee.name
  local args, n, kwargs = compile_arguments(node, scope)
  return function(registers)
    local value = callee(registers)
    return access.call(value, args(registers), n, kwargs(registers), name)
  end
end

local function find_function(kind, known, node)
  local found = known[node.name]
  if found then return found end
  local names = plain.keys(known, function(name) return name:find("^%a") end)
  local nearest = core.nearest(node.name, names)
  values.fail_at(node.line, ("there is no %s named %s in this interpreter%s (known: %s)"):format(kind, node.name,
    nearest and ("; did you mean %s?"):format(nearest) or "", table.concat(names, ", ")))
end

--- Compiles the call of a filter or a test: function(registers, value) -> value. Without arguments, returns the
--- function of the filter or test, too.
local function compile_application(kind, known, node, scope)
  local found = find_function(kind, known, node)
  local fn, params = found.fn, found.params
  local what = kind .. " " .. node.name
  if #node.args > #params and not found.variadic then
    values.fail_at(node.line, ("the %s takes %d arguments, got %d"):format(what, #params, #node.args))
  end
  local args, n, kwargs = compile_arguments(node, scope)
  if found.takes_names then
    return function(registers, value) return fn(value, args(registers), n, kwargs(registers)) end
  end
  if n == 0 and #node.kwargs == 0 then return function(_, value) return fn(value) end, fn end
  if n == 1 and #node.kwargs == 0 then
    local argument = compile(node.args[1], scope)
    return function(registers, value) return fn(value, argument(registers)) end
  end
  return function(registers, value)
    local given = args(registers)
    local count = access.place_arguments("the " .. what, params, given, n, kwargs(registers))
    return fn(value, unpack(given, 1, count))
  end
end

--- Compiles a filter without its value: function(registers, value) -> value.
---@param node table
---@param scope lockstep.jinja.Scope
---@return fun(registers: table): any
function M.compile_filter(node, scope) return compile_application("filter", filters, node, scope) end

COMPILE.filter = function(node, scope)
  local object, apply, fn = compile(node.object, scope), M.compile_filter(node, scope)
  if fn then return function(registers) return fn(object(registers)) end end
  return function(registers) return apply(registers, object(registers)) end
end

COMPILE.test = function(node, scope)
  local object, apply, fn = compile(node.object, scope), compile_application("test", tests, node, scope)
  if fn then return function(registers) return fn(object(registers)) end end
  return function(registers) return apply(registers, object(registers)) end
end

tests.filter = { fn = function(name) return filters[name] ~= nil end, params = {} }
tests.test = { fn = function(name) return tests[name] ~= nil end, params = {} }

require "lockstep.text.jinja.compile_operators"(COMPILE, M)

return M
