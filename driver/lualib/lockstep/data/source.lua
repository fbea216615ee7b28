--- data.source, data.mix and data.split: samples by number. Also sources of changed samples.

local cache = require "lockstep.data.cache"
local core = require "lockstep.core"
local core_data = require "lockstep.core.data"
local core_sharding = require "lockstep.core.sharding"
local files = require "lockstep.core.files"
local options = require "lockstep.options"
local plain = require "lockstep.plain"

local M = {}

---@class data.Source
---@operator len: integer
---@field [integer] table sample 1 to #source, in any order
---@field place fun(self: data.Source, index: integer): string names a sample for messages: "train.jsonl, line 12"

--- Returns the files of a path whose last part has "*", sorted; other paths as they are.
---@param path string
---@return string[]
local function expand(path)
  local folder, name = path:match "^(.-)([^/]*)$"
  if not name:find("*", 1, true) then return { path } end
  local pattern = "^" .. name:gsub("[%^%$%(%)%%%.%[%]%+%-%?]", "%%%0"):gsub("%*", ".*") .. "$"
  local found = {}
  for _, file in ipairs(files.list(folder == "" and "." or folder)) do
    if file:find(pattern) and not file:find "^[._]" then found[#found + 1] = folder .. file end
  end
  if #found == 0 then core.raise(("data.source: no file matches %s"):format(path)) end
  return found
end

--- See data.source.
---@param paths string|string[]
---@param opts {format: string?, cache: string?, columns: string[]?}?
---@return data.Source
function M.source(paths, opts)
  local o = options.read("data.source", opts, { format = "", cache = options.optional, columns = options.optional })
  if type(paths) == "string" then paths = { paths } end
  plain.check(type(paths) == "table", "data.source: expected a path or a list of paths, not a %s", type(paths))
  local all = {}
  for i, path in ipairs(paths) do
    plain.check(type(path) == "string", "data.source: path %d must be a string, not a %s", i, type(path))
    for _, file in ipairs(expand(path)) do all[#all + 1] = file end
  end
  return core_data.source(all, o.format, o.cache or cache.folder() .. "/index", o.columns or {})
end

--- Functions of the sources that are made of others. Each takes a sample's number, an epoch and a loader's seed. It
--- returns the source that holds the sample, and the sample's number and epoch there.
local views = setmetatable({}, { __mode = "k" })

--- Makes a value that has samples by number, their number and, as source:place(index), their places.
---@param name string for messages
---@param size integer
---@param get fun(index: integer): table
---@param place fun(index: integer): string
---@param fields table<string, any> what it has beside its samples
---@return data.Source
local function new_source(name, size, get, place, fields)
  local source = newproxy(true)
  local meta = getmetatable(source)
  local function checked(index)
    plain.check(plain.is_whole(index, 1) and index <= size, "%s[%s]: it has the samples 1 to %d", name, index, size)
    return index
  end
  meta.__name = name
  function meta.__len() return size end
  local function place_of(_, index) return place(checked(index)) end
  function meta.__index(_, index)
    if index == "place" then return place_of end
    if type(index) ~= "number" then return fields[index] end
    return get(checked(index))
  end
  return source
end

--- Makes a source whose samples lie in others.
---@param name string for messages
---@param size integer
---@param locate fun(index: integer, epoch: integer, seed: integer?): data.Source, integer, integer
---@return data.Source
local function new_view(name, size, locate)
  local view
  view = new_source(name, size, function(index)
    local leaf, of_leaf = M.resolve(view, index, 0)
    return leaf[of_leaf]
  end, function(index) return M.place(M.resolve(view, index, 0)) end, {})
  views[view] = locate
  return view
end

--- Raises unless the value has samples by number: what data.source or data.mix made, or an array.
---@param value any
---@param caller string
function M.check(value, caller)
  if type(value) == "userdata" and getmetatable(value) and getmetatable(value).__len then return end
  if type(value) == "table" then return end
  core.raise(("%s: expected a source, as data.source(path) makes it, or an array of samples; got a %s"):format(caller,
    type(value)))
end

--- Where sample `index` of a source really is: in a source that is not made of others. `epoch` and `seed` are a
--- loader's.
---@param source data.Source
---@param index integer
---@param epoch integer
---@param seed integer?
---@return data.Source|table[] leaf
---@return integer index in it
function M.resolve(source, index, epoch, seed)
  local locate = views[source]
  while locate do
    source, index, epoch = locate(index, epoch, seed)
    locate = views[source]
  end
  return source, index
end

--- Returns a text that ranks compare: the number of samples, and where a few of them really are. Another split or mix
--- changes it.
---@param source data.Source|table[]
---@return string
function M.outline(source)
  local size, places, last = #source, {}, 0
  for i = 0, 7 do
    local index = 1 + math.floor(i * (size - 1) / 7)
    if index > last then
      local leaf, of_leaf = M.resolve(source, index, 0, 0)
      places[#places + 1], last = ("%.0f of %.0f"):format(of_leaf, #leaf), index
    end
  end
  return ("%.0f samples (%s)"):format(size, table.concat(places, ", "))
end

--- Names a sample for messages.
---@param leaf data.Source|table[]
---@param index integer
---@return string
function M.place(leaf, index)
  return type(leaf) == "userdata" and leaf:place(index) or "sample " .. index
end

--- Makes a source whose samples are those of another, changed. An error of `change` names the sample's place.
---@param name string for messages
---@param source data.Source|table[]
---@param change fun(sample: table): table
---@param fields table<string, any> what the new source has beside its samples
---@return data.Source
function M.changed(name, source, change, fields)
  return new_source(name, #source, function(index)
    local sample = source[index]
    local ok, result = pcall(change, sample)
    if ok then return result end
    return core.raise(M.place(source, index) .. ": " .. tostring(result):gsub("^[^\n]-%.lua:%d+: ", ""))
  end, function(index) return M.place(source, index) end, fields)
end

--- See data.mix.
---@param sources (data.Source|table[])[]
---@param opts {weights: number[]?, size: integer?}?
---@return data.Source
function M.mix(sources, opts)
  local o = options.read("data.mix", opts, { weights = options.optional, size = options.optional })
  plain.check(type(sources) == "table",
    "data.mix: expected a list of sources, as in data.mix({ a, b }, { weights = { 3, 1 } }); got a %s", type(sources))
  local sizes = {}
  for i, source in ipairs(sources) do
    M.check(source, "data.mix: source " .. i)
    sizes[i] = #source
  end
  local plan = core_data.mix(sizes, o.weights, o.size)
  return new_view("mix", plan:size(), function(index, epoch, seed)
    local number, of_source, own_epoch = plan:locate(index - 1, epoch)
    -- Each pass over a source has an order of its own.
    if seed then of_source = core_sharding.permute(sizes[number], seed + number, own_epoch, of_source - 1) end
    return sources[number], of_source, own_epoch
  end)
end

--- Returns the numbers of samples in an order of the seed in which groups stay together, and how many of the first ones
--- are held out: `count`, and the rest of the last group.
local function in_groups(size, o, count)
  plain.check(type(o.groups) == "table" and #o.groups == size, "data.split: groups must have one value for each of %d "
    .. "samples, got %s", size, type(o.groups) == "table" and #o.groups or "a " .. type(o.groups))
  local members, groups = {}, {}
  for i = 1, size do
    local group = o.groups[i]
    plain.check(group ~= nil and group == group, "data.split: groups[%d] is %s; give each sample a value, and "
      .. "data.null to one without a group", i, group == nil and "absent" or "NaN")
    if group == core.null then group = {} end -- of its own
    if not members[group] then members[group], groups[#groups + 1] = {}, group end
    table.insert(members[group], i)
  end
  local order, num_held_out = {}, 0
  for k = 0, #groups - 1 do
    for _, i in ipairs(members[groups[core_sharding.permute(#groups, o.seed, 0, k)]]) do order[#order + 1] = i end
    if num_held_out < count then num_held_out = #order end
  end
  plain.check(num_held_out < size, "data.split: with held_out = %s all %d samples are held out, because groups stay "
    .. "together; hold fewer out", o.held_out, size)
  return order, num_held_out
end

--- See data.split.
---@param source data.Source|table[]
---@param opts {held_out: number, seed: integer?, groups: any[]?}
---@return data.Source train
---@return data.Source held_out
function M.split(source, opts)
  M.check(source, "data.split")
  local o = options.read("data.split", opts, { held_out = options.required, seed = 0, groups = options.optional })
  local size, count = #source, o.held_out
  if type(count) == "number" and count > 0 and count < 1 then count = math.max(1, math.floor(count * size + 0.5)) end
  plain.check(plain.is_whole(count, 0) and count < size, "data.split: held_out must be a share below 1, or a number of "
    .. "samples below the %d there are, not %s; 0 holds none out", size,
    plain.shown(o.held_out, type(o.held_out) == "string" and "string" or "number"))
  local order
  if o.groups ~= nil then order, count = in_groups(size, o, count) end
  local function part(name, first, length)
    return new_view(name, length, function(index, epoch)
      index = first + index
      return source, order and order[index] or core_sharding.permute(size, o.seed, 0, index - 1), epoch
    end)
  end
  return part("train", count, size - count), part("held_out", 0, count)
end

return M
