--- The operations of a tower that has ranks of its own, in a step whose language model is a pipeline.
---
---     local plan = schedule.make { ranks = 2, chunks = 1, micro_batches = 3, order = "1f1b" }
---     tower_list.make(plan, 3)   -- forward 1, 2, 3, backward 1, 2, 3: each { kind = "forward", micro_batch = 1 }
---
--- The first stage takes a micro-batch's tokens before its forward, and gives their gradient in its backward. The tower
--- follows the first stage's list, one forward ahead: so it computes the next tokens while the pipeline learns from
--- those that it has. It holds one micro-batch more than the first stage.

local core_mimo = require "lockstep.core.mimo"
local schedule = require "lockstep.sharding.pipeline.schedule"

local M = {}

--- The calls of a bridge that the tower may send before the first of them is taken: kCallsAhead of
--- mimo/schedule/schedule.h.
local CALLS_AHEAD = 2

local SEND, RECEIVE = 0, 1

---@class mimo.TowerOperation
---@field kind "forward"|"backward"
---@field micro_batch integer

--- Returns the forwards and backwards of the tower, not proven yet.
local function follow(first_list, micro_batches)
  local list, taken, sent = {}, 0, 0
  local function forward_to(count)
    while sent < math.min(count, micro_batches) do
      sent = sent + 1
      list[#list + 1] = { kind = "forward", micro_batch = sent }
    end
  end
  for _, op in ipairs(first_list) do
    if op.stage == 1 and op.kind == "forward" then
      taken = taken + 1
      forward_to(taken + 1)
    elseif op.stage == 1 and op.kind == "backward" then
      list[#list + 1] = { kind = "backward", micro_batch = op.micro_batch }
    end
  end
  forward_to(micro_batches)
  return list
end

--- Proves that the tower's list and those of the pipeline match and end together. A message that a bridge keeps for its
--- receiver is one that a rank in between has taken and not passed on. So tokens pass through as many such ranks as a
--- bridge may be calls ahead, and each gradient, for which no rank waits, through one of its own.
---@param plan pipeline.Schedule
---@param list mimo.TowerOperation[]
---@param micro_batches integer
---@return integer operations
---@return integer transfers
function M.prove(plan, list, micro_batches)
  local ranks, stages, ops = #plan.lists, 0, {}
  for _, own in ipairs(plan.lists) do
    for _, op in ipairs(own) do stages = math.max(stages, op.stage or 0) end
  end
  local names = schedule.names_of(stages)
  names[#names + 1] = "the tower"
  -- From 0: the pipeline, the tower, the keepers of tokens, those of gradients.
  local tower, keeper = ranks, ranks + 1
  local function keeper_of(micro_batch) return keeper + CALLS_AHEAD + micro_batch - 1 end
  local function add(to, kind, gradient, partner, micro_batch)
    to[#to + 1] = { kind, gradient, 0, partner, stages, micro_batch - 1 }
  end
  for rank, own in ipairs(plan.lists) do
    ops[rank] = schedule.messages_of(own, function(op, to)
      if op.stage ~= 1 then return end
      if op.kind == "backward" then
        add(to, SEND, 1, keeper_of(op.micro_batch), op.micro_batch)
      else
        add(to, RECEIVE, 0, keeper + CALLS_AHEAD - 1, op.micro_batch)
      end
    end)
  end
  ops[tower + 1] = {}
  for i = 1, CALLS_AHEAD do
    local own = {}
    for m = 1, micro_batches do
      add(own, RECEIVE, 0, i == 1 and tower or keeper + i - 2, m)
      add(own, SEND, 0, i == CALLS_AHEAD and 0 or keeper + i, m)
    end
    ops[keeper + i] = own
  end
  for m = 1, micro_batches do ops[keeper_of(m) + 1] = {} end
  for _, op in ipairs(list) do
    if op.kind == "forward" then
      add(ops[tower + 1], SEND, 0, keeper, op.micro_batch)
    else
      local own = ops[keeper_of(op.micro_batch) + 1]
      add(own, RECEIVE, 1, 0, op.micro_batch)
      add(own, SEND, 1, tower, op.micro_batch)
      add(ops[tower + 1], RECEIVE, 1, keeper_of(op.micro_batch), op.micro_batch)
    end
  end
  return core_mimo.simulate_messages(names, ops)
end

--- Makes the tower's list for a pipeline's schedule, and proves that both end together.
---@param plan pipeline.Schedule
---@param micro_batches integer
---@return mimo.TowerOperation[]
function M.make(plan, micro_batches)
  local list = follow(plan.lists[1], micro_batches)
  M.prove(plan, list, micro_batches)
  return list
end

return M
