--- The time that a schedule takes if each stage's operations take given seconds: the simulator with measured times.
---
---     local plan = schedule.make { ranks = 2, chunks = 1, micro_batches = 4, order = "1f1b" }
---     local timing = timing.replay(plan.lists, { forward = { 0.03, 0.04 }, backward = { 0.06, 0.08 } })
---     timing.bubble     -- the share of the time in which a rank waits, on average
---
--- A rank runs its list as pipeline/runner.lua does: it starts a batch of messages and goes on, and an operation waits
--- for the message that it needs. A batch has arrived when both ranks have started it.

local schedule = require "lockstep.sharding.pipeline.schedule"

local M = {}

---@class pipeline.Timing
---@field span number seconds until the last rank is done
---@field bubble number the share of the time in which a rank waits, on average
---@field ends number[] when each rank is done

local key = schedule.key

--- Runs one rank's list until it waits for another rank. Returns whether an operation was done.
local function go_on(rank, o, started)
  local has_moved = false
  while rank.next <= #rank.list do
    local op = rank.list[rank.next]
    if op.kind == "messages" then
      started[op] = rank.now
      for _, one in ipairs(op.receives) do rank.awaited[key(one.gradient, one.to, one.micro_batch)] = op end
    else
      local is_backward = op.kind == "backward"
      local batch = rank.awaited[key(is_backward, op.stage, op.micro_batch)]
      if batch and not started[batch.other] then return has_moved end
      local seconds = (is_backward and o.backward or o.forward)[op.stage]
      local arrival = batch and math.max(started[batch], started[batch.other]) + (o.message or 0) or 0
      rank.now, rank.busy = math.max(rank.now, arrival) + seconds, rank.busy + seconds
    end
    rank.next, has_moved = rank.next + 1, true
  end
  return has_moved
end

--- Returns the timing of a schedule.
---@param lists pipeline.Operation[][] of schedule.make
---@param o {forward: number[], backward: number[], message: number?} seconds by stage, and of a batch of messages
---@return pipeline.Timing
function M.replay(lists, o)
  local ranks, started, is_moving = {}, {}, true
  for i, list in ipairs(lists) do ranks[i] = { list = list, next = 1, now = 0, busy = 0, awaited = {} } end
  while is_moving do
    is_moving = false
    for _, rank in ipairs(ranks) do is_moving = go_on(rank, o, started) or is_moving end
  end
  local span, busy, ends = 0, 0, {}
  for i, rank in ipairs(ranks) do
    assert(rank.next > #rank.list, "a schedule that does not end")
    span, busy, ends[i] = math.max(span, rank.now), busy + rank.busy, rank.now
  end
  return { span = span, bubble = 1 - busy / (span * #ranks), ends = ends }
end

return M
