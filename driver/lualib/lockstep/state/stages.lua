--- Tensors of a state that only some ranks have: those of a stage of a pipeline.
---
--- Each is written by the first rank that has it, under the name that a whole model gives it. So a state does not tell
--- how many stages wrote it, and any number of them can resume from it.

local agreement = require "lockstep.state.agreement"
local torch = require "lockstep.torch"

local M = {}

local function dtype_name(tensor) return tostring(tensor.dtype):match "[%w_]+$" end

--- Returns the tensors of all ranks, in the order of their names: this rank's own, and outlines of the others. A copy
--- of a tied embedding is left out. Does nothing without stages. Collective.
---@param tensors state.Tensor[]
---@return state.Tensor[]
function M.complete(tensors)
  local own, listed, has_stages = {}, {}, false
  for _, one in ipairs(tensors) do
    has_stages = has_stages or one.stage ~= nil
    if not (one.stage and one.stage.is_copy) then own[#own + 1] = one end
    if one.stage and not one.stage.is_copy then
      listed[#listed + 1] = { name = one.name, dtype = dtype_name(one.tensor), shape = { unpack(one.tensor.shape) },
        is_model = one.is_model, object = one.object, field = one.field }
    end
  end
  if not has_stages then return tensors end
  local holders, known = {}, {}
  for _, one in ipairs(own) do known[one.name] = one end
  for rank, theirs in ipairs(agreement.values(listed)) do
    for _, one in ipairs(theirs) do
      holders[one.name] = holders[one.name] or rank - 1
      if not known[one.name] then
        known[one.name] = { name = one.name, is_model = one.is_model, object = one.object, field = one.field,
          tensor = torch.empty(one.shape, { dtype = torch[one.dtype], device = "meta" }) }
        own[#own + 1] = known[one.name]
      end
    end
  end
  for _, one in ipairs(own) do one.holder = holders[one.name] end
  table.sort(own, function(a, b) return a.name < b.name end)
  return own
end

return M
