---@meta lockstep.core
--- Facts about the program and the machine for the Lua library; scripts use the modules over it. The program's side is
--- driver/lua/bind/program/core.cc.

---@class lockstep.core
---@field null lightuserdata what null in JSON is
---@field version string "major.minor.patch"
local core = {}

--- Raises an error that is blamed on the script's line, however deep in the library it is noticed.
---@param message string
function core.raise(message) end

--- Raises an error of the command line: an uncaught one ends the run with exit code 2.
---@param message string
function core.raise_usage(message) end

--- The word that was probably meant, or nil.
---@param word string
---@param words string[]
---@return string?
function core.nearest(word, words) end

--- Seconds on a clock that never goes back.
---@return number
function core.now() end

--- The process's share of the machine's memory.
---@return integer
function core.resident_bytes() end

--- Bytes of the tensors that Lua values hold.
---@return integer
function core.tensor_bytes() end

--- Columns of the terminal on stdout, or nil without a terminal.
---@return integer?
function core.terminal_width() end

--- Makes the folder and those above it, where they are not there.
---@param path string
function core.make_folder(path) end

--- A file that is read line by line.
---@class lockstep.core.Lines
local Lines = {}

--- The next line without its end, or nil after the last.
---@return string?
function Lines:next() end

--- Opens a text file, unpacked on the way where it is gzipped.
---@param path string
---@return lockstep.core.Lines
function core.open_lines(path) end

--- Writes a file, which takes its name once it is complete.
---@param path string
---@param pieces (string|torch.Tensor)[] tensors as the bytes they hold
function core.write_file(path, pieces) end

---@param value any nil, core.null, booleans, numbers, strings and tables of them
---@param indent? integer spaces for each level; without it all is on one line
---@param strict? boolean NaN and the infinities are errors; default: they become strings
---@return string
function core.json_encode(value, indent, strict) end

---@param text string
---@param name? string what messages call it; default "json"
---@return any # null as core.null
function core.json_decode(text, name) end

--- What a Lua table cannot hold of the JSON that it was decoded from. Shared, never changed.
---@class lockstep.core.JsonShape
---@field keys string[]? of an object, in the file's order
---@field array true? of an array
---@field floats true|table<any, boolean>? which whole numbers are written as 1.0 or 1e3; true: all numbers

--- The shapes of decoded tables: a table that is weak in its keys.
---@return table<table, lockstep.core.JsonShape>
function core.json_shapes() end

--- The path of the script, as it was given.
---@return string
function core.script() end

--- The arguments after the script on the command line.
---@return string[]
function core.arguments() end

--- The number of --evict-slow.
---@return number?
function core.evict_slow() end

--- The pairs of --set, in order. The caller has used them.
---@return string[][] # {{key, value}, ...}
function core.settings() end

--- The run's folder, which may not be there yet.
---@return string
function core.run_dir() end

--- For the report of a hang, and for the launcher: which step this rank is at.
---@param step integer
function core.set_step(step) end

--- How often the run's launcher has started it again after a failure.
---@return integer
function core.restarts() end

--- Returns fn(...). Other ranks may wait for this one meanwhile, for so many seconds at most. See run.alone.
---@param seconds integer? nil: for ever
---@param fn function
---@param ... any
---@return any ...
function core.alone(seconds, fn, ...) end

--- The names of all of ATen's operators, sorted.
---@return string[]
function core.operators() end

--- The schemas of one: "torch.relu(Tensor self) -> Tensor".
---@param operator string
---@return string[]
function core.schemas(operator) end

--- Whether x:<operator>() makes sense.
---@param operator string
---@return boolean
function core.is_tensor_method(operator) end

--- Methods of tensors that are no operators.
---@return string[]
function core.tensor_methods() end

--- Fields of tensors.
---@return string[]
function core.tensor_fields() end

return core
