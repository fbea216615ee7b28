--- mimo.separate: a model of pictures and text whose tower has ranks of its own trains as the whole model on one rank.
--- Float64, AdamW, clipping, several micro-batches of pictures, videos and text. On 3 and 5 ranks the language model is
--- on a grid.

local core = require "lockstep.core"
local data = require "lockstep.data"
local dist = require "lockstep.distributed"
local fixture = require "lockstep.mimo.separate_fixture"
local lora = require "lockstep.lora"
local mimo = require "lockstep.mimo"
local models = require "lockstep.models"
local optim = require "lockstep.optim"
local run = require "lockstep.run"
local sharding = require "lockstep.sharding"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local WORLD, STEPS, DIR = dist.world_size(), fixture.STEPS, fixture.DIR
local difference, loss_of, make, relative = fixture.difference, fixture.loss_of, fixture.make, fixture.relative
local run_steps, step_of, train_alone = fixture.run_steps, fixture.step_of, fixture.train_alone

local HAS_GRIDS = WORLD % 2 == 1
--- The tests that need no grid run on other numbers of ranks.
local test = HAS_GRIDS and function() end or t.test

for vision_ranks = 1, HAS_GRIDS and 0 or WORLD - 1 do
  for _, folder in ipairs { "qwen3_vl", "qwen2_5_vl" } do
    for _, parallel in ipairs { "data_parallel", "fully_shard" } do
      t.test(("TrainsAsOneRank(%s, %d of %d ranks for the tower, %s)"):format(folder, vision_ranks, WORLD, parallel),
        function()
          local curve, alone = train_alone(folder, WORLD - vision_ranks)
          local model, optimizer, config = make(folder, vision_ranks, parallel)

          run_steps(model, optimizer, config, 1, STEPS, curve)
          models.save(model, DIR .. "/model", { like = "tests/models/" .. folder })

          local saved = models.load(DIR .. "/model", { dtype = torch.float64 }):state_dict()
          local count = 0
          for name, value in pairs(alone:state_dict()) do
            t.truthy(difference(saved[name], value) < 1e-10, name)
            count = count + 1
          end
          t.truthy(count > 20)
          dist.barrier()
        end)
    end
  end
end

-- The language model in parts over a grid of its own ranks. Batches have a multiple of tp x cp tokens.
local GRIDS = { [3] = { { tp = 2 }, { tp = 2, sequence = true, fully_shard = true }, { cp = 2, fully_shard = true },
    { ep = 2, fully_shard = true } },
  [5] = { { tp = 2, cp = 2, sequence = true, fully_shard = true }, { tp = 2, vision = 3 }, { cp = 2 },
    { ep = 2 } } }
for _, given in ipairs(GRIDS[WORLD] or {}) do
  local parallel = { tp = given.tp, cp = given.cp, ep = given.ep, sequence = given.sequence,
    fully_shard = given.fully_shard }
  local folder, options = given.ep and "qwen3_vl_moe" or "qwen3_vl", given.ep and { text = fixture.EXPERTS } or {}
  local name = ("tp %d, cp %d, ep %d, %s%s"):format(given.tp or 1, given.cp or 1, given.ep or 1,
    given.sequence and "sequence, " or "", given.fully_shard and "fully_shard" or "replicas")
  t.test(("ALanguageModelOnAGridTrainsAsOneRank(%s)"):format(name), function()
    fixture.multiple = 4
    local vision_ranks = given.vision or 1
    local rows = (WORLD - vision_ranks) / ((given.tp or 1) * (given.cp or 1))
    local curve, alone = train_alone(folder, rows, options)
    local model, optimizer, config = make(folder, vision_ranks, parallel, options)
    t.equal(model.ranks, rows)

    run_steps(model, optimizer, config, 1, STEPS, curve)
    models.save(model, DIR .. "/model")

    local saved = models.load(DIR .. "/model", { dtype = torch.float64 }):state_dict()
    for key, value in pairs(alone:state_dict()) do t.truthy(difference(saved[key], value) < 1e-10, key) end
    dist.barrier()
    fixture.multiple = 1
  end)
end

