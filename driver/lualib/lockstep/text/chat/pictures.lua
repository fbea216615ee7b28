--- Pictures in conversations: what processors of transformers add to the ids of a chat.

local core = require "lockstep.core"
local core_images = require "lockstep.core.images"
local data_urls = require "lockstep.text.chat.data_urls"
local file_url = require "lockstep.images.file_url"
local plain = require "lockstep.plain"
local replaced = require "lockstep.text.chat.replaced"
local torch = require "lockstep.torch"

local M = {}

-- The token that stands for a picture in templates of Qwen2-VL, Qwen2.5-VL and Qwen3-VL.
local PLACEHOLDER = "<|image_pad|>"

local check, fail = plain.checks "chat:encode: "

--- Returns the beginning of a long text, such as a picture in base64.
local function text_of(source) return #source > 200 and source:sub(1, 60) .. "..." or source end

--- Returns whether a text is a PNG, JPEG or WebP file in base64, and not a path.
local function is_base64(text)
  local begins = text:find "^iVBORw0KGgo" or text:find "^/9j/" or text:find "^UklGR"
  return begins and #text > 60 and not text:find "[^%w+/=%s]"
end

local given = plain.given

--- Returns whether a part of a message is a picture: {"type": "image"}, or OpenAI's {"type": "image_url"}.
---@param part any
---@return boolean
function M.is_one(part) return type(part) == "table" and (part.type == "image" or part.type == "image_url") end

--- Returns what a part has as its picture, under any of its names, or nil. Files of `datasets` hold {bytes, path}.
---@param part table
---@return any
function M.value(part)
  local value = given(part.image) or given(part.path) or given(part.image_url) or given(part.url)
  if type(value) == "table" then value = given(value.url) or given(value.bytes) or given(value.path) end
  return value
end

--- Returns messages whose pictures in OpenAI's form are {"type": "image"}, as templates know them. transformers'
--- processors change them alike.
---@param messages table[]
---@return table[]
function M.renamed(messages)
  local changed = { unpack(messages) }
  for i, message in ipairs(messages) do
    local content
    for j, part in ipairs(type(message) == "table" and type(message.content) == "table" and message.content or {}) do
      if type(part) == "table" and part.type == "image_url" then
        content = content or { unpack(message.content) }
        content[j] = { type = "image", image = M.value(part) }
      end
    end
    if content then
      changed[i] = plain.copy(message, { content = content })
      core.json_shapes()[changed[i]] = core.json_shapes()[message]
    end
  end
  return changed
end

--- Returns what a part gives as its picture: a tensor, a path, or the bytes of a file. Private to the library.
---@param caller string for messages
---@param part table
---@param folder string of relative paths
---@param place string of the part, for messages
---@return torch.Tensor|string
function M.source(caller, part, folder, place)
  local value = M.value(part)
  if torch.is_tensor(value) then return value end
  local is_text = type(value) == "string"
  if is_text and value:find "^data:" then
    local bytes, reason = data_urls.decode(value)
    if bytes and core_images.is_image(bytes) then return bytes end
    core.raise(('%s: %s: "%s" is not the data URL of a picture: %s'):format(caller, place, text_of(value), reason
      or "it holds no JPEG, PNG or WebP"))
  end
  if is_text and value:find "^https?://" then
    core.raise(('%s: %s: "%s" is on the network, and only files are read: download it, and give its path'):format(
      caller, place, text_of(value)))
  end
  if is_text and is_base64(value) then
    core.raise(('%s: %s: "%s" is base64 without a data URL; write "data:image/png;base64," before it'):format(caller,
      place, text_of(value)))
  end
  if is_text then value = file_url.path(value) or value end
  if not is_text or value:find "^%a[%w+.-]*://" then
    local got = is_text and '"' .. text_of(value) .. '", which is not a path'
      or value == nil and 'neither, and no column "images" or "image" has a picture for it' or "a " .. type(value)
    core.raise(('%s: %s: a picture is {type = "image", path = "cat.png"}, or has a tensor under "image"; got %s')
      :format(caller, place, got))
  end
  local is_relative = folder ~= "." and value:sub(1, 1) ~= "/" and not core_images.is_image(value)
    and not value:find "%z" -- the bytes of a damaged picture
  return is_relative and folder .. "/" .. value or value
end

--- Returns the picture of a part: uint8 [3, H, W]. Private to the library.
---@param part table
---@param folder string of relative paths
---@param place string of the part, for messages
---@return torch.Tensor
function M.read(part, folder, place)
  local source = M.source("chat:encode", part, folder, place)
  if torch.is_tensor(source) then return source end
  return require("lockstep.images").read(source, { alpha = "drop" }) -- as load_image of transformers reads a path
end

