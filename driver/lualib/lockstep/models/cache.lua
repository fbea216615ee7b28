--- Keys and values of the tokens that a model has seen, so that each new token costs one row. Layers with a state keep
--- that in place of keys and values.
---
--- Each sequence has a row. Sequences of different lengths end at the same column: shorter ones begin later, behind
--- columns that no query sees. A new token of each sequence then goes to one column, and attention is one call for all
--- of them. A prompt can enter at any time, because it ends at that column, too. When the last column is full, what is
--- still seen moves to the first columns.

local fused = require "lockstep.nn.fused"
local nn = require "lockstep.nn"
local sinks = require "lockstep.nn.sinks"
local torch = require "lockstep.torch"

--- A prompt that enters the cache.
---@class models.CachedPrompt
---@field length integer
---@field rows integer[] that it enters, from 1
---@field keys torch.Tensor[]? of each layer, [kv_heads, length, head_dim]; a table here keeps them for later rows
---@field values torch.Tensor[]? likewise
---@field kept table<integer, table<string, torch.Tensor>>? of each layer with a state, what recur returned; likewise

---@class models.Cache
---@field keys torch.Tensor[] of each layer, [rows in use, kv_heads, columns, head_dim]
---@field values torch.Tensor[]
---@field mask torch.Tensor? [rows in use, columns], added to the scores; nil where all sequences begin at one column
---@field states table<integer, table<string, torch.Tensor>> of each layer with a state, [capacity, ...] by name
---@field used integer columns that hold tokens: the next token goes to this one, from 0
---@field columns integer
---@field rows integer in use; they are the first ones
---@field starts integer[] of each row in use, the column of its first token
---@field start integer the least of these
---@field capacity integer the most rows
---@field masks torch.Tensor? [capacity, columns]; nil where no layer has keys
local Cache = {}
Cache.__index = Cache

local M = {}

local KINDS = { "keys", "values" }

--- Makes room for sequences.
---@param o {rows: integer, longest: integer, new_tokens: integer, spare: integer} longest: the longest prompt that will
--- enter; new_tokens: the most after a prompt; spare: columns after which tokens move. It may be 0 if all prompts enter
--- together
---@return models.Cache
function M.new(o)
  return setmetatable({ keys = {}, values = {}, buffers = { keys = {}, values = {} }, capacity = o.rows,
    longest = o.longest, used = o.longest, columns = o.longest + o.new_tokens + o.spare, rows = 0, starts = {},
    start = 0, entering = {}, states = {} }, Cache)
end

--- Fills the mask of a row.
local function hide(self, row)
  if not self.masks then return end -- no layer has keys
  local mask = self.masks[row - 1]
  mask:fill_(0)
  mask:narrow(-1, 0, self.starts[row]):fill_(-math.huge)
end

--- Writes [kv_heads, length, head_dim] before the next column of a row.
local function write(self, kind, layer, row, part)
  local length = part:size(1)
  self.buffers[kind][layer][row - 1]:narrow(1, self.used - length, length):copy_(part)
end

--- Takes rows for prompts, whose tokens go through the model next.
---@param prompts models.CachedPrompt[]
function Cache:enter(prompts)
  self.entering = { prompts = prompts, lengths = {} }
  for i, prompt in ipairs(prompts) do self.entering.lengths[i] = prompt.length end
end

--- Writes a prompt's state into a row.
local function write_state(self, layer, row, state)
  self.states[layer] = self.states[layer] or {}
  for name, tensor in pairs(state) do
    local buffers = self.states[layer]
    buffers[name] = buffers[name] or tensor:new_zeros({ self.capacity, unpack(tensor:size()) })
    buffers[name][row - 1]:copy_(tensor)
  end
end

--- Cache:prompts of a layer with a state.
local function recur_prompts(self, q, k, v, attention)
  local y, states = attention:recur(q, k, v, self.entering.lengths)
  for i, prompt in ipairs(self.entering.prompts) do
    local own = {}
    for name, tensor in pairs(states) do own[name] = tensor[i - 1] end
    for _, row in ipairs(prompt.rows) do write_state(self, attention.index, row, own) end
    if prompt.kept then
      for name, tensor in pairs(own) do own[name] = tensor:clone() end
      prompt.kept[attention.index] = own
    end
  end
  return y
end

--- Cache:next_tokens of a layer with a state.
local function recur_next(self, q, k, v, attention)
  local before = {}
  for name, buffer in pairs(self.states[attention.index]) do before[name] = buffer:narrow(0, 0, q:size(0)) end
  local y, states = attention:recur(q, k, v, nil, before)
  for name, tensor in pairs(states) do before[name]:copy_(tensor) end
  return y
end

--- Attention over the prompts that enter, one after the other, as nn.attention has it. Keeps their keys and values.
---@param q torch.Tensor [T, heads, D]
---@param k torch.Tensor [T, kv_heads, D]
---@param v torch.Tensor [T, kv_heads, D]
---@param attention models.Attention
---@return torch.Tensor # [T, heads, D]
function Cache:prompts(q, k, v, attention)
  if attention.recur then return recur_prompts(self, q, k, v, attention) end
  local layer, lengths = attention.index, self.entering.lengths
  local like = { dtype = k.dtype, device = k.device }
  self.masks = self.masks or torch.zeros({ self.capacity, self.columns }, like)
  for kind, x in pairs { keys = k, values = v } do
    self.buffers[kind][layer] = self.buffers[kind][layer]
      or torch.zeros({ self.capacity, x:size(1), self.columns, x:size(2) }, { dtype = x.dtype, device = x.device })
    for i, part in ipairs(x:split(lengths)) do
      local prompt = self.entering.prompts[i]
      part = part:transpose(0, 1)
      for _, row in ipairs(prompt.rows) do write(self, kind, layer, row, part) end
      if prompt[kind] then prompt[kind][layer] = part:clone() end
    end
  end
  return nn.attention(q, k, v, { seq_lens = lengths, window = attention.window or nil, scale = attention.scale,
    sinks = attention.sinks, blocks = attention.blocks })
