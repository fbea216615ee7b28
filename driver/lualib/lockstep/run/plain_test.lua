--- plain.finally undoes what a call needed, whether it returns or raises.

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
