-- Schedules at their corner steps.

local schedule = require("lockstep.optim").schedule
local t = require "lockstep.testing"

--- {step, factor} pairs.
local function check(factor_of, corners)
  for _, corner in ipairs(corners) do t.near(factor_of(corner[1]), corner[2], 1e-12, "step " .. corner[1]) end
end

t.test("WarmupConstantRisesThenStays", function()
  check(schedule.warmup_constant { warmup_steps = 4 }, { { 0, 0.25 }, { 2, 0.75 }, { 3, 1 }, { 4, 1 }, { 1e6, 1 } })
  check(schedule.warmup_constant(), { { 0, 1 }, { 10, 1 } })
end)

t.test("WarmupCosineFallsByHalfACosine", function()
  local factor_of = schedule.warmup_cosine { warmup_steps = 10, total_steps = 110, final_factor = 0.1 }

  check(factor_of, {
    { 0, 0.1 }, { 9, 1 }, { 10, 1 }, { 35, 0.1 + 0.9 * (0.5 + math.sqrt(0.5) / 2) }, { 60, 0.55 }, { 110, 0.1 },
    { 1000, 0.1 },
  })
end)

t.test("WarmupLinearFallsByAStraightLine", function()
  check(schedule.warmup_linear { warmup_steps = 2, total_steps = 12 },
    { { 0, 0.5 }, { 1, 1 }, { 2, 1 }, { 7, 0.5 }, { 11, 0.1 }, { 12, 0 }, { 13, 0 } })
end)

t.test("WarmupStableDecayKeepsAPlateau", function()
  check(schedule.warmup_stable_decay { warmup_steps = 2, total_steps = 20, decay_steps = 10, final_factor = 0.5 },
    { { 0, 0.5 }, { 1, 1 }, { 2, 1 }, { 10, 1 }, { 15, 0.75 }, { 20, 0.5 }, { 30, 0.5 } })
end)

t.test("AScheduleIsChosenByName", function()
  local given = { warmup_steps = 2, total_steps = 20 }
  local same = { constant = schedule.warmup_constant { warmup_steps = 2 }, cosine = schedule.warmup_cosine(given),
    linear = schedule.warmup_linear(given),
    stable_decay = schedule.warmup_stable_decay { warmup_steps = 2, total_steps = 20, decay_steps = 4 } }
  for name, expected in pairs(same) do
    local factor_of = schedule.named(name, given)
    for step = 0, 25 do t.near(factor_of(step), expected(step), 1e-12, name) end
    local is_cut = name == "constant"
    check(schedule.named(name, { warmup_steps = 10, total_steps = 2 }),
      { { 0, is_cut and 0.1 or 0.5 }, { 1, is_cut and 0.2 or 1 } })
  end
  t.raises('a schedule is "constant", "cosine", "linear" or "stable_decay", not cosin', schedule.named, "cosin", given)
end)

t.test("EpochsAreStepsThatTakeEverySampleSoOften", function()
  local function steps(epochs, samples, per_step)
    return schedule.steps { steps = 200, epochs = epochs, samples = samples, samples_per_step = per_step }
  end
  for _, case in ipairs { { 0, 10, 4, 200 }, { 1, 10, 4, 3 }, { 3, 10, 4, 8 }, { 2, 8, 4, 4 }, { 0.5, 8, 4, 1 },
    { 0.1, 30, 1, 3 }, { 0.01, 8, 4, 1 }, { 3, 1, 16, 1 } } do
    t.equal(steps(case[1], case[2], case[3]), case[4])
  end
  t.raises("schedule.steps: epochs = 1 of 0 samples are no steps", steps, 1, 0, 4)
end)

t.test("AScheduleMayBeAllWarmupOrAllDecay", function()
  check(schedule.warmup_cosine { warmup_steps = 5, total_steps = 5 }, { { 0, 0.2 }, { 4, 1 } })
  check(schedule.warmup_linear { total_steps = 4 }, { { 0, 1 }, { 2, 0.5 }, { 4, 0 } })
  check(schedule.warmup_stable_decay { total_steps = 4, decay_steps = 4 }, { { 0, 1 }, { 1, 0.75 }, { 4, 0 } })
end)

t.test("ImpossibleSchedulesAreRefused", function()
  local cases = {
    { schedule.warmup_cosine, { warmup_steps = 5 }, 'schedule.warmup_cosine: the option "total_steps" is missing' },
    { schedule.warmup_cosine, { warmup_steps = 6, total_steps = 5 },
      "warmup_steps (6) must be at most total_steps (5)" },
    { schedule.warmup_linear, { total_steps = "5" }, "total_steps must be a finite number of at least 0, not 5" },
    { schedule.warmup_linear, { total_steps = -5 }, "total_steps must be a finite number of at least 0, not -5" },
    { schedule.warmup_linear, { total_steps = 0 / 0 }, "total_steps must be a finite number of at least 0, not " },
    { schedule.warmup_linear, { total_steps = math.huge }, "must be a finite number of at least 0, not inf" },
    { schedule.warmup_cosine({ total_steps = 5 }), 0 / 0, "the step must be a finite number of at least 0, not " },
    { schedule.warmup_constant(), math.huge, "the step must be a finite number of at least 0, not inf" },
    { schedule.warmup_constant(), nil, "the step must be a finite number of at least 0, not nil" },
    { schedule.warmup_constant, { warmup = 3 }, 'unknown option "warmup"' },
    { schedule.warmup_stable_decay, { total_steps = 5, decay_steps = 3, warmup_steps = 3 },
      "warmup_steps and decay_steps together exceed total_steps" },
  }
  for _, case in ipairs(cases) do t.raises(case[3], case[1], case[2]) end
end)
