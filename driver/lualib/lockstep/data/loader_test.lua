-- data.loader: the order of samples, which nothing changes but the seed; resuming; what travels from workers.

local batching = require "lockstep.batching"
local core = require "lockstep.core"
local data = require "lockstep.data"
local run = require "lockstep.run"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local SIZE = 23
local lines = {}
for i = 1, SIZE do lines[i] = ('{"id": %d, "none": null}\n'):format(i) end
local path = t.write_file("numbers.jsonl", table.concat(lines))
local source = data.source(path, { cache = run.dir .. "/cache" })

local MAP = "lockstep.data.maps_fixture"

local function make(opts)
  local all = { source = source, rank = 0, world = 1 }
  for key, value in pairs(opts or {}) do all[key] = value end
  return data.loader(all)
end

--- The next `count` ids, or all.
local function ids(loader, count)
  local found = {}
  while #found < (count or math.huge) do
    local sample = loader()
    if sample == nil then break end
    found[#found + 1] = sample.id
  end
  return found
end

--- The samples of ranks that take turns, in the order of their turns.
local function merged(world, opts)
  local loaders, found = {}, {}
  for rank = 0, world - 1 do
    opts.rank, opts.world = rank, world
    loaders[rank + 1] = make(opts)
  end
  local is_over = false
  while not is_over do
    is_over = true
    for _, loader in ipairs(loaders) do
      local sample = loader()
      if sample ~= nil then
        found[#found + 1], is_over = sample.id, false
      end
    end
  end
  return found, loaders
end

local function sorted(array)
  local copy = { unpack(array) }
  table.sort(copy)
  return copy
end

local function numbers(count)
  local all = {}
  for i = 1, count do all[i] = i end
  return all
end

-- Order -----------------------------------------------------------------------------------------------------

t.test("RanksAndWorkersChangeNothingInTheOrder", function()
  local expected = ids(make { epochs = 3, seed = 5 })
  t.equal(#expected, 3 * SIZE)
  for _, world in ipairs { 1, 2, 4 } do
    for _, workers in ipairs { 0, 1, 3 } do
      t.equal((merged(world, { epochs = 3, seed = 5, workers = workers })), expected,
        world .. " ranks, " .. workers .. " workers")
    end
  end
end)

t.test("SlowSamplesDoNotOvertake", function()
  local opts = { epochs = 2, seed = 1, map = MAP, options = { kind = "slow" } }
  local expected = ids(make(opts))
  for _, workers in ipairs { 1, 3 } do
    opts.workers, opts.prefetch = workers, 3
    t.equal(ids(make(opts)), expected)
  end
end)

t.test("EveryEpochHasEverySampleOnceInAnOrderOfItsOwn", function()
  local loader = make { epochs = 2, seed = 3 }
  local first = ids(loader, SIZE)
  t.equal(loader.epoch, 1)
  local second = ids(loader)

  t.equal(sorted(first), numbers(SIZE))
  t.equal(sorted(second), numbers(SIZE))
  t.truthy(table.concat(first, " ") ~= table.concat(second, " "))
  t.truthy(table.concat(first, " ") ~= table.concat(numbers(SIZE), " "))
  t.equal(ids(make { epochs = 1, shuffle = false }), numbers(SIZE))
  t.equal(loader(), nil)
end)

t.test("WithoutEpochsThereIsNoEnd", function()
  local loader = make { seed = 2 }
  t.equal(#ids(loader, 10 * SIZE + 1), 10 * SIZE + 1)
  t.equal(loader.epoch, 10)
  t.equal(loader.length, math.huge)
end)

t.test("UnevenEndsAreDroppedOrPaddedWhereThatIsAskedFor", function()
  local _, uneven = merged(4, { epochs = 1 })
  local dropped, dropping = merged(4, { epochs = 1, drop_last = true })
  local padded, padding = merged(4, { epochs = 1, pad = true })

  t.equal({ uneven[1].length, uneven[4].length }, { 6, 5 })
  t.equal({ #dropped, dropping[1].length, dropping[1].dropped }, { 20, 5, 3 })
  t.equal({ #padded, padding[4].length, padding[1].padded, padding[4].padded }, { 24, 6, 0, 1 })
  t.equal(padded[24], padded[1])
end)

t.test("AMixGoesOnInTheNextEpochWhereItWasLeft", function()
  local a, b = {}, {}
  for i = 1, 10 do a[i], b[i] = { id = i }, { id = 100 + i } end
  local mix = data.mix({ a, b }, { weights = { 1, 1 }, size = 10 })
  local expected = ids(make { source = mix, epochs = 2, seed = 4 })

  t.equal(sorted(expected), { 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 101, 102, 103, 104, 105, 106, 107, 108, 109, 110 })
  t.equal((merged(2, { source = mix, epochs = 2, seed = 4, workers = 2 })), expected)
end)

t.test("TheOrderOfKeysTravelsToWorkersAndBack", function()
  local written, rows = {}, {}
  for i = 1, 6 do
    written[i] = ('{"id":%d,"tools":[{"zip":{"b":1,"a":2.0,"none":{}},"name":"f","empty":[]}],'
      .. '"of":[[1.0],[{"y":0,"x":0}]]}'):format(i)
    rows[i] = core.json_decode(written[i])
  end
  local file = data.source(t.write_file("tools.jsonl", table.concat(written, "\n") .. "\n"),
    { cache = run.dir .. "/cache" })
  local code = 'local s = ...; return { text = require("lockstep.core").json_encode(s), sample = s, x = torch.ones(1) }'
  for _, from in ipairs { rows, file } do
    for _, workers in ipairs { 0, 2 } do
      local mapped = make { source = from, epochs = 1, shuffle = false, workers = workers, map = MAP,
        options = { kind = "run", code = code:gsub("torch", 'require("lockstep.torch")') } }
      local plain = make { source = from, epochs = 1, shuffle = false, workers = workers }
      for i = 1, 6 do
        local result = mapped()
        t.equal(result.text, written[i])
        t.equal(core.json_encode(result.sample), written[i])
        t.equal(core.json_encode(plain()), written[i])
      end
    end
  end
end)

-- Results of maps ----------------------------------------------------------------------------------------------

t.test("WhatAMapReturnsComesAlikeFromWorkersAndWithout", function()
  local opts = { epochs = 1, seed = 1, map = MAP, options = { kind = "all" } }
  local function all(workers)
    opts.workers = workers
    local samples = {}
    for sample in make(opts) do samples[#samples + 1] = sample end
    return samples
  end
  local expected = all(0)

  t.equal(#expected, SIZE)
  t.equal(expected[1].none, core.null)
  t.equal(expected[1].tensor, torch.arange(expected[1].id, { dtype = torch.int64 }) * 2)
  t.truthy(expected[1].random ~= expected[2].random)
  t.equal(all(1), expected)
  t.equal(all(3), expected)
end)

t.test("AMapLeavesTheScriptsRandomNumbersAlone", function()
  math.randomseed(4)
  local expected = { math.random(), math.random() }
  math.randomseed(4)
  local loader = make { epochs = 1, map = function(sample) return { id = sample.id, x = math.random() } end }

  t.equal({ math.random(), (loader() and nil) or math.random() }, expected)
end)

t.test("AnArrayIsASource", function()
  local samples = {}
  for i = 1, 5 do samples[i] = { id = i, x = torch.ones(i) } end
  local expected = ids(make { source = samples, epochs = 2 })

  t.equal(sorted(expected), { 1, 1, 2, 2, 3, 3, 4, 4, 5, 5 })
  t.equal(ids(make { source = samples, epochs = 2, workers = 2 }), expected)
end)

t.test("WorkersStopWhereALoopIsLeftAndWhereALoaderIsCollected", function()
  local function threads()
    local count = 0
    for _, name in ipairs(require("lockstep.core.files").list("/proc/self/task")) do
      local file = io.open("/proc/self/task/" .. name .. "/comm")
      if file then
        if file:read("*l"):find("^data %d") then count = count + 1 end
        file:close()
      end
    end
    return count
  end
  -- The kernel may list a thread for a moment after its end. The test's limit ends this wait.
  local function wait_for(count) repeat until threads() == count end
  collectgarbage()
  collectgarbage()
  local before = threads()
  do
    local loader = make { workers = 3 }
    for sample in loader do
      if sample then break end
    end
    t.equal(threads(), before + 3)
    loader:close()
    wait_for(before)
    loader()
    t.equal(threads(), before + 3)
  end
  collectgarbage()
  collectgarbage()
  wait_for(before)
end)

-- State -------------------------------------------------------------------------------------------------------

t.test("ALoaderGoesOnOnAnyNumberOfRanksAndWorkers", function()
  local expected = ids(make { epochs = 3, seed = 5 })
  for _, before in ipairs { 1, 2, 4 } do
    for _, after in ipairs { 1, 2, 3 } do
      local found, state = {}, nil
      local loaders = {}
      for rank = 0, before - 1 do
        loaders[rank + 1] = make { epochs = 3, seed = 5, rank = rank, world = before, workers = rank % 2 * 2 }
      end
      for _ = 1, 7 do
        for _, loader in ipairs(loaders) do found[#found + 1] = loader().id end
      end
      for i, loader in ipairs(loaders) do
        state = loader:state_dict()
        t.equal(state, loaders[1]:state_dict(), "rank " .. i)
      end
      loaders = {}
      for rank = 0, after - 1 do
        loaders[rank + 1] = make { epochs = 3, seed = 1, rank = rank, world = after, workers = (rank + 1) % 2 * 2 }
        loaders[rank + 1].seed = 5
        loaders[rank + 1]:load_state_dict(state)
      end
      for _ = 1, 3 * SIZE do
        for _, loader in ipairs(loaders) do
          local sample = loader()
          if sample then found[#found + 1] = sample.id end
        end
      end
      t.equal(found, expected, before .. " ranks, then " .. after)
    end
  end
end)

t.test("ALoaderIsSetBackWhileItsWorkersAreAhead", function()
  local loader = make { epochs = 2, seed = 5, workers = 2 }
  local state = loader:state_dict()
  local first = ids(loader, 9)
  loader:load_state_dict(state)

  t.equal(ids(loader, 9), first)
  t.equal(loader.taken, 9)
end)

t.test("AStateOfSomethingElseIsAnError", function()
  local loader = make {}
  local state = loader:state_dict()
  t.raises("it lacks size", loader.load_state_dict, loader, {})
  state.size = 5
  t.raises("the state is of a source of 5 samples, this one has 23", loader.load_state_dict, loader, state)
end)

t.test("AtTheEndTheStateIsTheEnd", function()
  local loader = make { epochs = 1 }
  ids(loader)
  local resumed = make { epochs = 2 }
  resumed:load_state_dict(loader:state_dict())

  t.equal(resumed.epoch, 1)
  t.equal(#ids(resumed), SIZE)
end)

-- With the rest of the library --------------------------------------------------------------------------------

t.test("AStreamOfMicroBatchesTakesALoader", function()
  local samples = {}
  for i = 1, 12 do samples[i] = { input_ids = numbers(i), loss_mask = numbers(i) } end
  local function map(sample)
    local ones = torch.ones(#sample.input_ids, { dtype = torch.int64 })
    return { input_ids = sample.input_ids, loss_mask = ones }
  end
  local loader = data.loader { source = samples, epochs = 1, seed = 1, map = map, rank = 0, world = 1 }
  local stream = batching.stream { source = loader, buffer = 6, seq_len = 16, ranks = 1, rank = 0 }
  for micro_batches in stream do t.truthy(#micro_batches > 0) end

  t.equal({ stream.drawn, stream.tokens }, { 12, 78 })
end)

t.test("WorkersFindModulesWhereTheScriptDoes", function()
  t.write_file("map_of_the_run.lua", "return function(sample) return { id = -sample.id } end")
  package.path = run.dir .. "/?.lua;" .. package.path
  local loader = make { shuffle = false, map = "map_of_the_run", workers = 1 }

  t.equal(loader().id, -1)
end)
