--- Weights that lie in several safetensors files, with an index that names the file of each tensor. Scripts use
--- data.safetensors and models.load.

local core = require "lockstep.core"
local core_files = require "lockstep.core.files"
local core_safetensors = require "lockstep.core.safetensors"
local plain = require "lockstep.plain"

local M = {}

local SUFFIX = ".safetensors.index.json"

local function is_file(path) return core_files.kind(path) == "file" end

local function ends_with(text, suffix) return text:sub(-#suffix) == suffix end

--- Returns the file that a folder's weights are read from: model.safetensors, model.safetensors.index.json, or the only
--- index or the only safetensors file there.
---@param folder string
---@param caller string for messages
---@return string path
local function choose(folder, caller)
  for _, name in ipairs { "model.safetensors", "model" .. SUFFIX } do
    if is_file(folder .. "/" .. name) then return folder .. "/" .. name end
  end
  for _, suffix in ipairs { SUFFIX, ".safetensors" } do
    local found = {}
    for _, name in ipairs(core_files.list(folder)) do
      if ends_with(name, suffix) then found[#found + 1] = name end
    end
    if #found == 1 then return folder .. "/" .. found[1] end
    plain.check(#found <= 1, "%s: %s has several files *%s (%s) and no model.safetensors.index.json; name the file to "
      .. "read", caller, folder, suffix, table.concat(found, ", "))
  end
  core.raise(("%s: %s has no *.safetensors file and no *%s; other formats of weights are not read"):format(caller,
    folder, SUFFIX))
end

--- Reads the map from tensors to files, and checks its shape.
local function read_index(path, caller)
  local text, reason = plain.read_file(path)
  if not text then core.raise(caller .. ": cannot open " .. tostring(reason)) end
  local index = core.json_decode(text, path)
  local map = type(index) == "table" and index.weight_map
  plain.check(type(map) == "table",
    '%s: %s has no "weight_map", an object from tensor names to file names', caller, path)
  for name, shard in pairs(map) do
    if type(name) ~= "string" or type(shard) ~= "string" or shard:find("/") or shard == "" then
      core.raise(('%s: %s: weight_map of "%s": expected the name of a file in the same folder, got %s')
        :format(caller, path, tostring(name), plain.shown(shard, "string")))
    end
  end
  return map
end

-- The bytes of files that may stay mapped although only dead tensors use them.
local LARGE_BYTES = 8 * 2 ^ 30

-- The bytes of files that were mapped since the last collection for them.
local mapped_bytes = 0

--- Reads a file. The collector takes no step for the bytes of mapped files (driver/lua/tensor/pressure.h). So this
--- collects garbage after many of them, and where the process has no addresses left.
local function read_file(path, caller)
  if mapped_bytes > math.max(LARGE_BYTES, core.tensor_bytes() / 2) then
    mapped_bytes = 0
    collectgarbage()
  end
  mapped_bytes = mapped_bytes + (core_files.size(path) or 0)
  local ok, tensors, metadata = pcall(core_safetensors.read, path, caller)
  if ok then return tensors, metadata end
  if tostring(tensors):find("cannot be mapped", 1, true) then collectgarbage() end
  return core_safetensors.read(path, caller) -- blames the script's line
end

local function read_shards(path, caller)
  local folder = path:match("^(.*)/[^/]*$") or "."
  local map = read_index(path, caller)
  local named, missing = {}, {}
  for _, shard in pairs(map) do named[shard] = true end
  local shards = plain.keys(named)
  for _, shard in ipairs(shards) do
    if not is_file(folder .. "/" .. shard) then missing[#missing + 1] = shard end
  end
  plain.check(#missing == 0, "%s: %d of the %d files that %s names are not in %s: %s", caller, #missing, #shards, path,
    folder, table.concat(missing, ", "))
  local tensors, metadata = {}, {}
  for _, shard in ipairs(shards) do
    local held, held_metadata = read_file(folder .. "/" .. shard, caller)
    for name, tensor in pairs(held) do
      if map[name] == shard or map[name] == nil then
        if map[name] == nil and tensors[name] then
          core.raise(('%s: "%s" is in several files of %s, and the index does not say which one counts')
            :format(caller, name, path))
        end
        tensors[name] = tensor
      end
    end
    for key, value in pairs(held_metadata) do metadata[key] = value end
  end
  for name, shard in pairs(map) do
    plain.check(tensors[name], '%s: %s says that "%s" is in %s, which does not have it', caller, path, name, shard)
  end
  return tensors, metadata
end

--- Returns the tensors of a file, of all files of an index, or of the weights in a folder, memory-mapped.
---@param path string
---@param caller string for messages
---@return table<string, torch.Tensor> tensors
---@return table<string, string> metadata of all files together
function M.read(path, caller)
  if core_files.kind(path) == "folder" then path = choose((path:gsub("(.)/+$", "%1")), caller) end
  if ends_with(path, ".index.json") then return read_shards(path, caller) end
  return read_file(path, caller)
end

return M
