--- nn.attention at three lengths, forward and backward, in milliseconds. peers.attention has each backend of PyTorch.

local nn = require "lockstep.nn"
local timing = require "timing"
local torch = require "lockstep.torch"

for _, full in ipairs { 2048, 8192, 32768 } do
  local tokens, heads, dim = timing.size(full, full / 256), timing.size(32, 4), timing.size(128, 16)
  torch.manual_seed(1)
  local function random(n)
    return torch.randn({ tokens, n, dim }, { device = timing.device, dtype = timing.dtype }):requires_grad_(true)
  end
  local q, k, v = random(heads), random(heads / 4), random(heads / 4)
  local upstream = q:detach()
  timing.report("ms at " .. full, 1e3 * timing.seconds(timing.size(5, 1), 2, function()
    nn.attention(q, k, v):backward(upstream)
  end))
end
