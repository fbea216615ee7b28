--- sharding.dataset: the samples of this rank, in an order that all ranks know.

local agreement = require "lockstep.state.agreement"
local core = require "lockstep.core"
local core_sharding = require "lockstep.core.sharding"
local dist = require "lockstep.distributed"
local options = require "lockstep.options"
local plain = require "lockstep.plain"

---@class sharding.Dataset
---@field length integer samples of this rank, from where it started
---@field taken integer of these, handed out so far
---@field padded integer of `length`, those that the epoch has had before
---@field dropped integer samples that drop_last leaves out, over all ranks
---@field epoch integer
---@operator call: integer?
local Dataset = {}

local COUNTS = { length = 1, taken = 2, padded = 3, dropped = 4 }

function Dataset:__index(key)
  if COUNTS[key] then return (select(COUNTS[key], self.shard:counts())) end
  if key == "epoch" then return self.options.epoch end
  return Dataset[key]
end

--- The next sample's index, from 1 to size; nil at the end of the epoch.
---@return integer?
function Dataset:__call() return self.shard:next() end

--- Begins another epoch: another order, from its start. Not collective, as shards end at different steps: the ranks do
--- not compare the number.
---@param epoch integer
function Dataset:set_epoch(epoch)
  self.options.epoch, self.options.start = epoch, 0
  self.shard = core_sharding.dataset(self.options)
end

--- Returns the state for sharding.dataset{state = ...}, on any number of ranks: every rank has taken `taken` samples.
--- If something reads ahead of the training (sharding.lockstep does, by one batch) give the number trained on; the
--- default is the number returned.
---@param taken integer? samples of this rank, alike on every rank
---@return table
function Dataset:state(taken)
  local o = self.options
  return {
    size = o.size, seed = o.seed, epoch = o.epoch, shuffle = o.shuffle, drop_last = o.drop_last, pad = o.pad,
    start = self.shard:start_after(taken or self.taken),
  }
end

local STATE = { "size", "seed", "epoch", "shuffle", "drop_last", "pad", "start" }

--- Returns the options of a state, or raises an error if it is invalid.
local function check_state(state)
  for _, key in ipairs(STATE) do
    plain.check(type(state) == "table" and state[key] ~= nil,
      "sharding.dataset: this is not a state of a dataset: it lacks %s", key)
  end
  return state
end

--- Goes on from what ds:state() returned, as sharding.dataset{state = ...} does: with rank and world of now. Returns
--- what this dataset had been given otherwise, in words.
---@param state table
---@return string[] changes
function Dataset:load_state(state)
  check_state(state)
  plain.check(state.size == self.options.size,
    "dataset:load_state: the state is of a dataset of %d samples, this one has %d", state.size, self.options.size)
  local loaded, changes = { rank = self.options.rank, world = self.options.world }, {}
  for _, key in ipairs(STATE) do loaded[key] = state[key] end
  self.shard = core_sharding.dataset(loaded)
  for _, key in ipairs { "seed", "shuffle", "drop_last", "pad" } do
    if loaded[key] ~= self.options[key] then
      changes[#changes + 1] = ("%s is %s, as saved, not %s"):format(key, tostring(loaded[key]),
        tostring(self.options[key]))
    end
  end
  self.options = loaded
  return changes
end

--- Iterates the indices, 1 to size, of this rank's samples in one epoch:
---
---     local ds = sharding.dataset { size = #samples, seed = 1 }
---     for index in ds do train(samples[index]) end
---     ds:set_epoch(1)
---
--- Together the ranks see every sample once. Where size does not divide by world, some ranks have one more;
--- drop_last leaves these out (ds.dropped counts them), pad gives the others one from the epoch's beginning
--- (ds.padded counts them). The order is computed, not stored: 10^9 samples cost no memory.
---
--- Collective if `world` is the number of all ranks, which then compare their options: another seed on one rank would
--- repeat some samples and lose others. A dataset of one rank alone has rank = 0, world = 1.
---
--- Options: size; rank, world (default: this run's); seed = 0; epoch = 0; shuffle = true; drop_last = false; pad =
--- false. `state`, the result of ds:state(), replaces all of these but rank and world.
---@param opts {size: integer?, rank: integer?, world: integer?, seed: integer?, state: table?, [string]: any}
---@return sharding.Dataset
local function dataset(opts)
  local o = options.read("sharding.dataset", opts, {
    size = options.optional, rank = options.optional, world = options.optional, seed = 0, epoch = 0, shuffle = true,
    drop_last = false, pad = false, state = options.optional,
  })
  local state = o.state
  if state then
    for key in pairs(opts) do
      plain.check(key == "state" or key == "rank" or key == "world",
        'sharding.dataset: "%s" is in the state already; give only rank and world with a state', key)
    end
    check_state(state)
    for _, key in ipairs(STATE) do o[key] = state[key] end
    o.state = nil
  elseif not o.size then
    core.raise('sharding.dataset: the option "size" is missing')
  end
  o.world = o.world or dist.world_size()
  o.rank = o.rank or dist.rank()
  local shard = core_sharding.dataset(o)
  local order = {}
  for _, key in ipairs(STATE) do order[key] = o[key] end
  agreement.same_order("sharding.dataset", o.world, order)
  return setmetatable({ options = o, shard = shard }, Dataset)
end

return dataset
