--- The tests of templates: M[name] is {fn, params}. `fn` takes the value and the arguments and returns a boolean.

local methods = require "lockstep.text.jinja.methods"
local operators = require "lockstep.text.jinja.operators"
local values = require "lockstep.text.jinja.values"

jit.off(true, true) -- compiling traces of a template takes longer than it saves

local M = {}

local function kind_of(value) return type(value) == "table" and value.kind or nil end

local function add(name, fn, params) M[name] = { fn = fn, params = params or {} } end

local function is_integer(value) return type(value) == "number" and value % 1 == 0 end

local ITERABLE = { list = true, tuple = true, dict = true, range = true, view = true, generator = true,
  undefined = true, markup = true, loop = true }
local SEQUENCE = { list = true, tuple = true, dict = true, range = true, undefined = true, markup = true }
local CALLABLE = { macro = true, ["function"] = true, method = true, undefined = true }

add("defined", function(value) return kind_of(value) ~= "undefined" end)
add("undefined", function(value) return kind_of(value) == "undefined" end)
add("none", function(value) return value == values.none end)
add("boolean", function(value) return type(value) == "boolean" end)
add("true", function(value) return value == true end)
add("false", function(value) return value == false end)
add("integer", is_integer)
add("float", function(value) return kind_of(value) == "float" or type(value) == "number" and value % 1 ~= 0 end)
add("number", function(value) return values.number_of(value) ~= nil end)
add("string", values.is_string)
add("mapping", function(value) return kind_of(value) == "dict" end)
add("iterable", function(value) return type(value) == "string" or ITERABLE[kind_of(value)] or false end)
add("sequence", function(value) return type(value) == "string" or SEQUENCE[kind_of(value)] or false end)
add("callable", function(value) return CALLABLE[kind_of(value)] or false end)
add("escaped", function(value) return kind_of(value) == "markup" end)
add("sameas", function(value, other) return value == other end, { "other" })
add("lower", function(value) return methods.str.islower.fn(values.str(value)) end)
add("upper", function(value) return methods.str.isupper.fn(values.str(value)) end)
add("in", operators.contains, { "seq" })

local function remainder(value, divisor)
  return values.number_of(operators.binary["%"](value, divisor))
end
add("odd", function(value) return remainder(value, 2) == 1 end)
add("even", function(value) return remainder(value, 2) == 0 end)
add("divisibleby", function(value, divisor) return remainder(value, divisor) == 0 end, { "num" })

for op, names in pairs {
  ["=="] = { "eq", "equalto" }, ["!="] = { "ne" }, [">"] = { "gt", "greaterthan" }, [">="] = { "ge" },
  ["<"] = { "lt", "lessthan" }, ["<="] = { "le" },
} do
  for _, name in ipairs { op, unpack(names) } do add(name, operators.compare[op], { "other" }) end
end

return M
