--- sharding.fully_shard on several ranks, each with data of its own, beside sharding.data_parallel.

local checkpoint = require "lockstep.checkpoint"
local dist = require "lockstep.distributed"
local fixture = require "fully_shard_fixture"
local nn = require "lockstep.nn"
local optim = require "lockstep.optim"
local sharding = require "lockstep.sharding"
local t = require "lockstep.testing"
local tiled_mlp = require "lockstep.tiled_mlp"
local torch = require "lockstep.torch"

local RANK, WORLD = dist.rank(), dist.world_size()
torch.set_default_dtype(torch.float64)

--- Replicas of the fixture's net whose loss goes through the replicas' forward.
local function replicas(net_options, options)
  local net = fixture.net(net_options)
  local dp = sharding.data_parallel(net, options)
  local model = setmetatable({ dp = dp, clip_grad_norm = false }, { __index = dp })
  function model:loss(tokens, calls)
    return torch.cross_entropy_loss(self.dp(tokens, calls), (tokens * 5 + 1):remainder(13))
  end
  return model
end

local function micro_batches(count, without_sync)
  return function(model, step)
    for i = 1, count do
      local function pass() model:loss(fixture.tokens(step + 50 * i)):backward() end
      if without_sync and i < count then model:no_sync(pass) else pass() end
    end
  end
end

local function calling(...)
  local calls = { ... }
  return function(model, step) model:loss(fixture.tokens(step), calls):backward() end
end

t.test("TrainingIsThatOfReplicasWhateverTheOptions", function()
  local cases = {
    {}, { reshard_after_forward = false }, { prefetch = 0 }, { prefetch = 2 }, { units = { "layers.0", "layers.2" } },
    { units = { "layers.*", "layers.*.up" } }, { units = {} }, { skipped = "join" }, { deterministic = true },
    { offload = "host" }, { replicas = WORLD },
  }
  local expected = fixture.train(replicas(), 10, nil, { clip = 0.5 })
  for i, options in ipairs(cases) do
    local model = sharding.fully_shard(fixture.net(), options)
    local found = fixture.train(model, 10, nil, { clip = 0.5 })
    t.truthy(fixture.distance(found, expected) < 1e-12, "case " .. i)
  end
end)

t.test("TiedWeightsRepeatedCallsAnotherOrderAndAccumulationTrainLikeReplicas", function()
  local cases = {
    { net = { tied = true } },
    { pass = calling(1, 1, 2, 3, 1), replicas = { static_graph = true } },
    { pass = calling(3, 1, 2) },
    { pass = calling(3, 2), replicas = { find_unused = true } },
    { pass = micro_batches(3) },
    { pass = micro_batches(3, true) },
  }
  for i, one in ipairs(cases) do
    for _, reshard in ipairs { true, false } do
      local expected = fixture.train(replicas(one.net, one.replicas), 4, one.pass)
      local model = sharding.fully_shard(fixture.net(one.net), { reshard_after_forward = reshard })
      local found = fixture.train(model, 4, one.pass)
      t.truthy(fixture.distance(found, expected) < 1e-12, "case " .. i)
    end
  end
end)

