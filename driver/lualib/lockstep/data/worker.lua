--- Runs in the Lua state of a worker of data.loader: see driver/lua/bind/data/worker_pool.h.

local core = require "lockstep.core"
local mapping = require "lockstep.data.mapping"
local shapes = require "lockstep.data.shapes"
local torch = require "lockstep.torch"
local uploads = require "lockstep.data.uploads"

--- The default dtype is one for the whole process: a map would change it under the training.
local function refuse_default_dtype()
  core.raise("torch.set_default_dtype: a map of data.loader cannot change the default dtype, which would be the "
    .. "training's, too; give dtype = to the functions that make tensors")
end

---@param start {map: string?, options: any, pin: boolean}
---@return fun(job: data.Job, source: data.Source?): table
return function(start)
  torch.set_default_dtype = refuse_default_dtype ---@diagnostic disable-line: duplicate-set-field
  local map = start.map and mapping.load(start.map)
  return function(job, source)
    shapes.restore(job[3], job[4])
    local result = mapping.apply(map, start.options, job, source)
    result.shapes = shapes.of(result.sample)
    if start.pin then result.sample = uploads.pinned(result.sample) end
    return result
  end
end
