--- text.train_tokenizer: learns a byte-level BPE and writes the files that Hugging Face's libraries read.

local core = require "lockstep.core"
local core_text = require "lockstep.core.text"
local data = require "lockstep.data"
local jinja = require "lockstep.text.jinja"
local options = require "lockstep.options"
local plain = require "lockstep.plain"

local NAME = "text.train_tokenizer"

--- Qwen 2 and 3: contractions, words with one sign before them, single digits, signs, line ends, spaces.
local QWEN = [[(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+]]
  .. [[|\s+(?!\S)|\s+]]

local CHATML = [[
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\n' }}
    {%- if message.role == 'assistant' %}
        {%- generation %}{{- message.content + '<|im_end|>' }}{%- endgeneration %}
    {%- else %}
        {{- message.content + '<|im_end|>' }}
    {%- endif %}
    {{- '\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}
]]

--- The parts of tokenizer.json around the model.
local function parts_of(pattern)
  local level = { type = "ByteLevel", add_prefix_space = false, trim_offsets = true, use_regex = pattern == "gpt2" }
  local parts = {
    version = "1.0", added_tokens = data.array {}, pre_tokenizer = level, post_processor = level, decoder = level,
    model = { type = "BPE", vocab = data.ordered({}, {}), merges = data.array {} },
  }
  if pattern == "qwen3" then
    parts.normalizer = { type = "NFC" }
    parts.pre_tokenizer = { type = "Sequence", pretokenizers = {
      { type = "Split", pattern = { Regex = QWEN }, behavior = "Isolated", invert = false }, level } }
  elseif pattern ~= "gpt2" then
    core.raise(('%s: pattern must be "qwen3" or "gpt2", not "%s"'):format(NAME, tostring(pattern)))
  end
  return parts
end

--- Returns a function that returns one text after another.
local function iterator_of(texts)
  if plain.is_callable(texts) then return texts end
  plain.check(type(texts) == "table",
    "%s: texts must be an array of strings or a function that returns the next one, not a %s", NAME, type(texts))
  local i = 0
  return function()
    i = i + 1
    return texts[i]
  end
end

local function check_specials(tokens)
  local seen = {}
  for i, token in ipairs(tokens) do
    plain.check(type(token) == "string" and token ~= "", "%s: special_tokens[%d] must be a text, not %s", NAME, i,
      token == "" and "an empty one" or "a " .. type(token))
    plain.check(pcall(core.json_encode, token), "%s: special_tokens[%d] is not UTF-8", NAME, i)
    if seen[token] then core.raise(('%s: special_tokens has "%s" twice'):format(NAME, token)) end
    seen[token] = true
  end
  return seen
end

--- Raises for options that would be noticed after minutes of counting words, or never.
local function check_options(o)
  local least = 256 + #o.special_tokens
  if type(o.vocab_size) ~= "number" or not (o.vocab_size >= least and o.vocab_size < 2 ^ 31 and o.vocab_size % 1 == 0)
  then
    core.raise(("%s: vocab_size must be a whole number of at least %d, the 256 bytes and %d special tokens; got %s")
      :format(NAME, least, #o.special_tokens, tostring(o.vocab_size)))
  end
  plain.check(o.min_frequency >= 1 and o.min_frequency < 2 ^ 31 and o.min_frequency % 1 == 0,
    "%s: min_frequency must be a whole number of at least 1, got %s", NAME, o.min_frequency)
  plain.check(type(o.dir) == "string" and o.dir ~= "", "%s: dir must be the path of a folder, not %s", NAME,
    o.dir == "" and "an empty string" or "a " .. type(o.dir))
  if o.chat_template == nil then return end
  plain.check(type(o.chat_template) == "string" and pcall(core.json_encode, o.chat_template),
    "%s: chat_template must be the text of a template, in UTF-8", NAME)
  jinja.compile(o.chat_template, NAME .. ": chat_template")
end

--- Returns the ids of the learnt tokens. A special token that is one of them would have two ids.
local function vocabulary_of(tokens, special_tokens)
  local vocab = {}
  for i, token in ipairs(tokens) do vocab[token] = i - 1 end
  for i, token in ipairs(special_tokens) do
    if vocab[token] then
      core.raise(('%s: special_tokens[%d], "%s", is also a token that was learnt from the texts; choose one that is no '
        .. 'part of a text, as "<|%s|>"'):format(NAME, i, token, token))
    end
  end
  return vocab
end

---@class text.TrainOptions
---@field texts string[]|fun(): string? an array, or a function that returns the next text, and nil at the end
---@field vocab_size integer tokens, special ones included; fewer are learnt where the texts hold no more pairs
---@field dir string the folder to write into
---@field pattern "qwen3"|"gpt2"? how text is split into words; "qwen3" unless given
---@field special_tokens string[]? with ids after the learnt ones; {"<|endoftext|>", "<|im_start|>", "<|im_end|>"}
---@field chat_template string? ChatML where the special tokens have <|im_start|> and <|im_end|>, else none
---@field min_frequency integer? of a pair that becomes a token; 1

--- Learns a byte-level BPE from texts, and writes tokenizer.json and tokenizer_config.json, which text.tokenizer,
--- text.chat and Hugging Face's libraries read. The merges are those that PyPI's tokenizers learns.
---
---     text.train_tokenizer { texts = { "one text", "another" }, vocab_size = 4096, dir = run.dir .. "/start" }
---
--- The files do not depend on the order of the texts. Only the calling rank works and writes: call it on rank 0, and
--- let the others wait at dist.barrier().
---@param opts text.TrainOptions
---@return integer size the number of tokens, special ones included
local function train_tokenizer(opts)
  local o = options.read(NAME, opts, {
    texts = options.required, vocab_size = options.required, dir = options.required, pattern = "qwen3",
    special_tokens = { "<|endoftext|>", "<|im_start|>", "<|im_end|>" }, chat_template = options.optional,
    min_frequency = 1,
  })
  local is_special, parts, count = check_specials(o.special_tokens), parts_of(o.pattern), 0
  check_options(o)
  local trainer = core_text.trainer(core.json_encode(parts))
  for given in iterator_of(o.texts) do
    count = count + 1
    local ok, message = pcall(trainer.add, trainer, given)
    if not ok then
      core.raise(("%s: text %d: %s"):format(NAME, count, (tostring(message):gsub("^[^\n]-:%d+: ", ""))))
    end
  end
  local tokens, merges = trainer:learn(o.vocab_size - #o.special_tokens, o.min_frequency)
  local vocab = vocabulary_of(tokens, o.special_tokens)
  parts.model.vocab, parts.model.merges = data.ordered(vocab, tokens), data.array(merges)
  for i, token in ipairs(o.special_tokens) do
    parts.added_tokens[i] = { id = #tokens + i - 1, content = token, single_word = false, lstrip = false,
      rstrip = false, normalized = false, special = true }
  end
  local is_chat = is_special["<|im_start|>"] and is_special["<|im_end|>"]
  local config = {
    tokenizer_class = "PreTrainedTokenizerFast", clean_up_tokenization_spaces = false,
    chat_template = o.chat_template or is_chat and CHATML or nil,
    eos_token = is_chat and "<|im_end|>" or o.special_tokens[1], pad_token = o.special_tokens[1],
  }
  local config_json, tokenizer_json = core.json_encode(config, 2), core.json_encode(parts, 2)
  core.make_folder(o.dir)
  core.write_file(o.dir .. "/tokenizer_config.json", { config_json, "\n" })
  core.write_file(o.dir .. "/tokenizer.json", { tokenizer_json, "\n" })
  return #tokens + #o.special_tokens
end

return train_tokenizer
