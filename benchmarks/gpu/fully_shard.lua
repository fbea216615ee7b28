--- sharding.fully_shard on one rank: a step against the plain module, memory after the first step, and the host's time
--- for each layer. For the last, layers are so small that launching is all they cost; fully_shard.py is its peer.

local timing = require "timing"
local nn = require "lockstep.nn"
local sharding = require "lockstep.sharding"
local torch = require "lockstep.torch"

local Block = nn.Module:subclass("Block")
function Block:init(hidden)
  self.norm, self.up, self.down = nn.LayerNorm(hidden), nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)
end
function Block:forward(x) return x + self.down(torch.gelu(self.up(self.norm(x)))) end

local Net = nn.Module:subclass("Net")
function Net:init(layers, hidden)
  self.layers = nn.ModuleList {}
  for _ = 1, layers do self.layers:append(Block(hidden)) end
end
function Net:forward(x)
  for _, layer in ipairs(self.layers) do x = layer(x) end
  return x
end

--- Returns a forward and backward pass of a network on the device.
local function pass_of(shape, dtype, wrap)
  local model = wrap(Net(shape.layers, shape.hidden):to(timing.device):to(dtype))
  local x = torch.ones({ shape.tokens, shape.hidden }, { device = timing.device, dtype = dtype })
  local parameters = model:parameters()
  return function()
    model(x):float():pow(2):mean():backward()
    for _, p in ipairs(parameters) do p.grad = nil end
  end
end
local function plain(net) return net end
local function sharded(net) return sharding.fully_shard(net) end

local large = { layers = timing.size(12, 3), hidden = timing.size(2048, 32), tokens = timing.size(8192, 16) }
local dtype = timing.device == "cpu" and torch.float32 or torch.bfloat16
local pass = pass_of(large, dtype, plain)
local alone = timing.seconds(3, 5, pass)
pass = pass_of(large, dtype, sharded)
pass()
timing.synchronize()
local reserved = timing.device ~= "cpu" and torch.cuda.memory_reserved() or 0
timing.report("step, time / plain", timing.seconds(3, 5, pass) / alone)
if timing.device ~= "cpu" then
  timing.report("MiB reserved after the first step", (torch.cuda.memory_reserved() - reserved) / 2 ^ 20)
end

local small = { layers = timing.size(64, 4), hidden = 32, tokens = 16 }
local without = timing.seconds(3, 5, pass_of(small, torch.float32, plain))
local with = timing.seconds(3, 5, pass_of(small, torch.float32, sharded))
timing.report("host time of sharding, us a layer", 1e6 * (with - without) / small.layers)
