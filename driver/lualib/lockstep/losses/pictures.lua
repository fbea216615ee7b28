--- Pictures of preferences: each one of a row is read once, and the pixels of a sample are in memory only while it is
--- trained on. Private to lockstep.losses.

local core = require "lockstep.core"
local files = require "lockstep.files"
local images = require "lockstep.text.chat.pictures"
local plain = require "lockstep.plain"
local torch = require "lockstep.torch"

local M = {}

--- A processor that cuts each picture into patches once. It keeps the patches, and the order in which texts have them.
---@class losses.PicturesOfRow
---@field config images.Config
---@field pixels torch.Tensor[]
---@field grids torch.Tensor[]
---@field order integer[] rows of all grids, from 0
local Row = {}

function Row:__call(picture)
  local known = self.known[picture]
  if not known then
    local pixels, grid = self.process(picture)
    known = { pixels = pixels, grid = grid, first = self.num_rows }
    self.known[picture], self.num_rows = known, self.num_rows + grid:size(0)
    self.pixels[#self.pixels + 1], self.grids[#self.grids + 1] = pixels, grid
  end
  for i = 0, known.grid:size(0) - 1 do self.order[#self.order + 1] = known.first + i end
  return known.pixels, known.grid
end

--- Returns an encoder for the conversations of one row: encode(messages, opts) does what chat:encode does. It reads a
--- part that several conversations share once. Without a processor pictures are an error.
---@param chat table of text.chat
---@param opts {processor: images.Processor?, folder: string}
---@return fun(messages: table[], opts: table): table encode
---@return losses.PicturesOfRow? row
function M.encoder(chat, opts)
  local row, read = nil, {}
  if opts.processor then
    row = setmetatable({ process = opts.processor, config = opts.processor.config, known = {}, num_rows = 0,
      pixels = {}, grids = {}, order = {} }, Row)
  end
  local function encode(messages, more)
    if not row then
      images.refuse(messages)
      return chat:encode(messages, more)
    end
    local opened = {}
    for i, message in ipairs(messages) do
      local content
      for j, part in ipairs(type(message.content) == "table" and message.content or {}) do
        if images.is_one(part) then
          read[part] = read[part] or images.read(part, opts.folder, ("message %d, part %d"):format(i, j))
          content = content or { unpack(message.content) }
          content[j] = { type = "image", image = read[part] }
        end
      end
      opened[i] = content and plain.copy(message, { content = content }) or message
      if content then core.json_shapes()[opened[i]] = core.json_shapes()[message] end
    end
    return chat:encode(opened, plain.copy(more, { processor = row }))
  end
  return encode, row
end

--- Returns whether two conversations have the same ids and the same pictures.
---@param a {input_ids: torch.Tensor, pixel_values: torch.Tensor?, image_grid_thw: torch.Tensor?}
---@param b {input_ids: torch.Tensor, pixel_values: torch.Tensor?, image_grid_thw: torch.Tensor?}
---@return boolean
function M.are_same(a, b)
  for _, name in ipairs { "input_ids", "image_grid_thw", "pixel_values" } do
    local own, other = a[name], b[name]
    if own ~= other and not (own and other and torch.equal(own, other)) then return false end
  end
  return true
end

--- Takes the pixels out of a sample, and returns their checksum. M.loaded(sample) puts them back: load() returns them.
---@param sample batching.Sample
---@param load fun(): torch.Tensor
---@return string
function M.set_aside(sample, load)
  local pixels = sample.pixel_values
  -- A stand-in of the same shape, in the memory of one number.
  sample.pixel_values = torch.full({ 1, 1 }, 0 / 0, { dtype = pixels.dtype }):expand(pixels:size(0), pixels:size(1))
  local _, checksum = files.checksum_of { pixels }
  sample.pictures = { load = load, checksum = checksum }
  return checksum
end

--- Returns a sample as batching takes it.
---@param sample batching.Sample
---@param with_pixels boolean
---@return batching.Sample
function M.loaded(sample, with_pixels)
  local copy = plain.copy(sample)
  copy.pictures = nil
  if sample.pictures and with_pixels then copy.pixel_values = sample.pictures.load() end
  return copy
end

return M
