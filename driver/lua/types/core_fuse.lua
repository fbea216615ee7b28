---@meta lockstep.core.fuse
--- Fused functions for lockstep/fuse.lua. The program's side is driver/lua/bind/kernels/fuse.cc.

---@class lockstep.core.fuse
local fuse = {}

---@class lockstep.core.fuse.Recordings
local Recordings = {}

--- Returns fn's results by the recording for arguments of these dtypes, which the first such call makes.
---@param fn function the same one in all calls
---@param ... torch.Tensor|number
---@return torch.Tensor ...
function Recordings:call(fn, ...) end

--- Returns the number of recordings.
---@return integer
function Recordings:size() end

--- No recordings yet, of one function.
---@return lockstep.core.fuse.Recordings
function fuse.new() end

return fuse
