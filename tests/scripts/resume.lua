-- Trains a few numbers for some steps, with its state saved, and prints the last bits of all that was trained.

local dist = require "lockstep.distributed"
local files = require "lockstep.core.files"
local log = require "lockstep.log"
local nn = require "lockstep.nn"
local optim = require "lockstep.optim"
local run = require "lockstep.run"
local sharding = require "lockstep.sharding"
local torch = require "lockstep.torch"

local config = run.config {
  steps = 12,
  every = 1,
  async = false,
  memory_every = 0,
  batch_size = 4, -- over all ranks
  dropout = 0.0, -- draws from each rank's own generator
  own_values = false, -- that differ from rank to rank
  double = true,
  kill_steps = { -1 }, -- by start of the run: the step within which a rank kills itself
}
local C = require("ffi").C
require("ffi").cdef "int getpid(void); int kill(int, int);"
print("I am " .. dist.rank() .. " pid " .. C.getpid())
if config.double then torch.set_default_dtype(torch.float64) end
torch.manual_seed(3)
math.randomseed(3)

local Net = nn.Module:subclass("Net")
function Net:init() self.fc1, self.dropout, self.fc2 = nn.Linear(4, 8), nn.Dropout(config.dropout), nn.Linear(8, 1) end
function Net:forward(x) return self.fc2(self.dropout(torch.tanh(self.fc1(x)))) end

local inputs, targets = torch.randn({ 30, 4 }), torch.randn({ 30, 1 })
local model = sharding.data_parallel(Net())
if config.dropout > 0 then torch.manual_seed(3 + dist.rank()) end
local optimizer = optim.AdamW(model:parameters(), { lr = 1e-2 })
local dataset = sharding.dataset { size = 28, seed = 1 }
local own = config.own_values and { rank = dist.rank() } or {}
run:state({ model = model, optimizer = optimizer, data = dataset, own = own },
  { every = config.every, keep = 2, async = config.async,
    memory_every = config.memory_every > 0 and config.memory_every or nil })
run:resume()

local function loader()
  local indices = {}
  for i = 1, config.batch_size / dist.world_size() do
    local index = dataset()
    if not index then
      dataset:set_epoch(dataset.epoch + 1)
      index = dataset()
    end
    indices[i] = index - 1
  end
  return torch.tensor(indices, { dtype = torch.int64 })
end

--- A kill comes at one of three moments of its step, on one of the ranks.
local function perhaps_die(step, moment)
  local is_due = config.kill_steps[run.restarts + 1] == step and step % 3 == moment
  if is_due and dist.rank() == step % dist.world_size() then C.kill(C.getpid(), 9) end
end

for step, indices in run:steps(loader, config.steps) do
  print("step " .. step)
  perhaps_die(step, 0)
  local loss = torch.mse_loss(model(inputs:index_select(0, indices)), targets:index_select(0, indices))
  loss:backward()
  perhaps_die(step, 1)
  optimizer:step(1 + math.random())
  optimizer:zero_grad()
  log.step { loss = sharding.weighted_mean(loss:item(), 1) }
  perhaps_die(step, 2)
end

local all = { tostring(math.random()), torch.randn({ 2 }) }
for _, p in ipairs(model:parameters()) do all[#all + 1] = p:detach() end
for _, state in ipairs(optimizer:state_dict().states) do
  for _, name in ipairs { "step", "exp_avg", "exp_avg_sq" } do all[#all + 1] = state[name] end
end
print("final bits of rank " .. dist.rank() .. ": " .. table.concat({ files.checksum_of(all) }, " "))
