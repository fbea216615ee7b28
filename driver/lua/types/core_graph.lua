---@meta lockstep.core.graph
--- CUDA graphs for lockstep/graph.lua. The program's side is driver/lua/torch/cuda.cc.

---@class lockstep.core.graph
local graph = {}

---@class lockstep.core.graph.Graph
local Graph = {}

--- Records what fn(...) gives the current stream, which must not be the device's default one, and returns its results.
---@param fn function
---@param ... any
---@return any ...
function Graph:record(fn, ...) end

--- Launches what was recorded, on the current stream.
function Graph:replay() end

--- An empty graph. An error where there is no GPU.
---@return lockstep.core.graph.Graph
function graph.new() end

--- fn(...), where what cannot be recorded is an error, as in a recording: for a device that has no graphs.
---@param fn function
---@param ... any
---@return any ...
function graph.as_recorded(fn, ...) end

return graph
