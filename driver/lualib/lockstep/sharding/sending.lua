--- Gives one rank's value, with the tensors in it, to the other ranks of a group.

local agreement = require "lockstep.state.agreement"
local core_state = require "lockstep.core.state"
local dist = require "lockstep.distributed"
local torch = require "lockstep.torch"

local M = {}

--- Returns the rank of the run at a position of the group, from 1.
---@param group dist.Group?
---@param position integer
---@return integer
function M.rank_at(group, position) return group and group:ranks()[position] or position - 1 end

--- Gives the value of the rank at a position of the group, from 1, to all its ranks. Returns it, or nil and why it
--- cannot be sent, the same on every rank. Tensors come without gradients, on this rank's device or the CPU.
--- Collective.
---@param caller string for messages
---@param value any plain values, tensors, and tables of them; ignored on other ranks
---@param position integer
---@param group dist.Group?
---@return any
---@return string? problem
function M.send(caller, value, position, group)
  local source = M.rank_at(group, position)
  local head, tensors = false, {}
  if dist.rank() == source then
    local ok, bytes, found = pcall(core_state.encode, value, caller)
    head = ok and { bytes = bytes } or { problem = agreement.plain(bytes) }
    for i, x in ipairs(ok and found or {}) do
      tensors[i] = x:detach():contiguous()
      head[i] = { dtype = tostring(x.dtype):match "[%w_]+$", shape = { unpack(x.shape) },
        is_on_cpu = x.device == "cpu" }
    end
  end
  head = dist.all_gather_object(head, { group = group })[position]
  if head.problem then return nil, head.problem end
  for i, form in ipairs(head) do
    tensors[i] = tensors[i] or torch.empty(form.shape,
      { dtype = torch[form.dtype], device = form.is_on_cpu and "cpu" or dist.device() })
    dist.broadcast(tensors[i], source, { group = group })
  end
  return core_state.decode(head.bytes, tensors, caller)
end

return M
