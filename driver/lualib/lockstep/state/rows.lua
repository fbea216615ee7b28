--- Finds the random numbers that a rank goes on with after run:resume.
---
--- Ranks of one row of dp (sharding.grid) are seeded alike where tp splits layers: they must drop the same values. So a
--- row keeps its generator, whichever ranks it has now. Where the number of rows differs, each starts a new sequence.

local core_state = require "lockstep.core.state"
local dist = require "lockstep.distributed"
local grids = require "lockstep.sharding.grid"
local nn = require "lockstep.nn"
local plain = require "lockstep.plain"
local splits = require "lockstep.nn.splits"

local M = {}

--- The name of a saved grid and its random numbers among the contents of a state.
M.NAME = "rng.grid"

--- The axes of a rank's number, the fastest first, as in sharding.grid.
local AXES = { "tp", "cp", "dp", "pp" }

---@alias state.GridSizes {tp: integer, cp: integer, dp: integer, pp: integer}

--- Returns the grid of the first object, by name, that is on one.
local function grid_of(objects)
  for _, name in ipairs(plain.keys(objects)) do
    local object = objects[name]
    local grid = grids.of(object) or type(object) == "table" and object.callable and grids.of(object:callable())
    if grid then return grid end
  end
end

--- Returns the sizes of the grid of all ranks. Without one, each rank is a row.
---@return state.GridSizes
local function sizes_of(objects)
  local grid, sizes = grid_of(objects), { tp = 1, cp = 1, dp = dist.world_size(), pp = 1 }
  for _, axis in ipairs(grid and not grid.ranks_of_all and AXES or {}) do sizes[axis] = grid[axis] end
  return sizes
end

--- Returns the sizes as a value that is saved.
---@param objects table<string, any>
---@return table<string, {bytes: string, tensors: torch.Tensor[]}>
function M.values(objects)
  local bytes, inside = core_state.encode(sizes_of(objects), "run:save")
  return { [M.NAME] = { bytes = bytes, tensors = inside } }
end

local function text_of(sizes)
  local texts = {}
  for _, axis in ipairs(AXES) do
    if axis == "dp" or sizes[axis] > 1 then texts[#texts + 1] = axis .. " " .. sizes[axis] end
  end
  return table.concat(texts, " x ")
end

--- Returns the rank of a saved grid whose random numbers a rank of another one goes on with; nil: none, because the
--- grids have other numbers of rows. Stages and chunks keep theirs where there are as many.
---@param saved state.GridSizes
---@param own state.GridSizes
---@param rank integer of `own`
---@return integer?
function M.source(saved, own, rank)
  if saved.dp ~= own.dp then return nil end
  local source, stride = 0, 1
  for _, axis in ipairs(AXES) do
    if saved[axis] == own[axis] then source = source + rank % own[axis] * stride end
    rank, stride = math.floor(rank / own[axis]), stride * saved[axis]
  end
  return source
end

--- Returns the lowest of the ranks that must draw the same numbers as this one.
local function leader_of(objects)
  local grid = grid_of(objects)
  if grid then return grid:ranks("tp_cp_pp")[1] end
  for _, object in pairs(objects) do
    local owner = nn.is_module(object) and splits.owner_of(object)
    if owner then return owner.ranks[1] end
  end
  return dist.rank()
end

--- Returns whether a module among the objects drops values.
local function has_dropout(objects)
  local adapters = package.loaded["lockstep.lora.adapters"] -- a script without adapters need not load them
  for _, object in pairs(objects) do
    local modules = type(object) == "table" and object.named_modules
    for _, module in (modules or function() return function() end end)(object) do
      local adapter = adapters and adapters.of(module)
      local share = adapter and adapter.dropout or module.class_name == "Dropout" and module.p or module.dropout
      if type(share) == "number" and share > 0 then return true end
    end
  end
  return false
end

---@class state.RandomPlan
---@field source integer? the saved rank whose random numbers this rank goes on with; nil: a new sequence
---@field leader integer decides the new sequence
---@field rows string who starts new sequences, in words
---@field line string? what differs from a run without a break

--- Returns how this rank goes on.
---@param saved state.GridSizes? nil: a state of an earlier version, which has none
---@param world integer ranks that saved
---@param objects table<string, any>
---@return state.RandomPlan
function M.plan(saved, world, objects)
  local own = sizes_of(objects)
  local same_ranks = world == dist.world_size()
  local plan = { leader = leader_of(objects), source = same_ranks and dist.rank() or nil,
    rows = own.dp == 1 and "this row of dp starts a new sequence" or own.dp .. " rows of dp start new sequences" }
  if own.dp == dist.world_size() then
    plan.rows = own.dp == 1 and "this rank starts a new sequence" or own.dp .. " ranks start new sequences"
  end
  if not saved then return plan end
  plan.source = M.source(saved, own, dist.rank())
  local text, own_text = text_of(saved), text_of(own)
  if text ~= own_text and has_dropout(objects) then
    plan.line = ("the state is of %s, and this is %s; dropout drops other values than without the break"):format(text,
      own_text)
  end
  return plan
end

return M
