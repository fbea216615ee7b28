--- optim.ScheduleFreeAdamW: AdamW without a schedule, whose result is an average of the weights.
---
--- Gradients are taken at y, between the weights z that move and their average x: y = beta1 x + (1 - beta1) z. While it
--- trains, the parameters hold y, and z is in the state. x follows from both.
---
--- Source: "The Road Less Scheduled", arXiv 2405.15682, as the authors' AdamWScheduleFree computes it.

local core = require "lockstep.core"
local plain = require "lockstep.plain"
local torch = require "lockstep.torch"

---@type OptimizerKind
local M = {}

--- The name that errors begin with.
M.name = "optim.ScheduleFreeAdamW"
--- The options and their defaults.
M.defaults = { lr = 2.5e-3, betas = { 0.9, 0.999 }, eps = 1e-8, weight_decay = 0, warmup_steps = 0, r = 0,
  weight_lr_power = 2 }

M.check = function(o, check)
  check(o.eps >= 0, "eps must be a number of at least 0", o.eps)
  check(#o.betas == 2, "betas must be two numbers, as in {0.9, 0.999}", "an array of " .. #o.betas)
  for _, beta in ipairs(o.betas) do
    check(type(beta) == "number" and beta > 0 and beta < 1, "betas must be numbers between 0 and 1", beta)
  end
  check(plain.is_whole(o.warmup_steps, 0), "warmup_steps must be a whole number of at least 0", o.warmup_steps)
  check(o.states == nil or o.states == torch.float32, "states must be torch.float32", o.states)
end

M.moments = function() return { "exp_avg_sq" } end

M.own_state = function(p)
  local function scalar() return torch.zeros({}, { device = p.device, dtype = torch.float64 }) end
  local dtype = p.dtype == torch.float64 and p.dtype or torch.float32
  return { z = p:to { dtype = dtype }:clone(), weight_sum = scalar(), lr_max = scalar() }
end

M.update = function(bucket, group, lr)
  local beta1, beta2 = group.betas[1], group.betas[2]
  for i, y in ipairs(bucket.params) do
    local state, step = bucket.states[i], bucket.steps[i]:to(torch.float64)
    local now = (step / math.max(1, group.warmup_steps)):clamp_ { max = 1 } * lr
    state.lr_max:copy_(torch.maximum(state.lr_max, now))
    local weight = step:pow(group.r) * state.lr_max:pow(group.weight_lr_power)
    state.weight_sum:add_(weight)
    local share = torch.where(torch.eq(state.weight_sum, 0), state.weight_sum, weight / state.weight_sum)
    local v, grad = bucket.moments.exp_avg_sq[i], bucket.grads[i]
    v:mul_(beta2):addcmul_(grad, grad, { value = 1 - beta2 })
    local bias = 1 - (step * math.log(beta2)):exp()
    local move = grad / (v / bias):sqrt_():add_(group.eps)
    if group.weight_decay ~= 0 then move:add_(y, { alpha = group.weight_decay }) end
    local z = state.z:to(y.dtype)
    y:add_((z - y):mul_(share)):add_(move * (now * (beta1 * (1 - share) - 1)))
    state.z:copy_(z:sub(move * now))
  end
end

-- The average ------------------------------------------------------------------------------------------------------

--- The optimizer of each parameter that one of this kind trains. It lives as long as this library, since weights that
--- are saved after a script has dropped it still need it.
---@type table<torch.Tensor, optim.Optimizer>
local trainers = {}

M.note = function(optimizer)
  for _, group in ipairs(optimizer.groups) do
    for _, p in ipairs(group.params) do trainers[p] = optimizer end
  end
end

--- Lets the parameters be what they are now: other weights have been loaded into them.
M.forget = function(optimizer)
  for _, group in ipairs(optimizer.groups) do
    for _, p in ipairs(group.params) do trainers[p] = nil end
  end
end

--- Optimizers whose parameters hold the average now.
local averaged = setmetatable({}, { __mode = "k" })

--- Raises while the parameters hold the average.
M.before_step = function(optimizer)
  M.note(optimizer)
  if averaged[optimizer] then
    core.raise("optim.ScheduleFreeAdamW: step within optimizer:averaged, where the parameters hold the average; "
      .. "gradients are of the weights outside of it")
  end
end

--- Calls fn(...) while the optimizer's parameters hold the average of the weights, and gives them their values back.
---@param optimizer optim.Optimizer
---@param fn function
---@param ... any
---@return any ...
M.averaged = function(optimizer, fn, ...)
  if averaged[optimizer] then return fn(...) end
  local kept = {}
  torch.no_grad(function()
    for _, group in ipairs(optimizer.groups) do
      for _, p in ipairs(group.params) do
        local state = optimizer.state[p]
        if state then
          local y = state.master or p
          if state.master and not torch.equal(p, state.master:to(p.dtype)) then y = p:to(state.master.dtype) end
          kept[p] = p:detach():clone()
          p:copy_(y + (state.z:to(y.dtype) - y) * (1 - 1 / group.betas[1]))
        end
      end
    end
  end)
  averaged[optimizer] = true
  return plain.finally(function()
    averaged[optimizer] = nil
    torch.no_grad(function()
      for p, value in pairs(kept) do p:copy_(value) end
    end)
  end, fn, ...)
end

--- Calls fn(...) with the average in a model's parameters, where an optimizer of this kind trains them: what evaluates
--- and saves goes through here.
---@param params torch.Tensor[]
---@param fn function
---@param ... any
---@return any ...
M.around = function(params, fn, ...)
  for _, p in ipairs(params) do
    local optimizer = trainers[p]
    if optimizer and not averaged[optimizer] then
      return M.averaged(optimizer, function(...) return M.around(params, fn, ...) end, ...)
    end
  end
  return fn(...)
end

return M
