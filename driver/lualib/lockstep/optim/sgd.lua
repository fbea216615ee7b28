--- optim.SGD: gradient descent with momentum, on ATen's fused kernels. One call updates all parameters of a group.

local torch = require "lockstep.torch"

---@type OptimizerKind
local M = {}

--- The name that errors begin with.
M.name = "optim.SGD"
--- The options and their defaults.
M.defaults = { lr = 1e-3, momentum = 0, nesterov = false, weight_decay = 0 }

M.check = function(o, check)
  check(o.momentum >= 0, "momentum must be a number of at least 0", o.momentum)
  check(not o.nesterov or o.momentum > 0, "nesterov = true needs a momentum above 0", o.momentum)
end

M.moments = function(group) return group.momentum ~= 0 and { "momentum_buffer" } or {} end

-- PyTorch's first step copies the gradient into the buffer. A buffer of zeros gives the same.
M.update = function(bucket, group, lr)
  torch._fused_sgd_(bucket.params, bucket.grads, bucket.moments.momentum_buffer or {}, {
    lr = lr, momentum = group.momentum, weight_decay = group.weight_decay, dampening = 0,
    nesterov = group.nesterov, maximize = false, is_first_step = false,
  })
end

return M
