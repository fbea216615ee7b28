-- Models whose layers are stages on several ranks train as one rank does with the whole model, in float64.

local dist = require "lockstep.distributed"
local fixture = require "pipeline_fixture"
local grids = require "lockstep.sharding.grid"
local optim = require "lockstep.optim"
local runs = require "lockstep.sharding.grid_runs_fixture"
local sharding = require "lockstep.sharding"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local WORLD = dist.world_size()

--- A grid of this number of ranks: with 4, a pipeline with replicas.
local GRID = WORLD == 4 and { pp = 2, dp = 2 } or { pp = WORLD }

local made = {}
local function grid_of(sizes)
  local key = ("pp %d tp %d"):format(sizes.pp, sizes.tp or 1)
  made[key] = made[key] or grids.grid(sizes)
  return made[key]
end

local function compare(kind, model_options, sizes, o, seed)
  local grid, draw = grid_of(sizes), fixture.drawer(seed)
  local whole = fixture.build(kind, model_options)
  local model = fixture.divide(fixture.build(kind, model_options), grid, o)
  local steps = {}
  for i = 1, 3 do steps[i] = fixture.step_of(draw, grid.dp, draw(5)) end

  local trained = fixture.build(kind, model_options)
  local losses, norms = fixture.train_on_rank_0(trained, steps)
  local own_losses, own_norms = fixture.train(model, steps, grid:rank "dp" + 1, whole)

  for i = 1, #steps do
    t.near(own_losses[i], losses[i], 1e-10, "loss " .. i)
    t.near(own_norms[i], norms[i], 1e-10, "norm " .. i)
  end
  fixture.compare_parameters(model, trained, 1e-10)
  return model, grid
end

--- How many layers a model has: not a multiple of the stages where it is odd.
local function layers_of(row) return 2 * row.sizes.pp + (row.options.fully_shard and row.index % 2 or 0) end

for _, row in ipairs(runs.of("pipeline/pipeline", "train", WORLD)) do
  t.test("StagesTrainAsOneRank_" .. runs.name(row), function()
    local model, grid = compare(row.family, { layers = layers_of(row) }, row.sizes, row.options, row.index)

    -- Copies of a tied embedding stay equal bit by bit.
    if row.options.fully_shard or not model.tied then return end
    local copies = dist.all_gather(model.tied:detach(), { group = model.tied_group })
    t.truthy(torch.equal(copies[1], copies[2]))
    local rows = dist.all_gather(model.tied:detach(), { group = grid:group "dp_cp" })
    for _, copy in ipairs(rows) do t.truthy(torch.equal(copy, rows[1])) end
  end)
end

-- Frozen stages --------------------------------------------------------------------------------------------

--- Freezes all parameters but those of a layer, and those behind it.
local function freeze_before(model, layer)
  for name, p in model:named_parameters() do
    local index = tonumber(name:match "layers%.(%d+)%.")
    if name:find "embed_tokens" or index and index < layer then p:requires_grad_(false) end
  end
end

