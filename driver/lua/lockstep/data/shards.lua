--- Weights that lie in several safetensors files, with an index that names the file of each tensor. Scripts use
--- data.safetensors.

local core = require "lockstep.core"
local core_files = require "lockstep.core.files"
local core_safetensors = require "lockstep.core.safetensors"

local M = {}

local SUFFIX = ".safetensors.index.json"

--- Returns "file", "folder", or nil where nothing can be opened.
local function kind_of(path)
  local file = io.open(path, "rb")
  if not file then return nil end
  local _, trouble = file:read(1) -- of a folder: "Is a directory"
  file:close()
  return trouble and "folder" or "file"
end

local function is_file(path) return kind_of(path) == "file" end

local function ends_with(text, suffix) return text:sub(-#suffix) == suffix end

--- Returns the file that a folder's weights are read from: model.safetensors, model.safetensors.index.json, or the only
--- index or the only safetensors file there.
---@param folder string
---@return string path
local function choose(folder)
  for _, name in ipairs { "model.safetensors", "model" .. SUFFIX } do
    if is_file(folder .. "/" .. name) then return folder .. "/" .. name end
  end
  for _, suffix in ipairs { SUFFIX, ".safetensors" } do
    local found = {}
    for _, name in ipairs(core_files.list(folder)) do
      if ends_with(name, suffix) then found[#found + 1] = name end
    end
    if #found == 1 then return folder .. "/" .. found[1] end
    if #found > 1 then
      core.raise(("data.safetensors: %s has several files *%s (%s) and no model.safetensors.index.json; name the "
        .. "file to read"):format(folder, suffix, table.concat(found, ", ")))
    end
  end
  core.raise(("data.safetensors: %s has no *.safetensors file and no *%s"):format(folder, SUFFIX))
end

--- Reads the map from tensors to files, and checks its shape.
local function read_index(path)
  local file, reason = io.open(path, "rb")
  if not file then core.raise("data.safetensors: cannot open " .. tostring(reason)) end
  local index = core.json_decode(file:read("*a"), path)
  file:close()
  local map = type(index) == "table" and index.weight_map
  if type(map) ~= "table" then
    core.raise(('data.safetensors: %s has no "weight_map", an object from tensor names to file names'):format(path))
  end
  for name, shard in pairs(map) do
    if type(name) ~= "string" or type(shard) ~= "string" or shard:find("/") or shard == "" then
      core.raise(('data.safetensors: %s: weight_map of "%s": expected the name of a file in the same folder, got %s')
        :format(path, tostring(name), type(shard) == "string" and '"' .. shard .. '"' or "a " .. type(shard)))
    end
  end
  return map
end

local function sorted_values(map)
  local seen, values = {}, {}
  for _, value in pairs(map) do
    if not seen[value] then values[#values + 1], seen[value] = value, true end
  end
  table.sort(values)
  return values
end

local function read_shards(path)
  local folder = path:match("^(.*)/[^/]*$") or "."
  local map = read_index(path)
  local shards = sorted_values(map)
  local missing = {}
  for _, shard in ipairs(shards) do
    if not is_file(folder .. "/" .. shard) then missing[#missing + 1] = shard end
  end
  if #missing > 0 then
    core.raise(("data.safetensors: %d of the %d files that %s names are not in %s: %s"):format(#missing, #shards, path,
      folder, table.concat(missing, ", ")))
  end
  local tensors, metadata = {}, {}
  for _, shard in ipairs(shards) do
    local held, held_metadata = core_safetensors.read(folder .. "/" .. shard, "data.safetensors")
    for name, tensor in pairs(held) do
      if map[name] == shard or map[name] == nil then
        if map[name] == nil and tensors[name] then
          core.raise(('data.safetensors: "%s" is in several files of %s, and the index does not say which one counts')
            :format(name, path))
        end
        tensors[name] = tensor
      end
    end
    for key, value in pairs(held_metadata) do metadata[key] = value end
  end
  for name, shard in pairs(map) do
    if not tensors[name] then
      core.raise(('data.safetensors: %s says that "%s" is in %s, which does not have it'):format(path, name, shard))
    end
  end
  return tensors, metadata
end

--- Returns the tensors of a file, of all files of an index, or of the weights in a folder.
---@param path string
---@return table<string, torch.Tensor> tensors
---@return table<string, string> metadata of all files together
function M.read(path)
  if kind_of(path) == "folder" then path = choose((path:gsub("(.)/+$", "%1"))) end
  if ends_with(path, ".index.json") then return read_shards(path) end
  return core_safetensors.read(path, "data.safetensors")
end

return M
