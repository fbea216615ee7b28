--- Tokens per second of models.generate: one prompt, greedy. Argument: the shape. peers.decode is the same in PyTorch.

local models = require "lockstep.models"
local run = require "lockstep.run"
local timing = require "timing"

local shape = timing.shape(run.args[4])
local model = timing.model(shape)
model:eval()
local prompt, new = timing.ids(16, shape.model.vocab_size):totable(), timing.size(128, 8)

local sum
local function generate()
  sum = 0
  for _, id in ipairs(models.generate(model, { prompt }, { max_new_tokens = new, stop = {} })[1]) do sum = sum + id end
end

local seconds = timing.seconds(1, 2, generate)
timing.report("sum of ids", sum)
timing.report("tokens/s", new / seconds)
