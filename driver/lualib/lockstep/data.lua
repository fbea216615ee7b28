--- Files of samples, tensors, token ids and settings.
---
---     for sample in data.jsonl("train.jsonl.gz") do ... end
---     model:load_state_dict(data.safetensors("model.safetensors"))
---     local config = data.json("config.json")

local cache = require "lockstep.data.cache"
local core = require "lockstep.core"
local core_files = require "lockstep.core.files"
local core_safetensors = require "lockstep.core.safetensors"
local options = require "lockstep.options"
local plain = require "lockstep.plain"
local shards = require "lockstep.data.shards"
local tokens = require "lockstep.data.tokens"

local M = {}

--- The value of null in JSON.
M.null = core.null

--- Returns the tensors of a safetensors file by name, and its metadata, a table of strings.
---
--- The path may also be an index (model.safetensors.index.json), or a folder: all files that the index names are then
--- read as one. Throws where a file or a tensor of the index is missing. In a folder, model.safetensors comes before an
--- index.
---
--- On the CPU a tensor's memory is the mapped file, which the system reads as it is used: weights that are copied into
--- a model take no second copy on the host. Changing such a tensor does not change the file. The file may be replaced
--- or deleted meanwhile, but not shortened in place. The whole header is checked before anything is returned.
---
---     model:load_state_dict(data.safetensors("model.safetensors"))
---@param path string a file, an index or a folder
---@param opts {device: string?}? where the tensors go; default "cpu"
---@return table<string, torch.Tensor> tensors, table<string, string> metadata
function M.safetensors(path, opts)
  if type(path) ~= "string" then core.raise("data.safetensors: the path must be a string, not a " .. type(path)) end
  local o = options.read("data.safetensors", opts, { device = "cpu" })
  local mapped, metadata = shards.read(path, "data.safetensors")
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
  plain.check(type(tensors) == "table",
    "data.save_safetensors: the tensors must be a table by name, not a %s", type(tensors))
  core_safetensors.write(path, tensors, o.metadata, "data.save_safetensors")
end

--- Returns the value in a JSON file. Throws with the file and the place of the first mistake.
---
---     local config = data.json(dir .. "/config.json")
---@param path string
---@return any # null as data.null
function M.json(path)
  if type(path) ~= "string" then core.raise("data.json: the path must be a string, not a " .. type(path)) end
  local text, reason
  -- A pipe is opened once: after a first reader has left, its writer is gone.
  local pipe = core_files.kind(path) == "pipe" and io.open(path, "rb")
  if pipe then
    text = pipe:read("*a")
    pipe:close()
  else
    text, reason = core_files.read(path)
  end
  if not text then core.raise("data.json: cannot open " .. reason) end
  return core.json_decode(text, path)
end

--- Writes a value as JSON. The file appears under its name once it is complete. Throws, naming the path within the
--- value, where JSON cannot hold it: functions, tensors, NaN, infinity, arrays with holes, text that is not UTF-8.
---
---     data.save_json(dir .. "/config.json", config, { indent = 2 })
---
--- Objects that were read from JSON keep the order of their keys, whole numbers that were written as 1.0 stay so, and
--- empty arrays stay arrays. In other tables keys are sorted, and an empty table is an object: see data.ordered and
--- data.array.
---@param path string
---@param value any nil, data.null, booleans, numbers, strings and tables of them
---@param opts {indent: integer?}? spaces for each level; default 0: all on one line
function M.save_json(path, value, opts)
  if type(path) ~= "string" then core.raise("data.save_json: the path must be a string, not a " .. type(path)) end
  local o = options.read("data.save_json", opts, { indent = 0 })
  core.write_file(path, { core.json_encode(value, o.indent, true), "\n" })
end

--- Writes each value as a line of JSON, as data.jsonl and data.source read them. See data.save_json.
---
---     data.save_jsonl("chats.jsonl", { { messages = messages } })
---@param path string
---@param values any[]
function M.save_jsonl(path, values)
  if type(path) ~= "string" then core.raise("data.save_jsonl: the path must be a string, not a " .. type(path)) end
  plain.check(type(values) == "table", "data.save_jsonl: the values must be an array, not a %s", type(values))
  local count, lines = 0, {}
  for key in pairs(values) do
    plain.check(plain.is_whole(key, 1),
      "data.save_jsonl: the values must be an array, but %s is a key; put a single value in braces",
      type(key) == "string" and '"' .. key .. '"' or tostring(key))
    count = count + 1
  end
  for i = 1, count do
    plain.check(values[i] ~= nil, "data.save_jsonl: the values must be an array without holes, but [%d] is nil", i)
  end
  for i, value in ipairs(values) do
    local is_json, line = pcall(core.json_encode, value, 0, true)
    if not is_json then core.json_encode(values, 0, true) end -- raises, and names the place within `values`
    lines[i] = line .. "\n"
  end
  core.write_file(path, lines)
end

