--- Tokens per second of models.generate: one prompt, greedy, with a graph for new tokens and without one. Then the ids
--- of both in float32, of a model of two layers. Argument: the shape. peers.decode is the first in PyTorch.

local models = require "lockstep.models"
local run = require "lockstep.run"
local timing = require "timing"
local torch = require "lockstep.torch"

local shape = timing.shape(run.args[4])
local model = timing.model(shape)
model:eval()
local prompt, new = timing.ids(16, shape.model.vocab_size):totable(), timing.size(128, 8)

local sum
--- Without `graph` the default decides: a graph on GPUs.
local function generate(graph)
  sum = 0
  local o = { max_new_tokens = new, stop = {}, graph = graph }
  for _, id in ipairs(models.generate(model, { prompt }, o)[1]) do sum = sum + id end
end

local seconds = timing.seconds(1, 2, generate)
timing.report("sum of ids", sum)
timing.report("tokens/s", new / seconds)
timing.report("tokens/s, without a graph", new / timing.seconds(1, 1, function() generate(false) end))

-- bfloat16 may decide between two ids that are as good. float32 does not.
model = nil -- luacheck: no unused
collectgarbage()
collectgarbage()
shape.model.num_hidden_layers = 2
model = timing.fill(models.build(shape.model, { device = timing.device, dtype = torch.float32 }))
local prompts, ids, differing = { prompt, { 5, 2 }, { unpack(prompt, 3) } }, {}, 0
for i, graph in ipairs { true, false } do
  ids[i] = models.generate(model, prompts, { max_new_tokens = 24, max_batch_size = 2, stop = {}, graph = graph })
end
for i, expected in ipairs(ids[2]) do
  for j, id in ipairs(expected) do differing = differing + (ids[1][i][j] == id and 0 or 1) end
end
timing.report("ids that differ with a graph", differing)
