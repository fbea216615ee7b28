--- mimo.topology: which ranks have which modules.

local core = require "lockstep.core"
local core_mimo = require "lockstep.core.mimo"
local dist = require "lockstep.distributed"
local plain = require "lockstep.plain"
local shared_weights = require "lockstep.mimo.shared_weights"

local M = {}

---@class mimo.Module
---@field name string one module is called "language"
---@field dp integer? replicas; default 1, as for the other sizes
---@field tp integer? tensor parallel
---@field cp integer? context parallel
---@field pp integer? pipeline stages
---@field first_rank integer? its ranks are this one and those after it; default 0
---@field ranks integer[]? its ranks one by one, instead
---@field order string? which axis varies fastest from rank to rank, the first; default "tp-cp-dp-pp"
---@field shared {first: string, last: string}[]? parameters that its first and last stage have in common, such as an
--- embedding that is the head, too: their names there. Their gradients are added up, and count once in the norm

---@class mimo.Topology
local Topology = {}
Topology.__index = Topology

--- Returns the name of a rank's first module; nil outside the world of the topology.
---@param rank integer? default: this rank
---@return string?
function Topology:module(rank) return self.core:module(rank) end

--- Returns all modules with their sizes and ranks.
---@return {name: string, dp: integer, tp: integer, cp: integer, pp: integer, ranks: integer[]}[]
function Topology:modules() return self.core:modules() end

--- Returns the part of a micro-batch that the rank's module keeps, for mimo.slice, never for a sampler. Returns 0 and 1
--- for colocated modules, unless one is named.
---@param rank integer? default: this rank
---@param name string? of a module of the rank
---@return integer dp_rank
---@return integer dp_size
function Topology:dp_info(rank, name) return self.core:dp_info(rank, name) end

--- Returns the values that a sampler must use: 0 and 1 for every rank that loads, so that all read the same; and
--- whether this rank loads.
---@param rank integer? default: this rank
---@param scalable_reads boolean? each rank reads only what it keeps: see Topology:reads
---@return integer dp_rank
---@return integer dp_size
---@return boolean needs_data
function Topology:sampling_info(rank, scalable_reads) return self.core:sampling_info(rank, scalable_reads) end

--- Returns the rank's position in a module's grid.
---@param rank integer? default: this rank
---@param name string? default: its first module
---@return {dp: integer, pp: integer, cp: integer, tp: integer}
function Topology:coordinates(rank, name) return self.core:coordinates(rank, name) end

---@class mimo.BatchSizes
---@field micro_batch_size integer samples of the whole micro-batch, here and below; at most 2^20
---@field global_batch_size integer? of a step
---@field eval_micro_batch_size integer?
---@field eval_global_batch_size integer?
---@field uneven boolean? replicas may differ by a sample
---@field order "sequential"|"all_forwards_first"|"1f1b"|"all"? in which the script runs the micro-batches of a step;
--- default "all"

--- Raises an error that names every broken rule of the sizes, with the nearest sizes that work:
---
---     topo:validate { micro_batch_size = 6, global_batch_size = 24 }
---
--- Then simulates such a step (Topology:check_schedule), in the given order, or in all orders that the topology allows.
---@param sizes mimo.BatchSizes
function Topology:validate(sizes)
  local core_sizes = plain.copy(type(sizes) == "table" and sizes or {})
  core_sizes.order = nil
  self.core:validate(type(sizes) == "table" and core_sizes or sizes)
  local stages = 0 -- interleaved steps are steady after as many micro-batches
  for _, module in ipairs(self:modules()) do stages = stages + module.pp end
  local step = sizes.global_batch_size and sizes.global_batch_size / sizes.micro_batch_size or math.huge
  self.core:check_schedule { micro_batches = math.min(step, math.max(8, stages + 2)), order = sizes.order or "all",
    micro_batch_size = sizes.micro_batch_size }
end

