-- Tests how the interactive session treats typed lines.

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

t.test("UnfinishedCodeWaitsForAnotherLine", function()
  for _, code in ipairs {
    "for i = 1, 2 do", "x = {", "x = ", "print(1,", "1 +", "function f()", "if x then y = 1", "x = [[text",
    "return 1 +", "--[[ a comment",
  } do
    local chunk, unfinished = repl.compile(code)
    t.equal(chunk, nil, code)
    t.equal(unfinished, true, code)
  end
end)

t.test("CodeThatNoLineCanCompleteIsAnError", function()
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

local function message_of(code)
  local ok, message = repl.evaluate(repl.compile(code), code)
  t.equal(ok, false, code)
  return message
end

t.test("AnErrorIsOneLineWhereThereIsOneLineToShow", function()
  t.equal(message_of("error('oh')"), "typed:1: oh")
  t.equal(message_of("\nlocal x = nil + 1"), "typed:2: attempt to perform arithmetic on a nil value")
  t.equal(message_of("require('lockstep.torch').matmull(1)"),
    'typed:1: torch has no operator "matmull"; did you mean "matmul"?')
  t.equal(message_of("math.flor(1)"),
    [[typed:1: attempt to call field 'flor' (a nil value); did you mean "math.floor"?]])
end)

t.test("AnErrorInAFunctionShowsItsCallersButNotTheSession", function()
  t.equal(message_of("local function f() error('oh') end\nlocal function g() f() end\ng()"), table.concat({
    "typed:1: oh", "stack traceback:", "\ttyped:1: in function 'f'", "\ttyped:2: in function 'g'",
    "\ttyped:3: in main chunk" }, "\n"))
end)

t.test("AnErrorThatTheLibraryRaisesHasTheLineThatWasTyped", function()
  local message = message_of("require('lockstep.help').help('nn.Liner')")
  t.equal(message, 'typed:1: help: there is nothing called "nn.Liner"; did you mean "nn.Linear"?')
end)

t.test("TypedCodeReturnsItsResults", function()
  local code = "1, nil, 'x' -- and a comment"
  t.equal(select("#", repl.evaluate(repl.compile(code), code)), 4)
end)
