-- LoRA on several ranks: replicas, saving, resuming.

local dist = require "lockstep.distributed"
local lora = require "lockstep.lora"
local optim = require "lockstep.optim"
local run = require "lockstep.run"
local sharding = require "lockstep.sharding"
local t = require "lockstep.testing"
local tiny = require "tiny_fixture"
local torch = require "lockstep.torch"

local world = dist.world_size()
local OPTIONS = { r = 2, targets = "all-linear", dora = true, modules_to_save = { "lm_head" } }

--- One row of ids for each rank of `ranks`.
local function batch(step, rank)
  local generator = {}
  for i = 1, 6 do generator[i] = (7 * step + 3 * i + 5 * rank * i) % 11 end
  return torch.tensor(generator, { dtype = torch.int64 })
end

local function loss_of(model, ids) return (model(ids):pow(2)):mean() end

--- Trains replicas for some steps, or the model alone on the batches of all ranks.
local function train(model, optimizer, first, last, alone)
  for step = first, last do
    if alone then
      local sum = 0
      for rank = 0, world - 1 do sum = sum + loss_of(model, batch(step, rank)) / world end
      sum:backward()
    else
      loss_of(model, batch(step, dist.rank())):backward()
    end
    optimizer:step()
    optimizer:zero_grad()
  end
end

local function adapted(seed)
  torch.manual_seed(seed)
  local model = tiny.base()
  lora.apply(model, OPTIONS)
  return model
end

t.test("ReplicasLearnWhatOneModelLearnsFromAllBatches", function()
  local alone, replicas = adapted(1), sharding.data_parallel(adapted(1 + dist.rank()))
  local options = { lr = 1e-2, weight_decay = 0 }

  train(alone, optim.AdamW(alone:parameters(), options), 1, 5, true)
  train(replicas, optim.AdamW(replicas:parameters(), options), 1, 5)

  local state = replicas:state_dict()
  for name, tensor in pairs(alone:state_dict()) do t.near(state[name], tensor, 2e-5, name) end
  t.truthy(not torch.equal(state["lm_head.weight"], tiny.base().lm_head.weight:detach()))
end)

t.test("AShardedModelLearnsAndSavesTheSame", function()
  local alone, net = adapted(1), adapted(1)
  local sharded = sharding.fully_shard(net, { units = { "layers.*" } })
  local options = { lr = 1e-2, weight_decay = 0.1 }

  train(alone, optim.AdamW(optim.groups(alone), options), 1, 5, true)
  train(sharded, optim.AdamW(optim.groups(sharded), options), 1, 5)

  local state, folder = sharded:state_dict(), run.dir .. "/sharded"
  for name, tensor in pairs(alone:state_dict()) do t.near(state[name], tensor, 2e-5, name) end
  lora.save(sharded, folder)
  local fresh = tiny.base()
  lora.load(fresh, folder)
  for name, tensor in pairs(fresh:state_dict()) do t.equal(tensor, state[name], name) end
  local ids = batch(1, 0)
  t.near(lora.disabled(sharded, sharded, ids), tiny.base()(ids):detach(), 1e-5)
  t.near(sharded(ids):detach(), fresh(ids):detach(), 1e-5)
end)

t.test("SavingIsDoneByAllRanksAndReadByEach", function()
  local model = sharding.data_parallel(adapted(1))
  train(model, optim.SGD(model:parameters(), { lr = 0.1 }), 1, 2)
  local folder = run.dir .. "/adapter"

  lora.save(model, folder)

  local fresh = tiny.base()
  lora.load(fresh, folder)
  lora.load(model, folder) -- replicas that have adapters take them
  for name, tensor in pairs(model:state_dict()) do t.equal(fresh:state_dict()[name], tensor, name) end
  local ids = batch(1, 0)
  t.equal(lora.disabled(model, model, ids), tiny.base()(ids):detach())
end)

t.test("AFailureOfRankZerosDiskIsAnErrorOnAll", function()
  t.raises("lora.save: ", lora.save, adapted(1), "/proc/none/adapter")
end)

t.test("ReplicasAreAdaptedAfterTheyAreMade", function()
  local alone, replicas = tiny.base(), sharding.data_parallel(tiny.base())
  train(replicas, optim.SGD(replicas:parameters(), { lr = 0 }), 0, 0) -- with all parameters, which are frozen later
  replicas:zero_grad()
  torch.manual_seed(1)
  local count = lora.apply(alone, OPTIONS)
  torch.manual_seed(1 + dist.rank())

  t.equal(lora.apply(replicas, OPTIONS), count)

  for name, tensor in pairs(alone:state_dict()) do t.equal(replicas:state_dict()[name], tensor, name) end
  local options = { lr = 1e-2, weight_decay = 0 }
  train(alone, optim.AdamW(alone:parameters(), options), 1, 5, true)
  train(replicas, optim.AdamW(replicas:parameters(), options), 1, 5)
  for name, tensor in pairs(alone:state_dict()) do t.near(replicas:state_dict()[name], tensor, 2e-5, name) end

  local ids = batch(1, 0)
  local before = replicas(ids):detach()
  t.equal(lora.merge(replicas), count)
  t.near(replicas(ids):detach(), before, 1e-5)
  t.equal(#replicas:parameters(), #tiny.base():parameters())
end)

t.test("ReplicasReadAnAdapter", function()
  local alone, replicas = tiny.base(), sharding.data_parallel(tiny.base())
  t.equal(lora.load(replicas, tiny.FIXTURES .. "/plain"), lora.load(alone, tiny.FIXTURES .. "/plain"))
  t.equal(replicas(batch(1, 0)):detach(), alone(batch(1, 0)):detach())
end)

t.test("TheModuleInsideOfReplicasIsRefused", function()
  local replicas = sharding.data_parallel(tiny.base())
  for name, call in pairs {
    apply = lora.apply, load = function(model) lora.load(model, tiny.FIXTURES .. "/plain") end,
  } do
    t.raises("lora." .. name .. ": the module has replicas; give what sharding.data_parallel returned", call,
      replicas.module)
  end
end)

t.test("AResumedRunGoesOnWithTheSameBits", function()
  local function begin()
    local model = sharding.data_parallel(adapted(2))
    local optimizer = optim.AdamW(optim.groups(model, { weight_decay = 0.1 }), { lr = 1e-2 })
    local scaler = optim.GradScaler { init_scale = 4 }
    run:state { model = model, optimizer = optimizer, scaler = scaler }
    return model, optimizer, scaler
  end
  local model, optimizer, scaler = begin()
  train(model, optimizer, 1, 3)
  scaler.skipped = 5
  run:save { step = 3 }
  train(model, optimizer, 4, 6)
  local resumed, other, other_scaler = begin()

  t.equal(run:resume(), 3)
  train(resumed, other, 4, 6)

  t.equal(other_scaler.skipped, 5)
  for name, tensor in pairs(model:state_dict()) do t.equal(resumed:state_dict()[name], tensor, name) end
end)

t.test("TheStateOfFrozenWeightsIsNotKept", function()
  local model = adapted(1)
  local optimizer = optim.AdamW(model:parameters(), { lr = 1e-2 })
  train(model, optimizer, 1, 1, true)

  local kept = 0
  for i, state in ipairs(optimizer:state_dict().states) do
    t.equal(next(state) ~= nil, model:parameters()[i].requires_grad)
    kept = kept + (next(state) and 1 or 0)
  end
  t.equal(kept, 6 * 3 + 1)
end)
