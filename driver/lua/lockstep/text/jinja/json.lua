--- The filter tojson: what Python's json.dumps writes.

local unicode = require "lockstep.text.jinja.unicode"
local values = require "lockstep.text.jinja.values"

local M = {}

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

local function quote(text, ensure_ascii)
  if text:find('[%z\1-\31"\\]') then text = text:gsub('[%z\1-\31"\\]', escape) end
  if ensure_ascii then text = text:gsub("[\194-\244][\128-\191]+", escape_wide) end
  return '"' .. text .. '"'
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
  if t == "number" then return value % 1 == 0 and ("%d"):format(value) or float_text(value) end
  if value == values.none then return "null" end
  if t == "table" and value.kind == "float" then return float_text(value.value) end
end

local write

local function write_list(out, list, o, indent)
  if list.n == 0 then
    out[#out + 1] = "[]"
    return
  end
  local inner = o.indent and indent .. o.indent
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
  local inner = o.indent and indent .. o.indent
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
    out[n + 2] = quote(name, o.ensure_ascii)
    out[n + 3] = o.key
    write(out, dict.map[is_text and key or values.key_of(key)], o, inner)
    n = #out
  end
  out[n + 1] = inner and indent .. "}" or "}"
end

write = function(out, value, o, indent)
  if type(value) == "string" then
    out[#out + 1] = quote(value, o.ensure_ascii)
    return
  end
  local text = plain(value)
  if text then
    out[#out + 1] = text
    return
  end
  local kind = value.kind
  if kind == "dict" then return write_dict(out, value, o, indent) end
  if kind == "list" or kind == "tuple" then return write_list(out, value, o, indent) end
  if kind == "markup" then
    out[#out + 1] = quote(value.text, o.ensure_ascii)
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
function M.tojson(value, ensure_ascii, indent, separators, sort_keys)
  if indent == values.none then indent = nil end
  local step = indent
  if indent ~= nil and type(indent) ~= "string" then
    local number = values.number_of(indent)
    if not number then values.fail("tojson: indent must be an int or a str, got a " .. values.type_name(indent)) end
    step = (" "):rep(number)
  end
  local item, key = separators_of(separators, step ~= nil)
  local o = { ensure_ascii = ensure_ascii ~= nil and values.truth(ensure_ascii), indent = step, item = item, key = key,
    sort_keys = sort_keys ~= nil and values.truth(sort_keys) }
  local out = {}
  write(out, value, o, "\n")
  return table.concat(out)
end

return M
