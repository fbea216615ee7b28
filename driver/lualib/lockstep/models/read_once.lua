--- Weights that one rank reads and the others receive: models.load(dir, { read_once = true }).
---
--- Where every rank needs the same bytes of storage that many machines share, one rank reads them. It sends each
--- parameter to the others in pieces, in the model's dtype and after layers are split.

local agreement = require "lockstep.state.agreement"
local core = require "lockstep.core"
local dist = require "lockstep.distributed"
local torch = require "lockstep.torch"

local M = {}

--- Bytes of one message.
local PIECE = 64 * 2 ^ 20

---@class models.ReadOnce
---@field group dist.Group? the ranks that need the same bytes; nil: all
---@field source integer the rank of the world that reads

--- Returns who reads, or nil if each rank does.
---@param given boolean|dist.Group|nil
---@return models.ReadOnce?
function M.of(given)
  if given == nil or given == false then return nil end
  local group = given ~= true and given or nil
  if (group and group:size() or dist.world_size()) == 1 then return nil end
  return { group = group, source = group and group:ranks()[1] or 0 }
end

--- Returns whether this rank reads values of the files.
---@param once models.ReadOnce?
---@return boolean
function M.reads(once) return not once or once.source == dist.rank() end

--- Calls fn on the rank that reads. Its error is every rank's. Collective over the world if `once` is given.
---@param once models.ReadOnce?
---@param fn fun()
function M.by_source(once, fn)
  if not once then
    fn()
    return
  end
  if once.group and once.group:size() < dist.world_size() then -- the other ranks may load something else
    if M.reads(once) then fn() end
    return
  end
  agreement.together("models.load", function()
    if M.reads(once) then fn() end
  end)
end

--- Gives the ranks the source's values of a tensor, in place. Collective over the group.
---@param once models.ReadOnce
---@param tensor torch.Tensor contiguous
function M.pass_on(once, tensor)
  if not tensor:is_contiguous() then core.raise "models.load: read_once: a parameter is not contiguous" end
  local flat = tensor:detach():view { -1 }
  local count = math.max(1, math.floor(PIECE / tensor:element_size()))
  for at = 0, flat:numel() - 1, count do
    local piece = flat:narrow(0, at, math.min(count, flat:numel() - at))
    local passed = piece:to(dist.device())
    dist.broadcast(passed, once.source, { group = once.group })
    if not M.reads(once) then torch.no_grad(function() piece:copy_(passed) end) end
  end
end

return M
