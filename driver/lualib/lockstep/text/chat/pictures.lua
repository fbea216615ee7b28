--- Pictures in conversations: what processors of transformers add to the ids of a chat.

local core = require "lockstep.core"
local torch = require "lockstep.torch"

local M = {}

-- The token that stands for a picture in templates of Qwen2-VL, Qwen2.5-VL and Qwen3-VL.
local PLACEHOLDER = "<|image_pad|>"

local function fail(message, ...) core.raise("chat:encode: " .. message:format(...)) end

--- Returns the picture of a part: uint8 [3, H, W].
local function read(part, folder, place)
  local given = (part.image ~= core.null and part.image) or part.path
  if torch.is_tensor(given) then return given end
  if type(given) ~= "string" or given:find("^%a+://") then
    fail('%s: a picture is {type = "image", path = "cat.png"}, or has a tensor under "image"; got %s', place,
      type(given) == "string" and '"' .. given .. '", which is not a path' or "a " .. type(given))
  end
  if folder ~= "." and given:sub(1, 1) ~= "/" then given = folder .. "/" .. given end
  return require("lockstep.images").read(given, { alpha = "drop" }) -- as load_image of transformers reads a path
end

--- Returns all pictures of the messages in their order. Throws where there is a video, which has no reader here.
---@param messages table[]
---@param folder string of relative paths
---@return torch.Tensor[]
function M.find(messages, folder)
  local found = {}
  for i, message in ipairs(messages) do
    for j, part in ipairs(type(message.content) == "table" and message.content or {}) do
      local place = ("message %d, part %d"):format(i, j)
      if part.type == "image" then
        found[#found + 1] = read(part, folder, place)
      elseif part.type == "video" or part.type == "image_url" then
        fail('%s has the type "%s"; known are "text" and "image"', place, part.type)
      end
    end
  end
  return found
end

--- Adds pictures to a sample: each placeholder of one becomes as many as the picture has tokens, in ids and mask alike.
---@param sample {input_ids: integer[], loss_mask: integer[]}
---@param pictures torch.Tensor[]
---@param tokenizer text.Tokenizer
---@param process images.Processor
---@return table sample with mm_token_type_ids, and pixel_values and image_grid_thw if there are pictures
function M.add(sample, pictures, tokenizer, process)
  local placeholder, area = tokenizer:id(PLACEHOLDER), process.config.merge_size ^ 2
  local ids, mask, types, pixels, grids = {}, {}, {}, {}, {}
  for i, id in ipairs(sample.input_ids) do
    local count, is_picture = 1, id == placeholder
    if is_picture and pictures[#grids + 1] then
      local n = #grids + 1
      pixels[n], grids[n] = process(pictures[n])
      count = pixels[n]:size(0) / area
    elseif is_picture then
      fail("the text has more placeholders %s than the messages have pictures, %d", PLACEHOLDER, #pictures)
    end
    for _ = 1, count do
      ids[#ids + 1], mask[#mask + 1], types[#types + 1] = id, sample.loss_mask[i], is_picture and 1 or 0
    end
  end
  if #grids < #pictures then
    fail("the template writes %d placeholders %s for %d pictures; its model may take no pictures, or another token",
      #grids, PLACEHOLDER, #pictures)
  end
  local result = { input_ids = ids, loss_mask = mask, mm_token_type_ids = types }
  if #grids > 0 then result.pixel_values, result.image_grid_thw = torch.cat(pixels), torch.cat(grids) end
  return result
end

return M
