--- Models whose parts are on different ranks: a pipeline's stages, or a tower with ranks of its own. A rank runs its
--- part of a micro-batch when other ranks' parts are ready, so sharding.accumulate and sharding.evaluate give such a
--- model all micro-batches of a step at once.
---
--- Such a model has these fields. `what`: a name for messages. `is_counted`: whether this rank's loss counts in sums
--- over all ranks. `part`: a number, the same on all ranks that hold parts or copies of the same parameters. `tied`:
--- this rank's copy of a parameter that another part has, too, or nil. learn(micro_batches, count, fn, take) and
--- measure(micro_batch, fn): see pipeline.lua.

local M = {}

local classes = {} ---@type table<table, true>

--- Adds a class of such models.
---@param class table their metatable
function M.add(class) classes[class] = true end

--- Returns whether this is such a model.
---@param value any
---@return boolean
function M.is_one(value) return type(value) == "table" and classes[getmetatable(value)] ~= nil end

return M
