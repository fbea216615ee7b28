--- lockstep.check without other ranks: what it finds in tables of ranks, and in products.

local check = require "lockstep.check"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

--- A row of a rank that is as all others but for `changes`.
local function row(rank, changes)
  local made = { rank = rank, host = "node" .. math.floor(rank / 8), device = "cuda:" .. rank % 8, latency_s = 5e-6,
    rates = { float32 = 50e12, bfloat16 = 700e12, memory = 2e12, ["to next"] = 200e9 }, wrong = {} }
  for rate, value in pairs(changes or {}) do made.rates[rate] = value end
  return made
end

local function rows(count, changes)
  local all = {}
  for rank = 0, count - 1 do all[rank + 1] = row(rank, changes[rank]) end
  return all
end

t.test("ADeviceThatIsSlowAtOneThingIsNamed", function()
  t.equal(check.findings(rows(64, {}), 1.5), {})
  t.equal(check.findings(rows(64, { [13] = { bfloat16 = 350e12 }, [40] = { memory = 1.4e12 } }), 1.5),
    { "rank 13 (node1, cuda:5): bfloat16 2.0 times slower than the median, 350.00 TFLOP/s of 700.00 TFLOP/s" })
end)

t.test("ASlowLinkIsNamedWithBothEnds", function()
  t.equal(check.findings(rows(16, { [7] = { ["to next"] = 20e9 }, [15] = { ["to next"] = 10e9 } }), 3), {
    "rank 7 (node0, cuda:7): to rank 8 (node1, cuda:0) 10.0 times slower than the median, 20.00 GB/s of 200.00 GB/s",
    "rank 15 (node1, cuda:7): to rank 0 (node0, cuda:0) 20.0 times slower than the median, 10.00 GB/s of 200.00 GB/s",
  })
end)

t.test("OfTwoRanksTheSlowerOneIsNamed", function()
  t.equal(#check.findings(rows(2, { [0] = { memory = 1e12 } }), 1.5), 1)
  t.truthy(check.findings(rows(2, { [0] = { memory = 1e12 } }), 1.5)[1]:find("^rank 0 "))
  t.truthy(check.findings(rows(2, { [1] = { memory = 1e12 } }), 1.5)[1]:find("^rank 1 "))
end)

t.test("TheTableShowsTheSlowestRanksFirstAndCountsTheOthers", function()
  local lines = {}
  local drawn = check.drawing(rows(40, { [21] = { memory = 1e12 }, [3] = { float32 = 40e12 } }))
  for line in (drawn .. "\n"):gmatch("(.-)\n") do
    lines[#lines + 1] = line
  end
  t.equal(#lines, 18)
  t.truthy(lines[1]:find("bfloat16 FLOP/s  memory B/s  to next B/s  latency$"), lines[1])
  t.truthy(lines[2]:find("^21 +node2 +cuda:5 +50.00 T +700.00 T +1.00 T +200.00 G +5 us$"), lines[2])
  t.truthy(lines[3]:find("^3 "), lines[3])
  t.truthy(lines[4]:find("^0 "), lines[4])
  t.equal(lines[18], "and 24 more, each at least 1.00 of the medians")
end)

t.test("InATurnEachRankHasOneNeighbourAndAllLinksAreTried", function()
  for world = 2, 17 do
    local tried = {}
    for _, turn in ipairs(check.turns(world)) do
      local busy = {}
      for _, first in ipairs(turn) do
        local second = (first + 1) % world
        t.truthy(not busy[first] and not busy[second], ("%d of %d"):format(first, world))
        busy[first], busy[second] = true, true
        tried[math.min(first, second) .. "-" .. math.max(first, second)] = true
      end
    end
    local count = 0
    for _ in pairs(tried) do count = count + 1 end
    t.equal(count, world == 2 and 1 or world, ("links of %d ranks"):format(world))
  end
end)

t.test("AWrongNumberInAProductIsFound", function()
  for _, n in ipairs { 64, 200, 768 } do
    local a, b = check.numbers({ n, n }, 1, "cpu", torch.float32), check.numbers({ n, n }, 2, "cpu", torch.float32)
    local c = torch.matmul(a, b)
    t.equal(check.product_problem(a, b, c, 2 ^ -24), nil)
    local i, j = math.random(0, n - 1), math.random(0, n - 1)
    local was = c[i][j]:item()
    c[i][j]:fill_(was + 0.01)
    local off = tonumber(check.product_problem(a, b, c, 2 ^ -24):match("is off by ([%d.]+), more than the"))
    t.near(off, 0.01, 0.001)
    c[i][j]:fill_(0 / 0)
    t.truthy(check.product_problem(a, b, c, 2 ^ -24):find("off by nan", 1, true))
  end
end)

-- What a GPU does: bfloat16 products, and float32 ones of inputs of 11 bits.
t.test("ProductsOfLowPrecisionAreRightUnlessARowIsWrong", function()
  local n = 1024
  local exact = {}
  for i = 1, 2 do exact[i] = check.numbers({ n, n }, i, "cpu", torch.float32) end
  local function tf32(x) return (x:view(torch.int32):bitwise_and(-8192)):view(torch.float32) end
  local function bf16(x) return x:bfloat16() end
  for _, case in ipairs {
    { 2 ^ -9, bf16, function(a, b) return bf16(torch.matmul(a:float(), b:float())) end },
    { 2 ^ -10, tf32, torch.matmul, exact }, -- cut off, which is twice as far as rounded
  } do
    local a, b = case[2](exact[1]), case[2](exact[2])
    local c = case[3](a, b)
    local from = case[4] or { a, b }
    t.equal(check.product_problem(from[1], from[2], c, case[1]), nil)
    t.truthy(check.product_problem(from[1], from[2], torch.zeros_like(c), case[1]))
    c[n - 1]:zero_()
    t.truthy(check.product_problem(from[1], from[2], c, case[1]))
  end
end)

t.test("NumbersLookRandom", function()
  local x = check.numbers({ 256, 256 }, 1, "cpu", torch.float64)
  t.truthy(math.abs(x:mean():item()) < 0.01 and math.abs(x:var():item() - 1 / 12) < 0.002)
  t.truthy(x:min():item() >= -0.5 and x:max():item() < 0.5)
  -- A product of independent numbers has elements of n^0.5 / 12.
  local c = torch.matmul(x, check.numbers({ 256, 256 }, 2, "cpu", torch.float64))
  t.truthy(math.abs(c:std():item() - 16 / 12) < 0.1)
end)

t.test("BadOptionsAreErrors", function()
  t.raises('check.ranks: unknown option "slow"', check.ranks, { slow = 2 })
  t.raises("check.ranks: slower must be more than 1, not 1", check.ranks, { slower = 1 })
  t.raises("check.ranks: seconds must be a finite number of at least 0, not -1", check.ranks, { seconds = -1 })
  t.raises("check.ranks: megabytes must be a whole number from 1 to 4096, not 0.5", check.ranks, { megabytes = 0.5 })
end)
