--- optim.AdamW: arXiv 1711.05101 on ATen's fused kernels. One call updates all parameters of a group.

local torch = require "lockstep.torch"

---@type OptimizerKind
local M = {}

--- The name that errors begin with.
M.name = "optim.AdamW"
--- The options and their defaults.
M.defaults = { lr = 1e-3, betas = { 0.9, 0.999 }, eps = 1e-8, weight_decay = 1e-2 }

M.check = function(o, check)
  check(o.eps >= 0, "eps must be a number of at least 0", o.eps)
  check(#o.betas == 2, "betas must be two numbers, as in {0.9, 0.999}", "an array of " .. #o.betas)
  for _, beta in ipairs(o.betas) do
    check(type(beta) == "number" and beta >= 0 and beta < 1, "betas must be numbers from 0 to below 1", beta)
  end
end

M.moments = function() return { "exp_avg", "exp_avg_sq" } end

M.update = function(bucket, group, lr)
  torch._fused_adamw_(bucket.params, bucket.grads, bucket.moments.exp_avg, bucket.moments.exp_avg_sq, {},
    bucket.steps, {
      lr = lr, beta1 = group.betas[1], beta2 = group.betas[2],
      weight_decay = group.weight_decay, eps = group.eps, amsgrad = false, maximize = false,
    })
end

return M
