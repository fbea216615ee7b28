--- generation_config.json: what a model's makers ask of generation.

local core = require "lockstep.core"
local core_files = require "lockstep.core.files"
local plain = require "lockstep.plain"

local M = {}

local function fail(message, ...) core.raise("models: " .. message:format(...)) end

--- Keys that models.generate has as an option of this name.
local OPTIONS = { min_p = "min_p", repetition_penalty = "repetition_penalty", suppress_tokens = "suppress",
  begin_suppress_tokens = "begin_suppress", forced_bos_token_id = "forced_begin", forced_eos_token_id = "forced_end",
  max_new_tokens = "max_new_tokens" }

--- Keys that count if do_sample is true.
local SAMPLING = { temperature = 1, top_k = 50, top_p = 1 }

--- Keys that choose no token: ids for padding, settings of caches, results and transformers itself.
local HARMLESS = plain.words [[
  _commit_hash _from_model_config assistant_confidence_threshold assistant_early_exit assistant_lookbehind
  bos_token_id cache_config cache_implementation chat_format compile_config decoder_start_token_id disable_compile
  do_sample eos_token_id is_assistant low_memory max_length max_matching_ngram_size max_time num_assistant_tokens
  num_assistant_tokens_schedule output_attentions output_hidden_states output_logits output_scores pad_token_id
  prefill_chunk_size prompt_lookup_num_tokens return_dict_in_generate target_lookbehind token_healing
  transformers_version use_cache
]]

--- Values with which a key has no effect.
local NEUTRAL = { bad_words_ids = {}, constraints = {}, diversity_penalty = 0, early_stopping = false,
  encoder_no_repeat_ngram_size = 0, encoder_repetition_penalty = 1, epsilon_cutoff = 0, eta_cutoff = 0,
  force_words_ids = {}, guidance_scale = 1, length_penalty = 1, min_length = 0, no_repeat_ngram_size = 0,
  num_beam_groups = 1, num_beams = 1, num_return_sequences = 1, remove_invalid_values = false,
  renormalize_logits = false, typical_p = 1 }

local function is_neutral(key, value)
  local neutral = NEUTRAL[key]
  return value == neutral or type(neutral) == "table" and type(value) == "table" and next(value) == nil
end

--- Prints a line on rank 0 with the keys that models.generate does not read.
local function name_unread(file)
  local unread = plain.keys(file, function(key, value)
    return plain.given(value) ~= nil and not OPTIONS[key] and not SAMPLING[key] and not HARMLESS[key]
      and not is_neutral(key, value)
  end)
  for i, key in ipairs(unread) do unread[i] = ('"%s"'):format(key) end
  if #unread > 0 and tonumber(os.getenv "RANK" or 0) == 0 then
    io.stderr:write(("lockstep: models: models.generate reads no %s of generation_config.json\n"):format(
      table.concat(unread, ", ")))
  end
end

--- Returns options of models.generate as the file sets them, and eos_token_id. Without do_sample the temperature is 0.
--- Both are nil if there is no such file.
---@param folder string
---@return table<string, any>? options
---@return integer|integer[]|nil stop_ids
function M.read(folder)
  local path = folder .. "/generation_config.json"
  local text, reason = plain.read_file(path)
  if not text and core_files.kind(path) then fail("cannot read %s", reason) end
  if not text then return nil end
  local file = core.json_decode(text, path)
  if type(file) ~= "table" then fail("%s must hold a JSON object", path) end
  name_unread(file)
  local options = { temperature = 0 }
  for key, option in pairs(OPTIONS) do options[option] = plain.given(file[key]) end
  if options.forced_begin then options.forced_begin = { options.forced_begin } end
  if type(options.forced_end) == "number" then options.forced_end = { options.forced_end } end
  if file.do_sample == true then
    for key, default in pairs(SAMPLING) do
      local value = plain.given(file[key])
      if value == nil then value = default end
      options[key] = value
    end
    if options.top_k == 0 then options.top_k = nil end
  end
  local id = file.eos_token_id
  return options, (type(id) == "number" or type(id) == "table") and id or nil
end

return M
