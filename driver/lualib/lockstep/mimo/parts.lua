--- Notes that ranks hold different modules, for the norm of their gradients and for saved states.

local spread = require "lockstep.nn.spread"
local stage_parameters = require "lockstep.sharding.pipeline.parameters"

local M = {}

--- Notes that some ranks hold a module and others do not. Then optim.clip_grad_norm clips by the norm over all modules
--- of the run, and run:state saves each module once, under names that do not tell on how many ranks it was.
---@param module any plain, or of sharding.fully_shard
---@param num_ranks integer that hold it, or shards of it
function M.note(module, num_ranks)
  for _, p in ipairs(module:parameters()) do
    stage_parameters.note(p, { is_copy = false })
    spread.note_stage(p, nil, num_ranks)
  end
  for _, buffer in module:named_buffers() do stage_parameters.note(buffer, { is_copy = false }) end
end

return M
