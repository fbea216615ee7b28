--- The tiled MLP and the tiled cross entropy against untiled ones: time and memory of forward and backward.

local timing = require "timing"
local nn = require "lockstep.nn"
local tiled_mlp = require "lockstep.tiled_mlp"
local torch = require "lockstep.torch"

local dtype = timing.device == "cpu" and torch.float32 or torch.bfloat16
local function random(shape)
  return torch.randn(shape, { dtype = dtype, device = timing.device }):mul_(0.03):requires_grad_(true)
end

--- Reports the contenders' time, and their peak of memory where the device tells it, each over the first one's.
local function compare(contenders, gradients_of)
  local first_seconds, first_bytes
  for _, contender in ipairs(contenders) do
    local function step()
      contender[2]():backward()
      for _, p in ipairs(gradients_of) do p.grad = nil end
    end
    local seconds = timing.seconds(2, 3, step)
    local bytes = timing.peak_bytes(step)
    first_seconds, first_bytes = first_seconds or seconds, first_bytes or bytes
    timing.report(contender[1] .. ", time", seconds / first_seconds)
    if bytes then timing.report(contender[1] .. ", memory", bytes / first_bytes) end
  end
end

local tokens, hidden, wide = timing.size(16384, 256), timing.size(4096, 64), timing.size(14336, 176)
local x = random { tokens, hidden }
local gate, up, down = random { wide, hidden }, random { wide, hidden }, random { hidden, wide }
local function swiglu(rows, g, u, d)
  return torch.linear(torch.silu(torch.linear(rows, g)) * torch.linear(rows, u), d)
end

local tiles = tiled_mlp.new { tiles = 4 }
compare({
  { "untiled MLP", function() return swiglu(x, gate, up, down):sum() end },
  { "tiled MLP, any function", function() return tiles(swiglu, x, { gate, up, down }):sum() end },
  { "tiled MLP, dense", function() return tiles:dense { x = x, gate = gate, up = up, down = down }:sum() end },
}, { x, gate, up, down })

local vocabulary = timing.size(128256, 512)
local rows = timing.size(8192, 128)
local states, head = random { rows, hidden }, random { vocabulary, hidden }
local labels = torch.arange(rows, { device = timing.device }):remainder(vocabulary)
compare({
  { "plain loss", function() return nn.cross_entropy(torch.linear(states, head):float(), labels) end },
  { "tiled loss", function()
    return (tiled_mlp.cross_entropy { hidden = states, weight = head, labels = labels })
  end },
}, { states, head })
