--- Code that tests of run:save and run:resume share: a run's folder for each test, and small objects that train.

local core = require "lockstep.core"
local dist = require "lockstep.distributed"
local nn = require "lockstep.nn"
local optim = require "lockstep.optim"
local run = require "lockstep.run"
local sharding = require "lockstep.sharding"
local torch = require "lockstep.torch"

local M = {}

local base, num_folders = run.dir, 0

--- Gives the test, or the next part of one, a run's folder of its own. Every rank calls it.
function M.new_folder()
  num_folders = num_folders + 1
  run.dir = base .. "/" .. num_folders
  core.make_folder(run.dir)
  dist.barrier()
  return run.dir .. "/state"
end

function M.write_file(path, text)
  local file = assert(io.open(path, "wb"))
  file:write(text)
  file:close()
end

--- Takes a folder away with its content, as a user does.
function M.remove_folder(path) assert(os.execute(("rm -r '%s'"):format(path)) == 0) end

local Net = nn.Module:subclass("Net")
M.Net = Net
function Net:init(hidden)
  self.embed, self.fc = nn.Embedding(5, hidden), nn.Linear(hidden, 5)
  self.scale = torch.ones({ hidden }) -- a buffer
  self.tied = self.embed.weight
end
function Net:forward(x) return self.fc(self.embed(x) * self.scale) end

--- `make`: the optimizer; default optim.AdamW.
function M.new_objects(hidden, make)
  local model = Net(hidden or 4)
  local groups = { { params = { model.embed.weight }, lr = 0.1 }, { params = model.fc:parameters() } }
  local optimizer = (make or optim.AdamW)(groups, { lr = 0.01 })
  return { model = model, optimizer = optimizer, data = sharding.dataset { size = 50, seed = 3 }, best = { loss = 9 } }
end

function M.train(objects, steps)
  local losses = {}
  for i = 1, steps do
    local x = torch.randint(5, { 8 }, { dtype = torch.int64 })
    local loss = nn.cross_entropy(objects.model(torch.dropout(x:double(), 0, true):long()), x) * (1 + math.random())
    loss:backward()
    optim.clip_grad_norm(objects.model:parameters(), 1)
    objects.optimizer:step(1 / i)
    objects.optimizer:zero_grad()
    losses[i] = loss:item() + objects.data()
  end
  return losses
end

function M.state_of(objects)
  return { objects.model:state_dict(), objects.optimizer:state_dict().states, objects.data:state(), objects.best }
end

--- Saves a state after each of `steps`, the objects trained between; returns them.
function M.save_at(steps)
  local objects = M.new_objects()
  run:state(objects)
  for _, step in ipairs(steps) do
    M.train(objects, 2)
    objects.best.step = step
    run:save { step = step }
  end
  return objects
end

return M
