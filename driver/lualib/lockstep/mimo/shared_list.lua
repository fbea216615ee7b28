--- The operations of a step where towers are on the ranks of a pipeline: each rank has replicas of the towers and a
--- stage of the module that they feed.
---
---     local lists = shared_list.make(2, 3)
---     lists[2] -- towers 1, towers 2, towers 3, forward 1, backward 1, ..., towers_backward 3
---
--- Stages run in the 1F1B order. At the beginning of a step a later stage waits for its first input, and an early one
--- for its first gradient. At the end a later stage has nothing left. A rank fills these waits with its towers' work
--- for other micro-batches. One clock runs all ranks. A free rank takes the towers' next forward if the first stage
--- needs these rows next, else the stage's next operation, else the towers' next one. On every rank the towers run in
--- one order, and all ranks meet in each of their operations on the clock. So they may be sharded over the ranks.

local core_mimo = require "lockstep.core.mimo"

local M = {}

--- The calls of a bridge that its sender may be ahead: kCallsAhead of mimo/schedule/schedule.h.
local CALLS_AHEAD = 2

local SEND, RECEIVE = 0, 1

---@class mimo.SharedOperation
---@field kind "towers"|"forward"|"backward"|"towers_backward"
---@field micro_batch integer from 1

--- The time of each operation on the clock.
local UNITS = { towers = 1, forward = 2, backward = 4, towers_backward = 2 }

