---@meta lockstep.core.watching
--- Measurements for lockstep and lockstep.log. The program's side is driver/lua/bind/program/watching.cc.

---@class lockstep.core.watching
local watching = {}

---@class lockstep.core.watching.EventFile
local EventFile = {}

--- Adds a record, which is in the file when this returns.
---@param step integer
---@param scalars table<string, number> by tag
function EventFile:write(step, scalars) end

--- Adds a text, which TensorBoard shows as Markdown.
---@param step integer
---@param tag string
---@param text string
function EventFile:write_text(step, tag, text) end

---@class lockstep.core.watching.Counter
local Counter = {}

--- FLOPs counted since it was made.
---@return integer
function Counter:total() end

--- The same by operator.
---@return lockstep.Flops
function Counter:by_operator() end

---@class lockstep.core.watching.Tracker
local Tracker = {}

---@return lockstep.MemoryByLine # since it was made
function Tracker:report() end

--- Forgets earlier peaks: peak_bytes is that from here on.
function Tracker:reset_peak() end

---@class lockstep.core.watching.Costs
local Costs = {}

--- Ends the measurement.
function Costs:stop() end

--- Ends the measurement. Measures the machine's peaks, where no call before has.
---@return log.CostReport
function Costs:report() end

---@class lockstep.core.watching.Trace
local Trace = {}

--- A step's span, until the next one or the end.
---@param step integer
function Trace:begin_step(step) end

--- Ends the trace and writes its file.
function Trace:stop() end

--- Makes a file for TensorBoard in the folder.
---@param folder string
---@return lockstep.core.watching.EventFile
function watching.event_file(folder) end

--- Counts the FLOPs of fn(...), by operator.
---@param fn fun(...): ...
---@param ... any
---@return lockstep.Flops counts
---@return any ... fn's results
function watching.flops(fn, ...) end

--- Counts what this thread calls from here on.
---@return lockstep.core.watching.Counter
function watching.flop_counter() end

--- Finds the lines that hold the device's memory in fn(...).
---@param device string
---@param fn fun(...): ...
---@param ... any
---@return lockstep.MemoryByLine report
---@return any ... fn's results
function watching.memory_by_line(device, fn, ...) end

--- Notes the memory that is held of the device after each allocation and release in fn(...).
---@param device string
---@param fn fun(...): ...
---@param ... any
---@return number[][] points {seconds since the start, bytes} each
---@return integer peak_bytes
---@return any ... fn's results
function watching.memory_over_time(device, fn, ...) end

--- Notes which line allocates what on the device from here on.
---@param device string
---@return lockstep.core.watching.Tracker
function watching.memory_tracker(device) end

--- fn(...), as a span of a trace that is under way.
---@param name string
---@param fn fun(...): ...
---@param ... any
---@return any ... fn's results
function watching.span(name, fn, ...) end

--- fn(...), and a trace of it.
---@param path string
---@param options {record_shapes: boolean?, profile_memory: boolean?}
---@param fn fun(...): ...
---@param ... any
---@return any ... fn's results
function watching.traced(path, options, fn, ...) end

--- Begins a trace.
---@param path string
---@param options {record_shapes: boolean?, profile_memory: boolean?}
---@return lockstep.core.watching.Trace
function watching.trace(path, options) end

--- How long each rank worked, by rank, between the newest agreement at the last call and the newest one now. Nil where
--- there was none since. Time in which a rank waits for others is not in it.
---@return number[]? seconds
function watching.work_of_ranks() end

--- Seconds of own work by rank at the newest agreement, each from a beginning of its own: the same on every rank. Empty
--- before the first.
---@return number[]
function watching.work_clocks() end

--- How long this rank has worked, from any beginning. Time in which it waits for other ranks is not in it.
---@return number seconds
function watching.own_seconds() end

--- Measures what operators cost on this thread from here on.
---@param device string
---@return lockstep.core.watching.Costs
function watching.operator_costs(device) end

--- Measures what the operators of fn(...) cost.
---@param device string
---@param fn fun(...): ...
---@param ... any
---@return lockstep.core.watching.Costs costs
---@return any ... fn's results
function watching.costs_of(device, fn, ...) end

return watching
