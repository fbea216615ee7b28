--- Runs in the Lua state of a worker of data.loader: see driver/lua/bind/data/worker_pool.h.

local mapping = require "lockstep.data.mapping"

---@param start {map: string?, options: any}
---@return fun(job: data.Job, source: data.Source?): table
return function(start)
  local map = start.map and mapping.load(start.map)
  return function(job, source) return mapping.apply(map, start.options, job, source) end
end
