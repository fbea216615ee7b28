---@meta lockstep.core.text
--- Tokenizers, as lockstep.text calls them. The program's side is driver/lua/bind/text/text.cc.

---@class lockstep.core.text
local text = {}

---@class lockstep.core.text.Tokenizer
local Tokenizer = {}

--- Returns the ids of a text in an array.
---@param given string UTF-8
---@param special boolean
---@return integer[]
function Tokenizer:encode(given, special) end

--- Returns the text of the ids.
---@param ids integer[]
---@param skip_special boolean
---@return string
function Tokenizer:decode(ids, skip_special) end

--- Returns the id of a token, or nil where it is not in the vocabulary.
---@param token string
---@return integer?
function Tokenizer:id(token) end

--- Returns the number of tokens, added ones included.
---@return integer
function Tokenizer:size() end

---@class lockstep.core.text.Stream
local Stream = {}

--- Returns a stream that decodes ids as they come.
---@param skip_special boolean
---@return lockstep.core.text.Stream
function Tokenizer:stream(skip_special) end

--- Returns the text that is complete and was not returned before.
---@param id integer
---@return string
function Stream:push(id) end

--- Returns the text that waited for more, and begins anew.
---@return string
function Stream:finish() end

--- Reads tokenizer.json, or the one in a folder.
---@param path string
---@return lockstep.core.text.Tokenizer
function text.open(path) end

---@class lockstep.core.text.Trainer
local Trainer = {}

--- Counts the words of a text.
---@param given string UTF-8
function Trainer:add(given) end

--- Returns the tokens that it learnt, by id from 0, and the merges in their order.
---@param num_tokens integer at most
---@param min_frequency integer of a pair that becomes a token
---@return string[] tokens
---@return string[][] merges {{left, right}, ...}
function Trainer:learn(num_tokens, min_frequency) end

--- Returns a trainer that normalizes and splits text as a tokenizer does.
---@param json string tokenizer.json; its model is not used
---@return lockstep.core.text.Trainer
function text.trainer(json) end

return text
