--- mimo.ownership: one table that says which sample the rows of tensors belong to. Its methods are of C++: see
--- types/mimo_ownership.lua.

local core_mimo = require "lockstep.core.mimo"

---@class mimo.OwnershipOptions
---@field items integer[]|torch.Tensor|nil of each sample: images, sounds
---@field tokens integer[]|torch.Tensor|nil of each item; default 1
---@field grid_thw torch.Tensor|integer[][]|nil the items' t, h and w in patches, [items, 3], instead of tokens
---@field merge integer? merge x merge patches of grid_thw become a token; default 1
---@field sample_of_item integer[]|torch.Tensor|nil instead of items: the sample of each, from 1
---@field num_samples integer? with sample_of_item
---@field rows_per_sample integer[]|torch.Tensor|nil instead of all others: each sample has one item, of so many tokens

--- Makes a table of the sample that owns each row of a tensor: samples have items, and items have tokens (or patches).
--- Slices, the bridge, the way of its gradients and mimo.reorder follow the same table. So samples without items, with
--- several, or with items of different sizes are handled alike.
---
---     local images = mimo.ownership { items = { 2, 0, 1 }, tokens = { 4, 6, 9 } }
---     mimo.slice(batch, dp_rank, dp_size, { ownership = { crops = { images, "items" }, patches = images } })
---     local y = bridge(tower(patches), { ownership = images })
---
--- A table that is itself in the batch is cut and reordered with it. Options may use its name: ownership = { crops = {
--- "images", "items" }, patches = "images" }. Two tables are equal if their numbers are.
---@param opts mimo.OwnershipOptions
---@return mimo.Ownership
local function ownership(opts) return core_mimo.ownership(opts) end

return ownership
