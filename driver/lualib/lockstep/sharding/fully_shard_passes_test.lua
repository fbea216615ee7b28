--- Tests the gathers, reductions and memory of a pass of a sharded model, and the forms of passes and modules.

local checkpoint = require "lockstep.checkpoint"
local core_sharding = require "lockstep.core.sharding"
local dist = require "lockstep.distributed"
local fixture = require "fully_shard_fixture"
local nn = require "lockstep.nn"
local optim = require "lockstep.optim"
local sharding = require "lockstep.sharding"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"
local units = require "lockstep.sharding.units"

local RANK, WORLD = dist.rank(), dist.world_size()
torch.set_default_dtype(torch.float64)

--- Returns how the counts of a model change while fn runs.
local function counts_of(model, fn)
  local before, change = model:sharding_stats(), {}
  fn()
  for name, value in pairs(model:sharding_stats()) do change[name] = value - before[name] end
  return change
end

local expected_gradients, check_gradients = fixture.expected_gradients, fixture.check_gradients

-- Collectives and memory ----------------------------------------------------------------------------------

t.test("EachUnitIsGatheredTwiceAndReducedOnceInAStep", function()
  -- The root stays gathered, and so does the last layer, where backward begins.
  local cases = {
    { {}, gathers = 1 + 3 + 2, reductions = 4 },
    { { reshard_after_forward = false }, gathers = 1 + 3, reductions = 4 },
    { { units = {} }, gathers = 1, reductions = 1 },
    { { units = { "layers.1" } }, gathers = 2, reductions = 2 },
    { { prefetch = 0 }, gathers = 1 + 3 + 2, reductions = 4 },
    { { prefetch = 3 }, gathers = 1 + 3 + 2, reductions = 4 },
  }
  for i, case in ipairs(cases) do
    local model = sharding.fully_shard(fixture.net(), case[1])
    for step = 1, 3 do
      local counts = counts_of(model, function() model:loss(fixture.tokens(step)):backward() end)
      t.equal({ counts.gathers, counts.reductions, counts.joined }, { case.gathers, case.reductions, 0 }, "case " .. i)
      -- From the second step on all but the root are gathered ahead.
      if step > 1 and WORLD > 1 and i == 1 then t.equal(counts.prefetched, 3 + 2) end
      if WORLD > 1 and i == 5 then t.equal(counts.prefetched, 0) end
    end
    local counts = counts_of(model, function()
      torch.no_grad(function() model:loss(fixture.tokens(9)) end)
    end)
    t.equal({ counts.gathers, counts.reductions }, { case.reductions, 0 }, "case " .. i)
  end
end)

t.test("NoSyncReducesNothingAndOtherMicroBatchesOnceEach", function()
  local model = sharding.fully_shard(fixture.net())
  local function pass() model:loss(fixture.tokens(1)):backward() end

  t.equal(counts_of(model, function() model:no_sync(pass) end).reductions, 0)
  t.equal(counts_of(model, pass).reductions, 4)
  t.equal(counts_of(model, pass).reductions, 4)
end)

--- Returns the peaks of a model's buffers after passes without gradients, and after steps, in bytes.
local function peaks_of(model)
  torch.no_grad(function() for step = 1, 2 do model:loss(fixture.tokens(step)) end end)
  local forward, backward = model:sharding_stats().peak_pool_bytes, nil
  for step = 1, 4 do
    model:loss(fixture.tokens(step)):backward()
    model:zero_grad()
    backward = backward or model:sharding_stats().peak_pool_bytes
    t.equal(model:sharding_stats().peak_pool_bytes, backward, "step " .. step)
  end
  return forward, backward
end

t.test("MemoryIsThatOfAFewUnitsAndStaysAsItIsAfterTheFirstStep", function()
  for prefetch = 0, 2 do
    local model = sharding.fully_shard(fixture.net { layers = 8, hidden = 32 }, { prefetch = prefetch })
    local stats = model:sharding_stats()
    local unit, root = stats.largest_unit_bytes, stats.root_bytes
    local forward, backward = peaks_of(model)
    -- A unit's gradients take the place of its weights while they travel; in float64 they are as large.
    local expected = WORLD == 1 and { 0, 0 } or { (1 + prefetch) * unit + root, (2 + prefetch) * unit + 3 * root }
    t.equal({ forward, backward }, expected, ("%d ahead, unit %d, root %d"):format(prefetch, unit, root))
  end
end)

