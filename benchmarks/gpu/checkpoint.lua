--- Checkpointed regions whose inputs wait in host memory, against regions without offload: the same bits, and time.

local timing = require "timing"
local checkpoint = require "lockstep.checkpoint"
local torch = require "lockstep.torch"

local LAYERS = 8
local tokens, hidden = timing.size(8192, 64), timing.size(4096, 32)
local dtype = timing.device == "cpu" and torch.float32 or torch.bfloat16
torch.manual_seed(1)
local weights = {}
for i = 1, LAYERS do
  weights[i] = torch.randn({ hidden, hidden }, { dtype = dtype, device = timing.device }):mul_(0.01)
  weights[i]:requires_grad_(true)
end
local x = torch.randn({ tokens, hidden }, { dtype = dtype, device = timing.device })

local function step(regions)
  local y = x
  for _, w in ipairs(weights) do
    y = regions(function(rows) return rows + torch.tanh(torch.tanh(rows:matmul(w)):matmul(w)) end, y)
  end
  y:float():sum():backward()
end

local function gradients(regions)
  for _, w in ipairs(weights) do w.grad = nil end
  step(regions)
  local copies = {}
  for i, w in ipairs(weights) do copies[i] = w.grad:clone() end
  return copies
end

local plain, offloading = checkpoint.new {}, checkpoint.new { offload = "host" }
local expected, differing = gradients(plain), 0
for _ = 1, 3 do
  for i, gradient in ipairs(gradients(offloading)) do
    if not torch.equal(gradient, expected[i]) then differing = differing + 1 end
  end
end
timing.report("gradients that differ", differing)
local without = timing.seconds(2, 5, function() gradients(plain) end)
timing.report("time with offload / without", timing.seconds(2, 5, function() gradients(offloading) end) / without)
