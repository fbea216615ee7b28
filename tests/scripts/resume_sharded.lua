-- Trains a sharded model on batches that do not depend on the number of ranks, with its state saved.
--
-- lockstep --nproc N resume_sharded.lua [--set from=DIR] [--set dies_after=STEP]: with `from` the run goes on from
-- another run's state, and first saves what it has read.

local dist = require "lockstep.distributed"
local ffi = require "ffi"
local nn = require "lockstep.nn"
local optim = require "lockstep.optim"
local run = require "lockstep.run"
local sharding = require "lockstep.sharding"
local torch = require "lockstep.torch"

local config = run.config {
  steps = 8,
  from = "",
  dies_after = -1, -- the last rank kills itself in the step after it
  replicas = 1,
  low = false, -- float32 masters of bfloat16 weights
  optimizer = "AdamW",
}
ffi.cdef "int getpid(void); int kill(int pid, int signal);"
torch.set_default_dtype(config.low and torch.float32 or torch.float64)
torch.manual_seed(config.from == "" and 3 or 4) -- a run that goes on begins with other values

local Block = nn.Module:subclass("Block")
function Block:init(width)
  self.up, self.down = nn.Linear(10, width), nn.Linear(width, 10)
  self.scale = torch.ones({}):requires_grad_(true)
end
function Block:forward(x) return x + self.down(torch.tanh(self.up(x))) * self.scale end

-- A weight for two modules, one that is frozen, and a buffer.
local Net = nn.Module:subclass("Net")
function Net:init()
  self.embedding = nn.Embedding(17, 10)
  self.layers = nn.ModuleList { Block(7), Block(33), Block(1) }
  self.layers[2].up.bias:requires_grad_(false)
  self.shift = torch.randn { 10 }
  self.head = nn.Linear(10, 17, { bias = false })
  self.head.weight = self.embedding.weight
end
function Net:forward(tokens)
  local x = self.embedding(tokens) + self.shift
  for _, layer in ipairs(self.layers) do x = layer(x) end
  return self.head(x)
end

local model = sharding.fully_shard(Net(), {
  replicas = config.replicas, param_dtype = config.low and torch.bfloat16 or nil,
})
local trained = {}
for _, p in ipairs(model:parameters()) do trained[#trained + 1] = p.requires_grad and p or nil end
local optimizer = optim[config.optimizer](trained, { lr = 0.02, momentum = config.optimizer == "SGD" and 0.9 or nil })
run:state({ model = model, optimizer = optimizer }, { every = 3 })
local done = run:resume { from = config.from ~= "" and config.from or nil }
if done then run:save { step = done } end

-- Each rank takes an equal part of the 12 samples of a step, so the mean of their means is the mean of all samples.
local count = 12 / dist.world_size()
local step_of = done or 0
local function loader()
  step_of = step_of + 1
  return (torch.arange(12) * 5 + step_of):remainder(17)[{ { dist.rank() * count, (dist.rank() + 1) * count } }]
end

for step, tokens in run:steps(loader, config.steps) do
  if step == config.dies_after and dist.rank() == dist.world_size() - 1 then ffi.C.kill(ffi.C.getpid(), 9) end
  torch.cross_entropy_loss(model(tokens):to(torch.float64), (tokens * 3 + 1):remainder(17)):backward()
  model:clip_grad_norm(0.5)
  optimizer:step()
  optimizer:zero_grad()
end
