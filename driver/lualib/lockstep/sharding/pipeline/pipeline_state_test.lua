-- Stages on several ranks are one model in files: its folder, and the state of a run.

local core = require "lockstep.core"
local dist = require "lockstep.distributed"
local fixture = require "pipeline_fixture"
local models = require "lockstep.models"
local optim = require "lockstep.optim"
local run = require "lockstep.run"
local sharding = require "lockstep.sharding"
local splits = require "lockstep.nn.splits"
local t = require "lockstep.testing"

local WORLD = dist.world_size()
local base = run.dir

--- The grids of this number of ranks: with 4, stages that are shared out, and layers in parts.
local CASES = {}
for i, kind in ipairs { "llama", "qwen3_moe" } do
  local options = { layers = 4, tied = kind == "llama" }
  if WORLD == 2 then
    CASES[i] = { name = kind, kind = kind, options = options, sizes = { pp = 2 },
      order = i == 1 and { order = "1f1b" } or { order = "interleaved", chunks = 2 } }
  else
    table.insert(CASES, { name = kind .. "_sharded", kind = kind, options = options, sizes = { pp = 2, dp = 2 },
      order = { order = "1f1b", fully_shard = {} } })
    if i == 2 then
      table.insert(CASES, { name = kind .. "_ep", kind = kind, options = options, sizes = { pp = 2, ep = 2 },
        order = { order = "interleaved", chunks = 2, fully_shard = {} } })
      table.insert(CASES, { name = kind .. "_cp", kind = kind, options = options, sizes = { pp = 2, cp = 2 },
        order = { order = "1f1b" } })
    end
    table.insert(CASES, { name = kind .. "_tp", kind = kind, options = options, sizes = { pp = 2, tp = 2 },
      order = { order = "interleaved", chunks = 2, sequence = true } })
  end
end

local function new_folder(name)
  run.dir = base .. "/" .. name
  core.make_folder(run.dir)
  dist.barrier()
end

local function new_pipeline(kind, options, grid, order)
  return fixture.divide(fixture.build(kind, options), grid, order)
end

--- Returns this rank's whole weights, by name.
local function whole_weights(model)
  local weights, state = {}, model:state_dict()
  for name, p in model:named_parameters() do
    local split = splits.of(p)
    weights[name] = (split and splits.whole(p, split) or state[name]):detach():clone()
  end
  return weights
end

local function steps_of(grid, seed, count)
  local draw, steps = fixture.drawer(seed), {}
  for i = 1, count do steps[i] = fixture.step_of(draw, grid.dp, 2) end
  return steps
end

for _, case in ipairs(CASES) do
  local kind, options, order, grid = case.kind, case.options, case.order, sharding.grid(case.sizes)

  t.test("AFolderHoldsTheWholeModel_" .. case.name, function()
    local expected, model = fixture.build(kind, options), new_pipeline(kind, options, grid, order)
    local path = dist.all_gather_object(base .. "/saved_" .. case.name)[1]

    models.save(model, path)

    local saved, count = models.load(path):state_dict(), 0
    for name, tensor in pairs(expected:state_dict()) do
      t.equal(saved[name], tensor, name)
      count = count + 1
    end
    for _ in pairs(saved) do count = count - 1 end
    t.equal(count, 0)
    -- And each rank reads its stage alone.
    local again = models.load(path, { grid = grid, parallel = { order = order.order, chunks = order.chunks or 1,
      fully_shard = order.fully_shard or false, sequence = order.sequence } })
    local weights = whole_weights(model)
    for name, weight in pairs(whole_weights(again)) do t.equal(weight, weights[name], name) end
    t.equal(again:num_parameters(), model:num_parameters())
    local step = steps_of(grid, 9, 1)
    local function loss_of(one)
      return sharding.accumulate(one, step[1][grid:rank "dp" + 1], fixture.count(expected, step[1]), function(b)
        return one(b, "loss")
      end)
    end
    t.equal(loss_of(again), loss_of(model))
  end)

  t.test("AStateGoesOnInAnotherGridWithTheSameBits_" .. case.name, function()
    new_folder("state_" .. case.name)
    local whole, model = fixture.build(kind, options), new_pipeline(kind, options, grid, order)
    local _, _, optimizer = fixture.train(model, steps_of(grid, 1, 2), grid:rank "dp" + 1, whole)
    run:state { model = model, optimizer = optimizer }
    run:save { step = 2 }
    local expected = whole_weights(model)

    -- One rank: the whole model, the same on every rank.
    options.seed = 2
    local alone = fixture.build(kind, options)
    local alone_optimizer = optim.AdamW(alone:parameters(), { lr = 0.01, weight_decay = 0.1 })
    run:state { model = alone, optimizer = alone_optimizer }
    t.equal(run:resume(), 2)
    local resumed = alone:state_dict()
    for name, p in pairs(expected) do t.equal(resumed[name], p, name) end
    -- Other stages: one chunk for each rank, or two.
    local other = new_pipeline(kind, options, grid, { order = "all_forwards_first", chunks = order.chunks and 1 or 2 })
    local other_optimizer = optim.AdamW(other:parameters(), { lr = 0.01, weight_decay = 0.1 })
    run:state { model = other, optimizer = other_optimizer }
    t.equal(run:resume(), 2)
    for name, p in pairs(whole_weights(other)) do t.equal(p, resumed[name]:detach(), name) end
    options.seed = nil

    -- And the next step is the same, with the moments.
    local steps = steps_of(grid, 3, 1)
    local loss = sharding.accumulate(other, steps[1][grid:rank "dp" + 1], fixture.count(whole, steps[1]),
      function(b) return other(b, "loss") end)
    optim.clip_grad_norm(other:parameters(), 0.5)
    other_optimizer:step()
    local total, sum = fixture.count(alone, steps[1]), 0
    for _, row in ipairs(steps[1]) do
      for _, batch in ipairs(row) do
        local own = alone:loss(batch) / total
        own:backward()
        sum = sum + own:item()
      end
    end
    optim.clip_grad_norm(alone:parameters(), 0.5)
    alone_optimizer:step()
    t.near(loss:item(), sum, 1e-10)
    fixture.compare_parameters(other, alone, 1e-10)
  end)

  t.test("AStateOfOneRankGoesOnInStages_" .. case.name, function()
    new_folder("alone_" .. case.name)
    local alone = fixture.build(kind, options)
    local _, _, optimizer = fixture.train_alone(alone, steps_of(grid, 4, 1))
    run:state { model = alone, optimizer = optimizer }
    run:save { step = 1 }
    options.seed = 5
    local model = new_pipeline(kind, options, grid, order)
    options.seed = nil
    run:state { model = model, optimizer = optim.AdamW(model:parameters(), { lr = 0.01, weight_decay = 0.1 }) }

    t.equal(run:resume(), 1)

    local expected = alone:state_dict()
    for name, p in pairs(whole_weights(model)) do t.equal(p, expected[name]:detach(), name) end
  end)
end

t.test("AnOptimizerWithoutItsModelIsAnError", function()
  new_folder "no_model"
  local model = new_pipeline("llama", { layers = 2 }, sharding.grid { pp = 2 }, { order = "1f1b" })
  run:state { optimizer = optim.AdamW(model:parameters(), { lr = 0.01 }) }

  t.raises("register the model", function() run:save { step = 1 } end)
end)

t.test("GenerationIsAnError", function()
  local model = new_pipeline("llama", { layers = 2 }, sharding.grid { pp = 2 }, { order = "1f1b" })

  t.raises("cannot generate; save the model", models.generate, model, { { 1, 2 } })
end)
