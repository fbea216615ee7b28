--- Learning-rate schedules: functions of the step (from 0) that return a factor for the optimizer's lr.
---
---     local schedule = optim.schedule.warmup_cosine { warmup_steps = 100, total_steps = 1000 }
---     optimizer:step(schedule(step))

local core = require "lockstep.core"
local options = require "lockstep.options"
local plain = require "lockstep.plain"

local M = {}

local function read(name, given, defaults)
  local o = options.read("schedule." .. name, given, defaults)
  for option in pairs(defaults) do
    plain.check(type(o[option]) == "number" and o[option] >= 0 and o[option] < math.huge,
      "schedule.%s: %s must be a finite number of at least 0, not %s", name, option, o[option])
  end
  if o.total_steps and o.warmup_steps > o.total_steps then
    core.raise(string.format("schedule.%s: warmup_steps (%d) must be at most total_steps (%d)", name, o.warmup_steps,
      o.total_steps))
  end
  return o
end

--- Returns the schedule `factor_at`, which then refuses what is no step.
local function of_steps(name, factor_at)
  return function(step)
    plain.check(type(step) == "number" and step >= 0 and step < math.huge,
      "schedule.%s: the step must be a finite number of at least 0, not %s", name, step)
    return factor_at(step)
  end
end

--- Part of the way from the end of the warm-up to the last step, 0 to 1.
local function progress(o, step, start)
  local span = math.max(1, o.total_steps - start)
  return math.min(1, math.max(0, (step - start) / span))
end

--- Rises from 1/warmup_steps to 1 during the warm-up, then stays.
---@param given {warmup_steps: integer}?
---@return fun(step: integer): number
function M.warmup_constant(given)
  local o = read("warmup_constant", given, { warmup_steps = 0 })
  return of_steps("warmup_constant", function(step) return math.min(1, (step + 1) / math.max(1, o.warmup_steps)) end)
end

local function warmup_then(name, given, shape)
  local o = read(name, given, { warmup_steps = 0, total_steps = options.required, final_factor = 0 })
  return of_steps(name, function(step)
    if step < o.warmup_steps then return (step + 1) / o.warmup_steps end
    return o.final_factor + (1 - o.final_factor) * shape(progress(o, step, o.warmup_steps))
  end)
end

--- Warm-up, then half a cosine down to `final_factor` at `total_steps` (arXiv 1608.03983).
---@param given {warmup_steps: integer?, total_steps: integer, final_factor: number?}
---@return fun(step: integer): number
function M.warmup_cosine(given)
  return warmup_then("warmup_cosine", given, function(p) return 0.5 * (1 + math.cos(math.pi * p)) end)
end

--- Warm-up, then a straight line down to `final_factor` at `total_steps`.
---@param given {warmup_steps: integer?, total_steps: integer, final_factor: number?}
---@return fun(step: integer): number
function M.warmup_linear(given)
  return warmup_then("warmup_linear", given, function(p) return 1 - p end)
end

--- Warm-up, a plateau, then a straight line down to `final_factor` over the last `decay_steps`
--- (warmup-stable-decay, arXiv 2404.06395).
---@param given {warmup_steps: integer?, total_steps: integer, decay_steps: integer, final_factor: number?}
---@return fun(step: integer): number
function M.warmup_stable_decay(given)
  local o = read("warmup_stable_decay", given,
    { warmup_steps = 0, total_steps = options.required, decay_steps = options.required, final_factor = 0 })
  local start = o.total_steps - o.decay_steps
  plain.check(start >= o.warmup_steps, "schedule.warmup_stable_decay: warmup_steps and decay_steps together exceed "
    .. "total_steps")
  return of_steps("warmup_stable_decay", function(step)
    if step < o.warmup_steps then return (step + 1) / o.warmup_steps end
    return 1 - (1 - o.final_factor) * progress(o, step, start)
  end)
end

--- Returns the schedule that a setting names: warm-up, then "constant", "cosine", "linear", or "stable_decay", which
--- falls over the last fifth of the steps. A warm-up longer than the run ends with it; that of "constant" is cut off.
---
---     local schedule = optim.schedule.named(config.schedule, { warmup_steps = 10, total_steps = config.steps })
---@param name "constant"|"cosine"|"linear"|"stable_decay"
---@param given {warmup_steps: integer?, total_steps: integer, final_factor: number?}
---@return fun(step: integer): number
function M.named(name, given)
  local o = options.read("schedule.named", given, { warmup_steps = 0, total_steps = options.required,
    final_factor = 0 })
  if name == "constant" then return M.warmup_constant { warmup_steps = o.warmup_steps } end
  local total = o.total_steps
  local warmup = math.min(o.warmup_steps, total)
  local shaped = { warmup_steps = warmup, total_steps = total, final_factor = o.final_factor }
  if name == "cosine" then return M.warmup_cosine(shaped) end
  if name == "linear" then return M.warmup_linear(shaped) end
  plain.check(name == "stable_decay",
    'schedule.named: a schedule is "constant", "cosine", "linear" or "stable_decay", not %s', name)
  shaped.decay_steps = math.min(math.ceil(total / 5), total - warmup)
  return M.warmup_stable_decay(shaped)
end

--- Returns the number of steps of a run: `steps`, or with `epochs` above 0 as many as take every sample so often. A
--- part of a step counts as one.
---
---     local steps = optim.schedule.steps { steps = config.steps, epochs = config.epochs, samples = #train,
---       samples_per_step = config.samples_per_step }
---@param given {steps: integer, epochs: number?, samples: integer, samples_per_step: integer}
---@return integer
function M.steps(given)
  local o = read("steps", given, { steps = options.required, epochs = 0, samples = options.required,
    samples_per_step = options.required })
  if o.epochs == 0 then return o.steps end
  plain.check(o.samples_per_step >= 1, "schedule.steps: samples_per_step must be at least 1, not %s",
    o.samples_per_step)
  plain.check(o.samples >= 1, "schedule.steps: epochs = %s of %s samples are no steps", o.epochs, o.samples)
  -- 0.1 * 30 is a little more than 3.
  return math.max(1, math.ceil(o.epochs * o.samples / o.samples_per_step - 1e-9))
end

return M
