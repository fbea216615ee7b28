--- Tests mistakes around a sharded model that would otherwise change results in silence.

local dist = require "lockstep.distributed"
local fixture = require "fully_shard_fixture"
local nn = require "lockstep.nn"
local sharding = require "lockstep.sharding"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

torch.set_default_dtype(torch.float64)

-- Changes in place --------------------------------------------------------------------------------------------

--- A change of a weight without a graph.
local function fill(tensor, value) torch.no_grad(function() tensor:fill_(value) end) end

t.test("AWeightThatIsChangedInItsForwardIsNamed", function()
  for _, where in ipairs { "layers.1.up.weight", "head.weight" } do
    local net = fixture.net()
    local changed = where == "head.weight" and net.head or net.layers[2].up
    changed:register_forward_hook(function() fill(changed.weight, 0.5) end)
    local model = sharding.fully_shard(net)
    t.raises(('fully_shard: "%s" was changed in place in or after its forward; the change would be lost: change it '
      .. "inside model:full(fn)"):format(where), function() torch.no_grad(function() model(fixture.tokens(1)) end) end)
  end
end)

t.test("AWeightThatIsChangedAfterForwardWhileItIsStillThereIsNamedByWhatComesNext", function()
  local function backward(_, loss) loss:backward() end
  local function state(model) model:state_dict() end
  local function forward(model) model(fixture.tokens(2)) end
  for _, next_call in ipairs { backward, state, forward } do
    local model = sharding.fully_shard(fixture.net())
    local loss = model:loss(fixture.tokens(1))
    fill(model.embedding.weight, 0.5)
    t.raises('"embedding.weight" was changed in place', function() next_call(model, loss) end)
    if dist.world_size() > 1 then t.truthy((model:state_dict()["embedding.weight"] - 0.5):abs():max():item() > 0) end
  end
end)

t.test("ChangesInFullAreKeptAndNoneIsFoundLater", function()
  local model = sharding.fully_shard(fixture.net())
  model:loss(fixture.tokens(1)):backward()
  model:full(function() fill(model.layers[1].up.weight, 0.5) end)
  model:loss(fixture.tokens(2)):backward()
  t.equal((model:state_dict()["layers.0.up.weight"] - 0.5):abs():max():item(), 0)
end)

-- Ranks that differ -------------------------------------------------------------------------------------------

--- The shard of a parameter.
local function shard_of(model, wanted)
  for name, shard in model:named_parameters() do
    if name == wanted then return shard end
  end
end

t.test("AWeightThatOneRankFreezesIsNamedAtTheEndOfForward", function()
  if dist.world_size() == 1 then return end
  for _, skipped in ipairs { "error", "join" } do
    local model = sharding.fully_shard(fixture.net(), { skipped = skipped })
    model:loss(fixture.tokens(1)):backward()
    if dist.rank() == 1 then shard_of(model, "layers.1.up.weight"):requires_grad_(false) end
    local _, message = pcall(function() return model:loss(fixture.tokens(2)) end)
    for _, expected in ipairs { "the ranks differ in pass 2, where each ends forward, in 1 places:",
      'rank 0: "layers.1.up.weight" is trained', 'rank 1: "layers.1.up.weight" is frozen' } do
      t.truthy(tostring(message):find(expected, 1, true), tostring(message))
    end
  end
end)

t.test("AWeightThatOneRankFreezesBetweenForwardAndBackwardIsNamedBeforeItsReduction", function()
  if dist.world_size() == 1 then return end
  local model = sharding.fully_shard(fixture.net())
  local loss = model:loss(fixture.tokens(1))
  if dist.rank() == 1 then shard_of(model, "layers.1.up.weight"):requires_grad_(false) end
  t.raises('rank 1: "layers.1.up.weight" is frozen', function() loss:backward() end)
end)

t.test("AWeightThatAllRanksFreezeIsNoError", function()
  local model = sharding.fully_shard(fixture.net())
  for step = 1, 2 do
    model:loss(fixture.tokens(step)):backward()
    model:zero_grad()
    shard_of(model, "layers.1.up.weight"):requires_grad_(step == 2)
  end
  model:loss(fixture.tokens(3)):backward()
  t.truthy(shard_of(model, "layers.1.up.weight").grad)
end)

