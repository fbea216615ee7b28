--- batching.verify: what would hang the ranks, or train on padding.

local core = require "lockstep.core"
local plain = require "lockstep.plain"
local torch = require "lockstep.torch"

local M = {}

--- Raises an error unless these are lists of micro-batches. `name` is the function that was called with them.
---@param name string
---@param batches any
function M.check_batches(name, batches)
  plain.check(type(batches) == "table" and type(batches[1]) == "table",
    "%s: expected a list of micro-batches for each rank, as batching.prepare returns", name)
  for index, list in ipairs(batches) do
    plain.check(type(list) == "table",
      "%s: rank %d has a %s in place of a list of micro-batches", name, index - 1, type(list))
    plain.check(list.kind == nil, "%s: expected the lists of all ranks, got one rank's list of micro-batches", name)
    for step, batch in ipairs(list) do
      plain.check(type(batch) == "table" and type(batch.kind) == "string",
        "%s: what rank %d has at micro-step %d is no micro-batch of batching.prepare", name, index - 1, step - 1)
    end
  end
end

--- Returns the values of a micro-batch's padding tokens.
local function of_padding(values, batch)
  if batch.padding then return values end
  local count = batch.padding_tokens or 0
  return values:narrow(0, values:size(0) - count, count)
end

local function check_padding(where, batch)
  if torch.is_tensor(batch.loss_mask) and of_padding(batch.loss_mask, batch):any():item() then
    core.raise(where .. " has padding with loss tokens")
  end
  for name, value in pairs(batch.padding_values or {}) do
    local number = value == true and 1 or value or 0
    local function differs(values) return number == number and values:ne(number) or values:isnan():logical_not() end
    if torch.is_tensor(batch[name]) and differs(of_padding(batch[name], batch)):any():item() then
      core.raise(('%s has padding whose "%s" is not %s everywhere: a loss that reads it trains on padding'):format(
        where, name, tostring(value)))
    end
  end
end

---@param batches batching.MicroBatch[][] of all ranks
function M.verify(batches)
  M.check_batches("batching.verify", batches)
  local function tensors_of(batch)
    return table.concat(plain.keys(batch, function(_, value) return torch.is_tensor(value) end), ", ")
  end
  for index, list in ipairs(batches) do
    local rank = index - 1
    plain.check(#list == #batches[1],
      "batching.verify: rank %d has %d micro-batches, rank 0 has %d", rank, #list, #batches[1])
    for step, batch in ipairs(list) do
      local first = batches[1][step]
      local where = string.format("batching.verify: at micro-step %d rank %d", step - 1, rank)
      plain.check(batch.kind == first.kind,
        '%s has a micro-batch of kind "%s", rank 0 one of kind "%s"', where, batch.kind, first.kind)
      if tensors_of(batch) ~= tensors_of(first) then
        core.raise(string.format("%s has the tensors %s, rank 0 %s", where, tensors_of(batch), tensors_of(first)))
      end
      check_padding(where, batch)
    end
  end
end

return M
