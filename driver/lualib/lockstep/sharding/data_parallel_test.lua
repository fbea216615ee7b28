--- sharding.data_parallel on several ranks, each with its own data. Every rank computes the expected values from all
--- ranks' data.

local dist = require "lockstep.distributed"
local nn = require "lockstep.nn"
local optim = require "lockstep.optim"
local sharding = require "lockstep.sharding"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local RANK, WORLD = dist.rank(), dist.world_size()
torch.set_default_dtype(torch.float64)

--- Two layers in a row, and one that forward may leave out.
local Net = nn.Module:subclass("Net")

function Net:init()
  self.first, self.second, self.extra = nn.Linear(4, 8), nn.Linear(8, 3), nn.Linear(4, 3)
end

function Net:forward(x, uses_extra)
  local y = self.second(torch.tanh(self.first(x)))
  return uses_extra and y + self.extra(x) or y
end

--- The same on every rank, whatever it draws.
local function net(seed, class)
  torch.manual_seed(seed or 1)
  return (class or Net)()
end

--- Rows for `rank`, in step `step`.
local function rows(rank, step)
  torch.manual_seed(1000 * (step or 0) + rank)
  return torch.randn({ 5, 4 })
end

local function loss_of(y) return (y * y):sum() end

--- By name: the mean over ranks of the gradients of loss(module, rank).
local function mean_gradients(module, loss)
  local mean = {}
  for rank = 0, WORLD - 1 do
    module:zero_grad()
    loss(module, rank):backward()
    for name, p in module:named_parameters() do
      local share = p.grad and p.grad / WORLD or torch.zeros_like(p:detach())
      mean[name] = mean[name] and mean[name] + share or share
    end
  end
  return mean
end

local function parameters_of(module)
  local parameters = {}
  for name, p in module:named_parameters() do parameters[name] = p end
  return parameters
end

local function expect_gradients(module, expected)
  for name, p in module:named_parameters() do
    local grad = p.grad or torch.zeros_like(p:detach())
    t.near(grad, expected[name], 1e-12, name)
  end
end

t.test("GradientsAreTheMeanOverRanks", function()
  local expected = mean_gradients(net(), function(m, rank) return loss_of(m(rows(rank), true)) end)
  local replicas = sharding.data_parallel(net())

  loss_of(replicas(rows(RANK), true)):backward()

  expect_gradients(replicas.module, expected)
end)

t.test("ParametersAndBuffersBecomeThoseOfRank0", function()
  local module = net(10 + RANK)
  module.offset = torch.full({ 2 }, RANK)

  sharding.data_parallel(module)

  for name, p in pairs(net(10):state_dict()) do t.equal(module:state_dict()[name], p, name) end
  t.equal(module.offset, torch.zeros({ 2 }))
end)

t.test("BuffersFollowRank0BeforeEachForward", function()
  local module = net()
  module.offset = torch.zeros({ 2 })
  local replicas = sharding.data_parallel(module, { find_unused = true })
  module.offset:fill_(7 + RANK)

  loss_of(replicas(rows(RANK))):backward()

  t.equal(module.offset, torch.full({ 2 }, 7))
end)

t.test("ABufferThatWasReplacedFollowsRank0", function()
  local Counting = Net:subclass("Counting")
  function Counting:init()
    Net.init(self)
    self.sum = torch.zeros({ 3 })
  end
  function Counting:forward(x)
    local y = Net.forward(self, x, true)
    self.sum = self.sum + y:detach():sum(0) -- a new tensor in each pass
    return y
  end
  local replicas = sharding.data_parallel(net(1, Counting))

  for step = 1, 2 do loss_of(replicas(rows(RANK, step))):backward() end

  local of_rank_0 = net(1, Counting)
  of_rank_0(rows(0, 1))
  of_rank_0(rows(RANK, 2)) -- the second pass began with rank 0's sum
  t.near(replicas.module.sum, of_rank_0.sum, 1e-12)
end)

