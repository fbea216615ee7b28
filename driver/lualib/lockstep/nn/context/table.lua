--- The chunk table: which tokens of a packed batch each rank of a context-parallel group holds.
---
---     local own = table.balanced({ 9, 4 }, 2)      -- documents of 9 and 4 tokens on 2 ranks
---     own.counts                                   -- { 7, 6 } tokens
---     ids:index_select(0, own:index(0))            -- rank 0's tokens
---
--- A causal document is most expensive at its end, so equal chunks are not equal work: the last of 8 ranks has twice
--- the mean. A balanced table cuts each document into 2 pieces a rank. A rank gets one of the first half and the
--- mirrored one of the second half (zigzag; Megatron-LM, ring-flash-attention). The pieces of a document need not be
--- equal: tokens that are left go to the ranks that have the fewest, so no document is padded.

local torch = require "lockstep.torch"

local M = {}

---@class nn.ContextPiece a range of one document: positions from `from` to below `to`
---@field from integer
---@field to integer

---@class nn.ContextShare what a rank holds of one document: its pieces in rising order, which lie one behind the other
---@field start integer where they begin in the rank's chunk
---@field count integer tokens
---@field [integer] nn.ContextPiece

---@class nn.ContextTable
---@field tokens integer of the whole batch
---@field size integer ranks
---@field most integer tokens of the largest chunk
---@field padding integer tokens that chunks of one size would have in addition: most * size - tokens
---@field counts integer[] tokens of each rank
---@field starts integer[] where each document begins in the batch
---@field shares table<integer, nn.ContextShare>[] of each rank, by document
---@field work number[] pairs of a query and a key that causal attention computes on each rank
---@field private tensors table<string, torch.Tensor>
---@field plans table<string, any> what others derive from the table
local Table = {}
Table.__index = Table

--- Returns an empty table for these documents.
local function new(seq_lens, size)
  local self = { tokens = 0, size = size, counts = {}, starts = {}, shares = {}, work = {}, tensors = {}, plans = {} }
  for rank = 1, size do
    self.counts[rank], self.shares[rank], self.work[rank] = 0, {}, 0
  end
  for document, length in ipairs(seq_lens) do
    self.starts[document] = self.tokens
    self.tokens = self.tokens + length
  end
  return setmetatable(self, Table)
end

--- Gives a rank a range of a document, behind those that it has.
local function give(self, rank, document, from, to)
  if from == to then return end
  local share = self.shares[rank][document] or { start = self.counts[rank], count = 0 }
  self.shares[rank][document] = share
  local last = share[#share]
  if last and last.to == from then
    last.to = to
  else
    share[#share + 1] = { from = from, to = to }
  end
  share.count = share.count + to - from
  self.counts[rank] = self.counts[rank] + to - from
  self.work[rank] = self.work[rank] + (to * (to + 1) - from * (from + 1)) / 2
end

local function finish(self)
  self.most = math.max(unpack(self.counts))
  self.padding = self.most * self.size - self.tokens
  return self
end

--- Returns a table in which each rank holds an equal, contiguous part of the batch. The ranks divide the tokens.
---@param seq_lens integer[]
---@param size integer
---@return nn.ContextTable
function M.contiguous(seq_lens, size)
  local self = new(seq_lens, size)
  local most = self.tokens / size
  for document, length in ipairs(seq_lens) do
    local start = self.starts[document]
    for rank = 1, size do
      local from, to = math.max(start, most * (rank - 1)), math.min(start + length, most * rank)
      if from < to then give(self, rank, document, from - start, to - start) end
    end
  end
  return finish(self)
end

--- Gives each rank its two pieces of one document.
---
--- Two orders of the ranks decide. Tokens that the pieces do not divide into go to the ranks with the fewest tokens, so
--- numbers of tokens differ by at most 1. The rank with the least work gets the outermost pieces: another token at the
--- end of the document is the most expensive one.
local function deal(self, document, length)
  local size = self.size
  local base = math.floor(length / (2 * size))
  local left = length - 2 * size * base
  local ranks, extra = {}, {}
  for rank = 1, size do ranks[rank], extra[rank] = rank, 0 end
  local counts, work = self.counts, self.work
  table.sort(ranks, function(a, b)
    if counts[a] ~= counts[b] then return counts[a] < counts[b] end
    if work[a] ~= work[b] then return work[a] < work[b] end
    return a < b
  end)
  for i = 0, left - 1 do
    local rank = ranks[i % size + 1]
    extra[rank] = extra[rank] + 1
  end
  table.sort(ranks, function(a, b)
    if work[a] ~= work[b] then return work[a] < work[b] end
    return a < b
  end)
  local front, back = 0, length
  local behind = {}
  for i, rank in ipairs(ranks) do
    local first = base + (extra[rank] == 2 and 1 or 0)
    local second = base + (extra[rank] >= 1 and 1 or 0)
    give(self, rank, document, front, front + first)
    behind[i] = { back - second, back }
    front, back = front + first, back - second
  end
  for i, rank in ipairs(ranks) do give(self, rank, document, behind[i][1], behind[i][2]) end
end

--- Returns a table in which ranks have equal work and, give or take one, equally many tokens. A rank has none where
--- there are fewer tokens than ranks.
---@param seq_lens integer[]
---@param size integer
---@return nn.ContextTable
function M.balanced(seq_lens, size)
  local self = new(seq_lens, size)
  for document, length in ipairs(seq_lens) do deal(self, document, length) end
  return finish(self)
end

--- Returns a tensor of the table on a device, made once.
local function kept(self, name, device, make)
  local key = name .. " " .. device
  self.tensors[key] = self.tensors[key] or torch.tensor(make(), { dtype = torch.int64 }):to(device)
  return self.tensors[key]
end

--- Returns where a rank's tokens stand in the batch, as an array.
local function places_of(self, rank)
  local places = {}
  for document, start in ipairs(self.starts) do
    for _, piece in ipairs(self.shares[rank + 1][document] or {}) do
      for position = piece.from, piece.to - 1 do places[#places + 1] = start + position end
    end
  end
  return places
end

--- Returns where a rank's tokens stand in the batch: int64 [count].
---@param rank integer from 0
---@param device string
---@return torch.Tensor
function Table:index(rank, device)
  return kept(self, "index " .. rank, device, function() return places_of(self, rank) end)
end

--- Returns where each token of the batch stands among the chunks, each filled up to `most` tokens: int64 [tokens].
---@param device string
---@return torch.Tensor
function Table:places(device)
  return kept(self, "places", device, function()
    local places = {}
    for rank = 0, self.size - 1 do
      for i, place in ipairs(places_of(self, rank)) do places[place + 1] = rank * self.most + i - 1 end
    end
    return places
  end)
end

--- Returns the opposite of places: the token of the batch at each place of the chunks, token 0 where a chunk is filled
--- up. int64 [most * size]
---@param device string
---@return torch.Tensor
function Table:tokens_at(device)
  return kept(self, "tokens_at", device, function()
    local tokens = {}
    for i = 1, self.most * self.size do tokens[i] = 0 end
    for rank = 0, self.size - 1 do
      for i, place in ipairs(places_of(self, rank)) do tokens[rank * self.most + i] = place end
    end
    return tokens
  end)
end

--- Returns the largest part of attention's work that a rank has, by the mean of all.
---@return number
function Table:slowest()
  local sum = 0
  for _, work in ipairs(self.work) do sum = sum + work end
  return sum == 0 and 1 or math.max(unpack(self.work)) * self.size / sum
end

return M
