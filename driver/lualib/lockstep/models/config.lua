--- config.json: what an architecture reads from it, in the forms that transformers 4 and 5 write.
---
---     local raw = config.read("Qwen3-0.6B")
---     local c = config.settings("Qwen3ForCausalLM", raw, keys)      -- c.hidden_size, c.rope.rope_theta, ...
---
--- Folders open as transformers opens them. A key that transformers reads for this architecture, and that changes
--- results in a way that is not supported, is an error. Any other key that nobody reads is named in a printed line.

local core = require "lockstep.core"
local options = require "lockstep.options"
local plain = require "lockstep.plain"
local quantized = require "lockstep.models.quantized"
local torch = require "lockstep.torch"

local M = {}

local check, fail = plain.checks "models: "

--- Keys that leave logits and gradients as they are: names, ids of special tokens, settings of generation and of
--- transformers itself. A head for labels reads num_labels and id2label by itself: models.classification.
local HARMLESS = plain.words [[
  _attn_implementation_autoset _commit_hash _name_or_path add_cross_attention architectures attn_implementation
  auto_map bad_words_ids begin_suppress_tokens bos_token_id chunk_size_feed_forward decoder_start_token_id
  diversity_penalty do_sample dtype early_stopping encoder_no_repeat_ngram_size eos_token_id
  exponential_decay_length_penalty finetuning_task forced_bos_token_id forced_eos_token_id id2label initializer_range
  is_decoder is_encoder_decoder keys_to_ignore_at_inference label2id length_penalty max_length
  max_position_embeddings min_length model_max_length model_type name_or_path no_repeat_ngram_size num_beam_groups
  num_beams num_labels num_return_sequences output_attentions output_hidden_states output_scores pad_token_id prefix
  pretraining_tp problem_type pruned_heads remove_invalid_values repetition_penalty return_dict return_dict_in_generate
  sep_token_id suppress_tokens task_specific_params temperature tf_legacy_loss tie_encoder_decoder tokenizer_class
  top_k top_p torch_dtype torchscript transformers_version typical_p unsloth_fixed unsloth_version use_bfloat16
  use_cache
]]

--- Keys that transformers reads and that change results, with the only values that are supported. None: the weights
--- are stored in another form; models.quantized reads some.
local ONLY = {
  attention_dropout = { 0 }, hidden_act = { "silu" }, partial_rotary_factor = { 1 }, use_mrope = { false },
  quantization_config = {}, compression_config = {},
}

local function show(value) return type(value) == "string" and '"' .. value .. '"' or tostring(value) end

--- Returns the value of a config's text. Python writes Infinity and NaN, which are no JSON: where the text has them, a
--- huge number and null stand for them.
---@param text string
---@param path string? for messages
---@return any
function M.decode(text, path)
  local ok, value = pcall(core.json_decode, text, path)
  if ok then return value end
  local infinite = text:gsub("([:%[,]%s*%-?)Infinity", "%11e308"):gsub("([:%[,]%s*)NaN", "%1null")
  return core.json_decode(infinite, path)
end

--- Reads config.json of a folder.
---@param folder string
---@return table<string, any>
---@return string # the file's text
function M.read(folder)
  local path = folder .. "/config.json"
  local text, reason = plain.read_file(path)
  if not text then fail("cannot read %s (%s): a model's folder holds config.json and *.safetensors", path, reason) end
  local config = M.decode(text, path)
  if type(config) ~= "table" then fail("%s must hold a JSON object", path) end
  return config, text
end

--- Prints a line on rank 0.
---@param message string a format of the values
---@param ... any
local function note(message, ...)
  if tonumber(os.getenv "RANK" or 0) == 0 then io.stderr:write("lockstep: models: ", message:format(...), "\n") end
end
M.note = note

--- Throws unless eos_token_id of a file is a whole number, an array of such, or missing. A printed line names an id
--- that the vocabulary does not have: no sequence ends by it, as in transformers.
---@param name string of the file
---@param ids any
---@param vocab_size integer
function M.check_stop_ids(name, ids, vocab_size)
  if ids == nil or ids == core.null then return end
  for _, id in ipairs(type(ids) == "table" and ids or { ids }) do
    if not plain.is_whole(id, 0) then
      fail("eos_token_id of %s must be an id from 0 to %d, got %s", name, vocab_size - 1, show(id))
    elseif id >= vocab_size then
      note("eos_token_id %d of %s is beyond the vocabulary, which ends with %d: no sequence ends by it", id, name,
        vocab_size - 1)
    end
  end
end

local function get(raw, key)
  local value = raw[key]
  if value ~= nil and value ~= core.null then return value end
