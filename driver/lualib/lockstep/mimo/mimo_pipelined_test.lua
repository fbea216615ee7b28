--- mimo.separate with stages: a tower on ranks of its own and a language model that is a pipeline train as one rank.
--- Float64, AdamW, clipping, several micro-batches of pictures, videos and text.

local core = require "lockstep.core"
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

local WORLD, DIR, STEPS = dist.world_size(), fixture.DIR, fixture.STEPS

--- Two of the layers of qwen3_vl stay on the first stage, and its embedding is tied.
local GRIDS = {
  [3] = { {}, { order = "all_forwards_first", micro_batches = 4 },
    { chunks = 2, text = { num_hidden_layers = 5 }, micro_batches = 5 }, { folder = "qwen2_5_vl", micro_batches = 1 },
    { adapter = true }, { freezes = "visual" }, { freezes = "language_model", steps = 3 },
    { freezes = "layers%.[01]%.", steps = 3 }, { freezes = "visual|layers%.[01]%.|embed" } },
  [4] = { { pp = 3, text = { num_hidden_layers = 4 }, micro_batches = 2 }, { vision = 2, fully_shard = true } },
  [5] = { { tp = 2, sequence = true, fully_shard = true }, { cp = 2 }, {},
    { fully_shard = true, chunks = 2, text = { num_hidden_layers = 5 } },
    { folder = "qwen3_vl_moe", ep = 2, text = fixture.EXPERTS } },
}

