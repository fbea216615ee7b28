--- Finds prompts that are the same, such as those of a group of samples, so that each is computed once.

local torch = require "lockstep.torch"

local M = {}

local function equal(a, b)
  for _, pair in ipairs { { a, b }, { b, a } } do
    for key, value in pairs(pair[1]) do
      local other = pair[2][key]
      if torch.is_tensor(value) and not rawequal(value, other) then
        if not torch.is_tensor(other) or value.dtype ~= other.dtype or value.device ~= other.device
            or not torch.equal(value, other) then
          return false
        end
      end
    end
  end
  return true
end

--- Returns for each prompt the number of the first one whose tensors are the same.
---@param samples models.Batch[]
---@return integer[]
function M.leaders(samples)
  local leaders, by_ids = {}, {}
  for i, sample in ipairs(samples) do
    local key = table.concat(sample.input_ids:totable(), " ")
    by_ids[key] = by_ids[key] or {}
    for _, other in ipairs(by_ids[key]) do
      if equal(sample, samples[other]) then
        leaders[i] = other
        break
      end
    end
    if not leaders[i] then
      leaders[i] = i
      table.insert(by_ids[key], i)
    end
  end
  return leaders
end

return M