for _, row in ipairs(runs.of("pipeline/pipeline", "frozen", WORLD)) do
  t.test("FrozenStagesGetNoGradient_" .. runs.name(row), function()
    local grid, draw, o = grid_of(row.sizes), fixture.drawer(5), row.options
    local options = { layers = 2 * grid.pp }
    local whole, reference = fixture.build("llama", options), fixture.build("llama", options)
    local model = fixture.divide(fixture.build("llama", options), grid, o)
    local last = 2 * grid.pp - 1
    freeze_before(reference, last)
    freeze_before(model, last)
    local steps = { fixture.step_of(draw, grid.dp, 3), fixture.step_of(draw, grid.dp, 2) }

    local losses, norms = fixture.train_on_rank_0(reference, steps)
    local own_losses, own_norms = fixture.train(model, steps, grid:rank "dp" + 1, whole)

    for i = 1, #steps do
      t.near(own_losses[i], losses[i], 1e-10, "loss " .. i)
      t.near(own_norms[i], norms[i], 1e-10, "norm " .. i)
    end
    fixture.compare_parameters(model, reference, 1e-10)
    for _, list in pairs(model.schedules) do
      for _, op in ipairs(list.lists[1]) do
        if op.kind == "messages" and not o.chunks then t.equal(#op.receives, 0) end
      end
    end
  end)
end

--- Returns the names that a seed freezes: layers, or parameters of any layer, but at least one is trained.
local function frozen_names(net, draw)
  local names, frozen, of_layer, by_layer = {}, {}, {}, draw(2) == 1
  for name in net:named_parameters() do names[#names + 1] = name end
  for _, name in ipairs(names) do
    local layer = name:match "layers%.%d+%." or name
    of_layer[layer] = of_layer[layer] or draw(3)
    frozen[name] = (by_layer and of_layer[layer] or draw(3)) > 1
  end
  frozen[names[draw(#names)]] = nil
  return frozen
end

-- Stages without a trained parameter pass gradients on, or have no backward where no stage before them learns.
for seed = 1, 3 do
  t.test("PartsThatAreFrozenByNameLearnAsOnOneRank_" .. seed, function()
    local grid, draw = grid_of(GRID), fixture.drawer(100 * WORLD + seed)
    local kind, options = ({ "llama", "llama_tied", "qwen3_moe" })[seed], { layers = 2 * GRID.pp }
    local whole, reference = fixture.build(kind, options), fixture.build(kind, options)
    local model = fixture.divide(fixture.build(kind, options), grid, { order = seed == 2 and "interleaved" or "1f1b",
      chunks = seed == 2 and 2 or 1, fully_shard = seed == 3 and {} or false })
    local frozen, steps = frozen_names(whole, draw), {}
    for i = 1, 2 do steps[i] = fixture.step_of(draw, grid.dp, 3) end
    for _, net in ipairs { reference, model } do
      for name, p in net:named_parameters() do p:requires_grad_(not frozen[name]) end
    end

    local losses, norms = fixture.train_on_rank_0(reference, steps)
    local own_losses, own_norms = fixture.train(model, steps, grid:rank "dp" + 1, whole)

    for i = 1, #steps do
      t.near(own_losses[i], losses[i], 1e-10, "loss " .. i)
      t.near(own_norms[i], norms[i], 1e-10, "norm " .. i)
    end
    fixture.compare_parameters(model, reference, 1e-10)
  end)
end

t.test("AParameterThatOneReplicaOfAStageFreezesAloneIsNamed", function()
  if WORLD ~= 4 then return end
  local grid, draw = grid_of(GRID), fixture.drawer(13)
  local model = fixture.divide(fixture.build("llama", { layers = 2 }), grid, { order = "1f1b" })
  local step = fixture.step_of(draw, grid.dp, 1)
  for name, p in model:named_parameters() do
    if dist.rank() == 3 and name:find "layers.1.mlp.up_proj" then p:requires_grad_(false) end
  end

  t.raises('layers.1.mlp.up_proj.weight" is frozen on rank 3, and trained on rank 2', sharding.accumulate, model,
    step[grid:rank "dp" + 1], 10, function(b) return model(b, "loss") end)
end)

-- The loops ------------------------------------------------------------------------------------------------

t.test("GradientsFromBeforeTheStepAreKept", function()
  local grid, draw = grid_of(GRID), fixture.drawer(6)
  local options = { layers = grid.pp, tied = true }
  local whole, reference = fixture.build("llama", options), fixture.build("llama", options)
  local model = fixture.divide(fixture.build("llama", options), grid, { order = "1f1b" })
  local steps = { fixture.step_of(draw, grid.dp, 3), fixture.step_of(draw, grid.dp, 2) }
  local total = { fixture.count(whole, steps[1]), fixture.count(whole, steps[2]) }

  for i, step in ipairs(steps) do
    sharding.accumulate(model, step[grid:rank "dp" + 1], total[i], function(b) return model(b, "loss") end)
    for _, row in ipairs(step) do
      for _, batch in ipairs(row) do (reference:loss(batch) / total[i]):backward() end
    end
  end

  local expected = {}
  for name, p in reference:named_parameters() do expected[name] = p.grad end
  for name, p in model:named_parameters() do t.near(p.grad, expected[name], 1e-10, name) end
end)

t.test("FurtherSumsAndWeightsAreThoseOfTheFunction", function()
  local grid, draw = grid_of(GRID), fixture.drawer(7)
  local whole = fixture.build("qwen3", { layers = grid.pp })
  local model = fixture.divide(fixture.build("qwen3", { layers = grid.pp }), grid, { order = "1f1b" })
  local step = fixture.step_of(draw, grid.dp, 3)
  local total, expected, squares = fixture.count(whole, step), 0, 0
  for _, row in ipairs(step) do
    for _, batch in ipairs(row) do
      local sum = whole:loss(batch):item()
      expected, squares = expected + 0.5 * sum + 3, squares + sum ^ 2
    end
  end

  local loss, square = sharding.accumulate(model, step[grid:rank "dp" + 1], total, function(b)
    local sum, count = model(b, "loss")
    return 0.5 * sum + 3, count, sum:detach() ^ 2
  end)

  t.near(loss:item(), expected / total, 1e-10)
  t.near(square:item(), squares / total, 1e-10)
end)

t.test("EvaluateIsTheMeanOfTheWholeModel", function()
  local grid, draw = grid_of(GRID), fixture.drawer(8)
  local whole = fixture.build("qwen3_moe", { layers = 2 * grid.pp })
  local model = fixture.divide(fixture.build("qwen3_moe", { layers = 2 * grid.pp }), grid,
    { order = "interleaved", chunks = 2 })
  local rows, sum, count = {}, 0, 0
  for row = 1, grid.dp do
    rows[row] = {}
    for i = 1, 2 + row do
      rows[row][i] = fixture.micro_batch(draw)
      local s = whole:loss(rows[row][i])
      sum, count = sum + s:item() + 1, count + rows[row][i].input_ids:size(0)
    end
  end
  local i = 0
  local function next_batch()
    i = i + 1
    return rows[grid:rank "dp" + 1][i]
  end

  local loss, left_out = sharding.evaluate(model, next_batch, function(b)
    return model(b, "loss") + 1, b.input_ids:size(0)
  end)

  t.near(loss, sum / count, 1e-10)
  t.equal(left_out, 0)
  t.equal(model.module.training, true)
end)

t.test("EachRankHoldsItsStageAlone", function()
  local grid = grid_of(GRID)
  local net = fixture.build("llama", { layers = 2 * grid.pp })
  local whole, p_of = net:num_parameters(), {}
  for name, p in net:named_parameters() do p_of[name] = p end

  local model = fixture.divide(net, grid, { order = "1f1b" })

  local held = 0
  for _, p in pairs(p_of) do held = held + p:numel() end
  t.equal(held, model:num_parameters())
  local sum = torch.tensor(held, { dtype = torch.int64 })
  dist.all_reduce(sum, "sum", { group = grid:group "pp" })
  t.equal(sum:item(), whole)
end)

t.test("TheNormOfEveryKindIsThatOfTheWholeModel", function()
  local grid, draw = grid_of(GRID), fixture.drawer(9)
  local reference = fixture.build("llama", { layers = grid.pp, tied = true })
  local model = fixture.divide(fixture.build("llama", { layers = grid.pp, tied = true }), grid, { order = "1f1b" })
  local step = fixture.step_of(draw, grid.dp, 2)
  local total = fixture.count(reference, step)
  sharding.accumulate(model, step[grid:rank "dp" + 1], total, function(b) return model(b, "loss") end)
  for _, row in ipairs(step) do
    for _, batch in ipairs(row) do (reference:loss(batch) / total):backward() end
  end

  for _, p_norm in ipairs { 1, 2, math.huge } do
    local expected = optim.clip_grad_norm(reference:parameters(), 1e9, { p = p_norm })
    t.near(optim.clip_grad_norm(model:parameters(), 1e9, { p = p_norm }), expected, 1e-10)
    t.near(model:clip_grad_norm(1e9, { p = p_norm }), expected, 1e-10)
  end
end)
