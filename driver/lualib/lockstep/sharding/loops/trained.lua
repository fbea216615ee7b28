--- Compares which parameters the ranks train. Ranks of a tp group hold parts of the same ones, and ranks of a stage
--- copies. Where one rank alone freezes a parameter, the others wait for its gradient, or train their part of it alone.

local across = require "lockstep.sharding.across"
local core = require "lockstep.core"
local dist = require "lockstep.distributed"

local M = {}

local PRIME = 2 ^ 31 - 1

--- Returns numbers for M.differ. The first differs, but by a chance of 1 in 2^31, where other parameters are trained.
--- The second is the part of the model that this rank holds. The third is 1 for a tied parameter that is frozen, 2 for
--- one that is trained, and else 0.
---@param model nn.Module|sharding.Pipeline|mimo.Separate|nil nil: nothing to compare
---@return integer outline
---@return integer part
---@return integer tied
function M.outline(model)
  if not model then return 0, 0, 0 end
  local sum = 7
  for _, p in ipairs(model:parameters()) do sum = (sum * 4099 + (p.requires_grad and 2 or 1)) % PRIME end
  if not across.is_one(model) then return sum, 0, 0 end -- the fields of a user's module are not of this kind
  local tied = model.tied
  return sum, model.part or 0, tied and (tied.requires_grad and 2 or 1) or 0
end

--- Returns whether ranks with the same part of a model train different parameters, or one rank alone a tied one.
---@param outlines integer[][] of each rank
---@return boolean
function M.differ(outlines)
  local of_part, of_tied = {}, nil
  for _, one in ipairs(outlines) do
    local outline, part, tied = unpack(one)
    if outline ~= (of_part[part] or outline) then return true end
    if tied > 0 and tied ~= (of_tied or tied) then return true end
    of_part[part], of_tied = outline, tied > 0 and tied or of_tied
  end
  return false
end

--- Raises on every rank with the first parameter that some ranks train and others do not. Collective, over the ranks of
--- `group`.
---@param caller string
---@param model nn.Module|sharding.Pipeline|mimo.Separate
---@param group dist.Group? nil: all ranks
function M.fail(caller, model, group)
  local own = {}
  for name, p in model:named_parameters() do own[#own + 1] = { name, p.requires_grad } end
  local names, frozen, trained = {}, {}, {}
  for i, list in ipairs(dist.all_gather_object(own, { group = group })) do
    local rank = group and group:ranks()[i] or i - 1
    for _, one in ipairs(list) do
      local name, is_trained = unpack(one)
      if not frozen[name] then names[#names + 1], frozen[name], trained[name] = name, {}, {} end
      table.insert((is_trained and trained or frozen)[name], rank)
    end
  end
  for _, name in ipairs(names) do
    if #frozen[name] > 0 and #trained[name] > 0 then
      core.raise(('%s: "%s" is frozen on rank %s, and trained on rank %s; call requires_grad_ alike on every rank')
        :format(caller, name, table.concat(frozen[name], ", "), table.concat(trained[name], ", ")))
    end
  end
  core.raise(caller .. ": the ranks train different parameters, and have different numbers of them")
end

return M