end

--- Writes a prompt whose keys and values were kept into one more row.
---@param prompt models.CachedPrompt
---@param row integer
function Cache:repeat_prompt(prompt, row)
  for _, kind in ipairs(KINDS) do
    for layer, part in pairs(prompt[kind]) do write(self, kind, layer, row, part) end
  end
  for layer, state in pairs(prompt.kept) do write_state(self, layer, row, state) end
end

--- Counts a row as used by a prompt of so many tokens, which are written.
---@param row integer the first that is free
---@param length integer
function Cache:add(row, length)
  self.rows, self.starts[row] = row, self.used - length
  hide(self, row)
  self.is_old = true
end

--- Takes a sequence out. The last row moves into its place.
---@param row integer
function Cache:remove(row)
  local last = self.rows
  local start = self.starts[last]
  if row ~= last then
    for _, kind in ipairs(KINDS) do
      for _, buffer in pairs(self.buffers[kind]) do
        buffer[row - 1]:narrow(1, start, self.used - start):copy_(buffer[last - 1]:narrow(1, start, self.used - start))
      end
    end
    for _, buffers in pairs(self.states) do
      for _, buffer in pairs(buffers) do buffer[row - 1]:copy_(buffer[last - 1]) end
    end
    self.starts[row] = start
    hide(self, row)
  end
  self.rows, self.starts[last] = last - 1, nil
  self.is_old = true
end

--- Returns the least and the largest column at which a row begins.
local function range(starts)
  local least, largest = math.huge, 0
  for _, start in ipairs(starts) do least, largest = math.min(least, start), math.max(largest, start) end
  return least, largest
end

--- Moves tokens to the first columns.
local function compact(self)
  local first = range(self.starts)
  local count = self.used - first
  local shift = self.used - math.max(self.longest, count)
  for _, kind in ipairs(KINDS) do
    for _, buffer in pairs(self.buffers[kind]) do
      local seen = buffer:narrow(0, 0, self.rows):narrow(2, first, count)
      buffer:narrow(0, 0, self.rows):narrow(2, first - shift, count):copy_(seen:clone())
    end
  end
  self.used = self.used - shift
  for row = 1, self.rows do
    self.starts[row] = self.starts[row] - shift
    hide(self, row)
  end
  self.is_old = true
end

--- Prepares the next new token: its column, and `keys`, `values` and `mask` of the rows in use.
function Cache:prepare()
  if self.used == self.columns then compact(self) end
  if not self.is_old then return end
  local last
  self.is_old, self.start, last = false, range(self.starts)
  for _, kind in ipairs(KINDS) do
    for layer, buffer in pairs(self.buffers[kind]) do self[kind][layer] = buffer:narrow(0, 0, self.rows) end
  end
  self.mask = last > self.start and self.masks and self.masks:narrow(0, 0, self.rows) or nil
end

--- Returns the first column that a new token sees.
---@param window integer|false
---@return integer
function Cache:first(window) return window and math.max(self.start, self.used + 1 - window) or self.start end

local function scaled(q, attention)
  return attention.scale and q * (attention.scale * math.sqrt(q:size(-1))) or q -- the operator's own is D^-0.5
end

--- Attention of one new token of each sequence to all before it.
---@param q torch.Tensor [sequences, heads, D]
---@param k torch.Tensor [sequences, kv_heads, D]
---@param v torch.Tensor [sequences, kv_heads, D]
---@param attention models.Attention
---@return torch.Tensor # [sequences, heads, D]
function Cache:next_tokens(q, k, v, attention)
  if attention.recur then return recur_next(self, q, k, v, attention) end
  q = scaled(q, attention)
  local keys, values, first = self.keys[attention.index], self.values[attention.index], self:first(attention.window)
  if attention.sinks then
    return sinks.cached(q, k, v, keys, values, self.used, first, self.mask, attention.sinks)
  end
  return fused.cached_attention(q, k, v, keys, values, self.used, first, self.mask)
end

--- Attention of one new token of each row, for a graph: the column is a value on the device, and a mask says which
--- columns a row sees.
---@param column torch.Tensor [1] int64
---@param columns integer that attention reads
---@param mask torch.Tensor [rows, columns], added to the scores
---@param q torch.Tensor [rows, heads, D]
---@param k torch.Tensor [rows, kv_heads, D]
---@param v torch.Tensor [rows, kv_heads, D]
---@param attention models.Attention
---@return torch.Tensor # [rows, heads, D]
function Cache:tokens_at(column, columns, mask, q, k, v, attention)
  local rows, seen = q:size(0), {}
  for kind, x in pairs { keys = k, values = v } do
    local buffer = self.buffers[kind][attention.index]:narrow(0, 0, rows)
    buffer:index_copy_(2, column, x:unsqueeze(2):to(buffer.dtype))
    seen[kind] = buffer:narrow(2, 0, columns)
  end
  return fused.attention_to_cache(scaled(q, attention), seen.keys, seen.values, mask)
end

return M
