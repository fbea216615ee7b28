--- Tests mimo.bridge between every two grids that the world of this run has room for. Every rank draws the same whole
--- and cuts the expected rows from it.

local dist = require "lockstep.distributed"
local mimo = require "lockstep.mimo"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local RANK, WORLD = dist.rank(), dist.world_size()
local COLUMNS = 3

--- Samples [first, stop) of part i of k, from 0: near equal, the first ones larger.
local function part(size, i, k)
  local small, larger = math.floor(size / k), size % k
  local first = i * small + math.min(i, larger)
  return first, first + small + (i < larger and 1 or 0)
end

--- The rows of a replica's samples.
local function rows_of(tensor, rows_per_sample, dp_rank, dp_size)
  local first, stop = part(#rows_per_sample, dp_rank, dp_size)
  local begin, count = 0, 0
  for i, rows in ipairs(rows_per_sample) do
    if i <= first then begin = begin + rows elseif i <= stop then count = count + rows end
  end
  return tensor:narrow(0, begin, count)
end

local function total(rows_per_sample)
  local sum = 0
  for _, rows in ipairs(rows_per_sample) do sum = sum + rows end
  return sum
end

local function describe(a, b) return ("dp %d tp %d to dp %d tp %d"):format(a.dp, a.tp, b.dp, b.tp) end

--- Every pair of grids that tile the world, and every pair that share it.
local function topologies()
  local found = {}
  local function add(from, to, first_rank)
    from.name, to.name, to.first_rank = "vision", "language", first_rank
    found[#found + 1] = { topology = mimo.topology { modules = { from, to } },
      name = describe(from, to) .. (first_rank == 0 and " on the same ranks" or "") }
  end
  local function factors(n)
    local pairs_of = {}
    for dp = 1, n do
      if n % dp == 0 then pairs_of[#pairs_of + 1] = { dp, n / dp } end
    end
    return pairs_of
  end
  for split = 1, WORLD - 1 do
    for _, a in ipairs(factors(split)) do
      for _, b in ipairs(factors(WORLD - split)) do
        add({ dp = a[1], tp = a[2] }, { dp = b[1], tp = b[2] }, split)
      end
    end
  end
  for _, a in ipairs(factors(WORLD)) do
    for _, b in ipairs(factors(WORLD)) do add({ dp = a[1], tp = a[2] }, { dp = b[1], tp = b[2] }, 0) end
  end
  return found
end

local function is_in(topology, name) return topology:peers(name, "dp") ~= nil end

local function expect(actual, expected, what)
  t.equal(tostring(actual.shape), tostring(expected.shape), what)
  t.truthy(torch.equal(actual, expected), what .. ": other values than expected")
end

--- A call with rows drawn from the seed, forward and backward, checked on each rank.
local function check_call(bridge, topology, rows_per_sample, seed, what)
  torch.manual_seed(seed)
  local whole = torch.randn { total(rows_per_sample), COLUMNS }
  local weight = torch.randn { total(rows_per_sample), COLUMNS }
  local x
  if is_in(topology, "vision") then
    x = rows_of(whole, rows_per_sample, topology:dp_info(RANK, "vision")):clone():requires_grad_(true)
  end

  local y = bridge(x, { rows_per_sample = rows_per_sample })

  if is_in(topology, "language") then
    local dp_rank, dp_size = topology:dp_info(RANK, "language")
    expect(y, rows_of(whole, rows_per_sample, dp_rank, dp_size), what .. ", forward")
    torch.sum(y * rows_of(weight, rows_per_sample, dp_rank, dp_size)):backward()
  else
    t.equal(y:numel(), 0, what)
    torch.sum(y):backward()
  end
  if x then expect(x.grad, rows_of(weight, rows_per_sample, topology:dp_info(RANK, "vision")), what .. ", backward") end
end

for _, case in ipairs(topologies()) do
  t.test("RowsAndGradientsGoToTheirOwners(" .. case.name .. ")", function()
    local bridge = mimo.bridge { topology = case.topology, from = "vision", to = "language" }
    local random = 7
    local function draw(n)
      random = (random * 16807) % 2147483647
      return random % n
    end
    for call = 1, 8 do
      local rows = {}
      for i = 1, WORLD + draw(5) do rows[i] = draw(3) == 0 and 0 or draw(6) end
      if call == 3 then
        for i = 1, #rows do rows[i] = 0 end
      end
      check_call(bridge, case.topology, rows, 100 * call, "call " .. call)
    end
  end)
end

-- One pair of grids for the rest: the first rank alone, and all others.

local function one_to_rest()
  return mimo.topology { modules = { { name = "vision" }, { name = "language", first_rank = 1, dp = WORLD - 1 } } }
end
local function rest_to_one()
  return mimo.topology {
    modules = { { name = "vision", dp = WORLD - 1 }, { name = "language", first_rank = WORLD - 1 } },
  }
end

t.test("WithoutRowsPerSampleEachRowIsASample", function()
  local topology = rest_to_one()
  local bridge = mimo.bridge { topology = topology, from = "vision", to = "language" }
  for call = 1, 2 do
    torch.manual_seed(call)
    local whole = torch.randn { 2 * (WORLD - 1), COLUMNS }
    local x = topology:module() == "vision" and whole:narrow(0, 2 * RANK, 2):clone():requires_grad_(true) or nil

    local y = bridge(x)

    if x then
      torch.sum(y):backward()
      t.equal(x.grad, torch.full_like(x:detach(), 3))
    else
      expect(y, whole, "call " .. call)
      torch.sum(y * 3):backward()
    end
  end
end)

t.test("SeveralTensorsTravelAtOnce", function()
  local topology = one_to_rest()
  local bridge = mimo.bridge { topology = topology, from = "vision", to = "language" }
  local rows = {}
  for i = 1, WORLD do rows[i] = i % 3 end
  torch.manual_seed(1)
  local features, deep = torch.randn { total(rows), 4 }, torch.randn({ total(rows), 2, 2 }, { dtype = torch.float64 })
  local positions = torch.arange(total(rows))
  if RANK == 0 then
    features:requires_grad_(true)
    deep:requires_grad_(true)

    local y = bridge({ features, deep, positions }, { rows_per_sample = rows })

    torch.add(y[1]:sum(), y[2]:sum()):backward()
    t.equal(features.grad, torch.full_like(features:detach(), 2))
    t.equal(deep.grad, torch.full_like(deep:detach(), 5))
  else
    local dp_rank, dp_size = topology:dp_info()
    local y = bridge(nil, { rows_per_sample = rows })
    expect(y[1], rows_of(features, rows, dp_rank, dp_size), "features")
    expect(y[2], rows_of(deep, rows, dp_rank, dp_size), "deep")
    expect(y[3], rows_of(positions, rows, dp_rank, dp_size), "positions")
    t.equal(y[3].requires_grad, false)
    torch.add(y[1]:sum() * 2, y[2]:sum() * 5):backward()
  end
end)

t.test("RowsMayStandOnAnotherDim", function()
  local topology = rest_to_one()
  local bridge = mimo.bridge { topology = topology, from = "vision", to = "language", dim = 1 }
  local whole = torch.arange(4 * (WORLD - 1)):view(2, 2 * (WORLD - 1)):float()
  local x = topology:module() == "vision" and whole:narrow(1, 2 * RANK, 2):clone():requires_grad_(true) or nil

  local y = bridge(x)

  if x then
    torch.sum(y):backward()
    expect(x.grad, whole:narrow(1, 2 * RANK, 2), "gradient")
  else
    expect(y, whole, "forward")
    torch.sum(y * whole):backward()
  end
end)

t.test("OverContextParallelRanksGradientsAreSummed", function()
  local language = { name = "language", first_rank = 1, cp = WORLD - 1 }
  local topology = mimo.topology { modules = { { name = "vision" }, language } }
  local bridge = mimo.bridge { topology = topology, from = "vision", to = "language" }
  local x = RANK == 0 and torch.ones { 5, 2 }:requires_grad_(true) or nil

  local y = bridge(x)

  if RANK > 0 then t.equal(y, torch.ones { 5, 2 }) end
  torch.sum(y * RANK):backward() -- each rank's part of the loss
  if x then t.equal(x.grad, torch.full({ 5, 2 }, WORLD * (WORLD - 1) / 2)) end
end)

t.test("OnTheSameRanksGradientsAreSummedOverContextParallelRanks", function()
  local topology = mimo.topology { modules = { { name = "vision", tp = WORLD }, { name = "language", cp = WORLD } } }
  local bridge = mimo.bridge { topology = topology, from = "vision", to = "language" }
  local x = torch.ones { WORLD + 1, 2 }:requires_grad_(true)

  local y = bridge(x)

  t.equal(y, torch.ones { WORLD + 1, 2 })
  torch.sum(y * (1 + RANK)):backward()
  t.equal(x.grad, torch.full({ WORLD + 1, 2 }, WORLD * (WORLD + 1) / 2))
end)

t.test("OtherStagesOfAPipelineTakeNoPart", function()
  local language = { name = "language", first_rank = 1, pp = WORLD - 1 }
  local topology = mimo.topology { modules = { { name = "vision" }, language } }
  local bridge = mimo.bridge { topology = topology, from = "vision", to = "language" }
  local x = RANK == 0 and torch.ones { 5, 2 }:requires_grad_(true) or nil

  local y = bridge(x)

  if RANK > 1 then return t.equal(y, nil) end
  torch.sum(y * 2):backward()
  if x then t.equal(x.grad, torch.full({ 5, 2 }, 2)) else t.equal(y, torch.ones { 5, 2 }) end
end)

t.test("WithoutATableReceiversMayGetUnequallyManyRows", function()
  local topology = one_to_rest()
  local bridge = mimo.bridge { topology = topology, from = "vision", to = "language" }
  local whole = torch.arange(2 * WORLD):view(WORLD, 2):float() -- a row more than replicas
  local x = RANK == 0 and whole:clone():requires_grad_(true) or nil

  local y = bridge(x)

  if x then
    torch.sum(y):backward()
    expect(x.grad, whole, "gradient")
  else
    local first, stop = part(WORLD, topology:dp_info())
    expect(y, whole:narrow(0, first, stop - first), "forward")
    torch.sum(y * y:detach()):backward()
  end
end)

t.test("MicroBatchesOverlapInAnyOrderOfTheStep", function()
  local topology = rest_to_one()
  local bridge = mimo.bridge { topology = topology, from = "vision", to = "language" }
  local is_vision = topology:module() == "vision"
  -- All forwards first; on the receiving side each call is started before the one before it is waited for.
  local xs, ys, pending = {}, {}, nil
  for i = 1, 4 do
    xs[i] = is_vision and torch.full({ 3, 2 }, 10 * i + RANK):requires_grad_(true) or nil
    local next_call = bridge:start(xs[i])
    if pending then ys[i - 1] = pending:wait() end
    pending = next_call
  end
  ys[4] = pending:wait()
  for _, i in ipairs { 4, 1, 3, 2 } do
    if is_vision then
      torch.sum(ys[i]):backward()
      t.equal(xs[i].grad, torch.full_like(xs[i]:detach(), i))
    else
      t.equal(ys[i][0], torch.full({ 2 }, 10 * i))
      torch.sum(ys[i] * i):backward()
    end
  end
end)

t.test("AFrozenTowerWaitsForNoGradient", function()
  local topology = one_to_rest()
  local bridge = mimo.bridge { topology = topology, from = "vision", to = "language" }
  for call = 1, 5 do
    local y = bridge(RANK == 0 and torch.full({ WORLD - 1, 2 }, call) or nil)
    if RANK > 0 then t.equal(y:detach(), torch.full({ 1, 2 }, call)) end
    torch.sum(y):backward()
  end
end)

t.test("ARankWithoutImagesMayHaveNoGraph", function()
  local topology = rest_to_one()
  local bridge = mimo.bridge { topology = topology, from = "vision", to = "language" }
  local rows = { 2 } -- the first replica's sample alone has an image
  for i = 2, WORLD - 1 do rows[i] = 0 end
  local x
  if RANK == 0 then x = torch.ones { 2, 2 }:requires_grad_(true) end
  if RANK > 0 and topology:module() == "vision" then x = torch.zeros { 0, 2 } end

  local y = bridge(x, { rows_per_sample = rows })

  torch.sum(y):backward()
  if RANK == 0 then t.equal(x.grad, torch.ones { 2, 2 }) end
end)

t.test("WithoutGradNothingComesBack", function()
  local bridge = mimo.bridge { topology = one_to_rest(), from = "vision", to = "language" }

  local y = torch.no_grad(function()
    return bridge(RANK == 0 and torch.ones { WORLD - 1, 2 }:requires_grad_(true) or nil)
  end)

  t.equal(y.requires_grad, false)
end)

t.test("ARankOfNeitherModuleHasNoBridge", function()
  if WORLD < 3 then return end
  local audio = { name = "audio", first_rank = 2, dp = WORLD - 2 }
  local topology = mimo.topology { modules = { { name = "vision" }, { name = "language", first_rank = 1 }, audio } }
  if RANK < 2 then return end
  t.raises(("rank %d has neither module; vision is on ranks 0, language on ranks 1"):format(RANK), mimo.bridge,
    { topology = topology, from = "vision", to = "language" })
end)

t.test("TwoEncodersFeedOneModel", function()
  if WORLD < 3 then return end
  local topology = mimo.topology { modules = { { name = "vision" }, { name = "audio", first_rank = 1, dp = WORLD - 2 },
    { name = "language", first_rank = WORLD - 1 } } }
  local function bridge_from(name) return mimo.bridge { topology = topology, from = name, to = "language" } end
  local name = topology:module()
  local bridges = {} -- in one order on every rank
  for _, from in ipairs { "vision", "audio" } do
    if name == from or name == "language" then bridges[from] = bridge_from(from) end
  end
  for step = 1, 3 do
    if name ~= "language" then
      local x = torch.full({ 2, 3 }, step + RANK):requires_grad_(true)
      torch.sum(bridges[name](x)):backward()
      t.equal(x.grad, torch.full({ 2, 3 }, name == "vision" and 2 or 5))
    else
      local images, sounds = bridges.vision(), bridges.audio()
      t.equal(images, torch.full({ 2, 3 }, step))
      t.equal(sounds:size(0), 2 * (WORLD - 2))
      torch.add(images:sum() * 2, sounds:sum() * 5):backward()
    end
  end
end)

t.test("ModulesOnTheSameGridGetXItself", function()
  local topology = mimo.topology { modules = { { name = "vision", dp = WORLD }, { name = "language", dp = WORLD } } }
  local bridge = mimo.bridge { topology = topology, from = "vision", to = "language" }
  local x = torch.ones { 2 }:requires_grad_(true)

  t.equal(bridge(x), x)
end)

t.test("CallsThatAreForgottenDoNotHoldUpLaterOnes", function()
  local topology = one_to_rest()
  local bridge = mimo.bridge { topology = topology, from = "vision", to = "language" }
  local function forward()
    return bridge(RANK == 0 and torch.ones { 4 * (WORLD - 1), 2 }:requires_grad_(true) or nil)
  end
  for _ = 1, 3 do
    torch.sum(forward()):backward()
    forward() -- an evaluation that does not switch gradients off
    forward()
    collectgarbage()
    collectgarbage()
  end
  local x = RANK == 0 and torch.ones { 4 * (WORLD - 1), 2 }:requires_grad_(true) or nil
  torch.sum(bridge(x)):backward()
  if x then t.equal(x.grad, torch.ones { 4 * (WORLD - 1), 2 }) end
end)

t.test("ManyMicroBatchesMayGoForwardBeforeOneComesBack", function()
  local topology = rest_to_one()
  local bridge = mimo.bridge { topology = topology, from = "vision", to = "language" }
  local is_vision = topology:module() == "vision"
  for _ = 1, 2 do
    local xs, ys = {}, {}
    for i = 1, 12 do
      xs[i] = is_vision and torch.ones { 300, 300 }:requires_grad_(true) or nil
      ys[i] = bridge(xs[i])
      if not is_vision then torch.sum(ys[i] * i):backward() end -- at once: one forward, one backward
    end
    for i = 1, is_vision and 12 or 0 do
      torch.sum(ys[i]):backward()
      t.equal(xs[i].grad, torch.full({ 300, 300 }, i))
    end
  end
end)
