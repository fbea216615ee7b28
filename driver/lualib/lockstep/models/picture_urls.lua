--- Pictures of messages as data URLs, as inference servers take them. Private to models.server.

local bit = require "bit"
local core = require "lockstep.core"
local core_images = require "lockstep.core.images"
local ffi = require "ffi"
local pictures = require "lockstep.text.chat.pictures"
local plain = require "lockstep.plain"
local torch = require "lockstep.torch"

local NAME = "models.server"
local DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"

local M = {}

--- Returns bytes in base64 (RFC 4648, section 4).
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

local function kind_of(bytes)
  if bytes:sub(1, 4) == "\137PNG" then return "png" end
  if bytes:sub(1, 2) == "\255\216" then return "jpeg" end
  return "webp"
end

--- Returns the picture of a part: the bytes of its file, which are sent as they are.
local function url_of(part, folder, place)
  local given = pictures.source(NAME, part, folder, place)
  plain.check(not torch.is_tensor(given),
    '%s: %s is a tensor; servers are given files: {type = "image", path = "cat.png"}', NAME, place)
  local bytes = core_images.is_image(given) and given or plain.read_file(given)
  if not bytes or not core_images.is_image(bytes) then
    core.raise(("%s: %s: %s"):format(NAME, place, not bytes and "there is no file " .. given
      or given .. " is no JPEG, PNG or WebP"))
  end
  return ("data:image/%s;base64,%s"):format(kind_of(bytes), base64(bytes))
end

--- Returns messages in OpenAI's form, with each picture as an image_url in its place, and the URLs in their order.
---@param messages table[] of chat:encode
---@param folder string of relative paths
---@return table[] messages
---@return string[] urls
function M.of(messages, folder)
  local changed, urls = {}, {}
  for i, message in ipairs(messages) do
    changed[i] = message
    if type(message.content) == "table" then
      local parts = {}
      for j, part in ipairs(message.content) do
        parts[j] = part
        if part.type == "image" then
          urls[#urls + 1] = url_of(part, folder, ("message %d, part %d"):format(i, j))
          parts[j] = { type = "image_url", image_url = { url = urls[#urls] } }
        end
      end
      changed[i] = plain.copy(message, { content = parts })
    end
  end
  return changed, urls
end

return M
