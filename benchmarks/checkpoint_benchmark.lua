--- Measures the cost of regions and offload from Lua, in microseconds: see checkpoint_benchmark.py, which runs this.

local checkpoint = require "lockstep.checkpoint"
local core = require "lockstep.core"
local torch = require "lockstep.torch"

torch.set_num_threads(1)

--- Prints the least time of one call, in seconds, over `rounds`.
local function measure(name, rounds, call)
  local best = math.huge
  for _ = 1, rounds do
    collectgarbage()
    local start = core.now()
    call()
    best = math.min(best, core.now() - start)
  end
  print(("%s %.3f"):format(name, 1e6 * best))
end

local function plainly(fn, ...) return fn(...) end

--- `depth` blocks of two matrix products; the weights need gradients.
local function blocks(depth, width)
  local list = {}
  for i = 1, depth do
    local up = torch.mul(torch.randn({ width, 4 * width }), 0.02):requires_grad_(true)
    local down = torch.mul(torch.randn({ 4 * width, width }), 0.02):requires_grad_(true)
    list[i] = function(x) return x + torch.gelu(x:matmul(up)):matmul(down) end
  end
  return list
end

local function step(list, x, call)
  for _, block in ipairs(list) do x = call(block, x) end
  x:sum():backward()
end

local function steps(name, rounds, width, tokens)
  local list, x = blocks(8, width), torch.randn({ tokens, width })
  local regions = checkpoint.new()
  local offloading = checkpoint.new { offload = "host" }
  for _ = 1, 3 do step(list, x, regions) end
  measure(name .. ", plain", rounds, function() step(list, x, plainly) end)
  measure(name .. ", regions", rounds, function() step(list, x, regions) end)
  measure(name .. ", regions, inputs offloaded", rounds, function() step(list, x, offloading) end)
  measure(name .. ", all saved tensors offloaded", rounds, function()
    checkpoint.save_on_host(step, list, x, plainly)
  end)
end

local OPERATORS = 1000
local function chain(x)
  for _ = 1, OPERATORS do x = torch.tanh(x) end
  return x
end

steps("8 x 32, 8 tokens", 200, 32, 8)
steps("8 x 256, 512 tokens", 25, 256, 512)

local x = torch.randn({ 4 }):requires_grad_(true)
local ckpt = checkpoint.new()
measure("forward of 1000 tanh, plain", 50, function() chain(x) end)
measure("forward of 1000 tanh, region", 50, function() ckpt(chain, x) end)
measure("step of 1000 tanh, plain", 50, function() chain(x):sum():backward() end)
measure("step of 1000 tanh, region", 50, function() ckpt(chain, x):sum():backward() end)
local large = torch.randn({ 1024 }):requires_grad_(true)
measure("step of 1000 tanh of 4 KiB, plain", 50, function() chain(large):sum():backward() end)
measure("step of 1000 tanh of 4 KiB, offloaded", 50, function()
  checkpoint.save_on_host(chain, large):sum():backward()
end)