--- Returns all pictures of the messages in their order. Throws where there is a video, unless the model takes them.
---@param messages table[]
---@param folder string of relative paths
---@param takes_videos boolean
---@return torch.Tensor[]
function M.find(messages, folder, takes_videos)
  local found = {}
  for i, message in ipairs(messages) do
    for j, part in ipairs(type(message.content) == "table" and message.content or {}) do
      local place = ("message %d, part %d"):format(i, j)
      if M.is_one(part) then
        found[#found + 1] = M.read(part, folder, place)
      elseif part.type == "video" and not takes_videos then
        fail('%s has the type "video"; known are "text", "image" and "image_url"', place)
      end
    end
  end
  return found
end

--- Raises an error if there is a picture in messages to a model of text. Private to the library.
---@param messages table[]
function M.refuse(messages)
  for i, message in ipairs(messages) do
    for j, part in ipairs(type(message.content) == "table" and message.content or {}) do
      check(not M.is_one(part),
        "message %d, part %d is a picture, and the model takes text alone; give a model with a vision tower", i, j)
    end
  end
end

--- Returns where a token begins in a text, each time.
local function places_of(text, token)
  local places, from = {}, 1
  while true do
    local first, last = text:find(token, from, true)
    if not first then return places end
    places[#places + 1], from = first, last + 1
  end
end

--- Returns what Gemma 3 reads in place of a picture and its crops.
local function written(tokens, process, num_crops)
  local one = "\n\n" .. tokens.boi_token .. tokens.image_token:rep(process.config.image_seq_length) .. tokens.eoi_token
    .. "\n\n"
  if num_crops == 0 then return one end
  return "Here is the original image " .. one .. " and here are some crops to help you see better "
    .. one .. (" " .. one):rep(num_crops - 1)
end

--- Writes the tokens of Gemma 3's pictures into a text, as Gemma3Processor does. They belong there before the text
--- becomes ids, because line breaks stand around them. Spans move with the text.
---@param text string in which boi_token stands for each picture
---@param spans integer[][] of bytes
---@param pictures torch.Tensor[]
---@param tokens table<string, string> of the folder
---@param process images.Processor
---@return string text
---@return integer[][] spans
---@return {pixel_values: torch.Tensor?, image_grid_thw: torch.Tensor?} seen
function M.write(text, spans, pictures, tokens, process)
  for _, name in ipairs { "boi_token", "eoi_token", "image_token" } do
    if not tokens[name] then fail("tokenizer_config.json lacks %s, which stands for pictures of Gemma 3", name) end
  end
  local places, pixels, grids, edits = places_of(text, tokens.boi_token), {}, {}, {}
  check(#places == #pictures, "the text has %d tokens %s, but the messages have %d pictures", #places, tokens.boi_token,
    #pictures)
  for i, place in ipairs(places) do
    pixels[i], grids[i] = process(pictures[i])
    edits[i] = { first = place, last = place + #tokens.boi_token - 1,
      piece = written(tokens, process, grids[i]:size(0) - 1) }
  end
  local new_text, new_spans = replaced(text, spans, edits)
  return new_text, new_spans,
    { pixel_values = #pixels > 0 and torch.cat(pixels) or nil, image_grid_thw = #grids > 0 and torch.cat(grids) or nil }
end

--- Adds to a sample what M.write has seen. No loss is of a placeholder: a picture that the assistant shows is read,
--- and not said.
---@param sample {input_ids: integer[], loss_mask: integer[]}
---@param seen {pixel_values: torch.Tensor?, image_grid_thw: torch.Tensor?}
---@param tokens table<string, string>
---@param tokenizer text.Tokenizer
---@param process images.Processor
---@return table sample as M.add returns it
function M.mark(sample, seen, tokens, tokenizer, process)
  local id, types, count = tokenizer:id(tokens.image_token), {}, 0
  for i, own in ipairs(sample.input_ids) do
    types[i] = own == id and 1 or 0
    if own == id then sample.loss_mask[i] = 0 end
    count = count + types[i]
  end
  local expected = seen.image_grid_thw and seen.image_grid_thw:size(0) * process.config.image_seq_length or 0
  check(count == expected,
    "the ids have %d tokens %s, and the pictures need %d; the token stands for pictures, and is not for messages",
    count, tokens.image_token, expected)
  sample.mm_token_type_ids, sample.pixel_values = types, seen.pixel_values
  sample.image_grid_thw = seen.image_grid_thw
  return sample
end

--- Adds pictures to a sample: each placeholder of one becomes as many as the picture has tokens, in ids and mask alike.
--- No loss is of a placeholder: a picture that the assistant shows is read, and not said.
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
      ids[#ids + 1], mask[#mask + 1] = id, is_picture and 0 or sample.loss_mask[i]
      types[#types + 1] = is_picture and 1 or 0
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
