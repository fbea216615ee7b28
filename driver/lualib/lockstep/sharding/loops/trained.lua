--- Which parameters a rank trains. Ranks of a tp group hold parts of the same ones: where one rank alone freezes a
--- parameter, the others wait for its gradient, or train their part of it alone.

local core = require "lockstep.core"
local dist = require "lockstep.distributed"

local M = {}

local PRIME = 2 ^ 31 - 1

--- Returns a number that differs, but by a chance of 1 in 2^31, where other parameters of the model are trained.
---@param model nn.Module
---@return integer
function M.outline(model)
  local sum = 7
  for _, p in ipairs(model:parameters()) do sum = (sum * 4099 + (p.requires_grad and 2 or 1)) % PRIME end
  return sum
end

--- Raises on every rank with the first parameter that some ranks train and others do not. Collective, over the ranks of
--- `group`.
---@param caller string
---@param model nn.Module
---@param group dist.Group? nil: all ranks
function M.fail(caller, model, group)
  local names, marks = {}, {}
  for name, p in model:named_parameters() do
    names[#names + 1], marks[#marks + 1] = name, p.requires_grad and "1" or "0"
  end
  local all = dist.all_gather_object(table.concat(marks), { group = group })
  for i, name in ipairs(names) do
    local frozen, trained = {}, {}
    for r, text in ipairs(all) do
      local rank = group and group:ranks()[r] or r - 1
      table.insert(text:sub(i, i) == "0" and frozen or trained, rank)
    end
    if #frozen > 0 and #trained > 0 then
      local ranks, others = table.concat(frozen, ", "), table.concat(trained, ", ")
      core.raise(('%s: "%s" is frozen on rank %s, and trained on rank %s; call requires_grad_ alike on every rank')
        :format(caller, name, ranks, others))
    end
  end
  core.raise(caller .. ": the ranks train different parameters, and have different numbers of them")
end

return M
