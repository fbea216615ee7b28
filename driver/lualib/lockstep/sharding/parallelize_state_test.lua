--- Models of sharding.parallelize are saved whole, go on in other grids, and generate and evaluate as one rank.

local dist = require "lockstep.distributed"
local fixture = require "lockstep.sharding.parallelize_fixture"
local models = require "lockstep.models"
local random_rows = require "lockstep.state.rows"
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

-- Random numbers ------------------------------------------------------------------------------------------

local ADAPTER = { r = 2, targets = "all-linear", dropout = 0.3 }

local new_batches = fixture.batches

--- Leaves the generators as they are: the masks depend on them.
function fixture.batches(...)
  local state = torch.get_rng_state()
  local batches = new_batches(...)
  torch.set_rng_state(state)
  return batches
end

--- Makes a model that drops values, on a grid whose rows of dp are seeded by themselves.
local function make_dropping(sizes)
  local grid = sharding.grid(sizes)
  torch.manual_seed(1000)
  local model = sharding.parallelize(fixture.build("qwen3", 5, ADAPTER), grid, { sequence = sizes.tp ~= nil })
  local optimizer = fixture.new_optimizer(model:parameters())
  run:state { model = model, optimizer = optimizer }
  torch.manual_seed(100 + grid:rank "dp")
  local function train(first, steps)
    return (fixture.train(model, optimizer, grid, { form = "qwen3", seed = 5, first = first, steps = steps, rows = 4 }))
  end
  return train, grid
end

--- Returns the number that each rank draws next, and leaves the generators as they are.
local function next_numbers()
  local state = torch.get_rng_state()
  local number = torch.randint(2 ^ 40, {}, { dtype = torch.int64 }):item()
  torch.set_rng_state(state)
  return dist.all_gather_object(number)
end

t.test("ARowOfDpKeepsItsMasksWhereAStateGoesOn", function()
  local train, grid = make_dropping { tp = 2 }
  train(1, 1)
  run:save { step = 1 }
  local numbers, expected = next_numbers(), train(2, 3)
  t.truthy(numbers[1] == numbers[2] and numbers[1] ~= numbers[3])

  local again = make_dropping { tp = 2 }
  local _, said = t.listening(run.resume, run)
  t.equal({ next_numbers(), again(2, 3), said:find "run:resume: " }, { numbers, expected })

  -- As many rows: each has its generator on all of its ranks.
  again = make_dropping { cp = 2 }
  _, said = t.listening(run.resume, run)
  t.equal(next_numbers(), numbers)
  if dist.rank() == 0 then
    t.equal(said:match "run:resume: [^\n]*", "run:resume: the state is of tp 2 x dp 2, and this is cp 2 x dp 2; "
      .. "dropout drops other values than without the break")
  end
  again(2, 2)

  -- Other rows: ranks of one row draw the same, and those of two do not.
  for _, sizes in ipairs { { tp = 4 }, { tp = 1 } } do
    again = make_dropping(sizes)
    _, said = t.listening(run.resume, run)
    if dist.rank() == 0 then
      t.equal(said:match "run:resume: [^\n]*", "run:resume: the 4 ranks that saved had different random numbers; "
        .. (sizes.tp == 4 and "this row of dp starts a new sequence" or "4 ranks start new sequences"))
    end
    local own = next_numbers()
    t.equal({ own[1] == own[2], own[1] == own[4] }, { sizes.tp == 4, sizes.tp == 4 })
    again(2, 2)
  end
  t.equal(grid.dp, 2)
end)

t.test("ARankTakesTheRandomNumbersOfItsRow", function()
  local saved, own = { tp = 2, cp = 1, dp = 2, pp = 2 }, { tp = 1, cp = 2, dp = 2, pp = 2 }
  local sources = {}
  for rank = 0, 7 do sources[rank + 1] = random_rows.source(saved, own, rank) end
  t.equal(sources, { 0, 0, 2, 2, 4, 4, 6, 6 })
  t.equal(random_rows.source(saved, { tp = 1, cp = 1, dp = 2, pp = 1 }, 1), 2)
  for rank = 0, 7 do t.equal(random_rows.source(saved, saved, rank), rank) end
  t.equal(random_rows.source(saved, { tp = 1, cp = 1, dp = 4, pp = 2 }, 1), nil)
end)

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
