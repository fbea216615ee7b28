--- Writes a model as a folder that transformers, PEFT and vLLM load.
---
---     runs/x/model/
---       config.json, tokenizer.json, ...              copied from `like`
---       model-00001-of-00002.safetensors, ...         or model.safetensors, where one file is enough
---       model.safetensors.index.json                  which file holds which tensor
---
--- Everything is written into DIR.lockstep-save/new-1f2e3d4c, which takes the name DIR once it is complete and on the
--- disk. A model that was there is moved to DIR.lockstep-save/old, and removed. A process that is killed in between
--- leaves that folder, and the next save into DIR makes good of it.

local across = require "lockstep.sharding.across"
local agreement = require "lockstep.state.agreement"
local config_of = require "lockstep.models.config"
local core = require "lockstep.core"
local core_safetensors = require "lockstep.core.safetensors"
local dist = require "lockstep.distributed"
local files = require "lockstep.core.files"
local folder = require "lockstep.models.folder"
local few_bits = require "lockstep.nn.few_bits"
local model_parts = require "lockstep.models.parts"
local nn = require "lockstep.nn"
local plain = require "lockstep.plain"
local removal = require "lockstep.state.removal"
local replicas = require "lockstep.state.replicas"
local schedule_free = require "lockstep.optim.schedule_free"
local splits = require "lockstep.nn.splits"
local stage_parameters = require "lockstep.sharding.pipeline.parameters"

local M = {}

local function fail(message, ...) error(message:format(...), 0) end

--- Returns whether a file is copied from `like`: configs, tokenizers, templates and licences, but no weights.
local function is_companion(name)
  if name:match("%.index%.json$") then return false end
  return name:match("%.json$") or name:match("%.jinja$") or name:match("%.txt$") or name:match("%.model$")
    or name:match("%.py$") or name == "LICENSE" or name == "NOTICE"
end

local function is_weights(name)
  return name == "model.safetensors" or name:match("^model%-%d+%-of%-%d+%.safetensors$")
    or name == "model.safetensors.index.json"
end

local function is_of_model(name) return is_companion(name) or is_weights(name) end

--- Returns the dtype that all weights have. Buffers may have another one.
local function dtype_name(model, state)
  local name, is_buffer = nil, {}
  for buffer in model:named_buffers() do is_buffer[buffer] = true end
  for tensor_name, tensor in pairs(state) do
    local own = not is_buffer[tensor_name] and tostring(tensor.dtype):match("%w+$") or name
    if name and name ~= own then return nil end
    name = own
  end
  return name
end

--- Returns a config without empty tables, which could be arrays or objects: transformers takes an absent key as its
--- default, which is empty. Leaves quantization_config out, too: the weights are whole now.
local function without_empty(config)
  local kept = {}
  for key, value in pairs(config) do
    if key ~= "quantization_config" and (type(value) ~= "table" or next(value) ~= nil) then kept[key] = value end
  end
  return kept
end

--- Puts the dtype of the weights into config.json, and the model's type if it has none. Without a type transformers
--- does not open a folder. It loads weights in the dtype that config.json names, and would round them to another one.
--- Sets tie_word_embeddings to false where the model has been untied.
local function completed(text, model, state)
  local config, name, added = config_of.decode(text), dtype_name(model, state), ""
  if config.quantization_config or model.config_changes then
    config = plain.copy(without_empty(config), model.config_changes)
    text = core.json_encode(config, 2) .. "\n"
  end
  if not config.model_type then added = ('\n  "model_type": "%s",'):format(model.model_type) end
  if name and not config.dtype and not config.torch_dtype then added = added .. ('\n  "dtype": "%s",'):format(name) end
  if model.settings and model.settings.tie_word_embeddings == false then
    text = text:gsub('("tie_word_embeddings"%s*:%s*)true', "%1false")
  end
  if added ~= "" then text = text:gsub("{", function(brace) return brace .. added end, 1) end
  if not name then return text end
  return (text:gsub('("torch_dtype"%s*:%s*)"%w+"', '%1"' .. name .. '"')
    :gsub('("dtype"%s*:%s*)"%w+"', '%1"' .. name .. '"'))
end

