--- sharding.grid: ranks by the axes of parallel training, with a process group for each.

local plain = require "lockstep.plain"
local agreement = require "lockstep.state.agreement"
local core = require "lockstep.core"
local disagreement = require "lockstep.sharding.disagreement"
local dist = require "lockstep.distributed"
local options = require "lockstep.options"

local M = {}

local check, fail = plain.checks "sharding.grid: "

--- The axes of a rank's number, the fastest first.
local ORDER = { "tp", "cp", "dp", "pp" }

--- The axes in which the ranks of a group differ. `ep` cuts dp_cp into blocks of consecutive ranks.
local SPANS = {
  tp = { tp = true }, cp = { cp = true }, dp = { dp = true }, pp = { pp = true },
  tp_cp = { tp = true, cp = true },
  dp_cp = { dp = true, cp = true },
  tp_cp_dp = { tp = true, cp = true, dp = true },
  tp_cp_pp = { tp = true, cp = true, pp = true },
  ep = { dp = true, cp = true }, expert_dp = { dp = true, cp = true },
  tp_ep = { tp = true, dp = true, cp = true },
}

--- The order in which every rank makes its groups.
local AXES = { "tp", "cp", "tp_cp", "dp", "dp_cp", "ep", "tp_ep", "expert_dp", "tp_cp_dp", "pp", "tp_cp_pp" }

---@class sharding.Grid
---@field tp integer ranks that share the weights of layers
---@field cp integer ranks that share a sequence
---@field ep integer ranks that share the experts: a part of dp x cp
---@field pp integer stages of layers
---@field dp integer ranks with micro-batches of their own
---@field replicas integer whole copies of what fully_shard shares out along dp x cp
---@field ranks_of_all dist.Group? the ranks of the grid; nil: all ranks of the run
---@field is_of_module boolean? whether other ranks of the run have other parts of the model: see mimo.separate
---@field token_multiple integer the tokens of a micro-batch must be a multiple of it: 1 until sharding.parallelize has
--- put a model with `sequence` on the grid
---@field private first integer the first of them
---@field private groups table<string, dist.Group>
local Grid = { first = 0, token_multiple = 1 }
Grid.__index = Grid

---@alias sharding.Axis "tp"|"cp"|"dp"|"dp_cp"|"pp"|"ep"|"tp_cp"|"tp_ep"|"expert_dp"|"tp_cp_dp"|"tp_cp_pp"

local function check_axis(axis)
  if type(axis) == "string" and SPANS[axis] then return end
  local nearest = type(axis) == "string" and core.nearest(axis, AXES) or nil
  fail("no axis is named %s%s (known: %s)", type(axis) == "string" and '"' .. axis .. '"' or "by a " .. type(axis),
    nearest and ('; did you mean "%s"?'):format(nearest) or "", table.concat(AXES, ", "))
end

--- Returns the place of a rank on each axis.
local function places_of(grid, rank)
  local places = {}
  rank = rank - grid.first
  for _, axis in ipairs(ORDER) do
    places[axis] = rank % grid[axis]
    rank = (rank - places[axis]) / grid[axis]
  end
  places.dp_cp = places.dp * grid.cp + places.cp
  return places
end

