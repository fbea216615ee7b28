--- Ring attention: keys and values travel around the ranks while each rank computes with those that it has.
---
--- In memory are the keys and values of this rank's chunk, and those of one other chunk in use and one that arrives.
--- Backward sends keys and values around again, with their gradients one step behind: each rank adds its part, and the
--- last step brings them to the chunk's owner. Sums have the order of the ring, so two runs have the same bits.
---
--- Source: Ring Attention (arXiv 2310.01889); merged logarithms as in ring-flash-attention.

local blocks_of = require("lockstep.nn.context.blocks").of
local core_sharding = require "lockstep.core.sharding"
local flash_gpu = require "lockstep.nn.context.flash_gpu"
local products = require "lockstep.nn.context.products"
local torch = require "lockstep.torch"

local M = {}

--- Rows of queries in a block of a product that is written out in full: limits its memory.
local ROWS = 512
M.ROWS = ROWS

--- Calls fn(block, q rows..., k rows...) for each block with one chunk's keys and values, [2, m, kv_heads, D].
local function each_block(ring, source, fn)
  for _, block in ipairs(blocks_of(ring.table, ring.rank, source, ring.o)) do
    fn(block, block.q_from, block.queries, block.k_from, block.keys)
  end
end

--- Merges the results of this rank's queries with one chunk's keys into y and logs, in place. Private to the folder.
---@param ring table {rank, table, kernel, o}
---@param source integer whose chunk it is
---@param q torch.Tensor [n, heads, D]
---@param kv torch.Tensor [2, m, kv_heads, D]
---@param y torch.Tensor [n, heads, D]
---@param logs torch.Tensor [n, heads]
local function attend(ring, source, q, kv, y, logs)
  local k, v = kv[0], kv[1]
  if ring.kernel == "cuda" then return flash_gpu.forward(ring, source, q, k, v, y, logs) end
  local kernel = products.kernels[ring.kernel]
  each_block(ring, source, function(block, q_from, queries, k_from, keys)
    local more, more_logs = kernel.forward(q:narrow(0, q_from, queries), k:narrow(0, k_from, keys),
      v:narrow(0, k_from, keys), block, ring.o.scale, ring.o)
    products.merge(y:narrow(0, q_from, queries), logs:narrow(0, q_from, queries), more:to(y.dtype),
      more_logs:to(logs.dtype))
  end)
end

M.attend = attend

--- Adds the gradients of this rank's queries with one chunk's keys to dq and dkv, in place. Private to the folder.
local function attend_backward(ring, source, dy, q, kv, y, logs, dq, dkv)
  local k, v = kv[0], kv[1]
  if ring.kernel == "cuda" then return flash_gpu.backward(ring, source, dy, q, k, v, y, logs, dq, dkv) end
  local kernel = products.kernels[ring.kernel]
  each_block(ring, source, function(block, q_from, queries, k_from, keys)
    local function rows(x) return x:narrow(0, q_from, queries) end
    local more_q, more_k, more_v = kernel.backward(rows(dy), rows(q), k:narrow(0, k_from, keys),
      v:narrow(0, k_from, keys), rows(y), rows(logs), block, ring.o.scale, ring.o)
    rows(dq):add_(more_q)
    dkv[0]:narrow(0, k_from, keys):add_(more_k)
    dkv[1]:narrow(0, k_from, keys):add_(more_v)
  end)
end

M.attend_backward = attend_backward

--- Starts to send x to the next rank. What arrives is of the chunk that this rank takes in the next step.
local function shift(ring, x, step, subject)
  local next_source = (ring.rank - step - 1) % ring.size
  local shape = x.shape
  return core_sharding.shift(x, { 2, ring.table.counts[next_source + 1], shape[3], shape[4] },
    { group = ring.group, subject = subject })
end

local function forward(ring, q, k, v, sinks, subject)
  local wide = products.wide(q)
  local y = torch.zeros(q.shape, { dtype = wide, device = q.device })
  local logs = torch.full({ q:size(0), q:size(1) }, -math.huge, { dtype = wide, device = q.device })
  local kv = torch.stack { k, v }
  for step = 0, ring.size - 1 do
    local arriving = step < ring.size - 1 and shift(ring, kv, step, step == 0 and subject or "") or nil
    attend(ring, (ring.rank - step) % ring.size, q, kv, y, logs)
    if arriving then kv = arriving:wait() end
  end
  if sinks then products.add_sinks(y, logs, sinks) end
  return y:to(q.dtype), logs
end

local function backward(ring, dy, q, k, v, y, logs, sinks)
  local wide = products.wide(q)
  dy = dy:contiguous()
  local dq = torch.zeros(q.shape, { dtype = wide, device = q.device })
  local kv, moving = torch.stack { k, v }, nil
  for step = 0, ring.size - 1 do
    local arriving = step < ring.size - 1 and shift(ring, kv, step) or nil
    local dkv = torch.zeros(kv.shape, { dtype = wide, device = q.device })
    attend_backward(ring, (ring.rank - step) % ring.size, dy, q, kv, y, logs, dq, dkv)
    if moving then dkv:add_(moving:wait()) end
    moving = shift(ring, dkv, step)
    if arriving then kv = arriving:wait() end
  end
  local own = moving:wait()
  return { dq:to(q.dtype), own[0]:to(k.dtype), own[1]:to(v.dtype),
    sinks and products.sinks_gradient(dy, y, logs, sinks) }
end

--- Attention of this rank's chunk over all chunks. Collective.
---@param chunks nn.Chunks
---@param own nn.ContextTable
---@param q torch.Tensor [chunk, heads, D]
---@param k torch.Tensor [chunk, kv_heads, D]
---@param v torch.Tensor [chunk, kv_heads, D]
---@param o {causal: boolean, scale: number?, window: integer?, sinks: torch.Tensor?}
---@param can_flash boolean whether FlashAttention on a GPU takes q
---@return torch.Tensor # [chunk, heads, D]
function M.attention(chunks, own, q, k, v, o, can_flash)
  q, k, v = q:contiguous(), k:contiguous(), v:contiguous()
  local kernel = products.kernel(q, o.window, can_flash)
  -- Not `chunks` itself: it holds the batch, and the node lives until backward.
  local ring = { group = chunks.group, rank = chunks.rank, size = chunks.size, table = own, kernel = kernel,
    o = { causal = o.causal, scale = o.scale, window = o.window, rows = kernel == "plain" and ROWS or nil } }
  local sinks = o.sinks
  local needs = torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad
    or sinks ~= nil and sinks.requires_grad)
  local subject = ("ring attention of %d tokens, heads %d and %d, dim %d, %s%s%s"):format(own.tokens, q:size(1),
    k:size(1), q:size(2), tostring(q.dtype), sinks and " with sinks" or "", needs and " requires_grad" or "")
  return core_sharding.node({ q, k, v, sinks }, function()
    local y, logs = forward(ring, q, k, v, sinks, subject)
    return y, { q, k, v, y, logs, sinks }
  end, function(dy, saved) return backward(ring, dy, unpack(saved)) end)
end

return M
