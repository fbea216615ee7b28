-- The lists of operations of a pipeline's ranks: what each order is, and that all lists match and end.

local core_mimo = require "lockstep.core.mimo"
local schedule = require "lockstep.sharding.pipeline.schedule"
local t = require "lockstep.testing"
local timing = require "lockstep.sharding.pipeline.timing"

--- "F1.2" for the forward of micro-batch 2 on stage 1.
local function computed(list)
  local texts = {}
  for _, op in ipairs(list) do
    if op.kind ~= "messages" then
      texts[#texts + 1] = ("%s%d.%d"):format(op.kind == "forward" and "F" or "B", op.stage, op.micro_batch)
    end
  end
  return table.concat(texts, " ")
end

local function make(ranks, chunks, micro_batches, order, more)
  local o = { ranks = ranks, chunks = chunks, micro_batches = micro_batches, order = order }
  for key, value in pairs(more or {}) do o[key] = value end
  return schedule.make(o)
end

t.test("HeaderExample", function()
  local plan = make(2, 1, 4, "1f1b")

  t.equal(computed(plan.lists[1]), "F1.1 F1.2 B1.1 F1.3 B1.2 F1.4 B1.3 B1.4")
  t.equal(computed(plan.lists[2]), "F2.1 B2.1 F2.2 B2.2 F2.3 B2.3 F2.4 B2.4")
end)

t.test("OneForwardOneBackwardHasTheBubbleAndTheMemoryOfItsPaper", function()
  for ranks = 2, 6 do
    for _, m in ipairs { ranks, 2 * ranks, 3 * ranks + 1 } do
      local plan = make(ranks, 1, m, "1f1b")

      t.near(plan.bubble, (ranks - 1) / (m + ranks - 1), 1e-12)
      for rank = 1, ranks do t.equal(plan.held[rank], math.min(m, ranks - rank + 1)) end
    end
  end
end)

t.test("InterleavingDividesTheBubbleByTheNumberOfChunks", function()
  for ranks = 2, 5 do
    for chunks = 2, 4 do
      local m = 3 * ranks
      local plan = make(ranks, chunks, m, "interleaved")

      t.near(plan.span, 3 * (m * chunks + ranks - 1), 1e-12)
      t.truthy(plan.held[1] <= 2 * (ranks - 1) + (chunks - 1) * ranks + 1)
    end
  end
end)

t.test("AllForwardsComeFirst", function()
  t.equal(computed(make(2, 1, 3, "all_forwards_first").lists[1]), "F1.1 F1.2 F1.3 B1.1 B1.2 B1.3")
end)

--- Checks what every schedule must be.
local function check(o, plan)
  local stages, done, sent, received = o.ranks * o.chunks, {}, {}, {}
  local function rank_of(stage) return (stage - 1) % o.ranks + 1 end
  for rank, list in ipairs(plan.lists) do
    local here = {}
    local function note(name)
      t.truthy(not done[name], name .. " twice")
      done[name], here[name] = true, true
    end
    for _, op in ipairs(list) do
      if op.kind == "messages" then
        for _, one in ipairs(op.sends) do
          t.equal(rank_of(one.from), rank)
          t.equal(rank_of(one.to), op.peer)
          t.truthy(here[(one.gradient and "B" or "F") .. one.from .. "." .. one.micro_batch], "sent before computed")
          local pair = rank .. ">" .. op.peer
          sent[pair] = (sent[pair] or "") .. schedule.describe { kind = "messages", sends = { one }, receives = {} }
        end
        for _, one in ipairs(op.receives) do
          here[(one.gradient and "gradient " or "input ") .. one.to .. "." .. one.micro_batch] = true
          local pair = op.peer .. ">" .. rank
          received[pair] = (received[pair] or "")
            .. schedule.describe { kind = "messages", sends = { one }, receives = {} }
        end
      else
        local where = op.stage .. "." .. op.micro_batch
        t.equal(rank_of(op.stage), rank)
        if op.kind == "forward" then
          t.truthy(op.stage == 1 or here["input " .. where], "no input")
          note("F" .. where)
        else
          t.truthy(here["F" .. where], "backward before forward")
          t.truthy(op.stage == stages or here["gradient " .. where], "no gradient")
          t.truthy(op.stage >= o.first_trained)
          note("B" .. where)
        end
      end
    end
  end
  for stage = 1, stages do
    for m = 1, o.micro_batches do
      t.truthy(done["F" .. stage .. "." .. m])
      t.equal(done["B" .. stage .. "." .. m] or false, stage >= o.first_trained)
    end
  end
  t.equal(sent, received) -- each pair has one order
end

t.test("300RandomSchedulesAreWholeAndKeepTheOrderOfEachPair", function()
  local state = 20261128
  local function draw(n)
    state = (state * 1103515245 + 12345) % 2 ^ 31
    return math.floor(state / 65536) % n + 1
  end
  for case = 1, 300 do
    local o = { ranks = 1 + draw(5), micro_batches = draw(9), order = schedule.ORDERS[draw(3)] }
    o.chunks = o.order == "1f1b" and 1 or draw(4)
    o.first_trained = draw(3) == 1 and draw(o.ranks * o.chunks) or 1
    local ok, message = pcall(check, o, schedule.make(o))
    t.truthy(ok, ("case %d: %d ranks, %d chunks, %d micro-batches, %s, first trained %d: %s"):format(case, o.ranks,
      o.chunks, o.micro_batches, o.order, o.first_trained, tostring(message)))
  end
end)

t.test("AReplayInTheSchedulesUnitsTakesTheSchedulesTime", function()
  for ranks = 2, 5 do
    for _, order in ipairs(schedule.ORDERS) do
      for chunks = 1, order == "1f1b" and 1 or 3 do
        local plan, forward, backward = make(ranks, chunks, 2 * ranks, order), {}, {}
        for s = 1, ranks * chunks do forward[s], backward[s] = 1, 2 end

        local timed = timing.replay(plan.lists, { forward = forward, backward = backward })

        local what = ("%d ranks, %s, %d chunks"):format(ranks, order, chunks)
        t.near(timed.span, plan.span, 1e-12, what)
        t.near(timed.bubble, plan.bubble, 1e-12, what)
      end
    end
  end
end)

t.test("AReplayWaitsForTheSlowestStageAndForMessages", function()
  local plan = make(2, 1, 3, "all_forwards_first")
  -- Forwards of stage 2 end at 1 + 3, 7, 10; its backwards at 16, 22, 28; the first stage's last one at 30.
  local timed = timing.replay(plan.lists, { forward = { 1, 3 }, backward = { 2, 6 } })
  t.equal({ timed.span, timed.ends[1], timed.ends[2] }, { 30, 30, 28 })
  t.near(timed.bubble, 1 - (3 * 3 + 3 * 9) / 60, 1e-12)
  t.near(timing.replay(plan.lists, { forward = { 1, 3 }, backward = { 2, 6 }, message = 0.5 }).span, 32, 1e-12)
end)

-- The failure: two ranks that each send first. Nothing buffers a message, so both wait.
t.test("ListsInWhichTwoRanksSendFirstAreAnError", function()
  local SEND, RECEIVE = 0, 1
  local function lists(in_batches)
    local with_previous = in_batches and 1 or 0
    return { { { SEND, 0, 0, 1, 0, 0 }, { RECEIVE, 1, with_previous, 1, 1, 0 } },
      { { SEND, 1, 0, 0, 1, 0 }, { RECEIVE, 0, with_previous, 0, 0, 0 } } }
  end

  t.equal({ core_mimo.simulate_messages({ "stage 1", "stage 2" }, lists(true)) }, { 4, 2 })
  t.raises("wait", core_mimo.simulate_messages, { "stage 1", "stage 2" }, lists(false))
end)

t.test("ListsWhoseMessagesCrossAreAnError", function()
  t.raises("micro-batch", core_mimo.simulate_messages, { "stage 1", "stage 2" },
    { { { 0, 0, 0, 1, 0, 0 }, { 0, 0, 0, 1, 0, 1 } }, { { 1, 0, 0, 0, 0, 1 }, { 1, 0, 0, 0, 0, 0 } } })
end)
