--- Files of samples and of tensors.
---
---     for sample in data.jsonl("train.jsonl.gz") do ... end
---     model:load_state_dict(data.safetensors("model.safetensors"))

local cache = require "lockstep.data.cache"
local core = require "lockstep.core"
local core_safetensors = require "lockstep.core.safetensors"
local options = require "lockstep.options"

local M = {}

--- What null in JSON becomes.
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
  local path = cache.folder() .. "/data/" .. name
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

-- Sources and loaders ---------------------------------------------------------------------------------

--- Returns samples by number: `#source` of them, `source[i]` in any order, from files and folders.
---
---     local source = data.source("train.jsonl")
---     print(#source, source[1].text, source:place(1))
---
--- .jsonl and .ndjson: a sample is what the JSON of a line says. .txt: a line, {text = ...}. .tar and .tgz
--- (WebDataset): the members of one stem, {__key__ = stem, jpg = bytes, json = table, ...}. Each also as .gz. Blank
--- lines are no samples. A folder gives its files by name. An index is built once and kept; a file that has changed is
--- an error.
---
--- Options: format, "jsonl", "lines", "text" (a file is a sample, {text = ...}) or "tar", where names do not tell;
--- cache, the folder of indexes and unpacked .gz files (default: "index" in $LOCKSTEP_CACHE).
---@param paths string|string[]
---@param opts {format: string?, cache: string?}?
---@return data.Source
function M.source(paths, opts) return require("lockstep.data.source").source(paths, opts) end

--- Returns a source of which every epoch has the same count of each of several, exact to one sample.
---
---     local both = data.mix({ web, books }, { weights = { 3, 1 } })
---
--- Options: weights (default: as many as each has, so that an epoch has every sample once); size, samples of an epoch
--- (default: of all sources together). A source that an epoch needs a part of goes on in the next one (by data.loader);
--- one that is too small begins again.
---@param sources (data.Source|table[])[]
---@param opts {weights: number[]?, size: integer?}?
---@return data.Source
function M.mix(sources, opts) return require("lockstep.data.source").mix(sources, opts) end

--- Iterates over a source's samples: shuffled, split over the ranks, mapped ahead by threads, and resumed exactly.
---
---     local loader = data.loader { source = source, map = "my_map", workers = 2, seed = 1 }
---     run:state { model = model, loader = loader }
---     for step, sample in run:steps(loader, 1000) do ... end
---
--- map: the name of a module beside the script that returns function(sample, options); each worker has it in a Lua
--- state of its own. What it returns travels to the training: values, tables and tensors. math.random is seeded for
--- each sample. Without workers the map runs in between, with the same results, and may be a function.
---
--- Options: source; map; options, for the map; workers = 0; prefetch = 4, samples ahead of each worker; shuffle = true;
--- seed = 0; epochs (default: without end); on_error = "error", or "skip": reports and counts a sample that cannot be
--- read or mapped (loader.skipped); drop_last = false or pad = false, where ranks do not divide the samples; rank and
--- world (default: this run's; 0 and 1 let every rank read all).
---@param opts data.LoaderOptions
---@return data.Loader
function M.loader(opts) return require("lockstep.data.loader")(opts) end

return M
