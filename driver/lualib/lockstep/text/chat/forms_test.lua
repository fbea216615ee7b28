--- The forms of files of conversations: each gives the ids and the mask of the same conversation as messages.

local chats = require "lockstep.text.chat"
local core = require "lockstep.core"
local data = require "lockstep.data"
local run = require "lockstep.run"
local t = require "lockstep.testing"
local text = require "lockstep.text"

local HERE = "driver/lualib/lockstep/text/chat/"
local stand_in = dofile(HERE .. "stand_in_fixture.lua")

local function message(role, content) return { role = role, content = content } end
local function user(content) return message("user", content) end
local function assistant(content) return message("assistant", content) end

local function open(name)
  local dir = run.dir .. "/" .. name
  core.make_folder(dir)
  core.write_file(dir .. "/chat_template.jinja", { t.read_file(HERE .. name) })
  data.save_json(dir .. "/tokenizer_config.json", { bos_token = "<s>", eos_token = "</s>" })
  return chats.open(dir, stand_in.new({ "<s>", "</s>", "<|im_start|>", "<|im_end|>" }, { "ab" }))
end
local chatml, marked = open "chatml_fixture.jinja", open "marked_fixture.jinja"

-- Both templates give the same ids and masks for `sample` as for the messages.
local function same(sample, messages, opts)
  for _, chat in ipairs { chatml, marked } do
    t.equal(chat:encode_sample(sample), chat:encode(messages, opts))
  end
end

