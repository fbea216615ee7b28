--- The memory of each kind of rank of a grid, by the formula of docs/propose.md. --dry-run, which runs rank 0 alone,
--- prints it.

local cost = require "lockstep.sharding.planning.cost"
local shapes = require "lockstep.sharding.planning.shape"
local tables = require "lockstep.log.tables"
local torch = require "lockstep.torch"

local M = {}

--- What sharding.parallelize was given last.
---@class sharding.NotedModel
---@field config table<string, any>? as config.json has it; nil for a module that is no language model
---@field dtype torch.dtype of the weights before they are shared out
---@field grid sharding.Grid
---@field options sharding.ParallelOptions

---@type sharding.NotedModel?
local noted = nil

--- Notes the model that a script puts on a grid.
---@param net nn.Module
---@param grid sharding.Grid
---@param o sharding.ParallelOptions
function M.note(net, grid, o)
  local p = net:parameters()[1]
  local is_model = type(net.decoder) == "function" and type(net.settings) == "table"
  noted = { config = is_model and net.config or nil, dtype = p and p.dtype or torch.float32,
    grid = grid, options = o }
end

local function size_of(dtype) return torch.empty({}, { dtype = dtype }):element_size() end

local function candidate_of(one, micro_batches)
  local grid, o, shards = one.grid, one.options, one.options.fully_shard
  local weight = size_of(shards and shards.param_dtype or one.dtype)
  return { tp = grid.tp, cp = grid.cp, ep = grid.ep, pp = grid.pp, dp = grid.dp / grid.replicas, chunks = o.chunks,
    sequences = 1, micro_batches = micro_batches, checkpoint = o.checkpoint ~= nil,
    reshard = shards and grid.pp == 1 and shards.reshard_after_forward ~= false, replicas = not shards,
    sequence = o.sequence, order = o.order, ring = o.cp == "ring", weight_bytes = weight,
    master_bytes = size_of(one.dtype),
    reduce_bytes = shards and shards.reduce_dtype and size_of(shards.reduce_dtype) or weight }
end

local COLUMNS = { "masters", "gradients", "moments", "gathered", "buffers", "activations", "workspace" }

--- Returns a table with a row for each kind of rank of the noted model, for micro-batches of `tokens`; nil where no
--- language model was put on a grid of several ranks.
---@param tokens integer of a micro-batch
---@param micro_batches integer of a step
---@return string?
function M.table(tokens, micro_batches)
  local one = noted
  if not one or not one.config then return nil end
  local shape, c = shapes.of(one.config), candidate_of(one, micro_batches)
  local per_stage = one.grid.tp * one.grid.cp * one.grid.dp
  local rows = { { "ranks", "layers" } }
  for _, name in ipairs(COLUMNS) do table.insert(rows[1], name) end
  table.insert(rows[1], "MiB")
  local last_text
  for _, stage in ipairs(shapes.stages(shape, c.pp, c.chunks, true)) do
    local parts, layers = cost.parts(shape, tokens, c, stage), 0
    for _, count in ipairs(stage.counts) do layers = layers + count end
    local row = { tostring(layers) }
    for _, name in ipairs(COLUMNS) do row[#row + 1] = ("%.1f"):format(parts[name] / 2 ^ 20) end
    row[#row + 1] = ("%.1f"):format(cost.total(parts) / 2 ^ 20)
    local text, last = table.concat(row, " "), rows[#rows]
    local first_rank, last_rank = stage.stage * per_stage, (stage.stage + 1) * per_stage - 1
    if text == last_text then -- the same as the stage before
      last[1] = last[1]:match "^%d+" .. " to " .. last_rank
    else
      table.insert(row, 1, per_stage == 1 and tostring(first_rank) or first_rank .. " to " .. last_rank)
      rows[#rows + 1], last_text = row, text
    end
  end
  return ("memory of each kind of rank of %s, in MiB, by the formula of docs/propose.md: AdamW, %d %s of "
    .. "%d tokens\n"):format(tostring(one.grid), micro_batches, micro_batches == 1 and "micro-batch" or "micro-batches",
    tokens) .. tables.columns(rows)
end

return M
