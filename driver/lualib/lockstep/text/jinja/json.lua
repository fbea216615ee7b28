--- The filter tojson: what Python's json.dumps writes.

local convert = require "lockstep.text.jinja.convert"
local limits = require "lockstep.text.jinja.limits"
local unicode = require "lockstep.text.jinja.unicode"
local values = require "lockstep.text.jinja.values"

jit.off(true, true) -- compiling traces of a template takes longer than it saves

local M = {}

local find = string.find

local ESCAPES = { ['"'] = '\\"', ["\\"] = "\\\\", ["\n"] = "\\n", ["\r"] = "\\r", ["\t"] = "\\t", ["\f"] = "\\f",
  ["\b"] = "\\b" }

local function escape(character)
  return ESCAPES[character] or ("\\u%04x"):format(character:byte())
end

local function escape_wide(character)
  local point = unicode.code_point(character)
  if point < 0x10000 then return ("\\u%04x"):format(point) end
  point = point - 0x10000
  return ("\\u%04x\\u%04x"):format(0xD800 + math.floor(point / 1024), 0xDC00 + point % 1024)
end

-- The same tools are written again and again: their texts are quoted once. Emptied when it is full.
local quoted, num_quoted = {}, 0
local MAX_QUOTED, MAX_QUOTED_BYTES = 4096, 1024

