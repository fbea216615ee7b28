-- Trains on 12 rows a step, over all ranks, in micro-batches of 2, and prints which samples each step has taken.

local core = require "lockstep.core"
local core_state = require "lockstep.core.state"
local data = require "lockstep.data"
local dist = require "lockstep.distributed"
local log = require "lockstep.log"
local nn = require "lockstep.nn"
local optim = require "lockstep.optim"
local run = require "lockstep.run"
local sharding = require "lockstep.sharding"
local torch = require "lockstep.torch"

local BATCH, MICRO_BATCH = 12, 2
local config = run.config {
  steps = 12,
  every = 2,
  min = 1, max = 3,
  batch = BATCH,
  elastic = true, -- or each rank takes half of the batch, as a script for two ranks does
  parallel = "data_parallel",
  kill_steps = { -1 }, -- by start of the run: the step within which a rank kills itself
  hold_at = -1, -- at this step the second of two ranks stops
  wait_at = -1, -- at this step one rank alone waits for SIGTERM
  slow_ms = 0, -- that the second of two ranks works longer in each step
}
local C = require("ffi").C
require("ffi").cdef "int getpid(void); int kill(int, int); int pause(void);"
print("I am " .. dist.rank() .. " pid " .. C.getpid() .. " of " .. dist.world_size())
local micro_batches = BATCH / 2 / MICRO_BATCH
if config.elastic then
  local elastic = run.elastic { min = config.min, max = config.max }
  local rows
  rows, micro_batches = elastic:share(config.batch, MICRO_BATCH)
  assert(rows == micro_batches * MICRO_BATCH)
end
torch.set_default_dtype(torch.float64)
torch.manual_seed(3)

local inputs, targets, source = torch.randn({ 30, 4 }), torch.randn({ 30, 1 }), {}
for i = 1, 30 do source[i] = { row = i } end
local model = sharding.parallel(nn.Sequential { nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1) }, config.parallel)
local optimizer = optim.AdamW(model:parameters(), { lr = 1e-2 })
local dataset = sharding.dataset { size = 24, seed = 1 }
local loader = data.loader { source = source, seed = 2 }
run:state({ model = model, optimizer = optimizer, dataset = dataset, loader = loader }, { every = config.every })
run:resume()

local function next_index()
  local index = dataset()
  if index then return index end
  dataset:set_epoch(dataset.epoch + 1)
  return dataset()
end

local function next_step()
  local batches = {}
  for i = 1, micro_batches do
    batches[i] = {}
    for _ = 1, MICRO_BATCH do table.insert(batches[i], { dataset = next_index(), loader = loader().row }) end
  end
  return batches
end

local function loss_of(rows)
  local indices = {}
  for _, row in ipairs(rows) do
    indices[#indices + 1], indices[#indices + 2] = row.dataset - 1, row.loader - 1
  end
  local chosen = torch.tensor(indices, { dtype = torch.int64 })
  local loss = torch.mse_loss(model(inputs:index_select(0, chosen)), targets:index_select(0, chosen),
    { reduction = "sum" })
  return loss, #indices
end

for step, batches in run:steps(next_step, config.steps) do
  for _, rows in ipairs(batches) do
    for _, row in ipairs(rows) do print(("step %d took %d and %d"):format(step, row.dataset, row.loader)) end
  end
  if config.kill_steps[run.restarts + 1] == step and dist.rank() == dist.world_size() - 1 then
    C.kill(C.getpid(), 9)
  end
  local begun = core.now()
  if dist.rank() == 1 then while core.now() < begun + config.slow_ms / 1000 do end end
  if step == config.hold_at and dist.world_size() == 2 and dist.rank() == 1 then
    print("holding")
    repeat C.pause() until false
  end
  local loss = sharding.accumulate(model, batches, 2 * BATCH, loss_of)
  optimizer:step()
  optimizer:zero_grad()
  log.step { loss = loss:item() }
  if step == config.wait_at and dist.world_size() == 1 then
    print("waiting")
    repeat until core_state.sigterm_came()
  end
end