for _, parallel in ipairs { "data_parallel", "fully_shard" } do
  test(("AnAdapterOfBothPartsTrainsAsOnOneRank(%s)"):format(parallel), function()
    local curve, alone = train_alone("qwen3_vl", WORLD - 1, { adapter = true })
    local model, optimizer, config = make("qwen3_vl", 1, parallel, { adapter = true })

    run_steps(model, optimizer, config, 1, STEPS, curve)
    lora.save(model, DIR .. "/adapter")

    local net = models.load("tests/models/qwen3_vl", { dtype = torch.float64 })
    lora.load(net, DIR .. "/adapter")
    local expected, count = alone:state_dict(), 0
    for name, value in pairs(net:state_dict()) do
      if name:find "lora_" then
        t.truthy(difference(value, expected[name]) < 1e-10, name)
        count = count + 1
      end
    end
    t.truthy(count > 20)
    local config_text = data.json(DIR .. "/adapter/adapter_config.json")
    t.equal(config_text.r, 4)
    dist.barrier()
  end)
end

test("EvaluatesAsOneRank", function()
  local net = models.load("tests/models/qwen3_vl", { dtype = torch.float64 })
  local model = make("qwen3_vl", WORLD - 1, "data_parallel")
  local micro_batches = step_of(net.config, 1, 1)
  local sum, count = 0, 0
  for _, micro_batch in ipairs(micro_batches) do
    local own_sum, own_count = net(micro_batch[1], "loss")
    sum, count = sum + own_sum:item(), count + own_count
  end

  local left = { unpack(micro_batches) }
  local mean = sharding.evaluate(model, function() return table.remove(left) end, loss_of(model))

  t.truthy(relative(mean, sum / count) < 1e-10)
end)

--- Returns the next step's loss and the whole weights after it.
local function go_on(model, optimizer, config)
  local micro_batches, count = step_of(config, 3, model.ranks)
  local loss = sharding.accumulate(model, micro_batches, count, loss_of(model)):item()
  optim.clip_grad_norm(model:parameters(), 0.5)
  optimizer:step()
  models.save(model, DIR .. "/model", { like = "tests/models/qwen3_vl" })
  local weights = models.load(DIR .. "/model", { dtype = torch.float64 }):state_dict()
  dist.barrier()
  return loss, weights
end

-- With the rows of one language rank, so that every grid has the same samples.
local function train_and_save()
  local model, optimizer, config = make("qwen3_vl", WORLD - 1, "fully_shard")
  run.dir = DIR .. "/run"
  core.make_folder(run.dir)
  dist.barrier()
  for step = 1, 2 do
    local micro_batches, count = step_of(config, step, 1)
    sharding.accumulate(model, micro_batches, count, loss_of(model))
    optimizer:step()
    optimizer:zero_grad()
  end
  run:state { model = model, optimizer = optimizer }
  run:save { step = 2 }
  return model, optimizer, config
end

test("AStateGoesOnOnAnotherNumberOfRanksAndInTheWholeModel", function()
  local model, optimizer, config = train_and_save()
  local loss, weights = go_on(model, optimizer, config)

  -- The whole model, the same on every rank.
  local net = models.load("tests/models/qwen3_vl", { dtype = torch.float64 })
  local whole_optimizer = optim.AdamW(net:parameters(), { lr = 1e-2, weight_decay = 0.1 })
  run:state { model = net, optimizer = whole_optimizer }
  t.equal(run:resume(), 2)
  local micro_batches, count = step_of(config, 3, 1)
  local sum = 0
  for _, micro_batch in ipairs(micro_batches) do
    local own = net(micro_batch[1], "loss") / count
    own:backward()
    sum = sum + own:item()
  end
  optim.clip_grad_norm(net:parameters(), 0.5)
  whole_optimizer:step()
  t.truthy(relative(loss, sum) < 1e-10)
  for name, value in pairs(net:state_dict()) do t.truthy(difference(weights[name], value) < 1e-10, name) end

  -- The state of the whole model, in parts, on other numbers of ranks.
  whole_optimizer:zero_grad()
  run:save { step = 3 }
  local other, other_optimizer = make("qwen3_vl", 1, "data_parallel")
  run:state { model = other, optimizer = other_optimizer }
  t.equal(run:resume(), 3)
  models.save(other, DIR .. "/again", { like = "tests/models/qwen3_vl" })
  for name, value in pairs(models.load(DIR .. "/again", { dtype = torch.float64 }):state_dict()) do
    t.equal(value, net:state_dict()[name]:detach(), name)
  end
  dist.barrier()
end)

