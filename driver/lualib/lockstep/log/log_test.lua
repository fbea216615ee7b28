-- Tests the reports of a run: on the terminal, in metrics.jsonl, as curves. A stand-in for io.stdout catches the
-- output.

local core = require "lockstep.core"
local data = require "lockstep.data"
local dist = require "lockstep.distributed"
local history = require "lockstep.log.history"
local log = require "lockstep.log"
local metrics = require "lockstep.log.metrics"
local nonfinite = require "lockstep.run.nonfinite"
local plot = require "lockstep.log.plot"
local run = require "lockstep.run"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"
local watching = require "lockstep.core.watching"

--- The JSON objects that `fn` adds to metrics.jsonl.
local function recorded(fn, ...)
  local path, before, objects = run.dir .. "/metrics.jsonl", 0, {}
  if io.open(path) then
    for _ in data.lines(path) do before = before + 1 end
  end
  t.printed(fn, ...)
  for object in data.jsonl(path) do
    before = before - 1
    if before < 0 then objects[#objects + 1] = object end
  end
  return objects
end

local function has(line, text) t.truthy(line:find(text, 1, true), string.format("%q lacks %q", line, text)) end

--- Raises unless the text is well-formed XML of the kind we write: tags that close in order, no stray
--- "<" or "&", every attribute quoted.
local function check_xml(text)
  local open = {}
  local rest = text:gsub("<(/?)([%w:]+)([^<>]-)(/?)>", function(close, name, attributes, empty)
    local left = attributes:gsub('%s+[%w:-]+="[^"<]*"', "")
    assert(not left:find("%S"), "attributes that are none: " .. attributes)
    if close == "/" then
      assert(table.remove(open) == name, "</" .. name .. "> closes another tag")
    elseif empty == "" then
      open[#open + 1] = name
    end
    return ""
  end)
  assert(#open == 0, "tags that stay open: " .. table.concat(open, ", "))
  assert(not rest:gsub("&[lga][tm]p?;", ""):find("[<>&]"), "a character that is not escaped: " .. rest)
end

-- Steps -------------------------------------------------------------------------------------------------

t.test("TheFirstStepShowsItsFieldsAndMemory", function()
  local line = t.printed(log.step, { loss = 2.34567, grad_norm = torch.tensor(0.5), lr = 3e-4, tokens = 1000,
    zeal = 1 })

  t.truthy(line:find("step 0  loss 2%.3457  grad_norm 0%.5000  lr 3%.00e%-04  zeal 1  %d+ MiB\n$"), line)
end)

t.test("AStepIsOneJsonObjectWithWhatWasMeasured", function()
  local objects = recorded(log.step, { loss = torch.tensor(0.25), tokens = 4096, step = 7 })

  t.equal(#objects, 1)
  local object = objects[1]
  t.equal({ object.step, object.loss, object.tokens }, { 7, 0.25, 4096 })
  t.near(object.tokens_per_s * object.step_s, 4096, 1e-6)
  for _, name in ipairs { "memory_bytes", "elapsed_s", "data_share" } do t.truthy(object[name] >= 0, name) end
end)

-- With a GPU's allocator that says what we want: no machine here has one.
t.test("OnAGpuAStepTellsItsOwnPeakAndTheAllocatorsTrouble", function()
  local device, memory_stats, reset = dist.device, torch.cuda.memory_stats, torch.cuda.reset_peak_memory_stats
  local peaks, resets, line = { 3 * 2 ^ 20, 2 * 2 ^ 20 }, 0, nil
  dist.device = function() return "cuda:0" end
  torch.cuda.memory_stats = function()
    return { peak_allocated_bytes = peaks[resets + 1], alloc_retries = 2 * resets, ooms = resets }
  end
  torch.cuda.reset_peak_memory_stats = function() resets = resets + 1 end
  local ok, objects = pcall(recorded, function()
    has(t.printed(log.step, { loss = 1 }), "  3 MiB")
    line = t.printed(log.step, { loss = 1 })
  end)
  dist.device, torch.cuda.memory_stats, torch.cuda.reset_peak_memory_stats = device, memory_stats, reset

  t.truthy(ok, objects)
  has(line, "  2 MiB  2 alloc retries")
  for i, object in ipairs(objects) do
    t.equal({ object.memory_bytes, object.alloc_retries, object.ooms }, { (4 - i) * 2 ^ 20, 2 * (i - 1), i - 1 })
  end
  t.equal({ #objects, resets }, { 2, 2 })
  t.equal(recorded(log.step, { loss = 1 })[1].ooms, nil)
end)

t.test("RatesAreRoundedToWhatAPersonReads", function()
  for rate, text in pairs {
    [7.36] = "  7 tok/s", [999.4] = "  999 tok/s", [9205.8639] = "  9.2k tok/s", [153021] = "  153.0k tok/s",
    [999990] = "  1.0M tok/s", [2.5e9] = "  2.5G tok/s",
  } do
    local now = core.now
    local clock = now()
    core.now = function() return clock end
    local line = t.printed(function()
      log.step {}
      clock = clock + 2
      log.step { tokens = 2 * rate }
    end)
    core.now = now
    has(line, text)
  end
end)

t.test("NumbersAreShownInAsManyDigitsAsSayEnough", function()
  local cases = {
    [0] = "x 0 ", [12] = "x 12 ", [-3] = "x -3 ", [9999] = "x 9999 ", [131072] = "x 131.1k ", [1234567] = "x 1.2M ",
    [0.00125] = "x 1.25e-03 ", [0.0312] = "x 0.0312 ", [1.5] = "x 1.5000 ", [123.456] = "x 123.5 ",
    [1234.56] = "x 1234.6 ", [12345.6] = "x 12.3k ", [1e20] = "x 1.00e+20 ", [math.huge] = "x inf ",
    [-0.5] = "x -0.5000 ",
  }
  for value, text in pairs(cases) do has(t.printed(log.step, { x = value }), text) end
  has(t.printed(log.step, { x = 0 / 0 }), "nan")
end)

t.test("CountsAreAlwaysRecordedAndShownWhereTheyAreNotZero", function()
  for _, report in ipairs { log.step, function(fields) log.record("event", fields) end } do
    local line
    local objects = recorded(function()
      line = t.printed(report, { loss = 1, counts = { cut = 0, lost = torch.tensor(3), empty = 2 } })
    end)
    t.truthy(line:find("loss 1  empty 2  lost 3", 1, true) and not line:find("cut", 1, true), line)
    t.equal({ objects[1].cut, objects[1].lost, objects[1].empty, objects[1].counts }, { 0, 3, 2, nil })
  end
  has(t.printed(log.step, { counts = 7 }), "counts 7 ")
  t.raises("log.step: cut is both a field and among the counts", log.step, { cut = 1, counts = { cut = 2 } })
  t.raises("log.step: cut must be a number or a tensor of one element", log.step, { counts = { cut = "two" } })
end)

t.test("OfALongListTheFirstItemsAreShownAndTheFileHasAll", function()
  local items = {}
  for i = 1, 8 do items[i] = "item " .. i end
  local shown = t.printed(log.list, "8 items", items, "items.txt")
  t.equal(shown, "8 items:\n  item 1\n  item 2\n  item 3\n  item 4\n  item 5\n  and 3 more: see " .. run.dir
    .. "/items.txt\n")
  local found = {}
  for line in data.lines(run.dir .. "/items.txt") do found[#found + 1] = line end
  t.equal(found, items)
  t.equal(t.printed(log.list, "1 item", { "one" }, "items.txt"), "1 item:\n  one\n")
  t.equal(t.printed(log.list, "0 items", {}, "items.txt"), "")
end)

t.test("AFileOutsideTheRunsFolderIsRefused", function()
  local function nothing() end
  t.printed(log.step, { loss = 1 })
  for _, file in ipairs { "../outside.svg", "a/../../outside.svg", "..", ".", "/tmp/outside.svg", "a/", "a.svg\0b" } do
    for name, call in pairs {
      curve = function() log.curve(file, { "loss" }) end,
      list = function() log.list("title", { "one" }, file) end,
      memory = function() log.memory(file, { { "a", nothing } }) end,
    } do
      local message = t.raises("the file must be a name inside the run's folder, as ", call)
      has(message, ("log.%s: "):format(name == "list" and "listing" or name))
      has(message, ("%q"):format(file))
    end
  end
  t.truthy(not io.open(run.dir .. "/../outside.svg"))
  t.truthy(io.open(log.curve("./inside..svg", { "loss" })))
  t.raises('log.listing: the file must be a name, as "skipped.txt", not a nil', log.list, "title", { "one" })
end)

t.test("StepsOfARunAreNumberedAndTimed", function()
  local lines = {}
  local n = 0
  local function loader()
    n = n + 1
    return n
  end
  for step in run:steps(loader, 20) do lines[step] = t.printed(log.step, { loss = step }) end

  has(lines[0], "step 0/20  loss 0 ")
  has(lines[19], "step 19/20  loss 19 ")
  t.truthy(lines[19]:find("  data %d+%%  eta 0:00\n$"), lines[19])
end)

-- Stragglers --------------------------------------------------------------------------------------------

--- Returns the line and the record of a step whose ranks worked so many seconds by themselves.
local function step_after_work(seconds)
  local work_of_ranks, line = watching.work_of_ranks, nil
  watching.work_of_ranks = function() return seconds end
  local ok, objects = pcall(recorded, function() line = t.printed(log.step, { loss = 1 }) end)
  watching.work_of_ranks = work_of_ranks
  t.truthy(ok, objects)
  return line, objects[1]
end

t.test("AStepNamesARankThatIsNotablyLaterThanTheMedian", function()
  local cases = { -- seconds by rank, the slowest, how much later than the median, what the line says of it
    { { 0.1, 0.1, 0.124, 0.09 }, 2, 0.024, "  slowest rank 2 +24 ms" },
    { { 0.1, 0.15 }, 1, 0.05, "  slowest rank 1 +50 ms" },
    { { 4, 0.5, 0.5 }, 0, 3.5, "  slowest rank 0 +3.5 s" },
    { { 0.1, 0.1, 0.1099 }, 2, 0.0099 }, -- less than a tenth of its own work
    { { 0.002, 0.0069 }, 1, 0.0049 },    -- less than 5 ms
    { { 0.1, 0.1 }, 0, 0 },
  }
  for _, case in ipairs(cases) do
    local line, object = step_after_work(case[1])
    t.equal(object.slowest_rank, case[2])
    t.near(object.slowest_late_s, case[3], 1e-12)
    if case[4] then has(line, case[4]) else t.truthy(not line:find("slowest", 1, true), line) end
  end
end)

t.test("WithoutAnAgreementNoRankIsTheSlowest", function()
  for _, seconds in ipairs { { 3 }, false } do
    local line, object = step_after_work(seconds or nil)
    t.equal({ object.slowest_rank, object.slowest_late_s }, {})
    t.truthy(not line:find("slowest", 1, true), line)
  end
end)

t.test("TheWorkForAnEventIsNotTheNextSteps", function()
  local work_of_ranks, pending = watching.work_of_ranks, { 1, 9 }
  watching.work_of_ranks = function()
    local taken = pending
    pending = nil
    return taken
  end
  local ok, objects = pcall(recorded, function()
    log.record("validation", { loss = 1 })
    log.step {}
  end)
  watching.work_of_ranks = work_of_ranks

  t.truthy(ok, objects)
  t.equal({ objects[1].slowest_rank, objects[2].slowest_rank }, {})
end)

-- Values that are not finite ----------------------------------------------------------------------------

--- Runs `fn` with a policy for values that are not finite, and with a fresh count.
local function with_policy(policy, fn)
  local count = nonfinite.count
  nonfinite.policy, nonfinite.count = policy, 0
  local ok, message = pcall(fn)
  nonfinite.policy, nonfinite.count = "stop", count
  if not ok then error(message, 0) end
end

t.test("ALossThatIsNotANumberIsLoggedAsOneAndEndsTheRun", function()
  local message
  local objects = recorded(function()
    for _, values in ipairs { { loss = 0 / 0, grad_norm = math.huge }, { val_loss = -math.huge } } do
      message = t.raises(" is ", log.step, values)
    end
  end)

  t.equal({ objects[1].loss, objects[1].grad_norm }, { "NaN", "Infinity" })
  t.equal(objects[2].val_loss, "-Infinity")
  has(message, "val_loss is -inf; to go on, set nonfinite in run.config")
end)

t.test("AStepThatIsNotFiniteIsCountedWhereTheRunGoesOn", function()
  with_policy("go_on", function()
    local text
    local objects = recorded(function()
      text = t.printed(function()
        for step, loss in ipairs { 0 / 0, 1, 0 / 0 } do log.step { step = step, loss = loss, accuracy = 0 / 0 } end
      end)
    end)

    has(text, "step 1: loss is nan; goes on (nonfinite 1)\n")
    has(text, "step 3: loss is nan; goes on (nonfinite 2)\n")
    t.equal({ objects[2].nonfinite_steps, objects[3].nonfinite_steps }, { 1, 1 })
    t.equal(nonfinite.count, 2)
    has(t.printed(log.step, { loss = 1 }), "nonfinite 2")
  end)
end)

t.test("AStepThatIsNotFiniteNamesItsBatch", function()
  local message
  for _ in run:steps(function() return { samples = { 3, 17 }, x = torch.zeros { 2 } } end, 1) do
    t.printed(function() message = t.raises("loss is nan", log.step, { loss = 0 / 0 }) end)
  end

  has(message, "loss is nan (batch: samples 3, 17)")
end)

t.test("OtherFieldsMayBeAnything", function()
  t.equal(recorded(log.step, { loss = 1, accuracy = 0 / 0 })[1].accuracy, "NaN")
end)

-- Files that cannot be written ------------------------------------------------------------------------------

--- Returns the text that `fn` writes to stderr.
local function complained(fn)
  local parts, stderr = {}, io.stderr
  io.stderr = { write = function(_, ...) parts[#parts + 1] = table.concat({ ... }) end } -- luacheck: ignore 122
  local ok, message = pcall(fn)
  io.stderr = stderr -- luacheck: ignore 122
  if not ok then error(message, 0) end
  return table.concat(parts)
end

t.test("MetricsThatCannotBeWrittenAreReportedOnceAndCounted", function()
  local path, kept = run.dir .. "/metrics.jsonl", run.dir .. "/kept.jsonl"
  t.printed(log.step, { loss = 1 })
  local lost = metrics.lost
  assert(os.rename(path, kept))
  assert(os.execute(("ln -s /dev/full %s"):format(path)) == 0)
  metrics.reopen()
  local text
  local complaints = complained(function()
    text = t.printed(function()
      for _ = 1, 3 do log.step { loss = 2 } end
    end)
  end)
  assert(os.remove(path))
  assert(os.rename(kept, path))
  metrics.reopen()

  has(complaints, "metrics.jsonl: No space left on device; training goes on")
  t.equal(select(2, complaints:gsub("warning", "")), 1)
  t.equal(metrics.lost - lost, 3)
  has(text, "metrics lost " .. lost + 2)
  t.equal(recorded(log.step, { loss = 3 })[1].metrics_lost, lost + 3)
  metrics.lost = lost
end)

t.test("ADeletedFolderIsNoticed", function()
  local path, lost = run.dir .. "/metrics.jsonl", metrics.lost
  t.printed(log.step, { loss = 1 })
  local kept = t.read_file(path)
  assert(os.remove(path))
  local complaints = complained(function() t.printed(log.step, { loss = 2 }) end)
  t.printed(log.step, { loss = 3 })
  core.write_file(path, { kept })
  metrics.reopen()
  metrics.lost = lost

  has(complaints, "metrics.jsonl was deleted, moved or unmounted while it was being written")
end)

t.test("AFieldThatIsNotANumberIsNamed", function()
  t.raises("log.step: the fields must be a table, not a number", log.step, 0.5)
  t.raises("log.step: loss must be a number or a tensor of one element, not a string", log.step, { loss = "low" })
  t.raises("log.step: loss must be a number or a tensor of one element, not torch.float32 {2}", log.step,
    { loss = torch.zeros({ 2 }) })
  t.raises("log.step: done must be a number or a tensor of one element, not torch.bool {}", log.step,
    { done = torch.tensor(true) })
  t.raises("fields have names, as in {loss = loss}, but there is one under 1", log.step, { 0.5 })
  t.raises("log.record: the first argument is the event's name", log.record, { loss = 1 })
  t.raises("log.record: the fields must be a table, not a nil", log.record, "validation")
end)

-- Records and prints ------------------------------------------------------------------------------------

t.test("ARecordIsALineAndAnEventOfTheStepUnderWay", function()
  local line
  local objects = recorded(function()
    t.printed(log.step, { loss = 1, step = 4 })
    line = t.printed(log.record, "validation", { loss = 0.5, accuracy = torch.tensor(0.75), step = 4 })
  end)

  t.equal(line, "validation at step 4  loss 0.5000  accuracy 0.7500\n")
  t.equal(objects[2], { event = "validation", step = 4, loss = 0.5, accuracy = 0.75 })
end)

t.test("PrintJoinsWhateverItIsGiven", function()
  t.equal(t.printed(log.print, "a", 1, nil, true), "a\t1\tnil\ttrue\n")
end)

-- Curves ------------------------------------------------------------------------------------------------

local function curve(...)
  local path = log.curve(...)
  local text = t.read_file(path)
  check_xml(text)
  return text, path
end

t.test("ACurveIsWellFormedAndDrawsEverySeries", function()
  t.printed(function()
    for step = 0, 9 do log.step { step = step, curve_loss = 10 - step } end
    log.record("curve validation", { loss = 3, step = 4 })
    log.record("curve validation", { loss = 2, step = 9 })
  end)

  local text, path = curve("loss.svg", { "curve_loss", "curve validation.loss" }, { title = "a < b & c" })

  t.equal(path, run.dir .. "/loss.svg")
  t.equal(select(2, text:gsub("<polyline", "")), 2)
  has(text, "a &lt; b &amp; c")
  has(text, ">curve validation.loss</text>")
  local first = text:match('points="([^"]+)"')
  t.equal(select(2, first:gsub("[^ ]+", "")), 10)
end)

t.test("BothAxesHaveALabelAndNoNumberIsMinusZero", function()
  t.printed(function()
    for step = 0, 9 do log.step { step = step, axis_loss = step / 9 } end
    log.record("axis validation", { axis_loss = 1, accuracy = 0.5, step = 4 })
    log.record("axis validation", { axis_loss = 0, accuracy = 1, step = 9 })
  end)
  local names = { "axis_loss", "axis validation.axis_loss" }

  local text = curve("axes.svg", names)

  has(text, ">step</text>")
  has(text, ">axis_loss</text>")
  t.equal(select(2, text:gsub(">0</text>", "")), 2) -- on both axes
  t.equal(text:find ">%-0</text>", nil)
  has(curve("axes.svg", names, { log_scale = true }), ">axis_loss (log scale)</text>")
  names[3] = "axis validation.accuracy"
  has(curve("axes.svg", names), ">axis_loss, accuracy</text>")
end)

t.test("PointsThatAreNotFiniteBreakTheLineAndASinglePointIsADot", function()
  t.printed(function()
    for step, value in ipairs { 1, 2, 0 / 0, 4, math.huge, 6, 7 } do log.step { step = step, broken = value } end
  end)

  local text = curve("broken.svg", { "broken" })

  t.equal(select(2, text:gsub("<polyline", "")), 2)
  t.equal(select(2, text:gsub("<circle", "")), 1)
  t.truthy(not text:find("nan") and not text:find("inf"), text)
end)

t.test("ALogarithmicCurveLeavesOutWhatHasNoLogarithm", function()
  t.printed(function()
    for step, value in ipairs { 100, 10, 0, -1, 1, 0.1 } do log.step { step = step, falling = value } end
  end)

  local text = curve("log.svg", { "falling" }, { log_scale = true })

  t.equal(select(2, text:gsub("<polyline", "")), 2)
  has(text, ">100</text>")
  has(text, ">0.1</text>")
end)

t.test("CurvesOfOneValueOrNoneStillHaveAxes", function()
  t.printed(function()
    for step = 0, 2 do log.step { step = step, flat = 5, never = 0 / 0 } end
  end)

  has(curve("flat.svg", { "flat" }), "<polyline")
  t.equal(curve("never.svg", { "never" }):find("<polyline"), nil)
  t.equal(curve("none.svg", {}):find("<polyline"), nil)
end)

t.test("ALongSeriesKeepsItsExtremesAndGapsInBoundedMemory", function()
  local series, steps = history.series(), 200000
  collectgarbage()
  collectgarbage()
  local before = collectgarbage("count")
  for step = 0, steps - 1 do
    local value = 2 + math.sin(step)
    series:add(step, ({ [77777] = 1000, [55555] = -1000, [33333] = 0 / 0 })[step] or value)
  end
  collectgarbage()
  collectgarbage()
  local kib = collectgarbage("count") - before

  local points = series:points()
  t.truthy(kib < 1024, kib .. " KiB")
  t.truthy(#points > 1000 and #points < 3100, #points)
  local found, last = {}, -1
  for _, point in ipairs(points) do
    t.truthy(point.step > last)
    last = point.step
    found[point.step] = point.value
  end
  t.equal({ found[77777], found[55555] }, { 1000, -1000 })
  t.truthy(found[33333] ~= found[33333])
  t.truthy(last > steps - 300)
end)

t.test("AShortSeriesIsKeptWhole", function()
  local series = history.series()
  for step = 1, 1024 do series:add(step, step % 7) end

  local points = series:points()

  t.equal(#points, 1024)
  for i, point in ipairs(points) do t.equal({ point.step, point.value }, { i, i % 7 }) end
end)

-- The ticks of such values were never done: a step was 0, or too small to change a number.
t.test("PlotsOfLargeValuesEnd", function()
  for _, values in ipairs { { 1e300, 1e300 }, { 1e17, 1e17 + 16 }, { -1.7e308, 1.7e308 }, { 1e-320, 2e-320 } } do
    local points = { { step = 0, value = values[1] }, { step = 1, value = values[2] } }
    t.truthy(plot.svg({ { name = "reward", points = points } }):find "<polyline")
  end
end)

t.test("AnUnknownSeriesIsAnErrorThatListsTheKnown", function()
  local message = t.raises('log.curve: nothing was logged as "los" (known: ', log.curve, "x.svg", { "los" })

  has(message, "loss, ")
  t.raises("the series must be an array of names, not a string", log.curve, "x.svg", "loss")
  t.raises('log.curve: the file must be a name, as "loss.svg", not a table', log.curve, {}, { "loss" })
  t.raises('log.curve: the file must be a name, as "loss.svg", not ""', log.curve, "", { "loss" })
  t.raises("plot.svg: the series must be an array", plot.svg, 3)
  t.raises("plot.svg: series 1 must have a name and points", plot.svg, { { name = "a" } })
  t.raises("plot.svg: point 2 of series 1 must have a step and a value", plot.svg,
    { { name = "a", points = { { step = 0, value = 1 }, { step = 1 } } } })
  t.raises('log.curve: unknown option "titel"; did you mean "title"?', log.curve, "x.svg", { "loss" }, { titel = "x" })
end)
