--- run:finite on several ranks: all of them take the same decision, and the message names the rank at fault.

local dist = require "lockstep.distributed"
local nonfinite = require "lockstep.run.nonfinite"
local run = require "lockstep.run"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local RANK = dist.rank()

--- Calls fn with a policy, and with a fresh count.
local function with_policy(policy, fn)
  nonfinite.policy, nonfinite.count = policy, 0
  local ok, message = pcall(fn)
  nonfinite.policy = "stop"
  if not ok then error(message, 0) end
end

local function batches()
  return { samples = { 10 * RANK, 10 * RANK + 1 } }
end

t.test("AFiniteStepGoesOnEverywhere", function()
  t.equal(run:finite { loss = torch.tensor(0.5), grad_norm = 2 }, true)
  t.equal(run:finite {}, true)
end)

t.test("StoppingNamesStepRankAndBatchOnEveryRank", function()
  local message
  for step in run:steps(batches, 3) do
    local loss = torch.tensor(RANK == 1 and step == 2 and 0 / 0 or 1)
    local ok
    ok, message = pcall(run.finite, run, { loss = loss, grad_norm = RANK == 2 and step == 2 and math.huge or 1 })
    t.equal(ok, step < 2)
  end

  t.truthy(message:find("run:finite: step 2: loss is nan on rank 1 (batch: samples 10, 11); "
    .. "grad_norm is inf on rank 2 (batch: samples 20, 21); to go on, set nonfinite", 1, true), message)
end)

t.test("SkippingIsTheSameDecisionOnEveryRank", function()
  with_policy("skip", function()
    local taken = {}
    for step in run:steps(batches, 4) do
      taken[step + 1] = run:finite { loss = RANK == 0 and step == 1 and -math.huge or 1 }
    end

    t.equal(taken, { true, false, true, true })
    t.equal(nonfinite.count, 1)
  end)
end)

t.test("GoingOnIsCounted", function()
  with_policy("go_on", function()
    for step in run:steps(batches, 3) do t.equal(run:finite { loss = step == 0 and 1 or 0 / 0 }, true) end

    t.equal(nonfinite.count, 2)
  end)
end)

t.test("ARunThatSkipsEveryStepStops", function()
  with_policy("skip", function()
    local message
    for step in run:steps(batches, 100) do
      local ok
      ok, message = pcall(run.finite, run, { loss = 0 / 0 })
      t.equal(ok, step < 99)
    end

    t.truthy(message:find("and so were the 99 steps before it", 1, true), message)
  end)
end)

t.test("AnythingButANumberIsRefused", function()
  t.raises("run:finite: loss must be a number or a tensor of one element, not {2}", run.finite, run,
    { loss = torch.zeros { 2 } })
  t.raises("run:finite: the values must be a table", run.finite, run, 1)
  t.raises("run:finite is called with a colon", run.finite, { loss = 1 })
end)
