--- A training step of a model of shapes.json: the step of a loop and as a graph, with its first losses and peak memory.
--- Arguments: the shape, and "step", "lora" or "fully_shard". peers.train is the same in PyTorch.

local lockstep = require "lockstep"
local lora = require "lockstep.lora"
local optim = require "lockstep.optim"
local run = require "lockstep.run"
local sharding = require "lockstep.sharding"
local timing = require "timing"
local torch = require "lockstep.torch"

local shape, mode = timing.shape(run.args[4]), run.args[5]
local model = timing.model(shape)
if mode == "lora" then
  lora.apply(model, { r = 16, alpha = 32, targets = "all-linear" })
  timing.fill(model)
elseif mode == "fully_shard" then
  model = sharding.fully_shard(model:to(torch.float32), { param_dtype = timing.dtype, reduce_dtype = torch.float32 })
end
local optimizer = optim.AdamW(model:parameters(), { lr = 1e-4, weight_decay = 0.1 })
local tokens = shape.batch * shape.tokens
local ids, lengths = timing.ids(tokens, shape.model.vocab_size), {}
for i = 1, shape.batch do lengths[i] = shape.tokens end

local function step(input)
  local sum, count = model({ input_ids = input, seq_lens = lengths }, "loss")
  local loss = sum / count
  loss:backward()
  optimizer:step()
  optimizer:zero_grad()
  return loss
end

local calls, rounds = timing.size(5, 1), timing.size(2, 1)
local best = 0

--- Reports the tokens per second and the peak of one way to run the step, and those of the fastest way so far.
local function measure(name, call)
  local per_s = tokens / timing.seconds(calls, rounds, call)
  local mib = timing.peak_mib(call)
  timing.report("tokens/s, " .. name, per_s)
  if mib then timing.report("peak MiB, " .. name, mib) end
  if per_s < best then return end
  best = per_s
  timing.report("tokens/s", per_s)
  -- A graph's replay allocates nothing: its activations lie in a pool of its own. The loop's peak stands.
  if mib and name == "loop" then timing.report("peak MiB", mib) end
end

timing.report("loss of step 1", step(ids):item())
step(ids)
timing.report("loss of step 3", step(ids):item())
measure("loop", function() step(ids) end)
if mode == "step" and timing.trace ~= "" then
  lockstep.profile({ path = timing.trace }, function()
    step(ids)
    timing.synchronize()
  end)
end
if mode ~= "fully_shard" then -- a graph records no collectives
  local graph = lockstep.graph(step)
  local is_well, problem = pcall(function()
    for _ = 1, 5 do graph(ids) end
  end)
  if is_well and graph.hits > 0 then
    measure("graph", function() graph(ids) end)
  else
    print("# the step has no graph: " .. tostring(problem or "CUDA broke the recording"))
  end
end
