--- optim.AdamW: arXiv 1711.05101. One call updates all parameters of a group. The kernel of //kernels takes each dtype
--- as it is. ATen's, where there is no such kernel and after nn.use_fused(false), takes copies of one dtype.

local fused = require "lockstep.nn.fused"
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

M.takes_all_dtypes = function(p) return fused.kernels_of(p.device) ~= nil end

--- `update` multiplies gradients by grad_scale as it reads them.
M.takes_grad_scale = true

M.update = function(bucket, group, lr, grad_scale)
  local m = bucket.moments
  if bucket.takes_all_dtypes then
    local is_number = type(lr) == "number"
    return fused.kernels_of(bucket.params[1].device).adamw_(bucket.params, bucket.grads, m.exp_avg, m.exp_avg_sq,
      bucket.kernel_masters, bucket.steps, bucket.salts, {
        lr = is_number and lr or 1, lr_factor = not is_number and lr or nil, beta1 = group.betas[1],
        beta2 = group.betas[2], weight_decay = group.weight_decay, eps = group.eps,
        grad_scale = grad_scale,
      })
  end
  -- ATen's kernel would write the multiplied gradients back.
  local grads = grad_scale and torch._foreach_mul(bucket.grads, grad_scale) or bucket.grads
  torch._fused_adamw_(bucket.params, grads, m.exp_avg, m.exp_avg_sq, {}, bucket.steps, {
      lr = lr, beta1 = group.betas[1], beta2 = group.betas[2],
      weight_decay = group.weight_decay, eps = group.eps, amsgrad = false, maximize = false,
    })
end

return M
