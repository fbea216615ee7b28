--- sharding.pack: samples one behind the other, in chunks of one length.

local core = require "lockstep.core"
local core_sharding = require "lockstep.core.sharding"
local options = require "lockstep.options"
local torch = require "lockstep.torch"

---@class sharding.Packed
---@field chunks integer handed out so far
---@field drawn integer samples taken from the source so far
---@field dropped_tokens integer
---@operator call: table?
local Packed = {}
Packed.__index = Packed

local function copy(array)
  local result = {}
  for i, element in ipairs(array) do result[i] = element end
  return result
end

local DTYPES = { input_ids = torch.int64, position_ids = torch.int64 }

--- As booleans 0.5 and NaN would be true.
local function check_loss_mask(mask, number)
  if mask.dtype == torch.bool then return end
  local wrong = mask:masked_select(mask:ne(0):logical_and(mask:ne(1)))
  if wrong:numel() > 0 then
    core.raise(("sharding.pack: sample %d: loss_mask holds %g; each element must be 0, 1, true or false"):format(number,
      wrong[0]:item()))
  end
end

--- A sample's per-token fields as tensors of one dimension.
local function read_sample(sample, number)
  if type(sample) ~= "table" or sample.input_ids == nil then
    core.raise(("sharding.pack: sample %d has no input_ids"):format(number))
  end
  local fields = {}
  for name, value in pairs(sample) do
    if not torch.is_tensor(value) then
      if type(value) ~= "table" then
        core.raise(("sharding.pack: sample %d: %s is a %s; every field is an array or a tensor of one value per token")
          :format(number, name, type(value)))
      end
      value = torch.tensor(value, { dtype = DTYPES[name] })
    end
    fields[name] = value
  end
  local length = fields.input_ids:size(0)
  if fields.loss_mask then check_loss_mask(fields.loss_mask, number) end
  fields.loss_mask = (fields.loss_mask or torch.ones({ length })):to(torch.bool)
  fields.position_ids = fields.position_ids or torch.arange(length)
  for name, value in pairs(fields) do
    if value:dim() ~= 1 or value:size(0) ~= length then
      core.raise(("sharding.pack: sample %d: %s has shape %s, but input_ids has %d tokens"):format(number, name,
        tostring(value.shape), length))
    end
  end
  return fields
end

local function same_fields(first, fields, number)
  for _, pair in ipairs { { first, fields }, { fields, first } } do
    for name in pairs(pair[1]) do
      if pair[2][name] == nil then
        core.raise(("sharding.pack: sample %d and those before it do not have the same fields: %s is in one of them "
          .. "alone"):format(number, name))
      end
    end
  end
end

