--- mimo.ownership: one table that says which sample the rows of tensors belong to.

local core_mimo = require "lockstep.core.mimo"
local options = require "lockstep.options"

---@alias mimo.RowsOf "samples"|"items"|"tokens"

---@class mimo.Ownership
local Ownership = core_mimo.Ownership

--- How many rows each sample has in a tensor of items, or of their tokens.
---@param rows_of mimo.RowsOf? default "tokens"
---@return integer[]
function Ownership:rows_per_sample(rows_of) return core_mimo.rows_per_sample(self, rows_of) end

--- How many tokens each item has.
---@return integer[]
function Ownership:tokens_per_item() return core_mimo.tokens_per_item(self) end

--- How many rows a tensor of samples, of items or of tokens has.
---@param rows_of mimo.RowsOf? default "tokens"
---@return integer
function Ownership:num_rows(rows_of) return core_mimo.num_rows(self, rows_of) end

--- The table of a replica's samples by themselves, as mimo.slice cuts one that is in the batch.
---@param dp_rank integer
---@param dp_size integer
---@param opts {uneven: boolean?}? replicas may differ by a sample
---@return mimo.Ownership
function Ownership:slice(dp_rank, dp_size, opts)
  local o = options.read("ownership:slice", opts, { uneven = false })
  return core_mimo.slice_ownership(self, dp_rank, dp_size, o.uneven)
end

--- The table of the samples in another order, as mimo.reorder moves one that is in the batch.
---@param order integer[] samples, from 1
---@return mimo.Ownership
function Ownership:reordered(order) return core_mimo.reorder_ownership(self, order) end

--- What each sample costs: its tokens times per_item_token, and its text_tokens times per_text_token.
---
---     mimo.balanced_order(images:costs(), 4)
---@param opts {text_tokens: integer[]?, per_item_token: number?, per_text_token: number?}? default: 1 and 1
---@return number[]
function Ownership:costs(opts)
  local o = options.read("ownership:costs", opts,
    { text_tokens = options.optional, per_item_token = 1, per_text_token = 1 })
  return core_mimo.sample_costs(self, o.text_tokens, o.per_item_token, o.per_text_token)
end

---@class mimo.OwnershipOptions
---@field items integer[]|torch.Tensor|nil of each sample: images, sounds
---@field tokens integer[]|torch.Tensor|nil of each item; default 1
---@field grid_thw torch.Tensor? the items' t, h and w in patches, [items, 3], instead of tokens
---@field merge integer? merge x merge patches of grid_thw become a token; default 1
---@field sample_of_item integer[]|torch.Tensor|nil instead of items: the sample of each, from 1
---@field num_samples integer? with sample_of_item
---@field rows_per_sample integer[]|torch.Tensor|nil instead of all others: each sample has one item, of so many tokens

--- Which sample the rows of tensors belong to: samples have items, and items have tokens (or patches). Slices, the
--- bridge, the way of its gradients and mimo.reorder follow the same table, so that samples without items, with
--- several, or with items of different sizes are right by construction.
---
---     local images = mimo.ownership { items = { 2, 0, 1 }, tokens = { 4, 6, 9 } }
---     mimo.slice(batch, dp_rank, dp_size, { ownership = { crops = { images, "items" }, patches = images } })
---     local y = bridge(tower(patches), { ownership = images })
---
--- A table that is itself in the batch is cut and reordered with it, and options may name it: ownership = { crops =
--- { "images", "items" }, patches = "images" }. Two tables are equal where their numbers are.
---@param opts mimo.OwnershipOptions
---@return mimo.Ownership
local function ownership(opts) return core_mimo.ownership(opts) end

return ownership
