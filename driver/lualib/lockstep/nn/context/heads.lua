--- All-to-all over heads: each rank gets all tokens of a part of the heads, and computes whole sequences with them.
---
--- Every rank has the same work, and the kernel is that of one rank. It needs query heads that the ranks divide. Key
--- heads that they do not divide are repeated first, and backward sums their gradients: a rank then has the key heads
--- that its query heads see. Source: DeepSpeed-Ulysses (arXiv 2309.14509).

local functional = require("lockstep.distributed").functional
local torch = require "lockstep.torch"

local M = {}

local function gcd(a, b)
  while b ~= 0 do a, b = b, a % b end
  return a
end

--- Fills a chunk up to the tokens of the largest one.
---@param x torch.Tensor [chunk, ...]
---@param most integer
---@return torch.Tensor # [most, ...]
function M.fill(x, most)
  local count = x:size(0)
  if count == most then return x end
  local shape = x.shape
  shape[1] = most - count
  return torch.cat { x, torch.zeros(shape, { dtype = x.dtype, device = x.device }) }
end

--- Attention of this rank's chunk over all chunks. Collective.
---@param chunks nn.Chunks
---@param own nn.ContextTable
---@param q torch.Tensor [chunk, heads, D]; the ranks divide heads
---@param k torch.Tensor [chunk, kv_heads, D]
---@param v torch.Tensor [chunk, kv_heads, D]
---@param sinks torch.Tensor? [heads]
---@param attend fun(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sinks: torch.Tensor?): torch.Tensor attention of
--- whole sequences
---@return torch.Tensor # [chunk, heads, D]
function M.attention(chunks, own, q, k, v, sinks, attend)
  local size, count = chunks.size, q:size(0)
  local repeats = size / gcd(size, k:size(1))
  if repeats > 1 then k, v = k:repeat_interleave(repeats, 1), v:repeat_interleave(repeats, 1) end
  local places = own:places(q.device)
  local function whole(x)
    local all = functional.all_to_all(M.fill(x, own.most), { split_dim = 1, concat_dim = 0, group = chunks.group })
    return all:index_select(0, places)
  end
  local own_sinks = sinks and sinks:chunk(size)[chunks.rank + 1]
  local y = attend(whole(q), whole(k), whole(v), own_sinks)
  local parts = functional.all_to_all(y:index_select(0, own:tokens_at(q.device)),
    { split_dim = 0, concat_dim = 1, group = chunks.group })
  return parts:size(0) == count and parts or parts:narrow(0, 0, count)
end

return M
