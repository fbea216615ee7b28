--- plain.finally undoes what a call needed, whether it returns or raises; plain.checks names the caller in errors.

local plain = require "lockstep.plain"
local t = require "lockstep.testing"

t.test("FinallyReturnsWhatTheCallDoesAndUndoesAfterIt", function()
  local calls = {}
  local function fn(a, b)
    calls[#calls + 1] = "fn"
    return a, nil, b, nil
  end

  local count = select("#", plain.finally(function() calls[#calls + 1] = "undo" end, fn, 1, 2))
  local one, none, two = plain.finally(function() end, fn, 1, 2)

  t.equal(count, 4)
  t.equal({ one, none == nil, two }, { 1, true, 2 })
  t.equal(calls, { "fn", "undo", "fn" })
end)

t.test("FinallyUndoesAfterAnErrorAndPassesItOnAsItIs", function()
  local undone, problem = false, { code = 7 }

  local ok, raised = pcall(plain.finally, function() undone = true end, error, problem)

  t.equal(ok, false)
  t.truthy(rawequal(raised, problem))
  t.truthy(undone)
end)

t.test("ChecksRaiseErrorsThatBeginWithTheCaller", function()
  local check, fail = plain.checks "models.load: "

  check(true, "%d is not reached", "text")

  t.raises("models.load: r is 3, not a %", function() check(nil, "r is %d, not a %%", 3) end)
  t.raises('models.load: the folder "a" is empty', function() fail('the folder "%s" is empty', "a") end)
end)

t.test("AValueOfAnotherTypeIsShownByItsType", function()
  t.equal({ plain.shown(2.5, "number"), plain.shown("x", "number"), plain.shown(true, "number") },
    { "2.5", "a string", "a boolean" })
  t.equal({ plain.shown("x", "string"), plain.shown(2, "string"), plain.shown(nil, "string") },
    { '"x"', "a number", "a nil" })
end)
