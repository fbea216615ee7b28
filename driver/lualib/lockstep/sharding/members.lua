--- The ranks that share a model's layers, or a sequence.

local core = require "lockstep.core"
local dist = require "lockstep.distributed"
local plain = require "lockstep.plain"

---@class sharding.Members
---@field group dist.Group? nil: all ranks
---@field rank integer this rank's position among them
---@field size integer
---@field ranks integer[] of the world

local function is_group(value)
  return type(value) == "userdata" and pcall(function() return value:ranks() end)
end

--- Raises unless `group` is nil or a group that this rank is in.
---@param caller string "sharding.tensor_parallel"
---@param what string the argument, "group" for example
---@param group dist.Group?
---@return sharding.Members
return function(caller, what, group)
  if group == nil then
    local ranks = {}
    for r = 0, dist.world_size() - 1 do ranks[r + 1] = r end
    return { rank = dist.rank(), size = #ranks, ranks = ranks }
  end
  plain.check(is_group(group),
    "%s: %s must be a group of dist.group, or nil for all ranks, not a %s", caller, what, type(group))
  if group:rank() < 0 then
    core.raise(("%s: rank %d is not a member of the group {%s}"):format(caller, dist.rank(),
      table.concat(group:ranks(), ", ")))
  end
  return { group = group, rank = group:rank(), size = group:size(), ranks = group:ranks() }
end
