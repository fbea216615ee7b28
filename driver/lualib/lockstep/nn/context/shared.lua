--- Attention of samples that groups of ranks share for a micro-step, as batching.prepare plans them with `split`.
---
--- The ranks of a group hold chunks of equal work. Each sends the keys and values of its chunks to each other rank of
--- the group: in round i to the i-th rank behind it. Backward sends them again, and each rank sends back the gradients
--- that it has of another rank's keys and values. A round is one exchange of all ranks, also of those that hold no
--- share, and all ranks have as many rounds as the largest group of the step needs. So no group of processes is made,
--- and every rank calls the same collectives in the same order.
---
--- In memory are the keys and values of this rank's chunks, those of one other rank of each group in use, and those
--- that arrive. Sums have the order of the rounds, so two runs have the same bits.
---
--- Source: Ring Attention (arXiv 2310.01889), with messages that go straight to the rank that needs them.

local chunk_table = require "lockstep.nn.context.table"
local core = require "lockstep.core"
local core_sharding = require "lockstep.core.sharding"
local dist = require "lockstep.distributed"
local products = require "lockstep.nn.context.products"
local ring = require "lockstep.nn.context.ring"
local torch = require "lockstep.torch"

local M = {}

---@class nn.Share what a rank holds of a sample, as batching.prepare says it
---@field sample integer index into `samples`
---@field tokens integer of the whole sample
---@field first_rank integer from 0; the group is `ranks` consecutive ranks from here on
---@field ranks integer
---@field place integer from 0: this rank's place in the group

---@class nn.Shares the shares of a micro-batch; [i] is of its i-th sequence
---@field largest_group integer of all ranks' shares in this micro-step
---@field labels torch.Tensor int64 [T]: the next token of each, which may be on another rank; -100: there is no loss
---@field group dist.Group? whose rank i is the plan's rank i; nil: all ranks
---@field rank integer of the plan
---@field num_ranks integer of the plan
---@field [integer] nn.Share

---@class nn.SharedPart one share: where its tokens lie in the micro-batch, and the chunks of its group
---@field share nn.Share
---@field start integer
---@field count integer
---@field table nn.ContextTable

---@class nn.SharedPlan
---@field tokens integer of all shares
---@field rounds integer
---@field size integer ranks of the plan
---@field group dist.Group?
---@field parts nn.SharedPart[]
---@field seq_lens integer[]? the array that `own_lens` was made from
---@field own_lens integer[]? the lengths of the sequences that this rank holds whole

--- Plans by the table of shares, so that the layers of a pass have one.
---@type table<nn.Shares, nn.SharedPlan>
local plans = setmetatable({}, { __mode = "k" })

local function fail(message, ...) core.raise("nn.attention: " .. message:format(...)) end

local function check_ranks(shares)
  local group = shares.group
  local rank, size = group and group:rank() or dist.rank(), group and group:size() or dist.world_size()
  if size == shares.num_ranks and rank == shares.rank then return end
  fail("the micro-batch has shares of rank %d of %d, but this is rank %d of %d; batching.prepare needs the ranks "
    .. "that train together, and split.group if they are not all ranks of the run", shares.rank, shares.num_ranks, rank,
    size)
end

--- Returns what the layers of a pass need of the shares, made once.
---@param shares nn.Shares
---@return nn.SharedPlan
function M.plan_of(shares)
  if plans[shares] then return plans[shares] end
  check_ranks(shares)
  local plan = { tokens = 0, rounds = shares.largest_group, size = shares.num_ranks, group = shares.group, parts = {} }
  for i, share in ipairs(shares) do
    local own = chunk_table.balanced({ share.tokens }, share.ranks)
    local count = own.counts[share.place + 1]
    plan.parts[i] = { share = share, start = plan.tokens, count = count, table = own }
    plan.tokens = plan.tokens + count
  end
  plans[shares] = plan
  return plan
end

