--- The functions that the source of a template calls (lockstep.text.jinja.generator).

local access = require "lockstep.text.jinja.access"
local convert = require "lockstep.text.jinja.convert"
local limits = require "lockstep.text.jinja.limits"
local operators = require "lockstep.text.jinja.operators"
local values = require "lockstep.text.jinja.values"

jit.off(true, true) -- compiling traces of a template takes longer than it saves

local M = {}

local fail, position, str = values.fail, values.position, values.str
local MAX_STEPS, MAX_DEPTH = limits.MAX_STEPS, limits.MAX_DEPTH

--- Returns what a loop goes through: an array, the first index and the last index.
local function each(value)
  local items, first, last = values.iterate(value)
  local steps = position.steps + last - first + 1
  position.steps = steps
  if steps > MAX_STEPS then limits.step(0) end
  return items, first, last
end

--- Begins an iteration of a loop.
local function turn() limits.reserve(limits.TURN_BYTES) end

--- Returns the elements of a value, which must be n.
local function unpacked(value, n)
  local items, first, last = values.iterate(value)
  if last - first + 1 ~= n then fail(("expected %d values to unpack, got %d"):format(n, last - first + 1)) end
  return unpack(items, first, last)
end

--- Returns parts 1 to n as one text.
local function joined(parts, n) return limits.concat(parts, "", n) end

--- Returns a + b + c of n parts.
local function sum_of(parts, n)
  local are_text = true
  for i = 1, n do are_text = are_text and type(parts[i]) == "string" end
  if are_text then return limits.concat(parts, "", n) end
  local add, total = operators.binary["+"], parts[1]
  for i = 2, n do total = add(total, parts[i]) end
  return total
end

--- Returns a ~ b ~ c of n parts.
local function texts_of(parts, n)
  for i = 1, n do parts[i] = str(parts[i]) end
  return limits.concat(parts, "", n)
end

--- Sets x.key of a namespace x. `name` is what the template calls x.
local function set_attribute(held, key, value, name)
  if type(held) ~= "table" or held.kind ~= "namespace" then
    fail(("%s.%s cannot be set: %s is a %s, not a namespace"):format(name, key, name, values.type_name(held)))
  end
  held.map[key] = value
end

--- Returns a dict of keys and values by turns.
local function dict_of(items, n)
  local dict = values.dict()
  for i = 1, n, 2 do values.set_item(dict, items[i], items[i + 1]) end
  return dict
end

--- Calls a filter or test whose arguments by name do not fit, which is an error.
local function misfit(what, params, args, n, kwargs) access.place_arguments(what, params, args, n, kwargs) end

-- Macros ------------------------------------------------------------------------------------------------

--- Begins the call of a macro. Returns the line of the call.
local function enter(name)
  local depth, steps = position.depth + 1, position.steps + 1
  position.depth, position.steps = depth, steps
  if depth > MAX_DEPTH or steps > MAX_STEPS then limits.fail_macro(name) end
  limits.reserve(limits.TURN_BYTES)
  return position.line
end

--- Ends the call of a macro. Returns its text.
local function finish(parts, n, line)
  position.line, position.depth = line, position.depth - 1
  return limits.concat(parts, "", n)
end

-- Values that macros get where a call gives none.
local function no_arguments() return values.tuple({}, 0) end

M.functions = {
  position = position, none = values.none, type = type, str = str, truth = values.truth, equal = values.equal,
  attribute = access.attribute, item = access.item, slice = access.slice, call = access.call,
  call_method = access.call_method, set_attribute = set_attribute, list_of = values.list, tuple_of = values.tuple,
  dict_of = dict_of, no_dict = values.dict, no_arguments = no_arguments, sum_of = sum_of, texts_of = texts_of,
  contains = operators.contains, each = each, turn = turn, unpacked = unpacked, joined = joined, misfit = misfit,
  enter = enter, finish = finish, variable = convert.variable, NOTHING = {}, NO_NAMES = {},
}

return M