local function quote(text, o)
  local known, ensure_ascii = quoted[text], o.ensure_ascii
  if known and not ensure_ascii then return known end
  local source = text
  o.size = o.size + #text
  limits.check_text(o.size)
  if find(text, '[%z\1-\31"\\]') then text = text:gsub('[%z\1-\31"\\]', escape) end
  if ensure_ascii then text = text:gsub("[\194-\244][\128-\191]+", escape_wide) end
  limits.check_text(#text)
  text = '"' .. text .. '"'
  if not ensure_ascii and #text < MAX_QUOTED_BYTES then
    if num_quoted == MAX_QUOTED then quoted, num_quoted = {}, 0 end
    quoted[source], num_quoted = text, num_quoted + 1
  end
  return text
end

local function float_text(number)
  if number ~= number then return "NaN" end
  if number == math.huge then return "Infinity" end
  if number == -math.huge then return "-Infinity" end
  return values.float_text(number)
end

--- Returns the text of None, a bool or a number; nil for anything else.
local function plain(value)
  local t = type(value)
  if t == "boolean" then return value and "true" or "false" end
  if t == "number" then
    if value % 1 ~= 0 or value > 2 ^ 53 or value < -2 ^ 53 then return float_text(value) end
    return ("%d"):format(value)
  end
  if value == values.none then return "null" end
  if t == "table" and value.kind == "float" then return float_text(value.value) end
end

--- Reserves what writes n elements. Returns the newline and the spaces before each, or nil on one line.
local function inner_of(o, indent, n)
  limits.reserve_array(3 * n)
  if not o.indent then return nil end
  limits.check_text(#indent + #o.indent)
  return indent .. o.indent
end

local write

local function write_list(out, list, o, indent)
  if list.n == 0 then
    out[#out + 1] = "[]"
    return
  end
  limits.step(list.n)
  local inner = inner_of(o, indent, list.n)
  out[#out + 1] = inner and "[" .. inner or "["
  for i = 1, list.n do
    if i > 1 then out[#out + 1] = inner and o.item .. inner or o.item end
    write(out, list[i], o, inner)
  end
  out[#out + 1] = inner and indent .. "]" or "]"
end

local function sorted_keys(dict)
  local keys = {}
  for i = 1, dict.n do keys[i] = dict[i] end
  table.sort(keys, values.less)
  return keys
end

local function write_dict(out, dict, o, indent)
  if dict.n == 0 then
    out[#out + 1] = "{}"
    return
  end
  limits.step(dict.n)
  local inner = inner_of(o, indent, dict.n)
  local keys = o.sort_keys and sorted_keys(dict) or dict
  local n = #out
  for i = 1, dict.n do
    local key = keys[i]
    local is_text = type(key) == "string"
    local name = is_text and key or plain(key) or values.text_of(key)
    if i == 1 then
      out[n + 1] = inner and "{" .. inner or "{"
    else
      out[n + 1] = inner and o.item .. inner or o.item
    end
    out[n + 2] = quote(name, o)
    out[n + 3] = o.key
    write(out, dict.map[is_text and key or values.key_of(key)], o, inner)
    n = #out
  end
  out[n + 1] = inner and indent .. "}" or "}"
end

--- Writes the elements of a Lua table that no template has looked into. `value` stands for it in messages.
local function write_raw(out, object, value, o, indent, depth)
  if depth > convert.MAX_DEPTH then
    values.fail(("tojson: a value is nested more than %d deep, or contains itself"):format(convert.MAX_DEPTH))
  end
  local shape = convert.shape_of(object)
  local floats, is_list = shape and shape.floats, convert.is_list(object, shape)
  local keys, n
  if is_list then n = convert.check_list(object, value) else keys, n = convert.ordered_keys(object, shape, value) end
  local count = #out + 1
  if n == 0 then
    out[count] = is_list and "[]" or "{}"
    return
  end
  if keys and o.sort_keys then table.sort(keys) end
  local inner = inner_of(o, indent, n)
  local between = inner and o.item .. inner or o.item
  out[count] = (is_list and "[" or "{") .. (inner or "")
  for i = 1, n do
    local key = keys and keys[i] or i
    local element = object[key]
    if i > 1 then
      count = count + 1
      out[count] = between
    end
    if keys then
      out[count + 1], out[count + 2] = quote(key, o), o.key
      count = count + 2
    end
    local t = type(element)
    if t == "string" then
      count = count + 1
      out[count] = quote(element, o)
    elseif t == "table" then
      write_raw(out, element, value, o, inner, depth + 1)
      count = #out
    else
      count = count + 1
      if t == "number" and floats and (floats == true or floats[key]) then
        out[count] = float_text(element)
      else
        out[count] = plain(element) or quote(convert.stand_in(element, value), o)
      end
    end
  end
  out[count + 1] = (inner and indent or "") .. (is_list and "]" or "}")
end

write = function(out, value, o, indent)
  if type(value) == "string" then
    out[#out + 1] = quote(value, o)
    return
  end
  local text = plain(value)
  if text then
    out[#out + 1] = text
    return
  end
  local kind = value.kind
  local raw = rawget(value, "raw")
  if raw then return write_raw(out, raw, value, o, indent, convert.depth_of(value)) end
  if kind == "dict" then return write_dict(out, value, o, indent) end
  if kind == "list" or kind == "tuple" then return write_list(out, value, o, indent) end
  if kind == "markup" then
    out[#out + 1] = quote(value.text, o)
    return
  end
  values.fail(("tojson: a %s has no form in JSON%s"):format(values.type_name(value),
    kind == "undefined" and ": " .. value.message or ""))
end

--- Returns the separators after items and after keys.
local function separators_of(separators, has_indent)
  if separators == nil or separators == values.none then return has_indent and "," or ", ", ": " end
  local pair = type(separators) == "table" and values.to_array(separators)
  if not pair or #pair ~= 2 or type(pair[1]) ~= "string" or type(pair[2]) ~= "string" then
    values.fail("tojson: separators must be two strings: after an item, after a key")
  end
  return pair[1], pair[2]
end

--- Returns a value as JSON on one line, or indented by `indent` spaces or by a string.
---@param value any
---@param ensure_ascii any
---@param indent any
---@param separators any
---@param sort_keys any
---@return string
function M.tojson(value, ensure_ascii, indent, separators, sort_keys)
  if indent == values.none then indent = nil end
  local step = indent
  if indent ~= nil and type(indent) ~= "string" then
    local number = values.number_of(indent)
    if not number then values.fail("tojson: indent must be an int or a str, got a " .. values.type_name(indent)) end
    step = limits.repeated(" ", number)
  end
  local item, key = separators_of(separators, step ~= nil)
  local o = { ensure_ascii = ensure_ascii ~= nil and values.truth(ensure_ascii), indent = step, item = item, key = key,
    sort_keys = sort_keys ~= nil and values.truth(sort_keys), size = 0 }
  local out = {}
  write(out, value, o, "\n")
  return limits.concat(out, "", #out)
end

return M
