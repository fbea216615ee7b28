--- The values of templates, and what Python does with all of them: truth, equality, order, str() and repr().
---
--- Strings, booleans and integers are Lua's own; None is M.none. A float is Lua's own where it is not a whole number,
--- and {kind = "float", value = 2} where it is. Everything else is a table with a `kind`:
---
---     list, tuple, range, view, generator   n, [1], ..., [n]; a view has a name, a generator `taken`, which only grows
---     dict                                  n, [1], ..., [n] are the keys in order; map: from key to value
---     namespace, loop, macro, function, method, undefined, markup

local limits = require "lockstep.text.jinja.limits"
local unicode = require "lockstep.text.jinja.unicode"

jit.off(true, true) -- compiling traces of a template takes longer than it saves

local M = {}

M.none = require("lockstep.core").null

-- 2^53 may stand for 2^53 + 1, which a Lua number does not hold.
local LARGEST = 2 ^ 53 - 1

local step = limits.step

M.position, M.fail = limits.position, limits.fail

---@param line integer
---@param message string
function M.fail_at(line, message) error({ template_error = message, line = line }, 0) end

-- Making values -----------------------------------------------------------------------------------------

--- Returns a number as an integer of Python. Throws where a Lua number would not hold it exactly.
---@param number number
---@return any
function M.integer(number)
  if number > LARGEST or number < -LARGEST then
    M.fail("an integer is beyond 2^53 - 1, the largest that this interpreter holds exactly")
  end
  return number
end

--- Returns a number as a float of Python.
---@param number number
---@return any
function M.float(number)
  if number % 1 ~= 0 then return number end -- NaN and the infinities, too
  return { kind = "float", value = number }
end

---@param items table its elements are 1 to n; the table becomes the list
---@param n integer?
---@return any
function M.list(items, n)
  items.kind, items.n = "list", n or #items
  return items
end

--- Returns a tuple of the elements; the table becomes it.
---@param items table
---@param n integer
---@return any
function M.tuple(items, n)
  items.kind, items.n = "tuple", n or #items
  return items
end

--- Returns a generator of the elements; the table becomes it.
---@param items table
---@param n integer
---@return any
function M.generator(items, n)
  items.kind, items.n, items.taken = "generator", n or #items, 0
  return items
end

--- Returns the view of a dict: its keys, values or items.
---@param name string
---@param items table
---@param n integer
---@return any
function M.view(name, items, n)
  items.kind, items.name, items.n = "view", name, n
  return items
end

--- Returns text that the filter safe has marked.
---@param text string
---@return any
function M.markup(text) return { kind = "markup", text = text } end

--- Returns a value that is not defined. It prints as nothing; what needs it raises `message`.
---@param message string
---@return any
function M.undefined(message) return { kind = "undefined", message = message } end

--- Returns an empty dict.
---@return any
function M.dict() return { kind = "dict", n = 0, map = {} } end

--- Returns what a key is looked up by: 1, 1.0 and True are the same key.
---@param key any
---@return any
function M.key_of(key)
  local t = type(key)
  if key ~= key then M.fail "nan cannot be the key of a dict in this interpreter" end
  if t == "string" or t == "number" or key == M.none then return key end
  if t == "boolean" then return key and 1 or 0 end
  if key.kind == "float" then return key.value end
  if key.kind == "markup" then return key.text end
  M.fail(("a %s cannot be the key of a dict"):format(M.type_name(key)))
end

--- Sets an item of a dict or a namespace.
---@param dict table
---@param key any
---@param value any
function M.set_item(dict, key, value)
  local k = M.key_of(key)
  if dict.map[k] == nil then
    dict.n = dict.n + 1
    dict[dict.n] = key
  end
  dict.map[k] = value
end

-- Kinds and sizes ---------------------------------------------------------------------------------------

local TYPE_NAMES = { macro = "Macro", loop = "LoopContext", markup = "Markup", namespace = "Namespace",
  undefined = "Undefined", method = "builtin_function_or_method" }

--- Returns the name of a value's type, for messages: "str", "NoneType".
---@param value any
---@return string
function M.type_name(value)
  local t = type(value)
  if t == "string" then return "str" end
  if t == "nil" then return "missing argument" end
  if t == "boolean" then return "bool" end
  if t == "number" then return value % 1 == 0 and "int" or "float" end
  if value == M.none then return "NoneType" end
  return value.kind == "view" and value.name or TYPE_NAMES[value.kind] or value.kind
end

--- Returns whether it is a str: text, or markup.
---@param value any
---@return boolean
function M.is_string(value) return type(value) == "string" or type(value) == "table" and value.kind == "markup" end

--- Returns the number in an int, a float or a bool, and whether it is a float; nil for any other value.
---@param value any
---@return number? number
---@return boolean? is_float
function M.number_of(value)
  local t = type(value)
  if t == "number" then return value, value % 1 ~= 0 end
  if t == "boolean" then return value and 1 or 0, false end
  if t == "table" and value.kind == "float" then return value.value, true end
