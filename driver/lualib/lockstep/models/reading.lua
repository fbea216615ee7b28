--- Reads the batch of a model: checks its fields, and takes what this rank computes with, on the model's device.

local chunks = require "lockstep.nn.chunks"
local core = require "lockstep.core"
local fields = require "lockstep.models.fields"
local same_batch = require "lockstep.models.same_batch"
local sending = require "lockstep.models.sending"
local splits = require "lockstep.nn.splits"
local torch = require "lockstep.torch"

local M = {}

local function fail(message, ...) core.raise("models: " .. message:format(...)) end
local function check(holds, message, ...) if not holds then fail(message, ...) end end

--- Position ids that start at 0 in each sequence.
local function counting(seq_lens)
  local parts = {}
  for i, length in ipairs(seq_lens) do parts[i] = torch.arange(length) end
  return #parts == 1 and parts[1] or torch.cat(parts)
end

--- Returns the least and the largest id. Reads a few ids at once, as numbers of Lua; generation has few.
local function range(ids)
  if ids:numel() <= 32 then
    local list = ids:totable()
    return math.min(unpack(list)), math.max(unpack(list))
  end
  local least, largest = ids:aminmax()
  return least:item(), largest:item()
end

local function check_ids(self, ids)
  if not torch.is_tensor(ids) or ids:dim() ~= 1 or ids:is_floating_point() then
    fail("input_ids must be a tensor of whole numbers of shape [T], got %s",
      torch.is_tensor(ids) and tostring(ids.dtype) .. " " .. tostring(ids.shape) or "a " .. type(ids))
  end
  check(ids:numel() ~= 0, "input_ids holds no token")
  -- On a GPU and in a graph the embedding checks: to look here would wait for the device, and cannot be recorded.
  if ids.device ~= "cpu" or torch.cuda.is_current_stream_capturing() then return end
  local least, largest = range(ids)
  local size = self.settings.vocab_size
  if least < 0 or largest >= size then
    fail("input_ids holds the id %d, but vocab_size is %d", least < 0 and least or largest, size)
  end
end

--- Throws where a batch has parts of samples, and the model, or the way it is run, needs whole ones.
local function check_shares(self, batch)
  local advice = "; prepare the micro-batches without split"
  check(not self.has_states, "layers of a %s pass a state along the sequence, but the batch has shares of samples%s",
    self.class_name, advice)
  check(not self.needs_whole_sequences, "the attention of a %s needs whole sequences, but the batch has shares of "
    .. "samples%s", self.class_name, advice)
  check(not (self.rotary.long_frequencies or self.rotary.ntk), "the frequencies of this %s depend on the length of a "
    .. "sequence, but the batch has shares of samples%s", self.class_name, advice)
  check(not self.stage_input, "a pipeline (pp) takes whole samples, but the batch has shares of samples%s", advice)
  check(not chunks.current(), "a batch with shares of samples cannot also be cut into chunks (cp)%s", advice)
  check(torch.is_tensor(batch.position_ids), "a batch with shares of samples needs the position_ids and seq_lens that "
    .. "batching.prepare gave it")
end

--- Checks a batch, and returns its ids and position ids on the model's device, and its seq_lens.
---@param self models.CausalLM
---@param batch models.Batch
---@return torch.Tensor input_ids
---@return torch.Tensor position_ids
---@return integer[] seq_lens
function M.read(self, batch)
  check(type(batch) == "table", "a batch must be a table with input_ids, got a %s", type(batch))
  fields.check(batch)
  if not batch.continues then check_ids(self, batch.input_ids) end -- else generation has drawn them
  if batch.shares then check_shares(self, batch) end
  local tokens, device = batch.input_ids:size(0), self.stage_device or self:decoder().embed_tokens.weight.device
  local current = chunks.current()
  if current then
    check(not self.has_states or current.size == 1, "layers of a %s pass a state along the sequence, which chunks do "
      .. "not hand on; take whole sequences", self.class_name)
    splits.check_same_parts("sharding.context_parallel", self, current.group)
  end
  local is_whole = not current or current.table ~= nil
  local whole = is_whole and tokens or chunks.whole(current, tokens)
  local seq_lens, sum = batch.seq_lens or { whole }, 0
  if type(seq_lens) ~= "table" then
    fail("seq_lens must be an array of numbers, got a %s", torch.is_tensor(seq_lens) and "tensor" or type(seq_lens))
  end
  for i, length in ipairs(seq_lens) do
    if type(length) ~= "number" or not (length >= 0 and length % 1 == 0) then
      fail("seq_lens[%d] must be a whole number of at least 0, got %s", i,
        type(length) == "number" and tostring(length) or "a " .. type(length))
    end
    sum = sum + length
  end
  if sum ~= whole then
    local each = not is_whole and (" on each of %d ranks; within sharding.context_parallel they are the "
      .. "lengths of the whole sequence"):format(current.size) or ""
    fail("seq_lens add up to %s tokens, but input_ids holds %d%s", tostring(sum), tokens, each)
  end
  local positions = batch.position_ids
  if not positions then
    positions = counting(seq_lens)
    if not is_whole then positions = chunks.own(current, positions) end
  elseif not torch.is_tensor(positions) then
    fail("position_ids must be a tensor of shape [T], got a %s", type(positions))
  end
  check(positions:size(-1) == tokens,
    "position_ids have shape %s, but input_ids holds %d tokens", positions.shape, tokens)
  local owner = splits.owner_of(self)
  if owner then same_batch.check("sharding.tensor_parallel", owner.group, batch, fields.READ) end
  local ids = batch.input_ids
  if current and is_whole then
    same_batch.check("sharding.parallelize, cp", current.group, batch, fields.READ)
    ids, positions = chunks.own(current, ids), chunks.own(current, positions, positions:dim() - 1)
  elseif current then
    same_batch.check("sharding.context_parallel", current.group, batch, { "seq_lens" })
  end
  local sent = sending.send(batch, ids, positions, seq_lens, device)
  return sent.ids, sent.positions, seq_lens
end

return M
