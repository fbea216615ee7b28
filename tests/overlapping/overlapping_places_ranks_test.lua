--- Models whose modules and parameters overlap, trained on several ranks. Each rank has its own input.

local checkpoint = require "lockstep.checkpoint"
local dist = require "lockstep.distributed"
local fixture = require "overlapping_fixture"
local optim = require "lockstep.optim"
local sharding = require "lockstep.sharding"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

torch.set_num_threads(1) -- small tensors

local SEEDS, STEPS, WORLD = 8, 3, dist.world_size()

local function input(seed, step, rank) return fixture.input(10000 * step + 100 * seed + rank) end

--- Trains one model on the mean of all ranks' losses, by the gradients of the unfolded model. Returns its parameters.
local function expected(seed, frozen)
  local net = fixture.net(seed, { frozen = frozen })
  local optimizer = optim.AdamW(net:parameters(), { lr = 0.02 })
  for step = 1, STEPS do
    local gradients = fixture.expected(net, function(copy)
      local sum = 0
      for rank = 0, WORLD - 1 do sum = sum + fixture.loss(copy(input(seed, step, rank))) / WORLD end
      return sum
    end)
    for name, p in net:named_parameters() do p.grad = gradients[name] end
    optimizer:step()
  end
  return net:state_dict()
end

--- Trains each model as wrap(net, seed) does, and compares all its names with the expected.
local function check_training(name, wrap, frozen)
  t.test(name, function()
    for seed = 1, SEEDS do
      local model, call = wrap(fixture.net(seed, { frozen = frozen }), seed)
      local optimizer = optim.AdamW(model:parameters(), { lr = 0.02 })
      for step = 1, STEPS do
        fixture.loss(model(input(seed, step, dist.rank()), call)):backward()
        optimizer:step()
        optimizer:zero_grad()
      end

      local actual, truth = model:state_dict(), expected(seed, frozen)
      for key, tensor in pairs(truth) do t.near(actual[key], tensor, 1e-9, "seed " .. seed .. ": " .. key) end
      for key in pairs(actual) do t.truthy(truth[key], key .. " is too many") end
    end
  end)
end

check_training("DataParallel", function(net) return sharding.data_parallel(net) end)

check_training("DataParallelOfAStaticGraph", function(net)
  return sharding.data_parallel(net, { static_graph = true })
end)

check_training("DataParallelThatFindsUnused", function(net)
  return sharding.data_parallel(net, { find_unused = true })
end)

check_training("DataParallelWithRegions", function(net) return sharding.data_parallel(net), checkpoint.new() end)

check_training("FullyShardByBlocks", function(net) return sharding.fully_shard(net) end)

check_training("FullyShardAsOneUnit", function(net) return sharding.fully_shard(net, { units = {} }) end)

check_training("FullyShardWithRegions", function(net) return sharding.fully_shard(net), checkpoint.new() end)