end

local DTYPES = { "float32", "bfloat16", "float16", "float64" }

--- Throws unless a dtype is one that weights can have.
---@param caller string
---@param dtype any
function M.check_dtype(caller, dtype)
  for _, name in ipairs(DTYPES) do
    if dtype == torch[name] then return end
  end
  core.raise(("%s: dtype must be torch.%s, got %s"):format(caller, table.concat(DTYPES, ", torch."), show(dtype)))
end

--- Returns the dtype that the config names ("dtype" in version 5, "torch_dtype" in 4), if it names one.
---@param raw table<string, any>
---@return torch.dtype?
function M.dtype(raw)
  local name = get(raw, "dtype") or get(raw, "torch_dtype")
  if name == nil then return nil end
  for _, known in ipairs(DTYPES) do
    if name == known then return torch[known] end
  end
  fail('config.json has the dtype "%s" (known: %s)', tostring(name), table.concat(DTYPES, ", "))
end

--- Returns the options of nn.rotary but for dim. Version 5 has rope_parameters; version 4 has rope_theta and
--- rope_scaling.
---@param raw table<string, any>
---@param default_theta number? 10000 by default
---@param is_partial boolean? whether the architecture may rotate a part of each head
---@return table<string, any>
function M.rope(raw, default_theta, is_partial)
  local given = get(raw, "rope_scaling") or get(raw, "rope_parameters") or {}
  if type(given) ~= "table" then fail("rope_parameters must be an object, got %s", tostring(given)) end
  local result = {}
  for key in pairs(given) do result[key] = get(given, key) end
  result.rope_type, result.type = result.rope_type or result.type or "default", nil
  result.rope_theta = result.rope_theta or get(raw, "rope_theta") or default_theta or 10000
  for _, key in ipairs { "rope_theta", "factor" } do
    local value = result[key]
    check(value == nil or type(value) == "number" and value > 0 and value < math.huge,
      "%s of the config must be a number above 0, got %s", key, show(value))
  end
  check((result.partial_rotary_factor or 1) == 1 or is_partial,
    "rope_parameters.partial_rotary_factor is %s; only 1 is supported", tostring(result.partial_rotary_factor))
  if not is_partial then result.partial_rotary_factor = nil end
  local longest = get(raw, "max_position_embeddings")
  if result.rope_type == "dynamic" then result.max_position_embeddings = longest end
  if result.rope_type == "llama3" or result.rope_type == "yarn" or result.rope_type == "longrope" then
    result.original_max_position_embeddings = get(raw, "original_max_position_embeddings")
      or result.original_max_position_embeddings or longest
    if not result.factor and longest and result.original_max_position_embeddings then
      result.factor = longest / result.original_max_position_embeddings
    end
  end
  return result
end

local ROPE_KEYS = { rope_parameters = true, rope_scaling = true, rope_theta = true,
  original_max_position_embeddings = true }

--- Keys whose null is not the default: no window; as many key heads as query heads; queries without a latent.
local NULL_IS_NONE = { sliding_window = true, num_key_value_heads = true, q_lora_rank = true }

local function is_one_of(value, list)
  for _, known in ipairs(list) do
    if value == known then return true end
  end
  return false
end

--- Throws unless a value is a whole number of at least 1.
---@param architecture string
---@param key string
---@param value any
function M.check_whole(architecture, key, value)
  check(plain.is_whole(value, 1), '%s: "%s" must be a whole number of at least 1, got %s', architecture, key,
    show(value))
end

-- The keys over which an architecture loops as it is built. No model comes near the limit; a damaged config would
-- build without end.
local COUNTS = { "num_hidden_layers", "depth", "num_experts", "num_local_experts" }
local MOST = 10000

local function check_counts(architecture, raw)
  for _, key in ipairs(COUNTS) do
    local value = get(raw, key)
    check(type(value) ~= "number" or value <= MOST, '%s: "%s" is %s; expected at most %d', architecture, key,
      show(value), MOST)
  end
end

--- Throws if a config, or a part of it such as vision_config, has more layers than there are tensors in the files:
--- each layer has one at least. It is cheap, and comes before anything is built.
---@param raw table<string, any>
---@param num_tensors integer
---@param path string of the folder
---@param part string? for messages
function M.check_layers(raw, num_tensors, path, part)
  for key, value in pairs(raw) do
    local name = (part or "") .. tostring(key)
    if type(value) == "table" and not part then
      M.check_layers(value, num_tensors, path, name .. ".")
    elseif (key == "num_hidden_layers" or key == "depth") and type(value) == "number" and value > num_tensors then
      core.raise(('models.load: config.json says "%s": %s, but the files in %s have %d tensors: some layers have none')
        :format(name, show(value), path, num_tensors))
    end
  end
