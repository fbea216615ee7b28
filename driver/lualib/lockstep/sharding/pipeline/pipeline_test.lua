-- Models whose layers are stages on several ranks train as one rank does with the whole model, in float64.

local dist = require "lockstep.distributed"
local fixture = require "pipeline_fixture"
local grids = require "lockstep.sharding.grid"
local optim = require "lockstep.optim"
local sharding = require "lockstep.sharding"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local WORLD = dist.world_size()

--- The grids of this number of ranks: with 4, pipelines with replicas, and with layers in parts.
local GRIDS = { [2] = { { pp = 2 } }, [3] = { { pp = 3 } }, [4] = { { pp = 2, dp = 2 }, { pp = 2, tp = 2 } } }

local made = {}
local function grid_of(sizes)
  local key = ("pp %d tp %d"):format(sizes.pp, sizes.tp or 1)
  made[key] = made[key] or grids.grid(sizes)
  return made[key]
end

local ORDERS = { { order = "1f1b" }, { order = "all_forwards_first" }, { order = "interleaved", chunks = 2 },
  { order = "all_forwards_first", chunks = 2 } }

local function name_of(sizes, o)
  return ("pp%d_tp%d_%s_%d"):format(sizes.pp, sizes.tp or 1, o.order, o.chunks or 1)
end

local function compare(kind, model_options, sizes, o, seed)
  local grid, draw = grid_of(sizes), fixture.drawer(seed)
  local whole = fixture.build(kind, model_options)
  local model = fixture.divide(fixture.build(kind, model_options), grid, o)
  local steps = {}
  for i = 1, 3 do steps[i] = fixture.step_of(draw, grid.dp, draw(5)) end

  local losses, norms = fixture.train_alone(fixture.build(kind, model_options), steps)
  local trained = fixture.build(kind, model_options)
  fixture.train_alone(trained, steps)
  local own_losses, own_norms = fixture.train(model, steps, grid:rank "dp" + 1, whole)

  for i = 1, #steps do
    t.near(own_losses[i], losses[i], 1e-10, "loss " .. i)
    t.near(own_norms[i], norms[i], 1e-10, "norm " .. i)
  end
  fixture.compare_parameters(model, trained, 1e-10)
  return model, grid
end

for _, sizes in ipairs(GRIDS[WORLD]) do
  for i, o in ipairs(ORDERS) do
    t.test("StagesTrainAsOneRank_" .. name_of(sizes, o), function()
      compare("qwen3", { layers = 2 * WORLD }, sizes, o, i)
    end)

    t.test("CopiesOfATiedEmbeddingStayEqualBitByBit_" .. name_of(sizes, o), function()
      local model, grid = compare("llama", { layers = 2 * sizes.pp, tied = true }, sizes, o, 10 + i)

      if not model.tied then return end
      local copies = dist.all_gather(model.tied:detach(), { group = model.tied_group })
      t.truthy(torch.equal(copies[1], copies[2]))
      local rows = dist.all_gather(model.tied:detach(), { group = grid:group "dp_cp" })
      for _, row in ipairs(rows) do t.truthy(torch.equal(row, rows[1])) end
    end)

    t.test("BalanceLossesOfAllStagesAreInTheLoss_" .. name_of(sizes, o), function()
      compare("qwen3_moe", { layers = 2 * sizes.pp }, sizes, o, 20 + i)
    end)
  end
end

-- Layers in parts, and tokens ------------------------------------------------------------------------------

for i, kind in ipairs(WORLD == 4 and { "llama", "qwen3_moe" } or {}) do
  t.test("StagesWithSplitTokensTrainAsOneRank_" .. kind, function()
    compare(kind, { layers = 4, tied = kind == "llama" }, { pp = 2, tp = 2 }, { order = "1f1b", sequence = true },
      40 + i)
    compare(kind, { layers = 4 }, { pp = 2, tp = 2 }, { order = "interleaved", chunks = 2, sequence = true }, 42 + i)
  end)
end

-- Shards along dp ------------------------------------------------------------------------------------------

for _, o in ipairs(WORLD == 4 and ORDERS or {}) do
  t.test("ShardedStagesTrainAsOneRank_" .. name_of({ pp = 2 }, o), function()
    local sharded = { order = o.order, chunks = o.chunks, fully_shard = {} }
    compare("qwen3_moe", { layers = 4 }, { pp = 2, dp = 2 }, sharded, 31)
    compare("llama", { layers = 5, tied = true }, { pp = 2, dp = 2 }, sharded, 32)
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

for _, o in ipairs(ORDERS) do
  t.test("FrozenStagesGetNoGradient_" .. name_of(GRIDS[WORLD][1], o), function()
    local grid, draw = grid_of(GRIDS[WORLD][1]), fixture.drawer(5)
    local options = { layers = 2 * grid.pp }
    local whole, reference = fixture.build("llama", options), fixture.build("llama", options)
    local model = fixture.divide(fixture.build("llama", options), grid, o)
    local last = 2 * grid.pp - 1
    freeze_before(reference, last)
    freeze_before(model, last)
    local steps = { fixture.step_of(draw, grid.dp, 3), fixture.step_of(draw, grid.dp, 2) }

    local losses, norms = fixture.train_alone(reference, steps)
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

-- The loops ------------------------------------------------------------------------------------------------

t.test("GradientsFromBeforeTheStepAreKept", function()
  local grid, draw = grid_of(GRIDS[WORLD][1]), fixture.drawer(6)
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
  local grid, draw = grid_of(GRIDS[WORLD][1]), fixture.drawer(7)
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
  local grid, draw = grid_of(GRIDS[WORLD][1]), fixture.drawer(8)
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
  local grid = grid_of(GRIDS[WORLD][1])
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
  local grid, draw = grid_of(GRIDS[WORLD][1]), fixture.drawer(9)
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
