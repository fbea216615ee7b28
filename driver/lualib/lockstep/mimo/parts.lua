--- Notes that ranks hold different modules, for the norm of their gradients and for saved states.

local spread = require "lockstep.nn.spread"
local stage_parameters = require "lockstep.sharding.pipeline.parameters"

local M = {}

--- Notes that some ranks hold a module and others do not. Then optim.clip_grad_norm clips by the norm over all modules
--- of the run, and run:state saves each module once, under names that do not tell on how many ranks it was.
---@param module any plain, or of sharding.fully_shard
---@param num_ranks integer that hold it, or shards of it
---@param tied torch.Tensor? of a pipeline, whose first and last stage hold it
function M.note(module, num_ranks, tied)
  for _, p in ipairs(module:parameters()) do
    if not stage_parameters.of(p) then stage_parameters.note(p, { is_copy = false }) end -- a pipeline has noted its own
    spread.note_stage(p, nil, rawequal(p, tied) and 2 * num_ranks or num_ranks)
  end
  for _, buffer in module:named_buffers() do stage_parameters.note(buffer, { is_copy = false }) end
end

return M
