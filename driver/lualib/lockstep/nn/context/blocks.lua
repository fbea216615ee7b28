--- Blocks: which queries of a rank see which keys of another rank's chunk, as ranges of the two chunks.
---
--- In the ring a rank meets the chunks one after another. Of each document it has a few pieces, and so has the other
--- chunk. Where pieces are whole on one side of the diagonal, a block is a full product: no kernel needs a mask. The
--- rank's own chunk is a causal square, because its pieces lie one behind the other in rising order.
---
--- A window has a limit on the other side, too. Then, and for a product written out in full (`rows`), blocks have a few
--- rows of queries with the range of keys that one of them sees, and a mask where not all see all.

local M = {}

---@class nn.ContextBlock
---@field q_from integer first query, in this rank's chunk
---@field queries integer
---@field k_from integer first key, in the other chunk
---@field keys integer
---@field causal boolean query i sees keys 0 to i
---@field ahead integer? with a mask: the position of the first query, less that of the first key
---@field masked boolean? some query does not see some key

--- Whole pieces: each group of this rank's pieces with the other chunk's pieces before it.
local function add_coarse(blocks, own, other, causal, is_same)
  if is_same or not causal then
    blocks[#blocks + 1] = { q_from = own.start, queries = own.count, k_from = other.start, keys = other.count,
      causal = is_same and causal }
    return
  end
  local from, before, keys, last = own.start, 0, 0, nil
  for _, piece in ipairs(own) do
    while other[before + 1] and other[before + 1].to <= piece.from do
      before = before + 1
      keys = keys + other[before].to - other[before].from
    end
    local count = piece.to - piece.from
    if last and last.keys == keys then
      last.queries = last.queries + count
    elseif keys > 0 then
      last = { q_from = from, queries = count, k_from = other.start, keys = keys, causal = false }
      blocks[#blocks + 1] = last
    end
    from = from + count
  end
end

--- `q` and `k` are ranges of positions; they begin at `q_from` and `k_from` in their chunks.
local function add_rows(blocks, q, q_from, k, k_from, o)
  local low = o.window and q.from - o.window + 1 or 0
  local high = o.causal and q.to or o.window and q.to + o.window - 1 or k.to
  local from, to = math.max(k.from, low), math.min(k.to, high)
  if from >= to then return end
  local masked = o.causal and to - 1 > q.from
    or o.window and (q.to - 1 - from >= o.window or not o.causal and to - 1 - q.from >= o.window)
  blocks[#blocks + 1] = { q_from = q_from, queries = q.to - q.from, k_from = k_from + from - k.from, keys = to - from,
    causal = false, masked = masked or false, ahead = q.from - from }
end

local function add_fine(blocks, own, other, o)
  local q_from = own.start
  for _, piece in ipairs(own) do
    for from = piece.from, piece.to - 1, o.rows do
      local q = { from = from, to = math.min(from + o.rows, piece.to) }
      local k_from = other.start
      for _, k in ipairs(other) do
        add_rows(blocks, q, q_from + from - piece.from, k, k_from, o)
        k_from = k_from + k.to - k.from
      end
    end
    q_from = q_from + piece.to - piece.from
  end
end

--- Returns the blocks of this rank's queries with the keys of `source`. A block has queries and keys. In the rank's own
--- chunk every query has a key.
---@param own nn.ContextTable
---@param rank integer from 0
---@param source integer from 0: whose keys
---@param o {causal: boolean, window: integer?, rows: integer?}
---@return nn.ContextBlock[]
function M.of(own, rank, source, o)
  local key = ("blocks %d %d %s %s %s"):format(rank, source, tostring(o.causal), tostring(o.window), tostring(o.rows))
  if own.plans[key] then return own.plans[key] end
  local blocks = {}
  for document = 1, #own.starts do
    local q, k = own.shares[rank + 1][document], own.shares[source + 1][document]
    if q and k and o.rows then
      add_fine(blocks, q, k, o)
    elseif q and k then
      add_coarse(blocks, q, k, o.causal, rank == source)
    end
  end
  own.plans[key] = blocks
  return blocks
end

return M
