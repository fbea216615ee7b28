--- Measures the cost of a module call and a training step from Lua, in microseconds of processor time: see
--- step_benchmark.py, which runs this. With the environment variable LOCKSTEP_ATEN set the steps use no fused kernels.

local lockstep = require "lockstep"
local benchmark_model = require "benchmark_model"
local core = require "lockstep.core"
local nn = require "lockstep.nn"
local optim = require "lockstep.optim"
local torch = require "lockstep.torch"

local LAYERS, VOCAB, HEADS, WARM_UP = 6, 64, 4, 6
torch.set_num_threads(1)
if os.getenv("LOCKSTEP_ATEN") then nn.use_fused(false) end

--- Prints the least time per call over the rounds.
local function measure(name, calls, rounds, call)
  local best = math.huge
  for _ = 1, rounds do
    local start = os.clock()
    for _ = 1, calls do call() end
    best = math.min(best, os.clock() - start)
  end
  print(("%s %.4f"):format(name, 1e6 * best / calls))
end

local Relu = nn.Module:subclass("Relu")
function Relu.forward(_, x) return torch.relu(x) end

--- Returns a step of a new model, and its forward and optimizer alone.
local function new_step(hidden, batch, tokens)
  local model = benchmark_model.Model { vocab = VOCAB, hidden = hidden, layers = LAYERS, heads = HEADS }
  benchmark_model.fill(model)
  local optimizer = optim.AdamW(model:parameters(), { lr = 1e-3 })
  local ids = torch.arange(batch * tokens):remainder(VOCAB):view(batch, tokens)
  local labels = ids:roll({ 1 }, { 1 })
  local function forward() return nn.cross_entropy(model(ids), labels) end
  local function step()
    local loss = forward()
    loss:backward()
    optimizer:step()
    optimizer:zero_grad()
    return loss
  end
  return step, forward, optimizer
end

--- Prints the loss after the first six steps, and then the time of one.
local function measure_step(name, calls, rounds, step)
  local loss
  local start = core.now()
  for _ = 1, WARM_UP do loss = step() end
  print(("%s, six steps at first %.1f"):format(name, 1e6 * (core.now() - start)))
  print(("loss after six steps, %s %.6f"):format(name, loss:item()))
  measure(name, calls, rounds, step)
end

local function training_step(name, hidden, batch, tokens, calls, rounds)
  local step, forward, optimizer = new_step(hidden, batch, tokens)
  measure_step(name, calls, rounds, step)
  measure(name .. ", forward", calls, rounds, forward)
  forward():backward()
  measure(name .. ", optimizer", calls, rounds, function() optimizer:step() end)
  measure_step(name .. ", in a graph", calls, rounds, lockstep.graph((new_step(hidden, batch, tokens))))
end

-- The cost of a call: a module around an operator, less the operator. Interpreted, because a loop around one call is
-- compiled to nothing. Each keeps its last result, so that neither is skipped.
local relu, x, kept = Relu(), torch.ones({ 4 }), nil
jit.off()
torch.no_grad(function()
  measure("module around an operator", 200000, 5, function() kept = relu(x) end)
  measure("the operator alone", 200000, 5, function() kept = torch.relu(x) end)
end)
jit.on()
assert(torch.equal(kept, x))
training_step("hidden 32, 1 x 16", 32, 1, 16, 50, 6)
training_step("hidden 128, 4 x 64", 128, 4, 64, 8, 4)
training_step("hidden 512, 2 x 256", 512, 2, 256, 1, 2)
