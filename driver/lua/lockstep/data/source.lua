--- data.source and data.mix: samples by number.

local cache = require "lockstep.data.cache"
local core = require "lockstep.core"
local core_data = require "lockstep.core.data"
local core_sharding = require "lockstep.core.sharding"
local options = require "lockstep.options"

local M = {}

---@class data.Source
---@operator len: integer
---@field [integer] table sample 1 to #source, in any order
---@field place fun(self: data.Source, index: integer): string "train.jsonl, line 12"; only of data.source

--- See data.source.
---@param paths string|string[]
---@param opts {format: string?, cache: string?}?
---@return data.Source
function M.source(paths, opts)
  local o = options.read("data.source", opts, { format = "", cache = options.optional })
  if type(paths) == "string" then paths = { paths } end
  if type(paths) ~= "table" then
    core.raise("data.source: expected a path or a list of paths, not a " .. type(paths))
  end
  return core_data.source(paths, o.format, o.cache or cache.folder() .. "/index")
end

--- The sources and the plan of each mix.
local mixes = setmetatable({}, { __mode = "k" })

--- Raises unless the value has samples by number: what data.source or data.mix made, or an array.
---@param value any
---@param caller string
function M.check(value, caller)
  if type(value) == "userdata" and getmetatable(value) and getmetatable(value).__len then return end
  if type(value) == "table" then return end
  core.raise(("%s: expected a source, as data.source(path) makes it, or an array of samples; got a %s"):format(caller,
    type(value)))
end

--- Where sample `index` of a source really is: in a source that is no mix. `epoch` and `seed` are a loader's.
---@param source data.Source
---@param index integer
---@param epoch integer
---@param seed integer?
---@return data.Source|table[] leaf
---@return integer index in it
function M.resolve(source, index, epoch, seed)
  local mix = mixes[source]
  while mix do
    local number
    number, index, epoch = mix.plan:locate(index - 1, epoch)
    source = mix.sources[number]
    -- Each pass over a source has an order of its own.
    if seed then index = core_sharding.permute(#source, seed + number, epoch, index - 1) end
    mix = mixes[source]
  end
  return source, index
end

--- Names a sample for messages.
---@param leaf data.Source|table[]
---@param index integer
---@return string
function M.place(leaf, index)
  return core_data.is_source(leaf) and leaf:place(index) or "sample " .. index
end

--- See data.mix.
---@param sources (data.Source|table[])[]
---@param opts {weights: number[]?, size: integer?}?
---@return data.Source
function M.mix(sources, opts)
  local o = options.read("data.mix", opts, { weights = options.optional, size = options.optional })
  if type(sources) ~= "table" then
    core.raise("data.mix: expected a list of sources, as in data.mix({ a, b }, { weights = { 3, 1 } }); got a "
      .. type(sources))
  end
  local sizes = {}
  for i, source in ipairs(sources) do
    M.check(source, "data.mix: source " .. i)
    sizes[i] = #source
  end
  local plan = core_data.mix(sizes, o.weights, o.size)
  local mix = newproxy(true)
  local meta = getmetatable(mix)
  meta.__name = "mix of sources"
  function meta.__len() return plan:size() end
  function meta.__index(_, index)
    if type(index) ~= "number" then return nil end
    if not (index >= 1 and index <= plan:size() and index % 1 == 0) then
      core.raise(("mix[%s]: the mix has the samples 1 to %d"):format(tostring(index), plan:size()))
    end
    local leaf, of_leaf = M.resolve(mix, index, 0)
    return leaf[of_leaf]
  end
  mixes[mix] = { sources = sources, plan = plan }
  return mix
end

return M
