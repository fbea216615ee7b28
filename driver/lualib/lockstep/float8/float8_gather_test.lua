-- Float8 weights of sharded models that travel as float8: sharding.fully_shard{float8_gather = true}.

local dist = require "lockstep.distributed"
local float8 = require "lockstep.float8"
local lora = require "lockstep.lora"
local models = require "lockstep.models"
local nn = require "lockstep.nn"
local optim = require "lockstep.optim"
local run = require "lockstep.run"
local sharding = require "lockstep.sharding"
local t = require "lockstep.testing"
local tiny = require "tiny_fixture"
local torch = require "lockstep.torch"

torch.set_num_threads(1) -- small tensors

local world = dist.world_size()

--- Trains a sharded model by two or three steps of AdamW, of two micro-batches each. One of these is in recomputed
--- regions. An evaluation follows each step. Returns the losses in order, the whole state, and the counts.
local function sharded_training(options, changes)
  local steps = changes and 2 or 3
  local net = tiny.model(changes and changes.config, changes and changes.dtype)
  float8.apply(net, { keep_casts = not (changes and changes.no_keep) })
  if changes and changes.freeze then net.model.layers[1].mlp.up_proj.weight:requires_grad_(false) end
  local model = sharding.fully_shard(net, options)
  local optimizer = optim.AdamW(model:parameters(), { lr = 1e-2 })
  local numbers = {}
  for step = 1, steps do
    for micro = 1, 2 do
      net.checkpoint = micro == 2 and {} or nil
      local loss = tiny.loss(model, tiny.batch(step + micro, dist.rank()))
      loss:backward()
      numbers[#numbers + 1] = loss:item()
    end
    optimizer:step()
    optimizer:zero_grad()
    torch.no_grad(function() numbers[#numbers + 1] = tiny.loss(model, tiny.batch(7, dist.rank())):item() end)
  end
  return { numbers = numbers, state = model:state_dict(), stats = model:sharding_stats() }, model, net
end

local function with(options, more)
  local result = {}
  for _, part in ipairs { options or {}, more or {} } do
    for key, value in pairs(part) do result[key] = value end
  end
  return result
end

local function expect_same_bits(actual, expected, message)
  t.equal(actual.numbers, expected.numbers, message)
  for name, tensor in pairs(expected.state) do t.equal(actual.state[name], tensor, message .. name) end
end

-- The scale of the whole weight is that of the largest magnitude of all parts.
t.test("WeightsThatTravelInFloat8ChangeNoBitOfATraining", function()
  local cases = {
    { "default" }, { "whole", { reshard_after_forward = false, prefetch = 2, param_dtype = torch.bfloat16 } },
    { "bfloat16", {}, { dtype = torch.bfloat16 } }, { "frozen", { units = {} }, { freeze = true } },
    { "casts again", {}, { no_keep = true } },
    { "few", { replicas = world == 4 and 2 or 1 }, { config = { num_hidden_layers = 1, intermediate_size = 48 } } },
  }
  for _, case in ipairs(world == 4 and { cases[6] } or cases) do
    local name, options, changes = unpack(case, 1, 3)
    float8.forget()
    local actual = sharded_training(with(options, { float8_gather = true }), changes)
    expect_same_bits(actual, sharded_training(options, changes), name)
    t.equal(actual.stats.float8_weights, world > 1 and (name == "few" and 7 or 14) or 0, name)
    t.equal(float8.kept_bytes(), 0)
  end
end)

--- A layer for each rank and one for all.
local Routes = nn.Module:subclass("Routes")

function Routes:init()
  self.all, self.routes = nn.Linear(32, 32), nn.ModuleList {}
  for i = 1, world do self.routes[i] = nn.Linear(32, 32) end
end

function Routes:forward(x) return self.routes[dist.rank() + 1](torch.tanh(self.all(x))) end

t.test("ARankThatSkipsAWeightTakesPart", function()
  local results = {}
  for _, float8_gather in ipairs { false, true } do
    torch.manual_seed(7)
    local net, losses = Routes(), {}
    float8.apply(net)
    local model = sharding.fully_shard(net, { float8_gather = float8_gather, skipped = "join" })
    local optimizer = optim.AdamW(model:parameters(), { lr = 1e-2 })
    for step = 1, 3 do
      local loss = model(torch.ones { 3, 32 } * (step + dist.rank())):pow(2):mean()
      loss:backward()
      optimizer:step()
      optimizer:zero_grad()
      losses[step] = loss:item()
    end
    results[#results + 1] = { numbers = losses, state = model:state_dict() }
  end
  expect_same_bits(results[2], results[1], "")
end)

t.test("ARankMayReadWholeValuesAlone", function()
  local results = {}
  for _, float8_gather in ipairs { false, true } do
    torch.manual_seed(7)
    local net = nn.Sequential { nn.Linear(32, 48), nn.Linear(48, 32) }
    float8.apply(net)
    local model = sharding.fully_shard(net, { float8_gather = float8_gather, skipped = "join" })
    local x, numbers = torch.ones { 3, 32 }, {}
    for step = 1, 2 do
      numbers[step] = model(x):sum():item()
      -- The others join from their next forward.
      if step == 1 and dist.rank() == 0 then model:full(function() numbers[3] = net[1].weight:sum():item() end) end
    end
    results[#results + 1] = { numbers = numbers, state = model:state_dict() }
  end
  expect_same_bits(results[2], results[1], "")
end)

-- With copies of the model, ranks compare with others than those that they gather from. All else is tested on two.
if world == 4 then return end

t.test("AFloat8WeightTravelsAsABytePerNumber", function()
  for _, dtype in ipairs { torch.float32, torch.bfloat16 } do
    local function stats_of(float8_gather)
      -- One unit, so that each gather is of all weights.
      local net = nn.Sequential { nn.Linear(256, 192), nn.Linear(192, 128), nn.Linear(128, 256) }
      net:to(dtype)
      float8.apply(net)
      local model = sharding.fully_shard(net, { float8_gather = float8_gather, units = {} })
      for _ = 1, 2 do model(torch.ones({ 2, 256 }, { dtype = dtype })):sum():backward() end
      return model:sharding_stats()
    end
    local plain, stats = stats_of(false), stats_of(true)
    t.equal(stats.gathers, plain.gathers)
    -- One for each pass, whatever the number of weights.
    t.equal({ plain.scale_reductions, stats.scale_reductions }, { 0, world > 1 and 2 or 0 })
    t.equal(stats.float8_weights, world > 1 and 3 or 0)
    local numbers, size = 256 * 192 + 192 * 128 + 128 * 256, torch.empty({ 0 }, { dtype = dtype }):element_size()
    if world > 1 then
      local saved = (plain.gather_bytes - stats.gather_bytes) / stats.gathers
      t.near(saved, numbers * (size - 1) / world, 64 * size, "a span is a multiple of 64 elements")
      local share = stats.gather_bytes / plain.gather_bytes
      t.truthy(share > 1 / size and share < 1.03 / size, share)
      t.near(stats.root_bytes, plain.root_bytes / size, 0.03 * plain.root_bytes / size)
    end
  end
end)

t.test("OnlyItsLayerReadsAWeightThatTravelsInFloat8", function()
  local net = nn.Sequential { nn.Linear(32, 48), nn.Linear(48, 32) }
  float8.apply(net)
  local before = net[1].weight:detach():clone()
  local model = sharding.fully_shard(net, { float8_gather = true })
  local layer, forward = net[1], net[2].forward
  local reads = false
  net[2].forward = function(self, x)
    if reads then reads = layer.weight:sum() end
    return forward(self, x)
  end
  local x = torch.ones { 3, 32 }
  local y = model(x)
  reads = true
  if world > 1 then
    t.raises('fully_shard: "0.weight" is gathered in float8 now, for its layer alone: read it in model:full(fn)', model,
      x)
  end
  reads = false
  t.equal(model(x), y)
  local values = dist.broadcast(before, 0)
  model:full(function()
    t.equal(layer.weight:detach(), values)
    torch.no_grad(function() layer.weight:mul_(2) end)
    float8.forget()
    t.equal(torch.no_grad(function() return layer(x) end).shape, torch.ones({ 3, 48 }).shape)
  end)
  t.equal(model:state_dict()["0.weight"], values * 2)
  t.truthy(not torch.equal(model(x), y), "new values, and new scales")
end)

t.test("TensorsKeptFromFullAreNotReadOnceTheWeightIsGatheredInFloat8", function()
  if world == 1 then return end
  local net = nn.Sequential { nn.Linear(32, 48), nn.Linear(48, 32) }
  float8.apply(net)
  local model = sharding.fully_shard(net, { float8_gather = true, units = {} })
  local kept, copy = model:full(function()
    local values = net[1].weight:detach()
    return values, values:clone()
  end)
  local layer, forward = net[2], net[2].forward
  layer.forward = function(self, x) return forward(self, x + kept:sum()) end
  t.raises("fully_shard: this tensor shares the memory of a weight of the root in model:full(fn), which is over, and "
    .. "the weight is gathered in float8 now; clone what you keep", model, torch.ones { 3, 32 })
  layer.forward = nil
  t.equal(model(torch.ones { 3, 32 }).shape, torch.ones({ 3, 32 }).shape)
  model:full(function() t.equal(net[1].weight:detach(), copy) end)
end)

t.test("ALayerThatIsAUnitIsConvertedBeforeItIsSharded", function()
  local function layers() return nn.ModuleList { nn.Linear(32, 32), nn.Linear(32, 32) } end
  local first = layers()
  float8.apply(first)
  local model = sharding.fully_shard(first, { float8_gather = true, units = { "0", "1" } })
  t.equal(model:sharding_stats().float8_weights, world == 1 and 0 or 2)
  t.raises('"0", for example: it is a unit of sharding.fully_shard; shard the model after float8.apply', float8.apply,
    sharding.fully_shard(layers(), { float8_gather = true, units = { "0", "1" } }))
end)

t.test("RanksThatGatherOtherWeightsInFloat8AreToldWhich", function()
  if world == 1 then return end
  local net = nn.Sequential { nn.Linear(32, 48), nn.Linear(48, 32) }
  float8.apply(net, { filter = function(name) return name == "0" or dist.rank() == 0 end })
  t.raises('fully_shard: the ranks give different models or options, in 1 places:\n  rank 0: unit "", 1.weight: Float '
    .. '[32, 48], trained, gathered in float8\n  rank 1: unit "", 1.weight: Float [32, 48], trained',
    sharding.fully_shard, net, { float8_gather = true, units = {} })
end)

t.test("ABackwardMayFollowAForwardWithinFull", function()
  local gradients = {}
  for _, float8_gather in ipairs { false, true } do
    torch.manual_seed(8)
    local net = nn.ModuleList { nn.Linear(32, 48), nn.Linear(48, 32) }
    net.forward = function(self, x) return self[2](torch.tanh(self[1](x))) end
    float8.apply(net)
    local model = sharding.fully_shard(net, { float8_gather = float8_gather })
    local loss = model:full(function() return model(torch.ones { 3, 32 }):sum() end)
    loss:backward()
    local found = {}
    for _, shard in model:named_parameters() do
      found[#found + 1] = dist.all_reduce(shard.grad:double():sum()):item()
    end
    gradients[#gradients + 1] = found
  end
  t.equal(#gradients[1], 4)
  for i, sum in ipairs(gradients[1]) do t.near(gradients[2][i], sum, 1e-9) end -- parts are cut in other places
end)

t.test("ForgettingCastsLeavesWhatIsGathered", function()
  local net = nn.Sequential { nn.Linear(32, 48), nn.Linear(48, 32) }
  float8.apply(net)
  local model = sharding.fully_shard(net, { float8_gather = true, units = {} })
  local x = torch.randn({ 4, 32 })
  local expected = model(x)
  expected:sum():backward()
  local gradient = model:parameters()[1].grad
  model:zero_grad()
  local y = model(x)
  float8.forget()
  t.equal(y, expected)
  y:sum():backward()
  t.equal(model:parameters()[1].grad, gradient)
end)

t.test("InfiniteAndMissingNumbersAreThoseOfACastOfTheWholeWeight", function()
  for _, number in ipairs { math.huge, -math.huge, 0 / 0, 0, 1e-30 } do
    local results = {}
    for _, float8_gather in ipairs { false, true } do
      torch.manual_seed(3)
      local net = nn.Sequential { nn.Linear(32, 48, { bias = false }) }
      torch.no_grad(function()
        if math.abs(number) < 1 then net[1].weight:fill_(number) end
        net[1].weight:view(-1)[1500] = number -- on one rank
      end)
      float8.apply(net)
      local model = sharding.fully_shard(net, { float8_gather = float8_gather })
      local y = model(torch.randn { 4, 32 })
      y:sum():backward()
      results[#results + 1] = torch.cat { y:detach():view(-1):isnan():float(), y:detach():nan_to_num():view(-1),
        model:parameters()[1].grad:nan_to_num() }
    end
    t.equal(results[2], results[1], tostring(number))
  end
end)

t.test("WeightsThatCannotTravelInFloat8AreReported", function()
  local function left_of(net, options) -- reasons, by the layers' names
    local model = sharding.fully_shard(net, with(options, { float8_gather = true }))
    local reasons = {}
    for _, one in ipairs(model:float8_left()) do reasons[one.name] = one.reason end
    return reasons, model:sharding_stats().float8_weights
  end
  local function layers(recipe)
    local net = nn.Sequential { nn.Linear(32, 32), nn.Linear(32, 32) }
    float8.apply(net, { recipe = recipe })
    return net
  end
  local alone = "one rank keeps the whole weight"
  t.equal({ left_of(layers "rowwise") }, { {
    ["0"] = 'its recipe is "rowwise": only the scales of "tensorwise" are known before the weight is whole',
    ["1"] = 'its recipe is "rowwise": only the scales of "tensorwise" are known before the weight is whole' }, 0 })
  t.equal({ left_of(layers(), { offload = "host" }) },
    { { ["0"] = "its masters are in host memory", ["1"] = "its masters are in host memory" }, 0 })
  t.equal({ left_of(layers(), { param_dtype = torch.float64 }) },
    { { ["0"] = "it is gathered in float64", ["1"] = "it is gathered in float64" }, 0 })
  t.equal({ left_of(layers(), { replicas = world }) }, { { ["0"] = alone, ["1"] = alone }, 0 })
  t.equal({ left_of(layers(), { ignore = { "1" } }) }, { { ["0"] = world == 1 and alone or nil,
    ["1"] = "it is ignored, and whole on every rank" }, world == 1 and 0 or 1 })
  local shared = layers()
  shared:append(nn.Linear(32, 32, { bias = false }))
  shared[3].weight = shared[2].weight
  t.equal({ left_of(shared) }, { { ["0"] = world == 1 and alone or nil,
    ["1"] = "another module holds its weight, too" }, world == 1 and 0 or 1 })
  local adapted = tiny.model()
  float8.apply(adapted)
  lora.apply(adapted, { r = 2, targets = { "q_proj" } })
  local reasons, count = left_of(adapted)
  t.equal(reasons["model.layers.1.self_attn.q_proj"], "it has an adapter")
  t.equal(count, world == 1 and 0 or 12)
  t.equal({ left_of(nn.Sequential { nn.Linear(32, 32) }) }, { {}, 0 })
end)

t.test("AModelThatIsReadInPartsGathersInFloat8", function()
  local folder = dist.all_gather_object(run.dir .. "/start")[1]
  models.save(tiny.model(), folder)
  local results = {}
  for i, float8_gather in ipairs { false, true } do
    local model = models.load(folder, { dtype = torch.float32, shard = { float8_gather = float8_gather } })
    float8.apply(model)
    t.equal(model:sharding_stats().float8_weights, float8_gather and world > 1 and 14 or 0)
    results[i] = { tiny.train(model, 4, function(step) return tiny.loss(model, tiny.batch(step, dist.rank())) end) }
  end
  t.equal(results[2], results[1])
end)

t.test("AStateGoesOnWithFloat8GathersAndWithout", function()
  local function made(float8_gather)
    local net = tiny.model()
    float8.apply(net)
    local model = sharding.fully_shard(net, { float8_gather = float8_gather })
    local optimizer = optim.AdamW(model:parameters(), { lr = 1e-2 })
    run:state { model = model, optimizer = optimizer }
    return function(step)
      local loss = tiny.loss(model, tiny.batch(step, dist.rank()))
      loss:backward()
      optimizer:step()
      optimizer:zero_grad()
      return loss:item()
    end
  end
  for step, float8_gather in ipairs { false, true } do
    local train = made(float8_gather)
    train(1)
    run:save { step = step }
    local expected = { train(2), train(3) }
    local again = made(not float8_gather)
    t.equal(run:resume(), step)
    t.equal({ again(2), again(3) }, expected)
  end
end)