t.test("WithoutBroadcastBuffersEachRankKeepsItsOwn", function()
  local module = net()
  module.offset = torch.full({ 2 }, 3 + RANK)
  local replicas = sharding.data_parallel(module, { broadcast_buffers = false })

  loss_of(replicas(rows(RANK), true)):backward()

  t.equal(module.offset, torch.full({ 2 }, 3 + RANK))
end)

t.test("ABufferThatChangedItsShapeIsNamed", function()
  local module = net()
  module.offset = torch.zeros({ 2 })
  local replicas = sharding.data_parallel(module)
  module.offset = torch.zeros({ 3 })

  local message = t.raises("not those that it was replicated with", replicas.forward, replicas, rows(RANK), true)

  t.truthy(message:find("offset: Double [3], buffer", 1, true), message)
end)

t.test("GradientsAreTheSameWithAndWithoutViewsOfBuckets", function()
  for _, view in ipairs { true, false } do
    local replicas = sharding.data_parallel(net(), { gradient_as_bucket_view = view })
    local expected = mean_gradients(net(), function(m, rank) return loss_of(m(rows(rank), true)) end)
    for _ = 1, 3 do
      replicas:zero_grad()
      loss_of(replicas(rows(RANK), true)):backward()
      expect_gradients(replicas.module, expected)
    end
  end
end)

-- The first pass of a static graph needs the Reducer in its backward, which may come after the replicas are gone.
t.test("AStaticGraphOutlivesItsReplicas", function()
  local module = net()
  local expected = mean_gradients(net(), function(m, rank) return loss_of(m(rows(rank), true)) end)
  local function forward() return sharding.data_parallel(module, { static_graph = true })(rows(RANK), true) end
  local loss = loss_of(forward())
  for _ = 1, 3 do collectgarbage() end

  loss:backward()

  expect_gradients(module, expected)
end)

t.test("TrainsAsOneRankOnAllTheData", function()
  local one, replicas = net(), sharding.data_parallel(net())
  local adam_one, adam = optim.AdamW(one:parameters(), { lr = 1e-2 }), optim.AdamW(replicas:parameters(), { lr = 1e-2 })

  for step = 1, 5 do
    local all = {}
    for rank = 0, WORLD - 1 do all[rank + 1] = rows(rank, step) end
    torch.mul(loss_of(one(torch.cat(all), true)), 1 / WORLD):backward()
    loss_of(replicas(rows(RANK, step), true)):backward()
    for _, optimizer in ipairs { adam_one, adam } do
      optimizer:step()
      optimizer:zero_grad()
    end
  end

  local trained = replicas:state_dict()
  for name, p in pairs(one:state_dict()) do t.near(trained[name], p, 1e-12, name) end
end)

t.test("SmallBucketsGiveTheSameGradients", function()
  local large, small = sharding.data_parallel(net()), sharding.data_parallel(net(), { bucket_mb = 1e-4 })

  for step = 1, 3 do -- after the first, buckets are rebuilt in the order in which gradients came
    for _, replicas in ipairs { large, small } do
      replicas:zero_grad()
      loss_of(replicas(rows(RANK, step), true)):backward()
    end
    local grads = {}
    for name, p in large:named_parameters() do grads[name] = p.grad end
    expect_gradients(small.module, grads)
  end
end)

-- no_sync -------------------------------------------------------------------------------------------

--- Gradients of three micro-steps, the last of them averaging.
local function accumulate(replicas, forward)
  for step = 1, 2 do replicas:no_sync(function() loss_of(forward(replicas, step)):backward() end) end
  loss_of(forward(replicas, 3)):backward()
end

for _, mode in ipairs { {}, { find_unused = true }, { static_graph = true } } do
  local name = next(mode) or "default"
  t.test("NoSyncAddsUpAndTheNextPassAverages(" .. name .. ")", function()
    local expected = mean_gradients(net(), function(m, rank)
      return loss_of(m(rows(rank, 1), true)) + loss_of(m(rows(rank, 2), true)) + loss_of(m(rows(rank, 3), true))
    end)
    local replicas = sharding.data_parallel(net(), mode)

    for _ = 1, 3 do -- the very first pass is one without averaging
      replicas:zero_grad()
      accumulate(replicas, function(m, step) return m(rows(RANK, step), true) end)
      expect_gradients(replicas.module, expected)
    end
  end)