t.test("AUnitOfFrozenAndTrainedWeightsTakesOneBufferAndItsGradientsASmallOne", function()
  local net = fixture.net { layers = 8, hidden = 32 }
  for name, p in net:named_parameters() do p:requires_grad_(name:find "bias" ~= nil) end
  local model = sharding.fully_shard(net)
  local stats = model:sharding_stats()
  local unit, root = stats.largest_unit_bytes, stats.root_bytes
  local forward, backward = peaks_of(model)
  if WORLD == 1 then return end -- nothing is gathered there
  t.equal(forward, 2 * unit + root)
  -- The biases of a layer are a thirtieth of it.
  t.truthy(backward < 2.2 * unit + root, ("%g units, root %g"):format(backward / unit, root / unit))
end)

-- A layer that is called twice in a row stays where it is.
t.test("AUnitThatIsCalledTwiceInARowIsGatheredOnceInBackward", function()
  local model = sharding.fully_shard(fixture.net(), { prefetch = 0 })
  for step = 1, 2 do
    local counts = counts_of(model, function() model:loss(fixture.tokens(step), { 1, 1, 2, 2, 3, 3 }):backward() end)
    t.equal({ counts.gathers, counts.reductions }, { 1 + 3 + 2, 4 })
  end
end)

t.test("ZeroGradGivesTheGradientsOfNoSyncUp", function()
  local expected = expected_gradients(function(net) return net:loss(fixture.tokens(2)) end)
  local model = sharding.fully_shard(fixture.net())
  model:no_sync(function() model:loss(fixture.tokens(1)):backward() end)
  model:zero_grad()
  model:loss(fixture.tokens(2)):backward()
  check_gradients(model, expected, "after zero_grad")
end)

-- The first unit's inputs need no gradient, so no boundary tells when backward leaves it.
t.test("AfterNoSyncAUnitIsGatheredUntilItsLastGradient", function()
  local Chain = nn.Module:subclass("Chain")
  function Chain:init() self.a, self.b, self.c = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 6) end
  function Chain:forward(x) return torch.tanh(self.c(torch.tanh(self.b(torch.tanh(self.a(x)))))) end
  local Net = nn.Module:subclass("Net")
  function Net:init() self.layers = nn.ModuleList { Chain(), Chain() } end
  function Net:forward(x)
    for _, layer in ipairs(self.layers) do x = layer(x) end
    return x
  end
  local function passes(model)
    local function pass(number)
      torch.manual_seed(10 * number + RANK)
      model(torch.randn { 2, 6 }):pow(2):sum():backward()
    end
    model:no_sync(pass, 1)
    pass(2)
  end
  local function trained(shard)
    torch.manual_seed(4)
    return fixture.train(shard(Net()), 3, passes)
  end
  t.truthy(fixture.distance(trained(sharding.fully_shard), trained(sharding.data_parallel)) < 1e-12)
end)

t.test("ParametersWithoutValuesAreNeverReadAndBeginAsZeros", function()
  local ones = torch.ones({ 70 }):requires_grad_(true)
  local unit = { name = "", parameters = { { "ones", ones } } }
  local core_model = core_sharding.fully_shard({ unit }, {}, { has_values = false })
  t.equal(core_model:gather(0).ones, torch.zeros({ 70 }))

  local meta = nn.Linear(3, 3)
  for _, place in ipairs(nn.parameter_places(meta)) do
    place.fields[place.name] = torch.empty(place.tensor.shape, { device = "meta" }):requires_grad_(true)
  end
  t.raises("is on the device meta and has no values", sharding.fully_shard, meta)
end)

-- Numbers ---------------------------------------------------------------------------------------------------

t.test("GradientsAreAddedUpInTheOrderOfRanks", function()
  local function loss_of(net) return net:loss(fixture.tokens(3)) * (1 + RANK / 3) end
  for _, options in ipairs { {}, { deterministic = true } } do
    local net, model = fixture.net(), sharding.fully_shard(fixture.net(), options)
    loss_of(net):backward()
    loss_of(model):backward()
    local found = fixture.whole_gradients(model)
    for name, p in net:named_parameters() do
      local all = dist.all_gather_object(p.grad:reshape({ -1 }):totable())
      local sum = torch.tensor(all[1])
      for rank = 2, WORLD do sum = sum + torch.tensor(all[rank]) end
      t.truthy(torch.equal(found[name], sum / WORLD), name)
    end
  end
end)

