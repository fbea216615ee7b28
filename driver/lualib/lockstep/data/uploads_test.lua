-- data.loader with a device. The streams are imaginary: a copy is done only where its event is waited for.

local core = require "lockstep.core"
local data = require "lockstep.data"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"
local uploads = require "lockstep.data.uploads"

--- An engine whose copies wait until somebody waits for their event. It records its calls.
local function imaginary_streams()
  local engine, queue = { log = {}, done = 0, given = 0 }, {}
  local function note(text) engine.log[#engine.log + 1] = text end
  function engine.pin(x)
    note "pin"
    return x:clone()
  end
  function engine.allocate(x)
    note "allocate"
    return torch.full_like(x, -1)
  end
  function engine.copies_wait() note "copies wait" end
  function engine.copy(to, from)
    note "copy"
    engine.given = engine.given + 1
    queue[engine.given] = function() to:copy_(from) end
  end
  function engine.record() return engine.given end
  function engine.wait(event)
    note "wait"
    for i = engine.done + 1, event do queue[i]() end
    engine.done = math.max(engine.done, event)
  end
  function engine.is_done(event) return event <= engine.done end
  return engine
end

--- Tensors of ten samples, and a loader whose copies go through imaginary streams.
local function new_loader(opts)
  local source = {}
  for i = 1, 10 do source[i] = { x = torch.full({ 2 }, i), id = i, parts = { torch.full({ 1 }, 10 * i), "text" } } end
  opts.source, opts.shuffle, opts.epochs = source, false, 1
  opts.rank, opts.world = 0, 1
  local loader, engine = data.loader(opts), imaginary_streams()
  loader.uploads = uploads.new("cuda:0", engine)
  return loader, engine, source
end

local function values(loader, count)
  local found = {}
  for i = 1, count or 100 do
    local sample = loader()
    if not sample then break end
    t.equal(sample.parts[2], "text")
    t.equal(sample.parts[1]:item(), 10 * sample.id)
    found[i] = sample.x[0]:item()
  end
  return found
end

t.test("TheTrainingWaitsForTheCopiesOfItsSamples", function()
  for _, workers in ipairs { 0, 1, 3 } do
    local loader, engine = new_loader { workers = workers }
    t.equal(values(loader), { 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 })
    t.equal({ engine.given, engine.done }, { 20, 20 })
  end
end)

t.test("TheOrderOfASampleIsPinAllocateCopyWait", function()
  local loader, engine = new_loader { workers = 0 }
  loader()
  t.equal(engine.log, { "pin", "allocate", "pin", "allocate", "copies wait", "copy", "copy", "wait" })
end)

--- Workers that have finished as many samples as a test sets.
local function imaginary_workers(loader)
  local pool = { submitted = {}, given = 0, finished = 0 }
  function pool:submit(job) self.submitted[#self.submitted + 1] = job end
  function pool:next(timeout_s)
    if timeout_s == 0 and self.given >= self.finished then return nil end
    self.given = self.given + 1
    local job = self.submitted[self.given]
    if job[3].fails then return false, "it fails" end
    return true, { sample = job[3] }
  end
  function pool:stop() self.is_stopped = true end
  loader.pool = pool
  return pool
end

--- Streams whose order is checked: which operation is known to be over when another one begins. The stream that
--- computes has used the memory of a tensor before allocate returns it, and reads the tensor at compute(x).
local function ordered_streams()
  local engine = { problems = {} }
  local given = { compute = 0, copies = 0 } -- operations of each stream
  local seen = { compute = 0, copies = 0 } -- of the other stream, those that a stream's next operation comes after
  local used, copied = {}, {} -- of each tensor: operations of the stream that computes, and of the copies
  local function check(holds, text)
    if not holds then engine.problems[#engine.problems + 1] = text end
  end
  function engine.pin(x) return x:clone() end
  function engine.allocate(x)
    local to = torch.empty_like(x)
    given.compute = given.compute + 1
    used[to] = given.compute
    return to
  end
  function engine.copies_wait() seen.copies = given.compute end
  function engine.copy(to, from)
    check(seen.copies >= used[to], "a copy writes to memory that is in use")
    to:copy_(from)
    given.copies = given.copies + 1
    copied[to] = given.copies
  end
  function engine.record() return given.copies end
  function engine.wait(event) seen.compute = math.max(seen.compute, event) end
  function engine.is_done(event) return event <= seen.compute end
  function engine.compute(x)
    check(seen.compute >= copied[x], "a tensor is read before its copy is over")
    given.compute = given.compute + 1
  end
  return engine
end

--- Trains on a source and returns the problems of the order. `change` spoils the engine.
local function problems_of(workers, change)
  local loader = new_loader { workers = workers, prefetch = 3 }
  local engine = ordered_streams()
  if change then change(engine) end
  loader.uploads = uploads.new("cuda:0", engine)
  for sample in loader do
    engine.compute(sample.x)
    engine.compute(sample.parts[1])
  end
  return engine.problems
end

t.test("EachUseAndEachCopyComeAfterWhatTheyNeed", function()
  for workers = 0, 3 do t.equal(problems_of(workers), {}) end
  local function without(name)
    return problems_of(2, function(engine) engine[name] = function() end end)[1]
  end
  t.equal(without "copies_wait", "a copy writes to memory that is in use")
  t.equal(without "wait", "a tensor is read before its copy is over")
end)

t.test("WhatWorkersHaveFinishedIsCopiedAheadOfItsUse", function()
  local loader, engine = new_loader { workers = 2, prefetch = 4 }
  local pool = imaginary_workers(loader)
  pool.finished = 3
  t.equal(values(loader, 1), { 1 })
  t.equal({ engine.given, engine.done }, { 6, 2 }) -- copies; a sample has two
  t.equal(values(loader, 1), { 2 })
  t.equal({ engine.given, engine.done }, { 6, 4 })
  t.equal(values(loader), { 3, 4, 5, 6, 7, 8, 9, 10 })
  t.equal({ engine.given, engine.done }, { 20, 20 })
end)

t.test("NoMoreThanPrefetchSamplesAreOnTheDeviceAhead", function()
  local loader, engine = new_loader { workers = 1, prefetch = 3 }
  imaginary_workers(loader).finished = 10
  for i = 1, 10 do
    values(loader, 1)
    t.equal(engine.given, 2 * math.min(10, i - 1 + 3))
  end
end)

t.test("TheStateIsThatOfTheSamplesHandedOut", function()
  local loader, engine = new_loader { workers = 1, prefetch = 4 }
  imaginary_workers(loader).finished = 4
  values(loader, 1)
  t.equal(engine.given, 8)
  local resumed = new_loader { workers = 0 }
  resumed:load_state_dict(loader:state_dict())
  t.equal(values(resumed), { 2, 3, 4, 5, 6, 7, 8, 9, 10 })
  loader:close()
  t.equal(values(loader), { 2, 3, 4, 5, 6, 7, 8, 9, 10 })
end)

t.test("ASampleThatFailsIsSkippedInItsTurn", function()
  local loader, _, source = new_loader { workers = 1, prefetch = 4, on_error = "skip" }
  imaginary_workers(loader).finished = 10
  source[3].fails = true
  t.equal(values(loader, 2), { 1, 2 })
  t.equal({ loader.taken, loader.skipped }, { 2, 0 })
  t.equal(values(loader), { 4, 5, 6, 7, 8, 9, 10 })
  t.equal(loader.skipped, 1)
end)

t.test("BothSidesOfACopyAreKeptUntilItIsDone", function()
  local engine, weak = imaginary_streams(), setmetatable({}, { __mode = "v" })
  local allocate, pin = engine.allocate, engine.pin
  function engine.allocate(x)
    weak.to = allocate(x)
    return weak.to
  end
  function engine.pin(x)
    weak.from = pin(x)
    return weak.from
  end
  local up = uploads.new("cuda:0", engine)
  local copy = engine.copy
  function engine.copy() copy(torch.zeros { 1 }, torch.zeros { 1 }) end -- so that it keeps neither
  up:send { torch.ones { 1 } } -- nobody takes it
  collectgarbage()
  t.truthy(weak.to and weak.from)
  engine.wait(engine.record())
  up:send {}
  collectgarbage()
  t.equal({ weak.to, weak.from }, {})
end)

t.test("OnlyTablesThatHoldTensorsAreCopied", function()
  local loader, _, source = new_loader { workers = 0 }
  local x = source[1].x
  local sample = loader()
  t.truthy(rawequal(source[1].x, x) and not rawequal(sample.x, x) and not rawequal(sample, source[1]))
  local plain = setmetatable({ 1, { "a" }, data.null }, { __index = {} })
  plain[4] = plain
  t.truthy(rawequal(uploads.replace(plain, function() error "no tensor" end), plain))
  local mixed = { plain, torch.ones { 1 }, null = data.null }
  local replaced = uploads.replace(mixed, function() return "tensor" end)
  t.truthy(rawequal(replaced[1], plain) and rawequal(replaced.null, data.null) and replaced[2] == "tensor")
end)

t.test("DevicesAreChecked", function()
  local function open(device) return data.loader { source = { 1 }, device = device, rank = 0, world = 1 } end
  t.raises('data.loader: device must be "cuda", "cuda:" and a number, or "cpu"', open, "gpu")
  t.raises("not a number", open, 0)
  t.equal(open("cpu").uploads, nil)
end)

t.test("ATableThatIsCopiedForItsTensorKeepsTheOrderOfItsKeys", function()
  local sample = core.json_decode '{"b":1,"x":2,"a":3}'
  local expected = core.json_shapes()[sample]
  sample.x = torch.ones { 1 }
  local copied = uploads.replace(sample, function(x) return x * 2 end)

  t.truthy(copied ~= sample and copied.x:item() == 2)
  t.equal(core.json_shapes()[copied], expected)
end)
