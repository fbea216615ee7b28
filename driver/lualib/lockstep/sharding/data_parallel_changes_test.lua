--- Replicas whose parameters change between steps, and replicas whose weights drift apart.

local data_parallel = require "lockstep.sharding.data_parallel"
local dist = require "lockstep.distributed"
local nn = require "lockstep.nn"
local optim = require "lockstep.optim"
local sharding = require "lockstep.sharding"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local RANK, WORLD = dist.rank(), dist.world_size()
torch.set_default_dtype(torch.float64)

local Net = nn.Module:subclass("Net")
function Net:init()
  self.first = nn.Linear(4, 5)
  self.second = nn.Linear(5, 3)
end
function Net:forward(x)
  local y = self.second(torch.tanh(self.first(x)))
  return self.added and y + self.added(x) or y
end

local function net()
  torch.manual_seed(1)
  return Net()
end

local function rows(step, rank)
  torch.manual_seed(100 * step + rank)
  return torch.randn { 5, 4 }
end

--- Trains a plain net on the rows of all ranks, and replicas on each rank's own. Calls change(net, step) for both
--- before each step. It may return more parameters to train.
local function compare_training(options, change, opts)
  local o = opts or {}
  local whole, replicas = net(), sharding.data_parallel(o.prepare and o.prepare(net()) or net(), options)
  if o.prepare then o.prepare(whole) end
  local settings = { lr = 0.1, weight_decay = 0.1 }
  local optimizers = { { optim.AdamW(whole:parameters(), settings) },
    { optim.AdamW(replicas:parameters(), settings) } }
  local function backward(model, step, rank, scale)
    for micro = 1, o.micro_batches or 1 do
      local function pass()
        local loss = model(rows(10 * step + micro, rank)):pow(2):sum():mul(scale)
        if loss.requires_grad then loss:backward() end
      end
      if model == replicas and micro < (o.micro_batches or 1) then replicas:no_sync(pass) else pass() end
    end
  end
  for step = 1, 7 do
    for i, model in ipairs { whole, replicas.module } do
      local more = change(model, step)
      if more then table.insert(optimizers[i], optim.AdamW(more, settings)) end
    end
    for rank = 0, WORLD - 1 do backward(whole, step, rank, 1 / WORLD) end
    backward(replicas, step, RANK, 1)
    for _, both in ipairs(optimizers) do
      for _, optimizer in ipairs(both) do
        optimizer:step()
        optimizer:zero_grad()
      end
    end
    local found = replicas:state_dict()
    for name, p in pairs(whole:state_dict()) do t.near(found[name], p, 1e-12, ("step %d: %s"):format(step, name)) end
  end
end

local OPTIONS = { {}, { find_unused = true }, { static_graph = true }, { gradient_as_bucket_view = false },
  { compare_every = 0, bucket_mb = 1e-4 } }

for i, options in ipairs(OPTIONS) do
  for _, micro_batches in ipairs { 1, 3 } do
    t.test(("ParametersAreFrozenAndUnfrozenBetweenSteps_%d_%d"):format(i, micro_batches), function()
      compare_training(options, function(model, step)
        if step == 3 then model.first:requires_grad_(true) end
        if step == 5 then model.second:requires_grad_(false) end
        if step == 6 then model.second.bias:requires_grad_(true) end
      end, { micro_batches = micro_batches, prepare = function(model)
        model.first:requires_grad_(false)
        return model
      end })
    end)
  end
end

t.test("AllParametersMayBeUnfrozenLater", function()
  compare_training({}, function(model, step) model:requires_grad_(step > 2) end)
end)

t.test("AModuleThatIsAddedGetsRank0sValuesAndIsAveraged", function()
  compare_training({}, function(model, step)
    if step == 5 then model.added = nil end
    if step ~= 3 then return nil end
    torch.manual_seed(7)
    model.added = nn.Linear(4, 3)
    return model.added:parameters()
  end)
end)

t.test("AModuleThatIsAddedMayStartFromOtherValues", function()
  local replicas = sharding.data_parallel(net())
  replicas(rows(1, RANK)):sum():backward()
  torch.manual_seed(RANK)
  replicas.module.added = nn.Linear(4, 3)
  replicas.module.added.scale = torch.full({ 2 }, RANK)

  replicas(rows(2, RANK)):sum():backward()

  torch.manual_seed(0)
  t.equal(replicas.module.added.weight, nn.Linear(4, 3).weight)
  t.equal(replicas.module.added.scale, torch.zeros { 2 })
end)

t.test("OptimizersStillFindReplicasThatWereNotCalled", function()
  local replicas = sharding.data_parallel(net())
  replicas(rows(1, RANK)):sum():backward()
  replicas.module.added = nn.Linear(4, 3)
  replicas(rows(2, RANK)):sum():backward()
  local optimizer = optim.SGD(replicas.module.added:parameters(), { lr = 0.1 })
  replicas.module.unused = torch.ones { 2 }:requires_grad_(true)
  replicas(rows(3, RANK)):sum():backward()

  t.raises("gave no gradient to unused", optimizer.step, optimizer)
end)