--- Returns the operations of a stage, from 0, in the 1F1B order.
local function sequence_of_stage(stage, stages, micro_batches)
  local list, num = {}, { forward = 0, backward = 0 }
  local function add(kind)
    num[kind] = num[kind] + 1
    list[#list + 1] = { kind = kind, micro_batch = num[kind] }
  end
  for _ = 1, math.min(stages - 1 - stage, micro_batches) do add "forward" end
  while num.backward < micro_batches do
    if num.forward < micro_batches then add "forward" end
    add "backward"
  end
  return list
end

--- Returns the operations of the towers. Their forward is at most `held` micro-batches ahead of their backward.
local function sequence_of_towers(micro_batches, held)
  local list, forwards = {}, 0
  for m = 1, micro_batches do
    while forwards < math.min(micro_batches, m - 1 + held) do
      forwards = forwards + 1
      list[#list + 1] = { kind = "towers", micro_batch = forwards }
    end
    list[#list + 1] = { kind = "towers_backward", micro_batch = m }
  end
  return list
end

--- Runs the clock. Returns the list of each stage.
local function simulate(stages, micro_batches)
  local towers, now, left = sequence_of_towers(micro_batches, stages + CALLS_AHEAD), 0, 4 * stages * micro_batches
  local ranks, lists, ends = {}, {}, {}
  for i = 1, stages do
    lists[i] = {}
    ranks[i] = { list = lists[i], stage = i - 1, own = sequence_of_stage(i - 1, stages, micro_batches), next_own = 1,
      next_towers = 1, is_free_at = 0 }
  end
  local function key(stage, kind, m) return kind .. stage .. " " .. m end
  local function has_ended(stage, kind, m)
    local at = ends[key(stage, kind, m)]
    return at ~= nil and at <= now
  end
  local function all_have(kind, m)
    for stage = 0, stages - 1 do
      if not has_ended(stage, kind, m) then return false end
    end
    return true
  end
  local function can_run(rank, op)
    local stage, kind, m = rank.stage, op.kind, op.micro_batch
    if kind == "towers" then -- a bridge is not further ahead
      if m <= CALLS_AHEAD then return true end
      if stage == 0 then return all_have("towers", m - CALLS_AHEAD) end
      return ends[key(0, "forward", m - CALLS_AHEAD)] ~= nil
    elseif kind == "forward" then
      if m > CALLS_AHEAD and stage < stages - 1 and not ends[key(stage + 1, kind, m - CALLS_AHEAD)] then
        return false -- nor is a link
      end
      if stage == 0 then return all_have("towers", m) end
      return has_ended(stage - 1, kind, m)
    elseif kind == "backward" then
      return stage == stages - 1 or has_ended(stage + 1, kind, m)
    end
    return has_ended(0, "backward", m) and has_ended(stage, "backward", m)
  end
  local function choose(rank)
    local own, tower = rank.own[rank.next_own], towers[rank.next_towers]
    local last = rank.list[#rank.list]
    -- On the first stage the towers' backward is a part of the stage's.
    local is_bound = rank.stage == 0 and (own and own.kind == "backward" or last and last.kind == "backward")
    if is_bound and (tower.kind == "towers" or last.kind == "backward") then own = nil end
    if tower and not can_run(rank, tower) then tower = nil end
    if own and not can_run(rank, own) then own = nil end
    local taken = ranks[1].num_forwards or 0
    if tower and tower.kind == "towers" and tower.micro_batch <= taken + 1 then return tower, true end
    if own then return own, false end
    return tower, true
  end
  --- Lets an operation of the towers begin after all ranks have come to it.
  local function meet(op)
    for stage = 0, stages - 1 do
      if not ends[key(stage, op.kind, op.micro_batch)] then return end
    end
    for _, rank in ipairs(ranks) do
      rank.is_free_at = now + UNITS[op.kind]
      ends[key(rank.stage, op.kind, op.micro_batch)] = rank.is_free_at
    end
  end
  while left > 0 do
    for _, rank in ipairs(ranks) do
      local op, is_of_towers = nil, nil
      if rank.is_free_at <= now then op, is_of_towers = choose(rank) end
      if op then
        local place = is_of_towers and "next_towers" or "next_own"
        rank[place], left = rank[place] + 1, left - 1
        rank.list[#rank.list + 1], rank.is_free_at = op, is_of_towers and math.huge or now + UNITS[op.kind]
        ends[key(rank.stage, op.kind, op.micro_batch)] = rank.is_free_at
        if op.kind == "forward" then rank.num_forwards = op.micro_batch end
        if is_of_towers then meet(op) end
      end
    end
    local soonest = math.huge
    for _, rank in ipairs(ranks) do
      if rank.is_free_at > now then soonest = math.min(soonest, rank.is_free_at) end
    end
    assert(left == 0 or soonest < math.huge, "a step that does not end")
    now = soonest
  end
  return lists
end

--- Proves that the lists match and end. All ranks meet before each operation of the towers, as they do in the layers of
--- a sharded tower. Ranks in between stand for what a bridge holds until its receiver takes it. Rows pass through as
--- many of them as a bridge may be calls ahead. Each gradient, for which no rank waits, passes through one of its own.
---@param lists mimo.SharedOperation[][]
---@return integer operations
---@return integer transfers
function M.prove(lists)
  local stages, micro_batches, ops = #lists, #lists[1] / 4, {}
  for rank = 1, stages do ops[rank] = {} end
  local LINK, BRIDGE, MEETING = 0, 1, 2 -- of the names
  local function add(rank, kind, gradient, partner, what, m)
    table.insert(ops[rank + 1], { kind, gradient, 0, partner, what, m - 1 })
  end
  local keepers = {} -- {rows = {...}, gradients = {...}} by what and sender, from 0
  local function keepers_of(what, sender, receiver)
    local key = what .. " " .. sender
    if keepers[key] then return keepers[key] end
    local rows, gradients = {}, {}
    for i = 1, CALLS_AHEAD do
      ops[#ops + 1], rows[i] = {}, #ops
    end
    for i = 1, CALLS_AHEAD do
      for m = 1, micro_batches do
        add(rows[i], RECEIVE, 0, rows[i - 1] or sender, what, m)
        add(rows[i], SEND, 0, rows[i + 1] or receiver, what, m)
      end
    end
    for m = 1, micro_batches do
      ops[#ops + 1], gradients[m] = {}, #ops
      add(gradients[m], RECEIVE, 1, receiver, what, m)
      add(gradients[m], SEND, 1, sender, what, m)
    end
    keepers[key] = { rows = rows, gradients = gradients }
    return keepers[key]
  end
  local function meet(rank, gradient, m)
    if rank > 0 then
      add(rank, SEND, gradient, 0, MEETING, m)
      add(rank, RECEIVE, gradient, 0, MEETING, m)
      return
    end
    for _, kind in ipairs { RECEIVE, SEND } do
      for other = 1, stages - 1 do add(0, kind, gradient, other, MEETING, m) end
    end
  end
  local num_taken = 0
  --- Rank 0 takes rows before its forward needs them, or when a bridge can hold no more.
  local function take_to(count)
    while num_taken < count do
      num_taken = num_taken + 1
      for other = 1, stages - 1 do
        add(0, RECEIVE, 0, keepers_of(BRIDGE, other, 0).rows[CALLS_AHEAD], BRIDGE, num_taken)
      end
    end
  end
  for index, list in ipairs(lists) do
    local rank = index - 1
    local bridge = rank > 0 and keepers_of(BRIDGE, rank, 0)
    local before = rank > 0 and keepers_of(LINK, rank - 1, rank)
    local after = index < stages and keepers_of(LINK, rank, rank + 1)
    for _, op in ipairs(list) do
      local m = op.micro_batch
      if op.kind == "towers" then
        meet(rank, 0, m)
        if bridge then add(rank, SEND, 0, bridge.rows[1], BRIDGE, m) else take_to(m - CALLS_AHEAD) end
      elseif op.kind == "forward" then
        if before then add(rank, RECEIVE, 0, before.rows[CALLS_AHEAD], LINK, m) else take_to(m) end
        if after then add(rank, SEND, 0, after.rows[1], LINK, m) end
      elseif op.kind == "backward" then
        if after then add(rank, RECEIVE, 1, after.gradients[m], LINK, m) end
        if before then add(rank, SEND, 1, before.gradients[m], LINK, m) end
        for other = 1, rank == 0 and stages - 1 or 0 do
          add(0, SEND, 1, keepers_of(BRIDGE, other, 0).gradients[m], BRIDGE, m)
        end
      else
        if bridge then add(rank, RECEIVE, 1, bridge.gradients[m], BRIDGE, m) end
        meet(rank, 1, m)
      end
    end
  end
  return core_mimo.simulate_messages({ "hidden states", "rows of towers", "towers" }, ops)
end

--- Makes the lists of all stages, and proves them.
---@param stages integer
---@param micro_batches integer
---@return mimo.SharedOperation[][]
function M.make(stages, micro_batches)
  local lists = simulate(stages, micro_batches)
  M.prove(lists)
  return lists
end

return M
