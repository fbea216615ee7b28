--- optim.Lion: each weight moves by the learning rate, up or down.
---
--- Source: "Symbolic Discovery of Optimization Algorithms", arXiv 2302.06675, algorithm 2.

local torch = require "lockstep.torch"

---@type OptimizerKind
local M = {}

--- The name that errors begin with.
M.name = "optim.Lion"
--- The options and their defaults.
M.defaults = { lr = 1e-4, betas = { 0.9, 0.99 }, weight_decay = 0 }

M.check = function(o, check)
  check(#o.betas == 2, "betas must be two numbers, as in {0.9, 0.99}", "an array of " .. #o.betas)
  for _, beta in ipairs(o.betas) do
    check(type(beta) == "number" and beta >= 0 and beta < 1, "betas must be numbers from 0 to below 1", beta)
  end
end

M.moments = function() return { "exp_avg" } end

M.update = function(bucket, group, lr)
  local exp_avg = bucket.moments.exp_avg
  local updates = torch._foreach_lerp(bucket.grads, exp_avg, group.betas[1])
  -- sign(NaN) is 0: a weight would stay where it is for ever, and nothing would tell.
  local nans = torch._foreach_mul(updates, 0)
  torch._foreach_sign_(updates)
  torch._foreach_add_(updates, nans)
  torch._foreach_mul_(updates, lr)
  if group.weight_decay ~= 0 then torch._foreach_mul_(bucket.params, 1 - lr * group.weight_decay) end
  torch._foreach_sub_(bucket.params, updates)
  torch._foreach_lerp_(exp_avg, bucket.grads, 1 - group.betas[2])
end

return M
