--- How many tiles let the activations of one tile fit into a budget of memory.

local dist = require "lockstep.distributed"
local host_memory = require "lockstep.host_memory"
local splits = require "lockstep.nn.splits"
local torch = require "lockstep.torch"

local M = {}

--- Returns the bytes that are free on a device now. On a GPU: those that no process holds, and those that the allocator
--- holds for no tensor. On a CPU: what the kernel can give, within the control group's limit.
---@param device string
---@return integer
function M.free_bytes(device)
  if device ~= "cpu" then
    local index = tonumber(device:match ":(%d+)$")
    local stats = torch.cuda.memory_stats(index)
    return (torch.cuda.mem_get_info(index)) + stats.reserved_bytes - stats.allocated_bytes
  end
  return host_memory.free()
end

--- Returns an upper bound of the bytes that forward and backward of one row hold at once. Each matrix [..., out, in]
--- counts its input and its output, and the gradients of both. A mixture's experts count once for each of a token's.
---@param x torch.Tensor
---@param weights torch.Tensor[] all of the function, frozen ones too
---@param per_token integer? experts of a token
---@return integer
function M.bytes_per_row(x, weights, per_token)
  local bytes = 0
  for _, weight in ipairs(weights) do
    if weight:dim() >= 2 then
      local size = math.max(x:element_size(), weight:element_size())
      local times = weight:dim() > 2 and per_token or 1
      bytes = bytes + 2 * times * size * (weight:size(-1) + weight:size(-2))
    end
  end
  return math.max(1, bytes)
end

--- Returns the ranks that share the weights' parts (sharding.tensor_parallel). Each tile has collectives of theirs, so
--- they need equal tiles.
---@param weights torch.Tensor[]
---@return nn.SplitGroup?
function M.owner_of(weights)
  for _, weight in ipairs(weights) do
    local split = splits.of(weight)
    if split then return split.owner end
  end
end

--- Returns the bytes that a tile may take: `bytes`, or what is free now if that is less. Ranks that share the weights'
--- parts agree on the least of theirs: collective then.
---@param bytes number
---@param device string
---@param owner nn.SplitGroup?
---@return number
function M.agreed(bytes, device, owner)
  local own = math.min(bytes, M.free_bytes(device))
  if not owner then return own end
  local least = torch.tensor(own, { dtype = torch.float64, device = device })
  return dist.all_reduce(least, "min", { group = owner.group }):item()
end

return M