local function name_of(given)
  local words = {}
  for _, key in ipairs { "folder", "vision", "pp", "tp", "cp", "ep", "chunks", "order", "micro_batches", "freezes" } do
    if given[key] then words[#words + 1] = key .. " " .. given[key] end
  end
  for _, key in ipairs { "sequence", "fully_shard", "adapter" } do words[#words + 1] = given[key] and key or nil end
  return #words > 0 and table.concat(words, ", ") or "pp 2"
end

local function parallel_of(given)
  return { tp = given.tp, cp = given.cp, ep = given.ep, pp = given.pp or 2, chunks = given.chunks,
    sequence = given.sequence, fully_shard = given.fully_shard }
end

local function make(given)
  local model, optimizer, config = fixture.make(given.folder or "qwen3_vl", given.vision or 1, parallel_of(given),
    given)
  if model.pipeline then model.pipeline.checks_operations = true end
  return model, optimizer, config
end

for _, given in ipairs(GRIDS[WORLD]) do
  t.test(("TrainsAsOneRank(%s)"):format(name_of(given)), function()
    fixture.multiple, fixture.MICRO_BATCHES = 4, given.micro_batches or 3
    local rows = (WORLD - (given.vision or 1)) / ((given.tp or 1) * (given.cp or 1) * (given.pp or 2))
    local curve, alone = fixture.train_alone(given.folder or "qwen3_vl", rows, given)
    local model, optimizer, config = make(given)
    t.equal(model.ranks, rows)

    fixture.run_steps(model, optimizer, config, 1, given.steps or STEPS, curve)
    if given.adapter then
      lora.save(model, DIR .. "/adapter")
      local net = models.load("tests/models/qwen3_vl", { dtype = torch.float64 })
      lora.load(net, DIR .. "/adapter")
      for name, value in pairs(net:state_dict()) do
        t.truthy(not name:find "lora_" or fixture.difference(value, alone:state_dict()[name]) < 1e-10, name)
      end
      return dist.barrier()
    end
    models.save(model, DIR .. "/model")

    local saved, count = models.load(DIR .. "/model", { dtype = torch.float64 }):state_dict(), 0
    for name, value in pairs(alone:state_dict()) do
      t.truthy(fixture.difference(saved[name], value) < 1e-10, name)
      count = count + 1
    end
    t.truthy(count > 20)
    dist.barrier()
  end)
end

if WORLD == 3 then
  t.test("EvaluatesAsOneRank", function()
    local model, _, config = make {}
    local net = models.load("tests/models/qwen3_vl", { dtype = torch.float64 })
    local left, sum, count = fixture.step_of(config, 1, 1), 0, 0
    for _, micro_batch in ipairs(left) do
      local own_sum, own_count = torch.no_grad(net, micro_batch[1], "loss")
      sum, count = sum + own_sum:item(), count + own_count
    end

    local mean = sharding.evaluate(model, function() return table.remove(left) end, fixture.loss_of(model))

    t.truthy(fixture.relative(mean, sum / count) < 1e-10)
  end)

  t.test("GradientsAddToThoseOfAnEarlierCall", function()
    local model, _, config = make {}
    local micro_batches, count = fixture.step_of(config, 1, model.ranks)
    sharding.accumulate(model, micro_batches, count, fixture.loss_of(model))
    local once = {}
    for name, p in model:named_parameters() do once[name] = p.grad:clone() end

    sharding.accumulate(model, micro_batches, count, fixture.loss_of(model))

    for name, p in model:named_parameters() do t.truthy(fixture.difference(p.grad, once[name] * 2) < 1e-10, name) end
  end)

  t.test("AStateOfStagesGoesOnInTheWholeModelAndBack", function()
    local model, optimizer, config = make {}
    run.dir = DIR .. "/run"
    core.make_folder(run.dir)
    dist.barrier()
    local curve, alone = fixture.train_alone("qwen3_vl", 1)
    fixture.run_steps(model, optimizer, config, 1, 2, curve)
    run:state { model = model, optimizer = optimizer }
    run:save { step = 2 }

    -- The whole model, the same on every rank.
    local net = models.load("tests/models/qwen3_vl", { dtype = torch.float64 })
    local whole_optimizer = optim.AdamW(net:parameters(), { lr = 1e-2, weight_decay = 0.1 })
    run:state { model = net, optimizer = whole_optimizer }
    t.equal(run:resume(), 2)
    local micro_batches, count = fixture.step_of(config, 3, 1)
    for _, micro_batch in ipairs(micro_batches) do (net(micro_batch[1], "loss") / count):backward() end
    t.truthy(fixture.relative(optim.clip_grad_norm(net:parameters(), 0.5):item(), curve[3][2]) < 1e-10)
    whole_optimizer:step()
    whole_optimizer:zero_grad()
    run:save { step = 3 }

    local other, other_optimizer = make { order = "all_forwards_first" }
    run:state { model = other, optimizer = other_optimizer }
    t.equal(run:resume(), 3)
    fixture.run_steps(other, other_optimizer, config, 4, 4, curve)
    models.save(other, DIR .. "/again")
    local saved = models.load(DIR .. "/again", { dtype = torch.float64 }):state_dict()
    for name, value in pairs(alone:state_dict()) do t.truthy(fixture.difference(saved[name], value) < 1e-10, name) end
    dist.barrier()
  end)

  t.test("MistakesAreErrorsOnEveryRank", function()
    local net = models.load "tests/models/qwen3_vl"
    local function separate(parallel, order)
      return mimo.separate(net, { vision_ranks = 1, parallel = parallel, order = order })
    end
    t.raises("4 stages need as many layers, but the model has 3, and the first 2, which take features of pictures, are "
      .. "on one stage", separate, { pp = 2, chunks = 2 })
    t.raises("parallel.chunks is for stages, and pp is 1; leave it out", separate, { chunks = 2 })
    t.raises('order must be "1f1b", "interleaved" or "all_forwards_first" where pp is 2, not sequential', separate,
      { pp = 2 }, "sequential")
    t.raises('("1f1b" has 1 chunk for each rank, not 2), not 1f1b', separate, { pp = 2, chunks = 2 }, "1f1b")
    t.raises("tp 1 x cp 1 x pp 3 does not divide the 2 ranks", separate, { pp = 3 })
    t.raises("ep 2 does not divide the language model's dp 1 x cp 1", separate, { pp = 2, ep = 2 })
    local _, heard = t.listening(t.raises, "pp 3 does not divide", separate, { pp = 3, sequence = true })
    t.equal(heard, dist.rank() == 0 and "lockstep: mimo.separate: parallel: sequence has no effect where tp is 1\n"
      or "")
  end)

  -- A mistake inside of a step is an error on all ranks, whose bridge cannot be used again: this comes last.
  t.test("AFunctionThatDoesNotCallTheModelIsAnErrorOnEveryRank", function()
    local model, _, config = make {}
    local micro_batches, count = fixture.step_of(config, 1, model.ranks)
    t.raises("call the model", sharding.accumulate, model, micro_batches, count,
      function() return torch.zeros({}, { requires_grad = true }), 1 end)
  end)
end
