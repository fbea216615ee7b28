-- run:save and run:resume on several ranks: the files that each rank writes, and the errors of ranks that do not agree.

local core = require "lockstep.core"
local data = require "lockstep.data"
local dist = require "lockstep.distributed"
local files = require "lockstep.core.files"
local nn = require "lockstep.nn"
local optim = require "lockstep.optim"
local run = require "lockstep.run"
local sharding = require "lockstep.sharding"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local new_folder = require("state_fixture").new_folder

local rank, world = dist.rank(), dist.world_size()

local Net = nn.Module:subclass("Net")
function Net:init(hidden)
  -- Not in the order of forward: the Reducer's first buckets follow this one, and later ones follow backward's.
  self.fc2 = nn.Linear(hidden, hidden)
  self.fc1 = nn.Linear(8, hidden)
  self.fc3 = nn.Linear(hidden, 8)
end
function Net:forward(x) return self.fc3(torch.tanh(self.fc2(torch.tanh(self.fc1(x))))) end

local function train(model, optimizer, steps)
  for _ = 1, steps do
    model(torch.randn({ 4, 8 })):square():mean():backward()
    optimizer:step()
    optimizer:zero_grad()
  end
end

-- Files ---------------------------------------------------------------------------------------------

t.test("RanksShareTheWritingAndEachTensorIsWrittenOnce", function()
  local root = new_folder()
  local model = sharding.data_parallel(Net(16))
  run:state { model = model, optimizer = optim.AdamW(model:parameters()) }
  run:save { step = 1 }

  local total, sizes, seen = 0, {}, {}
  for i = 1, world do
    sizes[i] = 0
    for _, kind in ipairs { "model", "state" } do
      local name = ("%s/step-00000001/%s-%05d-of-%05d.safetensors"):format(root, kind, i, world)
      for tensor_name, tensor in pairs(data.safetensors(name)) do
        t.truthy(not seen[tensor_name], tensor_name .. " was written twice")
        seen[tensor_name] = true
        if not tensor_name:match("^lockstep%.") then
          sizes[i] = sizes[i] + tensor:numel() * 4
          total = total + tensor:numel() * 4
        end
      end
    end
  end
  local expected = 3 * 4 * model:num_parameters()
  for _, state in ipairs(optim.AdamW(model:parameters()):state_dict().states) do
    expected = expected + state.step:numel() * 4
  end
  t.equal(total, expected)
  for i = 1, world do t.near(sizes[i], total / world, 0.2 * total, "bytes of rank " .. i - 1) end
end)

t.test("ValuesThatDifferOverRanksAreRestoredOnEach", function()
  new_folder()
  torch.manual_seed(100 + rank)
  math.randomseed(200 + rank)
  local own = { rank = rank, waiting = { torch.full({ 2 }, rank) } }
  run:state { own = own, shared = { 1, 2 } }
  run:save { step = 1 }
  local expected = { torch.randn({ 2 }), math.random() }
  own.rank, own.waiting = nil, nil
  torch.manual_seed(1)
  math.randomseed(1)

  run:resume()

  t.equal(own, { rank = rank, waiting = { torch.full({ 2 }, rank) } })
  t.equal({ torch.randn({ 2 }), math.random() }, expected)
end)

-- Where ranks add up ----------------------------------------------------------------------------------

