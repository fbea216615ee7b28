--- `--evict-slow`: finds a rank that makes all others wait, from the clocks that travel in the ranks' agreements
--- (driver/watching/own_work.h). Every rank sees the same clocks, and so finds the same.

local core = require "lockstep.core"
local dist = require "lockstep.distributed"
local plain = require "lockstep.plain"
local stragglers = require "lockstep.log.stragglers"
local watching = require "lockstep.core.watching"

local M = {}

--- The steps over which ranks are compared. A rank is slow for a step for many reasons.
M.STEPS = 100

local clocks, steps

--- Starts the count of steps again. A loop calls it at its start.
function M.begin_loop() clocks, steps = nil, 0 end

--- Returns the rank that worked more than `factor` times as long as the median, and how many times; nil if no rank
--- did.
---@param seconds number[] by rank
---@param factor number
---@return integer? rank
---@return number? ratio
function M.slow_rank(seconds, factor)
  local rank, median = stragglers.slowest(seconds)
  local longest = seconds[rank + 1]
  if longest > factor * median then return rank, longest / median end
end

--- Call it between two steps, after the ranks have agreed. Returns what is wrong once a rank was slow for M.STEPS
--- steps. Collective.
---@return string?
function M.after_step()
  local factor = core.evict_slow()
  if not factor then return nil end
  local now = watching.work_clocks()
  if #now < 2 then return nil end
  if not clocks then
    clocks = now
    return nil
  end
  steps = steps + 1
  if steps < M.STEPS then return nil end
  local worked = {}
  for i, clock in ipairs(now) do worked[i] = clock - clocks[i] end
  clocks, steps = now, 0
  local rank, ratio = M.slow_rank(worked, factor)
  if not rank then return nil end
  local host = dist.all_gather_object(plain.host_name())[rank + 1]
  return ("rank %d (%s) worked %.1f times as long as the median rank, %.0f ms a step over %d steps; --evict-slow %g")
    :format(rank, host, ratio, 1000 * worked[rank + 1] / M.STEPS, M.STEPS, factor)
end

return M
