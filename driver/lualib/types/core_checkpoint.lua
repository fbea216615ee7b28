---@meta lockstep.core.checkpoint
--- The library `checkpoint` for lockstep.checkpoint.
--- The program's side is driver/lua/bind/checkpoint/checkpoint.cc.

---@class lockstep.core.checkpoint
---@field defaults table<string, any> of the options of new, from checkpoint/region/checkpoint.h
---@field offload_defaults table<string, any> of those of offload, from checkpoint/offload/host_offload.h
local checkpoint = {}

---@class lockstep.core.checkpoint.Regions
local Regions = {}

--- fn(...), computed again in backward with copies of the tensors among the arguments. An error then, if a variable
--- that `given` has captured has changed.
---@param given fun(...): ... or a module: what the script gave, which fn calls, or fn itself
---@param fn fun(...): ...
---@param ... any
---@return any ...
function Regions:run(given, fn, ...) end

---@return checkpoint.Stats
function Regions:stats() end

---@class lockstep.core.checkpoint.Offload
local Offload = {}

--- fn(...), whose saved tensors wait in host memory.
---@param fn fun(...): ...
---@param ... any
---@return any ...
function Offload:save(fn, ...) end

--- Never copies the tensors.
---@param tensors torch.Tensor[]
function Offload:keep_on_device(tensors) end

---@return checkpoint.HostStats
function Offload:stats() end

---@class lockstep.core.checkpoint.Selection
local Selection = {}

--- Each overload that is kept.
---@return string[]
function Selection:operators() end

---@param options {preserve_rng: boolean?, early_stop: boolean?, check_metadata: boolean?}
---@param offload lockstep.core.checkpoint.Offload?
---@param policy lockstep.core.checkpoint.Selection?
---@return lockstep.core.checkpoint.Regions
function checkpoint.new(options, offload, policy) end

---@param options {keep_last: integer?, prefetch: integer?, min_bytes: integer?, max_host_bytes: integer?}
---@return lockstep.core.checkpoint.Offload
function checkpoint.offload(options) end

--- The operators of which results are kept.
---@param operators string[]
---@return lockstep.core.checkpoint.Selection
function checkpoint.selection(operators) end

return checkpoint
