--- The forms that files of conversations have, each as messages: data.conversations, text.conversation, text.preference
--- and text.prompt read them by this module.

local core = require "lockstep.core"
local picture_columns = require "lockstep.text.chat.picture_columns"
local plain = require "lockstep.plain"

local M = {}

-- Who speaks in ShareGPT's "from".
local SHAREGPT = { assistant = "assistant", bard = "assistant", bing = "assistant", bot = "assistant",
  chatbot = "assistant", chatgpt = "assistant", gpt = "assistant", model = "assistant", human = "user", user = "user",
  system = "system", observation = "tool", tool = "tool", function_response = "tool", function_call = "assistant" }

--- The forms of each kind of sample, in words for messages.
local KNOWN = {
  conversation = 'messages; ShareGPT: conversations (from, value); prompt and completion; Alpaca: instruction, input, '
    .. 'output; text',
  preference = "chosen and rejected, with prompt, conversations or instruction, or as lists that begin alike",
  prompt = "prompt; messages; conversations; question and answer; Alpaca: instruction, input, output",
}
KNOWN.sample = table.concat({ KNOWN.conversation, KNOWN.preference, "prompt; question and answer" }, "; ")

-- Columns that every form may have.
local SHARED = { "tools", "documents", "chat_template_kwargs" }

-- Columns of pictures and the like, whose places LLaMA-Factory marks in the text.
local MEDIA = { "images", "image", "videos", "audios" }

--- The field of a row that was a prompt and its completion. A column of a user has no such name.
local COMPLETED = "lockstep_is_completed"

local given = plain.given

local function message(role, content) return { role = role, content = content } end

