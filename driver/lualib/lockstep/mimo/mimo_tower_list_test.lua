-- The list of a tower whose language model is a pipeline: it ends together with each order of the pipeline.

local schedule = require "lockstep.sharding.pipeline.schedule"
local t = require "lockstep.testing"
local tower_list = require "lockstep.mimo.tower_list"

local function text_of(list)
  local words = {}
  for i, op in ipairs(list) do words[i] = (op.kind == "forward" and "F" or "B") .. op.micro_batch end
  return table.concat(words, " ")
end

local function plan_of(o) return schedule.make { ranks = o[1], chunks = o[2], micro_batches = o[3], order = o[4],
  first_trained = o[5], forward_only = o[6] } end

t.test("TheTowerIsOneForwardAheadOfTheFirstStage", function()
  for _, one in ipairs {
    { { 2, 1, 4, "1f1b" }, "F1 F2 F3 B1 F4 B2 B3 B4" },
    { { 3, 1, 5, "1f1b" }, "F1 F2 F3 F4 B1 F5 B2 B3 B4 B5" },
    { { 2, 1, 3, "all_forwards_first" }, "F1 F2 F3 B1 B2 B3" },
    { { 2, 1, 1, "1f1b" }, "F1 B1" },
    { { 2, 1, 3, "1f1b", 2 }, "F1 F2 F3" }, -- the tower and the first stage are frozen
    { { 2, 1, 2, "1f1b", 1, true }, "F1 F2" },
  } do
    t.equal(text_of(tower_list.make(plan_of(one[1]), one[1][3])), one[2])
  end
end)

t.test("EachOrderEndsInTheSimulation", function()
  local count = 0
  for ranks = 2, 4 do
    for chunks = 1, 3 do
      for micro_batches = 1, 9 do
        for _, order in ipairs { chunks == 1 and "1f1b" or "interleaved", "all_forwards_first" } do
          local list = tower_list.make(plan_of { ranks, chunks, micro_batches, order }, micro_batches)
          t.equal(#list, 2 * micro_batches)
          count = count + 1
        end
      end
    end
  end
  t.equal(count, 3 * 3 * 9 * 2)
end)

-- A tower that is further ahead than a bridge holds calls waits for the first stage, and that ends. One that takes a
-- gradient too soon does not.
t.test("ATowerThatTakesAGradientBeforeTheFirstStageHasItsTokensIsFound", function()
  local plan = plan_of { 2, 1, 4, "1f1b" }
  local list = tower_list.make(plan, 4)
  t.equal(text_of(list):sub(1, 11), "F1 F2 F3 B1")
  list[2], list[4] = list[4], list[2] -- F1 B1 F3 F2: no second micro-batch is there when stage 1 warms up
  t.raises("wait", tower_list.prove, plan, { list[1], list[2], list[4], list[3], unpack(list, 5) }, 4)
end)
