-- What the interactive session makes of what is typed.

local repl = require "lockstep.repl"
local t = require "lockstep.testing"

t.test("AnExpressionIsCompiledSoThatItsValuesShow", function()
  t.equal({ repl.compile("1 + 1")() }, { 2 })
  t.equal({ repl.compile("1, 'two'")() }, { 1, "two" })
end)

t.test("StatementsRunAndShowNothing", function()
  t.equal({ repl.compile("local x = 1; x = x + 1")() }, {})
  t.equal({ repl.compile("")() }, {})
end)

t.test("WhatIsUnfinishedWaitsForAnotherLine", function()
  for _, code in ipairs {
    "for i = 1, 2 do", "x = {", "x = ", "print(1,", "1 +", "function f()", "if x then y = 1", "x = [[text",
    "return 1 +", "--[[ a comment",
  } do
    local chunk, unfinished = repl.compile(code)
    t.equal(chunk, nil, code)
    t.equal(unfinished, true, code)
  end
end)

t.test("WhatCannotBecomeRightIsAMistakeWithAMessage", function()
  for _, code in ipairs { ")", "x = = 1", "for for", "1 + )", "end", '"open' } do
    local chunk, unfinished, message = repl.compile(code)
    t.equal(chunk, nil, code)
    t.equal(unfinished, false, code)
    t.truthy(message:find("typed:1: ", 1, true), message)
  end
end)

t.test("AnUnfinishedInputIsCompleteWithItsLastLine", function()
  t.equal({ repl.compile("(1 +\n2) * 3")() }, { 9 })
end)
