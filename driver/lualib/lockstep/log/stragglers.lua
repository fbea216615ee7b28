--- Names the slowest rank. The ranks' clocks travel in the messages of their agreements (driver/watching/own_work.h).

local watching = require "lockstep.core.watching"

local M = {}

-- The step line names a rank that is later than the median by both. Less is noise: a thread that loses its core for a
-- moment is late by some milliseconds.
local NOTABLE_SHARE = 0.1 -- of the slowest rank's own work
local NOTABLE_SECONDS = 0.005

---@class log.Straggler
---@field rank integer the rank that worked longest
---@field late_s number how much longer than the median rank
---@field is_notable boolean whether the step line names it

--- Returns the rank that worked longest, and the work of the median rank. The median of an even number is the lower of
--- the two in the middle, so that one of two ranks stands out.
---@param seconds number[] by rank
---@return integer rank
---@return number median
function M.slowest(seconds)
  local slowest, sorted = 1, {}
  for i, own in ipairs(seconds) do
    if own > seconds[slowest] then slowest = i end
    sorted[i] = own
  end
  table.sort(sorted)
  return slowest - 1, sorted[math.floor((#sorted + 1) / 2)]
end

--- Returns the rank that worked longest between the newest agreement at the last call and the newest one now. Returns
--- nil for one rank, and if the ranks have not agreed on anything since the last call.
---@return log.Straggler?
function M.take()
  local seconds = watching.work_of_ranks()
  if not seconds or #seconds < 2 then return nil end
  local rank, median = M.slowest(seconds)
  local longest = seconds[rank + 1]
  local late = longest - median
  return { rank = rank, late_s = late,
    is_notable = late >= NOTABLE_SECONDS and late >= NOTABLE_SHARE * longest }
end

--- Formats it for the step line: "slowest rank 3 +24 ms".
---@param straggler log.Straggler
---@return string
function M.describe(straggler)
  local late = straggler.late_s
  return ("slowest rank %d +%s"):format(straggler.rank, late < 1 and ("%.0f ms"):format(1000 * late)
    or ("%.1f s"):format(late))
end

return M
