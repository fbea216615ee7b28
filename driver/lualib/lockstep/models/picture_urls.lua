--- Pictures of messages as data URLs, as inference servers take them. Private to models.server.

local core = require "lockstep.core"
local core_images = require "lockstep.core.images"
local data_urls = require "lockstep.text.chat.data_urls"
local pictures = require "lockstep.text.chat.pictures"
local plain = require "lockstep.plain"
local torch = require "lockstep.torch"

local NAME = "models.server"

local M = {}

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
  return data_urls.encode(bytes)
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
        if pictures.is_one(part) then
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
