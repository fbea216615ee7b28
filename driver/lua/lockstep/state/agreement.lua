--- The messages that the ranks of a run exchange as they save, resume and step, or write a folder.
---
--- All functions are collective: every rank calls alike, and an error is the same on each. The program compares these
--- calls with the collectives of all ranks. If rank 0 alone saves, an error says at once what the others do instead.

local core = require "lockstep.core"
local core_sharding = require "lockstep.core.sharding"
local core_state = require "lockstep.core.state"
local dist = require "lockstep.distributed"

local M = {}

--- Seconds that a rank may work in M.together while others wait for it, longer than --timeout: a disk may be slow.
local LONGEST_WORK = 1800

local gathering ---@type lockstep.core.sharding.Gathering?

local function ranks()
  gathering = gathering or core_sharding.gathering("agreement")
  return gathering
end

--- Waits until every rank calls this with the same caller. The error where a rank does something else names the calls
--- and lines of all ranks.
---@param caller string a function that every rank must call, "models.save"
function M.begin(caller)
  local name = caller:match("^[%w_.]+:?[%w_]*")
  ranks():gather_flags("", name .. " (every rank must call it)")
end

--- A text of every rank, by rank.
---@param text string
---@return string[]
function M.texts(text) return ranks():gather(text, "run:state") end

--- Two letters of every rank, by rank, in half the time.
---@param two_letters string
---@return string[]
function M.flags(two_letters) return ranks():gather_flags(two_letters, "run:steps") end

--- A value of every rank, by rank.
---@param value any
---@return any[]
function M.values(value)
  local values = M.texts((core_state.encode(value, "run:save")))
  for i, bytes in ipairs(values) do values[i] = core_state.decode(bytes, {}, "run:save") end
  return values
end

--- Compares fields of every rank's table. Returns the first field that differs, rank 0's value, the other rank's, and
--- that rank; or nothing.
---@param own table<string, any>
---@param fields string[]
---@return string?, any, any, integer?
function M.difference(own, fields)
  local theirs = M.values(own)
  for rank = 2, #theirs do
    for _, field in ipairs(fields) do
      local first, other = theirs[1][field], theirs[rank][field]
      if first ~= other then return field, first, other, rank - 1 end
    end
  end
end

--- Returns an error's message without the script's line, which the outer error has.
---@param message any
---@return string
function M.plain(message) return (tostring(message):gsub("^[^\n]-%.lua:%d+: ", "")) end

--- Calls fn(...) on this rank. Returns its result if it fails on no rank. Otherwise every rank gets nil and the same
--- reason. fn may take half an hour. A rank that is dead or stopped meanwhile ends the run after --timeout.
---@generic T
---@param fn fun(...): T
---@param ... any
---@return T?
---@return string? problem "rank 1: cannot write ..."
function M.try(fn, ...)
  local ok, result = pcall(core.alone, LONGEST_WORK, fn, ...)
  for rank, text in ipairs(M.texts(ok and "" or M.plain(result))) do
    if text ~= "" then return nil, dist.world_size() == 1 and text or ("rank %d: %s"):format(rank - 1, text) end
  end
  return result
end

--- The same, but begins when all ranks have come, and raises the error on all of them.
---@generic T
---@param caller string what errors begin with
---@param fn fun(...): T
---@param ... any
---@return T
function M.together(caller, fn, ...)
  M.begin(caller)
  local result, problem = M.try(fn, ...)
  if problem then core.raise(("%s: %s"):format(caller, problem)) end
  return result
end

return M