--- Marks a table as an array for JSON and for chat templates, where an empty table is an object otherwise.
---
---     data.save_json("tool.json", { name = "now", required = data.array {} })
---@generic T: table
---@param value T changed in nothing that Lua sees
---@return T value the same table
function M.array(value)
  if type(value) ~= "table" then core.raise("data.array: expected a table, got a " .. type(value)) end
  core.json_shapes()[value] = { array = true }
  return value
end

--- Sets the order of a table's keys for JSON and for chat templates. Keys that `keys` leaves out follow, sorted.
---
---     local tool = data.ordered({ name = "now", description = "The time." }, { "name", "description" })
---@generic T: table
---@param value T changed in nothing that Lua sees
---@param keys string[]
---@return T value the same table
function M.ordered(value, keys)
  if type(value) ~= "table" then core.raise("data.ordered: expected a table, got a " .. type(value)) end
  plain.check(type(keys) == "table", "data.ordered: the keys must be an array of strings, got a %s", type(keys))
  local copy = {}
  for i, key in ipairs(keys) do
    plain.check(type(key) == "string", "data.ordered: key %d must be a string, got a %s", i, type(key))
    copy[i] = key
  end
  core.json_shapes()[value] = { keys = copy }
  return value
end

--- Opens a flat file of token ids, as nanoGPT and Megatron write them: numbers of one width, little-endian, no header.
--- The file is mapped: a slice reads its own bytes only.
---
---     local tokens = data.tokens("train.bin", { dtype = "uint16", vocab_size = 50257 })
---     local ids = tokens:slice(0, 1024) -- int64 [1024], of tokens.size
---@param path string
---@param opts {dtype: string?, vocab_size: integer?}? dtype: "uint16" (default), "int32", "uint32" or "int64"; with
---vocab_size each slice is checked
---@return lockstep.data.Tokens
function M.tokens(path, opts) return tokens.open(path, opts) end

--- The path of a file that set-up fetched, "digits.csv.gz": in $LOCKSTEP_CACHE/data, or in the archive of ./package.
---@param name string
---@return string
function M.path(name)
  local places = cache.places(name)
  for _, path in ipairs(places) do
    if core_files.kind(path) == "file" then return path end
  end
  core.raise(("data.path: %s is not there; ./run and ./test fetch it, or set LOCKSTEP_CACHE"):format(
    table.concat(places, " or ")))
end

--- Lines of a text file, which may be gzipped, without their ends. The file is read as the lines are asked
--- for: it may be larger than memory.
---@param path string
---@return fun(): string?
function M.lines(path)
  if type(path) ~= "string" then core.raise("data.lines: the path must be a string, not a " .. type(path)) end
  local file = core.open_lines(path)
  return function()
    local line = file:next()
    return line and (line:gsub("\r$", ""))
  end
end

--- Values of a file with one JSON value per line, which may be gzipped. Blank lines are passed over. An
--- error names the line. data.source also reads a file that is one array.
---@param path string
---@return fun(): any
function M.jsonl(path)
  if type(path) ~= "string" then core.raise("data.jsonl: the path must be a string, not a " .. type(path)) end
  local number = 0
  local file = core.open_lines(path)
  return function()
    for line in function() return file:next() end do
      number = number + 1
      if number == 1 and line:find "^%s*%[%s*$" then
        core.raise(("data.jsonl: %s is one JSON array, and not one value per line; data.source(path, { format = "
          .. '"json" }) has its elements as samples'):format(path))
      end
      if line:find("%S") then return core.json_decode(line, string.format("%s, line %d", path, number)) end
    end
  end
end

--- Reads the values that another program appends to a file, one JSON value per line, such as rollouts of an inference
--- engine. The file need not exist yet.
---
---     local tail = data.tail("rollouts.jsonl")
---     local group = tail()                          -- waits for the next line
---     local more = tail:try()                       -- nil if there is none yet
---     run:state { model = model, rollouts = tail }  -- a resumed run goes on after the last line returned
---
--- Only one rank should wait, in run.alone, and send others what it read. A file that shrinks or that another one
--- replaces is an error, and so is a line that is not JSON. Blank lines are skipped.
---@param path string
---@return data.Tail
function M.tail(path) return require("lockstep.data.tail")(path) end

-- Sources and loaders ---------------------------------------------------------------------------------

