--- The files of one split of a data set: of a download of the Hub, or of a folder like one.
---
---     splits.files(folder, { split = "train", name = "openai/gsm8k", caller = "data.conversations" })
---
--- A file's name says its split, as for Hugging Face's `datasets`: "train_sft-00000-of-00003.parquet" is of the split
--- train_sft. Other names have the word of a split, or are in a folder that has: "valid.jsonl", "test/0.json".

local core = require "lockstep.core"
local core_files = require "lockstep.core.files"
local plain = require "lockstep.plain"

local M = {}

local WORDS = { train = "train", training = "train", validation = "validation", valid = "validation",
  val = "validation", dev = "validation", test = "test", testing = "test", eval = "test", evaluation = "test" }

local FORMATS = plain.words "jsonl ndjson json parquet"
local DESCRIPTIONS = plain.words "dataset_info.json dataset_infos.json dataset_dict.json state.json config.json"

--- Adds the paths of data files in a folder and those below it, relative to `root`, to `found`.
local function collect(root, folder, found)
  for _, name in ipairs(core_files.list(root .. "/" .. folder)) do
    local path = folder .. name
    local format = name:gsub("%.gz$", ""):match "%.(%w+)$"
    local is_data = not name:find "^[._]" and not DESCRIPTIONS[name]
    if is_data and core_files.kind(root .. "/" .. path) == "folder" then
      collect(root, path .. "/", found)
    elseif is_data and FORMATS[format] then
      found[#found + 1] = path
    end
  end
  return found
end

--- Returns the name of a file's split, or nil.
local function split_of(path)
  local name = path:match("([^/]*)$"):match "^([%w_.]+)%-%d+%-of%-%d+"
  if name then return WORDS[name] or name end
  for word in path:lower():gmatch "%a+" do name = WORDS[word] or name end
  return name
end

---@class data.SplitOptions
---@field split string
---@field name string of the data set, for messages
---@field caller string for messages

--- Returns the paths of a split's files, sorted. Where no file names a split, all are of "train".
---@param folder string
---@param o data.SplitOptions
---@return string[]
function M.files(folder, o)
  local function fail(message, ...) core.raise(("%s: %s: "):format(o.caller, o.name) .. message:format(...)) end
  local all, of_split, folders, paths = collect(folder, "", {}), {}, {}, {}
  if #all == 0 then
    fail("there is no file of data in %s (known are .%s)", folder, table.concat(plain.keys(FORMATS), ", ."))
  end
  for _, path in ipairs(all) do
    local split = split_of(path)
    if split then
      of_split[split] = of_split[split] or {}
      table.insert(of_split[split], path)
    end
  end
  if not next(of_split) then of_split.train = all end
  local chosen = of_split[o.split]
  if not chosen then
    local known = plain.keys(of_split)
    fail('there is no split "%s"; give split = "%s"%s', o.split, known[1], #known > 1 and ', or one of "'
      .. table.concat(known, '", "', 2) .. '"' or "")
  end
  for i, path in ipairs(chosen) do
    folders[path:match "^(.-)/?[^/]*$"], paths[i] = true, folder .. "/" .. path
  end
  local names = plain.keys(folders)
  for i, name in ipairs(names) do names[i] = o.name .. "/" .. name end
  if #names > 1 then
    fail('the split "%s" has files in several folders; give %s', o.split, table.concat(names, " or "))
  end
  return paths
end

return M