t.test("RanksThatClipGradientsToDifferentNormsAreNamed", function()
  if dist.world_size() == 1 then return end
  for _, other in ipairs { { 10, 2 }, { 1, 3 } } do
    local model = sharding.fully_shard(fixture.net())
    model:loss(fixture.tokens(1)):backward()
    local max_norm, p = 1, 2
    if dist.rank() == 1 then max_norm, p = other[1], other[2] end
    t.raises(("rank 1: max_norm %d, p %d"):format(other[1], other[2]), function()
      model:clip_grad_norm(max_norm, { p = p })
    end)
  end
end)

-- Parameters that are replaced --------------------------------------------------------------------------------

t.test("AParameterOrModuleThatIsReplacedIsNamedAtTheNextForward", function()
  local function weight() return torch.zeros({ 18, 6 }):requires_grad_(true) end
  local function outside(model) model.layers[1].up.weight = weight() end
  local function in_full(model) model:full(outside, model) end
  local function module(model) model.layers[1].up = nn.Linear(6, 18) end
  for _, replace in ipairs { outside, in_full, module } do
    local model = sharding.fully_shard(fixture.net())
    model:loss(fixture.tokens(1)):backward()
    replace(model)
    t.raises('fully_shard: "layers.0.up.weight" was replaced after the model was sharded', function()
      model:loss(fixture.tokens(2))
    end)
  end
end)

t.test("AModuleMayTakeThePlaceOfAnotherWithTheSameParameters", function()
  local model = sharding.fully_shard(fixture.net())
  local linear = nn.Linear(6, 18)
  linear.weight, linear.bias = model.layers[1].up.weight, model.layers[1].up.bias
  model.layers[1].up = linear
  model:loss(fixture.tokens(1)):backward()
end)

t.test("AFrozenTensorMayTakeThePlaceOfAParameterForAWhile", function()
  local model = sharding.fully_shard(fixture.net())
  local up = model.layers[1].up
  local own = up.weight
  up.weight = torch.zeros({ 18, 6 })
  torch.no_grad(function() model:loss(fixture.tokens(1)) end)
  up.weight = own
  model:loss(fixture.tokens(1)):backward()
end)

-- Shared memory -----------------------------------------------------------------------------------------------

--- A network with two fields that are made of one tensor.
local function with_fields(make)
  local Net = nn.Module:subclass("Net")
  function Net:init()
    local a, b = make(torch.ones({ 6, 4 }))
    self.a = a
    self.b = b
  end
  function Net:forward(x) return x * self.a:sum() * self.b:sum() end
  return Net()
end

t.test("ParametersThatShareMemoryWithOtherFieldsAreRefused", function()
  local function rows(base)
    return base:narrow(0, 0, 4):requires_grad_(true), base:narrow(0, 3, 3):requires_grad_(true)
  end
  local function transposed(base) return base:requires_grad_(true), base:detach():t() end
  t.raises('fully_shard: "b" shares memory with "a"', function() sharding.fully_shard(with_fields(rows)) end)
  t.raises('a buffer of shape [4, 6] shares memory with "a"', function()
    sharding.fully_shard(with_fields(transposed))
  end)
end)

t.test("ParametersOfOneTensorThatLieBesideOrBetweenEachOtherAreNotRefused", function()
  for dim = 0, 1 do
    local model = sharding.fully_shard(with_fields(function(base)
      return base:narrow(dim, 0, 2):requires_grad_(true), base:narrow(dim, 2, 2):requires_grad_(true)
    end))
    model(torch.ones({ 1 })):sum():backward()
  end
end)

t.test("AModuleIsShardedOnce", function()
  local net = fixture.net()
  sharding.fully_shard(net)
  t.raises("sharding.fully_shard: the module is sharded already; shard the whole module once", sharding.fully_shard,
    net)
  t.raises('sharding.fully_shard: "0" is sharded already', sharding.fully_shard,
    nn.Sequential { net, nn.Linear(1, 1) }, { units = { "0" } })
end)
