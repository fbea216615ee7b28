--- The methods of str, list, tuple and dict.
---
--- M[class][name] is {fn, params}; `fn` takes the object and the arguments, nil for those left out. A name with false
--- is a method of Python's that this interpreter does not have.

local limits = require "lockstep.text.jinja.limits"
local unicode = require "lockstep.text.jinja.unicode"
local values = require "lockstep.text.jinja.values"

jit.off(true, true) -- compiling traces of a template takes longer than it saves

local M = {}

local none = values.none
local fail, list = values.fail, values.list

--- Methods that change their object.
M.CHANGES = { append = true, clear = true, extend = true, insert = true, pop = true, popitem = true, remove = true,
  reverse = true, setdefault = true, sort = true, update = true }

local function absent(value) return value == nil or value == none end

--- Returns an argument that must be a str.
local function text(value, what)
  return values.text_of(value) or fail(("%s needs a str, got a %s"):format(what, values.type_name(value)))
end

--- Returns an argument that must be an int, or `default` where it is left out.
---@param value any
---@param default integer?
---@param what string for messages
---@return integer
function M.integer(value, default, what)
  if value == nil and default ~= nil then return default end
  local number, is_float = values.number_of(value)
  if not number or is_float then fail(("%s needs an int, got a %s"):format(what, values.type_name(value))) end
  return number
end

local integer = M.integer

-- Stripping ---------------------------------------------------------------------------------------------

local function strip_with(characters, s, from_left, from_right)
  local set = {}
  for _, character in ipairs(unicode.characters(characters)) do set[character] = true end
  local parts = unicode.characters(s)
  local first, last = 1, #parts
  while from_left and first <= last and set[parts[first]] do first = first + 1 end
  while from_right and last >= first and set[parts[last]] do last = last - 1 end
  return table.concat(parts, "", first, last)
end

--- The byte of a single ASCII character is never part of another character.
local function strip_byte(code, s, from_left, from_right)
  local first, last = 1, #s
  while from_left and s:byte(first) == code do first = first + 1 end
  while from_right and last >= first and s:byte(last) == code do last = last - 1 end
  return s:sub(first, last)
end

local function strip(s, characters, from_left, from_right)
  if absent(characters) then
    if from_left then s = unicode.lstrip(s) end
    return from_right and unicode.rstrip(s) or s
  end
  characters = text(characters, "strip()")
  if #characters == 1 then return strip_byte(characters:byte(), s, from_left, from_right) end
  return strip_with(characters, s, from_left, from_right)
end

-- Splitting ---------------------------------------------------------------------------------------------