--- Returns the lengths of the sequences that a micro-batch holds whole: the same array for the layers of a pass.
---@param plan nn.SharedPlan
---@param seq_lens integer[] of the micro-batch: first the shares
---@return integer[]
function M.own_lens(plan, seq_lens)
  if plan.seq_lens == seq_lens then return plan.own_lens end
  local own = {}
  for i, length in ipairs(seq_lens) do
    local part = plan.parts[i]
    if part and part.count ~= length then
      fail("seq_lens[%d] is %d, but the share of sample %d has %d tokens", i, length, part.share.sample, part.count)
    end
    if not part then own[#own + 1] = length end
  end
  plan.seq_lens, plan.own_lens = seq_lens, own
  return own
end

-- Messages --------------------------------------------------------------------------------------------------

--- Returns the indices of a list of ranks, sorted by rank; what goes to one rank keeps its order.
local function order_of(ranks)
  local order = {}
  for i = 1, #ranks do order[i] = i end
  table.sort(order, function(a, b)
    if ranks[a] ~= ranks[b] then return ranks[a] < ranks[b] end
    return a < b
  end)
  return order
end

local function zeros(size)
  local counts = {}
  for i = 1, size do counts[i] = 0 end
  return counts
end

--- Starts an exchange: tensors[i] goes to rank to[i], and a tensor of shapes[i] comes from rank from[i]. Returns a
--- function that waits for it, and returns what has come.
local function send(state, like, tensors, to, shapes, from, subject)
  local gives, takes, flat = zeros(state.size), zeros(state.size), {}
  for _, i in ipairs(order_of(to)) do
    local x = tensors[i]:reshape(-1)
    flat[#flat + 1] = x
    gives[to[i] + 1] = gives[to[i] + 1] + x:numel()
  end
  local counts = {}
  for i, shape in ipairs(shapes) do
    counts[i] = shape[1] * shape[2] * shape[3] * shape[4]
    takes[from[i] + 1] = takes[from[i] + 1] + counts[i]
  end
  local given = #flat > 0 and torch.cat(flat) or torch.zeros({ 0 }, { dtype = like.dtype, device = like.device })
  local moving = core_sharding.exchange(given, gives, takes, { group = state.group, subject = subject or "" })
  return function()
    local all, taken, place = moving:wait(), {}, 0
    for _, i in ipairs(order_of(from)) do
      taken[i] = all:narrow(0, place, counts[i]):view(shapes[i])
      place = place + counts[i]
    end
    return taken
  end
end

--- Returns the parts whose group has this round, and for each the place of the rank `round` places behind (or, with a
--- minus, in front of) this one.
local function partners(state, round)
  local parts, places, ranks = {}, {}, {}
  for _, part in ipairs(state.parts) do
    local share = part.share
    if math.abs(round) < share.ranks then
      local place = (share.place + round) % share.ranks
      parts[#parts + 1], places[#places + 1], ranks[#ranks + 1] = part, place, share.first_rank + place
    end
  end
  return parts, places, ranks
end

local function chunk(kv, part) return kv:narrow(1, part.start, part.count) end

local function shape_of(kv, part, place) return { 2, part.table.counts[place + 1], kv:size(2), kv:size(3) } end

--- Sends this rank's keys and values on, and takes those of the ranks in front.
local function send_keys(state, round, kv, subject)
  local parts, _, to = partners(state, round)
  local _, sources, from = partners(state, -round)
  local tensors, shapes = {}, {}
  for i, part in ipairs(parts) do tensors[i], shapes[i] = chunk(kv, part), shape_of(kv, part, sources[i]) end
  return send(state, kv, tensors, to, shapes, from, subject)
end

--- Sends gradients of keys and values back to their ranks, and takes those of this rank's.
local function send_gradients(state, round, kv, gradients)
  local parts, _, from = partners(state, round)
  local _, _, to = partners(state, -round)
  local shapes = {}
  for i, part in ipairs(parts) do shapes[i] = shape_of(kv, part, part.share.place) end
  return send(state, kv, gradients, to, shapes, from)
end

-- Attention -------------------------------------------------------------------------------------------------

local function rows(x, part) return x:narrow(0, part.start, part.count) end

--- What ring.lua calls a ring: the chunks of the part's group.
local function ring_of(state, part)
  return { rank = part.share.place, table = part.table, kernel = state.kernel, o = state.o }
end

--- Calls fn(part, ring, source, kv, i) for each part with this rank's chunk, and then round by round with the others'.
--- `after(round, parts)` follows each round.
local function each_chunk(state, kv, subject, fn, after)
  local arriving = state.rounds > 1 and send_keys(state, 1, kv, subject)
  for _, part in ipairs(state.parts) do fn(part, ring_of(state, part), part.share.place, chunk(kv, part)) end
  for round = 1, state.rounds - 1 do
    local now = arriving()
    arriving = round < state.rounds - 1 and send_keys(state, round + 1, kv)
    local parts, sources = partners(state, -round)
    for i, part in ipairs(parts) do fn(part, ring_of(state, part), sources[i], now[i], i) end
    if after then after(round, parts) end
  end
end

local function forward(state, q, k, v, sinks, subject)
  local wide = products.wide(q)
  local y = torch.zeros(q.shape, { dtype = wide, device = q.device })
  local logs = torch.full({ q:size(0), q:size(1) }, -math.huge, { dtype = wide, device = q.device })
  each_chunk(state, torch.stack { k, v }, subject, function(part, of_part, source, kv)
    ring.attend(of_part, source, rows(q, part), kv, rows(y, part), rows(logs, part))
  end)
  if sinks then products.add_sinks(y, logs, sinks) end
  return y:to(q.dtype), logs
end

local function backward(state, dy, q, k, v, y, logs, sinks)
  local wide = products.wide(q)
  dy = dy:contiguous()
  local kv = torch.stack { k, v }
  local dq = torch.zeros(q.shape, { dtype = wide, device = q.device })
  local own = torch.zeros(kv.shape, { dtype = wide, device = q.device })
  local gradients, returning = {}, nil
  local function add_returned(parts)
    for i, gradient in ipairs(returning()) do chunk(own, parts[i]):add_(gradient) end
  end
  local parts_before
  each_chunk(state, kv, nil, function(part, of_part, source, of_source, i)
    local dkv = i and torch.zeros(of_source.shape, { dtype = wide, device = q.device }) or chunk(own, part)
    ring.attend_backward(of_part, source, rows(dy, part), rows(q, part), of_source, rows(y, part), rows(logs, part),
      rows(dq, part), dkv)
    if i then gradients[i] = dkv end
  end, function(round, parts)
    if returning then add_returned(parts_before) end
    returning, parts_before, gradients = send_gradients(state, round, own, gradients), parts, {}
  end)
  if returning then add_returned(parts_before) end
  return { dq:to(q.dtype), own[0]:to(k.dtype), own[1]:to(v.dtype),
    sinks and products.sinks_gradient(dy, y, logs, sinks) }
end

--- Attention of this rank's shares over the whole samples. A rank without a share gives tensors of 0 rows. Collective.
---@param plan nn.SharedPlan
---@param q torch.Tensor [tokens, heads, D] of the shares, one behind the other
---@param k torch.Tensor [tokens, kv_heads, D]
---@param v torch.Tensor [tokens, kv_heads, D]
---@param o {causal: boolean, scale: number?, window: integer?, sinks: torch.Tensor?}
---@param can_flash boolean whether FlashAttention on a GPU takes q
---@return torch.Tensor # [tokens, heads, D]
function M.attention(plan, q, k, v, o, can_flash)
  q, k, v = q:contiguous(), k:contiguous(), v:contiguous()
  local kernel = products.kernel(q, o.window, can_flash)
  -- Not `plan` itself: the node lives until backward, and the plan knows the batch's lengths.
  local state = { rounds = plan.rounds, size = plan.size, group = plan.group, parts = plan.parts, kernel = kernel,
    o = { causal = o.causal, scale = o.scale, window = o.window, rows = kernel == "plain" and ring.ROWS or nil } }
  local sinks = o.sinks
  local needs = torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad
    or sinks ~= nil and sinks.requires_grad)
  local subject = ("attention of samples that up to %d ranks share, heads %d and %d, dim %d, %s%s%s"):format(
    plan.rounds, q:size(1), k:size(1), q:size(2), tostring(q.dtype), sinks and " with sinks" or "",
    needs and " requires_grad" or "")
  return core_sharding.node({ q, k, v, sinks }, function()
    local y, logs = forward(state, q, k, v, sinks, subject)
    return y, { q, k, v, y, logs, sinks }
  end, function(dy, saved) return backward(state, dy, unpack(saved)) end)
end

return M
