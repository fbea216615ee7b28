--- sharding.pack over a data.loader: its state is positions, and any number of ranks can go on from it.

local data = require "lockstep.data"
local dist = require "lockstep.distributed"
local sharding = require "lockstep.sharding"
local t = require "lockstep.testing"

local RANK, WORLD = dist.rank(), dist.world_size()
local SIZE = 23

local function length_of(id) return id * id * 7 % 23 end -- from 0 to 22 tokens

-- Token p of sample i is 100 i + p.
local samples, num_tokens = {}, 0
for i = 1, SIZE do
  samples[i] = { input_ids = {} }
  for p = 1, length_of(i) do samples[i].input_ids[p] = 100 * i + p - 1 end
  num_tokens = num_tokens + length_of(i)
end

--- Returns a pack on `world` ranks, or nil on a rank beyond them.
local function make(world, opts, loader_opts)
  if RANK >= world then return nil end
  local l = { source = samples, seed = 3, epochs = 1, rank = RANK, world = world }
  for key, value in pairs(loader_opts or {}) do l[key] = value end
  local o = { source = data.loader(l), seq_len = 8, drop_last = false }
  for key, value in pairs(opts or {}) do o[key] = value end
  return sharding.pack(o)
end

--- The tokens of each chunk.
local function take(pack, count)
  local chunks = {}
  while pack and (not count or #chunks < count) do
    local chunk = pack()
    if not chunk then break end
    chunks[#chunks + 1] = chunk.input_ids:totable()
  end
  return chunks
end

--- Expects that the chunks of all ranks together, `parts` of each, have every token once.
local function expect_all_once(parts, what)
  local seen, count = {}, 0
  for _, theirs in ipairs(dist.all_gather_object(parts)) do
    for _, chunks in ipairs(theirs) do
      for _, ids in ipairs(chunks) do
        for _, id in ipairs(ids) do
          t.equal(seen[id], nil, ("%s: token %d"):format(what, id))
          seen[id], count = true, count + 1
        end
      end
    end
  end
  t.equal(count, num_tokens, what)
end

local function total(pack, field)
  local sum = 0
  for _, count in ipairs(dist.all_gather_object(pack and pack[field] or 0)) do sum = sum + count end
  return sum
end

t.test("AsManyRanksGoOnWithTheSameChunks", function()
  for _, split in ipairs { true, false } do
    for _, ends in ipairs { {}, { pad = true }, { drop_last = true } } do
      for _, taken in ipairs { 0, 1, 3, 6, 9, 11 } do -- 11: within the sample that rank 3 pads with
        local first = make(WORLD, { split = split }, ends)
        take(first, taken)
        local state = first:state()
        local second = make(WORLD, { split = split, state = state }, ends)

        t.equal(second:state(), state)
        t.equal(take(second), take(first), "after " .. taken)
        t.equal({ second.drawn, second.chunks, second.dropped_tokens },
          { first.drawn, first.chunks, first.dropped_tokens })
      end
    end
  end
end)

t.test("TheStateIsAlikeOnEveryRank", function()
  local pack = make(WORLD)
  take(pack, 3)
  local state = pack:state()
  for _, theirs in ipairs(dist.all_gather_object(state)) do t.equal(theirs, state) end
  t.truthy(#state.cuts > 0, "no chunk ends within a sample")
end)

t.test("AnyNumberOfRanksGoesOnWithNoTokenLostOrTwice", function()
  for _, taken in ipairs { 0, 1, 2, 4 } do
    for after = 1, WORLD do
      local first = make(WORLD)
      local before = take(first, taken)
      local state = first:state()
      local second = make(after, { state = state })
      local rest = take(second)

      local what = ("%d chunks, then %d ranks"):format(taken, after)
      expect_all_once({ before, rest }, what)
      t.equal(total(second, "drawn"), SIZE, what)
    end
  end
end)

t.test("RanksMayChangeAgainBeforeAndAfterTheFirstChunk", function()
  for taken = 0, 4, 2 do
    for alone = 0, 4, 2 do
      local first = make(WORLD)
      local before = take(first, taken)
      local state = first:state()
      -- One rank goes on for a while; the others get its state.
      local one, between = make(1, { state = state }), {}
      if one then
        between = take(one, alone)
        state = one:state()
        one = make(1, { state = state })
        t.equal(one:state(), state)
      end
      state = dist.all_gather_object(state)[1]
      local rest = take(make(WORLD, { state = state }))

      expect_all_once({ before, between, rest }, ("%d chunks, then %d on one rank"):format(taken, alone))
    end
  end
end)

t.test("DroppedTokensAreCountedOnceOverAResume", function()
  local function opts(state) return { split = false, drop_last = true, state = state } end
  local first = make(WORLD, opts())
  local before = take(first, 4)
  local state = first:state()
  local function kept(chunks)
    local count = 0
    for _, ids in ipairs(chunks) do count = count + #ids end
    return count
  end
  for after = 1, WORLD do
    local second = make(after, opts(state))
    local rest = take(second)
    local counts = dist.all_gather_object(kept(before) + kept(rest))
    local sum = total(second, "dropped_tokens")
    for _, count in ipairs(counts) do sum = sum + count end
    t.equal(sum, num_tokens, after .. " ranks")
  end
end)

t.test("SkippedSamplesAreSkippedAgain", function()
  local function loader_opts()
    return { on_error = "skip", map = function(sample)
      if sample.input_ids[1] and sample.input_ids[1] % 300 == 0 then error("bad", 0) end
      return sample
    end }
  end
  local first = make(WORLD, {}, loader_opts())
  take(first, 2)
  local state = first:state()

  local second = make(WORLD, { state = state }, loader_opts())
  t.equal(take(second), take(first))
  t.equal(second.loader.skipped, first.loader.skipped) -- those that were drawn ahead count once
  t.truthy(total(first.loader, "skipped") > 0)
end)

t.test("RanksOfOneDpRowHaveOnePosition", function()
  if WORLD ~= 4 then return end
  local rank = dist.rank()
  local function row_pack(state)
    local loader = data.loader { source = samples, seed = 3, epochs = 1, rank = math.floor(rank / 2), world = 2 }
    return sharding.pack { source = loader, seq_len = 8, state = state }
  end
  local pack = row_pack()
  take(pack, 2)

  local state = pack:state()

  t.equal(#state.ranks, 2)
  for _, theirs in ipairs(dist.all_gather_object(state)) do t.equal(theirs, state) end
  t.equal(take(row_pack(state), 3), take(pack, 3))
end)

t.test("WhatDoesNotFitIsRefused", function()
  local pack = make(WORLD)
  take(pack, 3)
  local state = pack:state()
  t.raises("sharding.pack reads this loader ahead of the training", pack.loader.state_dict, pack.loader)
  t.raises("not a state of pack over a data.loader: it lacks loader", pack.load_state, pack, { drawn = 0 })
  local alone = data.loader { source = samples, rank = 0, world = WORLD + 1 }
  local packed = sharding.pack { source = alone, seq_len = 8 }
  t.raises(("only the %d ranks of the run can tell each other; this loader has %d"):format(WORLD, WORLD + 1),
    packed.state, packed)
  -- Data that changed: the sample in which a chunk ended is now shorter than that.
  local shorter = {}
  for i = 1, SIZE do shorter[i] = { input_ids = {} } end
  local changed = sharding.pack { seq_len = 8, state = state,
    source = data.loader { source = shorter, seed = 3, epochs = 1, rank = 0, world = 1 } }
  t.raises("it has 0 tokens, and when the state was saved it had at least", take, changed)
end)
