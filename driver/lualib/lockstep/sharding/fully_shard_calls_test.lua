--- Tests calls of a sharded model in other forms than a forward and its backward: units alone, passes that overlap,
--- checkpoints, frozen weights, whole values in the middle of a pass.

local checkpoint = require "lockstep.checkpoint"
local dist = require "lockstep.distributed"
local fixture = require "fully_shard_fixture"
local nn = require "lockstep.nn"
local sharding = require "lockstep.sharding"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local RANK = dist.rank()
torch.set_default_dtype(torch.float64)

--- Inputs of a layer, for this rank and a step.
local function inputs(step) return (torch.arange(12):remainder(5 + RANK) * 0.3 + step / 7):double():view { 2, 6 } end

-- Units and roots -------------------------------------------------------------------------------------------

t.test("ARootMayTakeNoInputs", function()
  local Alone = nn.Module:subclass("Alone")
  function Alone:init()
    self.layers, self.start = nn.ModuleList { nn.Linear(6, 6) }, torch.ones({ 6 }):requires_grad_(true)
  end
  function Alone:forward() return torch.tanh(self.layers[1](self.start * (1 + RANK))) end
  local function trained(shard)
    torch.manual_seed(2)
    return fixture.train(shard(Alone()), 3, function(m) m():sum():backward() end)
  end

  t.truthy(fixture.distance(trained(sharding.fully_shard), trained(sharding.data_parallel)) < 1e-12)
end)

t.test("AUnitMayBeCalledAloneAfterTheRootsBackward", function()
  local function loss_of(net) return net.layers[2](inputs(1)):pow(2):sum() end
  local expected = fixture.expected_gradients(function(net) return net:loss(fixture.tokens(1)) + loss_of(net) end)
  for _, options in ipairs { {}, { reshard_after_forward = false }, { prefetch = 0 } } do
    local model = sharding.fully_shard(fixture.net(), options)
    model:loss(fixture.tokens(1)):backward()
    loss_of(model):backward()
    fixture.check_gradients(model, expected, "alone")
  end
end)

-- Hooks ---------------------------------------------------------------------------------------------------

