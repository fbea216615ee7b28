--- The fused kernels against ATen's operators, forward and backward, and AdamW against a copy.

local timing = require "timing"
local nn = require "lockstep.nn"
local optim = require "lockstep.optim"
local torch = require "lockstep.torch"

local device = timing.device
local dtype = device == "cpu" and torch.float32 or torch.bfloat16
local function random(shape) return torch.randn(shape, { dtype = dtype, device = device }) end

--- Reports the time of a step with the kernels over that with ATen's operators.
local function compare(name, step)
  local seconds = {}
  for way, is_fused in ipairs { true, false } do
    local before = nn.use_fused(is_fused)
    seconds[way] = timing.seconds(5, 4, function() step(is_fused) end)
    nn.use_fused(before)
  end
  timing.report(name .. ", time / ATen", seconds[1] / seconds[2])
  return seconds[1]
end

local rows, size = timing.size(8192, 64), timing.size(4096, 64)
local norm = nn.RMSNorm(size):to { device = device, dtype = dtype }
local x, other = random({ rows, size }):requires_grad_(true), random({ rows, size }):requires_grad_(true)
local gradient = random { rows, size }
compare("RMSNorm", function() torch.grad({ norm(x) }, { x, norm.weight }, { grad_outputs = { gradient } }) end)
compare("add + RMSNorm", function()
  local y, sum = norm(x, other)
  torch.grad({ y, sum }, { x, other, norm.weight }, { grad_outputs = { gradient, gradient } })
end)
compare("SwiGLU", function() torch.grad({ nn.swiglu(x, other) }, { x, other }, { grad_outputs = { gradient } }) end)
local head = 64
local heads, angles = x:detach():view(rows, -1, head):requires_grad_(true), random { rows, 1, head }
compare("rotation", function()
  torch.grad({ nn.rotate(heads, angles, angles) }, { heads }, { grad_outputs = { gradient:view(rows, -1, head) } })
end)

local params = {}
for i = 1, 100 do
  params[i] = random({ timing.size(2 ^ 21, 1000) }):requires_grad_(true)
  params[i].grad = random { params[i]:numel() }
end
local optimizer = optim.AdamW(params)
local seconds = compare("AdamW", function() optimizer:step() end)
-- Read and written for each weight: 28 bytes in float32, and 28 in bfloat16 with a master.
local bytes = 28 * #params * params[1]:numel()
local from = torch.ones({ bytes / 2 }, { dtype = torch.uint8, device = device })
local to = torch.empty_like(from)
timing.report("AdamW, speed / copy", timing.seconds(5, 4, function() to:copy_(from) end) / seconds)