end

t.test("InNoSyncGradientsAreTheRanksOwn", function()
  local replicas = sharding.data_parallel(net())

  replicas:no_sync(function() loss_of(replicas(rows(RANK), true)):backward() end)

  local own = net()
  loss_of(own(rows(RANK), true)):backward()
  for name, p in pairs(parameters_of(own)) do t.equal(parameters_of(replicas)[name].grad, p.grad, name) end
end)

t.test("AnErrorInNoSyncEndsIt", function()
  local replicas = sharding.data_parallel(net())
  t.raises("on purpose", function() replicas:no_sync(function() error("on purpose") end) end)
  local expected = mean_gradients(net(), function(m, rank) return loss_of(m(rows(rank), true)) end)

  loss_of(replicas(rows(RANK), true)):backward()

  expect_gradients(replicas.module, expected)
end)

-- Parameters that take no part ----------------------------------------------------------------------

t.test("FindUnusedAllowsAParameterThatSomeRanksLeaveOut", function()
  local expected = mean_gradients(net(), function(m, rank) return loss_of(m(rows(rank), rank == 0)) end)
  local replicas = sharding.data_parallel(net(), { find_unused = true })

  for _ = 1, 2 do
    replicas:zero_grad()
    loss_of(replicas(rows(RANK), RANK == 0)):backward()
    expect_gradients(replicas.module, expected)
  end
end)

t.test("FindUnusedAllowsOtherParametersInEachStep", function()
  local replicas = sharding.data_parallel(net(), { find_unused = true })

  for _, uses_extra in ipairs { true, false, false, true, false } do
    local expected = mean_gradients(net(), function(m, rank) return loss_of(m(rows(rank), uses_extra)) end)
    replicas:zero_grad()
    loss_of(replicas(rows(RANK), uses_extra)):backward()
    expect_gradients(replicas.module, expected)
  end
end)

t.test("FindUnusedAllowsAParameterThatOnlyNoSyncUses", function()
  local expected = mean_gradients(net(), function(m, rank)
    return loss_of(m(rows(rank, 1), true)) + loss_of(m(rows(rank, 2)))
  end)
  local replicas = sharding.data_parallel(net(), { find_unused = true })

  for _ = 1, 2 do
    replicas:zero_grad()
    replicas:no_sync(function() loss_of(replicas(rows(RANK, 1), true)):backward() end)
    loss_of(replicas(rows(RANK, 2))):backward()
    expect_gradients(replicas.module, expected)
  end
end)

t.test("WithoutFindUnusedAParameterThatIsLeftOutIsNamed", function()
  local replicas = sharding.data_parallel(net())
  loss_of(replicas(rows(RANK))):backward()

  local message = t.raises("extra.weight", function() replicas(rows(RANK)) end)

  t.truthy(message:find("find_unused", 1, true), message)
end)

-- Otherwise each rank would train on its part of the gradients, and the last step of a run would end without an error.
t.test("AnOptimizerDoesNotUseGradientsThatWereNotAveraged", function()
  local Towers = nn.Module:subclass("Towers")
  function Towers:init() self.vision, self.text = nn.Linear(4, 4), nn.Linear(4, 2) end
  function Towers:forward(x, has_image) return self.text(has_image and self.vision(x) or x) end
  local replicas = sharding.data_parallel(Towers())
  local optimizer = optim.SGD(replicas:parameters(), { lr = 0.1 })
  local before = replicas.module.text.weight:detach():clone()
  local x = torch.ones { 2, 4 } * (1 + dist.rank())

  sharding.accumulate(replicas, { true, false }, 2, function(has_image) return replicas(x, has_image):pow(2):sum() end)

  t.raises("the last backward gave no gradient to vision.weight, vision.bias. Let every parameter", optimizer.step,
    optimizer)
  t.equal(replicas.module.text.weight:detach(), before)
end)