end

--- Returns the text of a str or of markup; nil for anything else.
---@param value any
---@return string?
function M.text_of(value)
  if type(value) == "string" then return value end
  return type(value) == "table" and value.kind == "markup" and value.text or nil
end

--- Raises what an undefined value has to say.
---@param value any
function M.fail_undefined(value) M.fail(value.message) end

local SIZED = { list = true, tuple = true, range = true, view = true, dict = true }

--- Returns what bool() gives.
---@param value any
---@return boolean
function M.truth(value)
  local t = type(value)
  if t == "boolean" then return value end
  if t == "string" then return value ~= "" end
  if t == "number" then return value ~= 0 end
  if t ~= "table" then return false end -- None
  local kind = value.kind
  if SIZED[kind] then return value.n > 0 end
  if kind == "undefined" then return false end
  if kind == "float" then return value.value ~= 0 end
  if kind == "markup" then return value.text ~= "" end
  return true
end

--- Returns what len() gives; nil for values without a length.
---@param value any
---@return integer?
function M.length(value)
  local text = M.text_of(value)
  if text then return unicode.length(text) end
  if type(value) ~= "table" then return nil end
  if SIZED[value.kind] or value.kind == "loop" then return value.n end
  return value.kind == "undefined" and 0 or nil
end

--- Returns the elements that a loop would see: an array, the first index and the last index. Returns nil for values
--- that cannot be iterated. Uses a generator up.
---@param value any
---@return table? items
---@return integer first
---@return integer last
function M.elements(value)
  local kind = type(value) == "table" and value.kind
  if SIZED[kind] then return value, 1, value.n end
  local text = M.text_of(value)
  if text then
    local characters = unicode.characters(text)
    return characters, 1, #characters
  end
  if kind == "generator" then
    local first = value.taken + 1
    value.taken = value.n
    return value, first, value.n
  end
  if kind == "undefined" then return {}, 1, 0 end
  return nil, 1, 0
end

--- Like elements, but raises an error for values that cannot be iterated.
---@param value any
---@return any
function M.iterate(value)
  local items, first, last = M.elements(value)
  if not items then M.fail(("a %s cannot be iterated"):format(M.type_name(value))) end
  return items, first, last
end

--- Returns a new array of the elements, and how many there are.
---@param value any
---@return any
function M.to_array(value)
  local items, first, last = M.iterate(value)
  local array = {}
  limits.reserve_array(last - first + 1)
  for i = first, last do array[i - first + 1] = items[i] end
  return array, last - first + 1
end

-- Equality and order ------------------------------------------------------------------------------------

local function equal_sequences(a, b)
  if a.n ~= b.n then return false end
  step(a.n)
  for i = 1, a.n do
    if not M.equal(a[i], b[i]) then return false end
  end
  return true
end

--- Returns what == gives.
---@param a any
---@param b any
---@return boolean
function M.equal(a, b)
  if type(a) == "string" and type(b) == "string" then return a == b end
  local x, y = M.number_of(a), M.number_of(b)
  if x and y then return x == y end
  if type(a) ~= "table" or type(b) ~= "table" then
    x, y = M.text_of(a), M.text_of(b)
    if x and y then return x == y end
    return a == b
  end
  if a.kind ~= b.kind then return false end
  if a.kind == "list" or a.kind == "tuple" or a.kind == "range" then return equal_sequences(a, b) end
  if a.kind == "markup" then return a.text == b.text end
  if a.kind == "undefined" then return true end
  if a.kind == "dict" then
    if a.n ~= b.n then return false end
    step(a.n)
    for key, value in pairs(a.map) do
      if b.map[key] == nil or not M.equal(value, b.map[key]) then return false end
    end
    return true
  end
  return a == b
end

--- Returns whether a comes before b.
---@param a any
---@param b any
---@return boolean
function M.less(a, b)
  local x, y = M.number_of(a), M.number_of(b)
  if x and y then return x < y end
  x, y = M.text_of(a), M.text_of(b)
  if x and y then return x < y end -- the order of UTF-8 is that of its characters
  if type(a) == "table" and type(b) == "table" then
    if a.kind == "undefined" then M.fail_undefined(a) end
    if a.kind == b.kind and (a.kind == "list" or a.kind == "tuple") then
      step(a.n)
      for i = 1, math.min(a.n, b.n) do
        if not M.equal(a[i], b[i]) then return M.less(a[i], b[i]) end
      end
      return a.n < b.n
    end
  end
  for _, value in ipairs { a, b } do
    if type(value) == "table" and value.kind == "undefined" then M.fail_undefined(value) end
  end
  M.fail(("a %s cannot be compared with a %s"):format(M.type_name(a), M.type_name(b)))
end

-- str() and repr() --------------------------------------------------------------------------------------

