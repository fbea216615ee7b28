--- Pointwise functions as one kernel. `lockstep.fuse` is this module's one function.
---
--- A chain of operators, as `torch.silu(x) * y`, reads and writes all numbers once for each operator, and autograd
--- keeps what lies between for backward. A fused function reads its arguments once, writes its results once, and keeps
--- only arguments. Its gradient is one kernel too.

local core_fuse = require "lockstep.core.fuse"
local plain = require "lockstep.plain"

--- Makes a function that computes the same as `fn` in one pass over memory, forward and backward. `fn` computes each
--- element from the same element of its arguments: tensors, which are broadcast together, and numbers.
---
---     local swiglu = lockstep.fuse(function(x, y) return torch.silu(x) * y end)
---     local y = swiglu(gate, up)
---
--- The first call for each combination of dtypes calls `fn` twice with small tensors of its own, and records the
--- operators. Later calls do not call it: a Lua number that it reads from outside stays what it was, and what changes
--- must be an argument. `fn` may use + - * / ^, exp, log, sqrt, rsqrt, square, pow, reciprocal, abs, sin, cos, erf,
--- tanh, sigmoid, silu, relu, gelu, maximum, minimum and clamp. It may choose by where, masked_fill, comparisons
--- (x:gt(y)), logical_and, logical_or and logical_not. It may call addcmul, addcdiv, casts and other fused functions.
--- It may also reduce the last dimension by sum, mean, amax and amin:
---
---     local rms_norm = lockstep.fuse(function(x, weight)
---       return x * torch.rsqrt((x * x):mean(-1, true) + 1e-6) * weight
---     end)
---
--- A reduction that keeps the dimension (`true`) may be used further with other tensors. One that does not may be used
--- with numbers and with others like it, and be a result. Anything else is an error that names it: reductions of other
--- dimensions, indexing, tensors from outside, changes in place, `x:size()` as a number.
---
--- Results have the shapes and dtypes of the same chain unfused, and are contiguous. They are computed in float32 (in
--- float64 where the chain has a float64 tensor) and rounded once, at the end. Numbers get no gradient. Autocast does
--- not change a fused function. Gradients of gradients run as operators of ATen. On an NVIDIA GPU a
--- function is compiled when it first runs, which has not been tried on a GPU yet.
---@param fn fun(...: torch.Tensor): torch.Tensor ...
---@return fun(...: torch.Tensor|number): torch.Tensor ... fused
local function fuse(fn)
  plain.check(type(fn) == "function", "lockstep.fuse: the argument must be a function, not a %s", type(fn))
  local recordings = core_fuse.new()
  return function(...) return recordings:call(fn, ...) end
end

return fuse
