-- Ring attention by FlashAttention on a GPU, with a stand-in for libtorch's two operators: their arithmetic in float64,
-- and checks of what they are given. The expected results are those of blocks that are written out.

local chunk_table = require "lockstep.nn.context.table"
local plain = require "lockstep.plain"
local products = require "lockstep.nn.context.products"
local ring = require "lockstep.nn.context.ring"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local HEADS, KV_HEADS, DIM = 4, 2, 8
local kernel = products.kernels.plain

--- Calls fn(queries, keys, block) for each sequence of cumulative lengths: ranges as {start, count}.
local function each_sequence(q, k, q_sums, k_sums, q_longest, k_longest, causal, fn)
  t.equal({ q_sums.dtype, k_sums.dtype }, { torch.int32, torch.int32 })
  q_sums, k_sums = q_sums:totable(), k_sums:totable()
  t.equal({ #q_sums, q_sums[1], k_sums[1] }, { #k_sums, 0, 0 })
  t.equal({ q_sums[#q_sums], k_sums[#k_sums] }, { q:size(0), k:size(0) })
  local most_q, most_k = 0, 0
  for i = 1, #q_sums - 1 do
    local queries, keys = q_sums[i + 1] - q_sums[i], k_sums[i + 1] - k_sums[i]
    most_q, most_k = math.max(most_q, queries), math.max(most_k, keys)
    t.truthy(queries > 0 and keys > 0)
    -- The kernel lets the last query see the last key, so both must be one sequence.
    if causal then t.equal(queries, keys) end
    fn({ q_sums[i], queries }, { k_sums[i], keys },
      { queries = queries, keys = keys, masked = causal, ahead = 0, causal = false })
  end
  t.equal({ q_longest, k_longest }, { most_q, most_k })
end

local function rows(x, range) return x:narrow(0, range[1], range[2]) end

local stand_in = {}

function stand_in._flash_attention_forward(q, k, v, q_sums, k_sums, q_longest, k_longest, dropout, causal, debug, opts)
  t.equal({ dropout, debug }, { 0, false })
  local y, logs = torch.empty_like(q), torch.empty({ q:size(1), q:size(0) }, { dtype = q.dtype })
  each_sequence(q, k, q_sums, k_sums, q_longest, k_longest, causal, function(own, keys, block)
    local part, part_logs = kernel.forward(rows(q, own), rows(k, keys), rows(v, keys), block, opts.scale,
      { causal = causal, scale = opts.scale })
    rows(y, own):copy_(part)
    rows(logs:transpose(0, 1), own):copy_(part_logs)
  end)
  return y, logs
end

function stand_in._flash_attention_backward(dy, q, k, v, y, logs, q_sums, k_sums, q_longest, k_longest, dropout, causal,
    rng_state, _, opts)
  t.equal(dropout, 0)
  t.equal(rng_state.shape, torch.zeros({ 2 }).shape)
  t.truthy(dy:is_contiguous() and logs:is_contiguous())
  t.equal(logs.shape, torch.zeros({ q:size(1), q:size(0) }).shape)
  local dq, dk, dv = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
  each_sequence(q, k, q_sums, k_sums, q_longest, k_longest, causal, function(own, keys, block)
    local parts = { kernel.backward(rows(dy, own), rows(q, own), rows(k, keys), rows(v, keys), rows(y, own),
      rows(logs:transpose(0, 1), own), block, opts.scale, { causal = causal, scale = opts.scale }) }
    rows(dq, own):copy_(parts[1])
    rows(dk, keys):copy_(parts[2])
    rows(dv, keys):copy_(parts[3])
  end)
  return dq, dk, dv
end

--- Returns y, logs, and the gradients of q and of each rank's keys and values: this rank's part of a ring.
local function pass(own, rank, name, o, q, kvs, dy)
  local state = { rank = rank, size = own.size, table = own, kernel = name,
    o = plain.copy(o, { rows = name == "plain" and ring.ROWS or nil }) }
  local y = torch.zeros_like(q)
  local logs = torch.full({ q:size(0), HEADS }, -math.huge, { dtype = torch.float64 })
  for source = 0, own.size - 1 do ring.attend(state, source, q, kvs[source + 1], y, logs) end
  local results = { y, logs, torch.zeros_like(q) }
  for source = 0, own.size - 1 do
    local dkv = torch.zeros_like(kvs[source + 1])
    ring.attend_backward(state, source, dy, q, kvs[source + 1], y, logs, results[3], dkv)
    results[#results + 1] = dkv
  end
  return results
end

local function compare(seq_lens, size, o)
  local own, kvs = chunk_table.balanced(seq_lens, size), {}
  local function random(...) return torch.randn({ ... }, { dtype = torch.float64 }) end
  for rank = 1, size do kvs[rank] = random(2, own.counts[rank], KV_HEADS, DIM) end
  for rank = 0, size - 1 do
    local count = own.counts[rank + 1]
    if count > 0 then
      local q, dy = random(count, HEADS, DIM), random(count, HEADS, DIM)
      local expected = pass(own, rank, "plain", o, q, kvs, dy)
      for i, x in ipairs(pass(own, rank, "cuda", o, q, kvs, dy)) do
        if x:numel() > 0 then t.near(x, expected[i], 1e-12, ("result %d of rank %d of %d"):format(i, rank, size)) end
      end
    end
  end
end

t.test("BlocksOfOneChunkAreOneCall", function()
  local before = {}
  for name, fn in pairs(stand_in) do before[name], torch[name] = torch[name], fn end
  torch.manual_seed(1)
  for size = 1, 4 do
    for _, o in ipairs { { causal = true }, { causal = true, scale = 0.3 }, { causal = false } } do
      for _, seq_lens in ipairs { { 40 }, { 9, 1, 30, 2 }, { 1 }, { 1, 1, 7 } } do compare(seq_lens, size, o) end
    end
  end
  for name, fn in pairs(before) do torch[name] = fn end
end)

-- A CPU has no such kernels: libtorch's error comes after the arguments have been read.
t.test("TheArgumentsAreThoseOfLibtorchsOperators", function()
  local own = chunk_table.balanced({ 9, 4 }, 1)
  local q, kv = torch.randn { 13, HEADS, DIM }, torch.randn { 2, 13, KV_HEADS, DIM }
  local state = { rank = 0, size = 1, table = own, kernel = "cuda", o = { causal = true } }
  local y, logs = torch.zeros_like(q), torch.zeros { 13, HEADS }
  t.raises("aten::_flash_attention_forward", ring.attend, state, 0, q, kv, y, logs)
  t.raises("aten::_flash_attention_backward", ring.attend_backward, state, 0, y, q, kv, y, logs, y, kv)
end)
