--- Where a model's folder is, and which tensors its files hold.
---
---     local path = folder.find("Qwen/Qwen3-0.6B")           -- in Hugging Face's cache, or a folder of this name
---     local tensors, where = folder.tensors(path)           -- memory-mapped; where[name] is its file

local core = require "lockstep.core"
local core_safetensors = require "lockstep.core.safetensors"
local files = require "lockstep.core.files"

local M = {}

local INDEX = "model.safetensors.index.json"

local function fail(message, ...) core.raise("models.load: " .. message:format(...)) end

--- Returns what a file holds, or nil and the reason.
---@param path string
---@return string?
---@return string?
function M.read(path)
  local file, reason = io.open(path, "rb")
  if not file then return nil, reason end
  local text = file:read("*a")
  file:close()
  if not text then return nil, path .. ": it is a folder, or cannot be read" end
  return text
end

--- Hugging Face's cache, by the same variables as its own libraries.
local function cache()
  local function variable(name)
    local value = os.getenv(name)
    if value and value ~= "" then return value end
  end
  local home = variable("HF_HOME")
    or (variable("XDG_CACHE_HOME") or (os.getenv("HOME") or "") .. "/.cache") .. "/huggingface"
  return variable("HF_HUB_CACHE") or home .. "/hub"
end

--- Returns the folder of a model: `name` itself if it holds config.json, else the snapshot of its main revision in
--- Hugging Face's cache.
---@param name string "models/qwen", "Qwen/Qwen3-0.6B"
---@return string
function M.find(name)
  if type(name) ~= "string" then fail("the folder must be a string, got a %s", type(name)) end
  if M.read(name .. "/config.json") then return name end
  if #files.list(name) > 0 then fail("%s holds no config.json", name) end
  if not name:match("^[%w._-]+/[%w._-]+$") then
    fail("there is no folder %s with a config.json, and a name of the Hub would be OWNER/MODEL", name)
  end
  local repository = cache() .. "/models--" .. name:gsub("/", "--")
  local revision = M.read(repository .. "/refs/main")
  local snapshots = files.list(repository .. "/snapshots")
  local path = repository .. "/snapshots/" .. (revision and revision:match("%S+") or snapshots[1] or "")
  if M.read(path .. "/config.json") then return path end
  fail("%s is neither a folder nor in %s; to download it: hf download %s", name, cache(), name)
  return path
end

--- The files of a folder with weights, by the index if there is one.
local function weight_files(path)
  local text = M.read(path .. "/" .. INDEX)
  if not text then return { "model.safetensors" }, nil end
  local index = core.json_decode(text, path .. "/" .. INDEX)
  local map = type(index) == "table" and index.weight_map
  if type(map) ~= "table" then fail('%s/%s has no object "weight_map"', path, INDEX) end
  local names, seen = {}, {}
  for tensor, file in pairs(map) do
    if type(file) ~= "string" or file:find("/", 1, true) then
      fail('%s/%s names no file of its folder for "%s"', path, INDEX, tensor)
    end
    if not seen[file] then names[#names + 1] = file end
    seen[file] = true
  end
  table.sort(names)
  return names, map
end

--- Returns the tensors of a folder's safetensors files by name, memory-mapped, and the file of each. Throws an error
--- if a file of the index is missing, or a tensor is not in the file that the index names.
---@param path string
---@return table<string, torch.Tensor>
---@return table<string, string>
function M.tensors(path)
  local names, map = weight_files(path)
  local present = {}
  for _, name in ipairs(files.list(path)) do present[name] = true end
  local missing = {}
  for _, name in ipairs(names) do
    if not present[name] then missing[#missing + 1] = name end
  end
  if #missing > 0 and not map then
    fail("%s holds neither model.safetensors nor %s; other formats of weights are not read", path, INDEX)
  elseif #missing > 0 then
    fail("%s lacks %d of %d files that %s names: %s", path, #missing, #names, INDEX, table.concat(missing, ", "))
  end
  local tensors, where = {}, {}
  for _, file in ipairs(names) do
    for name, tensor in pairs((core_safetensors.read(path .. "/" .. file, "models.load"))) do
      if where[name] then fail('%s: "%s" is in %s and in %s', path, name, where[name], file) end
      tensors[name], where[name] = tensor, file
    end
  end
  for name, file in pairs(map or {}) do
    if where[name] ~= file then
      fail('%s/%s says that %s holds "%s", but %s', path, INDEX, file, name,
        where[name] and "it is in " .. where[name] or "no file does")
    end
  end
  return tensors, where
end

return M