--- Returns the ranks of the group of `axis` that holds a rank, in rising order. No rank communicates.
---@param axis sharding.Axis
---@param rank integer? default: this rank
---@return integer[]
function Grid:ranks(axis, rank)
  check_axis(axis)
  local own, spans, ranks = places_of(self, rank or dist.rank()), SPANS[axis], {}
  for other = 0, self.tp * self.cp * self.dp * self.pp - 1 do
    local places, is_member = places_of(self, self.first + other), true
    for _, one in ipairs(ORDER) do is_member = is_member and (spans[one] or places[one] == own[one]) end
    if axis == "ep" or axis == "tp_ep" then
      is_member = is_member and math.floor(places.dp_cp / self.ep) == math.floor(own.dp_cp / self.ep)
    elseif axis == "expert_dp" then
      is_member = is_member and places.dp_cp % self.ep == own.dp_cp % self.ep
    end
    if is_member then ranks[#ranks + 1] = self.first + other end
  end
  return ranks
end

--- Returns this rank's group: the ranks that differ from it on this axis alone, in rising order. It may be this rank by
--- itself.
---
--- "tp" shares weights, "cp" a sequence, "dp" has other micro-batches, "pp" other stages, and "ep" other experts. Joint
--- axes: "tp_cp", and "dp_cp" (what fully_shard shares out over). "expert_dp" has the same experts. "tp_ep" generates
--- the same tokens. "tp_cp_dp" is a stage. "tp_cp_pp" has the same micro-batches.
---@param axis sharding.Axis
---@return dist.Group
function Grid:group(axis)
  check_axis(axis)
  return self.groups[axis]
end

--- Returns this rank's position in its group of an axis, from 0.
---@param axis sharding.Axis
---@return integer
function Grid:rank(axis) return self:group(axis):rank() end

--- Returns the number of ranks in a group of an axis.
---@param axis sharding.Axis
---@return integer
function Grid:size(axis) return self:group(axis):size() end

function Grid:__tostring()
  local texts = {}
  for _, axis in ipairs { "tp", "cp", "ep", "pp", "dp", "replicas" } do
    if axis == "dp" or self[axis] > 1 then texts[#texts + 1] = axis .. " " .. self[axis] end
  end
  return table.concat(texts, " x ")
end

--- Returns whether this is what sharding.grid returned.
---@param value any
---@return boolean
function M.is_one(value) return type(value) == "table" and getmetatable(value) == Grid end

local function check_size(name, size)
  check(plain.is_whole(size, 1) and size ~= math.huge, "%s must be a whole number of at least 1, not %s", name,
    plain.shown(size, "number"))
end

--- Returns the sizes of a grid of `world` ranks. Raises where they do not fit.
---@param given {tp: integer?, cp: integer?, ep: integer?, pp: integer?, dp: integer?, replicas: integer?}?
---@param world integer
---@return table<string, integer>
function M.sizes(given, world)
  local o = options.read("sharding.grid", given, { tp = options.optional, cp = options.optional, ep = options.optional,
    pp = options.optional, dp = options.optional, replicas = options.optional })
  for _, name in ipairs { "tp", "cp", "ep", "pp", "replicas" } do
    if o[name] == nil then o[name] = 1 end
    check_size(name, o[name])
  end
  local product = o.tp * o.cp * o.pp
  local text = ("tp %d x cp %d x pp %d = %d"):format(o.tp, o.cp, o.pp, product)
  if o.dp == nil then
    if product > world then
      fail("%s ranks, but the world has %d; start more ranks, or make an axis smaller", text, world)
    elseif world % product ~= 0 then
      fail("%s ranks, which do not divide the world of %d ranks; start %d or %d ranks", text, world,
        world - world % product, world - world % product + product)
    end
    o.dp = world / product
  end
  check_size("dp", o.dp)
  check(product * o.dp == world, "%s, x dp %d = %d ranks, but the world has %d%s", text, o.dp, product * o.dp, world,
    world % product == 0 and ("; leave dp out, it is %d"):format(world / product) or "")
  local shared = o.dp * o.cp
  if shared % o.ep ~= 0 then
    fail("ep %d does not divide dp %d x cp %d = %d, the ranks that experts are split over", o.ep, o.dp, o.cp, shared)
  elseif o.dp % o.replicas ~= 0 then
    fail("replicas %d does not divide dp %d", o.replicas, o.dp)
  end
  return o
end

--- Makes a group for each axis. Groups of the same ranks are one. Every rank makes its groups in the order of AXES, and
--- each connects at once: a connection that is made later, in the midst of other collectives, can stall.
local function make_groups(grid)
  local made = {}
  for _, axis in ipairs(AXES) do
    local ranks = grid:ranks(axis)
    local key = table.concat(ranks, ",")
    if not made[key] then
      made[key] = dist.group { ranks = ranks }
      dist.barrier { group = made[key] }
    end
    grid.groups[axis] = made[key]
  end
end

--- Arranges all ranks of the run in a grid, and makes the process groups of its axes. tp varies fastest with the rank,
--- then cp, then dp, then pp: so ranks of one tp group are neighbours, on one machine. Experts are split over `ep`
--- consecutive ranks of dp x cp. dp is what is left of the world unless given.
---
---     local grid = sharding.grid { tp = 2 }             -- of 8 ranks: dp 4
---     local model = sharding.parallelize(net, grid, { fully_shard = {} })
---
--- `replicas`: whole copies of a model that fully_shard shares out along dp x cp; it divides dp.
---
--- `group`: consecutive ranks that are the grid by themselves, as those of a module of mimo.topology; default: all.
---
--- Collective: every rank of the run, or of `group`, calls this with the same sizes.
---@param sizes {tp: integer?, cp: integer?, ep: integer?, pp: integer?, dp: integer?, replicas: integer?}?
---@param group dist.Group?
---@return sharding.Grid
function M.grid(sizes, group)
  local ranks = group and group:ranks()
  if ranks and ranks[#ranks] - ranks[1] + 1 ~= #ranks then
    fail("group must have consecutive ranks, got {%s}", table.concat(ranks, ", "))
  end
  local grid = setmetatable(M.sizes(sizes, ranks and #ranks or dist.world_size()), Grid)
  grid.groups, grid.ranks_of_all, grid.first = {}, group, ranks and ranks[1] or nil
  local text = "tp %d, cp %d, ep %d, pp %d, dp %d, replicas %d"
  local found = disagreement.gather(text:format(grid.tp, grid.cp, grid.ep, grid.pp, grid.dp, grid.replicas),
    group)
  if found then fail("every rank must give the same sizes, got %s", found) end
  make_groups(grid)
  return grid
end

--- The grid of each model that sharding.parallelize has made.
local grid_of_model = setmetatable({}, { __mode = "k" })

---@param model any
---@param grid sharding.Grid
function M.note(model, grid) grid_of_model[model] = grid end

--- Returns the grid of what sharding.parallelize returned; nil for other models.
---@param model any
---@return sharding.Grid?
function M.of(model) return model ~= nil and grid_of_model[model] or nil end

M.grid = agreement.counted(M.grid)

return M
