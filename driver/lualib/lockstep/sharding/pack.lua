--- sharding.pack: samples one behind the other, in chunks of one length.

local core = require "lockstep.core"
local core_sharding = require "lockstep.core.sharding"
local masks = require "lockstep.losses.mask"
local options = require "lockstep.options"
local plain = require "lockstep.plain"
local torch = require "lockstep.torch"

--- A sample of the loader. Private to Packed.
---@class sharding.Drawn
---@field taken integer samples that the loader handed out before this one
---@field position integer in the loader's order
---@field cut integer tokens at its beginning that chunks before the resume had
---@field dropped integer tokens that were dropped before it
---@field skipped integer samples that the loader skipped before it

---@class sharding.Packed
---@field chunks integer handed out so far
---@field drawn integer samples taken from the source so far
---@field dropped_tokens integer
---@field private loader data.Loader? the source, where it is one: it can draw a sample again
---@field private at {number: integer, begin: integer} the first token that no chunk handed out has; samples from 1
---@field private drawn_at table<integer, sharding.Drawn> by number, from the first sample that is not in chunks whole
---@field private cuts table<integer, integer> tokens that chunks before the resume had, by the sample's position
---@operator call: table?
local Packed = {}
Packed.__index = Packed

--- Whether a source is a data.loader, which can draw its samples again.
local function is_loader(source)
  return type(source) == "table" and getmetatable(source) ~= nil and source.state_after ~= nil
end

local DTYPES = { input_ids = torch.int64, position_ids = torch.int64 }

--- An array as a tensor: bool of booleans, else float32 unless DTYPES has another dtype.
local function read_array(array, name, where)
  local is_ok, tensor = pcall(torch.tensor, array, { dtype = DTYPES[name] })
  if not is_ok then core.raise(where .. tostring(tensor):gsub("^.*torch%.tensor: ", "")) end
  -- Ids beyond 2^24 would become other ids.
  if tensor.dtype == torch.float32 and tensor:numel() > 0 and tensor:abs():max():item() >= 2 ^ 24 then
    local exact = torch.tensor(array, { dtype = torch.float64 })
    local rounded = exact[exact:eq(exact:floor()):logical_and(exact:ne(tensor:double()))]
    if rounded:numel() > 0 then
      core.raise(("%s%.0f would be rounded to float32; give a tensor of another dtype, as torch.tensor(array, {dtype = "
        .. "torch.int64})"):format(where, rounded[0]:item()))
    end
  end
  return tensor
end

--- A sample's per-token fields as tensors of one dimension.
local function read_sample(sample, number)
  local is_ids = torch.is_tensor(sample) or type(sample) == "table" and type(sample[1]) == "number"
  if is_ids then sample = { input_ids = sample } end
  plain.check(type(sample) == "table" and sample.input_ids ~= nil, "sharding.pack: sample %d has no input_ids", number)
  local fields = {}
  for name, value in pairs(sample) do
    if not torch.is_tensor(value) then
      plain.check(type(value) == "table", "sharding.pack: sample %d: %s is a %s; every field is an array or a tensor "
        .. "of one value per token", number, name, type(value))
      value = read_array(value, name, ("sharding.pack: sample %d: %s: "):format(number, name))
    elseif DTYPES[name] then
      if value:is_floating_point() or value.dtype == torch.bool then
        core.raise(("sharding.pack: sample %d: %s must be of an integer dtype, not %s"):format(number, name,
          tostring(value.dtype)))
      end
      value = value:to(DTYPES[name])
    end
    fields[name] = value
  end
  local length = fields.input_ids:size(0)
  fields.loss_mask = fields.loss_mask or torch.ones({ length }, { dtype = torch.bool })
  fields.position_ids = fields.position_ids or torch.arange(length)
  for name, value in pairs(fields) do
    plain.check(value:dim() == 1 and value:size(0) == length,
      "sharding.pack: sample %d: %s has shape %s, but input_ids has %d tokens", number, name, value.shape, length)
  end
  fields.loss_mask = masks.left_out(fields.loss_mask, ("sharding.pack: sample %d: loss_mask"):format(number))
    :logical_not()
  return fields
end

local function same_fields(first, fields, number)
  for _, pair in ipairs { { first, fields }, { fields, first } } do
    for name in pairs(pair[1]) do
      plain.check(pair[2][name] ~= nil, "sharding.pack: sample %d and those before it do not have the same fields: %s "
        .. "is in one of them alone", number, name)
    end
  end
  for name, value in pairs(fields) do
    plain.check(value.dtype == first[name].dtype,
      "sharding.pack: sample %d: %s is %s, but %s in the samples before", number, name, value.dtype, first[name].dtype)
  end
end