local function write_float(number)
  if number ~= number then return "nan" end
  if number == math.huge then return "inf" end
  if number == -math.huge then return "-inf" end
  local short = ("%.15g"):format(number)
  if not short:find("e", 1, true) and tonumber(short) == number then
    return short:find(".", 1, true) and short or short .. ".0"
  end
  -- A number that 15 digits tell apart has no other form as short; beyond that, zeros at the end cannot be.
  local text = ("%.14e"):format(number)
  if tonumber(short) ~= number then
    text = ("%.15e"):format(number)
    if tonumber(text) ~= number then text = ("%.16e"):format(number) end
  end
  if number > -2.3e-308 and number < 2.3e-308 and number ~= 0 then -- few digits are significant
    for precision = 14, 0, -1 do
      local shorter = ("%%.%de"):format(precision):format(number)
      if tonumber(shorter) ~= number then break end
      text = shorter
    end
  end
  local sign, first, rest, exponent = text:match("^(-?)(%d)%.?(%d-)0*e([-+]%d+)$")
  local digits, power = first .. rest, tonumber(exponent)
  if power < -4 or power >= 16 then
    return ("%s%s%se%s%02d"):format(sign, first, rest ~= "" and "." .. rest or "", power < 0 and "-" or "+",
      math.abs(power))
  end
  if power < 0 then return sign .. "0." .. ("0"):rep(-power - 1) .. digits end
  if #digits <= power + 1 then return sign .. digits .. ("0"):rep(power + 1 - #digits) .. ".0" end
  return sign .. digits:sub(1, power + 1) .. "." .. digits:sub(power + 2)
end

-- The texts of floats, which the same tools bring again and again. Emptied when it is full.
local floats, num_floats = {}, 0
local MAX_FLOATS = 1024

--- Returns a float as repr() writes it: the fewest digits that read back the same.
---@param number number
---@return string
function M.float_text(number)
  local known = floats[number]
  if known then return known end
  local text = write_float(number)
  if number == number and number ~= 0 then -- 0.0 and -0.0 would be one key
    if num_floats == MAX_FLOATS then floats, num_floats = {}, 0 end
    floats[number], num_floats = text, num_floats + 1
  end
  return text
end

local ESCAPES = { ["\n"] = "\\n", ["\r"] = "\\r", ["\t"] = "\\t", ["\\"] = "\\\\" }

local function escape(character)
  if ESCAPES[character] then return ESCAPES[character] end
  if unicode.is_printable(character) then return character end
  local point = unicode.code_point(character)
  return (point < 256 and "\\x%02x" or point < 65536 and "\\u%04x" or "\\U%08x"):format(point)
end

local function repr_string(s)
  local quote = s:find("'", 1, true) and not s:find('"', 1, true) and '"' or "'"
  if s:find("[%z\1-\31\\\127-\255]") then s = s:gsub("[%z\1-\127\194-\244][\128-\191]*", escape) end
  if quote == "'" then s = s:gsub("'", "\\'") end
  return quote .. s .. quote
end

local function join_repr(items, n, open, close)
  step(n)
  local parts = {}
  for i = 1, n do parts[i] = M.repr(items[i]) end
  return open .. limits.concat(parts, ", ", n) .. close
end

local function repr_dict(dict, name)
  step(dict.n)
  local parts = {}
  for i = 1, dict.n do parts[i] = M.repr(dict[i]) .. ": " .. M.repr(dict.map[M.key_of(dict[i])]) end
  return (name or "") .. "{" .. limits.concat(parts, ", ", dict.n) .. "}"
end

local REPR = {
  float = function(value) return M.float_text(value.value) end,
  list = function(value) return join_repr(value, value.n, "[", "]") end,
  tuple = function(value) return join_repr(value, value.n, "(", value.n == 1 and ",)" or ")") end,
  dict = repr_dict,
  view = function(value) return value.name .. "(" .. join_repr(value, value.n, "[", "])") end,
  range = function(value) return value.text end,
  undefined = function() return "Undefined" end,
  markup = function(value) return "Markup(" .. repr_string(value.text) .. ")" end,
}

--- Returns what repr() gives.
---@param value any
---@return string
function M.repr(value)
  local t = type(value)
  if t == "string" then return repr_string(value) end
  if t == "table" and REPR[value.kind] then return REPR[value.kind](value) end
  return M.str(value)
end

--- Returns what str() gives.
---@param value any
---@return string
function M.str(value)
  local t = type(value)
  if t == "string" then return value end
  if t == "number" then return value % 1 == 0 and ("%d"):format(value) or M.float_text(value) end
  if t == "boolean" then return value and "True" or "False" end
  if value == M.none then return "None" end
  local kind = value.kind
  if kind == "undefined" then return "" end
  if kind == "markup" then return value.text end
  if REPR[kind] then return REPR[kind](value) end
  M.fail(("a %s has no text that a conversation could need"):format(M.type_name(value)))
end

return M
