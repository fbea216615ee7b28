--- The order of a pipeline's operations: a list for each rank, made and proven before the first step.
---
---     local plan = schedule.make { ranks = 2, chunks = 1, micro_batches = 4, order = "1f1b" }
---     plan.lists[1]     -- { { kind = "forward", stage = 1, micro_batch = 1 }, { kind = "messages", ... }, ... }
---
--- Stage s runs on rank (s - 1) % ranks + 1, so with several chunks a rank has several stages. One clock runs all
--- ranks: a forward takes one unit of time and a backward two. A free rank takes its next forward if the input has
--- arrived and the order allows it, and else its next backward. When one ends, its result is a message to the rank of
--- the next stage.
---
--- The lists are parts of one sequence, the clock's. Each message is in it once, after the operation that makes it. So
--- the first operation of that sequence that is not done can always run: no rank waits for ever, even if nothing
--- buffers a message until the other rank takes it. The simulation of mimo/schedule proves this again for each list.
---
--- Orders. "all_forwards_first": all forwards, then all backwards. "1f1b": a backward as soon as there is one; a rank
--- holds at most as many micro-batches as there are stages from its own to the last (arXiv 1806.03377). "interleaved":
--- the same with several chunks for each rank, whose forwards come in groups of as many micro-batches as there are
--- ranks (arXiv 2104.04473).

local core = require "lockstep.core"
local core_mimo = require "lockstep.core.mimo"
local plain = require "lockstep.plain"

local M = {}

---@class pipeline.Operation
---@field kind "forward"|"backward"|"messages"
---@field stage integer? of a forward or backward, from 1
---@field micro_batch integer? from 1
---@field peer integer? of messages: the other rank, from 1
---@field sends pipeline.Message[]? messages that travel as one batch
---@field receives pipeline.Message[]?

---@class pipeline.Message
---@field gradient boolean
---@field from integer stage
---@field to integer stage
---@field micro_batch integer

---@class pipeline.Schedule
---@field lists pipeline.Operation[][] by rank, from 1
---@field span number units of time
---@field bubble number the share of time in which a rank waits, on average
---@field held integer[] the most micro-batches that a rank holds for backward, over its stages

M.ORDERS = { "1f1b", "interleaved", "all_forwards_first" }

local FORWARD_UNITS, BACKWARD_UNITS = 1, 2

--- Returns the forwards of a rank, in their order, and its backwards.
local function sequences(o, rank, stages)
  local forwards, backwards = {}, {}
  local group = o.order == "interleaved" and o.ranks or o.micro_batches
  for first = 1, o.micro_batches, group do
    for chunk = 1, o.chunks do
      for m = first, math.min(first + group - 1, o.micro_batches) do
        table.insert(forwards, { stage = (chunk - 1) * o.ranks + rank, micro_batch = m })
        local stage = (o.chunks - chunk) * o.ranks + rank
        if stage >= o.first_trained then table.insert(backwards, { stage = stage, micro_batch = m }) end
      end
    end
  end
  assert(stages == o.ranks * o.chunks)
  return forwards, o.forward_only and {} or backwards
end

--- Returns the most forwards that a rank may be ahead of its backwards.
local function limit_of(o, rank)
  if o.order == "all_forwards_first" or o.forward_only then return math.huge end
  if o.chunks == 1 then return o.ranks - rank + 1 end
  return (o.ranks - rank) * 2 + (o.chunks - 1) * o.ranks + 1
end

local function key(gradient, stage, micro_batch) return (gradient and "b" or "f") .. stage .. " " .. micro_batch end
M.key = key