--- Splits the tensors into files of at most `max_bytes`, in the order of their names. A larger tensor has a file of
--- its own.
---@param state table<string, torch.Tensor>
---@param max_bytes integer
---@return string[][] files names of the tensors of each
---@return integer total bytes
local function split(state, max_bytes)
  local parts, held, total = { {} }, 0, 0
  for _, name in ipairs(plain.keys(state)) do
    local bytes = state[name]:numel() * state[name]:element_size()
    if held > 0 and held + bytes > max_bytes then
      parts[#parts + 1] = {}
      held = 0
    end
    table.insert(parts[#parts], name)
    held, total = held + bytes, total + bytes
  end
  return parts, total
end

local function write_weights(path, state, max_bytes)
  local parts, total = split(state, max_bytes)
  local map, elements = {}, 0
  for i, names in ipairs(parts) do
    local file = #parts == 1 and "model.safetensors" or ("model-%05d-of-%05d.safetensors"):format(i, #parts)
    local tensors = {}
    for _, name in ipairs(names) do
      tensors[name], map[name] = state[name]:contiguous(), file
      elements = elements + state[name]:numel()
    end
    core_safetensors.write(path .. "/" .. file, tensors, { format = "pt" }, "safetensors")
  end
  if #parts > 1 then
    local index = { metadata = { total_size = total, total_parameters = elements }, weight_map = map }
    core.write_file(path .. "/model.safetensors.index.json", { core.json_encode(index, 2), "\n" })
  end
end

local function read(from, name)
  local text, reason = plain.read_file(from .. "/" .. name)
  if not text then fail("cannot copy %s/%s (%s)", from, name, reason) end
  return text
end

local function write_companions(path, model, like, state)
  for _, name in ipairs(like and files.list(like) or {}) do
    if is_companion(name) then
      local text = read(like, name)
      core.write_file(path .. "/" .. name, { name == "config.json" and completed(text, model, state) or text })
    end
  end
  if like then return end
  if model.config_text then
    return core.write_file(path .. "/config.json", { completed(model.config_text, model, state) })
  end
  local config = {}
  for key, value in pairs(without_empty(model.config)) do config[key] = value end
  config.architectures, config.model_type = { model.class_name }, model.model_type
  config.torch_dtype, config.dtype = nil, dtype_name(model, state)
  core.write_file(path .. "/config.json", { core.json_encode(config, 2), "\n" })
end

--- Copies what the folder held and the new model does not write: a tokenizer, a licence, a user's notes.
local function keep_companions(path, old)
  local written = {}
  for _, name in ipairs(files.list(path)) do written[name] = true end
  for _, name in ipairs(files.list(old)) do
    if is_companion(name) and not written[name] then core.write_file(path .. "/" .. name, { read(old, name) }) end
  end
end

--- Removes the model that was in `path`. Texts that came while the new one was written go there, too.
local function retire(path, old)
  local is_there = {}
  for _, name in ipairs(files.list(path)) do is_there[name] = true end
  for _, name in ipairs(files.list(old)) do
    if is_companion(name) and not is_there[name] then files.rename(old .. "/" .. name, path .. "/" .. name) end
  end
  removal.make_room(old, is_of_model)
end

--- The keys of a config that tell one architecture and size from another.
local SHAPE = { "model_type", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
  "vocab_size" }

--- Raises if `like` is a folder of another model: its config.json would not describe the weights.
local function check_like(model, like)
  local text = plain.read_file(like .. "/config.json")
  if not text then fail("like = %s holds no config.json", like) end
  local changes = model.config_changes or {}
  local function compare(name, own, other)
    own, other = plain.given(own), plain.given(other)
    if type(own) == "table" then own = own[1] end
    if type(other) == "table" then other = other[1] end
    if own == nil or other == nil or own == other then return end
    fail('like = %s has %s "%s", but the model has "%s"; give the folder that the model comes from, or leave like out',
      like, name, tostring(other), tostring(own))
  end
  local function compare_shape(own, other)
    for _, name in ipairs(SHAPE) do compare(name, own[name], other[name]) end
  end
  local own, other = model.config or {}, config_of.decode(text, like .. "/config.json")
  compare("architectures", own.architectures, changes.architectures or other.architectures)
  compare_shape(own, other)
  if type(own.text_config) == "table" and type(other.text_config) == "table" then
    compare_shape(own.text_config, other.text_config)
  end
end

--- A folder that is there already gets the model if its files are those of a model; none but weights are removed.
local function check_target(path)
  local names = files.list(path)
  for _, name in ipairs(names) do
    if not is_of_model(name) then
      fail("%s holds %s, which is no file of a model; save into a folder of its own", path, name)
    end
  end
  return #names > 0
end

--- Returns the model itself of what sharding.data_parallel or sharding.parallelize returned.
local function unwrap(model)
  if across.is_one(model) then model = model:callable() end
  if type(model) == "table" and type(model.layouts) ~= "function" and nn.is_module(model.module) then
    model = model.module
  end
  if type(model) == "table" and type(model.layouts) == "function" then return model end
  core.raise("models.save: expected a model, or what sharding.data_parallel or sharding.fully_shard returned, not a "
    .. type(model))
end

--- Returns the tensors by their names on disk. A sharded or split model gathers its parameters, and one in stages sends
--- them to `holder`, the first rank that has the model, or this part of one: collective.
local function disk_state(model, holder)
  local state = few_bits.whole_state(model, model:state_dict())
  local place = stage_parameters.of_any(model:parameters())
  place = place and place.group and place or nil -- of a pipeline
  local first, copies = place and place.group:ranks()[1] or dist.rank(), {} -- of the pipeline that the holder is in
  for name, p in model:named_parameters() do
    local found, own = splits.of(p), stage_parameters.of(p)
    local whole = found and splits.whole(p, found)
    if whole and (first == holder or model.part) then state[name] = whole:cpu() end
    copies[name] = own and own.is_copy
  end
  if place and first == holder then state = model_parts.of_stages(state, copies, place.group) end
  if place and dist.rank() ~= holder then return state end
  return model.layouts(setmetatable({ state_dict = function() return state end }, { __index = model }))[1]
end

--- Removes what is left of a save that was killed. Where it came between the two renames, DIR gets a model first: the
--- one that was complete, or else the one before it.
local function recover(path, work)
  local new, has_old = {}, false
  for _, name in ipairs(files.list(work)) do
    local is_new = name:match "^new%-%x+$"
    if is_new then new[#new + 1] = name elseif name == "old" then has_old = true end
    local foreign = (is_new or name == "old") and removal.foreign(work .. "/" .. name, is_of_model) or nil
    if foreign or not (is_new or name == "old") then
      fail("%s is where a save keeps its files, and holds %s, which none wrote; move it away", work,
        foreign and name .. "/" .. foreign or name)
    end
  end
  if has_old and #files.list(path) == 0 then
    files.rename(work .. "/" .. (#new == 1 and table.remove(new) or "old"), path)
  end
  if #files.list(work .. "/old") > 0 then retire(path, work .. "/old") end
  for _, name in ipairs(new) do removal.make_room(work .. "/" .. name, is_of_model) end
  files.remove_folder(work, {})
end

local function write(model, state, path, o)
  path = path:gsub("(.)/+$", "%1")
  local like = o.like and folder.find(o.like)
  local work = path .. ".lockstep-save"
  if like then check_like(model, like) end
  recover(path, work)
  local replaces = check_target(path)
  core.make_folder(work)
  local new, old = files.temporary_folder(work .. "/new-"), work .. "/old"
  write_weights(new, state, o.max_shard_bytes)
  write_companions(new, model, like, state)
  if replaces then keep_companions(new, path) end
  files.sync(new)
  if replaces then files.rename(path, old) else files.remove(path) end
  files.rename(new, path)
  if replaces then retire(path, old) end
  files.remove_folder(work, {})
end

--- Removes a folder that models.save or lora.save wrote. A folder that holds a file of anyone else stays.
---@param path string
function M.remove(path)
  removal.remove(path, function(name) return is_of_model(name) or name == "adapter_model.safetensors" end)
end

--- Writes the folder on rank 0. Collective: every rank calls this; all return when the folder is complete, or all get
--- the error.
---@param given models.CausalLM|sharding.DataParallel|sharding.FullyShard|sharding.Pipeline|any[] a model, or its parts
---@param path string
---@param o {like: string?, max_shard_bytes: integer}
function M.save(given, path, o)
  local is_list = type(given) == "table" and getmetatable(given) == nil and #given > 0
  local own = is_list and plain.copy(given) or { given }
  for i, model in ipairs(own) do own[i] = unwrap(model) end
  local model = own[1]
  agreement.begin("models.save") -- before the gathering of a sharded model
  for _, one in ipairs(own) do replicas.check("models.save", one) end
  local params = {}
  for _, one in ipairs(own) do
    for _, p in ipairs(one:parameters()) do params[#params + 1] = p end
  end
  schedule_free.around(params, function()
    local state = model_parts.join(own, disk_state)
    for name in pairs(state) do
      plain.check(not name:find("%.lora_%w+"),
        'models.save: the model has adapters ("%s"); call lora.merge before, or save them with lora.save', name)
    end
    agreement.together("models.save", function()
      if dist.rank() == 0 then write(model, state, path, o) end
    end)
  end)
end

return M