local function draw(list) return list[math.random(#list)] end

local function words()
  local list = {}
  for i = 1, math.random(3) do list[i] = draw { "ab", "c", "\195\164", "one two" } end
  return table.concat(list, " ")
end

t.test("ShareGptInAnyOrderOfRolesIsTheSameAsMessages", function()
  math.randomseed(1)
  local names = { user = { "human", "user", "Human" }, assistant = { "gpt", "chatgpt", "bing", "assistant" },
    tool = { "observation", "tool" } }
  for _ = 1, 50 do
    local messages, turns, system = {}, {}, math.random(2) == 1 and words() or nil
    if system then messages[1] = message("system", system) end
    for i = 1, math.random(6) do
      local role = i == 1 and "user" or draw { "user", "assistant", "tool" }
      local content, weight = words(), role == "assistant" and draw { false, 0, 1 } or false
      messages[#messages + 1] = { role = role, content = content, weight = weight or nil, tool_calls = data.array {} }
      turns[i] = { from = draw(names[role]), value = content, weight = weight or nil, tool_calls = data.array {} }
    end
    same({ conversations = turns, system = system or data.null }, messages)
    if system then table.insert(turns, 1, { from = "system", value = system }) end
    same({ conversations = turns }, messages)
    same({ conversations = messages }, messages)
  end
end)

t.test("ACallOfShareGptIsACallOfTheTemplate", function()
  local call = '{"name": "add", "arguments": {"a": 1}}'
  local row = text.row { tools = '[{"name": "add"}]', conversations = { { from = "human", value = "1 + 1?" },
    { from = "function_call", value = "<think>x</think>" .. call }, { from = "observation", value = "2" } } }
  local made = { type = "function", ["function"] = { name = "add", arguments = { a = 1 } } }
  t.equal(row.messages[2], { role = "assistant", content = "<think>x</think>", tool_calls = { made } })
  t.equal(row.messages[3], message("tool", "2"))
  t.equal(row.tools, { { type = "function", ["function"] = { name = "add" } } })
  t.raises("message 1 of \"conversations\" is a function_call, whose value must be JSON", text.row,
    { conversations = { { from = "function_call", value = "add(1)" } } })
end)

t.test("AlpacaAndPromptsWithCompletionsAreChats", function()
  local calls = data.array {}
  local function answer(content) return { role = "assistant", content = content, tool_calls = calls } end
  local function alpaca(fields) return text.row(fields).messages end
  t.equal(alpaca { instruction = "Add.", input = "1 1", output = "2" }, { user "Add.\n1 1", assistant "2" })
  for _, none in ipairs { "", data.null } do
    t.equal(alpaca { instruction = "Hello", input = none, output = "2" }, { user "Hello", assistant "2" })
  end
  t.equal(alpaca { instruction = "c", output = "d", system = "s", history = { { "a", "b" } } },
    { message("system", "s"), user "a", assistant "b", user "c", assistant "d" })
  t.equal(alpaca { prompt = "a", completion = "b" }, { user "a", assistant "b" })
  -- The assistant's messages of a prompt are not learnt.
  local prompt = { user "a", answer "b", user "c" }
  same({ prompt = prompt, completion = { answer "d" } }, { user "a", answer "b", user "c", answer "d" },
    { loss_from = 4 })
end)

t.test("PlainTextIsLearntAsAWholeWithItsEnd", function()
  local tokenizer = stand_in.new({ "</s>" }, {})
  local encode = tokenizer.encode
  function tokenizer:encode(given, opts) return encode(self, given, opts or { special = false }) end
  local chat = chats.open(run.dir .. "/marked_fixture.jinja", tokenizer)
  for _, given in ipairs { "ab", "ab</s>" } do
    t.equal(chat:encode_sample { text = given }, { input_ids = { 97, 98, 1000 }, loss_mask = { 1, 1, 1 } })
  end
  t.raises('"text" is no conversation', text.conversation, { text = "ab" })
end)

t.test("AWeightOfZeroIsNotLearntAndAnotherIsRefused", function()
  local function shown(fields, chat)
    local first = { role = "assistant", content = "x", tool_calls = data.array {} }
    for name, value in pairs(fields) do first[name] = value end
    local last = { role = "assistant", content = "y", tool_calls = data.array {} }
    return (chat or chatml):encode { user "a", first, user "b", last }
  end
  local function num_learnt(sample)
    local count = 0
    for _, bit in ipairs(sample.loss_mask) do count = count + bit end
    return count
  end
  for _, chat in ipairs { chatml, marked } do
    local all = num_learnt(shown({}, chat))
    for _, off in ipairs { { weight = 0 }, { train = false }, { training = false }, { train = 0 } } do
      t.equal(num_learnt(shown(off, chat)) < all, true)
      t.equal(shown(off, chat).input_ids, shown({}, chat).input_ids)
    end
    t.equal(num_learnt(shown({ weight = 1 }, chat)), all)
    t.equal(num_learnt(shown({ weight = data.null }, chat)), all)
  end
  t.raises('"weight" of message 2 must be 0, 1, false or true, not 0.5', shown, { weight = 0.5 })
  t.raises('"train" of message 2 contradicts', shown, { weight = 0, train = true })
  t.raises("parts of a message", shown, { train_detail = {} })
  t.raises('message 1 is to be learnt, but its role is "user"', chatml.encode, chatml,
    { { role = "user", content = "a", weight = 1 }, assistant "b" })
end)

t.test("ToolsDocumentsAndVariablesOfASampleReachTheTemplate", function()
  local messages = { user "a", assistant "b" }
  local tools = { { name = "f" } }
  for _, given in ipairs { tools, core.json_encode(tools) } do
    local sample = { messages = messages, tools = given, chat_template_kwargs = { enable_thinking = false } }
    t.equal(chatml:encode_sample(sample), chatml:encode(messages, { tools = tools, enable_thinking = false }))
  end
  t.raises('unknown option "style"', chatml.encode_sample, chatml,
    { messages = messages, chat_template_kwargs = { style = 1 } })
  t.raises('"tools" of chat_template_kwargs is no variable', chatml.encode_sample, chatml,
    { messages = messages, chat_template_kwargs = '{"tools": []}' })
end)

t.test("PreferencesOfEachFormAreTheSamePair", function()
  local wanted = { chosen = { user "a", assistant "b" }, rejected = { user "a", assistant "c" }, first = 2 }
  local function turn(from, value) return { from = from, value = value } end
  for _, sample in ipairs {
    { prompt = "a", chosen = "b", rejected = "c" },
    { prompt = { user "a" }, chosen = "b", rejected = { assistant "c" } },
    { chosen = wanted.chosen, rejected = wanted.rejected },
    { prompt = "a", chosen = wanted.chosen, rejected = wanted.rejected, messages = wanted.chosen },
    { conversations = { turn("human", "a") }, chosen = turn("gpt", "b"), rejected = turn("gpt", "c") },
    { instruction = "a", input = "", chosen = "b", rejected = "c" },
  } do
    t.equal(text.preference(sample), wanted)
  end
  t.raises('strings need a "prompt"', text.preference, { chosen = "b", rejected = "c" })
end)

t.test("APromptIsAStringMessagesOrAQuestion", function()
  for _, sample in ipairs { { prompt = "a" }, { prompt = { user "a" } }, { question = "a", answer = "b" },
    { messages = { user "a" } } } do
    t.equal(text.prompt(sample), { user "a" })
  end
end)

t.test("WhatFollowsAPromptIsItsAnswer", function()
  local function turn(from, value) return { from = from, value = value } end
  local function row(sample) return data.conversations({ sample }, { kind = "prompt" })[1] end
  for _, sample in ipairs { { messages = { user "a", assistant "b" } }, { prompt = "a", completion = "b" },
    { prompt = { user "a" }, completion = { assistant "b" } }, { instruction = "a", output = "b" },
    { conversations = { turn("human", "a"), turn("gpt", "b") } } } do
    t.equal(row(sample), { messages = { user "a" }, answer = "b" })
    t.equal(text.prompt(sample), { user "a" })
    sample.answer = 7 -- the column of this name is the answer
    t.equal(row(sample), { messages = { user "a" }, answer = 7 })
  end
  local three = { user "a", assistant "b", user "c" }
  t.equal(row { messages = three }, { messages = three })
end)

t.test("WhatIsNotRecognisedNamesItsKeysAndTheKnownForms", function()
  t.raises("no known form of a conversation: its keys are answer, question. Known are messages; ShareGPT", text.row,
    { question = "a", answer = "b" })
  t.raises("Pairs are for dpo.lua", text.row, { chosen = "a", rejected = "b" })
  t.raises('message 1 of "conversations" is from "narrator", which is unknown (known are assistant, ', text.row,
    { conversations = { { from = "narrator", value = "a" } } })
  t.raises('"images" is not read in this form', text.row,
    { conversations = { { from = "human", value = "<image>" } }, images = { "a.png" } })
  text.row({ conversations = { { from = "narrator", value = "a" } } }, { roles = "narrator" })
end)