t.test("GradientsTravelInTheReduceDtypeAndAreAddedUpInFloat32", function()
  local function in_float32(net)
    for _, p in ipairs(net:parameters()) do p:set_data(p:detach():float()) end
    return net
  end
  local net = in_float32(fixture.net())
  local model = sharding.fully_shard(in_float32(fixture.net()), { reduce_dtype = torch.bfloat16 })
  net:loss(fixture.tokens(3)):backward()
  model:loss(fixture.tokens(3)):backward()
  local found = fixture.whole_gradients(model)
  for name, p in net:named_parameters() do
    local rounded = p.grad:to(torch.bfloat16):float():double()
    t.near(found[name], dist.all_reduce(rounded, "avg"):reshape { -1 }, 1e-7, name)
  end
end)

-- Forms of passes ---------------------------------------------------------------------------------------------

local function two_losses(model, first, second)
  return model:loss(fixture.tokens(first)), model:loss(fixture.tokens(second))
end

t.test("TwoForwardsMayShareOneBackwardOrHaveOneEachInAnyOrder", function()
  local expected = expected_gradients(function(net)
    local a, b = two_losses(net, 1, 2)
    return a * 2 + b
  end)
  for _, options in ipairs { {}, { reshard_after_forward = false }, { prefetch = 0 } } do
    local ways = {
      function(a, b) (a * 2 + b):backward() end,
      function(a, b)
        (a * 2):backward()
        b:backward()
      end,
      function(a, b)
        b:backward();
        (a * 2):backward()
      end,
    }
    for i, backward in ipairs(ways) do
      local model = sharding.fully_shard(fixture.net(), options)
      backward(two_losses(model, 1, 2))
      check_gradients(model, expected, "way " .. i)
    end
  end
end)

t.test("ARootsWeightServesChunksAfterTheRootsForward", function()
  local function loss_of(model)
    local hidden, sum = model:hidden(fixture.tokens(1)), 0
    for first = 0, 4, 2 do
      local chunk = hidden[{ { first, math.min(first + 2, 5) } }]
      sum = sum + model.head(chunk):pow(2):sum()
    end
    return sum
  end
  local expected, model = expected_gradients(loss_of), sharding.fully_shard(fixture.net())
  loss_of(model):backward()
  check_gradients(model, expected, "chunks")
end)

t.test("CheckpointsOfLayersGiveTheSameGradientsHoweverUnitsAreCut", function()
  local ckpt = checkpoint.new {}
  local function loss_of(model)
    local x = model:full(function() return model.embedding.weight:detach():clone() end):requires_grad_(true)
    for _, layer in ipairs(model.layers) do x = ckpt(layer, x) end
    return x:pow(2):sum()
  end
  local expected = expected_gradients(function(net)
    local x = net.embedding.weight:detach():clone():requires_grad_(true)
    for _, layer in ipairs(net.layers) do x = layer(x) end
    return x:pow(2):sum()
  end)
  for name in pairs(expected) do
    if not name:find "^layers" then expected[name] = nil end
  end
  for _, options in ipairs { {}, { units = { "layers.*", "layers.*.up" } }, { reshard_after_forward = false } } do
    local model = sharding.fully_shard(fixture.net(), options)
    loss_of(model):backward()
    check_gradients(model, expected, "checkpoints")
  end
end)

-- Forms of modules ----------------------------------------------------------------------------------------------

--- Returns its results in tables, takes them so, and does not use all of its weights.
local Forms = nn.Module:subclass("Forms")
function Forms:init()
  self.used, self.unused, self.other = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 6)
end
function Forms:forward(inputs)
  local y = self.used(inputs.x)
  return { y = { y }, nothing = self.other(inputs.x), note = inputs.note }
end

local Nested = nn.Module:subclass("Nested")
function Nested:init()
  self.layers = nn.ModuleList { Forms(), Forms() }
  self.skipped = nn.ModuleList { Forms() }
end
function Nested:forward(x)
  for _, layer in ipairs(self.layers) do x = layer({ x = x, note = "kept" }).y[1] end
  return x
end

local function nested_net()
  torch.manual_seed(5)
  return Nested()
end

t.test("UnusedWeightsOutputsAndModulesAndResultsInTables", function()
  local function pass(m, step)
    torch.manual_seed(10 * step + RANK)
    m(torch.randn { 2, 6 }):pow(2):sum():backward()
  end
  local expected = fixture.train(sharding.data_parallel(nested_net(), { find_unused = true }), 5, pass)
  local model = sharding.fully_shard(nested_net())
  pass(model, 1)
  for name, shard in model:named_parameters() do
    t.equal(shard.grad ~= nil, name:find "%.used" ~= nil and not name:find "skipped", name)
  end
  model = sharding.fully_shard(nested_net())
  t.truthy(fixture.distance(fixture.train(model, 5, pass), expected) < 1e-12, "AdamW decays a weight of no gradient")
end)

