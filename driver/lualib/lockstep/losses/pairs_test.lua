-- losses.pairs.read: pairs of data.conversations as samples, with what is said of them.

local data = require "lockstep.data"
local losses = require "lockstep.losses"
local t = require "lockstep.testing"

local function user(text) return { role = "user", content = text } end
local function assistant(text) return { role = "assistant", content = text } end

--- A chat whose tokens are the bytes of its messages, and a tokenizer for it.
local chat, tokenizer = {}, {}
function chat.encode(_, messages, opts)
  local sample = { input_ids = {}, loss_mask = {} }
  for i, message in ipairs(messages) do
    if message.content == "broken" then error("this message is broken", 0) end
    for at = 1, #message.content do
      table.insert(sample.input_ids, message.content:byte(at))
      table.insert(sample.loss_mask, i >= opts.loss_from and message.role == "assistant" and 1 or 0)
    end
  end
  return sample
end
function tokenizer.stream()
  return { push = function(_, id) return string.char(id) end, finish = function() return "" end }
end

local PAIRS = {
  { prompt = { user "ab" }, chosen = { assistant "ba" }, rejected = { assistant "bb" } },
  { prompt = { user "ab" }, chosen = { assistant "ba" }, rejected = { assistant "ba" } },
  { prompt = { { role = "system", content = "s" }, user "abcdef" }, chosen = { assistant "fedcba" },
    rejected = { assistant "x", user "no", assistant "y" } },
}

local function read(pairs_of_source, opts)
  local source = data.conversations(pairs_of_source, { kind = "preference" })
  local all = { tokenizer = tokenizer, seq_len = 20 }
  for key, value in pairs(opts or {}) do all[key] = value end
  local samples, found
  local printed = t.printed(function() samples, found = losses.pairs.read(source, chat, all) end)
  return samples, found, printed
end

t.test("PairsAreReadAndTheMessagesOfEachRoleCounted", function()
  local samples, found, printed = read(PAIRS, { on_cut = "drop" })
  t.equal({ #samples, found.skipped, #found.ids }, { 1, 2, 3 })
  t.equal(samples[1].lengths:totable(), { { 4, 4 } })
  t.equal(found.roles, { system = 1, user = 4, assistant = 7 })
  t.truthy(printed:find("  messages  assistant 7  system 1  user 4\n", 1, true), printed)
  t.truthy(printed:find("pairs 1  skipped 2  tokens 40  too_long 1", 1, true), printed)
  t.truthy(printed:find("2 pairs are skipped, 1 of them longer than seq_len = 20:\n", 1, true), printed)
  t.truthy(printed:find("sample 2: chosen and rejected are the same\n", 1, true), printed)
  t.truthy(printed:find("sample 3: 13 + 11 tokens\n", 1, true), printed)
end)

t.test("LongPairsAreAnErrorUnlessTheyAreDropped", function()
  t.raises("2 pairs are skipped, 1 of them longer than seq_len = 20. Raise seq_len, or --set on_cut=drop:\n", read,
    PAIRS)
  t.equal(#read(PAIRS, { seq_len = 24 }), 2)
  t.raises('on_cut must be one of drop, error, got "cut"', read, PAIRS, { on_cut = "cut" })
end)

t.test("APairThatCannotBeReadIsNamedOnce", function()
  local broken = { PAIRS[1], { prompt = { user "broken" }, chosen = { assistant "a" }, rejected = { assistant "b" } } }
  local message = t.raises("sample 2: this message is broken", read, broken)
  t.equal(select(2, message:gsub("sample 2", "")), 1)
end)