end

local function check_type(architecture, key, value, default)
  if default == options.optional then return end
  if default == options.required then return M.check_whole(architecture, key, value) end
  check(type(value) == type(default), '%s: "%s" must be a %s, got %s', architecture, key, type(default), show(value))
end

--- Returns the option `ignore` as a list of keys: one is given, or a string in which commas split them.
---@param ignore any
---@return string[]
function M.ignored(ignore)
  if type(ignore) == "string" then
    local keys = {}
    for key in ignore:gmatch "[^,%s]+" do keys[#keys + 1] = key end
    return keys
  end
  check(ignore == nil or type(ignore) == "table", "ignore must be an array of the config's keys, got %s", show(ignore))
  return ignore or {}
end

--- Returns quantization_config of a config, unless it is ignored.
---@param raw table<string, any>
---@param ignore string[]
---@return table?
function M.quantization(raw, ignore)
  return not is_one_of("quantization_config", ignore) and get(raw, "quantization_config") or nil
end

local function check_value(architecture, key, value)
  local problem = key == "quantization_config" and quantized.problem(value)
  if is_one_of(value, ONLY[key]) or problem == nil then return end
  local way_out = ('ignore = { "%s" } computes as if it were absent'):format(key)
  check(#ONLY[key] ~= 0, '%s: the config has "%s": %s; %s', architecture, key, problem or "it is not supported",
    way_out)
  fail('%s: "%s" is %s; only %s is supported; %s', architecture, key, tostring(value), tostring(ONLY[key][1]), way_out)
end

--- Complains about keys that change results, and names those that nobody reads.
local function check_known(architecture, raw, keys, ignore)
  local unread = {}
  for key, value in pairs(raw) do
    local is_known = value == core.null or keys[key] ~= nil or HARMLESS[key] or ROPE_KEYS[key] or is_one_of(key, ignore)
    if not is_known and ONLY[key] then
      check_value(architecture, key, value)
    elseif not is_known then
      local meant = core.nearest(tostring(key), plain.keys(keys))
      unread[#unread + 1] = ('"%s"%s'):format(tostring(key), meant and (' (is "%s" meant?)'):format(meant) or "")
    end
  end
  if #unread == 0 then return end
  table.sort(unread)
  note("%s reads no %s of the config, nor does transformers", architecture, table.concat(unread, ", "))
end

--- Returns the values of `keys` in the config, and `rope`: the options of nn.rotary but for dim.
---
--- keys: names with defaults; options.required stands for a whole number that must be there, options.optional for a
--- value of any type. A default of rope_theta is that of `rope`, too. ignore: keys of the config that are passed over,
--- with no printed line.
---@param architecture string for messages
---@param raw table<string, any>
---@param keys table<string, any>
---@param ignore string[]?
---@return table<string, any>
function M.settings(architecture, raw, keys, ignore)
  check_known(architecture, raw, keys, ignore or {})
  check_counts(architecture, raw)
  local result = { rope = M.rope(raw, keys.rope_theta, keys.partial_rotary_factor ~= nil) }
  for key, default in pairs(keys) do
    local value
    if not is_one_of(key, ignore or {}) then value = get(raw, key) end
    if value ~= nil then
      check_type(architecture, key, value, default)
      result[key] = value
    elseif default == options.required then
      fail('%s: the config lacks "%s"', architecture, key)
    elseif default ~= options.optional and not (NULL_IS_NONE[key] and raw[key] == core.null) then
      result[key] = default
    end
  end
  return result
end

--- Returns the window of each layer, or false where a layer sees everything: of Qwen's keys use_sliding_window,
--- sliding_window, max_window_layers and layer_types.
---@param c table<string, any>
---@return (integer|false)[]
function M.windows(c)
  check(c.layer_types == nil or type(c.layer_types) == "table", "layer_types must be an array of names, got %s",
    show(c.layer_types))
  local windows = {}
  for i = 1, c.num_hidden_layers do
    local slides = c.use_sliding_window and c.sliding_window and i > c.max_window_layers
    if c.layer_types then
      local kind = c.layer_types[i]
      check(kind == "full_attention" or kind == "sliding_attention",
        'layer_types[%d] is %s (known: "full_attention", "sliding_attention")', i - 1, tostring(kind))
      slides = kind == "sliding_attention" and c.use_sliding_window
    end
    windows[i] = slides and c.sliding_window or false
  end
  return windows
end

return M
