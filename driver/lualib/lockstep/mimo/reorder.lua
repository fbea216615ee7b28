--- mimo.reorder: the samples of a micro-batch in an order that evens out what replicas have to do.

local core = require "lockstep.core"
local core_mimo = require "lockstep.core.mimo"
local options = require "lockstep.options"

--- Returns the least common multiple of all modules' dp: every replica has whole groups of this number.
local function groups_of(topology)
  local groups = 1
  for _, module in ipairs(topology:modules()) do
    local a, b = groups, module.dp
    while b > 0 do a, b = b, a % b end
    groups = groups / a * module.dp
  end
  return groups
end

---@class mimo.ReorderOptions
---@field costs number[]|mimo.Ownership|nil of each sample; of a table, how many tokens it has
---@field topology mimo.Topology? whose dp sizes tell num_groups: their least common multiple
---@field num_groups integer? into how many groups of equally many samples the load is divided
---@field order integer[]? the order itself, instead of these
---@field ownership table<string, mimo.OwnedRows>? these four as for mimo.slice
---@field rows_per_sample table<string, integer[]|torch.Tensor>?
---@field batch_dims table<string, integer|false>?
---@field batch_size integer?

--- The whole micro-batch with its samples in an order that gives every replica a like load, and that order. Each
--- tensor, list and table of mimo.ownership in it is permuted alike, by the rules of mimo.slice; tensors are copies.
---
---     local images = mimo.ownership { items = batch.num_images, grid_thw = batch.image_grid_thw }
---     batch = mimo.reorder(batch, { costs = images, topology = topo, rows_per_sample = {
---       image_grid_thw = batch.num_images } })
---
--- Every rank computes the same order, without communication: call it on each rank before mimo.slice. With a loss per
--- token the gradients stay the same (a mean of each replica's mean weighs a token by its neighbours). For a table
--- outside the batch call table:reordered(order).
---@param batch table
---@param opts mimo.ReorderOptions
---@return table
---@return integer[] order sample i of the result is sample order[i] of the batch, from 1
local function reorder(batch, opts)
  local o = options.read("mimo.reorder", opts, { costs = options.optional, topology = options.optional,
    num_groups = options.optional, order = options.optional, ownership = options.optional,
    rows_per_sample = options.optional, batch_dims = options.optional, batch_size = options.optional })
  local order = o.order
  if not order then
    if o.costs == nil or (o.topology == nil) == (o.num_groups == nil) then
      core.raise("mimo.reorder: give the costs of the samples with either topology or num_groups, or else an order")
    end
    local costs = type(o.costs) == "userdata" and o.costs:costs() or o.costs
    order = core_mimo.balanced_order(costs, o.num_groups or groups_of(o.topology))
  elseif o.costs or o.topology or o.num_groups then
    core.raise("mimo.reorder: give either an order, or costs with topology or num_groups, not both")
  end
  return core_mimo.reorder(batch, order, { ownership = o.ownership, rows_per_sample = o.rows_per_sample,
    batch_dims = o.batch_dims, batch_size = o.batch_size }), order
end

return reorder
