--- The messages that the ranks of a run exchange as they begin, save, resume and step, or write a folder.
---
--- All functions are collective: every rank calls alike, and an error is the same on each. The program compares these
--- calls with the collectives of all ranks. If rank 0 alone saves, an error says at once what the others do instead.
---
--- A value that only the script knows and that all ranks must have alike is compared by M.same: a configuration, the
--- seed of a loader, the options of an optimizer.

local core = require "lockstep.core"
local core_sharding = require "lockstep.core.sharding"
local core_state = require "lockstep.core.state"
local dist = require "lockstep.distributed"
local plain = require "lockstep.plain"

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
---@param must string? who must call it; default "every rank must call it"
function M.begin(caller, must)
  local name = caller:match("^[%w_.]+:?[%w_]*")
  ranks():gather_flags("", ("%s (%s)"):format(name, must or "every rank must call it"))
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

--- Returns a value as a text that differs for different values. tostring has 14 digits of a number.
---@param value any
---@return string
function M.text_of(value)
  local text = tostring(value)
  return type(value) == "number" and tonumber(text) ~= value and ("%.17g"):format(value) or text
end

--- Compares every rank's table with rank 0's. Returns the first key that differs, rank 0's value, the other rank's, and
--- that rank; or nothing.
---@param own table<string, any>
---@return string?, any, any, integer?
function M.difference(own)
  local theirs = M.values(own)
  for rank = 2, #theirs do
    for _, key in ipairs(plain.keys(plain.copy(theirs[1], theirs[rank]))) do
      local first, other = theirs[1][key], theirs[rank][key]
      if first ~= other then return key, first, other, rank - 1 end
    end
  end
end

--- Raises, on every rank, unless all ranks give the same values. The error names the first that differs.
---@param caller string a function that every rank must call, "run.config"
---@param own table<string, string> by what they are, "seed"
---@param advice string what to do where ranks differ in "%s"
---@param must string? see M.begin
function M.same(caller, own, advice, must)
  if dist.world_size() == 1 then return end
  M.begin(caller, must)
  local key, first, other, rank = M.difference(own)
  if key then
    core.raise(("%s: ranks do not agree: %s is %s on rank 0, and %s on rank %d; %s"):format(caller, key,
      first or "not set", other or "not set", rank, (advice:gsub("%%s", function() return key end))))
  end
end

--- Raises, on every rank, unless all ranks take the samples that they share in the same order. Does nothing for samples
--- that fewer ranks share.
---@param caller string "data.loader"
---@param world integer the number of ranks that share the samples
---@param order table<string, any> what decides about the order
function M.same_order(caller, world, order)
  if world ~= dist.world_size() then return end
  local own = {}
  for name, value in pairs(order) do own[name] = M.text_of(value) end
  M.same(caller, own, "all ranks share the samples, so each needs the same order; one that is for a single rank has "
    .. "rank = 0, world = 1", "every rank must call it, unless it has rank = 0, world = 1")
end

--- Returns an error's message without the script's line, which the outer error has.
---@param message any
---@return string
function M.plain(message) return (tostring(message):gsub("^[^\n]-%.lua:%d+: ", "")) end

--- Returns a function that does the same as `fn`, which all ranks call together. If it raises on one rank before its
--- first collective, for an invalid argument, that counts as this rank's call. A script may catch the error, and its
--- later calls then still meet those of the other ranks.
---@generic F: function
---@param fn F
---@return F
function M.counted(fn)
  local function finish(calls, options, ok, first, ...)
    if ok then return first, ... end
    if core_sharding.num_calls() == calls then core_sharding.refuse_call(M.plain(first), options) end
    error(first, 0)
  end
  return function(...)
    return finish(core_sharding.num_calls(), select(-1, nil, ...), pcall(fn, ...))
  end
end

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
