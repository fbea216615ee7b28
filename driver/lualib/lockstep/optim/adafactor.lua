--- optim.Adafactor: of a matrix's squared gradients it keeps the means of rows and of columns only. Means of a weight
--- that sharding.tensor_parallel has split are those of the whole weight: its ranks add up what their parts give.
---
--- Source: arXiv 1804.04235, as torch.optim.Adafactor computes it, whose options and defaults these are.

local core = require "lockstep.core"
local dist = require "lockstep.distributed"
local fully_shard = require "lockstep.sharding.fully_shard"
local precision = require "lockstep.optim.precision"
local splits = require "lockstep.nn.splits"
local torch = require "lockstep.torch"

---@type OptimizerKind
local M = {}

--- The name that errors begin with.
M.name = "optim.Adafactor"
--- The options and their defaults.
M.defaults = { lr = 1e-2, beta2_decay = -0.8, eps = { 2 ^ -23, 1e-3 }, d = 1, weight_decay = 0 }

M.check = function(o, check)
  check(o.beta2_decay <= 0, "beta2_decay must be a number of at most 0", o.beta2_decay)
  check(#o.eps == 2, "eps must be two numbers, as in {1e-7, 1e-3}", "an array of " .. #o.eps)
  for _, eps in ipairs(o.eps) do check(type(eps) == "number" and eps >= 0, "eps must be numbers of at least 0", eps) end
  check(o.d >= 1, "d must be a number of at least 1", o.d)
  check(o.states == nil or o.states == torch.float32, "states must be torch.float32", o.states)
end

M.check_parameter = function(p, what)
  local split = splits.of(p)
  if split and p:dim() > 1 and p:size(split.dim) < 2 then
    core.raise(("%s: %s is a part of one row or column of a weight over %d ranks; take fewer ranks, or optim.AdamW")
      :format(M.name, what, split.owner.size))
  end
  local place = fully_shard.place_of(p)
  if place then
    core.raise(('%s ("%s") is sharded, and means of its rows and columns would be of one rank\'s part; use optim.AdamW')
      :format(what, place.name))
  end
end

M.moments = function() return {} end

--- For a matrix, or a batch of them, the means of squares by row and by column; else the squares.
M.own_state = function(p, policy)
  if p:dim() < 2 or p:numel() == 0 then return { variance = precision.new_moment(p, policy) } end
  return { row_var = precision.new_moment(p:narrow(-1, 0, 1), policy),
    col_var = precision.new_moment(p:narrow(-2, 0, 1), policy) }
end

--- Returns the sum over the ranks that hold parts of a weight, in place.
local function add_up(x, split)
  dist.all_reduce(x, "sum", { group = split.owner.group })
  return split.copies and x:div_(split.copies) or x -- each part is there so many times
end

--- Returns the mean over a dimension of the whole weight, from this rank's part of it.
---@param x torch.Tensor
---@param dim integer -1 or -2
---@param split nn.Split? of the weight
---@return torch.Tensor
local function mean(x, dim, split)
  if not split or split.dim ~= x:dim() + dim then return x:mean({ dim }, true) end
  return add_up(x:sum({ dim }, true), split):div_(split.total)
end

--- Returns the estimate of a gradient's squares, a new tensor. `weight`: of the new squares, a scalar tensor.
local function estimate(state, grad, weight, eps, split)
  if state.variance then return state.variance:lerp_(grad:square(), weight):clone() end
  local squares = grad:square()
  state.row_var:lerp_(mean(squares, -1, split), weight)
  state.col_var:lerp_(mean(squares, -2, split), weight)
  return torch.matmul(state.row_var, state.col_var):div_(mean(state.row_var, -2, split):clamp_ { min = eps })
end

--- Returns the root mean square of the whole weight's elements.
local function rms(x, split)
  if not split then return x:norm():div_(math.sqrt(math.max(1, x:numel()))) end
  local whole = x:numel() / math.max(1, x:size(split.dim)) * split.total
  return add_up(x:square():sum(), split):div_(whole):sqrt_()
end

M.update = function(bucket, group, lr)
  for i, p in ipairs(bucket.params) do
    local grad, step, split = bucket.grads[i], bucket.steps[i]:to(p.dtype), splits.of(bucket.owners[i])
    local relative = step:rsqrt():clamp_max(lr) -- no step is larger than lr, and late ones are smaller
    local alpha = rms(p, split):clamp_ { min = group.eps[2] }:mul_(relative)
    local update = estimate(bucket.states[i], grad, step:pow(group.beta2_decay), group.eps[1], split)
    update = update:clamp_ { min = group.eps[1] ^ 2 }:rsqrt_():mul_(grad)
    local too_large = rms(update, split):div_(group.d):clamp_ { min = 1 }
    if group.weight_decay ~= 0 then p:mul_(1 - lr * group.weight_decay) end
    p:sub_(update:mul_(alpha:div_(too_large)))
  end
end

return M
