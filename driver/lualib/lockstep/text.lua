--- Text to ids and back, and chat templates, as the files of a Hugging Face model describe them.
---
---     local tok = text.tokenizer "Qwen3-0.6B"
---     local ids = tok:encode "Hello, world"
---     print(tok:decode(ids))
---
--- Ids are those of transformers: numbers from 0, here in arrays that begin at 1.

local core = require "lockstep.core"
local core_text = require "lockstep.core.text"
local folder = require "lockstep.models.folder"
local options = require "lockstep.options"
local plain = require "lockstep.plain"
local samples = require "lockstep.text.chat.samples"
local tools = require "lockstep.text.chat.tools"

local M = {
  conversation = samples.conversation,
  last_answer = samples.last_answer,
  preference = samples.preference,
  prompt = samples.prompt,
  row = samples.row,
  tool_calls = tools.tool_calls,
  tool_schemas = tools.tool_schemas,
  train_tokenizer = require "lockstep.text.train_tokenizer",
}

---@class text.Tokenizer
---@field size integer the number of tokens, added ones included; a model may have more rows than that
---@field private native lockstep.core.text.Tokenizer
local Tokenizer = {}
Tokenizer.__index = Tokenizer

---@class text.Stream
---@field private native lockstep.core.text.Stream
local Stream = {}
Stream.__index = Stream

--- Reads a tokenizer.json, or the one in a folder: byte-level BPE (GPT-2, Llama 3, Qwen, o200k), the BPE of
--- SentencePiece (Llama 2, Gemma), and Unigram. Anything else in the file is an error that
--- names its place. See docs/text.md.
---
---     local tok = text.tokenizer(model_dir)
---@param path string a folder, OWNER/MODEL in Hugging Face's local cache, or the file
---@return text.Tokenizer
function M.tokenizer(path)
  local native = core_text.open(folder.find(path, "text.tokenizer"))
  return setmetatable({ native = native, size = native:size() }, Tokenizer)
end

--- Opens the chat template of a model's folder; see lockstep.text.chat.
---
---     local chat = text.chat(model_dir)
---@param dir string a folder, or OWNER/MODEL in Hugging Face's local cache
---@return table
function M.chat(dir) return require("lockstep.text.chat").open(dir) end

--- Returns options of chat:encode with the tools, the documents and the template's variables of a sample.
---
---     local sample = chat:encode(pair.chosen, text.options(pair, { loss_from = pair.first }))
---@param row text.Row|text.Preference
---@param opts table
---@return table
function M.options(row, opts) return require("lockstep.text.chat").options(row, opts) end

--- Returns the ids of a text in an array. `special = false` leaves out what the tokenizer adds by itself, a beginning
--- of text for instance; special tokens that the text spells out are tokens either way. The text must be UTF-8.
---
---     local ids = tok:encode("Hello", { special = false })
---@param given string
---@param opts {special: boolean?}? default true
---@return integer[]
function Tokenizer:encode(given, opts)
  local o = options.read("tokenizer:encode", opts, { special = true })
  return self.native:encode(given, o.special)
end

--- Returns an array of arrays: the ids of each text. An error names the text's place in the list.
---
---     local rows = tok:encode_batch({ "one", "two" })
---@param list string[]
---@param opts {special: boolean?}? as for encode
---@return integer[][]
function Tokenizer:encode_batch(list, opts)
  local o = options.read("tokenizer:encode_batch", opts, { special = true })
  plain.check(type(list) == "table", "tokenizer:encode_batch: expected an array of texts, got a %s", type(list))
  local rows = {}
  for i = 1, #list do
    local ok, ids = pcall(self.native.encode, self.native, list[i], o.special)
    if not ok then
      core.raise(("tokenizer:encode_batch: text %d: %s"):format(i, (tostring(ids):gsub("^[^\n]-:%d+: ", ""))))
    end
    rows[i] = ids
  end
  return rows
end

--- Returns the text of the ids. An id that no token has adds nothing, as in transformers: a model may have more rows
--- than there are tokens. A negative id is an error. `skip_special` leaves out special tokens.
---
---     local answer = tok:decode(ids, { skip_special = true })
---@param ids integer[]
---@param opts {skip_special: boolean?}? default false
---@return string
function Tokenizer:decode(ids, opts)
  local o = options.read("tokenizer:decode", opts, { skip_special = false })
  return self.native:decode(ids, o.skip_special)
end

--- Returns the id of a token as the file spells it, or nil where it is not in the vocabulary.
---
---     local stop = tok:id "<|im_end|>"
---@param token string
---@return integer?
function Tokenizer:id(token) return self.native:id(token) end

--- Returns a stream that decodes ids as they come. All that its push returns, and its finish, is what decode returns.
---
---     local stream = tok:stream()
---     for _, id in ipairs(ids) do io.write(stream:push(id)) end
---     io.write(stream:finish())
---@param opts {skip_special: boolean?}? as for decode
---@return text.Stream
function Tokenizer:stream(opts)
  local o = options.read("tokenizer:stream", opts, { skip_special = false })
  return setmetatable({ native = self.native:stream(o.skip_special) }, Stream)
end

--- Returns the text that is complete by now and was not returned before; "" while a character lacks bytes.
---@param id integer
---@return string
function Stream:push(id) return self.native:push(id) end

--- Returns what waited for more: U+FFFD for bytes that are not a whole character. The stream is then as new.
---@return string
function Stream:finish() return self.native:finish() end

return M
