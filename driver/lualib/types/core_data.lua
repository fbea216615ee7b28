---@meta lockstep.core.data
--- Sources, mixes and workers, as lockstep.data calls them. The program's side is driver/lua/bind/data/data.cc.

---@class lockstep.core.data
local data = {}

--- Throws an error that names the file, or says what was expected.
---@param paths string[] files and folders
---@param format string "jsonl", "lines", "text", "tar", "parquet"; "": by the names of the files
---@param cache string folder of indexes
---@param columns string[] of Parquet files; empty: all
---@return data.Source
function data.source(paths, format, cache, columns) end

--- Whether workers can read the value for themselves: data.source made it.
---@param value any
---@return boolean
function data.is_source(value) end

---@class lockstep.core.data.Mix
local Mix = {}

---@return integer samples of an epoch
function Mix:size() end

---@return integer[] samples of an epoch, of each source
function Mix:counts() end

---@param position integer from 0 to size() - 1
---@param epoch integer
---@return integer source from 1
---@return integer index from 1
---@return integer pass how often all of the source came before
function Mix:locate(position, epoch) end

---@param sizes integer[]
---@param weights number[]? default: as the sizes
---@param size integer? samples of an epoch; default: of all sources together
---@return lockstep.core.data.Mix
function data.mix(sizes, weights, size) end

--- Calls fn as a worker does: operators that draw from torch's generator are errors.
---@param fn fun(...): any
---@param ... any
---@return boolean ok
---@return any ... fn's results, or the error's message
function data.attempt(fn, ...) end

--- Threads with a Lua state each. The collector ends them.
---@class lockstep.core.data.Workers
local Workers = {}

--- Gives the workers' function a value, and a source.
---@param value any what run:state can keep
---@param source data.Source?
function Workers:submit(value, source) end

--- Waits for the result of the oldest value that has none yet. Throws an error that names a worker which has ended.
---@param timeout_s number
---@return boolean? ok nil where it has not come in time; it may still come
---@return any value, or the error's message
function Workers:next(timeout_s) end

--- Ends the threads, once what they are at is done.
function Workers:stop() end

---@param count integer
---@param module string returns function(start), which returns function(value, source)
---@param start any
---@return lockstep.core.data.Workers
function data.workers(count, module, start) end

return data
