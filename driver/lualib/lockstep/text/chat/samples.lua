--- Samples of files as chats: text.conversation, text.preference and text.last_answer.

local core = require "lockstep.core"
local options = require "lockstep.options"
local plain = require "lockstep.plain"

local M = {}

--- The roles of published templates. A template may know others.
local ROLES = plain.words "assistant developer environment function ipython observation system tool user"

-- What other formats call the roles.
local ALIASES = { ai = "assistant", bot = "assistant", chatbot = "assistant", gpt = "assistant", model = "assistant",
  human = "user" }

local function given(value)
  if value ~= core.null then return value end
end

--- Returns the known roles, with those of the option `roles`, split at commas.
local function roles_of(more)
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

--- Returns the tools of a sample, a list or nil. Files whose columns have one type hold them as text.
local function tools_of(caller, value)
  value = given(value)
  if type(value) == "string" then value = given(core.json_decode(value, caller .. ': "tools"')) end
  if value == nil then return nil end
  plain.check(type(value) == "table" and (value[1] ~= nil or next(value) == nil),
    '%s: "tools" must be a list, or JSON of a list, not %s', caller,
    type(value) == "table" and "a table with keys" or "a " .. type(value))
  return value
end

--- Returns the messages and the tools of a sample that data.source read: {messages = [...], tools = [...]}. Raises
--- where chat:encode would learn less than the sample means: a role that is misspelt, or another format's name of one
--- ("gpt"), is an error, because only messages of the assistant are learnt. Tools may be JSON in a string.
---
---     local messages, tools = text.conversation(source[i])
---     local sample = chat:encode(messages, { tools = tools })
---
--- `roles` are further roles that the template knows, split by commas.
---@param sample table
---@param opts {roles: string?}?
---@return table[] messages
---@return table[]? tools
function M.conversation(sample, opts)
  local caller = "text.conversation"
  local o = options.read(caller, opts, { roles = "" })
  plain.check(type(sample) == "table", "%s: a sample must be a table, not a %s", caller, type(sample))
  check_messages(caller, "messages", given(sample.messages), roles_of(o.roles))
  return sample.messages, tools_of(caller, sample.tools)
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
---@field first integer the number of the first message of the completions
---@field tools table[]?

--- Returns the two conversations of a sample {prompt = [...], chosen = [...], rejected = [...], tools = [...]}, and
--- the number of the first message that answers the prompt. Without a prompt, what the two begin with in common is the
--- prompt, as in TRL. Checks roles as text.conversation does.
---
---     local pair = text.preference(source[i])
---     local chosen = chat:encode(pair.chosen, { loss_from = pair.first, tools = pair.tools })
---@param sample table
---@param opts {roles: string?}?
---@return text.Preference
function M.preference(sample, opts)
  local caller = "text.preference"
  local o = options.read(caller, opts, { roles = "" })
  plain.check(type(sample) == "table", "%s: a sample must be a table, not a %s", caller, type(sample))
  local roles, prompt = roles_of(o.roles), given(sample.prompt)
  for _, name in ipairs { "prompt", "chosen", "rejected" } do
    if name ~= "prompt" or prompt ~= nil then check_messages(caller, name, given(sample[name]), roles) end
    local last = name ~= "prompt" and sample[name][#sample[name]].role or "assistant"
    plain.check(last == "assistant", '%s: "%s" must end with a message of the assistant, not of "%s"', caller, name,
      last)
  end
  local first = prompt and #prompt or shared(sample.chosen, sample.rejected)
  return { chosen = join(prompt or {}, sample.chosen), rejected = join(prompt or {}, sample.rejected),
    first = first + 1, tools = tools_of(caller, sample.tools) }
end

-- Answers -----------------------------------------------------------------------------------------------

local function text_of(content)
  if type(content) == "string" then return content end
  local parts = {}
  for i, part in ipairs(type(content) == "table" and content or {}) do parts[i] = part.text or "" end
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
