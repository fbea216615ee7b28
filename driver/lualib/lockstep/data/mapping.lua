--- Reading and mapping one sample: alike in the script's state and in a worker's.

local core = require "lockstep.core"
local plain = require "lockstep.plain"

local M = {}

--- {index in the source, seed of math.random, sample where no source is given, its shapes}: an array of numbers travels
--- fastest.
---@alias data.Job any[]

--- The function that a map's module returns.
---@param name string
---@return fun(sample: table, options: any): any
function M.load(name)
  local ok, map = pcall(require, name)
  if not ok then
    local reason = tostring(map)
    local missing = reason:find("module '" .. name .. "' not found", 1, true)
    local path = name:gsub("%.", "/")
    if missing then reason = ("there is no such module (a file %s.lua beside the script)"):format(path) end
    core.raise(('data.loader: map = "%s": %s'):format(name, reason))
  end
  if plain.is_callable(map) then return map end
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
  local sample = job[3]
  if source then
    local ok, found = pcall(read, source, job[1])
    -- Without the line of this library that read it.
    if not ok then return { failed = (tostring(found):gsub("^[^\n]-%.lua:%d+: ", "")) } end
    sample = found
  end
  if map then
    math.randomseed(job[2])
    sample = map(sample, options)
    if sample == nil then error("the map returned nil; it must return what the training gets", 0) end
  end
  return { sample = sample }
end

return M
