-- Tensors in conditions, which Lua takes for true.

local conditions = require "lockstep.conditions"
local t = require "lockstep.testing"

local function found(text)
  local lines = {}
  for i, one in ipairs(conditions.find(text)) do lines[i] = one.line .. ": " .. one.code end
  return lines
end

t.test("AConditionThatEndsInATensorIsFound", function()
  for _, condition in ipairs {
    "x:gt(1):all()", "not x:isnan():any()", "(x:eq(y))", "done or x:lt(f(2, 3)) ", "x:any() and n > 1",
    "losses[1]:isfinite()",
  } do
    local trimmed = condition:match("^(.-)%s*$")
    t.equal(found("local y = 1\nif " .. condition .. " then stop() end"), { "2: " .. trimmed })
    t.equal(found("if a then b() elseif " .. condition .. " then stop() end"), { "1: " .. trimmed })
    t.equal(found("\n\nwhile " .. condition .. " do stop() end"), { "3: " .. trimmed })
  end
end)

t.test("ConditionsWithoutTensorsGetNoWarning", function()
  for _, condition in ipairs {
    "x:gt(1):all():item()", "x:equal(y)", "x:isnan():any():item() ~= 0", "x:size(0) > 3", "x", "all(x)", "x.all",
    "n == x:any()", "x:gt(1):sum():item() > 2",
  } do
    t.equal(found("if " .. condition .. " then stop() end"), {}, condition)
  end
end)

t.test("CommentsAndStringsAreNoConditions", function()
  t.equal(found([==[
-- if x:all() then
--[[ if x:all() then
]] local s = "if x:all() then" .. 'if x:any() then \' if x:any() then' .. [[ if x:all() then ]]
local a = t[1] - 2
if x:ge(3) then -- line 5
  notify("if", x)
end]==]), { "5: x:ge(3)" })
end)

t.test("ConditionsOverSeveralLinesAreFoundWhereTheyBegin", function()
  t.equal(found("f()\nif a and\n    x:all()\nthen\n  g()\nend"), { "2: a and\n    x:all()" })
end)
