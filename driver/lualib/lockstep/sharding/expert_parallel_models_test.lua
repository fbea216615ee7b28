--- What else goes with experts on several ranks: saving, loading, evaluation, memory, mistakes.

local dist = require "lockstep.distributed"
local fixture = require "lockstep.sharding.parallelize_fixture"
local models = require "lockstep.models"
local optim = require "lockstep.optim"
local plain = require "lockstep.plain"
local run = require "lockstep.run"
local runs = require "lockstep.sharding.grid_runs_fixture"
local sharding = require "lockstep.sharding"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local WORLD = dist.world_size()

t.test("ARankHoldsItsShareOfTheExperts", function()
  local grid = sharding.grid { ep = 2 }
  local model = sharding.parallelize(fixture.build("qwen3_moe", 1), grid)
  for name, shard in model:named_parameters() do
    if name:find "experts%.down_proj" then
      -- 4 experts of 16 x 12, each element on one rank.
      t.equal(dist.all_reduce(torch.tensor(shard:numel())):item(), 4 * 16 * 12, name)
      t.truthy(shard:numel() < 4 * 16 * 12, name)
    end
  end
end)

t.test("SavedFoldersHaveWholeExperts", function()
  for i, kind in ipairs { {}, false } do
    local net = fixture.build("qwen3_moe", 40 + i)
    local whole = {}
    for name, p in net:named_parameters() do whole[name] = p:detach():clone() end
    local model = sharding.parallelize(net, sharding.grid { ep = 2 }, { fully_shard = kind })
    local folder = run.dir .. "/experts" .. i

    models.save(model, folder)

    local loaded = models.load(folder)
    for name, value in pairs(loaded:state_dict()) do t.equal(torch.equal(value, whole[name]), true, name) end
  end
end)

t.test("AWholeStateIsLoadedByEveryRank", function()
  local alone = fixture.build("qwen3_moe", 5)
  local grid = sharding.grid { ep = 2 }
  local model = sharding.parallelize(fixture.build("qwen3_moe", 6), grid)

  model:load_state_dict(alone:state_dict())

  fixture.same(model:state_dict(), alone:state_dict(), "loaded")
end)

--- Grids of a mixture, with experts on several ranks and without.
local function rows_of(use) return runs.of("expert_parallel_models", use, WORLD) end

t.test("AStateGoesOnWithOtherNumbersOfRanksForExperts", function()
  local _, _, alone = fixture.train_alone("qwen3_moe", 5, WORLD, 3)
  local rows = rows_of "state"
  for first = 2, #rows do
    local grid = sharding.grid(rows[first].sizes)
    local model = sharding.parallelize(fixture.build("qwen3_moe", 5), grid, rows[first].options)
    local optimizer = fixture.new_optimizer(model:parameters())
    fixture.train(model, optimizer, grid, { form = "qwen3_moe", seed = 5, rows = WORLD, steps = 1 })
    run:state { model = model, optimizer = optimizer }
    run:save { step = first }

    for i, one in ipairs(rows) do
      local its_grid = sharding.grid(one.sizes)
      local again = sharding.parallelize(fixture.build("qwen3_moe", 6), its_grid, one.options)
      local its_optimizer = fixture.new_optimizer(again:parameters())
      run:state { model = again, optimizer = its_optimizer }
      t.equal(run:resume(), first)
      fixture.train(again, its_optimizer, its_grid,
        { form = "qwen3_moe", seed = 5, rows = WORLD, first = 2, steps = 3 })
      fixture.same(fixture.whole(again), alone:state_dict(), ("grid %d after %d"):format(i, first))
    end
  end
end)

t.test("EachRankReadsItsExpertsOfAFolder", function()
  local alone = fixture.build("qwen3_moe", 11)
  local path = dist.all_gather_object(run.dir .. "/folder")[1]
  models.save(alone, path)

  for i, one in ipairs(rows_of "folder") do
    local grid = sharding.grid(one.sizes)
    local model = models.load(path, { dtype = torch.float64, grid = grid, parallel = one.options })
    t.equal(fixture.whole(model), alone:state_dict(), "grid " .. i)
    fixture.train(model, fixture.new_optimizer(model:parameters()), grid, { form = "qwen3_moe", seed = 11, steps = 1 })
  end
end)

t.test("RanksGenerateWhatOneRankDoes", function()
  local alone = fixture.build("qwen3_moe", 7)
  local prompts, options = { { 3, 1, 4, 1 }, { 5 } }, { max_new_tokens = 5, temperature = 0.8, seed = 2 }
  local expected = models.generate(alone, prompts, options)
  for i, one in ipairs(rows_of "generation") do
    local model = sharding.parallelize(fixture.build("qwen3_moe", 7), sharding.grid(one.sizes), one.options)
    t.equal(models.generate(model, prompts, options), expected, "grid " .. i)
  end
end)

t.test("EvaluationsAreThoseOfOneRank", function()
  local grid = sharding.grid { ep = 2 }
  local alone = fixture.build("qwen3_moe", 7)
  local batches = fixture.batches("qwen3_moe", 7, 1, WORLD, 3)
  local sum, count = 0, 0
  for row, own in ipairs(batches) do
    for i, batch in ipairs(own) do
      if i <= 3 - row % 2 then -- not equally many on each rank
        local loss, tokens = alone:loss(batch)
        sum, count = sum + loss:item(), count + tokens
      end
    end
  end
  local model = sharding.parallelize(fixture.build("qwen3_moe", 7), grid)
  local own, i = batches[grid:rank "dp" + 1], 0
  local mine = 3 - (grid:rank "dp" + 1) % 2

  local mean = sharding.evaluate(model, function()
    i = i + 1
    return i <= mine and own[i] or nil
  end, function(batch) return model(batch, "loss") end)

  t.near(torch.is_tensor(mean) and mean:item() or mean, sum / count, 1e-10)
end)

t.test("StepsHoldNoMemory", function()
  local model = sharding.parallelize(fixture.build("qwen3_moe", 1), sharding.grid { ep = 2 })
  local batch = fixture.batches("qwen3_moe", 1, 1, 1, 1)[1][1]
  t.memory_is_flat(function()
    model(batch, "loss"):backward()
    optim.clip_grad_norm(model:parameters(), 1)
    model:zero_grad()
  end)
end)

t.test("MistakesAreNamed", function()
  local grid = sharding.grid { ep = 2 }
  t.raises("sharding.parallelize: ep is 2, but Qwen3ForCausalLM has no mixture of experts", sharding.parallelize,
    fixture.build("qwen3", 1), grid)
  t.raises("sharding.parallelize: data_parallel has no options where ep is 2", sharding.parallelize,
    fixture.build("qwen3_moe", 1), grid, { fully_shard = false, data_parallel = {} })
  local odd = models.build(plain.copy(fixture.CONFIGS.qwen3_moe, { num_experts = 3 }))
  t.raises('sharding.parallelize: "model.layers.0.mlp.experts": 3 experts cannot be divided by ep 2',
    sharding.parallelize, odd, grid)
end)
