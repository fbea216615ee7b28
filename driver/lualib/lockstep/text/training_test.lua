--- text.train_tokenizer: the files that it writes. driver/text/training/bpe_trainer_test.cc holds the merges against
--- those of PyPI's tokenizers.

local data = require "lockstep.data"
local files = require "lockstep.core.files"
local run = require "lockstep.run"
local t = require "lockstep.testing"
local text = require "lockstep.text"

local TEXTS = { "low lower lowest lower lower\n", "new newer newest\n", "caf\195\169 \228\189\160\229\165\189 12 345" }

local function train(name, opts)
  local o = { texts = TEXTS, vocab_size = 275, dir = run.dir .. "/" .. name }
  for key, value in pairs(opts or {}) do o[key] = value end
  return text.train_tokenizer(o), o.dir
end

t.test("TheTokenizerOpensAndLosesNoByte", function()
  for _, pattern in ipairs { "qwen3", "gpt2" } do
    local size, dir = train(pattern, { pattern = pattern })
    local tok = text.tokenizer(dir)

    t.equal({ size, tok.size }, { 275, 275 })
    t.equal({ tok:id "<|endoftext|>", tok:id "<|im_start|>", tok:id "<|im_end|>" }, { 272, 273, 274 })
    local given = TEXTS[1] .. TEXTS[2] .. TEXTS[3] .. "\240\159\152\128 unseen\t<|im_end|>"
    local ids = tok:encode(given)
    t.equal(tok:decode(ids), given)
    t.equal(ids[#ids], 274)
    t.equal(tok:encode " lower", { tok:id "\196\160lower" }) -- a whole word of the texts
    t.truthy(#ids < #given)
  end
end)

t.test("QwensNumbersAreSingleDigitsAndGpt2sAreNot", function()
  local texts = { ("345 "):rep(100) }
  local _, qwen = train("digits_qwen3", { texts = texts })
  local _, gpt2 = train("digits_gpt2", { texts = texts, pattern = "gpt2" })

  t.equal(#text.tokenizer(qwen):encode "345", 3)
  t.equal(#text.tokenizer(gpt2):encode "345", 1)
end)

t.test("TheChatTemplateMarksWhatTheAssistantSays", function()
  local _, dir = train "chat"
  local messages = { { role = "user", content = "low?" }, { role = "assistant", content = "lower" } }
  local chat, tok = text.chat(dir), text.tokenizer(dir)

  local sample = chat:encode(messages)

  t.equal(chat:render(messages), "<|im_start|>user\nlow?<|im_end|>\n<|im_start|>assistant\nlower<|im_end|>\n")
  t.equal(chat:render({ messages[1] }, { generation_prompt = true }),
    "<|im_start|>user\nlow?<|im_end|>\n<|im_start|>assistant\n")
  local learnt = {}
  for i, id in ipairs(sample.input_ids) do
    if sample.loss_mask[i] == true or sample.loss_mask[i] == 1 then learnt[#learnt + 1] = id end
  end
  t.equal(tok:decode(learnt), "lower<|im_end|>")
end)

t.test("TextsMayComeFromAnIteratorInAnyOrder", function()
  local i = #TEXTS + 1
  local _, reversed = train("reversed", { texts = function()
    i = i - 1
    return TEXTS[i]
  end })
  local _, dir = train "forward"

  t.equal(data.json(reversed .. "/tokenizer.json"), data.json(dir .. "/tokenizer.json"))
end)

t.test("OptionsChangeTheFiles", function()
  local size, dir = train("options", {
    special_tokens = { "<s>" }, chat_template = "{{ messages[0].content }}", min_frequency = 1000, vocab_size = 5000,
  })

  t.equal(size, 257) -- the bytes, and one special token
  t.equal(data.json(dir .. "/tokenizer_config.json").eos_token, "<s>")
  t.equal(text.chat(dir):render { { role = "user", content = "hi" } }, "hi")
  local _, plain = train("plain", { special_tokens = {} })
  t.equal(data.json(plain .. "/tokenizer_config.json").chat_template, nil)
end)

t.test("MistakesAreNamed", function()
  local function complains(message, opts) t.raises("text.train_tokenizer: " .. message, train, "mistakes", opts) end
  complains('pattern must be "qwen3" or "gpt2", not "bert"', { pattern = "bert" })
  complains("text 2: text: expected UTF-8, got another byte at offset 1 of 2", { texts = { "a", "b\255" } })
  complains("text 2: trainer:add: the text must be", { texts = { "a", true } })
  complains("texts must be an array of strings or a function", { texts = 5 })
  complains('special_tokens has "<s>" twice', { special_tokens = { "<s>", "<s>" } })
  complains("special_tokens[1] must be a text, not an empty one", { special_tokens = { "" } })
  complains("special_tokens[2] is not UTF-8", { special_tokens = { "<s>", "\255" } })
  complains('special_tokens[2], "we", is also a token that was learnt from the texts; choose one that is no part of '
    .. 'a text, as "<|we|>"', { special_tokens = { "<s>", "we" } })
  complains('special_tokens[1], "a", is also a token', { special_tokens = { "a" } })
  for given, got in pairs { [258] = "258", [300.5] = "300.5", [1e300] = "1e+300", ["300"] = "300" } do
    complains("vocab_size must be a whole number of at least 259, the 256 bytes and 3 special tokens; got " .. got,
      { vocab_size = given })
  end
  complains("min_frequency must be a whole number of at least 1, got 0", { min_frequency = 0 })
  complains("chat_template, line 2: ", { chat_template = "{{ messages }}\n{% for message in %}" })
  complains("chat_template must be the text of a template", { chat_template = "\255" })
  t.equal(files.list(run.dir .. "/mistakes"), {})
  t.raises("dir must be the path of a folder, not an empty string", text.train_tokenizer,
    { texts = TEXTS, vocab_size = 275, dir = "" })
end)
