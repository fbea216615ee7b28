---@meta lockstep.core.state
--- Functions for run:save() that do not concern files. The program's side is driver/lua/bind/program/state.cc.

---@class lockstep.core.state
local state = {}

--- Plain Lua values as bytes, the same for the same content, and the tensors among them.
---@param value any nil, booleans, numbers, strings, tensors and tables of them
---@param caller string what errors begin with
---@return string bytes
---@return torch.Tensor[] tensors
function state.encode(value, caller) end

---@param bytes string
---@param tensors torch.Tensor[]
---@param caller string what errors begin with
---@return any
function state.decode(bytes, tensors, caller) end

---@param bytes string
---@return torch.Tensor # uint8 {n}
function state.bytes_to_tensor(bytes) end

---@param tensor torch.Tensor
---@return string
function state.tensor_to_bytes(tensor) end

--- A sum of the bits of a contiguous tensor of the CPU, which differs for different values: see replicas.lua.
---@param tensor torch.Tensor
---@return torch.Tensor # int64 {}
function state.sum_of_bits(tensor) end

--- Copies of tensors that a thread makes while the script goes on.
---@class lockstep.core.state.Copies
local Copies = {}

--- Whether the tensors are read, so that operators write to them without waiting.
---@return boolean
function Copies:is_read() end

--- Waits until the tensors are read, and lets operators run as before. Returns the seconds that some have waited.
---@return number
function Copies:release() end

--- The sums of bits, eight bytes for each tensor that is summed, in order. Waits for the end.
---@return string
function Copies:sums() end

--- Begins to copy tensors of the CPU, {from, to, is_summed} each; without `to` one is only summed. An operator of this
--- thread that writes to one of them waits until all are read: see driver/lua/tensor/background_copies.h.
---@param tensors {[1]: torch.Tensor, [2]: torch.Tensor|false, [3]: boolean}[]
---@return lockstep.core.state.Copies
function state.background_copies(tensors) end

--- The state of math.random's generator; nil if it is not LuaJIT's own.
---@return string?
function state.math_random_state() end

---@param bytes string
function state.set_math_random_state(bytes) end

--- Called by the iterator of run:steps as its loop begins.
---@param iterator function
function state.begin_loop(iterator) end

--- Called by it as the loop ends. One that is left by a break or an error does not come here.
function state.end_loop() end

--- Whether the loop that began last goes on, in this coroutine or another, one that is suspended too: false where it
--- was left, and where it is not written as `for ... in iterator`.
---@return boolean
function state.in_loop() end

--- From now on a SIGTERM is only noted, or ends the process again.
---@param on boolean
function state.catch_sigterm(on) end

---@return boolean
function state.sigterm_came() end

--- Tells the launcher to pass a SIGTERM on, and to wait.
function state.announce_saving() end

--- Ends the process, as every rank does. Collective.
---@param exit_code integer
---@param reason string
function state.end_together(exit_code, reason) end

return state
