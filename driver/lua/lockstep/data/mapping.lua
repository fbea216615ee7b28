--- Reading and mapping one sample: alike in the script's state and in a worker's.

local core = require "lockstep.core"

local M = {}

---@class data.Job
---@field index integer in the source
---@field sample any? where no source is given
---@field seed integer what math.random is seeded with

--- The function that a map's module returns.
---@param name string
---@return fun(sample: table, options: any): any
function M.load(name)
  local map = require(name)
  if type(map) == "function" or (getmetatable(map) or {}).__call then return map end
  core.raise(('data.loader: the module "%s" must return function(sample), not a %s'):format(name, type(map)))
end

local function read(source, index) return source[index] end

--- Returns {sample = ...}, or {failed = message} where the sample cannot be read. An error of the map is an error.
---@param map (fun(sample: table, options: any): any)?
---@param options any the loader's, for the map
---@param job data.Job
---@param source data.Source?
---@return {sample: any, failed: string?}
function M.apply(map, options, job, source)
  local sample = job.sample
  if source then
    local ok, found = pcall(read, source, job.index)
    -- Without the line of this library that read it.
    if not ok then return { failed = (tostring(found):gsub("^[^\n]-%.lua:%d+: ", "")) } end
    sample = found
  end
  if map then
    math.randomseed(job.seed)
    sample = map(sample, options)
    if sample == nil then error("the map returned nil; it must return what the training gets", 0) end
  end
  return { sample = sample }
end

return M
