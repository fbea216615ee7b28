--- Files of samples.
---
---     for sample in data.jsonl("train.jsonl.gz") do ... end

local core = require "lockstep.core"

local M = {}

--- What null in JSON becomes.
M.null = core.null

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

--- Lines of a text file, which may be gzipped.
---@param path string
---@return fun(): string?
function M.lines(path) return core.read_file(path):gmatch("([^\r\n]+)") end

--- Values of a file with one JSON value per line, which may be gzipped. An error names the line.
---@param path string
---@return fun(): any
function M.jsonl(path)
  local number = 0
  local lines = core.read_file(path):gmatch("([^\n]*)\n?")
  return function()
    for line in lines do
      number = number + 1
      if line:find("%S") then
        local ok, value = pcall(core.json_decode, line)
        if not ok then core.raise(string.format("%s, line %d: %s", path, number, value)) end
        return value
      end
    end
  end
end

return M
