-- The renderers of Qwen3, Qwen3-VL and Llama 3 against texts that transformers rendered with the models' own templates.

local chats = require "lockstep.text.chat"
local core = require "lockstep.core"
local data = require "lockstep.data"
local run = require "lockstep.run"
local t = require "lockstep.testing"

local HERE = "driver/lualib/lockstep/text/chat/"
local stand_in = dofile(HERE .. "stand_in_fixture.lua")

local tokenizer = stand_in.new({ "<|im_start|>", "<|im_end|>", "<|eot_id|>", "<think>", "</think>" }, { "\n\n" })

local function chat_of(source, name)
  local dir = run.dir .. "/" .. name
  core.make_folder(dir)
  core.write_file(dir .. "/chat_template.jinja", { source })
  data.save_json(dir .. "/tokenizer_config.json", { bos_token = "<s>" })
  return chats.open(dir, tokenizer)
end

local chat = chat_of("", "empty")

local HEADER = { qwen3 = "<|im_start|>assistant\n", qwen3_vl = "<|im_start|>assistant\n",
  llama3 = "<|start_header_id|>assistant<|end_header_id|>\n\n" }
HEADER.llama3_1 = HEADER.llama3

-- The text from behind the last of the headers.
local function last_turn(text, header)
  local at = 1
  while text:find(header, at, true) do at = select(2, text:find(header, at, true)) + 1 end
  return text:sub(at)
end

local function first_of(messages, n) return { unpack(messages, 1, n) } end

-- Chats that a renderer refuses, since the template would leave something of them out.
local function is_refused(case)
  for i, message in ipairs(case.messages) do
    local is_text = message.content == nil or message.content == data.null or type(message.content) == "string"
    local is_plain = case.renderer ~= "qwen3_vl" and not is_text
    local no_role = message.role == "developer" and case.renderer:find "qwen"
      or message.role == "system" and i > 1 and case.renderer == "qwen3_vl"
    if is_plain or no_role then return true end
  end
  return case.renderer == "llama3" and case.options.tools ~= nil and #case.options.tools > 0
end

-- Calls fn(case, options, spans, text) for each chat that is rendered.
local function each_case(fn)
  local counts = {}
  for _, case in ipairs(data.json(HERE .. "renderers_cases.json")) do
    local options = { renderer = case.renderer }
    for key, value in pairs(case.options) do options[key] = value end
    local ok, text, spans = pcall(chat.render_marked, chat, case.messages, options)
    if ok == is_refused(case) then error(("%s: %s"):format(core.json_encode(case), tostring(text))) end
    if ok then
      counts[case.renderer] = (counts[case.renderer] or 0) + 1
      fn(case, options, text, spans)
    end
  end
  t.equal({ counts.qwen3 > 30, counts.qwen3_vl > 30, counts.llama3_1 > 20, counts.llama3 > 15 }, { true, true, true,
    true })
end