t.test("GradientsOfTheModuleItselfAreNotTakenForAveragedOnes", function()
  local layer = nn.Linear(2, 2)
  local replicas = sharding.data_parallel(layer)
  local optimizer = optim.SGD(layer:parameters(), { lr = 0.1 })
  torch.sum(layer(torch.ones { 1, 2 } * (dist.rank() + 1))):backward()
  t.raises("there are gradients, but the replicas were never called", optimizer.step, optimizer)

  optimizer:zero_grad()
  torch.sum(replicas(torch.ones { 1, 2 } * (dist.rank() + 1))):backward()
  optimizer:step()
end)

t.test("StaticGraphAllowsAParameterUsedTwice", function()
  local Twice = Net:subclass("Twice")
  function Twice:forward(x) return self.extra(torch.cat({ self.extra(x), x:narrow(1, 0, 1) }, 1)) end
  local expected = mean_gradients(net(1, Twice), function(m, rank) return loss_of(m(rows(rank))) end)
  local replicas = sharding.data_parallel(net(1, Twice), { static_graph = true })

  for _ = 1, 3 do
    replicas:zero_grad()
    loss_of(replicas(rows(RANK))):backward()
    expect_gradients(replicas.module, expected)
  end
end)

t.test("FrozenParametersAreLeftOut", function()
  local module = net()
  module.first.weight:requires_grad_(false)
  local replicas = sharding.data_parallel(module)

  loss_of(replicas(rows(RANK), true)):backward()

  t.equal(module.first.weight.grad, nil)
  t.truthy(module.second.weight.grad)
end)

t.test("TiedParametersAreAveragedOnce", function()
  local Tied = Net:subclass("Tied")
  function Tied:init()
    self.first, self.second, self.extra = nn.Linear(4, 3), nn.Linear(4, 3), nn.Linear(4, 3)
    self.second.weight = self.first.weight
  end
  function Tied:forward(x) return self.first(x) * self.second(x) + self.extra(x) end
  local expected = mean_gradients(net(1, Tied), function(m, rank) return loss_of(m(rows(rank))) end)
  local replicas = sharding.data_parallel(net(1, Tied))

  loss_of(replicas(rows(RANK))):backward()

  expect_gradients(replicas.module, expected)
end)

t.test("DtypesMayBeMixed", function()
  local Mixed = Net:subclass("Mixed")
  function Mixed:forward(x) return self.second(torch.tanh(self.first(x:float()):double())) + self.extra(x) end
  local function mixed()
    local module = net(1, Mixed)
    module.first:to { dtype = torch.float32 }
    return module
  end
  local expected = mean_gradients(mixed(), function(m, rank) return loss_of(m(rows(rank))) end)
  local replicas = sharding.data_parallel(mixed())

  loss_of(replicas(rows(RANK))):backward()

  t.equal(replicas.module.first.weight.grad.dtype, torch.float32)
  for name, p in replicas:named_parameters() do t.near(p.grad, expected[name], 1e-4, name) end
end)

-- Outside training ----------------------------------------------------------------------------------

t.test("ForwardWithoutGradientsDoesNotCommunicate", function()
  local replicas = sharding.data_parallel(net())
  -- Rank r looks r times: were this a collective, the ranks would wait for each other.
  for _ = 1, RANK do torch.no_grad(replicas, rows(RANK), true) end

  loss_of(replicas(rows(RANK), true)):backward()

  t.truthy(replicas.module.first.weight.grad)
end)

t.test("TablesOfOutputsPassThrough", function()
  local Several = Net:subclass("Several")
  function Several:forward(x) return { logits = self.second(self.first(x)), kept = "text" }, self.extra(x), nil, 5 end
  local replicas = sharding.data_parallel(net(1, Several), { find_unused = true })

  local outputs, extra, nothing, five = replicas(rows(RANK))
  local loss = loss_of(outputs.logits) + loss_of(extra)
  loss:backward()

  t.equal(outputs.kept, "text")
  t.equal(nothing, nil)
  t.equal(five, 5)
  t.truthy(replicas.module.extra.weight.grad)
end)

