--- Host time of 1,000 operators on tensors of four elements: what launching costs. tiny_operators.py is the peer.

local timing = require "timing"
local torch = require "lockstep.torch"

local OPERATORS = 1000
local x = torch.ones({ 4 }, { device = timing.device })
local w = torch.ones({ 4 }, { device = timing.device }):requires_grad_(true)

local function chain(tensor)
  local y = tensor
  for _ = 1, OPERATORS do y = y + tensor end
  return y
end

timing.report("1,000 additions, ms", 1e3 * timing.seconds(5, 5, function() torch.no_grad(chain, x) end))
timing.report("with backward, ms", 1e3 * timing.seconds(5, 5, function()
  chain(w):sum():backward()
  w.grad = nil
end))
