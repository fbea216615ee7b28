--- The map of waiting_benchmark.lua: a digit as a line has it, moved by up to a pixel, with question and answer.

local digits = require "digits_data"
local torch = require "lockstep.torch"

return function(sample)
  local digit = { pixels = torch.tensor(sample.pixels):view(8, 8), label = sample.label }
  return digits.image_sample(digits.jitter(digit, math.random))
end