--- Simulates a step: runs all ranks' sends, receives and collectives against each other. Raises an error that names the
--- ranks if they would not match or not end.
---
---     topo:check_schedule { micro_batches = 4, micro_batch_size = 6, order = "all_forwards_first" }
---
--- `order`: "sequential", the default, runs forward and backward of each micro-batch in turn. "all_forwards_first" runs
--- forward of all micro-batches, then backward of all, as scripts/mimo_digits.lua does. "1f1b" interleaves them, for
--- modules on separate ranks. "all" checks each of these that the topology allows.
---@param opts {micro_batches: integer?, micro_batch_size: integer, order: string?}
---@return integer operations of all ranks, in the last of the orders
---@return integer transfers
---@return integer collectives
function Topology:check_schedule(opts) return self.core:check_schedule(opts) end

--- Returns the ranks of a module that differ from `rank` only in these axes, with `rank` itself: "dp", "dp-cp", "tp".
---@param name string
---@param axes string
---@param rank integer? default: this rank
---@return integer[]? # nil where the rank is not of the module
function Topology:peers(name, axes, rank) return self.core:peers(name, axes, rank) end

--- Returns the samples of a micro-batch that a replica reads, if each rank reads only what it keeps. They are not
--- sliced again. Positions are in an order of the data set that is the same on every rank.
---
---     local first, last = topo:reads({ micro_batch_size = 12, num_samples = #set }, micro_batch, dp_rank, dp_size)
---@param sizes {micro_batch_size: integer, num_samples: integer}
---@param micro_batch integer from 0
---@param dp_rank integer
---@param dp_size integer
---@return integer first position, from 1
---@return integer last
---@return integer micro_batches in the data set
function Topology:reads(sizes, micro_batch, dp_rank, dp_size)
  local first, stop, micro_batches = self.core:reads(sizes, micro_batch, dp_rank, dp_size)
  return first + 1, stop, micro_batches
end

--- Returns the group over `axes` of this rank's module. All its ranks make it at the first call.
---@param name string
---@param axes string
---@return dist.Group? # nil where the rank is alone in it
function Topology:group(name, axes)
  local key = name .. "/" .. axes
  if self.groups[key] == nil then
    local ranks = self:peers(name, axes)
    if not ranks then core.raise(string.format('mimo: rank %d is not of the module "%s"', dist.rank(), name)) end
    self.groups[key] = #ranks > 1 and dist.group { ranks = ranks } or false
  end
  return self.groups[key] or nil
end

--- The edges of a topology that names none.
local function edges_to_language(modules)
  local edges = {}
  for _, module in ipairs(modules) do
    if module.name ~= "language" then edges[#edges + 1] = { from = module.name, to = "language" } end
  end
  return edges
end

--- Assigns modules to ranks. Modules have separate ranks, or share all of them (colocated). Computes without
--- communication: ranks that pass the same get the same.
---
---     local topo = mimo.topology { world_size = 4, modules = {
---       { name = "vision", first_rank = 0, dp = 3 }, { name = "language", first_rank = 3 } } }
---
--- world_size defaults to the run's. edges: by default every other module feeds "language"; {} for none.
---@param opts {world_size: integer?, modules: mimo.Module[], edges: {from: string, to: string}[]?}
---@return mimo.Topology
function M.topology(opts)
  local core_opts, shared = shared_weights.take(opts or {})
  return setmetatable({ core = core_mimo.topology(core_opts), groups = {}, shared = shared,
    edges = opts and opts.edges or edges_to_language(core_opts.modules),
    bridges = setmetatable({}, { __mode = "v" }), reduced = setmetatable({}, { __mode = "k" }) }, Topology)
end

--- Returns the topology. Raises for anything else. Private to the library.
---@param name string of the function that was called
---@param topology any
---@return mimo.Topology
function M.check(name, topology)
  plain.check(getmetatable(topology) == Topology,
    "%s: topology must come from mimo.topology, not a %s", name, type(topology))
  return topology
end

return M
