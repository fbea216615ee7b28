--- Ranks that stay together: the library `sharding` for scripts.

local agreement = require "lockstep.state.agreement"
local core = require "lockstep.core"
local core_sharding = require "lockstep.core.sharding"
local disagreement = require "lockstep.sharding.disagreement"
local options = require "lockstep.options"
local plain = require "lockstep.plain"
local torch = require "lockstep.torch"

local M = {
  accumulate = require "lockstep.sharding.loops.accumulate",
  context_parallel = require("lockstep.sharding.context_parallel").context_parallel,
  data_parallel = require("lockstep.sharding.data_parallel").data_parallel,
  dataset = require "lockstep.sharding.dataset",
  evaluate = require "lockstep.sharding.loops.evaluate",
  fully_shard = require("lockstep.sharding.fully_shard").fully_shard,
  grid = require("lockstep.sharding.grid").grid,
  infer = require "lockstep.sharding.loops.infer",
  pack = require "lockstep.sharding.pack",
  parallelize = require("lockstep.sharding.parallelize").parallelize,
  propose = require "lockstep.sharding.propose",
  tensor_parallel = require("lockstep.sharding.tensor_parallel").tensor_parallel,
  weighted_mean = require("lockstep.sharding.loops.means").weighted_mean,
}

--- Words that stand for values of `parallel` on the command line, for run.config: { presets = sharding.presets }. So
--- `--set parallel=fully_shard` means `--set parallel.fully_shard=true`.
M.presets = { parallel = { data_parallel = { fully_shard = false }, fully_shard = { fully_shard = true } } }

--- Makes the model that a configuration asks for, for scripts that leave the choice to the command line. `kind` is
--- "data_parallel" or "fully_shard", for sharding.data_parallel(net, opts.data_parallel) or sharding.fully_shard(net,
--- opts.fully_shard). Or it is a table of a grid's sizes and `fully_shard`, true or false, for sharding.parallelize:
---
---     local model = sharding.parallel(net, config.parallel, { data_parallel = { find_unused = true } })
---     local model, grid = sharding.parallel(net, { tp = 2, fully_shard = true })
---
--- Options of data_parallel have no effect on a grid with ep or pp.
--- The second result is the grid of such a table, whose grid:rank "dp" and grid.dp scripts give to batching.prepare.
---
--- Collective: every rank of the options' group gives the same kind.
---@param net nn.Module
---@param kind string|table {tp: integer?, cp: integer?, ep: integer?, pp: integer?, fully_shard: boolean?, ...}; also
---`sequence`, `order` and `chunks` of sharding.parallelize
---@param opts {data_parallel: sharding.DataParallelOptions?, fully_shard: sharding.FullyShardOptions?}?
---@return sharding.DataParallel|sharding.FullyShard|sharding.Pipeline
---@return sharding.Grid?
function M.parallel(net, kind, opts)
  local o = options.read("sharding.parallel", opts, { data_parallel = {}, fully_shard = {} })
  if type(kind) == "table" then
    local sizes = plain.copy(kind)
    local shards, sequence = rawget(kind, "fully_shard"), rawget(kind, "sequence")
    local order, chunks = rawget(kind, "order"), rawget(kind, "chunks")
    sizes.fully_shard, sizes.sequence, sizes.order, sizes.chunks = nil, nil, nil, nil
    plain.check(shards == nil or type(shards) == "boolean",
      "sharding.parallel: fully_shard of the table must be true or false, not a %s", type(shards))
    local grid = M.grid(sizes)
    local are_replicas = not shards and grid.ep * grid.pp == 1
    return M.parallelize(net, grid, { fully_shard = shards and o.fully_shard or false, sequence = sequence,
      order = order, chunks = chunks, data_parallel = are_replicas and opts and opts.data_parallel or nil }), grid
  end
  local found = disagreement.gather(tostring(kind), (o[kind] or {}).group)
  if found then core.raise("sharding.parallel: every rank must give the same kind, got " .. found) end
  plain.check(kind == "data_parallel" or kind == "fully_shard",
    'sharding.parallel: expected "data_parallel", "fully_shard" or a table of sizes, not "%s"', kind)
  return M[kind](net, o[kind])
end

-- lockstep ------------------------------------------------------------------------------------------

---@class sharding.Lockstep
---@field steps integer steps taken so far
---@field filled integer of these, with a filler on this rank
---@field dropped number batches of this rank that no step took. Reading it reads what is left of the iterator;
---    math.huge where that is more than 10,000 batches.
---@field reads_ahead boolean
---@operator call: any, boolean
local Lockstep = {}

function Lockstep:__call() return self.loop:next() end

