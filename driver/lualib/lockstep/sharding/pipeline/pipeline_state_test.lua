-- Stages on several ranks are one model in files: its folder, and the state of a run.

local core = require "lockstep.core"
local dist = require "lockstep.distributed"
local fixture = require "pipeline_fixture"
local lora = require "lockstep.lora"
local models = require "lockstep.models"
local optim = require "lockstep.optim"
local run = require "lockstep.run"
local runs = require "lockstep.sharding.grid_runs_fixture"
local sharding = require "lockstep.sharding"
local splits = require "lockstep.nn.splits"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local WORLD = dist.world_size()
local base = run.dir

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

for _, case in ipairs(runs.of("pipeline/pipeline_state", "state", WORLD)) do
  local kind, options, order, grid = case.family, { layers = 4 }, case.options, sharding.grid(case.sizes)
  local case_name = runs.name(case)

  -- A later stage has the only adapter, or each stage has some.
  t.test("AFolderHoldsTheAdaptersOfAllStages_" .. case_name, function()
    for i, targets in ipairs { { "layers.3.self_attn.o_proj" }, { "q_proj", "v_proj" } } do
      local expected, net = fixture.build(kind, options), fixture.build(kind, options)
      for _, one in ipairs { expected, net } do
        torch.manual_seed(i)
        lora.apply(one, { r = 2, targets = targets })
        for name, p in one:named_parameters() do
          if name:find "lora_B" then torch.no_grad(function() p:normal_() end) end
        end
      end
      local path = dist.all_gather_object(("%s/adapter_%s_%d"):format(base, case_name, i))[1]

      lora.save(fixture.divide(net, grid, order), path)

      local loaded, found = fixture.build(kind, options), expected:state_dict()
      local count = lora.load(loaded, path)
      t.equal(count, i == 1 and 1 or 8)
      for name, tensor in pairs(loaded:state_dict()) do t.equal(tensor, found[name], name) end
    end
  end)

  t.test("AFolderHoldsTheWholeModel_" .. case_name, function()
    local expected, model = fixture.build(kind, options), new_pipeline(kind, options, grid, order)
    local path = dist.all_gather_object(base .. "/saved_" .. case_name)[1]

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

  t.test("AStateGoesOnInAnotherGridWithTheSameBits_" .. case_name, function()
    new_folder("state_" .. case_name)
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

  t.test("AStateOfOneRankGoesOnInStages_" .. case_name, function()
    new_folder("alone_" .. case_name)
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
