--- Attention with sinks: each head has a score that takes part in the softmax, and stands for no token (gpt-oss; Xiao
--- et al., arXiv 2309.17453). A head that finds nothing gives its weight to it. Private to nn.attention and
--- models.cache.
---
--- On a GPU FlashAttention computes whole sequences (kernels/attention/on_device.h). The other kernels of attention
--- have no such score. So queries are computed in blocks, whose scores are written out, and a
--- column with the sinks is put behind them. In training the blocks of a longer sequence are computed again in
--- backward: memory holds the scores of one block, and a block with a window reads the keys of its window alone.

local torch = require "lockstep.torch"

local M = {}

--- Queries of a block.
M.BLOCK = 512

--- True where a query sees a key, or nil where each sees all. The first query stands at key `offset`. [queries, keys]
local function mask_of(queries, keys, offset, o, device)
  if not o.causal and not o.window then return nil end
  local mask = torch.ones({ queries, keys }, { dtype = torch.bool, device = device })
  if o.causal then mask = mask:tril(offset) end
  if not o.window then return mask end
  mask = mask:triu(offset - o.window + 1)
  return o.causal and mask or mask:tril(offset + o.window - 1)
end

--- Returns the weights of the keys. scores [..., heads, queries, keys], sinks [heads]
local function weights_of(scores, sinks)
  local column = sinks:to(scores.dtype):view(-1, 1, 1):expand(scores:size(-3), scores:size(-2), 1)
  if scores:dim() == 4 then column = column:unsqueeze(0):expand(scores:size(0), -1, -1, -1) end
  return torch.cat({ scores, column }, -1):softmax(-1):narrow(-1, 0, scores:size(-1))
end

--- Some queries of one sequence with the keys that they may see.
local function block(q, k, v, sinks, offset, o)
  local queries, heads, dim = q:size(0), q:size(1), q:size(2)
  local keys, kv_heads = k:size(0), k:size(1)
  local group = heads / kv_heads
  -- The query heads that share a key head are rows of one product.
  local rows = q:view(queries, kv_heads, group, dim):permute(1, 2, 0, 3):reshape(kv_heads, group * queries, dim)
  local scores = torch.matmul(rows, k:permute(1, 2, 0)) * (o.scale or dim ^ -0.5)
  scores = scores:view(heads, queries, keys)
  local mask = mask_of(queries, keys, offset, o, q.device)
  if mask then scores = scores:masked_fill(mask:logical_not(), -math.huge) end
  local weights = weights_of(scores, sinks):reshape(kv_heads, group * queries, keys)
  local y = torch.matmul(weights:to(v.dtype), v:transpose(0, 1))
  return y:view(kv_heads, group, queries, -1):permute(2, 0, 1, 3):reshape(queries, heads, -1)
end

--- See nn.attention, which has checked the arguments.
---@param q torch.Tensor [T, heads, D]
---@param k torch.Tensor [T, kv_heads, D]
---@param v torch.Tensor [T, kv_heads, D]
---@param o {seq_lens: integer[], causal: boolean, scale: number?, window: integer?, sinks: torch.Tensor}
---@return torch.Tensor # [T, heads, D]
function M.attention(q, k, v, o)
  q, k, v = q:contiguous(), k:contiguous(), v:contiguous()
  local results, start, region = {}, 0, nil
  for _, length in ipairs(o.seq_lens) do
    local stop = start + length
    for from = start, stop - 1, M.BLOCK do
      local to = math.min(from + M.BLOCK, stop)
      local low = o.window and math.max(start, from - o.window + 1) or start
      local high = o.causal and to or o.window and math.min(stop, to + o.window - 1) or stop
      local function compute(x, y, z, sinks) return block(x, y, z, sinks, from - low, o) end
      if length > M.BLOCK and torch.is_grad_enabled() and not region then
        region = require("lockstep.checkpoint").new { preserve_rng = false }
      end
      local own_q = q:narrow(0, from, to - from)
      local own_k, own_v = k:narrow(0, low, high - low), v:narrow(0, low, high - low)
      results[#results + 1] = region and region(compute, own_q, own_k, own_v, o.sinks)
        or compute(own_q, own_k, own_v, o.sinks)
    end
    start = stop
  end
  return #results == 1 and results[1] or torch.cat(results)
end

--- Attention in generation: see fused.cached_attention.
---@param q torch.Tensor [sequences, heads, D]
---@param k torch.Tensor [sequences, kv_heads, D]
---@param v torch.Tensor [sequences, kv_heads, D]
---@param keys torch.Tensor [sequences, kv_heads, columns, D]
---@param values torch.Tensor [sequences, kv_heads, columns, D]
---@param column integer
---@param first integer
---@param mask torch.Tensor? [sequences, columns], is added to the scores
---@param sinks torch.Tensor [heads]
---@return torch.Tensor # [sequences, heads, D]
function M.cached(q, k, v, keys, values, column, first, mask, sinks)
  keys:select(2, column):copy_(k)
  values:select(2, column):copy_(v)
  local sequences, heads, dim = q:size(0), q:size(1), q:size(2)
  local count = column + 1 - first
  local scores = torch.matmul(q:view(sequences, k:size(1), -1, dim) * dim ^ -0.5,
    keys:narrow(2, first, count):transpose(-1, -2))
  if mask then scores = scores + mask:view(sequences, 1, 1, -1):narrow(-1, first, count) end
  local weights = weights_of(scores:view(sequences, heads, 1, count), sinks)
  weights = weights:reshape(sequences, k:size(1), -1, count):to(v.dtype)
  return torch.matmul(weights, values:narrow(2, first, count)):reshape(sequences, heads, -1)
end

return M
