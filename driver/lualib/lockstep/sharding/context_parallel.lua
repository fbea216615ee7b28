--- sharding.context_parallel: sequences that are too long for one rank, in chunks on several.

local chunks = require "lockstep.nn.chunks"
local members_of = require "lockstep.sharding.members"
local plain = require "lockstep.plain"

local M = {}

--- Calls fn(...), in which each rank of the group holds a chunk of the tokens: chunk i on the group's rank i, all of
--- one length. `nn.attention` inside sees the whole sequence, and its `seq_lens` are the lengths of the whole.
---
---     local own = { input_ids = ids:narrow(0, dist.rank() * 4096, 4096), seq_lens = seq_lens }
---     local sum, count = sharding.context_parallel(nil, function() return model:loss(own) end)
---
--- A model takes a chunk of `input_ids`, `loss_mask` and `position_ids`; without `position_ids` it counts from the
--- start of each sequence, also in later chunks. `loss` returns the sum and the count of the chunk, whose last label
--- is the first token of the next chunk. Backward gives each rank its part of the gradient of the sum of all ranks'
--- losses: add the parts up, as sharding.accumulate does. A recomputation of checkpoint sees the same chunks.
---
--- Attention exchanges heads for tokens where the ranks divide the query heads. Otherwise keys and values travel around
--- the ranks in a ring. sharding.parallelize chooses, and deals the tokens so that ranks have equal work.
---
--- Collective: every rank of `group` calls this, and attention inside it equally often.
---@param group dist.Group? default: all ranks
---@param fn fun(...): ... or a module
---@param ... any
---@return any ...
function M.context_parallel(group, fn, ...)
  local members = members_of("sharding.context_parallel", "the first argument", group)
  plain.check(plain.is_callable(fn), "sharding.context_parallel: fn must be a function or a module, not a %s", type(fn))
  chunks.refuse("sharding.context_parallel", "one call cannot be inside another")
  return chunks.with(members, fn, ...)
end

return M