-- A script that resumes makes its replicas as at the start, and unfreezes in its loop.
t.test("SavedBucketsWaitUntilTheirParametersAreTrained", function()
  local module, buckets = net(), { { 2 }, { 1, 3 }, { 0 } }
  module.second:requires_grad_(false)
  local resumed = sharding.data_parallel(module)
  local function buckets_of(replicas) return data_parallel.buckets_below(replicas.module)[""] end
  local own = buckets_of(resumed)

  data_parallel.set_buckets_below(resumed.module, { [""] = buckets })
  t.equal(buckets_of(resumed), own)
  resumed.module:requires_grad_(true)
  resumed(rows(1, RANK))

  t.equal(buckets_of(resumed), buckets)
end)

t.test("AParameterThatOneRankUnfreezesIsNamedOnEveryRank", function()
  local module = net()
  module.first.bias:requires_grad_(false)
  local replicas = sharding.data_parallel(module)
  replicas(rows(1, RANK)):sum():backward()
  if RANK == 1 then module.first.bias:requires_grad_(true) end

  local message = t.raises("the ranks hold different modules", replicas, rows(2, RANK))

  t.truthy(message:find("rank 0: first.bias: Double [5], frozen", 1, true), message)
  t.truthy(message:find("rank 1: first.bias: Double [5], trained", 1, true), message)
end)

t.test("ATensorThatOneRankReplacesIsNamedOnEveryRank", function()
  local replicas = sharding.data_parallel(net())
  replicas(rows(1, RANK)):sum():backward()
  if RANK == WORLD - 1 then replicas.module.first.bias = torch.ones({ 5 }):requires_grad_(true) end

  t.raises("rank 0: changes since the module was replicated: 0", replicas, rows(2, RANK))
end)

-- Drift -------------------------------------------------------------------------------------------------------

--- Takes steps with a learning rate for each rank; returns the error, and the number of steps that were taken.
local function train_apart(options, lr_of, num_steps)
  local replicas, done = sharding.data_parallel(net(), options), 0
  local optimizer = optim.SGD(replicas:parameters(), { lr = 0.1 })
  local ok, message = pcall(function()
    for step = 1, num_steps do
      replicas(rows(step, RANK)):pow(2):sum():backward()
      optimizer:step(lr_of(step))
      optimizer:zero_grad()
      done = step
    end
  end)
  return ok, tostring(message), done
end

t.test("ReplicasThatDriftApartAreNamed", function()
  local others = {}
  for rank = 0, WORLD - 2 do others[#others + 1] = tostring(rank) end
  local groups = ("{%s}, {%d}"):format(table.concat(others, ", "), WORLD - 1)

  local ok, message, done = train_apart({}, function() return RANK == WORLD - 1 and 0.5 or 1 end, 5)
  t.equal(ok, false)
  t.equal(done, 1)
  t.truthy(message:find("the replicas have drifted apart before pass 2", 1, true), message)
  t.truthy(message:find('"first.weight" is equal only among the ranks of each of ' .. groups, 1, true), message)
  t.truthy(message:find("and 3 more parameters differ. They were equal before pass 1", 1, true), message)
  t.equal(dist.all_gather_object(message:match "data_parallel: .*")[1], message:match "data_parallel: .*")
end)

t.test("DriftIsFoundInEveryMultipleOfCompareEvery", function()
  for _, case in ipairs { { 2, 4 }, { 4, 6 }, { 7, 8 }, { 9, 12 } } do -- the step of the drift, and of the error
    local from, found_in = case[1], case[2]
    local ok, message, done = train_apart({ compare_every = 6 },
      function(step) return step == from and RANK == 1 and 0 or 1 end, 14)
    t.equal(ok, false)
    t.equal(done, found_in - 1, message)
  end
  t.equal((train_apart({ compare_every = 0 }, function() return RANK + 1 end, 14)), true)
end)

t.test("OneElementOfAnyDtypeOrLayoutIsEnough", function()
  for _, dtype in ipairs { torch.float64, torch.float32, torch.bfloat16, torch.float16 } do
    for _, size in ipairs { 1, 2, 7, 8 } do
      local module = nn.Module:subclass("One")()
      module.w = torch.ones({ size, 3 }, { dtype = dtype }):t():requires_grad_(true)
      module.empty = torch.ones({ 0, 3 }, { dtype = dtype }):requires_grad_(true)
      local replicas = sharding.data_parallel(module, { broadcast_buffers = false })
      module.forward = function(m) return m.w:abs():sum() + m.empty:abs():sum() end
      replicas():backward()
      torch.no_grad(function()
        if RANK == 0 then module.w:select(0, 2):select(0, size - 1):mul_(1.01) end
      end)

      local message = t.raises("have drifted apart before pass 2", replicas)
      t.truthy(message:find('"w" is equal only among', 1, true), message)
      t.truthy(message:find("and no other parameter differs", 1, true), message)
    end
  end
end)
