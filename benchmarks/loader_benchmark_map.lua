--- The map of loader_benchmark.lua: the text as a tensor of its bytes.

local core_state = require "lockstep.core.state"

return function(sample) return core_state.bytes_to_tensor(sample.text) end
