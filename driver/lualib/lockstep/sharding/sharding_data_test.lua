--- sharding.dataset and sharding.pack.

local sharding = require "lockstep.sharding"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local function take(iterator, count)
  local taken = {}
  while not count or #taken < count do
    local value = iterator()
    if value == nil then break end
    taken[#taken + 1] = value
  end
  return taken
end

-- dataset -------------------------------------------------------------------------------------------

local function times_of(size, lists)
  local times = {}
  for i = 1, size do times[i] = 0 end
  for _, list in ipairs(lists) do
    for _, i in ipairs(list) do times[i] = times[i] + 1 end
  end
  return times
end

local function all_once(size, lists)
  for i, count in ipairs(times_of(size, lists)) do t.equal(count, 1, "index " .. i) end
end

t.test("TheShardsTogetherHoldEveryIndexOnce", function()
  local lists = {}
  for rank = 0, 2 do lists[rank + 1] = take(sharding.dataset { size = 11, rank = rank, world = 3, seed = 5 }) end
  all_once(11, lists)
  t.equal({ #lists[1], #lists[2], #lists[3] }, { 4, 4, 3 })
end)

t.test("AForLoopIteratesIt", function()
  local seen = {}
  for index in sharding.dataset { size = 4, rank = 0, world = 1, shuffle = false } do seen[#seen + 1] = index end
  t.equal(seen, { 1, 2, 3, 4 })
end)

t.test("SeedAndEpochGiveTheOrder", function()
  local function order(seed, epoch)
    return take(sharding.dataset { size = 50, rank = 0, world = 1, seed = seed, epoch = epoch })
  end
  t.equal(order(1, 0), order(1, 0))
  t.truthy(table.concat(order(1, 0), " ") ~= table.concat(order(1, 1), " "))
  t.truthy(table.concat(order(1, 0), " ") ~= table.concat(order(2, 0), " "))
  local ds = sharding.dataset { size = 50, rank = 0, world = 1, seed = 1 }
  take(ds)
  ds:set_epoch(1)
  t.equal(ds.epoch, 1)
  t.equal(take(ds), order(1, 1))
end)

t.test("DropAndPadAreCounted", function()
  local dropping = sharding.dataset { size = 11, rank = 2, world = 3, drop_last = true }
  t.equal(#take(dropping), 3)
  t.equal(dropping.dropped, 2)
  local padding = sharding.dataset { size = 11, rank = 2, world = 3, pad = true }
  t.equal(padding.length, 4)
  t.equal(#take(padding), 4)
  t.equal(padding.padded, 1)
end)

t.test("ItResumesOnAnotherWorldSize", function()
  local lists, state = {}, nil
  for rank = 0, 3 do
    local ds = sharding.dataset { size = 23, rank = rank, world = 4, seed = 3, epoch = 2 }
    lists[#lists + 1] = take(ds, 3)
    t.equal(state or ds:state(), ds:state())
    state = ds:state()
  end
  for rank = 0, 1 do lists[#lists + 1] = take(sharding.dataset { state = state, rank = rank, world = 2 }) end
  all_once(23, lists)
end)

t.test("TheStateMayBeOfFewerSamplesThanWereHandedOut", function()
  local ds = sharding.dataset { size = 10, rank = 0, world = 2, seed = 1 }
  local all = take(sharding.dataset { size = 10, rank = 0, world = 2, seed = 1 })
  take(ds, 4)
  t.equal(take(sharding.dataset { state = ds:state(3), rank = 0, world = 2 }), { all[4], all[5] })
end)

t.test("ABillionSamplesCostNoMemory", function()
  collectgarbage()
  local before = collectgarbage("count")
  local ds = sharding.dataset { size = 1e9, rank = 7, world = 1024 }
  for _ = 1, 1000 do ds() end
  collectgarbage()
  t.truthy(collectgarbage("count") - before < 10, "kilobytes of Lua")
end)

t.test("WrongDatasetsAreRefused", function()
  t.raises('the option "size" is missing', sharding.dataset, { rank = 0, world = 1 })
  t.raises("size must be from 0", sharding.dataset, { size = -1 })
  t.raises("rank must be from 0 to world - 1 = 1, not 2", sharding.dataset, { size = 1, rank = 2, world = 2 })
  t.raises("exclude each other", sharding.dataset, { size = 1, drop_last = true, pad = true })
  t.raises('"seed" is in the state already', sharding.dataset, { state = {}, seed = 1 })
  t.raises("it lacks size", sharding.dataset, { state = {} })
end)

-- pack ----------------------------------------------------------------------------------------------

--- Samples of these lengths; the tokens are 100 * number + position.
local function source(lengths, skip)
  local i = skip or 0
  return function()
    i = i + 1
    if not lengths[i] then return nil end
    local sample = { input_ids = {}, loss_mask = {}, weights = {} }
    for k = 1, lengths[i] do
      sample.input_ids[k], sample.loss_mask[k], sample.weights[k] = 100 * i + k - 1, k > 1, i + 0.5
    end
    return sample
  end
end

t.test("ChunksHoldTheSamplesOneBehindTheOther", function()
  local chunks = take(sharding.pack { source = source { 3, 4, 2 }, seq_len = 4 })
  t.equal(#chunks, 2)
  t.equal(chunks[1].input_ids:totable(), { 100, 101, 102, 200 })
  t.equal(chunks[1].position_ids:totable(), { 0, 1, 2, 0 })
  t.equal(chunks[1].loss_mask:totable(), { false, true, true, false })
  t.equal(chunks[1].weights:totable(), { 1.5, 1.5, 1.5, 2.5 })
  t.equal(chunks[1].seq_lens, { 3, 1 })
  t.equal(chunks[2].input_ids:totable(), { 201, 202, 203, 300 })
  t.equal(chunks[2].position_ids:totable(), { 1, 2, 3, 0 })
end)

t.test("DroppedTokensAreCounted", function()
  local packed = sharding.pack { source = source { 3, 4, 2 }, seq_len = 4 }
  take(packed)
  t.equal(packed.dropped_tokens, 1)
  t.equal(packed.chunks, 2)
  t.equal(packed.drawn, 3)
end)

t.test("PackTakesAWholeIdForPadding", function()
  for expected, id in pairs { ["1.5"] = 1.5, ["-1"] = -1, ["nan"] = 0 / 0, ["a string"] = "0" } do
    t.raises("sharding.pack: pad_token_id must be a whole number of at least 0, not " .. expected, sharding.pack,
      { source = source { 3 }, seq_len = 4, pad_token_id = id })
  end
end)

t.test("TheLastChunkMayBeShortOrPadded", function()
  local short = take(sharding.pack { source = source { 3, 2 }, seq_len = 4, drop_last = false })
  t.equal(short[2].input_ids:totable(), { 201 })
  local padded = take(sharding.pack { source = source { 3, 2 }, seq_len = 4, drop_last = false, pad_token_id = 9 })
  t.equal(padded[2].input_ids:totable(), { 201, 9, 9, 9 })
  t.equal(padded[2].loss_mask:totable(), { true, false, false, false })
  t.equal(padded[2].position_ids:totable(), { 1, 0, 1, 2 })
  t.equal(padded[2].seq_lens, { 1, 3 })
end)

t.test("ASampleMayBeItsIdsAlone", function()
  local samples, i = { { 1, 2, 3 }, torch.tensor({ 4, 5, 6 }, { dtype = torch.int64 }), { input_ids = { 7, 8 } } }, 0
  local chunks = take(sharding.pack { source = function() i = i + 1 return samples[i] end, seq_len = 4 })
  t.equal(chunks[1].input_ids:totable(), { 1, 2, 3, 4 })
  t.equal(chunks[2].input_ids:totable(), { 5, 6, 7, 8 })
  t.equal(chunks[2].position_ids:totable(), { 1, 2, 0, 1 })
  t.equal(chunks[2].loss_mask:totable(), { true, true, true, true })
end)

t.test("SamplesMayBeCarriedOverWhole", function()
  local packed = sharding.pack {
    source = source { 3, 2, 6 }, seq_len = 4, split = false, drop_last = false, pad_token_id = 0,
  }
  local chunks = take(packed)
  t.equal(chunks[1].seq_lens, { 3, 1 })
  t.equal(chunks[2].input_ids:totable(), { 200, 201, 0, 0 })
  t.equal(chunks[3].input_ids:totable(), { 300, 301, 302, 303 })
  t.equal(packed.dropped_tokens, 2)
end)

t.test("PackResumesInTheMiddleOfASampleWithTheSameBits", function()
  local lengths = { 3, 11, 2, 7, 1, 9, 4 }
  for _, split in ipairs { true, false } do
    for stop_after = 0, 5 do
      local function make(skip, state)
        return sharding.pack {
          source = source(lengths, skip), seq_len = 4, split = split, drop_last = false, state = state,
        }
      end
      local whole, first = make(), make()
      for _ = 1, stop_after do t.equal(first(), whole()) end
      local state = first:state()
      take(first)
      local second = make(state.drawn, state)
      t.equal(take(second), take(whole))
      t.equal(second.dropped_tokens, whole.dropped_tokens)
      t.equal(second.chunks, whole.chunks)
    end
  end
end)

t.test("WrongSamplesAreNamed", function()
  local function pack_of(...)
    local samples, i = { ... }, 0
    return sharding.pack { source = function() i = i + 1 return samples[i] end, seq_len = 4 }
  end
  t.raises("sample 1 has no input_ids", pack_of({}))
  t.raises("sample 2: loss_mask has shape {1}, but input_ids has 2 tokens",
    function() take(pack_of({ input_ids = { 1 } }, { input_ids = { 1, 2 }, loss_mask = { true } })) end)
  for found, value in pairs { ["0.5"] = 0.5, nan = 0 / 0, ["-100"] = -100 } do
    local message = ("loss_mask holds %s at position 1;"):format(found)
    for _, mask in ipairs { { 1, value }, torch.tensor { 1, value } } do
      t.raises("sample 1: " .. message, pack_of({ input_ids = { 1, 2 }, loss_mask = mask }))
    end
  end
  t.raises("weights is in one of them alone",
    function() take(pack_of({ input_ids = { 1 } }, { input_ids = { 1 }, weights = { 1 } })) end)
  t.raises("every field is an array or a tensor", pack_of({ input_ids = { 1 }, name = "x" }))
  t.raises("seq_len must be at least 1, not 0", sharding.pack, { source = print, seq_len = 0 })
  t.raises("the source must be a function", sharding.pack, { source = 1, seq_len = 4 })
end)

t.test("NoValueIsRoundedOrConvertedSilently", function()
  local function pack_of(...)
    local samples, i = { ... }, 0
    return sharding.pack { source = function() i = i + 1 return samples[i] end, seq_len = 4 }
  end
  local ids = { 1, 2, 3, 4 }
  t.raises("sample 1: document: 16777217 would be rounded to float32; give a tensor",
    pack_of { input_ids = ids, document = { 1, 2, 3, 16777217 } })
  t.equal(pack_of { input_ids = ids, score = { 0.1, 2 ^ 24 + 0.5, 2 ^ 25, math.huge } }().score,
    torch.tensor { 0.1, 2 ^ 24 + 0.5, 2 ^ 25, math.huge })
  t.raises("sample 1: input_ids: 3.5 is not one of the whole numbers", pack_of { input_ids = { 1, 2, 3.5, 4 } })
  t.raises("sample 1: input_ids must be of an integer dtype, not torch.float32",
    pack_of { input_ids = torch.tensor(ids) })
  t.raises("sample 2: label is torch.int64, but torch.float32 in the samples before",
    pack_of({ input_ids = { 1 }, label = { 1 } }, { input_ids = { 1 }, label = torch.arange(1) }))
  local mixed = pack_of({ input_ids = { 1, 2 } }, { input_ids = torch.tensor({ 3, 4 }, { dtype = torch.int32 }) })()
  t.equal(mixed.input_ids, torch.tensor(ids, { dtype = torch.int64 }))
end)

t.test("ShardsOfPackedDataDifferInLength", function()
  -- The seed's case in small: packing real shards gives the ranks unequal counts of chunks.
  local lengths = {}
  for i = 1, 40 do lengths[i] = 1 + (i * i) % 13 end
  local counts = {}
  for rank = 0, 1 do
    local ds = sharding.dataset { size = #lengths, rank = rank, world = 2, seed = 1 }
    local function next_sample()
      local index = ds()
      return index and { input_ids = torch.full({ lengths[index] }, index, { dtype = torch.int64 }) }
    end
    counts[rank + 1] = #take(sharding.pack { source = next_sample, seq_len = 4 })
  end
  t.truthy(counts[1] ~= counts[2], counts[1] .. " and " .. counts[2])
end)
