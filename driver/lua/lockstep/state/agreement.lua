--- The messages that the ranks of a run exchange as they save, resume and step, separate from the training's
--- collectives.
---
--- All functions are collective: every rank calls alike, and an error is the same on each.

local core = require "lockstep.core"
local core_sharding = require "lockstep.core.sharding"
local core_state = require "lockstep.core.state"
local dist = require "lockstep.distributed"

local M = {}

--- Saving takes as long as the slowest disk: ranks wait this long for each other, or --timeout where that is more.
local TIMEOUT_S = 1800

local meeting ---@type lockstep.core.sharding.Gathering
local saving, stepping ---@type lockstep.core.sharding.Gathering, lockstep.core.sharding.Gathering

--- Waits for the other ranks as any collective does, --timeout seconds. Later waits last as long as a disk may take, so
--- a rank that does not come at all is reported here, early.
function M.meet() meeting:gather_flags("here") end

--- Before the others, once or again. Meets.
function M.open()
  meeting = meeting or core_sharding.gathering("run:state")
  M.meet()
  saving = saving or core_sharding.gathering("run:save", TIMEOUT_S)
  stepping = stepping or core_sharding.gathering("run:steps")
end

--- A text of every rank, by rank.
---@param text string
---@return string[]
function M.texts(text) return saving:gather(text) end

--- Two letters of every rank, by rank, in half the time.
---@param flags string
---@return string[]
function M.flags(flags) return stepping:gather_flags(flags) end

--- A value of every rank, by rank.
---@param value any
---@return any[]
function M.values(value)
  local values = M.texts((core_state.encode(value, "run:save")))
  for i, bytes in ipairs(values) do values[i] = core_state.decode(bytes, {}, "run:save") end
  return values
end

--- Returns an error's message without the script's line, which the outer error has.
---@param message any
---@return string
function M.plain(message) return (tostring(message):gsub("^[^\n]-%.lua:%d+: ", "")) end

--- Calls fn(...) on this rank, and where it fails on any raises that error on all.
---@generic T
---@param caller string what errors begin with
---@param fn fun(...): T
---@param ... any
---@return T
function M.together(caller, fn, ...)
  local ok, result = pcall(fn, ...)
  for rank, text in ipairs(M.texts(ok and "" or M.plain(result))) do
    if text ~= "" then
      core.raise(dist.world_size() == 1 and ("%s: %s"):format(caller, text)
        or ("%s: rank %d: %s"):format(caller, rank - 1, text))
    end
  end
  return result
end

return M
