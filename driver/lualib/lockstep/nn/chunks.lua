--- Sequences whose tokens lie in chunks on several ranks: the state of sharding.context_parallel and of
--- sharding.parallelize, and the attention of a chunk.
---
--- In context_parallel models are given this rank's part of the batch, one of equal parts. In parallelize models are
--- given the whole batch, and take this rank's tokens by a balanced chunk table (nn/context/table.lua).

local chunk_table = require "lockstep.nn.context.table"
local core = require "lockstep.core"
local dist = require "lockstep.distributed"
local heads = require "lockstep.nn.context.heads"
local plain = require "lockstep.plain"
local ring = require "lockstep.nn.context.ring"
local torch = require "lockstep.torch"

local M = {}

---@class nn.Chunks: sharding.Members
---@field form "ring"|"all_to_all"|nil of attention; nil: all-to-all where the ranks divide the query heads
---@field table nn.ContextTable? nil: equal parts of the batch, which models are given already

--- The chunks of the call of sharding.context_parallel that runs now.
---@type nn.Chunks?
local current

--- Returns the chunks that are in force, or nil where each rank has whole sequences.
---@return nn.Chunks?
function M.current() return current end

--- Calls fn(...) with `chunks` in force, or with whole sequences (nil). They end with the call, also with an error.
---@param chunks nn.Chunks?
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

--- Returns the tokens of the whole batch.
---@param chunks nn.Chunks
---@param tokens integer of this rank's chunk
---@return integer
function M.whole(chunks, tokens) return chunks.table and chunks.table.tokens or tokens * chunks.size end

--- Returns whether this rank holds no token. Models then compute with one that counts nowhere, so that they call the
--- same collectives as those of the other ranks.
local function is_empty(chunks) return chunks.table and chunks.table.counts[chunks.rank + 1] == 0 end

--- Returns x without the token of an empty chunk.
local function held(chunks, x) return is_empty(chunks) and x:narrow(0, 0, 0) or x end

--- Returns the tensors of all chunks in the batch's order, on dimension 0. Differentiable. Collective.
---@param chunks nn.Chunks
---@param x torch.Tensor [chunk, ...]
---@return torch.Tensor # [tokens, ...]
function M.gather(chunks, x)
  local own = chunks.table
  local given = own and heads.fill(held(chunks, x), own.most) or x
  local all = dist.functional.all_gather(given:contiguous(), { dim = 0, group = chunks.group })
  return own and all:index_select(0, own:places(all.device)) or all
end

--- Returns tensors of all chunks, each as gather returns it; where each rank has whole sequences, the same list.
--- Collective.
---@param list torch.Tensor[]
---@return torch.Tensor[]
function M.gather_each(list)
  if not current then return list end
  local all = {}
  for i, x in ipairs(list) do all[i] = M.gather(current, x) end
  return all
end

--- Returns this rank's part of a tensor of the whole batch.
---@param chunks nn.Chunks
---@param x torch.Tensor
---@param dim integer? of the tokens; default 0
---@param filler number? the value where this rank holds no token; default: that of the batch's first token
---@return torch.Tensor
function M.own(chunks, x, dim, filler)
  dim = dim or 0
  if is_empty(chunks) then
    local first = x:narrow(dim, 0, 1)
    return filler and torch.full_like(first, filler) or first
  end
  if chunks.table then return x:index_select(dim, chunks.table:index(chunks.rank, x.device)) end
  local tokens = x:size(dim) / chunks.size
  return x:narrow(dim, chunks.rank * tokens, tokens)
end

--- The table of equal parts that was made last: the layers of a pass have one.
local last = {}

local function table_of(chunks, seq_lens)
  if chunks.table then return chunks.table end
  local text = chunks.size .. ": " .. table.concat(seq_lens, " ")
  if last.text ~= text then last = { text = text, table = chunk_table.contiguous(seq_lens, chunks.size) } end
  return last.table
end

--- Casts to the dtype of a surrounding torch.autocast, and runs fn(q, k, v) without it. Attention of whole sequences is
--- an operator that autocast knows; the blocks of a ring are not. Private to the library.
---@param q torch.Tensor
---@param k torch.Tensor
---@param v torch.Tensor
---@param fn fun(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor): torch.Tensor
---@return torch.Tensor
function M.cast(q, k, v, fn)
  if q.dtype ~= torch.float32 then return fn(q, k, v) end
  local one = torch.ones({ 1, 1 }, { device = q.device })
  local low = one:mm(one).dtype
  if low == torch.float32 then return fn(q, k, v) end
  return torch.autocast({ device = (q.device:gsub(":.*", "")), enabled = false }, fn, q:to(low), k:to(low), v:to(low))
end

--- Attention of a chunk's queries over the whole batch. `o.seq_lens` are the lengths of the whole. Collective.
---@param chunks nn.Chunks
---@param q torch.Tensor [chunk, heads, D]
---@param k torch.Tensor [chunk, kv_heads, D]
---@param v torch.Tensor [chunk, kv_heads, D]
---@param o {seq_lens: integer[], causal: boolean, scale: number?, window: integer?, sinks: torch.Tensor?}
---@param attend fun(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sinks: torch.Tensor?): torch.Tensor attention of
--- whole sequences
---@param can_flash fun(q: torch.Tensor): boolean whether FlashAttention on a GPU takes q
---@return torch.Tensor # [chunk, heads, D]
function M.attention(chunks, q, k, v, o, attend, can_flash)
  local own = table_of(chunks, o.seq_lens)
  if is_empty(chunks) and q:size(0) > 0 then
    local y = M.attention(chunks, held(chunks, q), held(chunks, k), held(chunks, v), o, attend, can_flash)
    return heads.fill(y, 1)
  elseif q:size(0) ~= own.counts[chunks.rank + 1] then
    core.raise(("nn.attention: rank %d holds %d tokens of this batch, but q has %d"):format(dist.rank(),
      own.counts[chunks.rank + 1], q:size(0)))
  end
  local divides = q:size(1) % chunks.size == 0
  if chunks.form == "all_to_all" and not divides then
    core.raise(("nn.attention: all-to-all over %d ranks needs a multiple of %d query heads, got %d; use cp = \"ring\"")
      :format(chunks.size, chunks.size, q:size(1)))
  end
  if chunks.form ~= "ring" and divides then
    return heads.attention(chunks, own, q, k, v, o.sinks, function(...) return M.with(nil, attend, ...) end)
  end
  return M.cast(q, k, v, function(queries, keys, values)
    return ring.attention(chunks, own, queries, keys, values, o, can_flash(queries))
  end)
end

return M
