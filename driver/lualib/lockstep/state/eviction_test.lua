--- Which rank --evict-slow takes for a slow one. tests/restarts_test.cc has a run that ends, and
--- python/tests/elastic_agents_test.py one of the real torchrun that goes on.

local eviction = require "lockstep.state.eviction"
local t = require "lockstep.testing"

t.test("TheSlowestRankIsComparedWithTheMedian", function()
  local cases = {
    { { 1, 1, 1, 2 }, 1.5, 3, 2 },
    { { 1, 1, 1, 1.4 }, 1.5 },
    { { 3, 1, 1 }, 2, 0, 3 },
    { { 1, 2 }, 1.5, 1, 2 }, -- of two the slower one
    { { 2, 1 }, 1.5, 0, 2 },
    { { 2, 2, 1, 1 }, 1.5, 0, 2 },
    { { 2, 2, 2, 1 }, 1.5 }, -- one fast rank makes no other one slow
    { { 0, 0.1 }, 1.5, 1, math.huge },
    { { 0, 0 }, 1.5 },
  }
  for i, case in ipairs(cases) do
    local rank, ratio = eviction.slow_rank(case[1], case[2])
    t.equal({ rank or "none", ratio or "none" }, { case[3] or "none", case[4] or "none" }, "case " .. i)
  end
end)

t.test("TheOthersGoOnWhereTorchrunAndTheScriptCanDoWithout", function()
  local function of(agent, left, least, least_agents)
    return { host = "a", agent = agent, restarts_left = left, least = least, least_agents = least_agents or 1 }
  end
  local function sharing(agent, num_shared)
    local place = of(agent, 1, 1)
    place.num_shared = num_shared
    return place
  end
  local unknown = { host = "a", agent = 1, restarts_left = 1, least = 1 }
  local cases = {
    { { of(0, 1, 1), of(1, 0, 1) }, 1, true }, -- its own restarts do not matter
    { { of(0, 1, 1), of(1, 0, 1) }, 0, false },
    { { of(0, 1), of(1, 1) }, 1, false }, -- without run.elastic
    { { of(0, 1, 2), of(1, 1, 2) }, 1, false },
    { { of(0, 1, 2), of(0, 1, 2), of(1, 1, 2), of(1, 1, 2) }, 3, true },
    { { of(0, 1, 1), of(0, 1, 1) }, 1, false }, -- one agent alone
    { { of(nil, nil, 1), of(nil, nil, 1) }, 1, false }, -- another launcher
    { { of(0, 1, 1, 2), of(1, 1, 1, 2) }, 1, false }, -- torchrun would wait for a second machine
    { { of(0, 1, 1, 2), of(0, 1, 1, 2), of(1, 1, 1, 2) }, 2, false },
    { { of(0, 1, 1, 2), of(1, 1, 1, 2), of(2, 1, 1, 2) }, 2, true },
    { { of(0, 1, 1), unknown }, 1, false },
    { { sharing(0, 6), sharing(1, 6), sharing(2, 6) }, 2, true },
    { { sharing(0, 9), sharing(1, 9), sharing(2, 9) }, 2, false }, -- two ranks cannot share 9 micro-batches
  }
  for i, case in ipairs(cases) do t.equal(eviction.others_go_on(case[1], case[2]), case[3], "case " .. i) end
end)
