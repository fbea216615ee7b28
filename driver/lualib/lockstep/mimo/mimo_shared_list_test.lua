--- The operations of towers on the ranks of a pipeline.

local shared_list = require "lockstep.mimo.shared_list"
local t = require "lockstep.testing"

local LETTERS = { towers = "T", forward = "F", backward = "B", towers_backward = "U" }

local function text_of(list)
  local parts = {}
  for i, op in ipairs(list) do parts[i] = LETTERS[op.kind] .. op.micro_batch end
  return table.concat(parts, " ")
end

t.test("TowersRunWhileAStageWaits", function()
  local lists = shared_list.make(2, 3)

  t.equal(text_of(lists[1]), "T1 F1 T2 F2 T3 B1 U1 F3 B2 U2 B3 U3")
  t.equal(text_of(lists[2]), "T1 T2 T3 F1 B1 F2 B2 U1 F3 B3 U2 U3")
end)

t.test("EveryListHasEachOperationOnceAndTowersInOneOrder", function()
  for stages = 2, 5 do
    for micro_batches = 1, 15 do
      local lists, first = shared_list.make(stages, micro_batches), nil
      for s, list in ipairs(lists) do
        local seen, towers, held, most = {}, {}, 0, 0
        for _, op in ipairs(list) do
          local key = text_of { op }
          t.equal(seen[key], nil, key)
          seen[key] = true
          if op.kind == "towers" or op.kind == "towers_backward" then
            towers[#towers + 1], held = key, held + (op.kind == "towers" and 1 or -1)
            most = math.max(most, held)
          end
          local m = op.micro_batch
          if s == 1 and op.kind == "forward" then t.truthy(seen["T" .. m], "rows before their stage") end
          if op.kind == "backward" then t.truthy(seen["F" .. m], "forward before backward") end
          if op.kind == "towers_backward" then t.truthy(seen["B" .. m], "the stage's backward first") end
        end
        t.equal(#list, 4 * micro_batches)
        t.equal(most, math.min(stages + 2, micro_batches))
        first = first or table.concat(towers, " ")
        t.equal(table.concat(towers, " "), first, "towers run in one order on all ranks")
      end
    end
  end
end)

-- The last stage would wait for the towers' gradients before it gives those that they come from.
t.test("ListsThatWouldNotEndAreFound", function()
  local lists = shared_list.make(2, 4)
  for i, op in ipairs(lists[2]) do
    if op.kind == "backward" and op.micro_batch == 2 then
      table.insert(lists[2], #lists[2], table.remove(lists[2], i))
      break
    end
  end

  t.raises("wait for each other", shared_list.prove, lists)
end)
