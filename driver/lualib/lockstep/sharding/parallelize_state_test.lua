--- Models of sharding.parallelize are saved whole, go on in other grids, and generate and evaluate as one rank.

local dist = require "lockstep.distributed"
local fixture = require "lockstep.sharding.parallelize_fixture"
local models = require "lockstep.models"
local run = require "lockstep.run"
local sharding = require "lockstep.sharding"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local WORLD = dist.world_size()

--- The grids of the world, with and without sharding.
local GRIDS = {}
for _, tp in ipairs { 1, 2, 4 } do
  if WORLD % tp == 0 then
    table.insert(GRIDS, { sizes = { tp = tp }, opts = { fully_shard = {}, sequence = tp == 2 } })
    table.insert(GRIDS, { sizes = { tp = tp }, opts = { fully_shard = false } })
  end
end

local function make(form, seed, one)
  local grid = sharding.grid(one.sizes)
  local model = sharding.parallelize(fixture.build(form, seed), grid, one.opts)
  return model, fixture.new_optimizer(model:parameters()), grid
end

for f, form in ipairs { "qwen3_few_kv", "qwen3_vl" } do
  t.test("AStateGoesOnInEveryOtherGrid_" .. form, function()
    local _, _, plain = fixture.train_alone(form, 5, 4, 3)
    torch.manual_seed(#form)
    local first = GRIDS[torch.randint(#GRIDS, {}):item() + 1]
    local model, optimizer, grid = make(form, 5, first)
    fixture.train(model, optimizer, grid, { form = form, seed = 5, rows = 4, steps = 1 })
    run:state { model = model, optimizer = optimizer }
    run:save { step = 1 }
    local saved = fixture.whole(model)

    for i = f, #GRIDS, 2 do
      local one = GRIDS[i]
      local again, its_optimizer, its_grid = make(form, 6, one)
      run:state { model = again, optimizer = its_optimizer }
      t.equal(run:resume(), 1)
      t.equal(fixture.whole(again), saved, "grid " .. i)
      fixture.train(again, its_optimizer, its_grid, { form = form, seed = 5, rows = 4, first = 2, steps = 3 })
      fixture.same(fixture.whole(again), plain:state_dict(), "grid " .. i)
    end
  end)
end

for i, one in ipairs(GRIDS) do
  local form = ({ "qwen3_moe", "qwen3_few_kv", "qwen3" })[i % 3 + 1]
  t.test(("AFolderGenerationAndEvaluationAreThoseOfOneRank_%d_%s"):format(i, form), function()
    local plain = fixture.build(form, 7)
    local model, _, grid = make(form, 7, one)

    local path = dist.all_gather_object(run.dir .. "/model" .. i)[1]
    models.save(model, path)
    t.equal(models.load(path, { dtype = torch.float64 }):state_dict(), plain:state_dict())

    local prompts, options = { { 3, 1, 4, 1 }, { 5 } }, { max_new_tokens = 5, temperature = 0.8, seed = 2 }
    local expected = models.generate(plain, prompts, options)
    t.equal(models.generate(model, prompts, options), expected)
    t.equal(model:full(function() return models.generate(model, prompts, options) end), expected)

    local batches = fixture.batches(form, 7, 1, 4, 1)
    local sum, next_row = 0, grid:rank "dp" + 1
    for _, row in ipairs(batches) do sum = sum + torch.no_grad(plain.loss, plain, row[1]):item() end
    local mean = sharding.evaluate(model, function()
      local row = batches[next_row]
      next_row = next_row + grid.dp
      return row and row[1]
    end, function(batch) return model(batch, "loss") end)
    t.truthy(math.abs(mean - sum / fixture.count(batches)) < 1e-10, ("%.17g"):format(mean))
  end)
end

for f, form in ipairs { "qwen3_tied", "qwen3_few_kv", "qwen3_moe", "qwen3_vl" } do
  t.test("EachRankReadsItsPartsOfAFolder_" .. form, function()
    local plain = fixture.build(form, 11)
    local path = dist.all_gather_object(run.dir .. "/folder_" .. form)[1]
    models.save(plain, path)
    for i = f % 2 + 1, #GRIDS, 2 do
      local one = GRIDS[i]
      local grid = sharding.grid(one.sizes)
      local opts = { dtype = torch.float64, grid = grid, parallel = one.opts }
      local model = models.load(path, opts)
      t.equal(fixture.whole(model), plain:state_dict(), "grid " .. i)
      local built, optimizer = make(form, 11, one)
      local losses, norms = fixture.train(built, optimizer, grid, { form = form, seed = 11, steps = 1 })
      local own_losses, own_norms = fixture.train(model, fixture.new_optimizer(model:parameters()), grid,
        { form = form, seed = 11, steps = 1 })
      fixture.same(own_losses, losses, "loss")
      fixture.same(own_norms, norms, "norm")
    end
  end)
end

t.test("AFolderOnAGridTakesNoOtherOptions", function()
  t.raises("parallel is for a grid", models.load, "x", { parallel = {} })
  t.raises("shard is not for a model on a grid", models.load, "x", { grid = sharding.grid {}, shard = {} })
end)

t.test("AWholeStateIsTakenBack", function()
  local plain = fixture.build("qwen3_few_kv", 8)
  for _, one in ipairs(GRIDS) do
    if one.opts.fully_shard then
      local model = make("qwen3_few_kv", 9, one)
      model:load_state_dict(plain:state_dict())
      t.equal(model:state_dict(), plain:state_dict())
    end
  end
end)
