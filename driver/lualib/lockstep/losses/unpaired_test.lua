-- losses.unpaired: labelled answers as samples, what is said of them, and prompts with other answers.

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
    local is_learnt = message.role == "assistant" and message.weight ~= 0 and i >= (opts.loss_from or 1)
      and (opts.loss ~= "last" or i == #messages)
    for at = 1, #message.content do
      table.insert(sample.input_ids, message.content:byte(at))
      table.insert(sample.loss_mask, is_learnt and 1 or 0)
    end
  end
  return sample
end
function tokenizer.stream()
  return { push = function(_, id) return string.char(id) end, finish = function() return "" end }
end

local function read(rows, opts)
  local all = { tokenizer = tokenizer, seq_len = 20 }
  for key, value in pairs(opts or {}) do all[key] = value end
  local samples, found
  local printed = t.printed(function()
    samples, found = losses.unpaired.read(data.conversations(rows), chat, all)
  end)
  return samples, found, printed
end

--- Returns a sample as text, with its answer in brackets, and whether it is wanted.
local function shown(sample)
  local text, mask = {}, sample.loss_mask:int():totable()
  for i, id in ipairs(sample.input_ids:totable()) do
    text[i] = mask[i] == 1 and "[" .. string.char(id) .. "]" or string.char(id)
  end
  return table.concat(text):gsub("%]%[", ""), sample.desirable and sample.desirable:item() or nil
end

local function all_shown(samples)
  local texts, labels = {}, {}
  for i, sample in ipairs(samples) do texts[i], labels[i] = shown(sample) end
  return { texts, labels }
end

t.test("CompletionsMessagesAndPairsAreAnswersWithLabels", function()
  local prompt = { user "a", assistant "b", user "c" }
  local samples, found, printed = read { { prompt = "ab", completion = "ba", label = true, id = 7 },
    { prompt = prompt, completion = { assistant "de", user "f", assistant "g" }, label = 0 } }
  t.equal(all_shown(samples), { { "ab[ba]", "abc[de]f[g]" }, { 1, 0 } })
  t.equal({ found.desirable, found.undesirable, found.skipped }, { 1, 1, 0 })
  t.equal(found.roles, { user = 4, assistant = 4 })
  t.truthy(printed:find("data: prompt/completion, 2 samples; not read: id\n  first: ab[[ba]]\n", 1, true), printed)
  t.truthy(printed:find("answers at step 0  desirable 1  tokens 11  undesirable 1", 1, true), printed)
  t.equal(printed:find("warning", 1, true), nil)

  samples = read { { messages = { user "a", assistant "b", user "c", assistant "de" }, label = 1 },
    { messages = { user "a", assistant "b" }, label = false } }
  t.equal(all_shown(samples), { { "abc[de]", "a[b]" }, { 1, 0 } })
  -- A column of the user's own, which is none of this library's.
  samples = read { { messages = { user "a", assistant "b", user "c", assistant "de" }, label = 1,
    is_completed = true } }
  t.equal(all_shown(samples), { { "abc[de]" }, { 1 } })
  local mixed = { { prompt = "ab", completion = "ba", label = true },
    { messages = { user "a", assistant "b", user "c", assistant "de" }, label = 1 } }
  t.equal(all_shown(read(mixed)), { { "ab[ba]", "abc[de]" }, { 1, 1 } })
  t.equal(all_shown(read { mixed[2], { prompt = prompt, completion = { assistant "de", user "f", assistant "g" },
    label = 0 } }), { { "abc[de]", "abc[de]f[g]" }, { 1, 0 } })
  samples = read { { prompt = prompt, chosen = { assistant "x" },
    rejected = { assistant "y", user "z", assistant "w" } } }
  t.equal(all_shown(samples), { { "abc[x]", "abc[y]z[w]" }, { 1, 0 } })
end)

t.test("BothAnswersOfAPairAreHeldOutOrNone", function()
  local rows = {}
  for i = 1, 12 do
    local prompt = string.char(96 + i)
    rows[i] = { prompt = prompt, chosen = "y", rejected = i == 2 and "y" or "z" } -- of the second both are skipped
  end
  local samples, found = read(rows)
  t.equal(found.rows, { 1, 1, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7, 8, 8, 9, 9, 10, 10, 11, 11, 12, 12 })
  for seed = 1, 8 do
    local train, held_out = data.split(samples, { held_out = 5, seed = seed, groups = found.rows })
    local side, count = {}, 0
    for name, part in pairs { train = train, held_out = held_out } do
      for i = 1, #part do
        local prompt = shown(part[i]):sub(1, 1)
        t.truthy(side[prompt] == nil or side[prompt] == name, prompt)
        side[prompt], count = name, count + 1
      end
    end
    t.equal({ count, #held_out }, { 22, 6 })
  end
end)

t.test("AnswersThatTeachNothingOrAreTooLongAreSkipped", function()
  local rows = { { prompt = "ab", completion = "ba", label = true }, { prompt = "ab", completion = "", label = true },
    { prompt = "abcdefgh", completion = "hgfedcba", label = false } }
  local samples, found, printed = read(rows, { seq_len = 15, on_cut = "drop" })
  t.equal({ #samples, found.skipped }, { 1, 2 })
  t.truthy(printed:find("2 answers are skipped, 1 of them longer than seq_len = 15:\n"
    .. "  sample 2: the answer has no token\n  sample 3: 16 tokens\n", 1, true), printed)
  t.raises("2 answers are skipped, 1 of them longer than seq_len = 15. Raise seq_len, or --set on_cut=drop:\n", read,
    rows, { seq_len = 15 })
  rows = { { prompt = "ab", chosen = "x", rejected = "x" }, { prompt = "ab", chosen = "x", rejected = "y" } }
  samples, found, printed = read(rows)
  t.equal({ #samples, found.skipped }, { 2, 2 })
  t.truthy(printed:find("sample 1: chosen and rejected are the same", 1, true), printed)
  t.raises("losses.unpaired.read: on_cut must be one of drop, error", read, rows, { on_cut = "cut" })
  t.raises("sample 1: chat:encode: message 1, part 1 is a picture, and the model takes text alone", read,
    { { messages = { { role = "user", content = { { type = "image", path = "a.png" } } }, assistant "b" },
      label = true } })
end)

t.test("WeightsThatDoNotMakeUpForTheNumbersOfLabelsAreAWarning", function()
  local rows = {}
  for i = 1, 12 do rows[i] = { prompt = "ab", completion = "ba", label = i <= 3 } end
  local function warning(opts) return select(3, read(rows, opts)):match "warning: ([^\n]*)" end
  t.equal(warning(), "wanted answers weigh 0.333 times the others (3 x 1 to 9 x 1), and KTO's authors advise 1 to 1.33 "
    .. "times: desirable_weight from 3 to 4, or undesirable_weight from 0.25 to 0.333")
  for _, advised in ipairs { { desirable_weight = 3 }, { desirable_weight = 4 }, { undesirable_weight = 0.25 },
    { undesirable_weight = 0.333 } } do
    t.equal(warning(advised), nil)
  end
  t.truthy(warning { desirable_weight = 4.1 }:find("weigh 1.37 times", 1, true))
  t.equal(warning { desirable_weight = 0 }, "answers labelled true have the weight 0; KTO learns from both")
  t.raises("losses.unpaired.read: desirable_weight must be at least 0, got -1", read, rows, { desirable_weight = -1 })
  for i = 1, 12 do rows[i].label = true end
  t.equal(warning(), "no answer is labelled false; KTO learns from both")
end)

t.test("ALabelThatIsNoneIsNamedWithItsSample", function()
  local good = { prompt = "ab", completion = "ba", label = true }
  for value, message in pairs { good = 'got "good"', [2] = "got 2" } do
    t.raises('sample 2: losses.unpaired: "label" must be true or false, ' .. message, read,
      { good, { prompt = "ab", completion = "ba", label = value } })
  end
  t.raises("got none; answers without labels are for finetune.lua", read, { { prompt = "ab", completion = "ba" } })
  t.raises('"text" is no conversation', read, { { text = "ab", label = true } })
end)

t.test("PromptsGetTheAnswerToTheNextOtherPromptThatFits", function()
  local samples = read { { prompt = "ab", completion = "1", label = true },
    { prompt = "ab", completion = "2", label = false }, { prompt = "c", completion = "34567", label = true },
    { prompt = "de", completion = { assistant "8", user "x", assistant "9" }, label = true } }
  local function others(seq_len) return all_shown(losses.unpaired.mismatched(samples, { seq_len = seq_len }))[1] end
  t.equal(others(20), { "ab[34567]", "ab[34567]", "c[8]x[9]", "de[1]" })
  t.equal(others(6), { "ab[8]x[9]", "ab[8]x[9]", "c[8]x[9]", "de[1]" })
  t.equal(others(3), { "c[1]", "de[1]" })
  t.equal(losses.unpaired.mismatched({ samples[1], samples[2] }, { seq_len = 20 }), {})
  t.equal(losses.unpaired.mismatched({ samples[1] }, { seq_len = 20 }), {})
end)
