--- Samples of files as chats: text.conversation, text.preference and text.last_answer.

local core = require "lockstep.core"
local forms = require "lockstep.text.chat.forms"
local options = require "lockstep.options"
local picture_columns = require "lockstep.text.chat.picture_columns"
local plain = require "lockstep.plain"

local M = {}

--- The roles of published templates. A template may know others.
local ROLES = plain.words "assistant developer environment function ipython observation system tool user"

-- What other formats call the roles.
local ALIASES = { ai = "assistant", bot = "assistant", chatbot = "assistant", gpt = "assistant", model = "assistant",
  human = "user" }

--- Returns the known roles, with those of the option `roles`, split at commas.
---@private
---@param more string
---@return table<string, true>
function M.roles_of(more)
  local roles = plain.copy(ROLES)
  for name in more:gmatch "[^,%s]+" do roles[name] = true end
  return roles
end

local function roles_in(messages)
  local names = {}
  for i, message in ipairs(messages) do
    names[i] = type(message) == "table" and type(message.role) == "string" and message.role or "?"
  end
  return table.concat(names, ", ")
end

--- Raises unless a value is a list of messages with roles that are known.
local function check_messages(caller, name, messages, roles)
  if type(messages) ~= "table" or type(messages[1]) ~= "table" then
    local found = type(messages) == "table" and "a table without a message" or "a " .. type(messages)
    core.raise(('%s: "%s" must be a list of messages, as in [{"role": "user", "content": "Hello"}], not %s'):format(
      caller, name, messages == nil and "absent" or found))
  end
  for i, message in ipairs(messages) do
    local role = type(message) == "table" and message.role
    plain.check(type(role) == "string", '%s: message %d of "%s" has no role; expected a string like "user"', caller, i,
      name)
    if not roles[role] then
      local known = plain.keys(roles)
      local meant = ALIASES[role:lower()] or core.nearest(role:lower(), known)
      core.raise(('%s: message %d of "%s" has the unknown role "%s"%s (its roles are %s; known are %s). Only what the '
        .. 'assistant says is learnt. If the template knows the role, give roles = "%s"'):format(caller, i, name, role,
        meant and ('; did you mean "%s"?'):format(meant) or "", roles_in(messages), table.concat(known, ", "), role))
    end
  end
end

--- Returns a conversation or a prompt, once its roles are checked.
local function check_row(caller, row, roles)
  if not row.text then
    check_messages(caller, row.column or "messages", row.messages, roles)
    row.messages = picture_columns.fill(caller, row.messages, row.pictures)
  end
  row.column, row.pictures = nil, nil
  return row
end

--- Returns a sample as messages, whatever form it has, and checks its roles: a row of the form "messages", which the
--- same function reads again. Messages that are not to be learnt have weight = 0. A sample of plain text has `text`.
---
---     local row = text.row { instruction = "2 + 2?", output = "4" }
---     print(row.messages[1].role)
---@param sample table
---@param opts {roles: string?}?
---@return text.Row
---@param caller string? for messages
function M.row(sample, opts, caller)
  caller = caller or "text.row"
  local roles = M.roles_of(options.read(caller, opts, { roles = "" }).roles)
  return check_row(caller, forms.read(caller, "conversation", sample, roles), roles)
end

--- Returns the messages and the tools of a sample that data.source read, in any form that docs/chat.md lists: messages,
--- ShareGPT, Alpaca, prompt and completion. Raises where chat:encode would learn less than the sample means: a role
--- that is misspelt is an error, because only messages of the assistant are learnt. Tools may be JSON in a string.
---
---     local messages, tools, more = text.conversation(source[i])
---     local sample = chat:encode(messages, { tools = tools })
---
--- `roles` are further roles that the template knows, split by commas. chat:encode_sample does all of it, and also
--- takes plain text.
---@param sample table
---@param opts {roles: string?}?
---@return table[] messages
---@return table[]? tools
---@return {documents: table[]?, chat_template_kwargs: table?}? more
function M.conversation(sample, opts)
  local row = M.row(sample, opts, "text.conversation")
  plain.check(row.messages, 'text.conversation: "text" is no conversation; chat:encode_sample learns it as a whole')
  local has_more = row.documents or row.chat_template_kwargs
  return row.messages, row.tools, has_more and { documents = row.documents,
    chat_template_kwargs = row.chat_template_kwargs } or nil
end