--- Puts a message at the end of the lists of both ranks; into the batch that both have there, if there is one.
local function send(lists, from_rank, to_rank, message)
  local one, two = lists[from_rank][#lists[from_rank]], lists[to_rank][#lists[to_rank]]
  if not (one and two and one.kind == "messages" and one.other == two) then
    one = { kind = "messages", peer = to_rank, sends = {}, receives = {} }
    two = { kind = "messages", peer = from_rank, sends = {}, receives = {}, other = one }
    one.other = two
    table.insert(lists[from_rank], one)
    table.insert(lists[to_rank], two)
  end
  table.insert(one.sends, message)
  table.insert(two.receives, message)
end

--- Runs the clock. Returns the lists, the time that it took, and the largest number of micro-batches held.
local function simulate(o)
  local stages = o.ranks * o.chunks
  local lists, state, arrived = {}, {}, {}
  for rank = 1, o.ranks do
    local forwards, backwards = sequences(o, rank, stages)
    lists[rank] = {}
    state[rank] = { forwards = forwards, backwards = backwards, next_forward = 1, next_backward = 1, held = 0,
      most = 0, limit = limit_of(o, rank) }
  end
  local function rank_of(stage) return (stage - 1) % o.ranks + 1 end

  --- The operation that a free rank begins now; nil where it waits. `beyond`: its limit does not count.
  local function choose(s, beyond)
    local f, b = s.forwards[s.next_forward], s.backwards[s.next_backward]
    local has_f = f and (f.stage == 1 or arrived[key(false, f.stage, f.micro_batch)])
    -- Its own forward has run if the gradient has come, but on the last stage nothing comes.
    local has_b = b and arrived[key(true, b.stage, b.micro_batch)]
    if o.order == "all_forwards_first" and f then return has_f and f or nil, false end
    if has_f and (s.held < s.limit or beyond) then return f, false end
    if has_b then return b, true end
  end

  local now, left = 0, 0
  for _, s in ipairs(state) do left = left + #s.forwards + #s.backwards end
  local busy = 0
  local function start(rank, beyond)
    local s = state[rank]
    if s.running then return false end
    local op, is_backward = choose(s, beyond)
    if not op then return false end
    s.running, s.is_backward = op, is_backward
    s.ends = now + (is_backward and BACKWARD_UNITS or FORWARD_UNITS)
    busy = busy + s.ends - now
    if is_backward then
      s.next_backward, s.held = s.next_backward + 1, s.held - 1
    else
      s.next_forward, s.held = s.next_forward + 1, s.held + (op.stage >= o.first_trained and 1 or 0)
      s.most = math.max(s.most, s.held)
    end
    table.insert(lists[rank], { kind = is_backward and "backward" or "forward", stage = op.stage,
      micro_batch = op.micro_batch })
    return true
  end
  local function finish(rank)
    local s = state[rank]
    local op, gradient = s.running, s.is_backward
    s.running, left = nil, left - 1
    local to = gradient and op.stage - 1 or op.stage + 1
    if not gradient and op.stage == stages then
      arrived[key(true, op.stage, op.micro_batch)] = true
    elseif not gradient or to >= o.first_trained then
      arrived[key(gradient, to, op.micro_batch)] = true
      send(lists, rank, rank_of(to), { gradient = gradient, from = op.stage, to = to, micro_batch = op.micro_batch })
    end
  end

  while left > 0 do
    local is_running = false
    for rank = 1, o.ranks do start(rank) end
    for rank = 1, o.ranks do is_running = is_running or state[rank].running ~= nil end
    if not is_running then -- groups of fewer micro-batches than ranks: one rank has to go beyond its limit
      for rank = o.ranks, 1, -1 do is_running = is_running or start(rank, true) end
    end
    assert(is_running, "a pipeline's order that does not end")
    now = math.huge
    for _, s in ipairs(state) do now = s.running and math.min(now, s.ends) or now end
    for rank = 1, o.ranks do
      if state[rank].running and state[rank].ends == now then finish(rank) end
    end
  end
  local held = {}
  for rank, s in ipairs(state) do held[rank] = s.most end
  return lists, now, 1 - busy / (now * o.ranks), held
end

--- Returns a rank's messages as the simulation of mimo/schedule takes them: {kind, gradient, with_previous, partner,
--- subject, micro_batch}, from 0.
---@param list pipeline.Operation[]
---@param beside (fun(op: pipeline.Operation, ops: integer[][]))? adds what goes with a forward or a backward
---@return integer[][]
function M.messages_of(list, beside)
  local ops = {}
  for _, op in ipairs(list) do
    local is_first = true
    for kind, messages in ipairs { op.sends or {}, op.receives or {} } do
      for _, one in ipairs(messages) do
        table.insert(ops, { kind - 1, one.gradient and 1 or 0, is_first and 0 or 1, op.peer - 1, one.from - 1,
          one.micro_batch - 1 })
        is_first = false
      end
    end
    if beside and op.kind ~= "messages" then beside(op, ops) end
  end
  return ops
