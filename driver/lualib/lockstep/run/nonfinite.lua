--- Losses and gradient norms that are NaN or infinite: found, told, counted, and handled as the script chooses.
---
---     local config = run.config { nonfinite = "skip", steps = 400 }
---     ...
---     if run:finite { loss = loss, grad_norm = norm } then optimizer:step() end

local core = require "lockstep.core"
local core_sharding = require "lockstep.core.sharding"
local dist = require "lockstep.distributed"
local terminal = require "lockstep.log.terminal"
local plain = require "lockstep.plain"
local torch = require "lockstep.torch"

local M = {}

--- "stop": an error on every rank. "skip": run:finite returns false. "go_on": run:finite returns true.
local POLICIES = { stop = true, skip = true, go_on = true }
--- A run that skips this many steps one after another learns nothing any more, and stops.
local MAX_SKIPPED_IN_A_ROW = 100

--- The policy of this run, from run.config.
---@type "stop"|"skip"|"go_on"
M.policy = "stop"
--- Steps so far that were not finite.
---@type integer
M.count = 0
local in_a_row = 0
local last_step ---@type integer? the last step that was not finite
local agreement ---@type lockstep.core.sharding.Gathering

--- Takes the policy from what run.config returned.
---@param config table
function M.configure(config)
  local policy = rawget(config, "nonfinite")
  if policy == nil then return end
  plain.check(POLICIES[policy], 'run.config: nonfinite must be "stop", "skip" or "go_on", not %s',
    type(policy) == "string" and ('"%s"'):format(policy) or tostring(policy))
  M.policy = policy
end

--- Begins a loop, whose steps are numbered from the start.
function M.begin_loop() last_step, in_a_row = nil, 0 end

--- Returns whether a number is neither NaN nor infinite.
---@param number number
---@return boolean
function M.is_finite(number) return number - number == 0 end

local function describe_tensor(tensor) return tostring(tensor.dtype) .. " " .. tostring(tensor.shape) end

--- A batch in words, so that a person can find it: sample indices where it has them, shapes otherwise.
local function describe_batch(batch)
  if torch.is_tensor(batch) then return describe_tensor(batch) end
  if type(batch) ~= "table" then return batch ~= nil and tostring(batch) or nil end
  if type(batch.samples) == "table" and #batch.samples > 0 then
    local shown = {}
    for i = 1, math.min(#batch.samples, 20) do shown[i] = tostring(batch.samples[i]) end
    return "samples " .. table.concat(shown, ", ") .. (#batch.samples > 20 and ", ..." or "")
  end
  local parts = {}
  for key, value in pairs(batch) do
    if torch.is_tensor(value) then parts[#parts + 1] = ("%s %s"):format(tostring(key), describe_tensor(value)) end
  end
  table.sort(parts)
  return #parts > 0 and table.concat(parts, ", ", 1, math.min(#parts, 8)) or nil
end

--- Names the values that are not finite, "loss is nan, grad_norm is inf"; "" if all are.
---@param values table<string, number>
---@return string
function M.describe(values)
  local parts = {}
  for name, value in pairs(values) do
    if not M.is_finite(value) then parts[#parts + 1] = name .. " is " .. tostring(value):gsub("^-nan", "nan") end
  end
  table.sort(parts)
  return table.concat(parts, ", ")
end

--- The same with this rank and its batch, for messages about one of several ranks.
local function describe_here(values, batch)
  local text = M.describe(values)
  if text == "" then return "" end
  local words = describe_batch(batch)
  return text .. (dist.world_size() > 1 and (" on rank %d"):format(dist.rank()) or "")
    .. (words and (" (batch: %s)"):format(words) or "")
end

local ADVICE = 'to go on, set nonfinite in run.config: "skip" leaves out a step that run:finite guards, '
  .. '"go_on" only counts'

--- Acts on a step that is not finite, once per step. Returns whether the step goes on.
local function act(caller, step, problem)
  if last_step == step and M.policy ~= "stop" then return M.policy == "go_on" end
  in_a_row = last_step == step - 1 and in_a_row + 1 or 1
  last_step, M.count = step, M.count + 1
  local text = ("step %d: %s"):format(step, problem)
  if M.policy == "stop" then core.raise(("%s: %s; %s"):format(caller, text, ADVICE)) end
  if M.policy == "skip" and in_a_row >= MAX_SKIPPED_IN_A_ROW then
    core.raise(("%s: %s, and so were the %d steps before it; the run learns nothing any more"):format(caller, text,
      in_a_row - 1))
  end
  if dist.rank() == 0 then
    terminal.print_line(("%s; %s (nonfinite %d)"):format(text, M.policy == "skip" and "skipped" or "goes on", M.count))
  end
  return M.policy == "go_on"
end

--- Checks a step's values on every rank: see run:finite. Collective.
---@param step integer
---@param values table<string, number>
---@param batch any
---@return boolean
function M.check_together(step, values, batch)
  local own = describe_here(values, batch)
  agreement = agreement or core_sharding.gathering("run:finite")
  local is_bad = false
  for _, flags in ipairs(agreement:gather_flags(own == "" and "ok" or "no")) do is_bad = is_bad or flags ~= "ok" end
  if not is_bad then return true end
  local parts = {}
  for _, text in ipairs(agreement:gather(own)) do
    if text ~= "" then parts[#parts + 1] = text end
  end
  return act("run:finite", step, table.concat(parts, "; "))
end

--- Checks what log.step reports, on this rank alone: the safety net of a loop without run:finite.
---@param step integer
---@param values table<string, number>
---@param batch any
function M.check_reported(step, values, batch)
  local watched = {}
  for name, value in pairs(values) do
    if name:find("loss$") or name:find("norm$") then watched[name] = value end
  end
  local problem = describe_here(watched, batch)
  if problem ~= "" then act("log.step", step, problem) end
end

return M
