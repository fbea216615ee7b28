---@meta lockstep.core.graph
--- Recorded steps for lockstep/graph.lua. The program's side is driver/lua/tensor/graph.cc.

---@class lockstep.core.graph
local graph = {}

---@class lockstep.core.graph.Graph
local Graph = {}

--- Records what fn(...) gives the current stream, which must not be the device's default one. Returns why CUDA could
--- not record it, or nil, and fn's results.
---@param fn function
---@param ... any
---@return string? broken
---@return any ...
function Graph:record(fn, ...) end

--- Launches what was recorded, on the current stream.
function Graph:replay() end

--- An empty graph. An error where there is no GPU.
---@return lockstep.core.graph.Graph
function graph.new() end

--- Raises an error that ends the recording under way, even if the script catches it.
---@param message string
function graph.refuse(message) end

--- Whether a graph is being recorded.
---@return boolean
function graph.is_recording() end

--- Returns the modes that are on and change what operators do, as one text, and whether autocast is on.
---@return string modes
---@return boolean is_autocast
function graph.modes() end

---@class lockstep.core.graph.Tape
local Tape = {}

--- Calls fn(...), notes the operators that this thread calls on the CPU, and returns the results. Once for each tape.
---@param fn function
---@param ... any
---@return any ...
function Tape:record(fn, ...) end

--- Runs what was recorded.
function Tape:replay() end

--- Returns why a replay would not do what the function would do, or nil.
---@return string? reason
function Tape:mismatch() end

--- Returns counts of what was recorded.
---@return {operators: integer, in_place: integer, allocating: integer, bytes: integer}
function Tape:stats() end

--- An empty tape.
---@return lockstep.core.graph.Tape
function graph.new_tape() end

return graph
