--- Messages as templates see them: what transformers does to them before it renders.

local core = require "lockstep.core"
local data = require "lockstep.data"
local nulls = require "lockstep.text.chat.nulls"
local plain = require "lockstep.plain"

local M = {}

-- Names of a message's reasoning. Templates read the first; gpt-oss reads "thinking".
local REASONING = { "reasoning_content", "thinking", "reasoning" }

--- Returns the keys of a message in order.
local function keys_of(message)
  local shape = core.json_shapes()[message]
  local keys, seen = {}, {}
  for _, key in ipairs(shape and shape.keys or {}) do
    if message[key] ~= nil then keys[#keys + 1], seen[key] = key, true end
  end
  for _, key in ipairs(plain.keys(message, function(key) return not seen[key] end)) do keys[#keys + 1] = key end
  return keys, shape
end

--- Returns a message without nulls, and with its reasoning under both names. Returns the message itself if it is so
--- already, else a copy. Arguments of calls keep their nulls.
local function prepare(message)
  message = nulls.dropped(message, "arguments")
  local reasoning = nil
  for i = 1, #REASONING do
    if reasoning == nil then reasoning = message[REASONING[i]] end
  end
  if reasoning == nil then return message end
  local keys, shape = keys_of(message)
  local copy, order = { thinking = reasoning }, { "thinking" }
  for _, key in ipairs(keys) do
    if key ~= "thinking" then order[#order + 1] = key end
    copy[key] = message[key]
  end
  if copy.reasoning_content == nil then order[#order + 1] = "reasoning_content" end
  copy.reasoning_content = reasoning
  core.json_shapes()[copy] = { keys = order, floats = shape and shape.floats }
  return copy
end

--- Returns the messages as a template gets them. Throws where they are not a list of tables with a role.
---@param caller string
---@param messages table[]
---@return table[]
function M.prepare(caller, messages)
  plain.check(type(messages) == "table",
    "%s: the messages must be an array of tables, got a %s", caller, type(messages))
  plain.check(#messages ~= 0,
    "%s: there are no messages; expected an array of tables like {role = \"user\", content = \"Hello\"}", caller)
  local n = #messages
  for key in pairs(messages) do
    if not plain.is_whole(key, 1) or key > n then
      core.raise(("%s: the messages must be an array without holes, got the key %s beside %d messages"):format(caller,
        type(key) == "string" and ('"%s"'):format(key) or tostring(key), n))
    end
  end
  local prepared = {}
  for i = 1, n do
    local message = messages[i]
    if type(message) ~= "table" then
      core.raise(("%s: message %d must be a table, got %s"):format(caller, i,
        message == nil and "nil: the messages have a hole" or "a " .. type(message)))
    end
    plain.check(type(message.role) == "string",
      "%s: message %d has no role; expected a string like \"user\"", caller, i)
    prepared[i] = prepare(message)
  end
  return prepared
end

--- Returns a list that a template sees as one where it is empty, too.
---@param list table[]?
---@return any
function M.list(list)
  if type(list) == "table" and next(list) == nil then return data.array {} end
  return list
end

return M
