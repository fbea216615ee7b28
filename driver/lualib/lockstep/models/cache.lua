--- Keys and values of the tokens that a model has seen, so that each new token costs one row.
---
--- Sequences of different lengths end at the same column: shorter ones begin later, behind columns that no query sees.
--- A new token of each sequence then goes to one column, and attention is one call for all of them.

local fused = require "lockstep.nn.fused"
local nn = require "lockstep.nn"
local torch = require "lockstep.torch"

---@class models.Cache
---@field keys torch.Tensor[] of each layer, [sequences, kv_heads, columns, head_dim]
---@field values torch.Tensor[]
---@field lengths integer[] of the prompts
---@field longest integer
---@field used integer columns
---@field columns integer
---@field mask torch.Tensor? [sequences, columns], added to the scores; nil where all are equally long
local Cache = {}
Cache.__index = Cache

local M = {}

--- Makes room for prompts of these lengths and for so many new tokens each.
---@param lengths integer[]
---@param new_tokens integer
---@return models.Cache
function M.new(lengths, new_tokens)
  local longest = 0
  for _, length in ipairs(lengths) do longest = math.max(longest, length) end
  return setmetatable({ keys = {}, values = {}, lengths = lengths, longest = longest, used = longest,
    columns = longest + new_tokens }, Cache)
end

local function make_mask(cache, like)
  local equal = true
  for _, length in ipairs(cache.lengths) do equal = equal and length == cache.longest end
  if equal then return nil end
  local mask = torch.zeros({ #cache.lengths, cache.columns }, { dtype = like.dtype })
  for i, length in ipairs(cache.lengths) do mask[i - 1]:narrow(-1, 0, cache.longest - length):fill_(-math.huge) end
  return mask:to(like.device)
end

--- Attention over the prompts, one after the other, as nn.attention has it. Keeps their keys and values.
---@param q torch.Tensor [T, heads, D]
---@param k torch.Tensor [T, kv_heads, D]
---@param v torch.Tensor [T, kv_heads, D]
---@param attention models.Attention
---@return torch.Tensor # [T, heads, D]
function Cache:prompts(q, k, v, attention)
  if attention.index == 1 then self.mask = make_mask(self, k) end
  local size = { #self.lengths, k:size(1), self.columns, k:size(2) }
  for kind, x in pairs { keys = k, values = v } do
    local rows = torch.zeros(size, { dtype = x.dtype, device = x.device })
    for i, part in ipairs(x:split(self.lengths)) do
      rows[i - 1]:narrow(1, self.longest - part:size(0), part:size(0)):copy_(part:transpose(0, 1))
    end
    self[kind][attention.index] = rows
  end
  return nn.attention(q, k, v, { seq_lens = self.lengths, window = attention.window or nil, scale = attention.scale })
end

--- Returns the first column that a new token sees.
---@param window integer|false
---@return integer
function Cache:first(window) return window and math.max(0, self.used + 1 - window) or 0 end

--- Attention of one new token of each sequence to all before it.
---@param q torch.Tensor [sequences, heads, D]
---@param k torch.Tensor [sequences, kv_heads, D]
---@param v torch.Tensor [sequences, kv_heads, D]
---@param attention models.Attention
---@return torch.Tensor # [sequences, heads, D]
function Cache:next_tokens(q, k, v, attention)
  if attention.scale then q = q * (attention.scale * math.sqrt(q:size(-1))) end -- the operator's own is D^-0.5
  return fused.cached_attention(q, k, v, self.keys[attention.index], self.values[attention.index], self.used,
    self:first(attention.window), self.mask)
end

--- Keeps the sequences at these positions, and forgets the others.
---@param rows torch.Tensor int64, on the CPU
function Cache:keep(rows)
  rows = rows:to(self.keys[1].device)
  for layer, keys in ipairs(self.keys) do
    self.keys[layer], self.values[layer] = keys:index_select(0, rows), self.values[layer]:index_select(0, rows)
  end
  self.mask = self.mask and self.mask:index_select(0, rows)
end

return M