--- Copies the pieces of a chunk behind one another; forgets samples that are done.
---@param pieces integer[] {sample, begin, end, ...}
---@return table chunk
function Packed:build(pieces)
  local parts, seq_lens, length = {}, {}, 0
  for i = 1, #pieces, 3 do
    local number, from, to = pieces[i], pieces[i + 1], pieces[i + 2]
    for name, value in pairs(self.samples[number]) do
      parts[name] = parts[name] or {}
      table.insert(parts[name], value:narrow(0, from, to - from))
    end
    seq_lens[#seq_lens + 1] = to - from
    length = length + to - from
  end
  local padding = self.pad_token_id and self.seq_len - length or 0
  local chunk = { seq_lens = seq_lens }
  for name, values in pairs(parts) do
    if padding > 0 then
      local fill = name == "input_ids" and self.pad_token_id or 0
      local pad = name == "position_ids" and torch.arange(padding) or torch.full({ padding }, fill)
      table.insert(values, pad:to(values[1].dtype))
    end
    chunk[name] = torch.cat(values)
  end
  if padding > 0 then seq_lens[#seq_lens + 1] = padding end
  local first = pieces[#pieces - 2]
  for number in pairs(self.samples) do
    if number < first then self.samples[number] = nil end
  end
  return chunk
end

--- The next chunk; nil at the end of the source.
---@return table?
function Packed:__call()
  while #self.ready == 0 and not self.ended do
    local sample = self.source()
    local chunks
    if sample == nil then
      self.ended = true
      chunks = { self.packer:finish() }
    else
      self.drawn = self.drawn + 1
      local fields = read_sample(sample, self.drawn)
      if self.first then same_fields(self.first, fields, self.drawn) end
      self.first = self.first or fields
      self.samples[self.drawn - self.base] = fields
      chunks = self.packer:add(fields.input_ids:size(0))
    end
    for _, pieces in ipairs(chunks) do table.insert(self.ready, self:build(pieces)) end
    self.dropped_tokens = self.dropped_before + self.packer:dropped_tokens()
  end
  local chunk = table.remove(self.ready, 1)
  if chunk then self.chunks = self.chunks + 1 end
  return chunk
end

--- Returns the state for sharding.pack{state = ...}, in the middle of a sample too: the source must continue after
--- `state.drawn` samples. It holds the tokens that wait for their chunk.
---@return table
function Packed:state()
  return {
    drawn = self.drawn, chunks = self.chunks, dropped_tokens = self.dropped_tokens, ended = self.ended,
    ready = copy(self.ready), waiting = self:waiting(),
  }
end

--- Continues from a result of pack:state(), as sharding.pack{state = ...} does. The source must continue after
--- `state.drawn` samples: also restore the dataset that it reads.
---@param state table
function Packed:load_state(state)
  for _, key in ipairs { "drawn", "chunks", "dropped_tokens", "ended", "ready", "waiting" } do
    if type(state) ~= "table" or state[key] == nil then
      core.raise("sharding.pack: this is not a state of pack: it lacks " .. key)
    end
  end
  self.packer, self.samples, self.first = self.new_packer(), {}, nil
  self.drawn, self.chunks, self.ended = state.drawn, state.chunks, state.ended
  self.dropped_tokens, self.dropped_before = state.dropped_tokens, state.dropped_tokens
  self.ready = copy(state.ready)
  -- Waiting samples get their numbers before later ones.
  for i, fields in ipairs(state.waiting) do
    self.samples[i], self.first = fields, fields
    self.packer:add(fields.input_ids:size(0))
  end
  self.base = state.drawn - #state.waiting
end

--- The tokens that no chunk has had, as samples.
---@return table[]
function Packed:waiting()
  local waiting = {}
  local pieces = self.packer:waiting()
  for i = 1, #pieces, 3 do
    local fields = {}
    for name, value in pairs(self.samples[pieces[i]]) do
      fields[name] = value:narrow(0, pieces[i + 1], pieces[i + 2] - pieces[i + 1]):clone()
    end
    waiting[#waiting + 1] = fields
  end
  return waiting
end

--- Concatenates samples into chunks of seq_len tokens:
---
---     for chunk in sharding.pack { source = next_sample, seq_len = 4096 } do
---       model(chunk.input_ids, chunk.position_ids, chunk.seq_lens)
---     end
---
--- A sample holds input_ids, and optionally loss_mask (default: all), position_ids (default: from 0) and other values
--- per token, as arrays or tensors of one dimension. A chunk holds the same, concatenated, and seq_lens, the lengths of
--- its pieces. A sample that exceeds a chunk continues in the next.
---
--- Options: source, a function that returns the next sample or nil; seq_len; state. `drop_last = true`: drops the rest
--- at the end that fills no chunk, and counts it in `dropped_tokens`. `split = true`: false moves samples to the next
--- chunk whole, and drops the tokens of a sample beyond seq_len. `pad_token_id`: if given, short chunks are filled up
--- to seq_len, without loss.
---@param opts {source: (fun(): table?), seq_len: integer, drop_last: boolean?, split: boolean?, [string]: any}
---@return sharding.Packed
local function pack(opts)
  local o = options.read("sharding.pack", opts, {
    source = options.required, seq_len = options.required, drop_last = true, split = true,
    pad_token_id = options.optional, state = options.optional,
  })
  if type(o.source) ~= "function" and not (getmetatable(o.source) or {}).__call then
    core.raise("sharding.pack: the source must be a function that returns the next sample, not a " .. type(o.source))
  end
  local function new_packer() return core_sharding.packer(o.seq_len, o.split, o.drop_last) end
  local packed = setmetatable({
    source = o.source, seq_len = o.seq_len, pad_token_id = o.pad_token_id, new_packer = new_packer,
    packer = new_packer(), chunks = 0, drawn = 0, dropped_tokens = 0, dropped_before = 0, samples = {}, ready = {},
    ended = false, base = 0,
  }, Packed)
  if o.state then packed:load_state(o.state) end
  return packed
end

return pack