t.test("AHookOfASpanGetsTheAveragedGradientOnceAndMayReplaceIt", function()
  local expected = fixture.expected_gradients(function(net)
    return net:loss(fixture.tokens(1)) + net:loss(fixture.tokens(2)) * 2 + net:loss(fixture.tokens(3)) * 2
  end)
  local model, calls, factor = sharding.fully_shard(fixture.net()), 0, 1
  local handles, kept = {}, {}
  for i, span in ipairs(model:parameters()) do
    handles[i] = span:register_hook(function(gradient)
      calls, kept[i] = calls + 1, gradient * factor
      t.equal(gradient.shape, span.shape)
      return kept[i]
    end)
  end

  model:loss(fixture.tokens(1)):backward()
  t.equal(calls, #handles)
  local first = kept[1]:clone()
  factor = 2
  model:no_sync(function() model:loss(fixture.tokens(2)):backward() end)
  t.equal(calls, #handles)
  local before = kept[1]
  model:loss(fixture.tokens(3)):backward()

  t.equal(calls, 2 * #handles)
  fixture.check_gradients(model, expected, "hooks")
  t.equal(before, first) -- what a hook returned is not added to
  for _, handle in ipairs(handles) do handle:remove() end
  model:loss(fixture.tokens(1)):backward()
  t.equal(calls, 2 * #handles)
end)

t.test("AHookOfASpanThatReturnsAnotherShapeIsAnError", function()
  local model = sharding.fully_shard(fixture.net())
  model:parameters()[1]:register_hook(function() return torch.ones { 2, 2, 2 } end)

  t.raises("has changed the size of value", function() model:loss(fixture.tokens(1)):backward() end)
end)

-- Calls of parts ------------------------------------------------------------------------------------------

t.test("AnotherMethodOfAUnitFindsItsWeightsSharded", function()
  local model = sharding.fully_shard(fixture.net())
  local layer = model.layers[1]
  function layer:other(x) return self.down(self.up(x)) end

  t.raises('" is sharded now, and its values are not here: call the module', function() layer:other(inputs(1)) end)
end)

-- Only the detached weight is needed behind the weight's own gradient.
t.test("AUnitStaysGatheredForAWeightThatItAlsoUsesDetached", function()
  local Twice = nn.Module:subclass("Twice")
  function Twice:init() self.weight = torch.eye(6):requires_grad_(true) end
  function Twice:forward(x) return torch.mm(torch.tanh(torch.mm(x, self.weight:detach())), self.weight) end
  local Net = nn.Module:subclass("Net")
  function Net:init() self.layers = nn.ModuleList { nn.Linear(6, 6), Twice(), nn.Linear(6, 6) } end
  function Net:forward(x)
    for _, layer in ipairs(self.layers) do x = layer(x) end
    return x
  end
  local function trained(shard, ...)
    torch.manual_seed(2)
    return fixture.train(shard(Net(), ...), 3, function(m, step) m(inputs(step)):pow(2):sum():backward() end)
  end

  local expected = trained(sharding.data_parallel)
  for prefetch = 0, 1 do
    t.truthy(fixture.distance(trained(sharding.fully_shard, { prefetch = prefetch }), expected) < 1e-12)
  end
end)

-- Passes that overlap -----------------------------------------------------------------------------------------

t.test("PassesOfAPipelineMayOverlapAndReduceInEachBackwardOrOnlyInTheLast", function()
  local expected = fixture.expected_gradients(function(net)
    local sum = 0
    for step = 1, 4 do sum = sum + net:loss(fixture.tokens(step)) end
    return sum
  end)
  for _, options in ipairs { {}, { reshard_after_forward = false }, { prefetch = 0 } } do
    for _, syncs in ipairs { true, false } do
      local model, losses = sharding.fully_shard(fixture.net(), options), {}
      local function forward(step) losses[step] = model:loss(fixture.tokens(step)) end
      local function backward(step)
        if syncs or step == 4 then return losses[step]:backward() end
        model:no_sync(function() losses[step]:backward() end)
      end
      -- One forward and one backward, as the stage before the last of a pipeline runs them.
      forward(1)
      for step = 1, 3 do
        forward(step + 1)
        backward(step)
      end
      backward(4)
      fixture.check_gradients(model, expected, syncs and "each" or "last")
      t.equal(model:sharding_stats().reductions, syncs and 16 or 4)
    end
  end
end)

t.test("TwoCheckpointedForwardsShareOneBackward", function()
  local function loss_of(model, ckpt)
    local function logits(step)
      local x = inputs(step):requires_grad_(true)
      for _, layer in ipairs(model.layers) do x = ckpt and ckpt(layer, x) or layer(x) end
      return x:pow(2):sum()
    end
    return torch.log_sigmoid(logits(1) - logits(2)) -- as the loss of preferences
  end
  local expected = fixture.expected_gradients(loss_of)
  for _, options in ipairs { {}, { reshard_after_forward = false }, { prefetch = 0 } } do
    local model = sharding.fully_shard(fixture.net(), options)
    loss_of(model, checkpoint.new {}):backward()
    for name in pairs(expected) do
      if not name:find "^layers" then expected[name] = nil end
    end
    fixture.check_gradients(model, expected, "two forwards")
  end
end)

t.test("CheckpointedLayersMayShareWeightsWithEachOtherAndWithTheRoot", function()
  local ckpt = checkpoint.new {}
  local function tied(recomputes)
    local net = fixture.net { tied = true }
    net.layers[3].up.weight = net.layers[1].up.weight
    function net:forward(tokens)
      local x = self.embedding(tokens)
      for _, layer in ipairs(self.layers) do x = recomputes and ckpt(layer, x) or layer(x) end
      return self.head(x):pow(2):sum()
    end
    return net
  end
  local function pass(model, step) model(fixture.tokens(step)):backward() end
  local expected = fixture.train(sharding.data_parallel(tied(false)), 3, pass)
  for _, options in ipairs { {}, { reshard_after_forward = false }, { units = { "layers.*", "layers.*.up" } } } do
    t.truthy(fixture.distance(fixture.train(sharding.fully_shard(tied(true), options), 3, pass), expected) < 1e-12)
  end
end)

-- Gradients ---------------------------------------------------------------------------------------------------

t.test("GradientsOfNoSyncAddUpInTheReduceDtype", function()
  local function in_float32()
    local net = fixture.net()
    for _, p in ipairs(net:parameters()) do p:set_data(p:detach():float()) end
    return net
  end
  local options = { param_dtype = torch.bfloat16, reduce_dtype = torch.float32 }
  local sums
  for step = 1, 3 do
    local one = sharding.fully_shard(in_float32(), options)
    one:loss(fixture.tokens(step)):backward()
    local found = fixture.whole_gradients(one)
    for name, gradient in pairs(found) do found[name] = sums and sums[name] + gradient or gradient end
    sums = found
  end
  local model = sharding.fully_shard(in_float32(), options)
  model:no_sync(function() for step = 1, 2 do model:loss(fixture.tokens(step)):backward() end end)
  model:loss(fixture.tokens(3)):backward()

  -- In bfloat16 the sums would be wrong by 1e-3 of them.
  for name, gradient in pairs(fixture.whole_gradients(model)) do
    t.near(gradient, sums[name], 1e-6 * math.max(1, sums[name]:abs():max():item()), name)
  end
end)

t.test("AFrozenUnitIsNotReducedAndTheOthersAreAsBackwardLeavesThem", function()
  local net = fixture.net()
  net.layers[2]:requires_grad_(false)
  net.layers[3].up:requires_grad_(false)
  local model, is_reduced = sharding.fully_shard(net), nil
  local function shard_of(wanted)
    for name, shard in model:named_parameters() do
      if name == wanted then return shard end
    end
  end
  model.layers[1].up.weight:register_hook(function()
    is_reduced = shard_of("layers.2.down.weight").grad ~= nil and shard_of("layers.2.up.weight").grad == nil
  end)
  for step = 1, 3 do
    torch.no_grad(function() model:loss(fixture.tokens(step + 5)) end)
    local before = model:sharding_stats().reductions
    model:loss(fixture.tokens(step)):backward()
    t.equal(model:sharding_stats().reductions - before, 3) -- the root and two layers
    t.equal(is_reduced, true)
    model:zero_grad()
  end
end)

-- Whole values ------------------------------------------------------------------------------------------------

t.test("WholeValuesMayBeReadAndSetBetweenForwardAndBackward", function()
  local model, reference = sharding.fully_shard(fixture.net()), sharding.fully_shard(fixture.net())
  local before = model:state_dict()
  local loss = model:loss(fixture.tokens(1))
  t.truthy(fixture.distance(model:state_dict(), before) == 0)
  loss:backward()
  reference:loss(fixture.tokens(1)):backward()
  fixture.check_gradients(model, fixture.whole_gradients(reference), "after state_dict")

  loss = model:loss(fixture.tokens(1))
  model:load_state_dict(before)
  t.raises("modified by an inplace operation", function() loss:backward() end)
  t.truthy(fixture.distance(model:state_dict(), before) == 0)
end)

-- Collectives -------------------------------------------------------------------------------------------------

t.test("UnitsAreGatheredAheadByAsManyAsPrefetchSays", function()
  if dist.world_size() == 1 then return end -- nothing is gathered there
  for prefetch = 0, 3 do
    local model = sharding.fully_shard(fixture.net(), { prefetch = prefetch })
    local seen, start = {}, 0
    local function note() seen[#seen + 1] = model:sharding_stats().gathers - start end
    for _, layer in ipairs(model.layers) do
      layer.up:register_forward_hook(note)
      layer.up.weight:register_hook(note)
    end
    for step = 1, 2 do
      seen, start = {}, model:sharding_stats().gathers
      model:loss(fixture.tokens(step)):backward()
    end

    local function up_to(number, most) return math.min(number + prefetch, most) end
    -- The root is the first, and the last layer is still there in backward.
    local expected = { up_to(2, 4), up_to(3, 4), up_to(4, 4), up_to(4, 6), up_to(5, 6), up_to(6, 6) }
    t.equal(seen, expected, "prefetch " .. prefetch)
  end
end)

-- Two passes use other units, and their backwards come later, as in a pipeline's stages. Lua frees the graph of a
-- backward that is over at another time on each rank: were it to decide what is gathered ahead, the ranks would differ.
t.test("AGraphThatOneRankStillHoldsChangesNoGather", function()
  local Net = nn.Module:subclass("Net")
  function Net:init()
    self.layers = nn.ModuleList()
    for i = 1, 4 do self.layers[i] = nn.Linear(6, 6) end
  end
  function Net:forward(x, first)
    for i = first, first + 1 do x = torch.tanh(self.layers[i](x)) end
    return x:sum()
  end
  torch.manual_seed(3)
  local whole = Net()
  torch.manual_seed(3)
  local model = sharding.fully_shard(Net(), { prefetch = 2 })
  for step = 1, 2 do
    local first, second = model(inputs(step), 1), model(inputs(step), 3)
    second:backward()
    if RANK > 0 then second = nil end
    collectgarbage()
    collectgarbage()
    first:backward()
    for one = 1, 3, 2 do whole(inputs(step), one):backward() end
    t.truthy(first ~= second)
  end
  local expected = {}
  for name, p in whole:named_parameters() do expected[name] = dist.all_reduce(p.grad, "avg") end
  fixture.check_gradients(model, expected, "two passes")
end)