--- Returns samples by number: `#source` of them, `source[i]` in any order, from files and folders.
---
---     local source = data.source("train.jsonl")
---     print(#source, source[1].text, source:place(1))
---
--- A sample of .jsonl and .ndjson is the JSON value of a line. A .json file that is one array, [{...}, {...}], has a
--- sample for each element; others have one for each line. A sample of .txt is a line, {text = ...}. A sample of .tar
--- and .tgz (WebDataset) has the members of one stem, {__key__ = stem, jpg = bytes, json = table, ...}. All may end in
--- .gz. A sample of .parquet is a row, with a field for each column. Blank lines are skipped.
---
--- A folder gives its files in the order of their names, without .json unless format = "json"; "web-*.tar" names those
--- of a folder. An index is built once and kept. A file that has changed since is an error.
---
--- Options: `format`, where names do not tell it: "jsonl", "json", "lines", "text" (a file is a sample, {text = ...}),
--- "tar" or "parquet". `columns` are the columns of Parquet files to read (default: all). `cache` is the folder of
--- indexes and of unpacked .gz and Parquet files (default: "index" in $LOCKSTEP_CACHE).
---@param paths string|string[]
---@param opts {format: string?, cache: string?, columns: string[]?}?
---@return data.Source
function M.source(paths, opts) return require("lockstep.data.source").source(paths, opts) end

---@class data.Conversations: data.Source
---@field form string "messages", "ShareGPT", "Alpaca", "prompt/completion", "text", "preference pairs" or "prompt"
---@field kind "conversation"|"preference"|"prompt"
---@field folder string of the first file, where relative paths of pictures begin; "." of an array
---@field show fun(self: data.Conversations, opts: data.ShowOptions): string[] prints on rank 0 what was recognised, the
--- columns that nothing reads, and the first sample with the part that is learnt in [[ ]]. Returns the names of the
--- columns that are read or named, for batching.survey

---@class data.ShowOptions
---@field encode fun(row: table): table returns {input_ids =, loss_mask =}
---@field tokenizer text.Tokenizer
---@field reads string[]? other columns that the script reads

--- Opens conversations, preference pairs or prompts in any form that docs/chat.md lists: messages, ShareGPT, Alpaca,
--- prompt/completion, text, pairs. A sample becomes a row; `form` of the source says what the samples were.
---
---     local source = data.conversations("chats.jsonl")
---     print(source.form, #source, source[1].messages[1].role)
---
--- A row of a conversation or of a prompt has `messages`; of plain text, `text`. A row of a pair has `chosen` and
--- `rejected`, conversations from the prompt on, and `first`, the number of the first message behind the prompt. All
--- may have `tools`, `documents` and `chat_template_kwargs`. Other columns stay as they are, unless they have one of
--- these names. A sample that cannot be read is an error with its file and line.
---
--- The path is a file, a folder or a list, as for data.source; an array of samples; or a data set's name such as
--- "openai/gsm8k", or a folder in it, "openai/gsm8k/main", which is looked up in Hugging Face's local cache.
---
--- Options: `form`, one of the names above, makes samples of any other form an error. `kind` chooses among forms that a
--- sample has at once: "conversation", "preference" or "prompt". `split` chooses files of a data set of the Hub
--- (default: "train"), or of a folder like one. `roles` are further roles that the template knows, split by commas.
--- `cache` is that of data.source.
---@param path string|string[]|table[]
---@param opts {form: string?, kind: string?, split: string?, roles: string?, cache: string?}?
---@return data.Conversations
function M.conversations(path, opts) return require("lockstep.data.conversations")(path, opts) end

--- Mixes sources. Every epoch has the same count of samples of each source, exact to one sample.
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

--- Splits a source into samples to train on and samples that are held out. The same seed gives the same parts, as long
--- as the source has as many samples.
---
---     local train, held_out = data.split(source, { held_out = 0.1 })   -- a tenth; 500 holds out 500 samples
---
--- `groups` has a value for each sample. Samples with the same value land on the same side, so that a few more samples
--- than `held_out` may be held out. A sample with data.null has no group.
---@param source data.Source|table[]
---@param opts {held_out: number, seed: integer?, groups: any[]?} held_out: a share below 1, or a number of samples;
--- seed: default 0
---@return data.Source train
---@return data.Source held_out
function M.split(source, opts) return require("lockstep.data.source").split(source, opts) end

--- Iterates over a source's samples: shuffled, split over the ranks, mapped ahead by threads, and resumed exactly.
---
---     local loader = data.loader { source = source, map = "my_map", workers = 2, seed = 1 }
---     run:state { model = model, loader = loader }
---     for step, sample in run:steps(loader, 1000) do ... end
---
--- `map` names a module next to the script that returns function(sample, options). Each worker loads it in its own Lua
--- state and sends its results to the script: values, tables and tensors. `math.random` is seeded for each sample.
--- Without workers the map runs in the script's thread, with the same results, and may be a function.
---
--- Options: source; map; options, for the map; workers = 0; prefetch = 4, samples ahead of each worker.
---
--- The order: shuffle = true; seed = 0; epochs (default: no end); rank and world (default: this run's; 0 and 1 let
--- every rank read all samples). If the samples do not divide by the ranks: drop_last = false or pad = false.
---
--- A sample that cannot be read or mapped is an error. With on_error = "skip" it is reported and counted in
--- loader.skipped.
---
--- Collective if `world` is the number of all ranks, which then compare seed, source and order.
---@param opts data.LoaderOptions
---@return data.Loader
function M.loader(opts) return require("lockstep.data.loader")(opts) end

return M