--- The weights after some steps on the same data, from `model` as it stands.
local function weights_after(model, optimizer, seed)
  torch.manual_seed(seed + rank)
  train(model, optimizer, 3)
  local weights = {}
  for _, p in ipairs(model:parameters()) do weights[#weights + 1] = p:detach():clone() end
  return weights
end

--- Trains a model for some steps and saves it; returns its weights some steps later, without a break, and what it had
--- when it was saved.
local function undisturbed(opts)
  torch.manual_seed(5)
  local model = sharding.data_parallel(Net(37), opts)
  local optimizer = optim.AdamW(model:parameters(), { lr = 0.1 })
  train(model, optimizer, 4)
  run:state { model = model.module, optimizer = optimizer }
  run:save { step = 4 }
  local weights, states = {}, { states = {} }
  for name, tensor in pairs(model:state_dict()) do weights[name] = tensor:clone() end
  for i, state in ipairs(optimizer:state_dict().states) do
    states.states[i] = {}
    for name, tensor in pairs(state) do states.states[i][name] = tensor:clone() end
  end
  return weights_after(model, optimizer, 50), weights, states
end

t.test("ReplicasAddUpInTheSameOrderAfterAResume", function()
  for i, opts in ipairs { {}, {}, { static_graph = true }, { static_graph = true }, { find_unused = true } } do
    local is_replicated_first = i % 2 == 1
    new_folder()
    local expected = undisturbed(opts)
    local net = Net(37)
    local model = is_replicated_first and sharding.data_parallel(net, opts)
    local optimizer = optim.AdamW(net:parameters(), { lr = 0.1 })
    run:state { model = net, optimizer = optimizer }

    run:resume()
    model = model or sharding.data_parallel(net, opts)

    t.equal(weights_after(model, optimizer, 50), expected, "case " .. i)
  end
end)

-- On two ranks a + b is b + a; on three, (a + b) + c is not a + (b + c), and the Reducer's first buckets are others.
t.test("WeightsAloneWouldAddUpInAnotherOrder", function()
  new_folder()
  local expected, weights, states = undisturbed()
  local model = sharding.data_parallel(Net(37))
  local optimizer = optim.AdamW(model:parameters(), { lr = 0.1 })
  model:load_state_dict(weights)
  optimizer:load_state_dict(states)

  local same = true
  for i, weight in ipairs(weights_after(model, optimizer, 50)) do same = same and torch.equal(weight, expected[i]) end

  t.equal(same, world == 2)
end)

t.test("BucketsThatDoNotHoldEachParameterOnceAreRefused", function()
  local replicas = sharding.data_parallel(nn.Linear(2, 2)).replicas
  t.equal(#replicas:buckets(), 1)
  t.raises("hold 1 of 2 trained parameters", replicas.set_buckets, replicas, { { 1 } })
  t.raises("hold 0, which is none of the 2 trained parameters, or is there twice", replicas.set_buckets, replicas,
    { { 0 }, { 1, 0 } })
  t.raises("which is none of the 2", replicas.set_buckets, replicas, { { 0, 1, -1 } })
end)

t.test("WhereOtherParametersAreTrainedTheirBucketsAreNew", function()
  new_folder()
  local net = Net(4)
  run:state { model = sharding.data_parallel(net) }
  run:save { step = 1 }
  local frozen = Net(4)
  frozen.fc1:requires_grad_(false)
  local model = sharding.data_parallel(frozen)
  run:state { model = frozen }

  t.equal(run:resume(), 1)
  model(torch.randn({ 4, 8 })):sum():backward()

  t.equal(frozen.fc1.weight.grad, nil)
  t.equal(frozen.fc1.weight:detach(), net.fc1.weight:detach())
end)

-- Ranks that do not agree -----------------------------------------------------------------------------

t.test("RanksThatHoldOtherTensorsAreNamed", function()
  new_folder()
  run:state { model = nn.Linear(2, rank == 1 and 3 or 2) }
  t.raises("run:save: ranks 0 and 1 do not hold the same tensors: rank 0 has bias torch.float32 {2} where rank 1 has "
    .. "bias torch.float32 {3}", run.save, run, { step = 1 })
end)

t.test("DifferentRegistrationsAreAnErrorAtOnce", function()
  new_folder()
  t.raises("run:state: ranks do not agree: every is 2 on rank 0, and 3 on rank 1", run.state, run, { best = {} },
    { every = rank == 1 and 3 or 2 })
  t.raises("run:state: ranks do not agree: every is none on rank 0, and 3 on rank 1", run.state, run, { best = {} },
    { every = rank == 1 and 3 or nil })
  t.raises("keep is 3 on rank 0, and 4 on rank 1", run.state, run, { best = {} }, { keep = rank == 1 and 4 or 3 })
  t.raises("objects is a, b on rank 0, and b on rank 1", run.state, run, { a = rank ~= 1 and {} or nil, b = {} })
end)

t.test("RanksThatSaveOtherStepsAreNamed", function()
  local root = new_folder()
  run:state { best = {} }
  t.raises("run:save: rank 1 saves after 5 steps, and rank 0 after 4", run.save, run, { step = rank == 1 and 5 or 4 })
  t.equal(files.list(root), {})
end)

t.test("ReplicasThatAreUnlikeAreAnErrorOnAll", function()
  new_folder()
  local model = nn.Linear(2, 2)
  torch.no_grad(function() model.bias:fill_(rank) end)
  model.weight:detach():fill_(1)
  run:state { model = model }

  t.raises('run:save: "bias" holds other values on rank 1 than on rank 0', run.save, run, { step = 1 })
end)

t.test("AFailureOfOneRankIsAnErrorOnAll", function()
  local root = new_folder()
  run:state { own = { value = rank == 1 and print or 1 } }
  t.raises('run:save: rank 1: "own": value.value is a function', run.save, run, { step = 1 })
  t.equal(files.list(root), {})

  run:state { own = {} }
  dist.barrier()
  if rank == 0 then core.write_file(root, { "a file where the folder should be" }) end
  dist.barrier()
  t.raises("run:save: rank 0: cannot list " .. root, run.save, run, { step = 1 })
end)

t.test("ATornStateIsTornOnEveryRankWhicheverRankFindsIt", function()
  local root = new_folder()
  local best = { step = 1 }
  run:state { best = best }
  run:save { step = 1 }
  best.step = 2
  run:save { step = 2 }
  dist.barrier()
  if rank == 0 then
    local name = root .. ("/step-00000002/state-%05d-of-%05d.safetensors"):format(world, world)
    local file = assert(io.open(name, "ab"))
    file:write("x")
    file:close()
  end
  dist.barrier()
  local stderr = io.stderr
  io.stderr = { write = function() end } -- luacheck: ignore 122
  local step = run:resume()
  io.stderr = stderr -- luacheck: ignore 122

  t.equal({ step, best.step }, { 1, 1 })
end)

t.test("LoopsThatEndAtDifferentStepsAreNamedInsteadOfWaitedFor", function()
  new_folder()
  run.progress.resumed = nil
  run:state { best = {} }
  local left = 2 + rank
  local function loader()
    left = left - 1
    return left >= 0 or nil
  end

  t.raises("run:steps: the loop ends on rank 0 after 2 steps, but continues on rank 1", function()
    for _ in run:steps(loader) do dist.barrier() end
  end)
end)
