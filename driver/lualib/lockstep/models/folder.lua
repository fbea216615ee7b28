--- Where a model's folder is: what models.load, text.tokenizer, text.chat, images.processor and lora.load take.
---
---     local path = folder.find("Qwen/Qwen3-0.6B", "text.chat")   -- a folder of this name, or one of the Hub's cache

local core = require "lockstep.core"
local files = require "lockstep.core.files"
local hub = require "lockstep.hub"

local M = {}

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
  if not hub.is_name(name) then
    fail('there is no folder %s, and a name of the Hub would be OWNER/MODEL', name)
  end
  return hub.snapshot("model", name, caller or "models")
end

return M
