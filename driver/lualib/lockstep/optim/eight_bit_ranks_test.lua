-- optim.AdamW8bit and optim.ScheduleFreeAdamW on shards: as on one rank, and from a state on any number of them.

local dist = require "lockstep.distributed"
local nn = require "lockstep.nn"
local optim = require "lockstep.optim"
local run = require "lockstep.run"
local sharding = require "lockstep.sharding"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

--- Its parts on two ranks have more than 4,096 elements, and do not begin where a block does.
local function net()
  torch.manual_seed(1)
  return nn.Sequential { nn.Linear(101, 131), nn.Linear(131, 3) }
end

local function train(model, optimizer, first, last, alone)
  for step = first, last do
    for rank = 0, dist.world_size() - 1 do
      if alone or rank == dist.rank() then
        local x = (torch.arange(5 * 101, { dtype = torch.float32 }) * (step + 3 * rank)):sin():view(5, 101)
        local loss = model(x):square():mean()
        ;(alone and loss / dist.world_size() or loss):backward()
      end
    end
    optimizer:step()
    optimizer:zero_grad()
  end
end

--- In one order on every rank.
local KINDS = { { "AdamW8bit", { lr = 1e-2 } }, { "ScheduleFreeAdamW", { lr = 1e-2, warmup_steps = 3 } } }

local saved_steps = 0

--- Saves as after a later step than before: tests share the run's folder.
local function save(model, optimizer)
  saved_steps = saved_steps + 1
  run:state { model = model, optimizer = optimizer }
  run:save { step = saved_steps }
end

for _, case in ipairs(KINDS) do
  local kind, o = unpack(case)
  local function make(model) return optim[kind](model:parameters(), o) end

  t.test("ShardsLearnAsOneRank_" .. kind, function()
    local plain, model = net(), sharding.fully_shard(net())
    train(plain, make(plain), 1, 6, true)

    train(model, make(model), 1, 6)

    for name, tensor in pairs(plain:state_dict()) do
      -- Blocks of a part are others than those of the whole.
      t.near(model:state_dict()[name], tensor, kind == "AdamW8bit" and 0.02 or 1e-5, name)
    end
  end)

  t.test("ARunGoesOnBitForBitOnShards_" .. kind, function()
    local model = sharding.fully_shard(net())
    local optimizer = make(model)
    train(model, optimizer, 1, 4)
    save(model, optimizer)
    train(model, optimizer, 5, 8)
    local expected = model:state_dict()
    local other = sharding.fully_shard(net())
    local again = make(other)

    run:state { model = other, optimizer = again }
    t.equal(run:resume(), saved_steps)

    train(other, again, 5, 8)
    for name, tensor in pairs(other:state_dict()) do t.truthy(torch.equal(tensor, expected[name]), name) end
  end)

  t.test("AStateOfShardsGoesOnInReplicas_" .. kind, function()
    local model = sharding.fully_shard(net())
    local optimizer = make(model)
    train(model, optimizer, 1, 4)
    save(model, optimizer)
    train(model, optimizer, 5, 6)
    local replicas = sharding.data_parallel(net())
    local again = make(replicas)

    run:state { model = replicas, optimizer = again }
    run:resume()

    train(replicas, again, 5, 6)
    local expected = model:state_dict()
    for name, tensor in pairs(replicas.module:state_dict()) do
      t.near(tensor, expected[name], kind == "AdamW8bit" and 0.02 or 1e-5, name)
    end
  end)
end

t.test("AdamWGoesOnFromAStateOf8Bits", function()
  local model = net()
  local optimizer = optim.AdamW8bit(model:parameters())
  train(model, optimizer, 1, 3, true)
  save(model, optimizer)
  local saved = optimizer:state_dict().states
  local other = net()
  local adamw = optim.AdamW(other:parameters())

  run:state { model = other, optimizer = adamw }
  run:resume()

  for i, p in ipairs(other:parameters()) do t.near(adamw.state[p].exp_avg, saved[i].exp_avg, 0) end
end)
