--- Models of sharding.parallelize are saved whole, go on in other grids, and generate and evaluate as one rank.

local dist = require "lockstep.distributed"
local fixture = require "lockstep.sharding.parallelize_fixture"
local models = require "lockstep.models"
local run = require "lockstep.run"
local runs = require "lockstep.sharding.grid_runs_fixture"
local sharding = require "lockstep.sharding"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local WORLD = dist.world_size()

local function rows_of(use) return runs.of("parallelize_state", use, WORLD) end

local function make(form, seed, one)
  local grid = sharding.grid(one.sizes)
  local model = sharding.parallelize(fixture.build(form, seed), grid, one.options)
  return model, fixture.new_optimizer(model:parameters()), grid
end

for _, form in ipairs { "qwen3_few_kv", "qwen3_vl", "phi3" } do
  t.test("AStateGoesOnInEveryOtherGrid_" .. form, function()
    local _, _, plain = fixture.train_alone(form, 5, 4, 3)
    torch.manual_seed(#form)
    local rows, can_begin = rows_of "state", {}
    for _, one in ipairs(rows) do -- the two heads of keys and values of phi3 are not for four ranks
      if form ~= "phi3" or one.sizes.tp < 4 then can_begin[#can_begin + 1] = one end
    end
    local first = can_begin[torch.randint(#can_begin, {}):item() + 1]
    local model, optimizer, grid = make(form, 5, first)
    fixture.train(model, optimizer, grid, { form = form, seed = 5, rows = 4, steps = 1 })
    run:state { model = model, optimizer = optimizer }
    run:save { step = 1 }
    local saved = fixture.whole(model)

    for _, one in ipairs(rows) do
      if one.family == form then
        local again, its_optimizer, its_grid = make(form, 6, one)
        run:state { model = again, optimizer = its_optimizer }
        t.equal(run:resume(), 1)
        t.equal(fixture.whole(again), saved, runs.name(one))
        fixture.train(again, its_optimizer, its_grid, { form = form, seed = 5, rows = 4, first = 2, steps = 3 })
        fixture.same(fixture.whole(again), plain:state_dict(), runs.name(one))
      end
    end
  end)
end

for i, one in ipairs(rows_of "generation") do
  local form = one.family
  t.test("AFolderGenerationAndEvaluationAreThoseOfOneRank_" .. runs.name(one), function()
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

for _, one in ipairs(rows_of "folder") do
  local form = one.family
  t.test("EachRankReadsItsPartsOfAFolder_" .. runs.name(one), function()
    local plain = fixture.build(form, 11)
    local path = dist.all_gather_object(run.dir .. "/folder_" .. runs.name(one))[1]
    models.save(plain, path)
    local grid = sharding.grid(one.sizes)
    local model = models.load(path, { dtype = torch.float64, grid = grid, parallel = one.options })
    t.equal(fixture.whole(model), plain:state_dict())
    local built, optimizer = make(form, 11, one)
    local losses, norms = fixture.train(built, optimizer, grid, { form = form, seed = 11, steps = 1 })
    local own_losses, own_norms = fixture.train(model, fixture.new_optimizer(model:parameters()), grid,
      { form = form, seed = 11, steps = 1 })
    fixture.same(own_losses, losses, "loss")
    fixture.same(own_norms, norms, "norm")
  end)
end

t.test("AFolderOnAGridTakesNoOtherOptions", function()
  t.raises("parallel is for a grid", models.load, "x", { parallel = {} })
  t.raises("shard is not for a model on a grid", models.load, "x", { grid = sharding.grid {}, shard = {} })
end)

t.test("AWholeStateIsTakenBack", function()
  local plain = fixture.build("qwen3_few_kv", 8)
  for _, one in ipairs(rows_of "generation") do
    if one.options.fully_shard then
      local model = make("qwen3_few_kv", 9, one)
      model:load_state_dict(plain:state_dict())
      t.equal(model:state_dict(), plain:state_dict())
    end
  end
end)
