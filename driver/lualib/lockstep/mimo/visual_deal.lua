--- Deals the pictures of a micro-batch to the ranks of a vision tower.
---
--- The pictures of all language ranks form one line, in the order of these ranks. The bridge divides both sides of it
--- into equally many samples. So the line is cut into pieces, the least common multiple of both numbers of ranks: each
--- piece belongs to one rank of either side. A rank's pictures are dealt to its pieces by their tokens, in their order,
--- and pieces with fewer pictures than others get empty samples.

local placeholders = require "lockstep.models.placeholders"
local plain = require "lockstep.plain"
local torch = require "lockstep.torch"

local M = {}

---@class mimo.Picture
---@field grid integer[] {t, h, w} in patches
---@field patches integer
---@field tokens integer
---@field pixels torch.Tensor of all pictures of its batch
---@field from integer its first row in these

---@class mimo.VisualDeal
---@field pieces mimo.Picture[][] in the order of the line
---@field rows integer[] the tokens of each sample, for the bridge
---@field counts integer[] the tokens of each language rank
---@field first mimo.Picture? of all

local function gcd(a, b)
  while b > 0 do a, b = b, a % b end
  return a
end

--- The grids and pixels of a batch, in the order in which its language model takes the tokens.
local KEYS = { { "image_grid_thw", "pixel_values" }, { "video_grid_thw", "pixel_values_videos" } }

--- Returns the pictures and videos of a batch, in the order of their tokens.
local function pictures_of(batch, merge)
  plain.check(batch.image_order == nil, "mimo.separate: image_order is not read with a separate tower; give each place "
    .. "a picture of its own")
  local found, tokens = {}, 0
  for _, keys in ipairs(KEYS) do
    local from = 0
    for _, grid in ipairs(placeholders.read_grid(keys[1], batch[keys[1]], merge)) do
      local patches = grid[1] * grid[2] * grid[3]
      found[#found + 1] = { grid = grid, patches = patches, tokens = patches / merge ^ 2, pixels = batch[keys[2]],
        from = from }
      from, tokens = from + patches, tokens + patches / merge ^ 2
    end
  end
  return found, tokens
end

--- Deals the pictures of a micro-batch. Ranks that are given the same compute the same.
---@param batches models.Batch[] of all language ranks
---@param vision_ranks integer
---@param merge integer patches of a token's side
---@return mimo.VisualDeal
function M.deal(batches, vision_ranks, merge)
  local pieces_of_rank = vision_ranks / gcd(vision_ranks, #batches)
  local deal, most = { pieces = {}, rows = {}, counts = {} }, 1
  for _, batch in ipairs(batches) do
    local pictures, tokens = pictures_of(batch, merge)
    local pieces, before = {}, 0
    deal.counts[#deal.counts + 1] = tokens
    for i = 1, pieces_of_rank do pieces[i] = {} end
    for _, picture in ipairs(pictures) do
      deal.first = deal.first or picture
      local piece = pieces[math.floor((before + picture.tokens / 2) * pieces_of_rank / tokens) + 1]
      piece[#piece + 1], before = picture, before + picture.tokens
      most = math.max(most, #piece)
    end
    for _, piece in ipairs(pieces) do deal.pieces[#deal.pieces + 1] = piece end
  end
  for _, piece in ipairs(deal.pieces) do
    for i = 1, most do deal.rows[#deal.rows + 1] = piece[i] and piece[i].tokens or 0 end
  end
  return deal
end

--- Returns the pictures of a rank of the tower, as its model takes them; nil if it has none.
---@param deal mimo.VisualDeal
---@param rank integer of the tower's
---@param ranks integer of the tower
---@return models.Batch?
function M.batch_of(deal, rank, ranks)
  local pixels, grids, num_pieces = {}, {}, #deal.pieces / ranks
  for i = rank * num_pieces + 1, (rank + 1) * num_pieces do
    for _, picture in ipairs(deal.pieces[i]) do
      pixels[#pixels + 1] = picture.pixels:narrow(0, picture.from, picture.patches)
      grids[#grids + 1] = picture.grid
    end
  end
  if #pixels == 0 then return nil end
  return { pixel_values = torch.cat(pixels), image_grid_thw = torch.tensor(grids, { dtype = torch.int64 }) }
end

--- Returns the first picture of the micro-batch: for a rank of the tower that has none, so that all of its ranks run
--- the same layers.
---@param deal mimo.VisualDeal
---@return models.Batch
function M.filler_of(deal)
  local picture = deal.first
  return { pixel_values = picture.pixels:narrow(0, picture.from, picture.patches),
    image_grid_thw = torch.tensor({ picture.grid }, { dtype = torch.int64 }) }
end

return M
