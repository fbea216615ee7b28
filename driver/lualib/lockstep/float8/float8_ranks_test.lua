-- Float8 layers on several ranks: replicas, sharded models, and split layers, which are refused.

local dist = require "lockstep.distributed"
local float8 = require "lockstep.float8"
local models = require "lockstep.models"
local optim = require "lockstep.optim"
local run = require "lockstep.run"
local sharding = require "lockstep.sharding"
local t = require "lockstep.testing"
local tiny = require "tiny_fixture"
local torch = require "lockstep.torch"

torch.set_num_threads(1) -- small tensors

local world = dist.world_size()
local RECIPES = { "tensorwise", "rowwise" }

--- Trains a model alone on the batches of all ranks.
local function trained_alone(recipe)
  local alone = tiny.model()
  float8.apply(alone, { recipe = recipe })
  tiny.train(alone, 4, function(step)
    local sum = 0
    for rank = 0, world - 1 do sum = sum + tiny.loss(alone, tiny.batch(step, rank)) / world end
    return sum
  end)
  return alone:state_dict()
end

--- Each rank has its batch.
local function loss_of(model)
  return function(step) return tiny.loss(model, tiny.batch(step, dist.rank())) end
end

--- AdamW's first steps are about as long whatever the gradient, so that rounding shows.
local function expect_same(state, expected)
  for name, tensor in pairs(expected) do
    t.truthy(((state[name] - tensor):norm() / tensor:norm()):item() < 2e-3, name)
  end
end

for _, recipe in ipairs(RECIPES) do
  t.test("ReplicasLearnWhatOneModelLearns_" .. recipe, function()
    local net = tiny.model()
    float8.apply(net, { recipe = recipe })
    local replicas = sharding.data_parallel(net)
    t.raises("of replicas give replicas.module", float8.apply, replicas)
    tiny.train(replicas, 4, loss_of(replicas))
    expect_same(net:state_dict(), trained_alone(recipe))
  end)

  t.test("AShardedModelLearnsWhatOneModelLearns_" .. recipe, function()
    local expected = trained_alone(recipe)
    local before = tiny.model()
    float8.apply(before, { recipe = recipe })
    local after = sharding.fully_shard(tiny.model())
    t.equal(float8.apply(after, { recipe = recipe }), 14)
    t.raises("is a float8 layer already", float8.apply, after)
    for _, model in ipairs { sharding.fully_shard(before), after } do
      tiny.train(model, 4, loss_of(model))
      expect_same(model:state_dict(), expected)
    end
  end)
end

--- Returns the losses of three steps of two micro-batches each, and of an evaluation after each step.
local function sharded_losses(keep_casts, options)
  local net = tiny.model()
  float8.apply(net, { keep_casts = keep_casts })
  local model = sharding.fully_shard(net, options)
  local optimizer = optim.AdamW(model:parameters(), { lr = 1e-2 })
  local losses = {}
  for step = 1, 3 do
    for micro = 1, 2 do
      net.checkpoint = micro == 2 and {} or nil
      local loss = tiny.loss(model, tiny.batch(step + micro, dist.rank()))
      loss:backward()
      losses[#losses + 1] = loss:item()
    end
    optimizer:step()
    optimizer:zero_grad()
    torch.no_grad(function() losses[#losses + 1] = tiny.loss(model, tiny.batch(7, dist.rank())):item() end)
  end
  return losses, model, net
end

-- A cast of a whole weight outlives neither the weight on this rank, nor its gathered values.
t.test("CastsOfGatheredWeightsAreFreedWithThem", function()
  for _, options in ipairs {
    {}, { reshard_after_forward = false }, { param_dtype = torch.bfloat16 }, { offload = "host" },
  } do
    float8.forget()
    local losses, model, net = sharded_losses(true, options)
    t.equal(float8.kept_bytes(), 0)
    t.equal(losses, (sharded_losses(false, options)))
    model:full(function()
      local layer = net.model.layers[1].mlp.up_proj
      local x = torch.ones { 2, 32 }
      torch.no_grad(function()
        local before = layer(x)
        layer.weight:mul_(2)
        t.equal(layer(x), before * 2)
      end)
      t.truthy(float8.kept_bytes() > 0)
    end)
    t.equal(float8.kept_bytes(), 0)
  end
end)

t.test("AModelThatIsReadInPartsLearns", function()
  local folder = dist.all_gather_object(run.dir .. "/start")[1]
  models.save(tiny.model(), folder)
  local model = models.load(folder, { dtype = torch.float32, shard = { param_dtype = torch.bfloat16 } })
  local count, left = float8.apply(model)
  t.equal(count, 14)
  t.equal(left, { { name = "lm_head", reason = "it is the head" } })
  local first, last = tiny.train(model, 12, loss_of(model))
  t.truthy(last < first, ("%g, then %g"):format(first, last))
end)

t.test("ExpertsOfSeveralRanksComputeWhatThoseOfOneRankCompute", function()
  local function alone(rank)
    local model = tiny.model(tiny.MIXTURE)
    float8.apply(model, { recipe = "rowwise", experts = true })
    return model, tiny.step(model, tiny.batch(1, rank))
  end
  local sum = {}
  for rank = 0, world - 1 do
    local _, _, gradients = alone(rank)
    for name, gradient in pairs(gradients) do sum[name] = sum[name] and sum[name] + gradient or gradient end
  end
  local _, loss = alone(dist.rank())
  for _, shards in ipairs { {}, { float8_gather = true }, false } do
    for _, is_before in ipairs { true, false } do
      local net = tiny.model(tiny.MIXTURE)
      if is_before then float8.apply(net, { recipe = "rowwise", experts = true }) end
      local model = sharding.parallelize(net, sharding.grid { ep = 2 }, { fully_shard = shards })
      if not is_before then float8.apply(model, { recipe = "rowwise", experts = true }) end
      -- A row's scale is its own, whichever rank computes it.
      local actual, gradients = tiny.step(model, tiny.batch(1, dist.rank()))
      t.near(actual, loss, 1e-5 * loss)
      -- Rows of all ranks share the scale of a column of a weight's gradient.
      for name, gradient in pairs(not shards and gradients or {}) do
        local expected = sum[name] / world
        if name:find "experts" then expected = expected:chunk(world)[dist.rank() + 1] end
        local difference = ((gradient - expected:reshape(-1)):norm() / expected:norm()):item()
        t.truthy(difference < 0.05, ("%s: %g"):format(name, difference))
      end
    end
  end
end)

t.test("SplitLayersAreRefused", function()
  local split = tiny.model { num_key_value_heads = 2 }
  sharding.tensor_parallel(split)
  t.raises("float8.apply: a weight is split over 2 ranks by sharding.tensor_parallel; float8 products of split layers "
    .. "are not supported", float8.apply, split)
  local converted = tiny.model { num_key_value_heads = 2 }
  float8.apply(converted)
  t.raises('"model.layers.0.self_attn.q_proj" is of the class Float8Linear', sharding.tensor_parallel, converted)
end)