t.test("TheModelHasTheNetsFieldsAndMethodsAndParametersAreParts", function()
  local net = fixture.net()
  local model = sharding.fully_shard(net)

  t.equal(#model.layers, 3)
  t.equal(model:num_parameters(), fixture.net():num_parameters())
  local own = 0
  for name, shard in model:named_parameters() do
    t.equal(shard:dim(), 1, name)
    own = own + shard:numel()
  end
  local whole = dist.all_reduce(torch.tensor(own, { dtype = torch.int64 }), "sum"):item()
  t.equal(whole, model:num_parameters())
  t.equal(model:hidden(fixture.tokens(1)).shape, torch.zeros({ 5, 6 }).shape)
  model.note = "kept in the net"
  t.equal(net.note, "kept in the net")
  t.truthy(tostring(model):find("fully_shard(Net", 1, true) ~= nil)
  t.raises("stays on its device", function() model:to { dtype = torch.float32 } end)
end)

t.test("FrozenAndTrainedParametersLieInOneUnitAndWhatIsUnfrozenLaterTrains", function()
  local function freeze(net)
    for name, p in net:named_parameters() do
      if name:find("up") or name:find("embedding") then p:requires_grad_(false) end
    end
    return net
  end
  local before = fixture.net():state_dict()
  local model = sharding.fully_shard(freeze(fixture.net()))
  local trained = fixture.train(model, 3)
  local dp = sharding.data_parallel(freeze(fixture.net()))
  local function pass(m, step)
    torch.cross_entropy_loss(m(fixture.tokens(step)), (fixture.tokens(step) * 5 + 1):remainder(13)):backward()
  end

  t.truthy(fixture.distance(trained, fixture.train(dp, 3, pass)) < 1e-12)
  t.truthy((trained["layers.0.up.weight"] - before["layers.0.up.weight"]):abs():max():item() == 0)
  model:requires_grad_(true)
  local after = fixture.train(model, 1)
  t.truthy((after["layers.0.up.weight"] - before["layers.0.up.weight"]):abs():max():item() > 0)
end)

t.test("EveryRankTakesTheValuesOfRank0", function()
  local net, first = fixture.net(), fixture.net():state_dict()
  torch.no_grad(function() for _, p in ipairs(net:parameters()) do p:add_(RANK) end end)

  t.equal(sharding.fully_shard(net):state_dict(), first)
end)

t.test("AModuleOfTheNetFreezesAndUnfreezesItsParameters", function()
  local model = sharding.fully_shard(fixture.net())
  local first = model:state_dict()
  model.layers[2].up:requires_grad_(false)
  local frozen = fixture.train(model, 2)
  model.layers[2].up:requires_grad_(true)
  local after = fixture.train(model, 1)
  local function moved(a, b, name) return (a[name] - b[name]):abs():max():item() > 0 end

  t.truthy(not moved(frozen, first, "layers.1.up.weight") and moved(frozen, first, "layers.1.down.weight"))
  t.truthy(moved(after, frozen, "layers.1.up.weight"))
end)

t.test("LowPrecisionComputesInParamDtypeAndFloat32MastersTrain", function()
  local net = fixture.net()
  for _, p in ipairs(net:parameters()) do p:set_data(p:detach():float()) end
  local model = sharding.fully_shard(net, { param_dtype = torch.bfloat16, reduce_dtype = torch.float32 })
  local seen
  model.layers[1].up.weight:register_hook(function(gradient) seen = gradient.dtype end)
  local first, last
  local optimizer = optim.AdamW(model:parameters(), { lr = 0.02 })
  for _ = 1, 20 do
    local loss = model:loss(fixture.tokens(1))
    t.equal(loss.dtype, torch.bfloat16)
    loss:backward()
    first, last = first or loss:item(), loss:item()
    for name, shard in model:named_parameters() do
      t.equal(shard.dtype, torch.float32, name)
      t.equal(shard.grad.dtype, torch.float32, name)
    end
    optimizer:step()
    optimizer:zero_grad()
  end
  t.equal(seen, torch.bfloat16)
  t.truthy(last < 0.7 * first, ("loss %g to %g"):format(first, last))
  local x = torch.randn({ 2, 6 }, { dtype = torch.float32 })
  t.equal(torch.no_grad(function() return model.layers[1](x) end).dtype, torch.bfloat16)
end)

t.test("ACheckpointRegionGathersEachUnitOnceInBackward", function()
  local function passing(ckpt)
    return function(model, step)
      local x = model:full(function() return model.embedding.weight:clone() end)[{ { 0, 5 } }]
      x:requires_grad_(true)
      for _, layer in ipairs(model.layers) do x = ckpt and ckpt(layer, x) or layer(x) end
      (x * x):sum():backward()
      return step
    end
  end
  local plain, regions = sharding.fully_shard(fixture.net(), { prefetch = 0 }),
    sharding.fully_shard(fixture.net(), { prefetch = 0 })
  fixture.train(plain, 2, passing())
  fixture.train(regions, 2, passing(checkpoint.new { offload = "host" }))

  t.equal(regions:sharding_stats().gathers, plain:sharding_stats().gathers)
  t.truthy(fixture.distance(regions:state_dict(), plain:state_dict()) == 0)
end)

t.test("TilesOfOneLayerGatherItOnceAndGiveItsGradientsOnce", function()
  local Mlp = nn.Module:subclass("Mlp")
  function Mlp:init() self.up, self.down = nn.Linear(6, 20), nn.Linear(20, 6) end
  function Mlp:forward(x) return self.down(torch.gelu(self.up(x))) end
  local Tiled = nn.Module:subclass("Tiled")
  function Tiled:init(tiles) self.mlp, self.tiled = Mlp(), tiles and { run = tiled_mlp.new { tiles = tiles } } end
  function Tiled:forward(x) return self.tiled and self.tiled.run(self.mlp, x) or self.mlp(x) end
  local Stack = nn.Module:subclass("Stack")
  function Stack:init(tiles)
    self.layers = nn.ModuleList {}
    for _ = 1, 2 do self.layers:append(Tiled(tiles)) end
  end
  function Stack:forward(x)
    for _, layer in ipairs(self.layers) do x = layer(x) end
    return x
  end
  local results, stats = {}, {}
  for i, tiles in ipairs { false, 4 } do
    torch.manual_seed(3)
    local model = sharding.fully_shard(Stack(tiles))
    results[i] = fixture.train(model, 3, function(m, step)
      torch.manual_seed(100 * step + RANK)
      m(torch.randn({ 1, 8, 6 })):pow(2):sum():backward()
    end)
    stats[i] = model:sharding_stats()
  end
  t.truthy(fixture.distance(results[1], results[2]) < 1e-12)
  t.equal(stats[2].gathers, stats[1].gathers)
  t.equal(stats[2].reductions, stats[1].reductions)
end)

t.test("WholeValuesComeAndGoStateDictLoadStateDictFull", function()
  local net = fixture.net { tied = true }
  local before = {}
  for name, tensor in pairs(net:state_dict()) do before[name] = tensor:clone() end
  local model = sharding.fully_shard(net)
  t.truthy(fixture.distance(model:state_dict(), before) == 0)
  fixture.train(model, 2)
  local trained = model:state_dict()
  t.truthy(fixture.distance(trained, before) > 0)
  model:load_state_dict(before)
  t.truthy(fixture.distance(model:state_dict(), before) == 0)
  model:full(function(scale)
    t.truthy((net.head.weight - before["head.weight"]):abs():max():item() == 0)
    torch.no_grad(function() net.head.weight:mul_(scale) end)
  end, 2)
  t.truthy((model:state_dict()["head.weight"] - before["head.weight"] * 2):abs():max():item() == 0)
  before["head.weight"] = nil
  before.other = torch.zeros({ 1 })
  t.raises("head.weight is missing; other is not a name", function() model:load_state_dict(before) end)
end)

t.test("IgnoredParametersStayWholeAndTheirGradientsAreTheRanksOwn", function()
  local model = sharding.fully_shard(fixture.net(), { ignore = { "head", "layers.*.scale" } })
  local whole = {}
  for name, p in model:named_parameters() do whole[name] = p:dim() ~= 1 end
  t.equal(whole["head.weight"], true)
  t.equal(whole["layers.1.scale"], true)
  t.equal(whole["layers.1.up.weight"], false)
  model:loss(fixture.tokens(1)):backward()
  t.truthy(model.head.weight.grad ~= nil)
end)

-- Their gradients are each rank's own, and would give each rank another norm.
t.test("IgnoredParametersAreLeftOutOfTheNormAndNotClipped", function()
  local function model_after_backward()
    local model = sharding.fully_shard(fixture.net(), { ignore = { "head" } })
    model:loss(fixture.tokens(1)):backward()
    local parts = {}
    for name, p in model:named_parameters() do
      if name ~= "head.weight" then parts[#parts + 1] = p end
    end
    return model, parts, model.head.weight.grad:clone()
  end
  local model, _, own = model_after_backward()
  local expected = model:clip_grad_norm(1e-3)
  for _, with_ignored in ipairs { true, false } do
    local other, parts = model_after_backward()
    t.equal(optim.clip_grad_norm(with_ignored and other:parameters() or parts, 1e-3), expected)
    t.equal(other.head.weight.grad, own)
    t.near(other:clip_grad_norm(1):item(), 1e-3, 1e-6)
  end
  local other = model_after_backward()
  t.equal(optim.AdamW(other:parameters()):step(1, { max_grad_norm = 1e-3 }), expected)
  t.near(optim.clip_grad_norm({ other.head.weight }, 1e9):item(), torch.linalg_vector_norm(own):item(), 1e-12)
  local foreign = torch.ones({ 2 }):requires_grad_(true)
  t.raises("give all that it trains and no other", optim.clip_grad_norm, { foreign, unpack(other:parameters()) }, 1)
end)

t.test("ClipGradNormIsThatOfTheWholeModelInEachNorm", function()
  for _, p in ipairs { 1, 2, math.huge } do
    local model = sharding.fully_shard(fixture.net())
    local dp = replicas()
    model:loss(fixture.tokens(1)):backward()
    dp:loss(fixture.tokens(1)):backward()
    local flat = {}
    for _, parameter in ipairs(dp:parameters()) do flat[#flat + 1] = parameter.grad:reshape { -1 } end
    local expected = torch.linalg_vector_norm(torch.cat(flat), p):item()
    t.truthy(math.abs(model:clip_grad_norm(1e-3, { p = p }):item() - expected) < 1e-12 * expected)
    t.truthy(math.abs(model:clip_grad_norm(1, { p = p }):item() - 1e-3) < 1e-6)
  end
  local models, norms = {}, {}
  for i = 1, 2 do
    models[i] = sharding.fully_shard(fixture.net())
    models[i]:loss(fixture.tokens(1)):backward()
  end
  norms[1], norms[2] = models[1]:clip_grad_norm(1e-3), optim.clip_grad_norm(models[2]:parameters(), 1e-3)
  t.equal(norms[1], norms[2])
  t.raises("model:clip_grad_norm", optim.clip_grad_norm, { models[1]:parameters()[1] }, 1)
end)

t.test("AValidationPassWithoutGradientsFreesEverything", function()
  local model = sharding.fully_shard(fixture.net())
  torch.no_grad(function() for step = 1, 3 do model:loss(fixture.tokens(step)) end end)
  -- No other unit takes the place of the root or of the last unit.
  t.raises('"head.weight" is sharded now', function() return (model.head.weight + 1):sum():item() end)
  t.raises('"layers.2.up.weight" is sharded now', function() return (model.layers[3].up.weight + 1):sum():item() end)
  fixture.train(model, 2, function(m, step)
    local loss = m:loss(fixture.tokens(step))
    torch.no_grad(function() m:loss(fixture.tokens(step + 9)) end)
    loss:backward()
  end)
  t.raises('"layers.1.up.weight" is sharded now', function() return (model.layers[2].up.weight + 1):sum():item() end)
end)

t.test("WeightsOutsideTheirUnitAndGraphsFromBeforeAStepAreErrors", function()
  local model = sharding.fully_shard(fixture.net())
  t.raises('fully_shard: "layers.0.up.weight" is sharded now, and its values are not here: call the module',
    function() return torch.linear(torch.zeros({ 1, 6 }), model.layers[1].up.weight) end)
  local loss = model:loss(fixture.tokens(1))
  loss:backward { retain_graph = true }
  torch.no_grad(function()
    for _, shard in ipairs(model:parameters()) do shard:mul_(0.5) end
  end)
  t.raises("modified by an inplace operation", function() loss:backward() end)
  model:loss(fixture.tokens(1)):backward() -- and goes on
end)

t.test("AViewOfAWeightThatIsKeptBeyondItsForwardIsAnError", function()
  local model, kept = sharding.fully_shard(fixture.net()), nil
  local layer = model.layers[1].up
  local forward = layer.forward
  function layer:forward(x)
    kept = self.weight:t()
    return forward(self, x)
  end
  for _, run in ipairs { function(fn) fn() end, torch.no_grad } do
    run(function() model:loss(fixture.tokens(1)) end)
    for _, use in ipairs { function() return kept + 1 end, function() return kept:sum():item() end, tostring } do
      t.raises("it is a view of a sharded module's weight", use, kept)
    end
  end
  fixture.train(model, 2) -- and goes on; the graph's own views are as before
end)

-- Its graph keeps a view of the weight, and a multiplication reads such a view's memory unseen.
t.test("BackwardOfAResultThatLeftItsUnitByAnotherWayIsAnError", function()
  local Leak = nn.Module:subclass("Leak")
  function Leak:init(kept) self.weight, self.kept = torch.ones({ 1, 6 }):requires_grad_(true), kept end
  function Leak:forward(x)
    self.kept.product = x * self.weight:view { 6 }
    return x * 2
  end
  local Net, kept = nn.Module:subclass("Net"), {}
  function Net:init() self.layers = nn.ModuleList { Leak(kept), nn.Linear(6, 6) } end
  function Net:forward(x)
    for _, layer in ipairs(self.layers) do x = layer(x) end
    return x
  end
  local model, x = sharding.fully_shard(Net()), torch.ones({ 2, 6 }):requires_grad_(true)
  local loss = model(x):sum()
  t.raises("modified by an inplace operation", function() kept.product:sum():backward() end)
  loss:backward()
end)

--- Calls fn, and returns after what it made and dropped has been freed.
local function dropping(fn, ...)
  local result = fn(...)
  for _ = 1, 3 do collectgarbage() end
  return result
end

t.test("AModelThatNobodyHoldsIsFreed", function()
  local held = dropping(function()
    local model = sharding.fully_shard(fixture.net())
    model:loss(fixture.tokens(1)):backward()
    return setmetatable({ model, model:parameters()[1], model.layers[1] }, { __mode = "v" })
  end)

  t.equal(next(held), nil)
end)

t.test("AModelWhoseNetIsHeldStaysSharded", function()
  local net = fixture.net()
  local shards = dropping(function() return sharding.fully_shard(net):parameters() end)
  local other = sharding.fully_shard(fixture.net())
  net:loss(fixture.tokens(1)):backward()
  other:loss(fixture.tokens(1)):backward()

  t.raises("sharded already", function() sharding.fully_shard(net) end)
  t.equal(optim.clip_grad_norm(shards, 1), other:clip_grad_norm(1))
end)

t.test("NoPassUsesWeightsFromBeforeAFusedStep", function()
  for _, options in ipairs { {}, { reshard_after_forward = false } } do
    local model, x = sharding.fully_shard(fixture.net(), options), torch.ones({ 1, 6 })
    local optimizer = optim.AdamW(model:parameters(), { lr = 0.1 })
    model:loss(fixture.tokens(1)):backward()
    local kept = model:loss(fixture.tokens(1)) -- leaves weights gathered
    local before = torch.no_grad(function() return model.layers[1](x) end)
    optimizer:step()
    local after = torch.no_grad(function() return model.layers[1](x) end)
    t.truthy(not torch.equal(before, after))
    local replica = fixture.net()
    replica:load_state_dict(model:state_dict())
    t.truthy((after - replica.layers[1](x)):abs():max():item() < 1e-12)
    t.truthy((model:loss(fixture.tokens(1)) - replica:loss(fixture.tokens(1))):abs():item() < 1e-12)
    t.truthy(kept)
  end
end)

t.test("AfterAnErrorWithinAUnitOnEveryRankTrainingGoesOn", function()
  local model = sharding.fully_shard(fixture.net())
  local expected = fixture.train(sharding.fully_shard(fixture.net()), 2)
  t.raises("", function() model:loss(torch.zeros({ 2, 2 }, { dtype = torch.float64 })) end)
  local loss = model:loss(fixture.tokens(1))
  model.layers[2].up.weight:register_hook(function() if loss then error("in backward") end end)
  t.raises("in backward", function() loss:backward() end)
  loss = nil
  -- As an optimizer forgets them; model:zero_grad() would drop the partial gradients itself.
  for _, p in ipairs(model:parameters()) do p.grad = nil end
  t.truthy(fixture.distance(fixture.train(model, 2), expected) < 1e-12)
end)

t.test("OptionsAreChecked", function()
  local function complains(options, message)
    t.raises(message, sharding.fully_shard, fixture.net(), options)
  end
  complains({ unit = {} }, 'did you mean "units"')
  complains({ units = "layers.*" }, 'units must be an array of names, such as { "layers.*" }, not a string')
  complains({ units = { "layer.*" } }, 'no module is named "layer.*"')
  complains({ units = { "layers" } }, "is a ModuleList, which has no forward")
  complains({ skipped = "skip" }, 'skipped must be "error" or "join"')
  complains({ offload = "disk" }, 'offload must be "host"')
  complains({ prefetch = -1 }, "prefetch must be at least 0")
  complains({ replicas = 7 }, "replicas must divide the " .. WORLD .. " ranks")
  complains({ ignore = { "none" } }, 'ignore: no parameter or module is named "none"')
  complains({ param_dtype = torch.int64 }, "must be a floating-point dtype")
  local net = fixture.net()
  sharding.fully_shard(net)
  t.raises("sharded already", function() sharding.fully_shard(net) end)
  if WORLD > 1 then
    complains({ prefetch = RANK }, "rank 1: prefetch: 1")
    complains({ replicas = RANK == 1 and WORLD or 1 }, "rank 1: replicas: " .. WORLD)
    t.raises('rank 1: unit "", embedding.weight: Double [13, 4], trained',
      sharding.fully_shard, fixture.net { hidden = RANK == 1 and 4 or 6 })
  end
end)
