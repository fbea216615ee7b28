--- Files of samples and of tensors.
---
---     for sample in data.jsonl("train.jsonl.gz") do ... end
---     model:load_state_dict(data.safetensors("model.safetensors"))

local core = require "lockstep.core"
local core_safetensors = require "lockstep.core.safetensors"
local options = require "lockstep.options"

local M = {}

--- The value of null in JSON.
M.null = core.null

--- Returns the tensors of a safetensors file by name, and its metadata, a table of strings.
---
--- On the CPU a tensor's memory is the mapped file, which the system reads as it is used: weights that are copied into
--- a model take no second copy on the host. Changing such a tensor does not change the file. The file may be replaced
--- or deleted meanwhile, but not shortened in place. The whole header is checked before anything is returned.
---
---     model:load_state_dict(data.safetensors("model.safetensors"))
---@param path string
---@param opts {device: string?}? where the tensors go; default "cpu"
---@return table<string, torch.Tensor> tensors, table<string, string> metadata
function M.safetensors(path, opts)
  if type(path) ~= "string" then core.raise("data.safetensors: the path must be a string, not a " .. type(path)) end
  local o = options.read("data.safetensors", opts, { device = "cpu" })
  local mapped, metadata = core_safetensors.read(path, "data.safetensors")
  local tensors = {}
  for name, tensor in pairs(mapped) do tensors[name] = tensor:to { device = o.device } end
  return tensors, metadata
end

--- Writes tensors by name, as data.safetensors returns them and model:state_dict() gives them. The file appears
--- under its name once it is complete.
---
---     if dist.rank() == 0 then data.save_safetensors(run.dir .. "/model.safetensors", model:state_dict()) end
---@param path string
---@param tensors table<string, torch.Tensor>
---@param opts {metadata: table<string, string>?}?
function M.save_safetensors(path, tensors, opts)
  local o = options.read("data.save_safetensors", opts, { metadata = {} })
  if type(tensors) ~= "table" then
    core.raise("data.save_safetensors: the tensors must be a table by name, not a " .. type(tensors))
  end
  core_safetensors.write(path, tensors, o.metadata, "data.save_safetensors")
end

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
