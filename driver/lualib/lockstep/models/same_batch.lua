--- Compares a batch over the ranks that compute it together. Where they hold parts of the weights
--- (sharding.tensor_parallel), another batch of the same size would give wrong numbers and no error. Where they hold
--- chunks of the tokens (sharding.context_parallel), so would other lengths of the sequences; the chunks differ anyway.

local core_sharding = require "lockstep.core.sharding"
local plain = require "lockstep.plain"
local torch = require "lockstep.torch"

local M = {}

local BITS = { torch.uint8, torch.int16, [4] = torch.int32, [8] = torch.int64 }

--- The largest number of elements of pictures that are compared, evenly spaced: two pictures differ in more than one.
local MAX_COMPARED = 65536

local function text_of_fields(element)
  local texts = {}
  for i, key in ipairs(plain.keys(element)) do texts[i] = key .. " " .. tostring(element[key]) end
  return table.concat(texts, ", ")
end

--- Describes a value: dtype, shape, the first elements and a hash of all. A tensor on a GPU is described by its shape
--- alone, because reading it would wait for the device.
local function text_of(value)
  if not torch.is_tensor(value) then
    if type(value) ~= "table" then return tostring(value) end
    local texts = {}
    for i, element in ipairs(value) do
      texts[i] = type(element) == "table" and text_of_fields(element) or tostring(element)
    end
    return table.concat(texts, " ")
  end
  local text = ("%s %s"):format(tostring(value.dtype), tostring(value.shape))
  local count = value:numel()
  if value.device ~= "cpu" or count == 0 then return text end
  local step = value:dim() > 1 and math.ceil(count / MAX_COMPARED) or 1
  local flat = value:detach():reshape({ -1 }):slice(0, nil, nil, step)
  local first = {}
  for i, element in ipairs(flat:narrow(0, 0, math.min(flat:numel(), 8)):totable()) do first[i] = tostring(element) end
  -- Whole numbers of 64 bits wrap around, so the sum does not depend on its order. The cube makes changes of several
  -- elements differ. The remainder is exact as a number of Lua.
  local bits = flat:contiguous():view(BITS[value:element_size()]):to(torch.int64)
  bits = torch.bitwise_xor(bits, torch.bitwise_right_shift(bits, 32)) -- a whole number as float64 has low bits of 0
  local mixed = bits + torch.arange(1, bits:numel() + 1) * 0x9e3779b1
  local hash = (mixed * mixed * mixed):sum():remainder(2 ^ 52 - 47):item()
  return ("%s, %s%s, hash %.17g"):format(text, table.concat(first, " "), count > #first and " ..." or "", hash)
end

--- Returns a text that differs for different batches: the fields, and a hash of each.
---@param batch table<string, any>
---@param fields string[]
---@return string
function M.text_of(batch, fields)
  local parts = {}
  for _, name in ipairs(fields) do
    if batch[name] ~= nil then parts[#parts + 1] = name .. ": " .. text_of(batch[name]) end
  end
  return table.concat(parts, "; ")
end

local ALL = {}

--- The guard of each group.
local guards = setmetatable({}, { __mode = "k" })

--- Raises on every rank of the group, with each rank's values, unless all of them give the same. Collective.
---@param caller string
---@param group dist.Group? nil: all ranks
---@param batch table<string, any>
---@param fields string[] that are compared
function M.check(caller, group, batch, fields)
  if torch.cuda.is_current_stream_capturing() then return end
  local key = group or ALL
  guards[key] = guards[key] or core_sharding.guard { group = group }
  guards[key]:check(caller .. ", the batch", M.text_of(batch, fields))
end

return M
