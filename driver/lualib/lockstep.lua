--- Functions that belong to no single module: memory, the cost of a script, and the version. Also the global
--- `lockstep`.

local core = require "lockstep.core"

---@class lockstep
---@field graph fun(fn: function, opts: {warmup: integer?, buckets: integer?}?): lockstep.Graph see lockstep/graph.lua
local M = {}

local mistakes = require "lockstep.help.mistakes"
local watching = require "lockstep.watching"

M.flops = watching.flops
M.memory_by_line = watching.memory_by_line
M.profile = watching.profile
M.span = watching.span

--- The version of Lockstep, "major.minor.patch".
M.version = core.version

--- Calls `fn(...)`, then frees at once every tensor that nothing refers to any more, and returns fn's results. Use it
--- around a step with large temporaries: the collector would free them too, but later. Tensors that are still
--- reachable, from fn's results or from outside, are never freed.
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

-- Loaded when it is first asked for: most scripts have none.
setmetatable(M, { __index = function(t, name)
  if name ~= "graph" then return nil end
  local graph = require "lockstep.graph"
  rawset(t, name, graph)
  return graph
end })

mistakes.warn()

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
