--- bazel build -c opt //driver:lockstep
--- bazel-bin/driver/lockstep --nproc 1 --run-dir /tmp/clipping benchmarks/clipping_benchmark.lua 9
---
--- Measures what optimizer:step(factor, { max_grad_norm = 1 }) saves over optim.clip_grad_norm before
--- optimizer:step(factor), in the step of step_benchmark.lua. The two take turns; the argument is the number of turns.
--- Prints the least microseconds of processor time of one thread: forward and backward, then clipping and AdamW in both
--- ways, and what the second one saves of a step.

local benchmark_model = require "benchmark_model"
local nn = require "lockstep.nn"
local optim = require "lockstep.optim"
local torch = require "lockstep.torch"

local LAYERS, VOCAB, HEADS = 6, 64, 4
local turns = tonumber((...)) or 9
torch.set_num_threads(1)

--- Returns the mean processor time of a call, in microseconds.
local function time(calls, call)
  local start = os.clock()
  for _ = 1, calls do call() end
  return 1e6 * (os.clock() - start) / calls
end

local function measure(hidden, batch, tokens, calls, dtype)
  local model = benchmark_model.Model { vocab = VOCAB, hidden = hidden, layers = LAYERS, heads = HEADS }
  benchmark_model.fill(model)
  model:to { dtype = dtype }
  local params = model:parameters()
  local optimizer = optim.AdamW(params, { lr = 1e-3 })
  local ids = torch.arange(batch * tokens):remainder(VOCAB):view(batch, tokens)
  local labels = ids:roll({ 1 }, { 1 })
  local passes, clipped, folded = math.huge, math.huge, math.huge
  for _ = 1, turns do
    optimizer:zero_grad()
    passes = math.min(passes, time(1, function() nn.cross_entropy(model(ids), labels):backward() end))
    clipped = math.min(clipped, time(calls, function()
      optim.clip_grad_norm(params, 1)
      optimizer:step(1)
    end))
    folded = math.min(folded, time(calls, function() optimizer:step(1, { max_grad_norm = 1 }) end))
  end
  print(("%-14s hidden %3d: passes %7.0f, clipped %6.0f, folded %6.0f, ratio %.2f, of a step %.1f %%"):format(
    tostring(dtype), hidden, passes, clipped, folded, folded / clipped, 100 * (clipped - folded) / (passes + clipped)))
end

for _, dtype in ipairs { torch.float32, torch.bfloat16 } do
  measure(32, 1, 16, 20, dtype)
  measure(128, 4, 64, 5, dtype)
  measure(512, 2, 256, 1, dtype)
end