t.test("DifferentModulesAreNamedOnEveryRank", function()
  local module = net()
  if RANK == 1 then module.second = nn.Linear(8, 2) end

  local message = t.raises("different modules", sharding.data_parallel, module)

  t.truthy(message:find("rank 0: second.weight: Double [3, 8], trained", 1, true), message)
  t.truthy(message:find("rank 1: second.weight: Double [2, 8], trained", 1, true), message)
  t.truthy(not message:find("first.weight", 1, true), message)
end)

t.test("ASecondBackwardOfOneForwardIsAnError", function()
  local replicas = sharding.data_parallel(nn.Linear(2, 1))
  local x = torch.full({ 1, 2 }, dist.rank() + 1)
  local first, second = replicas(x):sum(), replicas(x):sum()
  first:backward()
  t.raises("this backward pass is the second since the last forward pass", function() second:backward() end)

  local averaged = sharding.data_parallel(nn.Linear(2, 1))
  ;(averaged(x):sum() + averaged(x):sum()):backward() -- the sum is averaged
  t.near(averaged.module.weight.grad, torch.full({ 1, 2 }, dist.world_size() + 1), 1e-6)
end)

-- Each rank's share is rounded to the dtype; their sum is one more rounding for each rank.
t.test("CompressedGradientsAreTheMeanOfRoundedShares", function()
  -- Not pairs: its order is another on each rank.
  for i, name in ipairs { "bf16", "fp16" } do
    local dtype, reference = i == 1 and torch.bfloat16 or torch.float16, net()
    local exact = mean_gradients(reference, function(m, rank) return loss_of(m(rows(rank, 1), true)) end)
    local replicas = sharding.data_parallel(net(), { compression = name })

    loss_of(replicas(rows(RANK, 1), true)):backward()

    local differs = false
    for key, p in replicas:named_parameters() do
      local rounding = name == "bf16" and 2 ^ -8 or 2 ^ -11
      t.near(p.grad:to(dtype):double(), p.grad, 0, key .. " is a " .. name)
      local bound = exact[key]:abs():max():item() * rounding * (WORLD + 1)
      t.near(p.grad, exact[key], 2 * bound, key)
      differs = differs or not torch.equal(p.grad, exact[key])
    end
    t.truthy(differs, "nothing was rounded")
  end
end)

t.test("CompressionGoesWithUnusedParametersAndStaticGraphs", function()
  for _, option in ipairs { "find_unused", "static_graph" } do
    local replicas = sharding.data_parallel(net(), { compression = "bf16", [option] = true })
    for step = 1, 3 do
      replicas:zero_grad()
      loss_of(replicas(rows(RANK, step), option == "static_graph" or RANK == 0)):backward()
    end
    for name, p in replicas:named_parameters() do
      for _, grad in ipairs(dist.all_gather(p.grad)) do t.truthy(torch.equal(grad, p.grad), name) end
    end
  end
end)

t.test("DifferentOptionsAreNamedOnEveryRank", function()
  local message = t.raises("the ranks give different options", sharding.data_parallel, net(),
    { compression = RANK == 1 and "fp16" or "bf16" })

  t.truthy(message:find("options:\n  rank 0: compression = bf16\n  rank 1: compression = fp16", 1, true), message)
end)

t.test("WrongOptionsAreRefused", function()
  t.raises('compression must be "none", "bf16" or "fp16", not "int8"', sharding.data_parallel, net(),
    { compression = "int8" })
  t.raises("bucket_bytes must be above 0", sharding.data_parallel, net(), { bucket_mb = 0 })
  t.raises("drop find_unused", sharding.data_parallel, net(), { static_graph = true, find_unused = true })
  t.raises("bucket_mb", sharding.data_parallel, net(), { bucket_mbs = 1 })
  t.raises("expected a module", sharding.data_parallel, {})
end)