function Lockstep:__index(key)
  if key == "steps" or key == "filled" then return self.loop[key](self.loop) end
  if key == "dropped" then return self.loop:dropped() or math.huge end
  return Lockstep[key]
end

--- Ends the loop on every rank, after the batch that is agreed on already. Use it instead of `break`, which would leave
--- the other ranks waiting.
function Lockstep:stop() self.loop:stop() end

---@class sharding.LockstepOptions
---@field policy "until_first"|"until_last"?
---@field group dist.Group?
---@field filler (fun(last: any?): any)?
---@field read_ahead 0|1? 1 unless given

--- Iterates so that every rank leaves the loop at the same step.
---
---     local it = sharding.lockstep(loader, { policy = "until_last" })
---     for batch, real in it do ... end       -- give fillers (not real) no weight
---
--- "until_first" stops when any rank runs out of batches, "until_last" when all have. A rank that ran out gets
--- filler(last_batch), or its last batch again, with `real` false. An error in one rank's iterator ends the loop on
--- every rank with that error. The iterator is read one batch ahead, so that ranks agree while they train. Use
--- `read_ahead = 0` for an iterator that depends on the present step: each batch is then read when it is needed.
---
--- Collective: every rank of `group` calls this, and runs the loop.
---@param iterator fun(): any returns the next batch, or nil when there is none
---@param opts sharding.LockstepOptions?
---@return sharding.Lockstep
function M.lockstep(iterator, opts)
  plain.check(plain.is_callable(iterator),
    "sharding.lockstep: the iterator must be a function that returns the next batch, not a %s", type(iterator))
  local o = options.read("sharding.lockstep", opts,
    { policy = "until_first", group = options.optional, filler = options.optional, read_ahead = 1 })
  return setmetatable({ loop = core_sharding.lockstep(iterator, o), reads_ahead = o.read_ahead ~= 0 }, Lockstep)
end

-- guard ---------------------------------------------------------------------------------------------

--- Returns a value as text, equal for equal content: tables by sorted keys, tensors by dtype and shape.
local function fingerprint_of(value, inside)
  local kind = type(value)
  if kind == "string" then return string.format("%q", value) end
  if kind == "number" then return string.format("%.17g", value) end
  if kind == "boolean" or kind == "nil" then return tostring(value) end
  if torch.is_tensor(value) then return tostring(value.dtype) .. " " .. tostring(value.shape) end
  if kind ~= "table" then core.raise("guard:check: a fingerprint cannot hold a " .. kind) end
  if inside[value] then core.raise("guard:check: the fingerprint is a table that contains itself") end
  inside[value] = true
  local parts, keys = {}, {}
  for i, element in ipairs(value) do parts[i] = fingerprint_of(element, inside) end
  for key in pairs(value) do
    if not (type(key) == "number" and key >= 1 and key <= #parts and key % 1 == 0) then keys[#keys + 1] = key end
  end
  table.sort(keys, function(a, b) return tostring(a) < tostring(b) end)
  for _, key in ipairs(keys) do
    parts[#parts + 1] = tostring(key) .. " = " .. fingerprint_of(value[key], inside)
  end
  inside[value] = nil
  return "{" .. table.concat(parts, ", ") .. "}"
end

---@class sharding.Guard
local Guard = {}
Guard.__index = Guard

--- Raises an error, the same on every rank, unless all ranks give the same label and fingerprint. The error shows each
--- rank's value and script line. If ranks do not come within timeout_s, the others get an error with these ranks and
--- the last check that each passed.
---
---     guard:check("step " .. step, { kind = batch.kind, samples = batch.samples, input_ids = batch.input_ids })
---
--- Collective. Tensors are compared by dtype and shape; `x:totable()` compares their elements.
---@param label string which check this is
---@param fingerprint any strings, numbers, booleans, tensors, and tables of them
function Guard:check(label, fingerprint)
  self.guard:check(label, type(fingerprint) == "string" and fingerprint or fingerprint_of(fingerprint, {}))
end

--- Makes a guard, which names the rank that disagrees or stays away. It uses its own CPU group, so its checks may come
--- anywhere between other collectives, and no device waits for them.
---
--- Collective: every rank of `group` makes its guards in the same order.
---@param opts {group: dist.Group?, timeout_s: number?}? timeout_s: 30 unless given
---@return sharding.Guard
function M.guard(opts)
  local o = options.read("sharding.guard", opts, { group = options.optional, timeout_s = 30 })
  return setmetatable({ guard = core_sharding.guard(o) }, Guard)
end

M.parallel = agreement.counted(M.parallel)

return M