local function split_at_spaces(s, limit)
  local parts, at = {}, unicode.skip_space(s, 1)
  while at <= #s do
    if #parts == limit then
      parts[#parts + 1] = s:sub(at)
      break
    end
    local stop = at
    while stop <= #s and unicode.skip_space(s, stop) == stop do stop = stop + 1 end
    parts[#parts + 1] = s:sub(at, stop - 1)
    limits.grow(#parts)
    at = unicode.skip_space(s, stop)
  end
  return parts
end

local function split(s, separator, limit)
  limit = integer(limit, -1, "split()")
  if absent(separator) then return list(split_at_spaces(s, limit)) end
  separator = text(separator, "split()")
  if separator == "" then fail("split() got an empty separator") end
  local parts, n, at = {}, 0, 1
  while n ~= limit do
    local first, last = s:find(separator, at, true)
    if not first then break end
    n = n + 1
    parts[n] = s:sub(at, first - 1)
    limits.grow(n)
    at = last + 1
  end
  parts[n + 1] = s:sub(at)
  return list(parts, n + 1)
end

--- Returns the last place of `part` that starts at or before byte `from`.
local function rfind_byte(s, part, from)
  for at = from, 1, -1 do
    if s:sub(at, at + #part - 1) == part then return at end
  end
end

local function rsplit(s, separator, limit)
  limit = integer(limit, -1, "rsplit()")
  if limit < 0 then return split(s, separator) end
  if absent(separator) then
    local words = split_at_spaces(s, -1)
    local keep = math.max(#words - limit, 0)
    if keep <= 1 then return list(words) end
    local head = unicode.rstrip(s)
    for i = #words, keep + 1, -1 do head = unicode.rstrip(head:sub(1, #head - #words[i])) end
    return list { unicode.lstrip(head), unpack(words, keep + 1) }
  end
  separator = text(separator, "rsplit()")
  if separator == "" then fail("rsplit() got an empty separator") end
  local reversed, stop = {}, #s
  while #reversed < limit do
    local at = rfind_byte(s, separator, stop - #separator + 1)
    if not at then break end
    reversed[#reversed + 1] = s:sub(at + #separator, stop)
    limits.grow(#reversed)
    stop = at - 1
  end
  reversed[#reversed + 1] = s:sub(1, stop)
  local parts = {}
  for i = #reversed, 1, -1 do parts[#parts + 1] = reversed[i] end
  return list(parts)
end

-- Searching ---------------------------------------------------------------------------------------------

--- Returns the part s[start:stop] in bytes: the string up to `stop`, and where `start` is.
local function part_of(s, start, stop, what)
  if absent(start) and absent(stop) then return s, 1 end
  local n = unicode.length(s)
  local function clamp(value, default)
    if absent(value) then return default end
    value = integer(value, default, what)
    return math.max(0, math.min(n, value < 0 and value + n or value))
  end
  start, stop = clamp(start, 0), clamp(stop, n)
  if unicode.is_ascii(s) then return s:sub(1, stop), start + 1 end
  local characters = unicode.characters(s)
  return table.concat(characters, "", 1, stop), #table.concat(characters, "", 1, start) + 1
end

local function affix_test(what, holds)
  return function(s, affix, start, stop)
    local part, first = part_of(s, start, stop, what)
    part = part:sub(first)
    if type(affix) == "table" and affix.kind == "tuple" then
      for i = 1, affix.n do
        if holds(part, text(affix[i], what)) then return true end
      end
      return false
    end
    return holds(part, text(affix, what))
  end
end

local startswith = affix_test("startswith()", function(s, affix) return s:sub(1, #affix) == affix end)
local endswith = affix_test("endswith()", function(s, affix) return affix == "" or s:sub(-#affix) == affix end)

local function find(s, wanted, start, stop)
  wanted = text(wanted, "find()")
  local part, first = part_of(s, start, stop, "find()")
  if first > #part + 1 then return -1 end
  local at = part:find(wanted, first, true)
  return at and unicode.length(part:sub(1, at - 1)) or -1
end

local function rfind(s, wanted, start, stop)
  wanted = text(wanted, "rfind()")
  local part, first = part_of(s, start, stop, "rfind()")
  local at = rfind_byte(part, wanted, #part - #wanted + 1)
  return at and at >= first and unicode.length(part:sub(1, at - 1)) or -1
end

local function count(s, wanted, start, stop)
  wanted = text(wanted, "count()")
  local part, at = part_of(s, start, stop, "count()")
  if wanted == "" then return math.max(unicode.length(part:sub(at)) + 1, 0) end
  local n = 0
  while true do
    local first, last = part:find(wanted, at, true)
    if not first then return n end
    n, at = n + 1, last + 1
  end
end

--- Replaces the first `limit` places, all where it is negative.
---@param s string
---@param old any
---@param new any
---@param limit any
---@return string
function M.replace(s, old, new, limit)
  old, new, limit = text(old, "replace()"), text(new, "replace()"), integer(limit, -1, "replace()")
  local parts, at = {}, 1
  if old == "" then
    local characters = unicode.characters(s)
    limits.check_text(#s + #new * #characters)
    for i, character in ipairs(characters) do
      parts[i] = (limit < 0 or i <= limit) and new .. character or character
    end
    if limit < 0 or #parts < limit then parts[#parts + 1] = new end
    return limits.concat(parts, "", #parts)
  end
  while limit ~= 0 do
    local first, last = s:find(old, at, true)
    if not first then break end
    parts[#parts + 1], parts[#parts + 2] = s:sub(at, first - 1), new
    limits.grow(#parts)
    limits.grow(#parts - 1)
    at, limit = last + 1, limit - 1
  end
  if at == 1 then return s end
  parts[#parts + 1] = s:sub(at)
  return limits.concat(parts, "", #parts)
end

local function join(s, items)
  local parts, n = values.to_array(items)
  for i = 1, n do parts[i] = text(parts[i], "join()") end
  return limits.concat(parts, s, n)
end

local function pad(s, width, fill, left_share)
  fill = fill == nil and " " or text(fill, "padding")
  local missing = integer(width, nil, "padding") - unicode.length(s)
  if missing <= 0 then return s end
  limits.check_text(#s + #fill * missing)
  local left = math.floor(missing * left_share)
  -- str.center() gives an odd space to the left where the width is odd.
  if left_share == 0.5 and missing % 2 == 1 and width % 2 == 1 then left = left + 1 end
  return fill:rep(left) .. s .. fill:rep(missing - left)
end

--- Returns whether there is a cased character and all cased ones are upper case, or none is.
local function is_case(s, wants_upper)
  local found = false
  for _, character in ipairs(unicode.characters(s)) do
    if unicode.is_cased(character) then
      if unicode.is_upper(character) ~= wants_upper then return false end
      found = true
    end
  end
  return found
end

local function ascii_class(name, pattern)
  return function(s)
    if not unicode.is_ascii(s) then fail(("%s() of text beyond ASCII is not supported"):format(name)) end
    return s ~= "" and not s:find(pattern)
  end
end

-- The tables --------------------------------------------------------------------------------------------

local function method(fn, params, variadic)
  local function wrap(object, ...)
    local result = fn(object.text, ...)
    return type(result) == "string" and values.markup(result) or result
  end
  return { fn = fn, params = params or {}, variadic = variadic, markup = wrap }
end

--- Makes a method of str. Reserves a result as large as the str; methods that make larger ones reserve them.
local function text_method(fn, params)
  return method(function(s, ...)
    limits.reserve(#s)
    return fn(s, ...)
  end, params)
end

local RANGE = { "sub", "start", "end" }

M.str = {
  capitalize = text_method(unicode.capitalize),
  casefold = false,
  center = text_method(function(s, width, fill) return pad(s, width, fill, 0.5) end, { "width", "fillchar" }),
  count = text_method(count, RANGE),
  encode = false,
  endswith = text_method(endswith, RANGE),
  expandtabs = false,
  find = text_method(find, RANGE),
  format = false,
  format_map = false,
  index = text_method(function(...)
    local at = find(...)
    return at >= 0 and at or fail("index(): the text is not there")
  end, RANGE),
  isalnum = text_method(ascii_class("isalnum", "[^%w]")),
  isalpha = text_method(ascii_class("isalpha", "[^%a]")),
  isascii = text_method(unicode.is_ascii),
  isdecimal = text_method(ascii_class("isdecimal", "[^%d]")),
  isdigit = text_method(ascii_class("isdigit", "[^%d]")),
  isidentifier = false,
  islower = text_method(function(s) return is_case(s, false) end),
  isnumeric = text_method(ascii_class("isnumeric", "[^%d]")),
  isprintable = false,
  isspace = text_method(function(s) return s ~= "" and unicode.skip_space(s, 1) > #s end),
  istitle = false,
  isupper = text_method(function(s) return is_case(s, true) end),
  join = text_method(join, { "iterable" }),
  ljust = text_method(function(s, width, fill) return pad(s, width, fill, 0) end, { "width", "fillchar" }),
  lower = text_method(unicode.lower),
  lstrip = text_method(function(s, characters) return strip(s, characters, true, false) end, { "chars" }),
  maketrans = false,
  partition = text_method(function(s, separator)
    local first, last = s:find(text(separator, "partition()"), 1, true)
    if not first then return values.tuple { s, "", "" } end
    return values.tuple { s:sub(1, first - 1), separator, s:sub(last + 1) }
  end, { "sep" }),
  removeprefix = text_method(function(s, prefix)
    return startswith(s, prefix) and s:sub(#prefix + 1) or s
  end, { "prefix" }),
  removesuffix = text_method(function(s, suffix)
    return suffix ~= "" and endswith(s, suffix) and s:sub(1, #s - #suffix) or s
  end, { "suffix" }),
  replace = text_method(M.replace, { "old", "new", "count" }),
  rfind = text_method(rfind, RANGE),
  rindex = text_method(function(...)
    local at = rfind(...)
    return at >= 0 and at or fail("rindex(): the text is not there")
  end, RANGE),
  rjust = text_method(function(s, width, fill) return pad(s, width, fill, 1) end, { "width", "fillchar" }),
  rpartition = text_method(function(s, separator)
    local at = rfind_byte(s, text(separator, "rpartition()"), #s - #separator + 1)
    if not at then return values.tuple { "", "", s } end
    return values.tuple { s:sub(1, at - 1), separator, s:sub(at + #separator) }
  end, { "sep" }),
  rsplit = text_method(rsplit, { "sep", "maxsplit" }),
  rstrip = text_method(function(s, characters) return strip(s, characters, false, true) end, { "chars" }),
  split = text_method(split, { "sep", "maxsplit" }),
  splitlines = text_method(function(s, keep)
    if keep and values.truth(keep) then fail("splitlines() with keepends is not supported") end
    return list(unicode.lines(s))
  end, { "keepends" }),
  startswith = text_method(startswith, RANGE),
  strip = text_method(function(s, characters) return strip(s, characters, true, true) end, { "chars" }),
  swapcase = false,
  title = text_method(unicode.title),
  translate = false,
  upper = text_method(unicode.upper),
  zfill = text_method(function(s, width)
    local sign = s:match("^[-+]?")
    return sign .. pad(s:sub(#sign + 1), integer(width, nil, "zfill()") - #sign, "0", 1)
  end, { "width" }),
}

local function copy_of(items)
  local copy = {}
  limits.reserve_array(items.n)
  for i = 1, items.n do copy[i] = items[i] end
  return copy
end

local function sequence_count(items, wanted)
  local n = 0
  for i = 1, items.n do
    if values.equal(items[i], wanted) then n = n + 1 end
  end
  return n
end

local function sequence_index(items, wanted)
  for i = 1, items.n do
    if values.equal(items[i], wanted) then return i - 1 end
  end
  fail("index(): the value is not in the list")
end

M.tuple = {
  count = method(sequence_count, { "value" }),
  index = method(sequence_index, { "value" }),
}

M.list = {
  append = false, clear = false, extend = false, insert = false, pop = false, remove = false, reverse = false,
  sort = false,
  copy = method(function(items) return list(copy_of(items), items.n) end),
  count = M.tuple.count,
  index = M.tuple.index,
}

--- Returns the pairs of a dict as tuples.
---@param dict table
---@return any
function M.pairs_of(dict)
  local items = {}
  limits.reserve_array(3 * dict.n)
  for i = 1, dict.n do
    local key = dict[i]
    items[i] = { key, dict.map[type(key) == "string" and key or values.key_of(key)], kind = "tuple", n = 2 }
  end
  return items, dict.n
end

M.dict = {
  clear = false, fromkeys = false, pop = false, popitem = false, setdefault = false, update = false,
  copy = method(function(dict)
    local copy = values.dict()
    limits.reserve_array(dict.n)
    for i = 1, dict.n do values.set_item(copy, dict[i], dict.map[values.key_of(dict[i])]) end
    return copy
  end),
  get = method(function(dict, key, default)
    if key == nil then fail("dict.get() needs a key") end
    local value
    if type(key) == "string" then
      value = dict.map[key]
    elseif type(key) ~= "table" or key.kind ~= "undefined" then
      value = dict.map[values.key_of(key)]
    end
    if value ~= nil then return value end
    return default == nil and none or default
  end, { "key", "default" }),
  items = method(function(dict) return values.view("dict_items", M.pairs_of(dict)) end),
  keys = method(function(dict) return values.view("dict_keys", copy_of(dict), dict.n) end),
  values = method(function(dict)
    local items = {}
    limits.reserve_array(dict.n)
    for i = 1, dict.n do items[i] = dict.map[values.key_of(dict[i])] end
    return values.view("dict_values", items, dict.n)
  end),
}

--- Returns whether a class has a method in Python.
---@param class string
---@param name string
---@return boolean
function M.has(class, name) return M[class] ~= nil and M[class][name] ~= nil end

return M
