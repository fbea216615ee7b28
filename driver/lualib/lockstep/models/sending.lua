--- The whole numbers of a micro-batch on their way to the model's device: ids, positions, labels and lengths in one
--- copy out of page-locked memory.
---
--- A copy of its own for each of them, from ordinary memory, holds up the program until the device has done all work
--- that it was given before. The program then gives it no more work meanwhile.

local attention = require "lockstep.nn.attention"
local chunks = require "lockstep.nn.chunks"
local core_graph = require "lockstep.core.graph"
local plain = require "lockstep.plain"
local torch = require "lockstep.torch"

local M = {}

--- The calls of a device, which a test replaces.
M.engine = {
  --- Returns whether tensors have to be sent to a device.
  is_away = function(device) return device ~= "cpu" end,
  --- Gives the device a copy of x, and does not wait for it.
  copy = function(x, device) return x:pin_memory():to(device, { non_blocking = true }) end,
}

local IS_WHOLE = { [torch.int64] = true, [torch.int32] = true, [torch.bool] = true }

--- Returns tensors on a device, by their names. Those of whole numbers that are on the CPU share a copy, and come as
--- int64.
---@param tensors table<string, torch.Tensor>
---@param device string
---@return table<string, torch.Tensor>
function M.together(tensors, device)
  local sent, names, parts = {}, {}, {}
  for _, name in ipairs(plain.keys(tensors)) do
    local x = tensors[name]
    if M.engine.is_away(device) and x.device == "cpu" and IS_WHOLE[x.dtype] then
      names[#names + 1], parts[#parts + 1] = name, x:reshape(-1):to(torch.int64)
    else
      sent[name] = x:to(device)
    end
  end
  if #names == 0 then return sent end
  local all, from = M.engine.copy(torch.cat(parts), device), 0
  for i, name in ipairs(names) do
    local count = parts[i]:size(0)
    sent[name] = all:narrow(0, from, count):view(tensors[name].shape)
    from = from + count
  end
  return sent
end

---@type {batch: models.Batch, more: (fun(): table<string, torch.Tensor>), sent: table<string, torch.Tensor>?}?
local current

--- Calls fn(), in which a model reads `batch`. The tensors of more() travel with the batch. It is called once the
--- batch has been checked. Returns the tensors that were sent, by name, and fn's results. fn may read no batch: then
--- there are no tensors.
---@param batch models.Batch
---@param more fun(): table<string, torch.Tensor>
---@param fn fun(): ...
---@return table<string, torch.Tensor>
---@return any ...
function M.with(batch, more, fn)
  local outer, own = current, { batch = batch, more = more }
  current = own
  local function finish(...) return own.sent or {}, ... end
  return finish(plain.finally(function() current = outer end, fn))
end

--- Returns whole numbers as a tensor that travels with the others. A recording has them as numbers of its own, made on
--- the device: a graph is of these lengths, and would copy again from memory that others use by then.
local function whole_numbers(values, device)
  if not core_graph.is_recording() then return torch.tensor(values, { dtype = torch.int64 }) end
  local parts = {}
  for i, value in ipairs(values) do parts[i] = torch.full({ 1 }, value, { dtype = torch.int64, device = device }) end
  return torch.cat(parts)
end

--- Sends a batch that has been checked to a device. FlashAttention finds the lengths there.
---@param batch models.Batch
---@param ids torch.Tensor
---@param positions torch.Tensor
---@param seq_lens integer[]
---@param device string
---@return table<string, torch.Tensor> # ids and positions, and what travels with the batch
function M.send(batch, ids, positions, seq_lens, device)
  local own = current and rawequal(current.batch, batch) and current or nil
  local tensors = own and own.more() or {}
  tensors.ids, tensors.positions = ids, positions
  local sums, longest
  if M.engine.is_away(device) and not batch.continues and not chunks.current() then
    sums, longest = attention.cumulate(seq_lens)
    tensors.sums = whole_numbers(sums, device)
  end
  local sent = M.together(tensors, device)
  if sums then attention.keep_lengths(seq_lens, device, sent.sums:to(torch.int32), longest) end
  if own then own.sent = sent end
  return sent
end

return M
