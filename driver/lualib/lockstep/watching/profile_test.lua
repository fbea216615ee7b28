--- Traces by Kineto: valid JSON, spans with the operators inside them, the steps that were asked for.

local core = require "lockstep.core"
local run = require "lockstep.run"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

--- The trace's events that have a duration.
local function events_of(path)
  local text = t.read_file(path)
  -- Beyond 2^53, which our reader refuses rather than round.
  local trace = core.json_decode(text:gsub('("baseTimeNanoseconds": )%d+', "%10"), path)
  local events = {}
  for _, event in ipairs(trace.traceEvents) do
    if event.ph == "X" then events[#events + 1] = event end
  end
  return events
end

local function named(events, name)
  local found = {}
  for _, event in ipairs(events) do
    if event.name == name then found[#found + 1] = event end
  end
  return found
end

local function is_inside(inner, outer)
  return inner.tid == outer.tid and inner.ts >= outer.ts and inner.ts + inner.dur <= outer.ts + outer.dur
end

local w = torch.ones({ 4, 4 }, { requires_grad = true })

local function attention(x) return torch.softmax(x:mm(w), -1) end

local function batches(n)
  return function()
    n = n - 1
    if n >= 0 then return torch.ones { 2, 4 } end
  end
end

t.test("ATraceHoldsTheSpanAndTheOperatorsInsideIt", function()
  local path, y = lockstep.profile({ path = "span.json" }, function()
    local y = lockstep.span("attention", attention, torch.ones { 2, 4 })
    torch.relu(y)
    return y
  end)

  t.equal(path, run.dir .. "/span-rank0.json")
  t.equal(y.shape, { 2, 4 })
  local events = events_of(path)
  local span = named(events, "attention")
  t.equal({ #span, span[1].cat }, { 1, "user_annotation" })
  t.truthy(is_inside(named(events, "aten::mm")[1], span[1]))
  t.truthy(is_inside(named(events, "aten::softmax")[1], span[1]))
  t.truthy(not is_inside(named(events, "aten::relu")[1], span[1]))
end)

t.test("SpansNestAndPassResultsAndErrorsOn", function()
  local results
  local path = lockstep.profile({ path = "nested.json" }, function()
    local function inner(...) return lockstep.span("inner", function(...) return ... end, ...) end
    results = { lockstep.span("outer", inner, 1, nil, 3) }
    local ok, message = pcall(lockstep.span, "failed", function() error("inside", 0) end)
    t.equal({ ok, message }, { false, "inside" })
    torch.relu(w)
  end)

  t.equal({ results[1], results[2] == nil, results[3] }, { 1, true, 3 })
  local events = events_of(path)
  t.truthy(is_inside(named(events, "inner")[1], named(events, "outer")[1]))
  t.truthy(not is_inside(named(events, "aten::relu")[1], named(events, "failed")[1]))
end)

t.test("ASpanOutsideOfATraceIsACall", function()
  t.equal({ lockstep.span("nothing", function(a, b) return b, a end, 1, 2) }, { 2, 1 })
end)

t.test("BackwardIsInTheTrace", function()
  local path = lockstep.profile({ path = "backward.json" }, function()
    attention(torch.ones { 2, 4 }):sum():backward()
  end)

  t.equal(#named(events_of(path), "autograd::engine::evaluate_function: MmBackward0"), 1)
end)

t.test("TheStepsThatWereAskedForAreTraced", function()
  local path = lockstep.profile { steps = { 2, 3 }, path = "steps.json" }
  for step, x in run:steps(batches(6)) do
    lockstep.span("step " .. step, attention, x)
    if step == 4 then t.truthy(io.open(path), "the file must be there when its last step is over") end
  end

  local events = events_of(path)
  for step = 0, 5 do
    local traced = step == 2 or step == 3
    t.equal(#named(events, "step " .. step), traced and 1 or 0, "step " .. step)
    local whole = named(events, "ProfilerStep#" .. step)
    t.equal(#whole, traced and 1 or 0, "step " .. step)
    if traced then t.truthy(is_inside(named(events, "step " .. step)[1], whole[1])) end
  end
  -- The data's loading is part of a step.
  t.truthy(is_inside(named(events, "aten::ones")[1], named(events, "ProfilerStep#2")[1]))
end)

t.test("ALoopThatEndsEarlyEndsTheTrace", function()
  for _, total in ipairs { 3, 100 } do
    local path = lockstep.profile { steps = { 1, 50 }, path = "early.json" }
    for _, x in run:steps(batches(total == 3 and 10 or 3), total) do attention(x) end

    local events = events_of(path)
    t.equal({ #named(events, "ProfilerStep#1"), #named(events, "ProfilerStep#2") }, { 1, 1 })
    os.remove(path)
  end
end)

t.test("ALoopThatNeverReachesTheStepsReportsIt", function()
  local said, stderr = {}, io.stderr
  io.stderr = { write = function(_, text) said[#said + 1] = text end } -- luacheck: ignore 122
  local path = lockstep.profile { steps = { 7, 9 }, path = "never.json" }
  for _, x in run:steps(batches(3)) do attention(x) end
  io.stderr = stderr -- luacheck: ignore 122

  t.equal(said, { "lockstep.profile: the loop took no step from 7 to 9; no trace was written\n" })
  t.equal(io.open(path), nil)
  for _, x in run:steps(batches(9)) do attention(x) end -- the next loop is not traced
  t.equal(io.open(path), nil)
end)

t.test("ShapesAndMemoryAreThereWhereAsked", function()
  local function shape_of(options)
    options.path = "asked.json"
    local events = events_of((lockstep.profile(options, function() attention(torch.ones { 2, 4 }) end)))
    return named(events, "aten::mm")[1].args["Input Dims"]
  end

  t.equal(shape_of {}, nil)
  t.equal(shape_of { record_shapes = true }, { { 2, 4 }, { 4, 4 } })
  lockstep.profile({ path = "memory.json", profile_memory = true }, function() return torch.ones { 1024 } end)
  t.truthy(assert(io.open(run.dir .. "/memory-rank0.json")):read("*a"):find('"[memory]"', 1, true))
end)

t.test("AnErrorStillLeavesATrace", function()
  local ok, message = pcall(lockstep.profile, { path = "failed.json" }, function()
    attention(torch.ones { 2, 4 })
    error("inside", 0)
  end)

  t.equal({ ok, message }, { false, "inside" })
  t.equal(#named(events_of(run.dir .. "/failed-rank0.json"), "aten::mm"), 1)
end)

t.test("APathWithoutAnExtensionAndAnAbsoluteOneGetTheRankToo", function()
  local nothing = function() end
  t.equal((lockstep.profile({ path = "plain" }, nothing)), run.dir .. "/plain-rank0")
  t.equal((lockstep.profile({ path = run.dir .. "/absolute.json" }, nothing)), run.dir .. "/absolute-rank0.json")
end)

t.test("ATraceThatCannotBeWrittenIsRefusedBeforeAnythingRuns", function()
  local function run_nothing() error("this ran") end
  local message = "lockstep.profile: cannot write the trace /nowhere/x-rank0.json: there is no folder /nowhere"
  t.raises(message, lockstep.profile, { path = "/nowhere/x.json" }, run_nothing)
  t.raises(message, lockstep.profile, { path = "/nowhere/x.json", steps = { 1, 2 } })
  t.raises("there is no folder " .. run.dir .. "/traces", lockstep.profile, { path = "traces/x.json" }, run_nothing)
  core.make_folder(run.dir .. "/y-rank0.json")
  t.raises("y-rank0.json: it is a folder", lockstep.profile, { path = "y.json", steps = { 1, 2 } })
end)

t.test("AnInvalidTraceIsAnError", function()
  local message = "lockstep.profile: give either steps = {from, to} or, after the options, a function to trace"
  t.raises(message, lockstep.profile, {})
  t.raises(message, lockstep.profile, { steps = { 1, 2 } }, print)
  for _, steps in ipairs { { 1 }, { 3, 2 }, { -1, 2 }, { 1, 2.5 }, { "a", 2 }, { 1, 2, 3 } } do
    t.raises("lockstep.profile: steps must be the first and the last step to trace, as in {10, 12}", lockstep.profile,
      { steps = steps })
  end
  t.raises('lockstep.profile: unknown option "step"; did you mean "steps"?', lockstep.profile, { step = { 1, 2 } })
  t.raises("another trace is under way", lockstep.profile, { path = "outer.json" }, function()
    lockstep.profile({ path = "inner.json" }, function() end)
  end)
  t.raises("lockstep.span: name must be a string, not a function", lockstep.span, print)
  t.raises("lockstep.span: the second argument must be a function, not nil", lockstep.span, "x")
end)