--- Returns the messages that ask, of a sample in any form of a prompt that docs/chat.md lists. What the assistant says
--- last in messages, ShareGPT and Alpaca is the answer, and no part of them.
---
---     local messages = text.prompt { question = "2 + 2?", answer = "4" }
---@param sample table
---@param opts {roles: string?}?
---@return table[] messages
---@return table[]? tools
function M.prompt(sample, opts)
  local roles = M.roles_of(options.read("text.prompt", opts, { roles = "" }).roles)
  local row = check_row("text.prompt", forms.read("text.prompt", "prompt", sample, roles), roles)
  return row.messages, row.tools
end

-- Preferences -------------------------------------------------------------------------------------------

local function is_same(a, b)
  if type(a) ~= "table" or type(b) ~= "table" then return a == b end
  for key, value in pairs(a) do
    if not is_same(value, b[key]) then return false end
  end
  for key in pairs(b) do
    if a[key] == nil then return false end
  end
  return true
end

--- Returns how many messages two lists share at their beginning. At least one of each is left.
local function shared(a, b)
  local count = 0
  while count + 1 < math.min(#a, #b) and is_same(a[count + 1], b[count + 1]) do count = count + 1 end
  return count
end

local function join(a, b)
  local all = { unpack(a) }
  for _, message in ipairs(b) do all[#all + 1] = message end
  return all
end

---@class text.Preference
---@field chosen table[] messages: the prompt and the chosen completion
---@field rejected table[] likewise
---@field first integer the number of the first message of the completions; both lists share those before it
---@field tools table[]?
---@field documents table[]?
---@field chat_template_kwargs table<string, any>?

--- Returns the two conversations of a row, once their roles are checked.
local function pair_of(caller, row, roles)
  local prompt = row.prompt
  for _, name in ipairs { "prompt", "chosen", "rejected" } do
    if row[name] ~= nil then check_messages(caller, name, row[name], roles) end
    local last = name ~= "prompt" and row[name][#row[name]].role or "assistant"
    plain.check(last == "assistant", '%s: "%s" must end with a message of the assistant, not of "%s"', caller, name,
      last)
  end
  local first = prompt and 0 or shared(row.chosen, row.rejected)
  prompt = picture_columns.fill(caller, prompt or { unpack(row.chosen, 1, first) }, row.pictures)
  return { chosen = join(prompt, { unpack(row.chosen, first + 1) }),
    rejected = join(prompt, { unpack(row.rejected, first + 1) }),
    first = #prompt + 1, tools = row.tools, documents = row.documents, chat_template_kwargs = row.chat_template_kwargs }
end

--- Returns the two conversations of a sample {prompt = [...], chosen = [...], rejected = [...], tools = [...]}, and
--- the number of the first message that answers the prompt. Without a prompt, what the two begin with in common is the
--- prompt, as in TRL. Prompt and answers may be strings. The prompt may also be ShareGPT's `conversations`, or Alpaca's
--- `instruction` and `input`. Checks roles as text.conversation does.
---
---     local pair = text.preference(sample)
---     local chosen = chat:encode(pair.chosen, { loss_from = pair.first, tools = pair.tools })
---@param sample table
---@param opts {roles: string?}?
---@return text.Preference
function M.preference(sample, opts)
  local roles = M.roles_of(options.read("text.preference", opts, { roles = "" }).roles)
  return pair_of("text.preference", forms.read("text.preference", "preference", sample, roles), roles)
end

--- Returns a sample as data.conversations gives it, the name of its form, and the columns that were read.
---@private
---@param caller string for messages
---@param kind "conversation"|"preference"|"prompt"
---@param sample table
---@param roles table<string, true>
---@param form string? of this kind; a sample of another one is an error
---@return text.Row|text.Preference row
---@return string name
---@return string[] reads
function M.read(caller, kind, sample, roles, form)
  local row, name, reads = forms.read(caller, kind, sample, roles, form)
  return (kind == "preference" and pair_of or check_row)(caller, row, roles), name, reads
end

-- Answers -----------------------------------------------------------------------------------------------

local function text_of(content)
  if type(content) == "string" then return content end
  local parts = {}
  for i, part in ipairs(type(content) == "table" and content or {}) do parts[i] = plain.given(part.text) or "" end
  return table.concat(parts)
end

--- Returns the messages before the assistant's last one, and its text without white space around it. Returns nil if
--- no message comes before it, or if it has no text.
---
---     local question, answer = text.last_answer(messages)
---@param messages table[]
---@return table[]? question
---@return string? answer
function M.last_answer(messages)
  local last = #messages
  while last > 0 and messages[last].role ~= "assistant" do last = last - 1 end
  local answer = last > 1 and text_of(messages[last].content):match "^%s*(.-)%s*$" or ""
  if answer == "" then return nil end
  return { unpack(messages, 1, last - 1) }, answer
end

return M
