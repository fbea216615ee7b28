--- Names the slowest rank. The ranks' clocks travel in the messages of their agreements (driver/watching/own_work.h).

local watching = require "lockstep.core.watching"

local M = {}

-- The step line names a rank that is later than the median by both. Less is noise: a thread that loses its core for a
-- moment is late by some milliseconds.
local NOTABLE_SHARE = 0.1 -- of the slowest rank's own work
local NOTABLE_SECONDS = 0.005

---@class log.Straggler
---@field rank integer the rank that worked longest
---@field late_s number how much longer than the median rank (of an even number, the lower of the two in the middle)
---@field is_notable boolean whether the step line names it

--- Returns the rank that worked longest between the newest agreement at the last call and the newest one now. Returns
--- nil for one rank, and if the ranks have not agreed on anything since the last call.
---@return log.Straggler?
function M.take()
  local seconds = watching.work_of_ranks()
  if not seconds or #seconds < 2 then return nil end
  local slowest, sorted = 1, {}
  for i, own in ipairs(seconds) do
    if own > seconds[slowest] then slowest = i end
    sorted[i] = own
  end
  table.sort(sorted)
  local late = seconds[slowest] - sorted[math.floor((#sorted + 1) / 2)]
  return { rank = slowest - 1, late_s = late,
    is_notable = late >= NOTABLE_SECONDS and late >= NOTABLE_SHARE * seconds[slowest] }
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