end

--- Returns the names of stages for the simulation.
---@param stages integer
---@return string[]
function M.names_of(stages)
  local names = {}
  for s = 1, stages do names[s] = "stage " .. s end
  return names
end

--- Proves that the lists match and end if no message is buffered.
local function prove(lists, stages)
  local ops = {}
  for rank, list in ipairs(lists) do ops[rank] = M.messages_of(list) end
  return core_mimo.simulate_messages(M.names_of(stages), ops)
end

---@class pipeline.ScheduleOptions
---@field ranks integer
---@field chunks integer stages of each rank
---@field micro_batches integer
---@field order "1f1b"|"interleaved"|"all_forwards_first"
---@field first_trained integer? the first stage with trained parameters before it or in it; default 1. Stages before
--- it have no backward, and get no gradient
---@field forward_only boolean? no stage has a backward

--- Makes the lists, and proves that they match and end.
---@param o pipeline.ScheduleOptions
---@return pipeline.Schedule
function M.make(o)
  local stages = o.ranks * o.chunks
  local lists, span, bubble, held = simulate { ranks = o.ranks, chunks = o.chunks, micro_batches = o.micro_batches,
    order = o.order, first_trained = o.forward_only and stages + 1 or o.first_trained or 1,
    forward_only = o.forward_only }
  prove(lists, stages)
  return { lists = lists, span = span, bubble = bubble, held = held }
end

--- Returns an operation in words, as the debug mode compares and prints it.
---@param op pipeline.Operation
---@return string
function M.describe(op)
  if op.kind ~= "messages" then
    return ("%s of micro-batch %d on stage %d"):format(op.kind, op.micro_batch, op.stage)
  end
  local parts = {}
  for _, list in ipairs { "sends", "receives" } do
    for _, one in ipairs(op[list]) do
      parts[#parts + 1] = ("%s %s of micro-batch %d from stage %d to stage %d"):format(list,
        one.gradient and "the gradient" or "activations", one.micro_batch, one.from, one.to)
    end
  end
  return table.concat(parts, " and ")
end

--- Returns what a batch of messages carries, for reports of ranks that wait.
---@param op pipeline.Operation
---@return string
function M.subject(op)
  local parts = {}
  for _, list in ipairs { op.sends, op.receives } do
    for _, one in ipairs(list) do
      parts[#parts + 1] = ("%s of micro-batch %d for stage %d"):format(one.gradient and "gradient" or "activations",
        one.micro_batch, one.to)
    end
  end
  return table.concat(parts, " and ")
end

--- Raises unless the order is one of pipelines and fits the number of chunks.
---@param order any
---@param chunks any
function M.check(order, chunks)
  local known = false
  for _, one in ipairs(M.ORDERS) do known = known or one == order end
  plain.check(known, 'sharding.parallelize: order must be "%s", not %s', table.concat(M.ORDERS, '" or "'),
    plain.shown(order, "string"))
  plain.check(plain.is_whole(chunks, 1), "sharding.parallelize: chunks must be a whole number of at least 1, not %s",
    tostring(chunks))
  if order == "1f1b" and chunks > 1 then
    core.raise(('sharding.parallelize: order = "1f1b" has one chunk for each rank, not %d; take order = "interleaved"')
      :format(chunks))
  end
end

return M
