--- Hugging Face's local cache: where models and data sets of the Hub lie once they are downloaded.
---
---     local path = hub.snapshot("model", "Qwen/Qwen3-0.6B", "text.chat")

local core = require "lockstep.core"
local files = require "lockstep.core.files"
local plain = require "lockstep.plain"

local M = {}

-- The prefix of a folder's name, and the command that downloads it, by kind.
local KINDS = {
  model = { prefix = "models--", command = "hf download " },
  dataset = { prefix = "datasets--", command = "hf download --repo-type dataset " },
}

--- Returns the cache's folder, by the same variables as Hugging Face's own libraries.
---@return string
function M.folder()
  local function variable(name)
    local value = os.getenv(name)
    if value and value ~= "" then return value end
  end
  local home = variable("HF_HOME")
    or (variable("XDG_CACHE_HOME") or (os.getenv("HOME") or "") .. "/.cache") .. "/huggingface"
  return variable("HF_HUB_CACHE") or home .. "/hub"
end

--- Returns whether a text has the form of a name of the Hub: OWNER/NAME.
---@param name string
---@return boolean
function M.is_name(name) return name:match("^[%w._-]+/[%w._-]+$") ~= nil end

--- Returns the folder of a download: the snapshot of its main revision. Throws, with the command that downloads it,
--- if there is none.
---@param kind "model"|"dataset"
---@param name string OWNER/NAME
---@param caller string for messages
---@return string
function M.snapshot(kind, name, caller)
  local function fail(message, ...) core.raise(caller .. ": " .. message:format(...)) end
  local repository = ("%s/%s%s"):format(M.folder(), KINDS[kind].prefix, (name:gsub("/", "--")))
  local revision = (plain.read_file(repository .. "/refs/main") or ""):match("%S+")
  local snapshots = files.list(repository .. "/snapshots")
  if not revision and #snapshots > 1 then
    fail("%s has %d revisions in %s and no main one; give the folder of one: snapshots/%s", name, #snapshots,
      repository, table.concat(snapshots, ", snapshots/"))
  end
  local path = repository .. "/snapshots/" .. (revision or snapshots[1] or "none")
  if files.kind(path) then return path end
  fail("%s is neither a folder here nor in %s; to download it: %s%s", name, M.folder(), KINDS[kind].command, name)
  return path
end

return M