local function join(a, b)
  local all = { unpack(a) }
  for _, value in ipairs(b) do all[#all + 1] = value end
  return all
end

--- Returns a list, or nil. Files whose columns have one type hold lists and objects as JSON in a string.
local function decoded(caller, name, value, is_list)
  value = given(value)
  if type(value) == "string" then value = given(core.json_decode(value, ('%s: "%s"'):format(caller, name))) end
  if value == nil then return nil end
  local fits = type(value) == "table" and ((value[1] ~= nil) == is_list or next(value) == nil)
  plain.check(fits, '%s: "%s" must be %s, or JSON of %s, not %s', caller, name, is_list and "a list" or "an object",
    is_list and "a list" or "one",
    type(value) ~= "table" and "a " .. type(value) or is_list and "a table with keys" or "a list")
  return value
end

--- Returns the calls of a "function_call" of ShareGPT, JSON of one call or of a list, and the thoughts before them.
local function calls_of(caller, i, text)
  local thoughts, rest = text:match "^%s*(<think>.-</think>%s*)(.*)$"
  local ok, calls = pcall(core.json_decode, rest or text, "function_call")
  if ok and type(calls) == "table" and calls[1] == nil then calls = { calls } end
  for _, call in ipairs(ok and type(calls) == "table" and calls or { false }) do
    plain.check(type(call) == "table" and type(call.name) == "string",
      '%s: message %d of "conversations" is a function_call, whose value must be JSON like {"name": "f", "arguments": '
      .. "{}}, or a list of such", caller, i)
  end
  for k, call in ipairs(calls) do calls[k] = { type = "function", ["function"] = call } end
  return calls, thoughts or ""
end

--- Returns a message of ShareGPT as one with a role and a content.
local function from_sharegpt(caller, name, i, turn, roles)
  local from, value = given(turn.from), given(turn.value)
  plain.check(type(from) == "string" and type(value) == "string",
    '%s: message %d of "%s" must have "from" and "value", strings', caller, i, name)
  local role = roles[from] and not SHAREGPT[from:lower()] and from or SHAREGPT[from:lower()]
  if not role then
    core.raise(('%s: message %d of "%s" is from "%s", which is unknown (known are %s). If the template knows it as a '
      .. 'role, give roles = "%s"'):format(caller, i, name, from, table.concat(plain.keys(SHAREGPT), ", "), from))
  end
  local made = plain.copy(turn, { role = role, content = value })
  made.from, made.value = nil, nil
  if from:lower() == "function_call" then made.tool_calls, made.content = calls_of(caller, i, value) end
  return made
end

--- Returns a list whose turns have a role, whatever form they had, and whether it was ShareGPT's; other values as they
--- are. Their roles are checked later.
local function turns_of(caller, name, list, roles)
  list = given(list)
  if type(list) ~= "table" or type(list[1]) ~= "table" or given(list[1].from) == nil then return list, false end
  local turns = {}
  for i, turn in ipairs(list) do
    plain.check(type(turn) == "table", '%s: message %d of "%s" must be a table', caller, i, name)
    turns[i] = from_sharegpt(caller, name, i, turn, roles)
  end
  return turns, true
end

--- Returns messages behind the text of a column "system", if there is one.
local function behind_system(caller, system, messages)
  system = given(system)
  if system == nil or system == "" then return messages end
  plain.check(type(system) == "string", '%s: "system" must be a string, not a %s', caller, type(system))
  local first = messages[1]
  if type(first) == "table" and first.role == "system" then
    plain.check(first.content == system, '%s: "system" differs from the system message of the conversation', caller)
    return messages
  end
  return join({ message("system", system) }, messages)
end

--- Returns the tools of ShareGPT and Alpaca, where a tool may be the function alone, as templates take them.
local function wrapped(tools)
  local list = tools and {} or nil
  for i, tool in ipairs(tools or {}) do
    local is_bare = type(tool) == "table" and type(tool.name) == "string" and tool["function"] == nil
      and tool.type == nil
    list[i] = is_bare and { type = "function", ["function"] = tool } or tool
  end
  return list
end

local function text_of(caller, name, value)
  plain.check(type(value) == "string", '%s: "%s" must be a string, not %s', caller, name,
    value == nil and "absent" or "a " .. type(value))
  return value
end

--- Returns the messages before the answer of an Alpaca sample.
local function alpaca_prompt(caller, sample)
  local messages, asked = {}, text_of(caller, "instruction", given(sample.instruction))
  for i, pair in ipairs(given(sample.history) or {}) do
    plain.check(type(pair) == "table" and type(pair[1]) == "string" and type(pair[2]) == "string",
      '%s: element %d of "history" must be a pair of strings', caller, i)
    messages = join(messages, { message("user", pair[1]), message("assistant", pair[2]) })
  end
  local input = given(sample.input) or ""
  if text_of(caller, "input", input) ~= "" then asked = asked == "" and input or asked .. "\n" .. input end
  return behind_system(caller, sample.system, join(messages, { message("user", asked) }))
end

--- Returns a prompt or an answer as messages: a string is one message.
local function as_messages(caller, name, value, role, roles)
  local is_one = type(value) == "table" and value[1] == nil and (value.from or value.role) ~= nil
  value = turns_of(caller, name, is_one and { value } or value, roles)
  return type(value) == "string" and { message(role, value) } or value
end

--- Returns copies of messages that are not learnt.
local function unlearnt(messages)
  local copies = {}
  for i, turn in ipairs(messages) do
    copies[i] = type(turn) == "table" and turn.role == "assistant" and plain.copy(turn, { weight = 0 }) or turn
    if copies[i] ~= turn then copies[i].train, copies[i].training = nil, nil end
  end
  return copies
end

-- Forms: each returns what it made of a sample, its name, and the columns it reads; or nothing if it is another form.

local function read_messages(caller, sample, roles)
  for _, name in ipairs { "messages", "conversations", "conversation" } do
    if given(sample[name]) ~= nil then
      local messages, is_sharegpt = turns_of(caller, name, sample[name], roles)
      local has_system = is_sharegpt or name ~= "messages"
      if has_system and type(messages) == "table" then
        messages = behind_system(caller, sample.system, messages)
      end
      local label = is_sharegpt and ("ShareGPT (%s)"):format(name) or name == "messages" and name
        or ("messages (%s)"):format(name)
      local is_completed = not has_system and sample[COMPLETED] == true or nil -- a row that is read again
      return { messages = messages, column = name, media = is_sharegpt, wraps = is_sharegpt,
        [COMPLETED] = is_completed }, label, has_system and { name, "system" } or { name, is_completed and COMPLETED }
    end
  end
end

local function read_completion(caller, sample, roles)
  if given(sample.prompt) == nil or given(sample.completion) == nil then return nil end
  local prompt = as_messages(caller, "prompt", sample.prompt, "user", roles)
  local completion = as_messages(caller, "completion", sample.completion, "assistant", roles)
  for name, list in pairs { prompt = prompt, completion = completion } do
    plain.check(type(list) == "table", '%s: "%s" must be a string or a list of messages, not a %s', caller, name,
      type(list))
  end
  return { messages = join(unlearnt(prompt), completion), [COMPLETED] = true }, "prompt/completion",
    { "prompt", "completion" }
end

local ALPACA = { "instruction", "input", "system", "history" }

local function read_alpaca(caller, sample)
  if given(sample.instruction) == nil or given(sample.output) == nil then return nil end
  local answer = message("assistant", text_of(caller, "output", sample.output))
  return { messages = join(alpaca_prompt(caller, sample), { answer }), media = true, wraps = true }, "Alpaca",
    join(ALPACA, { "output" })
end

local function read_text(_, sample)
  if type(sample.text) == "string" then return { text = sample.text }, "text", { "text" } end
end

--- Returns whether both completions begin with the prompt, which then is a second copy (UltraFeedback).
local function repeats(prompt, chosen, rejected)
  local function begins(list)
    return type(list) == "table" and #list > 1 and list[1].role == "user" and list[1].content == prompt
  end
  return type(prompt) == "string" and begins(chosen) and begins(rejected)
end

local function read_preference(caller, sample, roles)
  if given(sample.chosen) == nil or given(sample.rejected) == nil then return nil end
  local row = {}
  for _, name in ipairs { "chosen", "rejected" } do
    row[name] = as_messages(caller, name, sample[name], "assistant", roles)
  end
  if given(sample.prompt) ~= nil then
    if not repeats(sample.prompt, row.chosen, row.rejected) then
      row.prompt = as_messages(caller, "prompt", sample.prompt, "user", roles)
    end
    return row, "preference pairs", { "prompt", "chosen", "rejected" }
  end
  local context, _, reads = read_messages(caller, sample, roles)
  if context and reads[1] ~= "messages" then
    row.prompt, row.media, row.wraps = context.messages, context.media, context.wraps
    return row, "preference pairs of ShareGPT", join(reads, { "chosen", "rejected" })
  end
  if given(sample.instruction) ~= nil then
    row.prompt, row.media, row.wraps = alpaca_prompt(caller, sample), true, true
    return row, "preference pairs of Alpaca", join(ALPACA, { "chosen", "rejected" })
  end
  plain.check(type(sample.chosen) ~= "string" and type(sample.rejected) ~= "string",
    '%s: "chosen" and "rejected" that are strings need a "prompt"', caller)
  return row, "preference pairs", { "chosen", "rejected" }
end

--- Returns the text that the last of some messages holds if it is the assistant's, or nil.
local function answer_of(messages)
  local last = type(messages) == "table" and messages[#messages]
  local is_answer = type(last) == "table" and last.role == "assistant"
  return is_answer and type(last.content) == "string" and last.content or nil, is_answer
end

--- Reads the messages that ask, and a known answer: a completion, or the last words of the assistant.
local function read_prompt(caller, sample, roles)
  if given(sample.prompt) ~= nil then
    local completion = as_messages(caller, "completion", given(sample.completion), "assistant", roles)
    return { messages = as_messages(caller, "prompt", sample.prompt, "user", roles), column = "prompt",
      answer = answer_of(completion) }, "prompt", { "prompt", completion ~= nil and "completion" or nil }
  end
  if type(sample.question) == "string" then
    return { messages = { message("user", sample.question) } }, "question", { "question" }
  end
  local row, form, reads = read_messages(caller, sample, roles)
  if not row then row, form, reads = read_alpaca(caller, sample) end
  local answer, is_answer = answer_of(row and row.messages)
  if is_answer then row.messages, row.answer = { unpack(row.messages, 1, #row.messages - 1) }, answer end
  return row, form, reads
end

-- The readers of each kind of sample, and of single forms.
local READERS = {
  conversation = { read_messages, read_completion, read_alpaca, read_text },
  preference = { read_preference },
  prompt = { read_prompt },
  sample = {},
}

local FORMS = {
  ["messages"] = { kind = "conversation", read = read_messages },
  ["ShareGPT"] = { kind = "conversation", read = read_messages },
  ["Alpaca"] = { kind = "conversation", read = read_alpaca },
  ["prompt/completion"] = { kind = "conversation", read = read_completion },
  ["text"] = { kind = "conversation", read = read_text },
  ["preference pairs"] = { kind = "preference", read = read_preference },
  ["prompt"] = { kind = "prompt", read = read_prompt },
}

--- Returns the kind of the samples of a form. Raises if there is no such form.
---@param caller string for messages
---@param form string
---@return "conversation"|"preference"|"prompt"
function M.kind_of_form(caller, form)
  if FORMS[form] then return FORMS[form].kind end
  core.raise(('%s: there is no form "%s" (known: %s)'):format(caller, tostring(form),
    table.concat(plain.keys(FORMS), ", ")))
end

--- Returns the form that a name of M.read stands for, without its columns: "ShareGPT (conversations)" is "ShareGPT".
---@param name string
---@return string
function M.form_of(name)
  if name == "question" then return "prompt" end
  return name:match "^preference pairs" or name:match "^[^( ]+"
end

--- Returns the first of `kinds` one of whose forms a sample has, even if it cannot be read.
---@param sample any
---@param kinds string[]
---@param roles table<string, true>
---@return string?
function M.kind_of(sample, kinds, roles)
  for _, kind in ipairs(type(sample) == "table" and kinds or {}) do
    for _, read in ipairs(READERS[kind]) do
      local _, row_or_reason = pcall(read, "", sample, roles)
      if row_or_reason ~= nil then return kind end
    end
  end
end

---@class text.Row
---@field messages table[]? each with a role; weight = 0 where the assistant's is not learnt
---@field text string? in the place of messages: text that is learnt as a whole
---@field answer string? to a prompt: what follows it in the sample, and is no part of it
---@field prompt table[]? of a preference, as chosen and rejected
---@field chosen table[]?
---@field rejected table[]?
---@field tools table[]?
---@field documents table[]?
---@field chat_template_kwargs table<string, any>?
---@field pictures text.PictureColumn? which take the places of the messages
---@field lockstep_is_completed boolean? the messages are a prompt, none of which is learnt, and a completion

--- Returns a sample in the form of messages, the name of the form that it had, and the columns that were read. An
--- error names the keys of a sample of no known form.
---@param caller string for messages
---@param kind "conversation"|"preference"|"prompt"|"sample" "sample": of no kind, to raise the error
---@param sample table
---@param roles table<string, true> that the template knows
---@param wanted string? a form of this kind; a sample of another one is an error
---@return text.Row row
---@return string form
---@return string[] reads
function M.read(caller, kind, sample, roles, wanted)
  plain.check(type(sample) == "table", "%s: a sample must be a table, not a %s", caller, type(sample))
  for _, read in ipairs(wanted and { FORMS[wanted].read } or READERS[kind]) do
    local row, form, reads = read(caller, sample, roles)
    if row and (not wanted or M.form_of(form) == wanted) then
      row.tools = decoded(caller, "tools", sample.tools, true)
      if row.wraps then row.tools = wrapped(row.tools) end
      row.documents = decoded(caller, "documents", sample.documents, true)
      row.chat_template_kwargs = decoded(caller, "chat_template_kwargs", sample.chat_template_kwargs, false)
      for _, name in ipairs(row.media and MEDIA or {}) do
        local media = given(sample[name])
        plain.check(media == nil or media == "" or type(media) == "table" and next(media) == nil, '%s: "%s" is not '
          .. 'read in this form; put {"type": "image", "path": "..."} into the content of messages', caller, name)
      end
      row.pictures = not row.media and not row.text and picture_columns.read(caller, sample) or nil
      row.media, row.wraps = nil, nil
      return row, form, join(reads, join(SHARED, { row.pictures and row.pictures.name }))
    end
  end
  local keys = plain.keys(sample, function(key, value) return type(key) == "string" and value ~= core.null end)
  local is_pair = kind ~= "preference" and given(sample.chosen) ~= nil
  core.raise(("%s: this is %s: its keys are %s. Known are %s%s"):format(caller,
    wanted and ('not of the form "%s"'):format(wanted) or "no known form of a " .. kind,
    #keys > 0 and table.concat(keys, ", ") or "none", KNOWN[kind], is_pair and ". Pairs are for dpo.lua" or ""))
end

return M
