--- text.tokenizer: the Lua side. Ids are compared with PyPI's tokenizers in driver/text/tokenizer_test.cc too.

local core = require "lockstep.core"
local t = require "lockstep.testing"
local text = require "lockstep.text"

local DATA = "driver/text/testdata/"
local FAMILIES = { "gpt2", "llama3", "qwen2", "qwen35", "o200k", "llama2", "gemma", "unigram" }

local function read_json(name) return core.json_decode(t.read_file(DATA .. name .. ".json"), name) end

local function open(family) return text.tokenizer(DATA .. family .. ".json") end

t.test("IdsAndTextsAreThoseOfTokenizers", function()
  local expected = read_json "expected"
  for _, family in ipairs(FAMILIES) do
    local tok, want = open(family), expected[family]
    t.equal(tok.size, want.size, family)
    for i, given in ipairs(expected.texts) do
      t.equal(tok:encode(given), want.ids[i], family)
      t.equal(tok:encode(given, { special = false }), want.plain_ids[i], family)
      t.equal(tok:decode(want.ids[i]), want.decoded[i], family)
      t.equal(tok:decode(want.ids[i], { skip_special = true }), want.decoded_plain[i], family)
    end
    t.equal(tok:encode_batch(expected.texts), want.ids, family)
  end
end)

t.test("AStreamGivesTheTextInPieces", function()
  local tok = open "llama2"
  local ids = tok:encode("Hello, \228\189\160\229\165\189!")
  local stream, pieces = tok:stream { skip_special = true }, {}
  for _, id in ipairs(ids) do pieces[#pieces + 1] = stream:push(id) end
  pieces[#pieces + 1] = stream:finish()
  t.truthy(#pieces > 3)
  t.equal(table.concat(pieces), "Hello, \228\189\160\229\165\189!")
end)

t.test("TokensHaveIdsFromZero", function()
  local tok = open "llama2"
  t.equal(tok:id "<unk>", 0)
  t.equal(tok:id "<s>", 1)
  t.equal(tok:id "no such token", nil)
end)

t.test("AnIdWithoutATokenAddsNothingAsInTransformers", function()
  local tok = open "gpt2"
  local ids = tok:encode "Hello"
  table.insert(ids, 2, tok.size + 1000)
  t.equal(tok:decode(ids), "Hello")
  t.equal(tok:stream():push(1000000), "")
end)

t.test("MistakesAreErrorsThatSayWhatToDo", function()
  local tok = open "gpt2"
  for part, call in pairs {
    ["there is no folder /no/such/folder"] = function() text.tokenizer "/no/such/folder" end,
    ["/tokenizer.json: cannot be read: No such file"] = function() text.tokenizer(DATA) end,
    ["expected UTF-8, got another byte at offset 2 of 3"] = function() tok:encode "ab\255" end,
    ["encode_batch: text 2: text: expected UTF-8"] = function() tok:encode_batch { "a", "\255" } end,
    ["expected an id from 0 to 2^32 - 1, got -100"] = function() tok:decode { -100 } end,
    ["expected an id from 0 to 2^32 - 1, got -1 "] = function() tok:stream():push(-1) end,
    ['unknown option "specials"; did you mean "special"?'] = function() tok:encode("a", { specials = true }) end,
    ["expected an array of texts, got a string"] = function() tok:encode_batch "a" end,
    ["tokenizer:encode: the text"] = function() tok:encode(nil) end,
    ["tokenizer:decode: the ids"] = function() tok:decode { 1.5 } end,
  } do
    t.raises(part, call)
  end
end)
