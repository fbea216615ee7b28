-- data.loader on several ranks: together they see what one rank would, with skipped samples too.

local data = require "lockstep.data"
local dist = require "lockstep.distributed"
local sharding = require "lockstep.sharding"
local t = require "lockstep.testing"

local SIZE = 41
local samples = {}
for i = 1, SIZE do samples[i] = { id = i } end
local rank, world = dist.rank(), dist.world_size()
local MAP = "lockstep.data.maps_fixture"

--- The ids of all ranks in the order of their turns.
local function merge(own)
  local all, merged = dist.all_gather_object(own), {}
  for i = 1, #all[1] do
    for _, theirs in ipairs(all) do merged[#merged + 1] = theirs[i] end
  end
  return merged
end

local function take(loader, count)
  local ids = {}
  for i = 1, count do ids[i] = loader().id end
  return ids
end

t.test("RanksTogetherSeeWhatOneRankSees", function()
  local alone = take(data.loader { source = samples, seed = 2, rank = 0, world = 1 }, 10 * world)
  for _, workers in ipairs { 0, 1, 3 } do
    t.equal(merge(take(data.loader { source = samples, seed = 2, workers = workers }, 10)), alone)
  end
end)

t.test("ALockstepLoopEndsTogetherOverUnevenEnds", function()
  local loader = data.loader { source = samples, seed = 2, epochs = 1, workers = 1 }
  local it = sharding.lockstep(loader, { policy = "until_last" })
  local own = 0
  for _, real in it do own = own + (real and 1 or 0) end

  t.equal(own, loader.length)
  t.equal(it.steps, math.ceil(SIZE / world))
end)

t.test("TheStateIsAlikeOnEveryRank", function()
  local loader = data.loader { source = samples, seed = 2 }
  take(loader, 5)
  local states = dist.all_gather_object(loader:state_dict())
  for _, state in ipairs(states) do t.equal(state, states[1]) end
  t.equal(states[1].position, 5 * world)
end)

t.test("RanksThatSkippedDifferentlyResumeWithNothingLostAndNothingTwice", function()
  local bad = {}
  for id = 1, SIZE, 5 do bad[#bad + 1] = id end
  local opts = { source = samples, seed = 2, epochs = 2, on_error = "skip", map = MAP,
    options = { kind = "fail_at", ids = bad } }
  local loader, own = data.loader(opts), {}
  for _ = 1, 4 do
    for _ = 1, 2 + rank % 2 do own[#own + 1] = loader().id end -- ranks part further
    local state = loader:state_dict()
    t.equal(dist.all_gather_object(state)[1], state)
    loader = data.loader(opts)
    loader:load_state_dict(state)
  end
  for sample in loader do own[#own + 1] = sample.id end

  local counts = {}
  for _, theirs in ipairs(dist.all_gather_object(own)) do
    for _, id in ipairs(theirs) do counts[id] = (counts[id] or 0) + 1 end
  end
  for id = 1, SIZE do t.equal(counts[id], id % 5 ~= 1 and 2 or nil, "sample " .. id) end

  -- Every rank has its own count. Where the number of ranks changes, rank 0 takes the count of all.
  local state = loader:state_dict()
  t.equal({ state.skipped[rank + 1], #state.skipped }, { loader.skipped, world })
  opts.rank, opts.world = 0, 1
  local alone = data.loader(opts)
  alone:load_state_dict(state)
  t.equal(alone.skipped, 2 * #bad)
end)

-- Samples 1, 2 and 7 of 8 were trained on twice where one rank had another seed.
t.test("RanksWithOtherOrdersAreNamed", function()
  local function make(options)
    options.source = options.source or samples
    return data.loader(options)
  end
  local last = rank == world - 1

  t.raises("data.loader: ranks do not agree: seed is 2 on rank 0, and 3 on rank " .. world - 1 .. "; all ranks share "
    .. "the samples, so each needs the same order; one that is for a single rank has rank = 0, world = 1", make,
    { seed = last and 3 or 2 })
  t.raises("shuffle is true on rank 0, and false on rank", make, { shuffle = not last })
  t.raises("epochs is without end on rank 0, and 2 on rank", make, { epochs = last and 2 or nil })
  t.raises("drop_last is false on rank 0, and true on rank", make, { drop_last = last })
  t.raises("source is 41 samples (1 of 41, ", make, { source = last and { 1, 2 } or samples })
  t.raises("source is 37 samples (", make,
    { source = data.split(samples, { held_out = 0.1, seed = last and 1 or 0 }) })
  t.raises("source is 82 samples (", make,
    { source = data.mix({ samples, samples }, { weights = { 1, last and 2 or 1 } }) })
end)

t.test("ALoaderOfASingleRankIsItsOwnAffair", function()
  local own = data.loader { source = samples, seed = rank, rank = 0, world = 1, epochs = 1 }
  t.equal(own.length, SIZE)
  if rank == 0 then data.loader { source = samples, rank = 0, world = 1 } end
  t.equal(data.loader({ source = samples, seed = 1, epochs = 1, workers = rank, prefetch = 1 + rank }).seed, 1)
end)
