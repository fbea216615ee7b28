-- pairs and next visit every key however hot their loop: see lockstep.lua.

local t = require "lockstep.testing"

local ROW = { 1, 2, 3, 4, 5 }
local TABLE = { a = ROW, b = ROW, c = ROW, d = ROW, e = ROW }

--- Makes the loop around a call of it leave compiled code.
local function leave_trace(...)
  for _ = 1, 100 do end
  return ...
end

-- The case of https://github.com/LuaJIT/LuaJIT/issues/827: it needs that many rounds.
t.test("PairsVisitsEveryKeyOfAHotLoop", function()
  for round = 1, 100000 do
    leave_trace()
    local count = 0
    for _, row in pairs(TABLE) do
      for _ in pairs(row) do end -- luacheck: ignore 542
      count = count + 1
    end
    if count ~= 5 then error(string.format("%d of 5 keys in round %d", count, round)) end
  end
end)

t.test("NextAsAnIteratorVisitsEveryKeyOfAHotLoop", function()
  for round = 1, 100000 do
    leave_trace()
    local count = 0
    for _, row in next, TABLE do
      for _ in next, row do end -- luacheck: ignore 542
      count = count + 1
    end
    if count ~= 5 then error(string.format("%d of 5 keys in round %d", count, round)) end
  end
end)

t.test("PairsTakesKeysOfEveryTypeAndAllowsClearingOnTheWay", function()
  local given = { 1, 2, x = 3, [0.5] = 4, [true] = 5 }
  local seen = {}
  for key, value in pairs(given) do
    seen[key] = value
    given[key] = nil
  end

  t.equal(seen, { 1, 2, x = 3, [0.5] = 4, [true] = 5 })
  t.equal(next(given), nil)
end)

t.test("PairsOfWhatIsNoTableBlamesTheCaller", function()
  local message = t.raises("bad argument #1 to 'pairs' (table expected, got nil)", function()
    for _ in pairs(nil) do end -- luacheck: ignore 542
  end)

  t.truthy(message:find("^[^:]*pairs_test.lua:%d+: "), message)
end)
