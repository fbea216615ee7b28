--- Which rank --evict-slow takes for a slow one. tests/restarts_test.cc has a run that ends.

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