test("GradientsAddToThoseOfAnEarlierCall", function()
  local model, _, config = make("qwen3_vl", 1, "data_parallel")
  local micro_batches, count = step_of(config, 1, model.ranks)
  sharding.accumulate(model, micro_batches, count, loss_of(model))
  local once = {}
  for name, p in model:named_parameters() do once[name] = p.grad:clone() end

  sharding.accumulate(model, micro_batches, count, loss_of(model))

  for name, p in model:named_parameters() do t.truthy(difference(p.grad, once[name] * 2) < 1e-10, name) end
end)

-- Without sharing of the norm each part would be clipped by its own norm, and the model by none: what the test of the
-- norm in run_steps would show. Here: the norm of a part alone differs.
test("TheNormOfOnePartIsNotThatOfTheModel", function()
  local curve = train_alone("qwen3_vl", WORLD - 1)
  local model, _, config = make("qwen3_vl", 1, "data_parallel")
  local micro_batches, count = step_of(config, 1, model.ranks)
  sharding.accumulate(model, micro_batches, count, loss_of(model))
  local squares = 0
  for _, p in ipairs(model:parameters()) do squares = squares + p.grad:square():sum():item() end

  t.truthy(math.sqrt(squares) < curve[1][2] * 0.9999)
  t.truthy(relative(model:clip_grad_norm(0.5):item(), curve[1][2]) < 1e-10)
end)

test("MistakesAreErrors", function()
  local net = models.load "tests/models/llama"
  t.raises("mimo.separate: expected a model of pictures of models.load, not LlamaForCausalLM", mimo.separate, net,
    { vision_ranks = 1 })
  net = models.load "tests/models/qwen3_vl"
  t.raises(("vision_ranks must be a whole number from 1 to %d: of %d ranks, at least one runs the tower and one the "
    .. "language model; got %d"):format(WORLD - 1, WORLD, WORLD), mimo.separate, net, { vision_ranks = WORLD })
  t.raises('parallel must be "data_parallel", "fully_shard" or a table of tp, cp, ep, pp, chunks, sequence and '
    .. 'fully_shard, not "tp"', mimo.separate, net, { vision_ranks = 1, parallel = "tp" })
  t.raises("tp 7 x cp 1 x pp 1 does not divide the " .. WORLD - 1 .. " rank", mimo.separate, net,
    { vision_ranks = 1, parallel = { tp = 7 } })
  t.raises('order must be "1f1b", "all_forwards_first" or "sequential", not interleaved', mimo.separate, net,
    { vision_ranks = 1, order = "interleaved" })
  t.raises("parallel.tp must be a whole number from 1 on, not -1", mimo.separate, net,
    { vision_ranks = 1, parallel = { tp = -1 } })
  t.raises("every rank must give the same options, got", mimo.separate, net,
    { vision_ranks = 1, order = dist.rank() == 0 and "1f1b" or "sequential" })
  local model, _, config = make("qwen3_vl", 1, "data_parallel")
  local micro_batches, count = step_of(config, 1, model.ranks)
  t.raises(("micro-batch 1 must be an array of %d batches, one for each rank of the language model; give "
    .. "batching.stream and batching.prepare ranks = %d and together = true, got one batch"):format(WORLD - 1,
    WORLD - 1), sharding.accumulate, model, { micro_batches[1][1] }, count, loss_of(model))
  t.raises("call the model within sharding.accumulate or sharding.evaluate", model, micro_batches[1], "loss")
  t.raises("no rank holds the whole model", models.generate, model, { 1, 2 }, { max_new_tokens = 1 })
  t.raises('on_nan = "skip" is not for a model whose tower has ranks of its own', sharding.accumulate, model,
    micro_batches, count, loss_of(model), { on_nan = "skip" })
  if WORLD < 3 then return end
  for name, p in model:named_parameters() do
    if dist.rank() == WORLD - 1 and name:find "layers.0.mlp.up_proj" then p:requires_grad_(false) end
  end
  t.raises(('layers.0.mlp.up_proj.weight" is frozen on rank %d, and trained on rank 1'):format(WORLD - 1),
    sharding.accumulate, model, micro_batches, count, loss_of(model))
end)

-- A mistake inside of a step is an error on all ranks, whose bridge cannot be used again: these come last.
test("AFunctionThatDoesNotCallTheModelIsAnErrorOnEveryRank", function()
  local model, _, config = make("qwen3_vl", 1, "data_parallel")
  local micro_batches, count = step_of(config, 1, model.ranks)
  t.raises("the function did not call the model, which other ranks wait for", sharding.accumulate, model, micro_batches,
    count, function() return torch.zeros({}, { requires_grad = true }), 1 end)
end)
