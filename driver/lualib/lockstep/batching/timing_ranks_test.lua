--- batching.timing on two ranks. Each rank's clock goes forward by what its micro-batches are to take.

local batching = require "lockstep.batching"
local core = require "lockstep.core"
local dist = require "lockstep.distributed"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"
local watching = require "lockstep.core.watching"

local RANK = dist.rank()
local clock, own_seconds = 0, watching.own_seconds

--- Calls fn with the clock that only micro-batches move.
local function with_clock(fn, ...)
  clock, watching.own_seconds = 0, function() return clock end
  local ok, message = pcall(fn, ...)
  watching.own_seconds = own_seconds
  if not ok then error(message, 0) end
end

local function batch(seq_lens, cost, padding)
  return { seq_lens = seq_lens, cost = cost, padding = padding or false }
end

--- Measures micro-batches that take fixed + linear * L + quadratic * L^2 of the clock, or the seconds given.
local function measure(times, batches, fixed, linear, quadratic)
  for _, one in ipairs(batches) do
    times:measure(one, function()
      local seconds = fixed
      for _, length in ipairs(one.seq_lens) do seconds = seconds + linear * length + quadratic * length * length end
      clock = clock + seconds
    end)
  end
end

t.test("TheReportComparesCostsWithSecondsOverAllRanks", function()
  with_clock(function()
    local times = batching.timing()
    -- By tokens both ranks have as much; the long sequence takes longer.
    local own = RANK == 0 and { batch({ 8 }, 8), batch({ 4 }, 4) } or { batch({ 4, 4 }, 8), batch({ 2 }, 2) }
    measure(times, own, 0, 0, 1)
    local report = times:report()

    t.equal(report.micro_steps, 2)
    t.equal({ report.predicted_makespan, report.predicted_ideal }, { 8 + 4, (8 + 8 + 4 + 2) / 2 })
    t.equal({ report.makespan_s, report.ideal_s }, { 64 + 16, (64 + 32 + 16 + 4) / 2 })
    t.near(report.cost.quadratic, 1, 1e-9)
    t.near(report.cost.linear, 0, 1e-9)
    t.equal(tostring(report):match "^[^;]*",
      "2 micro-steps: the makespan is 1.091 of the ideal by cost, and 1.379 measured")
    for _, theirs in ipairs(dist.all_gather_object(report.cost)) do t.equal(theirs, report.cost) end
  end)
end)

t.test("ACostIsFoundFromMixedLengthsAndPlansByIt", function()
  with_clock(function()
    local times = batching.timing()
    local batches = { batch({ 100, 7 }, 107), batch({ 50, 50, 50 }, 150), batch({ 1000 }, 1000),
      batch({ 3, 800 }, 803) }
    measure(times, batches, 0.01, 2e-5, 3e-8)
    local report = times:report()

    t.near(report.fixed_s, 0.01, 1e-9)
    t.near(report.cost.linear, 2e-5, 1e-12)
    t.near(report.cost.quadratic, 3e-8, 1e-14)
    t.near(report.error, 0, 1e-6)
    local function text(tokens)
      return { input_ids = torch.arange(tokens), loss_mask = torch.ones({ tokens }):bool() }
    end
    local _, plan = batching.prepare { samples = { text(30), text(40) }, seq_len = 64, cost = report.cost }
    t.near(plan.makespan, 2e-5 * 40 + 3e-8 * 40 * 40, 1e-12)
  end)
end)

t.test("SecondsThatFallWithTheLengthGiveNoNegativeCost", function()
  with_clock(function()
    local times = batching.timing()
    measure(times, { batch({ 10 }, 10), batch({ 20 }, 20), batch({ 30 }, 30) }, 5, -0.1, 0)
    local report = times:report()

    t.equal(report.cost, nil)
    t.near(report.fixed_s, 3, 1e-9)
    t.truthy(not tostring(report):find(";", 1, true), tostring(report))
  end)
end)

t.test("OneLengthTellsTheSecondsOfATokenAlone", function()
  with_clock(function()
    local times = batching.timing()
    measure(times, { batch({ 10 }, 10), batch({ 10 }, 10) }, 0, 0.5, 0)
    local report = times:report()

    t.near(report.cost.linear, 0.5, 1e-12)
    t.equal({ report.cost.quadratic, report.fixed_s }, { 0, 0 })
  end)
end)

t.test("PaddingIsNoPartOfTheIdeal", function()
  with_clock(function()
    local times = batching.timing()
    measure(times, { batch({ 10 }, 10, RANK == 1) }, 0, 1, 0)
    local report = times:report()

    t.equal({ report.predicted_makespan, report.predicted_ideal }, { 10, 5 })
    t.equal({ report.makespan_s, report.ideal_s }, { 10, 5 })
  end)
end)

t.test("MeasurePassesResultsAndAReportBeginsAnew", function()
  local times = batching.timing()
  t.equal({ times:measure(batch({ 1 }, 1), function(...) return ..., "x" end, 3) }, { 3, "x" })
  t.equal(times:report().micro_steps, 1)
  t.raises("at least one; rank 0 measured 0", times.report, times)
end)

t.test("AnUnequalNumberOfMicroBatchesIsAnErrorOnEveryRank", function()
  local times = batching.timing()
  for _ = 0, RANK do times:measure(batch({ 1 }, 1), function() end) end

  t.raises("rank 0 measured 1, rank 1 measured 2", times.report, times)
  t.raises("timing:measure: expected a micro-batch of batching.prepare or stream, got a number", times.measure, times,
    3)
end)

t.test("WorkIsMeasured", function()
  local times, least = batching.timing(), 0.005
  times:measure(batch({ 1 }, 1), function()
    local start = core.now()
    while core.now() - start < least do end
  end)

  t.truthy(times:report().ideal_s >= least - 1e-6)
end)
