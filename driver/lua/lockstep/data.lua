--- Files of samples and of tensors.
---
---     for sample in data.jsonl("train.jsonl.gz") do ... end
---     model:load_state_dict(data.safetensors("model.safetensors"))

local core = require "lockstep.core"
local safetensors = require "lockstep.safetensors"

local M = {}

--- What null in JSON becomes.
M.null = core.null

M.safetensors = safetensors.read
M.save_safetensors = safetensors.write

--- The path of a file that set-up fetched, "digits.csv.gz": in $LOCKSTEP_CACHE/data.
---@param name string
---@return string
function M.path(name)
  local cache = os.getenv("LOCKSTEP_CACHE")
  if not cache then
    local home = os.getenv("XDG_CACHE_HOME") or (os.getenv("HOME") or "") .. "/.cache"
    cache = home .. "/lockstep"
  end
  local path = cache .. "/data/" .. name
  local file = io.open(path, "rb")
  if not file then
    core.raise(string.format("data.path: %s is not there; ./run and ./test fetch it, or set LOCKSTEP_CACHE", path))
  end
  file:close() ---@diagnostic disable-line: need-check-nil
  return path
end

--- Lines of a text file, which may be gzipped, without their ends. The file is read as the lines are asked
--- for: it may be larger than memory.
---@param path string
---@return fun(): string?
function M.lines(path)
  local file = core.open_lines(path)
  return function()
    local line = file:next()
    return line and (line:gsub("\r$", ""))
  end
end

--- Values of a file with one JSON value per line, which may be gzipped. Blank lines are passed over. An
--- error names the line.
---@param path string
---@return fun(): any
function M.jsonl(path)
  local number = 0
  local file = core.open_lines(path)
  return function()
    for line in function() return file:next() end do
      number = number + 1
      if line:find("%S") then return core.json_decode(line, string.format("%s, line %d", path, number)) end
    end
  end
end

return M
