--- Pictures as data URLs (RFC 2397), with their bytes in base64 (RFC 4648, section 4).

local bit = require "bit"
local ffi = require "ffi"

local DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
local VALUES = ffi.new("uint8_t[256]")
for i = 1, #DIGITS do VALUES[DIGITS:byte(i)] = i - 1 end

local M = {}

local function base64(bytes)
  local groups = math.ceil(#bytes / 3)
  local from, digits = ffi.new("uint8_t[?]", 3 * groups + 1), ffi.cast("const uint8_t*", DIGITS)
  local to = ffi.new("uint8_t[?]", 4 * groups + 1)
  ffi.copy(from, bytes, #bytes)
  for i = 0, groups - 1 do
    local bits = from[3 * i] * 65536 + from[3 * i + 1] * 256 + from[3 * i + 2]
    for k = 0, 3 do to[4 * i + k] = digits[bit.band(bit.rshift(bits, 18 - 6 * k), 63)] end
  end
  local padding = 3 * groups - #bytes
  return ffi.string(to, 4 * groups - padding) .. ("="):rep(padding)
end

--- Returns the bytes of a picture's file as a URL.
---@param bytes string
---@return string
function M.encode(bytes)
  local kind = bytes:sub(1, 4) == "\137PNG" and "png" or bytes:sub(1, 2) == "\255\216" and "jpeg" or "webp"
  return ("data:image/%s;base64,%s"):format(kind, base64(bytes))
end

--- Returns the bytes of a URL, or nil and what is wrong with it. Line breaks within base64 have no meaning, and its
--- padding may be left out.
---@param url string
---@return string? bytes
---@return string? reason
function M.decode(url)
  local comma = url:find(",", 1, true)
  if not comma or not url:sub(1, comma - 1):find ";base64$" then return nil, 'it lacks ";base64," before its data' end
  local text = url:sub(comma + 1)
  if text:find "%s" then text = text:gsub("%s", "") end
  text = text:gsub("=?=$", "")
  local wrong = text:find "[^%w+/]"
  if wrong then return nil, ('its base64 has the character "%s"'):format(text:sub(wrong, wrong)) end
  if #text % 4 == 1 then return nil, ("its base64 is cut off after %d characters"):format(#text) end
  local groups = math.ceil(#text / 4)
  local from, to = ffi.new("uint8_t[?]", 4 * groups + 1), ffi.new("uint8_t[?]", 3 * groups + 1)
  ffi.fill(from, 4 * groups, DIGITS:byte(1))
  ffi.copy(from, text, #text)
  for i = 0, groups - 1 do
    local bits = 0
    for k = 0, 3 do bits = bits * 64 + VALUES[from[4 * i + k]] end
    for k = 0, 2 do to[3 * i + k] = bit.band(bit.rshift(bits, 16 - 8 * k), 255) end
  end
  return ffi.string(to, math.floor(#text * 3 / 4))
end

return M
