-- pairs and next visit every key however hot their loop. Debian 12's LuaJIT, of 2022-03-20, fails these tests or
-- crashes: https://github.com/LuaJIT/LuaJIT/issues/827 and 829. third_party/luajit has a newer one.

local t = require "lockstep.testing"

local ROW = { 1, 2, 3, 4, 5 }
local TABLE = { a = ROW, b = ROW, c = ROW, d = ROW, e = ROW }

--- Makes the loop around a call of it leave compiled code.
local function leave_trace(...)
  for _ = 1, 100 do end
  return ...
end

-- The case of issue 827: it needs that many rounds.
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

-- Random loops over random tables, each compared with the keys that rawget finds. Loops are made by load, so each is
-- hot for itself; some leave at random keys, call functions, nest, and change values on the way.
t.test("RandomLoopsVisitEachKeyOnce", function()
  math.randomseed(7)
  local BODIES = {
    "", "if math.random(7) == 1 then for _ = 1, 60 do end end", "t[k] = v + 1 t[k] = v",
    "for a, b in pairs(inner) do sum = sum + (type(a) == 'number' and a or 1) * b end",
    "local c = coroutine.wrap(function() for a in next, inner do coroutine.yield(a) end end) c() c()",
    "if v == 3 then collectgarbage('step') end", "sum = sum + #tostring(v)",
  }
  local FORMS = { "for k, v in pairs(t) do", "for k, v in next, t do", "local k, v = next(t) while k ~= nil do" }
  for case = 1, 300 do
    local form = math.random(#FORMS)
    local body = BODIES[math.random(#BODIES)] .. " " .. BODIES[math.random(#BODIES)]
    local step = form == 3 and "k, v = next(t, k)" or ""
    local loop = assert(load(string.format(
      "local t, inner, seen = ... local sum, n = 0, 0 %s seen[k] = v n = n + 1 %s %s end return n, sum",
      FORMS[form], body, step)))
    local given, inner, size = {}, { 1, 2, x = 3 }, 0
    for i = 1, math.random(0, 6) do given[i], size = i, size + 1 end
    for i = 1, math.random(0, 6) do given["k" .. i], size = i, size + 1 end
    for round = 1, 200 do
      local seen = {}
      local count = loop(given, inner, seen)
      if count ~= size then
        error(string.format("case %d, round %d: %d of %d keys: %s", case, round, count, size, body))
      end
      for i = 1, 6 do
        if seen[i] ~= given[i] or seen["k" .. i] ~= given["k" .. i] then
          error(string.format("case %d, round %d: key %d", case, round, i))
        end
      end
    end
  end
end)
