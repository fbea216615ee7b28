--- The time of offload to the host: regions of checkpoint with and without it, and sharding.fully_shard with and
--- without. Copies that overlap with the computation take hardly any. Argument: the shape.
--- peers.offload is the sharded model in PyTorch.

local checkpoint = require "lockstep.checkpoint"
local run = require "lockstep.run"
local sharding = require "lockstep.sharding"
local timing = require "timing"
local torch = require "lockstep.torch"

local shape = timing.shape(run.args[4])
local tokens = shape.batch * shape.tokens
local batch = { input_ids = timing.ids(tokens, shape.model.vocab_size), seq_lens = {} }
for i = 1, shape.batch do batch.seq_lens[i] = shape.tokens end

--- One forward and backward pass, without an optimizer.
local function pass(model)
  local sum, count = model(batch, "loss");
  (sum / count):backward()
end

local function seconds_of(model, parameters)
  return timing.seconds(timing.size(3, 1), timing.size(2, 1), function()
    pass(model)
    for _, p in ipairs(parameters) do p.grad = nil end
  end)
end

local model = timing.model(shape)
local parameters = model:parameters()
local gradients = {}
local seconds = {}
for i, options in ipairs { {}, { offload = "host" } } do
  model.checkpoint = checkpoint.new(options)
  pass(model)
  gradients[i] = {}
  for j, p in ipairs(parameters) do gradients[i][j] = p.grad:cpu() end
  for _, p in ipairs(parameters) do p.grad = nil end
  seconds[i] = seconds_of(model, parameters)
end
local differing = 0
for j, expected in ipairs(gradients[1]) do
  if not torch.equal(expected, gradients[2][j]) then differing = differing + 1 end
end
timing.report("regions, gradients that differ", differing)
timing.report("regions, time / without offload", seconds[2] / seconds[1])
gradients, parameters, model = nil, nil, nil -- luacheck: no unused
collectgarbage()
collectgarbage()

for i, offload in ipairs { false, "host" } do
  local sharded = sharding.fully_shard(timing.model(shape):to(torch.float32),
    { param_dtype = timing.dtype, reduce_dtype = torch.float32, offload = offload or nil })
  seconds[i] = seconds_of(sharded, sharded:parameters())
end
timing.report("sharded, time / without offload", seconds[2] / seconds[1])
timing.report("sharded, tokens/s", tokens / seconds[2])
