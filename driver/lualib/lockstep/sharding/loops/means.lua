--- Means over ranks: never a mean of means.

local agreement = require "lockstep.state.agreement"
local core = require "lockstep.core"
local dist = require "lockstep.distributed"
local options = require "lockstep.options"
local plain = require "lockstep.plain"
local torch = require "lockstep.torch"

local M = {}

--- Adds `sum` and `count` up over the ranks, and returns their quotient in float64. Raises with the message `empty` if
--- a count is 0. Collective.
---@param sum torch.Tensor
---@param count torch.Tensor of the same shape, on the same device
---@param group dist.Group?
---@param empty string
---@return torch.Tensor
function M.over_ranks(sum, count, group, empty)
  local both = torch.stack({ sum:detach():double(), count:detach():double() })
  dist.all_reduce(both, "sum", { group = group })
  if both[1]:eq(0):any():item() then core.raise(empty) end
  return both[0] / both[1]
end

-- Returns sum and count as tensors of one shape, on one device.
local function as_tensors(sum, count)
  local device = torch.is_tensor(sum) and sum.device or torch.is_tensor(count) and count.device or "cpu"
  local function to_tensor(value)
    return torch.is_tensor(value) and value:detach():to(device)
      or torch.tensor(value, { dtype = torch.float64, device = device })
  end
  local tensors = { to_tensor(sum), to_tensor(count) }
  local is_ok, same = pcall(torch.broadcast_tensors, tensors)
  plain.check(is_ok, "sharding.weighted_mean: sum has shape %s and count %s; count must have one element, or as many "
    .. "as sum", tensors[1].shape, tensors[2].shape)
  return same[1], same[2]
end

--- Returns the sum over all ranks divided by the count over all ranks, never a mean of means. Sums in float64. The mean
--- is a number, or a tensor if one of the two is one. It has the dtype of `sum`, and float32 where that holds integers.
---
---     local accuracy = sharding.weighted_mean(predicted:eq(labels):sum(), labels:numel())
---
--- Collective. The mean carries no gradient.
---@generic T: number|torch.Tensor
---@param sum T
---@param count number|torch.Tensor of how many things `sum` is the sum, on this rank; 0 is fine where another has some
---@param opts {group: dist.Group?}?
---@return T
function M.weighted_mean(sum, count, opts)
  local o = options.read("sharding.weighted_mean", opts, { group = options.optional })
  for i, value in ipairs { sum or false, count or false } do
    plain.check(type(value) == "number" or torch.is_tensor(value),
      "sharding.weighted_mean: %s must be a number or a tensor, not %s", i == 1 and "sum" or "count",
      value and "a " .. type(value) or "nil")
  end
  local sums, counts = as_tensors(sum, count)
  local mean = M.over_ranks(sums, counts, o.group, "sharding.weighted_mean: the count over all ranks is 0")
  if not torch.is_tensor(sum) and not torch.is_tensor(count) then return mean:item() end
  local like = torch.is_tensor(sum) and sum or count
  return mean:to(like:is_floating_point() and like.dtype or torch.float32)
end

M.weighted_mean = agreement.counted(M.weighted_mean)

return M
