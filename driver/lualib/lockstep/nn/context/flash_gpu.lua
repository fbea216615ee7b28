--- A step of ring attention on a GPU: all blocks with one chunk's keys are one call of FlashAttention, with cumulative
--- lengths. Arguments are those of ring.lua.

local blocks_of = require("lockstep.nn.context.blocks").of
local products = require "lockstep.nn.context.products"
local torch = require "lockstep.torch"

local M = {}

--- Returns the ranges as one tensor of places, or nil where they are all of them.
local function places_of(blocks, from, count, total, device)
  local parts, sum = {}, 0
  for i, block in ipairs(blocks) do
    parts[i] = torch.arange(block[from], block[from] + block[count])
    sum = sum + block[count]
  end
  return sum ~= total and torch.cat(parts):to(device) or nil
end

local function lengths_of(blocks, count, device)
  local sums, longest = { 0 }, 0
  for i, block in ipairs(blocks) do
    sums[i + 1], longest = sums[i] + block[count], math.max(longest, block[count])
  end
  return torch.tensor(sums, { dtype = torch.int32 }):to(device), longest
end

--- Returns the step's lengths and places on the device, made once for a table. nil: no query sees a key.
local function step_of(ring, source, device)
  local key = ("step %d %d %s %s"):format(ring.rank, source, tostring(ring.o.causal), device)
  local plans = ring.table.plans
  if plans[key] == nil then
    local blocks = blocks_of(ring.table, ring.rank, source, ring.o)
    local step = #blocks > 0 and { causal = blocks[1].causal } or false
    if step then
      step.q_places = places_of(blocks, "q_from", "queries", ring.table.counts[ring.rank + 1], device)
      step.k_places = places_of(blocks, "k_from", "keys", ring.table.counts[source + 1], device)
      step.q_sums, step.q_longest = lengths_of(blocks, "queries", device)
      step.k_sums, step.k_longest = lengths_of(blocks, "keys", device)
    end
    plans[key] = step
  end
  return plans[key] or nil
end

local function taken(x, places) return places and x:index_select(0, places) or x end

--- Adds what the queries see of a rank's keys to y and logs, in place.
---@param ring table
---@param source integer the rank whose keys these are
---@param q torch.Tensor [n, heads, D]
---@param k torch.Tensor [m, kv_heads, D]
---@param v torch.Tensor [m, kv_heads, D]
---@param y torch.Tensor [n, heads, D]
---@param logs torch.Tensor [n, heads]
function M.forward(ring, source, q, k, v, y, logs)
  local step = step_of(ring, source, q.device)
  if not step then return end
  local more, more_logs = torch._flash_attention_forward(taken(q, step.q_places), taken(k, step.k_places),
    taken(v, step.k_places), step.q_sums, step.k_sums, step.q_longest, step.k_longest, 0, step.causal, false,
    { scale = ring.o.scale })
  more, more_logs = more:to(y.dtype), more_logs:transpose(0, 1) -- logarithms come as [heads, n]
  if not step.q_places then
    products.merge(y, logs, more, more_logs)
    return
  end
  local rows, row_logs = y:index_select(0, step.q_places), logs:index_select(0, step.q_places)
  products.merge(rows, row_logs, more, more_logs)
  y:index_copy_(0, step.q_places, rows)
  logs:index_copy_(0, step.q_places, row_logs)
end

--- Adds the gradients of a rank's keys and of the queries, in place; y and logs are those of all ranks' keys.
---@param ring table
---@param source integer the rank whose keys these are
---@param dy torch.Tensor as y
---@param q torch.Tensor [n, heads, D]
---@param k torch.Tensor [m, kv_heads, D]
---@param v torch.Tensor [m, kv_heads, D]
---@param y torch.Tensor [n, heads, D]
---@param logs torch.Tensor [n, heads]
---@param dq torch.Tensor as q
---@param dkv torch.Tensor [2, m, kv_heads, D]
function M.backward(ring, source, dy, q, k, v, y, logs, dq, dkv)
  local step = step_of(ring, source, q.device)
  if not step then return end
  local unused = torch.zeros({ 2 }, { dtype = torch.int64, device = q.device }) -- the state of a dropout
  local more_q, more_k, more_v = torch._flash_attention_backward(taken(dy, step.q_places), taken(q, step.q_places),
    taken(k, step.k_places), taken(v, step.k_places), taken(y, step.q_places),
    taken(logs, step.q_places):transpose(0, 1):contiguous(), step.q_sums, step.k_sums, step.q_longest, step.k_longest,
    0, step.causal, unused, unused, { scale = ring.o.scale })
  local function add(sum, more, places)
    if places then sum:index_add_(0, places, more:to(sum.dtype)) else sum:add_(more) end
  end
  add(dq, more_q, step.q_places)
  add(dkv[0], more_k, step.k_places)
  add(dkv[1], more_v, step.k_places)
end

return M
