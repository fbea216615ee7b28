--- Compares tensors that all ranks hold alike before one of the copies is written.

local agreement = require "lockstep.state.agreement"
local core_state = require "lockstep.core.state"
local data_parallel = require "lockstep.sharding.data_parallel"
local dist = require "lockstep.distributed"
local plain = require "lockstep.plain"
local torch = require "lockstep.torch"

local M = {}

local CHECKSUM_BYTES = 8
local WORDS_AT_ONCE = 2 ^ 20

--- Returns the sum of 64-bit integers with odd weights by their places. A plain sum misses numbers that change by
--- opposite amounts, as a bias of both signs does to which a constant is added.
local function weighted_sum(words)
  local total = torch.zeros({}, { dtype = torch.int64, device = words.device })
  if words:numel() == 0 then return total end
  local weights = torch.arange(1, 2 * math.min(words:numel(), WORDS_AT_ONCE), 2,
    { dtype = torch.int64, device = words.device })
  for i, part in ipairs(words:split(WORDS_AT_ONCE)) do
    total = total + (part * weights[{ { 0, part:numel() } }]):sum() * (2 * i + 1)
  end
  return total
end

--- Returns a sum of a tensor's bits as 64-bit integers, on its device. It runs at the memory's speed.
---@param tensor torch.Tensor
---@return torch.Tensor
function M.sum_of_bits(tensor)
  local flat = tensor:detach():contiguous()
  if flat.device == "cpu" then return core_state.sum_of_bits(flat):to(dist.device()) end
  return M.sum_by_operators(flat):to(dist.device())
end

--- The same by operators, which a GPU has.
---@param flat torch.Tensor contiguous
---@return torch.Tensor
function M.sum_by_operators(flat)
  flat = flat:as_strided({ flat:numel() }, { 1 }) -- a single element may have any stride
  local bytes = flat:view(torch.uint8)
  local in_words = bytes:numel() - bytes:numel() % CHECKSUM_BYTES
  local ok, words = pcall(function() return bytes[{ { 0, in_words } }]:view(torch.int64) end)
  if not ok then words = bytes[{ { 0, in_words } }]:clone():view(torch.int64) end -- it began within a word
  -- A sum of the last bytes would miss two that change by opposite amounts.
  local last = torch.zeros({ CHECKSUM_BYTES }, { dtype = torch.uint8, device = bytes.device })
  last[{ { 0, bytes:numel() - in_words } }]:copy_(bytes[{ { in_words, bytes:numel() } }])
  return weighted_sum(words) + last:view(torch.int64):sum() * 2654435761
end

--- Returns eight bytes for each tensor, which differ for different values. Waits for the device once.
---@param tensors torch.Tensor[]
---@return string
local function checksums_of(tensors)
  if #tensors == 0 then return "" end
  return torch.no_grad(function()
    local sums = {}
    for i, tensor in ipairs(tensors) do sums[i] = M.sum_of_bits(tensor) end
    return core_state.tensor_to_bytes(torch.stack(sums):view(torch.uint8))
  end)
end

--- Returns the first tensor whose eight bytes are not the same on all ranks, and a rank with others than rank 0's; or
--- nothing. All ranks have equally many. Collective.
---@param checksums string
---@return integer? index
---@return integer? rank
function M.difference_of(checksums)
  local texts = agreement.texts(checksums)
  local first, at
  for rank = 2, #texts do
    for i = 1, #checksums / CHECKSUM_BYTES do
      local from, to = (i - 1) * CHECKSUM_BYTES + 1, i * CHECKSUM_BYTES
      local differs = texts[rank]:sub(from, to) ~= texts[1]:sub(from, to)
      if differs and i < (first or math.huge) then first, at = i, rank - 1 end
    end
  end
  return first, at
end

--- Returns the first tensor that is not the same on all ranks, and a rank that holds other values than rank 0; or
--- nothing. All ranks have equally many. Collective.
---@param tensors torch.Tensor[]
---@return integer? index
---@return integer? rank
function M.difference(tensors)
  if dist.world_size() == 1 then return end
  return M.difference_of(checksums_of(tensors))
end

--- Raises, on every rank, if replicas of sharding.data_parallel over all ranks have drifted apart. Collective.
---@param caller string
---@param module any the module, or its replicas
function M.check(caller, module)
  if data_parallel.is_one(module) then module = module.module end
  if not data_parallel.is_on_all_ranks(module) then return end
  local names, tensors = {}, {}
  for name, tensor in module:named_parameters() do names[#names + 1], tensors[#tensors + 1] = name, tensor end
  local index, rank = M.difference(tensors)
  plain.check(not index, '%s: the replicas have drifted apart: "%s" holds other values on rank %d than on rank 0, '
    .. "which would be written; every rank makes the same updates, with the same learning rate", caller, names[index],
    rank)
end

return M