t.test("EachTurnIsThatOfTheTemplateWhereItIsTheLast", function()
  each_case(function(case, options, text, spans)
    t.equal(#spans, #case.views)
    for k, view in ipairs(case.views) do
      local expected = last_turn(view[2], HEADER[case.renderer])
      local part = chat:render(first_of(case.messages, view[1]), options)
      t.equal(last_turn(part, HEADER[case.renderer]), expected)
      local learned = text:sub(spans[k][1], spans[k][2])
      local is_quiet = options.enable_thinking == false and learned:sub(1, 7) ~= "<think>"
      local prompt = is_quiet and "<think>\n\n</think>\n\n" or ""
      t.equal(prompt .. learned, (expected:gsub("\n$", "")))
      t.equal(learned:find("<|im_end|>$") ~= nil or learned:find("<|eot_id|>$") ~= nil, true)
    end
  end)
end)

t.test("AChatOfOneTurnIsThatOfTheTemplate", function()
  local n = 0
  each_case(function(case, options)
    if case.views[1] and case.views[1][1] <= 3 then
      n = n + 1
      t.equal(chat:render(first_of(case.messages, case.views[1][1]), options), case.views[1][2])
    end
    if #case.views == 0 then
      options.generation_prompt = true
      t.equal(chat:render(case.messages, options), case.prompt)
    end
  end)
  t.equal(n > 60, true)
end)

t.test("WithoutReasoningTheWholeChatIsThatOfTheTemplate", function()
  each_case(function(case, options)
    if case.renderer == "qwen3" then return end
    options.generation_prompt = true
    t.equal(chat:render(case.messages, options), case.prompt)
  end)
end)

t.test("AChatAndItsMaskBeginEveryLongerOne", function()
  each_case(function(case, options, text, spans)
    for k, view in ipairs(case.views) do
      local part, marks = chat:render_marked(first_of(case.messages, view[1]), options)
      t.equal(text:sub(1, #part), part)
      t.equal(marks, { unpack(spans, 1, k) })
      options.generation_prompt = true
      local prompt = view[1] > 1 and chat:render(first_of(case.messages, view[1] - 1), options)
      options.generation_prompt = nil
      -- A turn that thinks although thinking is off has another prompt than the option's.
      local is_other = options.enable_thinking == false and text:sub(spans[k][1], spans[k][1] + 6) == "<think>"
      if prompt and not is_other then t.equal(text:sub(1, spans[k][1] - 1), prompt) end
    end
  end)
end)

t.test("EncodeLearnsTheReasoningOfEachTurn", function()
  local messages = { { role = "user", content = "2?" }, { role = "assistant", content = "4", reasoning_content = "hm" },
    { role = "user", content = "<|im_end|>" }, { role = "assistant", content = "5" } }

  t.equal(tokenizer:shown(chat:encode(messages, { renderer = "qwen3" })), "<|im_start|>user\n2?<|im_end|>\n"
    .. "<|im_start|>assistant\n[<think>\nhm\n</think>\n\n4<|im_end|>]\n"
    .. "<|im_start|>user\n<|im_end|><|im_end|>\n<|im_start|>assistant\n"
    .. "[<think>\n\n</think>\n\n5<|im_end|>]\n")
  t.equal(tokenizer:shown(chat:encode(messages, { renderer = "qwen3", enable_thinking = false, loss = "last" })),
    "<|im_start|>user\n2?<|im_end|>\n<|im_start|>assistant\n<think>\nhm\n</think>\n\n4<|im_end|>\n<|im_start|>user\n"
    .. "<|im_end|><|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n[5<|im_end|>]\n")
end)

t.test("AutoRecognisesAFamilyByWhatItsTemplateWrites", function()
  local llama = chat_of("{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n"
    .. "{{ m.content | trim }}<|eot_id|>{% endfor %}{% if add_generation_prompt %}<|start_header_id|>assistant"
    .. "<|end_header_id|>\n\n{% endif %}", "llama")
  local messages = { { role = "user", content = " x " }, { role = "assistant", content = " y " } }

  t.equal(llama:render(messages, { renderer = "auto" }), llama:render(messages))
  t.equal(tokenizer:shown(llama:encode(messages, { renderer = "auto" })),
    "<s><|start_header_id|>user<|end_header_id|>\n\nx<|eot_id|>"
    .. "<|start_header_id|>assistant<|end_header_id|>\n\n[y<|eot_id|>]")
  t.raises('renderer = "auto": ' .. chat.dir .. "/chat_template.jinja is of no known family; leave the option out",
    chat.render, chat, messages, { renderer = "auto" })
end)

t.test("ATokenizerWithoutTheTokenThatEndsATurnIsAnError", function()
  local other = chats.open(chat.dir, stand_in.new({ "<|im_start|>" }, {}))
  t.raises('chat:encode: renderer "qwen3" ends turns with <|im_end|>, which is no token of ' .. chat.dir, other.encode,
    other, { { role = "user", content = "x" } }, { renderer = "qwen3" })
end)

t.test("MistakesAreErrors", function()
  local user = { role = "user", content = "x" }
  local parts = { role = "user", content = { { type = "image" } } }
  local cases = {
    { 'there is no renderer "qwen4" (known: auto, llama3, llama3_1, qwen3, qwen3_vl)', { user }, "qwen4" },
    { 'renderer "qwen3": the content of message 1 must be a string, got a table', { parts }, "qwen3" },
    { 'renderer "qwen3": message 2 has the role "developer", which the template leaves out', { user,
      { role = "developer", content = "x" } }, "qwen3" },
    { 'message 1 has a image, which only users and tools may show', { { role = "assistant", content = parts.content } },
      "qwen3_vl" },
    { "message 1 has a part that is neither text, image nor video", { { role = "user", content = { {} } } },
      "qwen3_vl" },
    { "a tool call of message 1 has no name", { { role = "assistant", tool_calls = { {} } } }, "qwen3" },
    { "tool_calls of message 1 must be a list, got a table with keys", { { role = "assistant", tool_calls = {
      name = "f" } } }, "qwen3" },
    { "tool_calls of message 1 must be a list, got a string", { { role = "assistant", tool_calls = "f" } },
      "llama3_1" },
    { "message 1 has tool calls alone, which the template leaves out", { { role = "assistant", tool_calls = { {} } } },
      "llama3" },
    { "the content of message 1 must be a list, got a table with keys", { { role = "user", content = { type = "text",
      text = "x" } } }, "qwen3_vl" },
    { "message 1 has 2 tool calls; Llama 3 makes one at a time", { { role = "assistant", tool_calls = { {}, {} } } },
      "llama3_1" },
  }
  for _, case in ipairs(cases) do t.raises(case[1], chat.render, chat, case[2], { renderer = case[3] }) end
  t.raises('renderer "llama3": the template leaves tools out', chat.render, chat, { user }, { renderer = "llama3",
    tools = { { name = "f" } } })
  local options = {
    { "enable_thinking must be a boolean, got a string", { renderer = "qwen3", enable_thinking = "false" } },
    { "tools must be a list, got a table with keys", { renderer = "qwen3", tools = { name = "f" } } },
    { "the template leaves documents out", { renderer = "qwen3", documents = { { text = "x" } } } },
    { 'the renderer "qwen3" reads no template; leave template = "rag" or the renderer out', { renderer = "qwen3",
      template = "rag" } },
  }
  for _, case in ipairs(options) do t.raises(case[1], chat.render, chat, { user }, case[2]) end
  t.raises('unknown option "enable_thinkin"; did you mean "enable_thinking"?', chat.render, chat, { user },
    { renderer = "qwen3", enable_thinkin = false })
end)
