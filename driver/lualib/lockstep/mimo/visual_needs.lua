--- The visual tokens that each rank of a language model on a grid takes from the bridge.
---
--- A rank of cp holds a chunk of the tokens of its row of dp. With sequence parallelism each rank of tp holds a part of
--- the chunk. A rank takes the visual tokens whose places are among its own tokens.

local chunk_table = require "lockstep.nn.context.table"
local plain = require "lockstep.plain"
local torch = require "lockstep.torch"

local M = {}

--- Returns the places of a batch's placeholders: of its pictures, then of its videos, as placeholders.find does.
local function places_of(batch, layout)
  local places = {}
  for _, id in ipairs { layout.image or false, layout.video or false } do
    if id then places[#places + 1] = batch.input_ids:cpu():eq(id):nonzero():view(-1) end
  end
  return #places == 1 and places[1] or torch.cat(places)
end

--- Returns the visual tokens of each rank, for the option `needs` of a bridge. Ranks that are given the same compute
--- the same. Raises if placeholders and pictures of a row do not match.
---@param batches models.Batch[] of all rows of dp
---@param layout models.VisualLayout
---@param sizes {tp: integer, cp: integer, sequence: boolean?} of the grid
---@param counts integer[] the visual tokens of each row
---@return torch.Tensor[]
function M.of(batches, layout, sizes, counts)
  local needs, parts = {}, sizes.sequence and sizes.tp or 1
  for row, batch in ipairs(batches) do
    local tokens = places_of(batch, layout)
    plain.check(tokens:size(0) == counts[row], "mimo.separate: input_ids of batch %d has %d placeholders of pictures "
      .. "and videos, but their grids describe %d tokens", row, tokens:size(0), counts[row])
    if counts[row] == 0 then
      for _ = 1, sizes.cp * parts do needs[#needs + 1] = tokens end
      goto next_row
    end
    local own = chunk_table.balanced(batch.seq_lens or { batch.input_ids:size(0) }, sizes.cp)
    plain.check(own.tokens == batch.input_ids:size(0), "mimo.separate: seq_lens of batch %d add up to %d, but "
      .. "input_ids has %d tokens", row, own.tokens, batch.input_ids:size(0))
    local places = own:places("cpu"):index_select(0, tokens)
    for rank = 0, sizes.cp - 1 do
      local share = own.counts[rank + 1] / parts -- sequence parallelism needs shares of one size
      for part = 0, parts - 1 do
        local first = rank * own.most + part * share
        needs[#needs + 1] = places:ge(first):logical_and(places:lt(first + share)):nonzero():view(-1)
      end
    end
    ::next_row::
  end
  return needs
end

return M
