--- Measures the cost of one operator call from Lua, in microseconds: see operators_benchmark.py, which runs this.

local core = require "lockstep.core"
local torch = require "lockstep.torch"

local CALLS, ROUNDS = 100000, 3
torch.set_num_threads(1)

--- Prints the least time per call over the rounds.
local function measure(name, call)
  local best = math.huge
  for _ = 1, ROUNDS do
    local start = core.now()
    for _ = 1, CALLS do call() end
    best = math.min(best, core.now() - start)
  end
  print(("%s %.4f"):format(name, 1e6 * best / CALLS))
end

local a, b = torch.ones({ 4 }), torch.ones({ 4 })
local m, n = torch.ones({ 4, 4 }), torch.ones({ 4, 4 })

local function all(suffix)
  measure("a + b" .. suffix, function() return a + b end)
  measure("a + 1" .. suffix, function() return a + 1 end)
  measure("-a" .. suffix, function() return -a end)
  measure("a:relu()" .. suffix, function() return a:relu() end)
  measure("m:matmul(n)" .. suffix, function() return m:matmul(n) end)
  measure("torch.sum(m, {1}, true)" .. suffix, function() return torch.sum(m, { 1 }, true) end)
end

assert(torch.equal(a + b, torch.full({ 4 }, 2)) and torch.equal(m:matmul(n), torch.full({ 4, 4 }, 4)))
torch.no_grad(all, ", no grad")
a:requires_grad_(true)
m:requires_grad_(true)
all(", grad")
