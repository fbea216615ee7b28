--- Runs in the Lua state of a worker of data.loader: see driver/lua/bind/data/worker_pool.h.

local mapping = require "lockstep.data.mapping"
local uploads = require "lockstep.data.uploads"

---@param start {map: string?, options: any, pin: boolean}
---@return fun(job: data.Job, source: data.Source?): table
return function(start)
  local map = start.map and mapping.load(start.map)
  return function(job, source)
    local result = mapping.apply(map, start.options, job, source)
    if start.pin then result.sample = uploads.pinned(result.sample) end
    return result
  end
end
