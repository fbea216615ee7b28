--- What belongs to no single module: memory, and the version. Also the global `lockstep`.

local core = require "lockstep.core"

local M = {}

M.version = "0.1.0"

--- Calls `fn(...)`, then frees at once every tensor that nothing refers to any more, and returns
--- fn's results. Use it around a step whose temporaries are large: the collector would free them
--- too, but later. What is still reachable, from fn's results or from outside, is never freed.
---
---     local loss = lockstep.scope(function() return evaluate(model, batch):item() end)
---@generic T
---@param fn fun(...): T
---@param ... any
---@return T ...
function M.scope(fn, ...)
  if type(fn) ~= "function" then
    core.raise("lockstep.scope: the argument must be a function, not a " .. type(fn))
  end
  local function collect(...)
    collectgarbage()
    return ...
  end
  return collect(fn(...))
end

--- Bytes in use: `tensors`, those that Lua values hold; `lua`, the Lua heap; `resident`, the whole
--- process's share of the machine's memory.
---@return {tensors: integer, lua: integer, resident: integer}
function M.memory()
  return {
    tensors = core.tensor_bytes(),
    lua = math.floor(collectgarbage("count") * 1024),
    resident = core.resident_bytes(),
  }
end

return M
