-- run:save and run:resume of a sharded model: whole tensors in the files, whoever reads them.

local core = require "lockstep.core"
local data = require "lockstep.data"
local dist = require "lockstep.distributed"
local nn = require "lockstep.nn"
local optim = require "lockstep.optim"
local run = require "lockstep.run"
local sharding = require "lockstep.sharding"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local RANK, WORLD = dist.rank(), dist.world_size()
local base = run.dir

local Net = nn.Module:subclass("Net")
function Net:init()
  self.layers = nn.ModuleList { nn.Linear(8, 9), nn.Linear(9, 8) }
  self.out = nn.Linear(8, 3)
  self.out.weight:requires_grad_(false)
  self.shift = torch.ones({ 8 }) -- a buffer
end
function Net:forward(x)
  for _, layer in ipairs(self.layers) do x = torch.tanh(layer(x)) end
  return self.out(x + self.shift)
end

--- A net with an optimizer; sharded as `options` say, or whole.
local function objects(seed, options)
  torch.manual_seed(seed)
  local model = options and sharding.fully_shard(Net(), options) or Net()
  local trained = {}
  for _, p in ipairs(model:parameters()) do trained[#trained + 1] = p.requires_grad and p or nil end
  return { model = model, optimizer = optim.AdamW(trained, { lr = 0.05 }) }
end

local function train(one, steps, seed)
  local last
  for step = 1, steps do
    torch.manual_seed(seed + step) -- alike on every rank: a whole net trains as the sharded ones
    local loss = one.model(torch.randn({ 6, 8 })):square():mean()
    loss:backward()
    one.optimizer:step()
    one.optimizer:zero_grad()
    last = loss:item()
  end
  return last
end

t.test("AShardedModelResumesWithTheSameBitsHoweverItIsSharded", function()
  run.dir = base .. "/sharded"
  core.make_folder(run.dir)
  dist.barrier()
  local first = objects(1, {})
  train(first, 3, 100)
  run:state(first)
  run:save { step = 3 }
  local expected = first.model:state_dict()
  train(first, 2, 200)
  local after = first.model:state_dict()

  -- The files hold whole tensors, each once.
  local seen = {}
  for i = 1, WORLD do
    for _, kind in ipairs { "model", "state" } do
      local name = ("%s/state/step-00000003/%s-%05d-of-%05d.safetensors"):format(run.dir, kind, i, WORLD)
      for tensor_name, tensor in pairs(data.safetensors(name)) do
        t.truthy(not seen[tensor_name], tensor_name)
        seen[tensor_name] = tensor
      end
    end
  end
  for name, tensor in pairs(expected) do t.equal(seen[name], tensor, name) end
  t.equal(seen["optimizer.state.layers.0.weight.exp_avg"].shape, expected["layers.0.weight"].shape)

  for _, options in ipairs { {}, { replicas = WORLD }, { units = {} }, false } do
    local other = objects(2 + RANK, options)
    run:state(other)
    t.equal(run:resume(), 3)
    local resumed = other.model:state_dict()
    for name, tensor in pairs(expected) do t.equal(resumed[name], tensor, name) end
    train(other, 2, 200)
    local later = other.model:state_dict()
    for name, tensor in pairs(after) do t.near(later[name], tensor, 1e-6, name) end
  end
end)
