--- Where a model's folder is: what models.load, text.tokenizer, text.chat, images.processor and lora.load take.
---
---     local path = folder.find("Qwen/Qwen3-0.6B", "text.chat")   -- a folder of this name, or one of the Hub's cache

local core = require "lockstep.core"
local files = require "lockstep.core.files"
local plain = require "lockstep.plain"

local M = {}

--- Returns the folder of Hugging Face's cache, by the same variables as its own libraries.
local function cache()
  local function variable(name)
    local value = os.getenv(name)
    if value and value ~= "" then return value end
  end
  local home = variable("HF_HOME")
    or (variable("XDG_CACHE_HOME") or (os.getenv("HOME") or "") .. "/.cache") .. "/huggingface"
  return variable("HF_HUB_CACHE") or home .. "/hub"
end

--- Returns the path of a model: `name` itself where there is such a folder or file, else the snapshot of its main
--- revision in Hugging Face's cache. Throws, with the command that downloads it, where there is neither.
---@param name string "models/qwen", "Qwen/Qwen3-0.6B"
---@param caller string? for messages
---@return string
function M.find(name, caller)
  local function fail(message, ...) core.raise((caller or "models") .. ": " .. message:format(...)) end
  if type(name) ~= "string" then fail("expected a folder, or OWNER/MODEL of the Hub; got a %s", type(name)) end
  if files.kind(name) then return (name:gsub("(.)/+$", "%1")) end
  local saved = name:gsub("(.)/+$", "%1") .. ".lockstep-save"
  if files.kind(saved) then
    fail("there is no folder %s: a save into it was killed, and left the model in %s, in %s. Move one of these to %s, "
      .. "as the next models.save does", name, saved, table.concat(files.list(saved), " and in "), name)
  end
  if not name:match("^[%w._-]+/[%w._-]+$") then
    fail('there is no folder %s, and a name of the Hub would be OWNER/MODEL', name)
  end
  local repository = cache() .. "/models--" .. name:gsub("/", "--")
  local revision = (plain.read_file(repository .. "/refs/main") or ""):match("%S+")
  local snapshots = files.list(repository .. "/snapshots")
  if not revision and #snapshots > 1 then
    fail("%s has %d revisions in %s and no main one; give the folder of one: snapshots/%s", name, #snapshots,
      repository, table.concat(snapshots, ", snapshots/"))
  end
  local path = repository .. "/snapshots/" .. (revision or snapshots[1] or "none")
  if files.kind(path) then return path end
  fail("%s is neither a folder here nor in %s; to download it: hf download %s", name, cache(), name)
  return path
end

return M
