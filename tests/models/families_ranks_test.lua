-- The families of lockstep.models.families on two ranks: sharded by fully_shard, and split by their plans of
-- tensor_parallel, they give the logits, gradients and ids of one rank.

local dist = require "lockstep.distributed"
local models = require "lockstep.models"
local run = require "lockstep.run"
local sharding = require "lockstep.sharding"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local parity = dofile "tests/models/parity_fixture.lua"

local FOLDERS = dofile "tests/models/families_fixture.lua"

local PROMPTS = { { 3, 1, 4, 1, 5, 9, 2 }, { 1, 5 } }

--- What sharding.tensor_parallel says of folders that two ranks cannot divide, or that have no plan.
local ODD_HEADS = "3 heads cannot be divided by 2 ranks"
local REFUSED = { deepseek_v3 = ODD_HEADS, deepseek_v3_plain = ODD_HEADS,
  qwen3_next = "says that its layers cannot be split" }

local function difference(a, b) return (a - b):abs():max():item() end

--- Returns the loss, and leaves its gradients in the parameters.
local function loss_and_gradients(model, batch)
  local sum = model:loss(batch)
  sum:backward()
  return sum:item()
end

--- Makes a step of gradient descent with each model.
local function step(...)
  for _, model in ipairs { ... } do
    torch.no_grad(function()
      for _, p in ipairs(model:parameters()) do p:sub_(p.grad * 1e-3) end
    end)
  end
end

for _, folder in ipairs(FOLDERS) do
  local path = "tests/models/" .. folder

  t.test("AShardedModelIsThePlainOne_" .. folder, function()
    local _, batch = parity.answers_of(folder)
    local plain = models.load(path)
    local expected = loss_and_gradients(plain, batch)

    local model = models.load(path, { shard = {} })
    t.equal(model:state_dict(), plain:state_dict())
    t.near(loss_and_gradients(model, batch), expected, 1e-3)
    step(plain, model)
    local saved = dist.all_gather_object(run.dir .. "/sharded_" .. folder)[1]
    models.save(model, saved, { like = path })

    local state = models.load(saved):state_dict()
    for name, tensor in pairs(plain:state_dict()) do t.near(state[name], tensor, 1e-4, name) end
    t.equal(models.generate(model, PROMPTS, { max_new_tokens = 8 }),
      models.generate(models.load(saved), PROMPTS, { max_new_tokens = 8 }))
  end)

  for _, sequence in ipairs { false, true } do
    t.test("ASplitModelIsThePlainOne_" .. folder .. (sequence and "_sequence" or ""), function()
      local _, batch = parity.answers_of(folder)
      local plain, model = models.load(path), models.load(path)
      if REFUSED[folder] then
        return t.raises(REFUSED[folder], sharding.tensor_parallel, model, { sequence = sequence })
      end
      local logits, expected = torch.no_grad(plain, batch), loss_and_gradients(plain, batch)

      sharding.tensor_parallel(model, { sequence = sequence })

      t.truthy(model:num_parameters() < plain:num_parameters())
      t.near(torch.no_grad(model, batch), logits, 1e-4)
      t.near(loss_and_gradients(model, batch), expected, 1e-3)
      step(plain, model)
      t.truthy(difference(torch.no_grad(plain, batch), logits) > 1e-3)
      t.near(torch.no_grad(model, batch), torch.no_grad(plain, batch), 2e-4, "after a step")
      t.equal(models.generate(model, PROMPTS, { max_new_tokens = 8 }),
        models.generate(plain, PROMPTS, { max_new_tokens = 8 }))
    end)
  end
end

-- Layers with a state in stages of a pipeline, and their experts on two ranks.
for _, sizes in ipairs { { pp = 2 }, { ep = 2 } } do
  t.test("AGridIsOneRank_qwen3_next_" .. next(sizes), function()
    local fixture = require "lockstep.sharding.parallelize_fixture"
    fixture.check(sizes, { fully_shard = sizes.ep and {} or false }, { form = "qwen3_next", seed = 4 })
  end)
end

t.test("AStateIsNotCutIntoChunks", function()
  local net, reason = parity.load "qwen3_next", "layers of a Qwen3NextForCausalLM pass a state along the sequence"
  t.raises(reason .. ", which chunks do not hand on; take cp = 1", sharding.parallelize, net, sharding.grid { cp = 2 })
  t.raises(reason .. ", which chunks do not hand on; take whole sequences", sharding.context_parallel, nil, net,
    { input_ids = torch.arange(8) })
end)
