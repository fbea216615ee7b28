-- data.loader where something is wrong: samples, maps, workers, options.

local data = require "lockstep.data"
local dist = require "lockstep.distributed"
local run = require "lockstep.run"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local path = run.dir .. "/numbers.jsonl"

local function write(lines)
  return data.source(t.write_file("numbers.jsonl", lines), { cache = run.dir .. "/cache" })
end

local lines = {}
for i = 1, 20 do lines[i] = ('{"id": %d}\n'):format(i) end
local source = write(table.concat(lines))

local MAP = "lockstep.data.maps_fixture"

local function make(opts)
  local all = { source = source, epochs = 1 }
  for key, value in pairs(opts) do all[key] = value end
  return data.loader(all)
end

local function drain(loader)
  local ids = {}
  for sample in loader do ids[#ids + 1] = sample.id end
  return ids
end

--- Calls fn with what is written to stderr caught; returns that.
local function stderr_of(fn)
  local written, real = {}, io.stderr
  rawset(io, "stderr", { write = function(_, ...) written[#written + 1] = table.concat { ... } end })
  local ok, message = pcall(fn)
  rawset(io, "stderr", real)
  if not ok then error(message, 0) end
  return table.concat(written)
end

-- Samples and maps ----------------------------------------------------------------------------------------------

t.test("AFailingMapIsNamedByItsSampleAndItsLine", function()
  for _, workers in ipairs { 0, 1, 3 } do
    local loader = make { shuffle = false, map = MAP, options = { kind = "fail_at", ids = { 7 } }, workers = workers }
    for id = 1, 6 do t.equal(loader().id, id) end
    local message = t.raises(path .. ", line 7: ", loader)
    t.truthy(message:find("maps_fixture.lua:26: attempt to index", 1, true), message)
    -- It stays at its error, and its state before it.
    t.raises(path .. ", line 7: ", loader)
    t.equal(loader:state_dict().position, 6)
  end
end)

t.test("ABadLineIsNamedOnce", function()
  local bad = write('{"id": 1}\n{"id": \n{"id": 3}\n')
  for _, workers in ipairs { 0, 2 } do
    local loader = make { source = bad, shuffle = false, workers = workers }
    loader()
    local message = t.raises("data.loader: " .. path .. ", line 2: syntax error while parsing value", loader)
    t.equal(select(2, message:gsub("line 2", "")), 1)
  end
  source = write(table.concat(lines))
end)

t.test("WithSkipBadSamplesAreCountedAndReported", function()
  for _, workers in ipairs { 0, 2 } do
    local loader = make { shuffle = false, map = MAP, options = { kind = "fail_at", ids = { 3, 4, 20 } },
      workers = workers, on_error = "skip" }
    local ids
    local written = stderr_of(function() ids = drain(loader) end)

    t.equal(ids, { 1, 2, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19 })
    t.equal({ loader.skipped, loader.taken, loader.length }, { 3, 20, 20 })
    t.equal(select(2, written:gsub("lockstep: data.loader: skipped", "")), 3)
    t.truthy(written:find(path .. ", line 20: ", 1, true), written)
  end
end)

t.test("ManySkippedSamplesAreReportedWhenTheirNumberDoubles", function()
  local samples, fails = {}, {}
  for i = 1, 100 do samples[i], fails[i] = { id = i }, i < 100 and i or nil end
  local loader = make { source = samples, map = MAP, options = { kind = "fail_at", ids = fails }, on_error = "skip",
    shuffle = false }
  local written = stderr_of(function() t.equal(drain(loader), { 100 }) end)

  t.equal(select(2, written:gsub("skipped", "")), 10 + 3) -- 20, 40, 80
  t.truthy(written:find("80 so far: sample 80: ", 1, true), written)
end)

t.test("AnEpochOfBadSamplesIsAnErrorAlsoWithSkip", function()
  local loader = make { epochs = 5, map = function() error("never", 0) end, on_error = "skip" }
  stderr_of(function() t.raises("no sample of a whole epoch can be prepared; the last: " .. path, loader) end)
end)

t.test("ASkippedSampleStaysSkippedOverAResume", function()
  local function new() return make { epochs = 2, seed = 3, map = MAP, options = { kind = "fail_at", ids = { 5, 9 } },
    on_error = "skip", rank = 0, world = 1 } end
  stderr_of(function()
    local expected = drain(new())
    local found, loader = {}, new()
    for i = 1, #expected do
      found[i] = loader().id
      local resumed = new()
      resumed:load_state_dict(loader:state_dict())
      loader = resumed
    end
    t.equal(found, expected)
    t.equal(loader(), nil)
    t.equal(loader.skipped, 4)
  end)
end)

t.test("SkippedSamplesAreCountedOnOverAResume", function()
  local fails = {}
  for id = 1, 12 do fails[id] = id end
  local function new(opts)
    local all = { shuffle = false, map = MAP, options = { kind = "fail_at", ids = fails }, on_error = "skip" }
    for key, value in pairs(opts or {}) do all[key] = value end
    return make(all)
  end
  local loader, state = new { epochs = 2 }, nil
  stderr_of(function()
    loader()
    state = loader:state_dict()
  end)
  t.equal(state.skipped, { 12 })

  loader = new { epochs = 2 }
  loader:load_state_dict(state)
  t.equal(loader.skipped, 12)
  local written = stderr_of(function() drain(loader) end)
  t.equal(loader.skipped, 24)
  t.truthy(written:find("13 so far", 1, true), written) -- the first after a resume is reported

  -- States of earlier versions have no counts.
  state.skipped = nil
  loader:load_state_dict(state)
  t.equal(loader.skipped, 0)
  t.equal(make({ epochs = 2 }):state_dict().skipped, nil)
  state.skipped = { -1 }
  t.raises("skipped[1] of the state must be a whole number of at least 0, not -1", loader.load_state_dict, loader,
    state)
end)

t.test("AWorkerThatDoesNotComeBackIsReportedWithItsSample", function()
  local door = os.tmpname()
  os.remove(door)
  local code = ([[
    local sample = ...
    while sample.id == 2 do
      local file = io.open(%q)
      if file then
        file:close()
        break
      end
    end
    return sample
  ]]):format(door)
  local loader = make { shuffle = false, workers = 1, map = MAP, options = { kind = "run", code = code },
    report_after_s = 0.001 }
  local written, real, ids = {}, io.stderr, nil
  rawset(io, "stderr", { write = function(_, text)
    written[#written + 1] = text
    if text:find("0.004 s .*, line 2\n") then io.open(door, "w"):close() end -- lets the worker go
  end })
  local ok, message = pcall(function() ids = drain(loader) end)
  rawset(io, "stderr", real)
  os.remove(door)
  t.truthy(ok, message)

  t.equal(#ids, 20)
  local reports = table.concat(written)
  t.truthy(reports:find("rank 0 has waited 0.004 s for a worker that reads or maps " .. path .. ", line 2\n", 1, true),
    reports)
  t.raises("report_after_s must be a number of seconds above 0, not 0", make, { report_after_s = 0 })
end)

t.test("WhatCannotTravelIsNamed", function()
  local function message_of(code)
    return t.raises(path .. ", line 1: ", make { shuffle = false, workers = 1, map = MAP,
      options = { kind = "run", code = code } })
  end
  t.truthy(message_of("return { f = print }"):find("value.sample.f is a function", 1, true))
  local leaf = "return { x = require('lockstep.torch').ones(1, {requires_grad = true}) }"
  t.truthy(message_of(leaf):find("detach()", 1, true))
  t.truthy(message_of("return nil"):find("the map returned nil", 1, true))
end)

-- Forbidden in a map --------------------------------------------------------------------------------------------

t.test("AMapCannotDrawFromTorchsGenerator", function()
  for _, workers in ipairs { 0, 1 } do
    for _, code in ipairs { "torch.rand(2)", "torch.randperm(3)", "torch.ones(2):uniform_()", "torch.manual_seed(1)",
      "torch.dropout(torch.ones(2), 0.5, true)" } do
      local loader = make { workers = workers, map = MAP,
        options = { kind = "run", code = "local torch = require 'lockstep.torch' return {" .. code .. "}" } }
      t.raises("use math.random, which is seeded for each sample", loader)
    end
  end
  t.equal(require("lockstep.torch").rand(2):size(0), 2)
end)

t.test("AWorkerCannotTalkToOtherRanksOrEndTheRun", function()
  local function message_of(code)
    return t.raises("line", make { workers = 1, map = MAP, options = { kind = "run", code = code } })
  end
  local collective = "require('lockstep.distributed').all_reduce(require('lockstep.torch').ones(1))"
  t.truthy(message_of(collective):find("cannot call a collective", 1, true))
  t.truthy(message_of("require('lockstep.distributed').group { ranks = { 0 } }"):find("make a group", 1, true))
  t.truthy(message_of("os.exit(3)"):find("cannot be called by a worker", 1, true))
  local loader = make { workers = 1, map = MAP,
    options = { kind = "run", code = "return { rank = require('lockstep.distributed').rank() }" } }
  t.equal(loader().rank, dist.rank())
end)

-- Workers and options -------------------------------------------------------------------------------------------

t.test("AWorkerThatCannotStartIsNamed", function()
  t.raises("worker 1 of 1 has ended: ", make { workers = 1, map = "lockstep.data.broken_fixture" })
  t.raises("this module is broken", make { workers = 2, map = "lockstep.data.broken_fixture" })
  t.raises("no_such_map", make { workers = 2, map = "no_such_map" })
  t.raises("no_such_map", make, { map = "no_such_map" })
  t.raises('the module "lockstep.data.cache" must return function(sample), not a table',
    make { workers = 1, map = "lockstep.data.cache" })
end)

t.test("MistakesInOptionsAreNamed", function()
  t.raises("map is a function, which cannot leave", make, { map = print, workers = 1 })
  for _, workers in ipairs { -1, 0.5, 1025, 2 ^ 53, 2 ^ 63, math.huge, 0 / 0 } do
    t.raises("workers must be a whole number from 0 to 1024, not ", make, { workers = workers })
  end
  for _, prefetch in ipairs { 0, 65537, 2 ^ 53 } do
    t.raises("prefetch must be a whole number from 1 to 65536, not ", make, { prefetch = prefetch, workers = 1 })
  end
  t.raises("epochs must be a whole number of at least 1, not 0.5", make, { epochs = 0.5 })
  t.raises('on_error must be "error" or "skip", not "ignore"', make, { on_error = "ignore" })
  t.raises("drop_last and pad", make, { drop_last = true, pad = true })
  t.raises("rank must be from 0 to world - 1 = 1, not 2", make, { rank = 2, world = 2 })
  t.raises("source: expected a source", make, { source = path })
  t.raises("the source has no samples", make, { source = {} })
  t.raises('unknown option "worker"; did you mean "workers"', make, { worker = 1 })
end)

t.test("AStateOfOtherKindsIsRefused", function()
  local loader = make { workers = 0 }
  for _, case in ipairs {
    { "size", "x", "size of the state must be a whole number of at least 0, not a string" },
    { "position", 0 / 0, "position of the state must be a whole number of at least 0, not nan" },
    { "position", 1e18, "position of the state must be a whole number of at least 0, not 1e+18" },
    { "position", -1, "position of the state must be a whole number of at least 0, not -1" },
    { "seed", 1.5, "seed of the state must be a whole number of at least 0, not 1.5" },
    { "shuffle", 1, "shuffle of the state must be true or false, not 1" },
    { "done", -1, "done of the state must be an array of positions, not -1" },
    { "done", { 0.5 }, "done[1] of the state must be a whole number of at least 0, not 0.5" },
  } do
    local state = loader:state_dict()
    state[case[1]] = case[2]
    t.raises("loader:load_state_dict: " .. case[3], loader.load_state_dict, loader, state)
  end
  loader:load_state_dict(loader:state_dict())
end)

t.test("AMapThatIsNoModuleIsNamed", function()
  t.raises('data.loader: map = "nope_map": there is no such module (a file nope_map.lua beside the script)', make,
    { workers = 0, map = "nope_map" })
end)

t.test("AWorkersMapCannotChangeTheDefaultDtype", function()
  local loader = make { workers = 1, map = MAP, options = { kind = "run",
    code = "local torch = require 'lockstep.torch' torch.set_default_dtype(torch.float64) return {}" } }
  t.raises("a map of data.loader cannot change the default dtype", loader)
  t.equal(torch.ones({ 1 }).dtype, torch.float32)
end)

t.test("AFileThatChangesUnderAWorkerIsAnError", function()
  local loader = make { workers = 2, prefetch = 1 }
  loader()
  write("{}")
  t.raises("numbers.jsonl has changed since it was opened", function() drain(loader) end)
  source = write(table.concat(lines))
end)
