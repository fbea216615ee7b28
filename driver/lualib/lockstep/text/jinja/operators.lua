--- Arithmetic and comparisons of templates, as Python has them.

local limits = require "lockstep.text.jinja.limits"
local unicode = require "lockstep.text.jinja.unicode"
local values = require "lockstep.text.jinja.values"

jit.off(true, true) -- compiling traces of a template takes longer than it saves

local M = {}

local fail, number_of, text_of, type_name = values.fail, values.number_of, values.text_of, values.type_name

local function kind_of(value) return type(value) == "table" and value.kind or nil end

local function check_defined(...)
  for i = 1, select("#", ...) do
    local value = select(i, ...)
    if kind_of(value) == "undefined" then values.fail_undefined(value) end
  end
end

local function fail_types(op, a, b)
  check_defined(a, b)
  fail(("%s cannot be applied to a %s and a %s"):format(op, type_name(a), type_name(b)))
end

local function result_of(number, is_float)
  if is_float then return values.float(number) end
  return values.integer(number)
end

local HTML = { ["&"] = "&amp;", ["<"] = "&lt;", [">"] = "&gt;", ["'"] = "&#39;", ['"'] = "&#34;" }

--- Returns text with the characters of HTML escaped; markup as it is.
---@param value any
---@return string
function M.escape(value)
  if kind_of(value) == "markup" then return value.text end
  local text = values.str(value):gsub("[&<>'\"]", HTML)
  limits.check_text(#text)
  return text
end

local function joined(a, b)
  local make = a.kind == "list" and values.list or values.tuple
  limits.check_list(a.n + b.n)
  local items = {}
  for i = 1, a.n do items[i] = a[i] end
  for i = 1, b.n do items[a.n + i] = b[i] end
  return make(items, a.n + b.n)
end

local function is_sequence(value)
  local kind = kind_of(value)
  return kind == "list" or kind == "tuple"
end

local function add(a, b)
  if type(a) == "string" and type(b) == "string" then
    limits.check_text(#a + #b)
    return a .. b
  end
  local x, x_float = number_of(a)
  local y, y_float = number_of(b)
  if x and y then return result_of(x + y, x_float or y_float) end
  if text_of(a) and text_of(b) then return values.markup(limits.concat({ M.escape(a), M.escape(b) }, "", 2)) end
  if is_sequence(a) and kind_of(a) == kind_of(b) then return joined(a, b) end
  fail_types("+", a, b)
end

local function subtract(a, b)
  local x, x_float = number_of(a)
  local y, y_float = number_of(b)
  if x and y then return result_of(x - y, x_float or y_float) end
  fail_types("-", a, b)
end

local function repeated(sequence, times)
  if text_of(sequence) then
    local text = limits.repeated(text_of(sequence), times)
    return type(sequence) == "string" and text or values.markup(text)
  end
  local items, n = {}, sequence.n
  limits.check_list(n * times)
  for i = 1, n * times do items[i] = sequence[(i - 1) % n + 1] end
  return (sequence.kind == "list" and values.list or values.tuple)(items, math.max(0, n * times))
end

local function multiply(a, b)
  local x, x_float = number_of(a)
  local y, y_float = number_of(b)
  if x and y then return result_of(x * y, x_float or y_float) end
  if y and not y_float and (text_of(a) or is_sequence(a)) then return repeated(a, y) end
  if x and not x_float and (text_of(b) or is_sequence(b)) then return repeated(b, x) end
  fail_types("*", a, b)
end

--- Makes a division of numbers; the divisor is not 0.
local function division(op, divide)
  return function(a, b)
    local x, x_float = number_of(a)
    local y, y_float = number_of(b)
    if not x or not y then fail_types(op, a, b) end
    if y == 0 then fail("division by zero") end
    return divide(x, y, x_float or y_float)
  end
end

local divide = division("/", function(x, y) return values.float(x / y) end)
local floor_divide = division("//", function(x, y, is_float) return result_of(math.floor(x / y), is_float) end)
local modulo = division("%", function(x, y, is_float) return result_of(x % y, is_float) end)

local function power(a, b)
  local x, x_float = number_of(a)
  local y, y_float = number_of(b)
  if not x or not y then fail_types("**", a, b) end
  if x == 0 and y < 0 then fail("0 cannot be raised to a negative power") end
  return result_of(x ^ y, x_float or y_float or y < 0)
end

-- The % of strings: what a conversion makes of an argument.
local CONVERSIONS = {
  s = function(flags, value) return (flags .. "s"):format(values.str(value)) end,
  r = function(flags, value) return (flags .. "s"):format(values.repr(value)) end,
  d = function(flags, value)
    local number = number_of(value)
    if not number then fail(("%%d needs a number, got a %s"):format(type_name(value))) end
    return (flags .. "d"):format(number < 0 and math.ceil(number) or math.floor(number))
  end,
}
CONVERSIONS.i = CONVERSIONS.d
CONVERSIONS.f = function(flags, value)
  local number = number_of(value)
  if not number then fail(("%%f needs a number, got a %s"):format(type_name(value))) end
  return (flags .. "f"):format(number)
end
CONVERSIONS.F = CONVERSIONS.f

--- Returns a format with the arguments put in: "%s has %d".
---@param format string
---@param args table
---@param n integer
---@return string
function M.format(format, args, n)
  local used, size = 0, #format
  local text = format:gsub("%%([-+ #0]*%d*%.?%d*)(.?)", function(flags, letter)
    if letter == "%" then return "%" end
    local convert = CONVERSIONS[letter]
    if not convert then fail(("the conversion %%%s%s is not supported"):format(flags, letter)) end
    if flags:find("%d%d%d") then fail(("the width of %%%s%s is too large; at most 99"):format(flags, letter)) end
    used = used + 1
    if used > n then fail(("the format %s needs more than %d arguments"):format(values.repr(format), n)) end
    if flags ~= "" and (letter == "s" or letter == "r") and not unicode.is_ascii(values.str(args[used])) then
      fail("the width of text beyond ASCII is not supported in a format")
    end
    local piece = convert("%" .. flags, args[used])
    size = size + #piece
    limits.check_text(size)
    return piece
  end)
  if used < n then fail(("the format %s uses %d of %d arguments"):format(values.repr(format), used, n)) end
  return text
end

M.binary = {
  ["+"] = add, ["-"] = subtract, ["*"] = multiply, ["/"] = divide, ["//"] = floor_divide, ["**"] = power,
  ["%"] = function(a, b)
    if type(a) == "string" then
      if kind_of(b) == "tuple" then return M.format(a, b, b.n) end
      return M.format(a, { b }, 1)
    end
    return modulo(a, b)
  end,
}

--- Makes a sign before a number.
local function sign(op, factor)
  return function(a)
    local x, is_float = number_of(a)
    if x then return result_of(factor * x, is_float) end
    check_defined(a)
    fail(("%s cannot be applied to a %s"):format(op, type_name(a)))
  end
end

M.unary = { ["-"] = sign("-", -1), ["+"] = sign("+", 1) }

--- Returns what `a in b` gives.
---@param a any
---@param b any
---@return boolean
function M.contains(a, b)
  local text = text_of(b)
  if text then
    local wanted = text_of(a)
    if not wanted then fail(("in a str only a str can be looked for, got a %s"):format(type_name(a))) end
    return text:find(wanted, 1, true) ~= nil
  end
  if kind_of(b) == "dict" then
    if kind_of(a) == "undefined" then return false end
    return b.map[type(a) == "string" and a or values.key_of(a)] ~= nil
  end
  local items, first, last = values.elements(b)
  if not items then fail(("nothing can be looked for in a %s"):format(type_name(b))) end
  for i = first, last do
    if values.equal(items[i], a) then return true end
  end
  return false
end

M.compare = {
  ["=="] = values.equal,
  ["!="] = function(a, b) return not values.equal(a, b) end,
  ["<"] = values.less,
  [">"] = function(a, b) return values.less(b, a) end,
  ["<="] = function(a, b) return not values.less(b, a) end,
  [">="] = function(a, b) return not values.less(a, b) end,
  ["in"] = M.contains,
  ["not in"] = function(a, b) return not M.contains(a, b) end,
}

return M
