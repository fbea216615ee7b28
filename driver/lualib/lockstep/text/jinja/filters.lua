--- The filters of templates: M[name] is {fn, params, variadic}. `fn` takes the value and the arguments, nil for those
--- left out.

local access = require "lockstep.text.jinja.access"
local json = require "lockstep.text.jinja.json"
local limits = require "lockstep.text.jinja.limits"
local methods = require "lockstep.text.jinja.methods"
local operators = require "lockstep.text.jinja.operators"
local plain = require "lockstep.plain"
local tests = require "lockstep.text.jinja.tests"
local unicode = require "lockstep.text.jinja.unicode"
local values = require "lockstep.text.jinja.values"

jit.off(true, true) -- compiling traces of a template takes longer than it saves

local M = {}

local fail, truth, str, integer = values.fail, values.truth, values.str, methods.integer

local function flag(value) return value ~= nil and truth(value) end

local given = plain.given

--- Adds a filter of a text that gives text: markup stays markup.
local function add_text_filter(name, fn, params)
  M[name] = { params = params or {}, fn = function(value, ...)
    local text = str(value)
    limits.reserve(#text) -- What makes more of it reserves that.
    local result = fn(text, ...)
    return type(value) == "table" and value.kind == "markup" and values.markup(result) or result
  end }
end

local function add(name, params, fn, variadic) M[name] = { params = params, fn = fn, variadic = variadic } end

local function alias(name, other) M[name] = M[other] end

-- Text --------------------------------------------------------------------------------------------------

add_text_filter("string", function(text) return text end)
add_text_filter("upper", unicode.upper)
add_text_filter("lower", unicode.lower)
add_text_filter("capitalize", unicode.capitalize)
add_text_filter("trim", methods.str.strip.fn, { "chars" })

add_text_filter("title", function(text)
  local parts, at = {}, 1
  local function title(word)
    local first = word:match("^[%z\1-\127\194-\244][\128-\191]*") or ""
    return unicode.upper(first) .. unicode.lower(word:sub(#first + 1))
  end
  while true do
    local first = at
    while first <= #text and not text:find("^[-({%[<]", first) and unicode.skip_space(text, first) == first do
      first = first + 1
    end
    local last = first
    while last <= #text and (text:find("^[-({%[<]", last) or unicode.skip_space(text, last) > last) do
      last = math.max(last + 1, unicode.skip_space(text, last))
    end
    parts[#parts + 1] = title(text:sub(at, first - 1)) .. text:sub(first, last - 1)
    limits.grow(#parts)
    if last > #text then break end
    at = last
  end
  return table.concat(parts)
end)

add_text_filter("replace", function(text, old, new, count)
  if old == nil or new == nil then fail("replace needs what to replace and what with") end
  return methods.replace(text, str(old), str(new), given(count))
end, { "old", "new", "count" })

add_text_filter("indent", function(text, width, first, blank)
  local indention = values.text_of(width) or limits.repeated(" ", integer(width, 4, "indent"))
  local lines, size = unicode.lines(text .. "\n"), #text
  for i = 2, #lines do
    if lines[i] ~= "" or flag(blank) then
      size = size + #indention
      limits.check_text(size)
      lines[i] = indention .. lines[i]
    end
  end
  return (flag(first) and indention or "") .. limits.concat(lines, "\n", #lines)
end, { "width", "first", "blank" })

add_text_filter("center", function(text, width) return methods.str.center.fn(text, width or 80) end, { "width" })

add("safe", {}, function(value) return values.markup(str(value)) end)
add("escape", {}, function(value) return values.markup(operators.escape(value)) end)
add("forceescape", {}, function(value) return values.markup(operators.escape(str(value))) end)
add("format", {}, function(value, ...) return operators.format(str(value), { ... }, select("#", ...)) end, true)
add("wordcount", {}, function(value)
  local _, count = str(value):gsub("[%w_]+", "")
  if not unicode.is_ascii(str(value)) then fail("wordcount of text beyond ASCII is not supported") end
  return count
end)
add("tojson", { "ensure_ascii", "indent", "separators", "sort_keys" }, json.tojson)

-- Numbers -----------------------------------------------------------------------------------------------

add("abs", {}, function(value)
  local number, is_float = values.number_of(value)
  if not number then fail("abs needs a number, got a " .. values.type_name(value)) end
  return is_float and values.float(math.abs(number)) or math.abs(number)
end)

--- Returns the number that a text is for Python; nil for any other text.
local function parse_float(text)
  text = unicode.lstrip(unicode.rstrip(text)):lower()
  local sign, word = text:match("^([-+]?)(%a+)$")
  if word == "inf" or word == "infinity" then return sign == "-" and -math.huge or math.huge end
  if word == "nan" then return 0 / 0 end
  if not text:find("^[-+]?[%d_]*%.?[%d_]*e?[-+]?[%d_]*$") or text:find("__") or text:find("^_") or text:find("_$") then
    return nil
  end
  return tonumber((text:gsub("_", ""):gsub("^%+", "")))
end

local function truncate(number) return values.integer(number < 0 and math.ceil(number) or math.floor(number)) end

add("int", { "default", "base" }, function(value, default, base)
  if default == nil then default = 0 end
  local text = values.text_of(value)
  if text then
    base = integer(base, 10, "int")
    if base < 2 or base > 36 then fail(("int: base must be from 2 to 36, got %d"):format(base)) end
    local sign, digits = unicode.lstrip(unicode.rstrip(text)):gsub("_", ""):match("^([-+]?)(%w+)$")
    local prefixes = { [16] = "^0[xX]", [8] = "^0[oO]", [2] = "^0[bB]" }
    if digits and prefixes[base] then digits = digits:gsub(prefixes[base], "") end
    -- tonumber reads the prefixes 0x and 0b in base 10 and 16, too.
    local has_prefix = digits and base == 10 and digits:find "%a"
    local number = digits and not has_prefix and tonumber(digits, base)
    if number then return values.integer(sign == "-" and -number or number) end
    number = parse_float(text)
    if not number or number ~= number or math.abs(number) == math.huge then return default end
    return truncate(number)
  end
  local number = values.number_of(value)
  if not number or number ~= number or math.abs(number) == math.huge then return default end
  return truncate(number)
end)

add("float", { "default" }, function(value, default)
  local text = values.text_of(value)
  local number = text and parse_float(text) or not text and values.number_of(value)
  if number then return values.float(number) end
  return default == nil and values.float(0) or default
end)

add("round", { "precision", "method" }, function(value, precision, method)
  local number, is_float = values.number_of(value)
  if not number then fail("round needs a number, got a " .. values.type_name(value)) end
  precision = integer(precision, 0, "round")
  if method == "ceil" or method == "floor" then
    local scale = 10 ^ precision
    return values.float(math[method](number * scale) / scale)
  end
  if method ~= nil and method ~= "common" then fail('round: method must be "common", "ceil" or "floor"') end
  if precision < 0 or precision > 98 then
    fail(("round with the precision %d is not supported; from 0 to 98"):format(precision))
  end
  if not is_float then return number end
  if number ~= number or math.abs(number) == math.huge then return number end
  return values.float(tonumber(("%%.%df"):format(precision):format(number)))
end)

-- Sequences ---------------------------------------------------------------------------------------------

add("length", {}, function(value)
  return values.length(value) or fail(("a %s has no length"):format(values.type_name(value)))
end)
alias("count", "length")

add("default", { "default_value", "boolean" }, function(value, default, boolean)
  if type(value) == "table" and value.kind == "undefined" or flag(boolean) and not truth(value) then
    return default == nil and "" or default
  end
  return value
end)
alias("d", "default")
alias("e", "escape")

add("list", {}, function(value) return values.list(values.to_array(value)) end)

add("first", {}, function(value)
  if type(value) == "table" and value.kind == "generator" then
    if value.taken == value.n then return values.undefined("first: the sequence is empty") end
    value.taken = value.taken + 1
    return value[value.taken]
  end
  local items, first, last = values.iterate(value)
  if last < first then return values.undefined("first: the sequence is empty") end
  return items[first]
end)

add("last", {}, function(value)
  if type(value) == "table" and value.kind == "generator" then fail("last needs a sequence; use |list before it") end
  local items, first, last = values.iterate(value)
  if last < first then return values.undefined("last: the sequence is empty") end
  return items[last]
end)

add("reverse", {}, function(value)
  local array, n = values.to_array(value)
  local reversed = {}
  for i = 1, n do reversed[i] = array[n + 1 - i] end
  if type(value) == "string" then return table.concat(reversed) end
  return values.generator(reversed, n)
end)

add("items", {}, function(value)
  if type(value) == "table" and value.kind == "undefined" then return values.generator({}, 0) end
  if type(value) ~= "table" or value.kind ~= "dict" then
    fail("items needs a mapping, got a " .. values.type_name(value))
  end
  return values.generator(methods.pairs_of(value))
end)

--- Returns a function that takes the attribute "a.b.0" from a value; `default` replaces undefined values.
local function getter(attribute, default)
  if attribute == nil or attribute == values.none then return function(value) return value end end
  local parts = {}
  if type(attribute) == "string" then
    for part in (attribute .. "."):gmatch("([^.]*)%.") do
      parts[#parts + 1] = part:find("^%d+$") and tonumber(part) or part
    end
  else
    parts[1] = attribute
  end
  return function(value)
    for _, part in ipairs(parts) do
      value = access.item(value, part)
      if default ~= nil and type(value) == "table" and value.kind == "undefined" then value = default end
    end
    return value
  end
end

add("attr", { "name" }, function(value, name)
  if type(value) == "table" and value.kind == "dict" and methods.dict[name] == nil then
    return values.undefined(("a dict has no attribute %s"):format(values.repr(name)))
  end
  return access.attribute(value, name)
end)

add("join", { "d", "attribute" }, function(value, separator, attribute)
  local array, n = values.to_array(value)
  local get = getter(attribute)
  for i = 1, n do array[i] = str(get(array[i])) end
  return limits.concat(array, separator == nil and "" or str(separator), n)
end)

--- Returns a function that gives what to sort by.
local function sort_key(attribute, case_sensitive)
  local get = getter(attribute)
  return function(value)
    value = get(value)
    return not flag(case_sensitive) and type(value) == "string" and unicode.lower(value) or value
  end
end

--- Sorts in place; equal elements keep their order.
local function sort(array, n, key, reverse)
  local entries = {}
  for i = 1, n do entries[i] = { key(array[i]), i, array[i] } end
  table.sort(entries, function(a, b)
    if values.less(a[1], b[1]) then return not reverse end
    if values.less(b[1], a[1]) then return reverse end
    return a[2] < b[2]
  end)
  for i = 1, n do array[i] = entries[i][3] end
  return array, n
end

add("sort", { "reverse", "case_sensitive", "attribute" }, function(value, reverse, case_sensitive, attribute)
  local array, n = values.to_array(value)
  return values.list(sort(array, n, sort_key(attribute, case_sensitive), flag(reverse)))
end)

add("dictsort", { "case_sensitive", "by", "reverse" }, function(value, case_sensitive, by, reverse)
  if type(value) ~= "table" or value.kind ~= "dict" then
    if type(value) == "table" and value.kind == "undefined" then values.fail_undefined(value) end
    fail("dictsort needs a mapping, got a " .. values.type_name(value))
  end
  if by ~= nil and by ~= "key" and by ~= "value" then fail('dictsort: by must be "key" or "value"') end
  local array, n = methods.pairs_of(value)
  return values.list(sort(array, n, sort_key(by == "value" and 1 or 0, case_sensitive), flag(reverse)))
end)

add("unique", { "case_sensitive", "attribute" }, function(value, case_sensitive, attribute)
  local array, n = values.to_array(value)
  local key, seen, result = sort_key(attribute, case_sensitive), {}, {}
  for i = 1, n do
    local k = values.key_of(key(array[i]))
    if not seen[k] then result[#result + 1], seen[k] = array[i], true end
  end
  return values.generator(result)
end)

for name, sign in pairs { min = 1, max = -1 } do
  add(name, { "case_sensitive", "attribute" }, function(value, case_sensitive, attribute)
    local array, n = values.to_array(value)
    if n == 0 then return values.undefined(name .. ": the sequence is empty") end
    local key = sort_key(attribute, case_sensitive)
    local best = array[1]
    for i = 2, n do
      local a, b = key(array[i]), key(best)
      if sign > 0 and values.less(a, b) or sign < 0 and values.less(b, a) then best = array[i] end
    end
    return best
  end)
end

add("sum", { "attribute", "start" }, function(value, attribute, start)
  local array, n = values.to_array(value)
  local get, total = getter(attribute), start == nil and 0 or start
  for i = 1, n do total = operators.binary["+"](total, get(array[i])) end
  return total
end)

-- Filters that take filters or tests -------------------------------------------------------------------

local function find(kind, known, name)
  local found = type(name) == "string" and known[name]
  if not found then fail(("there is no %s named %s"):format(kind, values.repr(name))) end
  return found
end

-- The arguments by name arrive as {{name, value}, ...}, since what they mean depends on the first argument.
M.map = { params = {}, variadic = true, takes_names = true, fn = function(value, args, n, kwargs)
  local array, size = values.to_array(value)
  local apply
  if n == 0 then
    local attribute, default
    for _, pair in ipairs(kwargs) do
      if pair[1] == "attribute" then attribute = pair[2]
      elseif pair[1] == "default" then default = given(pair[2])
      else fail("map has no parameter " .. pair[1]) end
    end
    if attribute == nil then fail("map needs a filter or an attribute") end
    apply = getter(attribute, default)
  else
    local filter = find("filter", M, args[1])
    local rest = { unpack(args, 2, n) }
    local count = access.place_arguments(args[1], filter.params, rest, n - 1, kwargs)
    apply = function(item)
      if filter.takes_names then return filter.fn(item, rest, count, {}) end
      return filter.fn(item, unpack(rest, 1, count))
    end
  end
  for i = 1, size do
    limits.reserve_array(1)
    array[i] = apply(array[i])
  end
  return values.generator(array, size)
end }

local function add_selection(name, by_attribute, keeps)
  M[name] = { params = {}, variadic = true, fn = function(value, ...)
    local args, n, get = { ... }, select("#", ...), nil
    if by_attribute then
      if n == 0 then fail(name .. " needs the name of an attribute") end
      get = getter(table.remove(args, 1))
      n = n - 1
    end
    local test = n > 0 and find("test", tests, args[1]).fn or truth
    local array, size = values.to_array(value)
    local kept = {}
    for i = 1, size do
      local item = array[i]
      if get then item = get(item) end
      if test(item, unpack(args, 2, n)) == keeps then kept[#kept + 1] = array[i] end
    end
    return values.generator(kept)
  end }
end

add_selection("select", false, true)
add_selection("reject", false, false)
add_selection("selectattr", true, true)
add_selection("rejectattr", true, false)

return M
