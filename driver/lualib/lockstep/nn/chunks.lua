--- Sequences whose tokens lie in chunks on several ranks: the state of sharding.context_parallel, and the attention of
--- a chunk.
---
--- Each rank keeps the queries of its chunk and gathers the keys and values of all chunks. Backward sums their
--- gradients into the chunks that they came from. Memory: the keys and values of the whole sequence for one layer.

local core = require "lockstep.core"
local dist = require "lockstep.distributed"
local plain = require "lockstep.plain"
local torch = require "lockstep.torch"

local M = {}

--- The chunks of the call of sharding.context_parallel that runs now.
---@type sharding.Members?
local current

--- Returns the chunks that are in force, or nil where each rank has whole sequences.
---@return sharding.Members?
function M.current() return current end

--- Calls fn(...) with `chunks` in force. They end with the call, also with an error.
---@param chunks sharding.Members
---@param fn fun(...): ...
---@param ... any
---@return any ...
function M.with(chunks, fn, ...)
  local before = current
  current = chunks
  return plain.finally(function() current = before end, fn, ...)
end

--- Returns fn as it is, or within context_parallel a function that calls it with the same chunks later, in backward.
---@param fn any
---@return any
function M.bind(fn)
  local chunks = current
  if not chunks then return fn end
  return function(...) return M.with(chunks, fn, ...) end
end

--- Raises within context_parallel, for what cannot work on a chunk.
---@param what string "models.generate"
---@param advice string
function M.refuse(what, advice)
  if current then core.raise(("%s: not within sharding.context_parallel; %s"):format(what, advice)) end
end

--- Returns the tokens of the whole sequence.
---@param chunks sharding.Members
---@param tokens integer of this rank's chunk
---@return integer
function M.whole(chunks, tokens) return tokens * chunks.size end

--- Returns the tensors of all chunks, one behind the other. Differentiable.
---@param chunks sharding.Members
---@param x torch.Tensor
---@param dim integer? default 0
---@return torch.Tensor
function M.gather(chunks, x, dim)
  return dist.functional.all_gather(x:contiguous(), { dim = dim or 0, group = chunks.group })
end

--- Returns this rank's chunk of a tensor that holds the whole sequence on its first dimension.
---@param chunks sharding.Members
---@param x torch.Tensor
---@return torch.Tensor
function M.own(chunks, x)
  local tokens = x:size(0) / chunks.size
  return x:narrow(0, chunks.rank * tokens, tokens)
end

--- True where a query sees a key. The first query stands at key `offset`. [queries, keys]
local function mask_of(queries, keys, offset, o, device)
  local mask = torch.ones({ queries, keys }, { dtype = torch.bool, device = device })
  if o.causal then mask = mask:tril(offset) end
  if not o.window then return mask end
  mask = mask:triu(offset - o.window + 1)
  return o.causal and mask or mask:tril(offset + o.window - 1)
end

--- Some queries of one sequence with the keys that they may see. As one_sequence of attention.lua.
local function part(q, k, v, offset, o)
  local queries, heads, dim = q:size(0), q:size(1), q:size(2)
  local keys, kv_heads = k:size(0), k:size(1)
  local group = heads / kv_heads
  local is_square = o.causal and not o.window and offset == 0 and keys == queries
  local mask = (o.causal or o.window) and not is_square and mask_of(queries, keys, offset, o, q.device) or nil
  local y = torch.scaled_dot_product_attention(
    q:view(queries, kv_heads, group, dim):permute(1, 2, 0, 3),
    k:permute(1, 0, 2):unsqueeze(1):expand(kv_heads, group, keys, dim),
    v:permute(1, 0, 2):unsqueeze(1):expand(kv_heads, group, keys, dim),
    mask, 0, is_square, { scale = o.scale })
  return y:permute(2, 0, 1, 3):reshape(queries, heads, dim)
end

--- Attention of a chunk's queries over the whole sequence. `o.seq_lens` are the lengths of the whole.
---@param chunks sharding.Members
---@param q torch.Tensor [chunk, heads, D]
---@param k torch.Tensor [chunk, kv_heads, D]
---@param v torch.Tensor [chunk, kv_heads, D]
---@param o {seq_lens: integer[], causal: boolean, scale: number?, window: integer?}
---@return torch.Tensor # [chunk, heads, D]
function M.attention(chunks, q, k, v, o)
  local all = M.gather(chunks, torch.stack { k, v }, 1)
  local keys, values = all[0], all[1]
  local tokens = q:size(0)
  local first, results, start = chunks.rank * tokens, {}, 0
  for _, length in ipairs(o.seq_lens) do
    local stop = start + length
    local from, to = math.max(start, first), math.min(stop, first + tokens)
    if from < to then
      local low = o.window and math.max(start, from - o.window + 1) or start
      local high = o.causal and to or o.window and math.min(stop, to + o.window - 1) or stop
      results[#results + 1] = part(q:narrow(0, from - first, to - from), keys:narrow(0, low, high - low),
        values:narrow(0, low, high - low), from - low, o)
    end
    start = stop
  end
  return #results == 1 and results[1] or torch.cat(results)
end

return M