--- Copies the pieces of a chunk behind one another; forgets samples that are done.
---@private
---@param pieces integer[] {sample, begin, end, ...}
---@return table chunk
---@return {number: integer, begin: integer} behind the chunk
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
  local last, to = pieces[#pieces - 2], pieces[#pieces]
  -- Without split the rest of a sample is dropped.
  local is_done = not self.split or to == self.samples[last].input_ids:size(0)
  for number in pairs(self.samples) do
    if number < last then self.samples[number] = nil end
  end
  return chunk, { number = is_done and last + 1 or last, begin = is_done and 0 or to }
end

--- Notes where a sample of the loader comes from. Returns it without the tokens that chunks before the resume had.
---@private
---@param number integer
---@param fields table<string, torch.Tensor>
---@return table<string, torch.Tensor>
function Packed:note(number, fields)
  local position = self.loader:last_position()
  local cut, length = self.cuts[position] or 0, fields.input_ids:size(0)
  self.drawn_at[number] = { taken = self.loader.taken - 1, position = position, cut = cut,
    dropped = self.packer:dropped_tokens(), skipped = self.loader.skipped }
  if cut == 0 then return fields end
  if cut > length then
    core.raise(("sharding.pack: sample %d: it has %d tokens, and when the state was saved it had at least %d; resume "
      .. "with the data and the map that saved it"):format(self.drawn, length, cut))
  end
  local rest = {}
  for name, value in pairs(fields) do rest[name] = value:narrow(0, cut, length - cut) end
  return rest
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
      local number = self.drawn - self.base
      if self.loader then fields = self:note(number, fields) end
      self.samples[number] = fields
      chunks = self.packer:add(fields.input_ids:size(0))
    end
    for _, pieces in ipairs(chunks) do
      self.ready[#self.ready + 1], self.ends[#self.ends + 1] = self:build(pieces)
    end
    self.dropped_tokens = self.dropped_before + self.packer:dropped_tokens()
  end
  local chunk = table.remove(self.ready, 1)
  if not chunk then return nil end
  self.chunks, self.at = self.chunks + 1, table.remove(self.ends, 1)
  for number in pairs(self.drawn_at) do
    if number < self.at.number then self.drawn_at[number] = nil end
  end
  return chunk
end

-- State -----------------------------------------------------------------------------------------------

--- Returns the place of this rank's chunks: the samples that are in them whole, the position of the next sample, and
--- the number of its tokens that are in them.
---@private
---@return {taken: integer, position: integer?, cut: integer, drawn: integer, chunks: integer, dropped_tokens: integer,
--- skipped: integer}
function Packed:place()
  local next_one = self.drawn_at[self.at.number]
  if not next_one then
    return { taken = self.loader.taken, cut = 0, drawn = self.drawn, chunks = self.chunks,
      dropped_tokens = self.dropped_tokens, skipped = self.loader.skipped }
  end
  return {
    taken = next_one.taken, position = next_one.position, cut = next_one.cut + self.at.begin,
    drawn = self.base + self.at.number - 1, chunks = self.chunks,
    dropped_tokens = self.dropped_before + next_one.dropped, skipped = next_one.skipped,
  }
end

--- Returns the state over a loader. Collective, unless the loader is alone.
---@private
---@return table
function Packed:positions()
  local places, taken, skipped, cuts, ranks = self.loader:of_ranks(self:place()), {}, {}, {}, {}
  for i, place in ipairs(places) do taken[i], skipped[i] = place.taken, place.skipped end
  local state, is_done = self.loader:state_after(taken, self.loader.on_error == "skip" and skipped or nil), {}
  for _, position in ipairs(state.done) do is_done[position] = true end
  -- Samples with a cut that no rank has drawn again keep it.
  for position, cut in pairs(self.cuts) do
    if position >= state.position and not is_done[position] then cuts[position] = cut end
  end
  for i, place in ipairs(places) do
    if place.cut > 0 then cuts[place.position] = place.cut end
    ranks[i] = { drawn = place.drawn, chunks = place.chunks, dropped_tokens = place.dropped_tokens }
  end
  local list = {}
  for position, cut in pairs(cuts) do list[#list + 1] = { position = position, tokens = cut } end
  table.sort(list, function(a, b) return a.position < b.position end)
  return { loader = state, cuts = list, ranks = ranks }
end

--- Returns the state for sharding.pack{state = ...} and run:state, in the middle of a sample too.
---
--- If the source is a data.loader, the state is positions in its order: any number of ranks can go on from it, and draw
--- again what waited for a chunk. It holds the loader's state. It is alike on all ranks, which tell each other where
--- they are: a collective, unless the loader has world = 1.
---
--- Otherwise it holds this rank's tokens that wait for their chunk, and only as many ranks can go on. The source must
--- continue after `state.drawn` samples.
---@return table
function Packed:state()
  if self.loader then return self:positions() end
  return {
    drawn = self.drawn, chunks = self.chunks, dropped_tokens = self.dropped_tokens, ended = self.ended,
    ready = plain.copy(self.ready), waiting = self:waiting(),
  }
end

--- Forgets all samples and chunks.
---@private
function Packed:clear()
  self.packer, self.samples, self.first = self.new_packer(), {}, nil
  self.ready, self.ends, self.ended = {}, {}, false
  self.drawn_at, self.cuts, self.at = {}, {}, { number = 1, begin = 0 }
end

--- Goes on from a state over a loader.
---@private
---@param state table
function Packed:load_positions(state)
  local loader = self.loader
  loader:load_state_dict(state.loader)
  self:clear()
  local place = state.ranks[loader.rank + 1]
  local is_same_world = #state.ranks == loader.world
  for _, cut in ipairs(state.cuts) do
    -- Other ranks pad with other samples.
    if is_same_world or cut.position < loader.total then self.cuts[cut.position] = cut.tokens end
  end
  if not is_same_world then
    -- Rank 0 goes on with the sums, so that the counts of all ranks together are right.
    place = { drawn = 0, chunks = 0, dropped_tokens = 0 }
    for _, theirs in ipairs(loader.rank == 0 and state.ranks or {}) do
      for key, count in pairs(theirs) do place[key] = place[key] + count end
    end
  end
  self.drawn, self.base, self.chunks = place.drawn, place.drawn, place.chunks
  self.dropped_tokens, self.dropped_before = place.dropped_tokens, place.dropped_tokens
end

--- Continues from a result of pack:state(), as sharding.pack{state = ...} does. A source that is no data.loader must
--- continue after `state.drawn` samples: also restore the dataset that it reads.
---@param state table
function Packed:load_state(state)
  local keys = self.loader and { "loader", "cuts", "ranks" }
    or { "drawn", "chunks", "dropped_tokens", "ended", "ready", "waiting" }
  for _, key in ipairs(keys) do
    plain.check(type(state) == "table" and state[key] ~= nil,
      "sharding.pack: this is not a state of pack%s: it lacks %s", self.loader and " over a data.loader" or "", key)
  end
  if self.loader then
    self:load_positions(state)
    return
  end
  self:clear()
  self.drawn, self.chunks, self.ended = state.drawn, state.chunks, state.ended
  self.dropped_tokens, self.dropped_before = state.dropped_tokens, state.dropped_tokens
  self.ready = plain.copy(state.ready)
  -- Waiting samples get their numbers before later ones.
  for i, fields in ipairs(state.waiting) do
    self.samples[i], self.first = fields, fields
    self.packer:add(fields.input_ids:size(0))
  end
  self.base = state.drawn - #state.waiting
end

--- The tokens that no chunk has had, as samples.
---@private
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
--- per token, as arrays or tensors of one dimension. It may also be the ids alone, as tok:encode returns them. Ids and
--- positions become int64, other arrays of numbers float32.
--- A chunk holds the same, concatenated, and seq_lens, the lengths of its pieces. A sample that exceeds a chunk
--- continues in the next.
---
--- Options: source, a function that returns the next sample or nil, or a data.loader (then any number of ranks can go
--- on from a state); seq_len; state. `drop_last = true`: drops the rest at the end that fills no chunk, and counts it
--- in `dropped_tokens`. `split = true`: false moves samples to the next chunk whole, and drops the tokens of a sample
--- beyond seq_len. `pad_token_id`: if given, short chunks are filled up to seq_len, without loss.
---@param opts {source: (fun(): table?)|data.Loader, seq_len: integer, drop_last: boolean?, [string]: any}
---@return sharding.Packed
local function pack(opts)
  local o = options.read("sharding.pack", opts, {
    source = options.required, seq_len = options.required, drop_last = true, split = true,
    pad_token_id = options.optional, state = options.optional,
  })
  plain.check(plain.is_callable(o.source),
    "sharding.pack: the source must be a function that returns the next sample, not a %s", type(o.source))
  local id = o.pad_token_id
  plain.check(id == nil or plain.is_whole(id, 0) and id < 2 ^ 53,
    "sharding.pack: pad_token_id must be a whole number of at least 0, not %s", plain.shown(id, "number"))
  local function new_packer() return core_sharding.packer(o.seq_len, o.split, o.drop_last) end
  local packed = setmetatable({
    source = o.source, seq_len = o.seq_len, pad_token_id = o.pad_token_id, new_packer = new_packer,
    split = o.split, loader = is_loader(o.source) and o.source or nil, chunks = 0, drawn = 0, base = 0,
    dropped_tokens = 0, dropped_before = 0,
  }, Packed)
  packed:clear()
  if packed.loader then packed.loader.reader = "sharding.pack" end
  if o.state then packed:load_state(o.state) end
  return packed
end

return pack
