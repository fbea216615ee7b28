--- Measures a training step, launched operator by operator and as one CUDA graph, in milliseconds: see
--- graph_benchmark.py, which runs this with the sizes as arguments.

local benchmark_model = require "benchmark_model"
local core = require "lockstep.core"
local dist = require "lockstep.distributed"
local nn = require "lockstep.nn"
local optim = require "lockstep.optim"
local run = require "lockstep.run"
local torch = require "lockstep.torch"

local names = { "layers", "hidden", "heads", "batch", "tokens", "vocab", "steps", "rounds" }
local size = {}
for i, name in ipairs(names) do
  size[name] = tonumber(run.args[i]) or error("argument " .. i .. " must be the number of " .. name, 0)
end
local dtype, DEVICE = torch[run.args[#names + 1]], dist.device()
torch.set_num_threads(1)

local function training_step()
  local model = benchmark_model.Model(size)
  benchmark_model.fill(model)
  model:to { device = DEVICE, dtype = dtype }
  -- The peer keeps no masters: PyTorch's AdamW steps in the parameters' dtype.
  local optimizer = optim.AdamW(model:parameters(), { lr = 1e-3, master = "none", states = dtype })
  return function(ids, labels)
    local loss = nn.cross_entropy(model(ids):float(), labels)
    loss:backward()
    optimizer:step()
    optimizer:zero_grad()
    return loss
  end
end

local function synchronize()
  if DEVICE ~= "cpu" then torch.cuda.synchronize() end
end

--- Prints the loss after `steps` steps, then the least time of a step over the rounds.
local function measure(name, step)
  local ids = torch.arange(size.batch * size.tokens, { device = DEVICE }):remainder(size.vocab)
  ids = ids:view(size.batch, size.tokens)
  local labels = ids:roll({ 1 }, { 1 })
  local loss, best = nil, math.huge
  for _ = 1, size.steps do loss = step(ids, labels) end
  print(("loss, %s %.6f"):format(name, loss:item()))
  for _ = 1, size.rounds do
    synchronize()
    local start = core.now()
    for _ = 1, size.steps do step(ids, labels) end
    synchronize()
    best = math.min(best, core.now() - start)
  end
  print(("%s %.6f"):format(name, 1e3 * best / size.steps))
end

measure("lockstep", training_step())
collectgarbage()
collectgarbage()
measure("lockstep.graph", lockstep.graph(training_step()))