--- A tower's projector lies in the root, next to weights that each pass uses.
local Tower = nn.Module:subclass("Tower")
function Tower:init()
  self.text, self.projector = nn.Linear(6, 6), nn.Linear(6, 6)
  self.scale = torch.ones({ 7 }):requires_grad_(true)
end
function Tower:forward(x, picture)
  local y = self.text(x)
  return picture and y + self.projector(picture) * self.scale[0] or y
end

-- Pictures on all ranks, on one rank, on none, with gradients of several passes.
t.test("AWeightThatNoRankUsesKeepsItsValueAndMoments", function()
  local function tower()
    torch.manual_seed(5)
    return Tower()
  end
  local function has_picture(step, rank) return step == 1 or step == 3 and rank == WORLD - 1 end
  local function pass(m, step, rank)
    torch.manual_seed(10 * step + rank)
    local x, picture = torch.randn { 2, 6 }, torch.randn { 2, 6 }
    return m(x, has_picture(step, rank) and picture or nil):pow(2):sum()
  end
  local whole, model = tower(), sharding.fully_shard(tower())
  local options = { lr = 0.05, weight_decay = 0.3 }
  local one, parts = optim.AdamW(whole:parameters(), options), optim.AdamW(model:parameters(), options)

  for step = 1, 6 do
    for rank = 0, WORLD - 1 do (pass(whole, step, rank) / WORLD):backward() end
    pass(model, step, RANK):backward()
    for name, shard in model:named_parameters() do
      t.equal(shard.grad ~= nil, name:find "^text" ~= nil or step == 1 or step == 3, step .. name)
    end
    for _, optimizer in ipairs { one, parts } do
      optimizer:step()
      optimizer:zero_grad()
    end
    t.truthy(fixture.distance(model:state_dict(), whole:state_dict()) < 1e-12, "step " .. step)
  end
end)

t.test("InputsInTablesAreCastToo", function()
  local seen
  local net = nested_net()
  for _, p in ipairs(net:parameters()) do p:set_data(p:detach():float()) end
  local forward = net.layers[1].forward
  net.layers[1].forward = function(self, inputs)
    seen = inputs.x.dtype
    return forward(self, inputs)
  end
  local model = sharding.fully_shard(net, { param_dtype = torch.bfloat16 })

  t.equal(model.layers[1]({ x = torch.randn { 2, 6 } }).y[1].dtype, torch.bfloat16)
  t.equal(seen, torch.bfloat16)
end)

t.test("AWeightOfSeveralUnitsBelongsToTheLowestThatContainsThem", function()
  local net = fixture.net()
  net.layers[2].up.weight = net.layers[1].up.weight
  net.layers[3].down.bias = net.layers[3].up.bias[{ { 0, 6 } }]:detach():requires_grad_(true)
  local function names_of(found)
    local names = {}
    for _, unit in ipairs(found.units) do
      local own = {}
      for i, named in ipairs(unit.parameters) do own[i] = named[1] end
      table.sort(own)
      names[unit.name] = table.concat(own, " ")
    end
    return names
  end
  local names = names_of(units.find(net, nil, {}))
  t.equal(names[""], "embedding.weight head.weight layers.0.up.weight")
  t.equal(names["layers.1"], "layers.1.down.bias layers.1.down.weight layers.1.scale layers.1.up.bias")
  names = names_of(units.find(net, { "layers.*", "layers.*.up" }, { "layers.2" }))
  t.equal(names["layers.0"], "layers.0.down.bias layers.0.down.weight layers.0.scale")
  t.equal(names["layers.0.up"], "layers.0.up.bias")
  t.equal(names["layers.2"], "")
end)

t.test("WeightsThatLayersShareTrainAsInReplicas", function()
  local function tied()
    local net = fixture.net()
    net.layers[2].up.weight, net.layers[3].up.weight = net.layers[1].up.weight, net.layers[1].up.weight
    return net
  end
  local function pass(m, step)
    torch.cross_entropy_loss(m(fixture.tokens(step)), (fixture.tokens(step) * 5 + 1):remainder(13)):backward()
  end
  local expected = fixture.train(sharding.data_parallel(tied()), 5, pass)
  for _, options in ipairs { {}, { reshard_after_forward = false }, { units = { "layers.0" } } } do
    t.truthy(fixture.distance(fixture.train(sharding.fully_shard(tied(), options), 5, pass), expected) < 1e-12)
  end
end)
