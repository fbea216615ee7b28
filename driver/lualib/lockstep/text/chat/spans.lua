--- Where in a rendered chat the assistant speaks, and which tokens these are.

local core = require "lockstep.core"
local plain = require "lockstep.plain"

local M = {}

-- Families whose turns stand between markers: what opens an assistant's turn, and what closes it.
local FAMILIES = {
  { open = "<|im_start|>assistant\n", closes = { "<|im_end|>" } }, -- ChatML: Qwen 2 to 3.5, Qwen-VL
  { open = "<|start_header_id|>assistant<|end_header_id|>\n\n", closes = { "<|eot_id|>", "<|eom_id|>" } }, -- Llama 3
}

--- Returns whether a string of `value`, however deep, has one of the markers.
local function has_marker(value, markers)
  if type(value) == "string" then
    for _, marker in ipairs(markers) do
      if value:find(marker, 1, true) then return true end
    end
  elseif type(value) == "table" then
    for _, element in pairs(value) do
      if has_marker(element, markers) then return true end
    end
  end
  return false
end

--- Returns how many of the first `last` messages are the assistant's.
---@param messages table[]
---@param last integer
---@return integer
function M.count_assistants(messages, last)
  local count = 0
  for i = 1, math.min(last, #messages) do
    if messages[i].role == "assistant" then count = count + 1 end
  end
  return count
end

--- Returns the number of the assistant's last message, or nil.
---@param messages table[]
---@return integer?
function M.last_assistant(messages)
  for i = #messages, 1, -1 do
    if messages[i].role == "assistant" then return i end
  end
end

-- What says of a message whether it is learnt: OpenAI's weight, axolotl's train and training.
local SWITCHES = { "weight", "train", "training" }
local ON = { [0] = false, [1] = true, [true] = true, [false] = false }

--- Returns for each message of the assistant, in order, whether it is learnt; nil where all are. Raises where a message
--- says what no mask of zeros and ones can do.
---@param messages table[]
---@return boolean[]?
function M.learnt(messages)
  local learnt, all = {}, true
  for i, message in ipairs(messages) do
    local is_on
    for _, name in ipairs(SWITCHES) do
      local value = message[name]
      if value ~= nil then
        local on = ON[value]
        plain.check(on ~= nil,
          'chat:encode: "%s" of message %d must be 0, 1, false or true, not %s: a token is learnt or not', name, i,
          tostring(value))
        plain.check(is_on == nil or is_on == on,
          'chat:encode: "%s" of message %d contradicts another of weight, train, training', name, i)
        is_on = on
      end
    end
    for _, name in ipairs { "train_detail", "training_detail" } do
      plain.check(message[name] == nil,
        'chat:encode: "%s" of message %d (parts of a message) is not supported; use train', name, i)
    end
    if message.role == "assistant" then
      learnt[#learnt + 1] = is_on ~= false
      all = all and is_on ~= false
    elseif is_on then
      core.raise(('chat:encode: message %d is to be learnt, but its role is "%s"; only messages of the assistant are')
        :format(i, message.role))
    end
  end
  return not all and learnt or nil
end

--- Returns the turns between a family's markers; nil where they are not exactly the assistant's messages.
local function between_markers(family, text, messages)
  if has_marker(messages, { family.open, unpack(family.closes) }) then return nil end
  local spans, at = {}, 1
  while true do
    local _, opened = text:find(family.open, at, true)
    if not opened then break end
    local last
    for _, close in ipairs(family.closes) do
      local _, closed = text:find(close, opened + 1, true)
      if closed and (not last or closed < last) then last = closed end
    end
    if not last then return nil end
    spans[#spans + 1] = { opened + 1, last }
    at = last + 1
  end
  return #spans == M.count_assistants(messages, #messages) and spans or nil
end

--- Returns the spans that the markers of a known family show; nil where the text is of none.
---@param text string the whole chat
---@param messages table[]
---@return integer[][]? spans bytes {{first, last}, ...}
function M.by_markers(text, messages)
  for _, family in ipairs(FAMILIES) do
    if text:find(family.open, 1, true) then return between_markers(family, text, messages) end
  end
end

-- Prefixes ----------------------------------------------------------------------------------------------

local function starts_with(text, prefix) return text:sub(1, #prefix) == prefix end

--- Returns a few characters of each text from where they differ, for messages.
local function difference(a, b)
  local at = 1
  while at <= #a and a:byte(at) == b:byte(at) do at = at + 1 end
  return ("at byte %d: %q against %q"):format(at, a:sub(at, at + 20), b:sub(at, at + 20))
end

--- Returns the end of a turn without the white space behind its closing token: nothing generates that.
local function without_tail(text, first, last, is_token)
  local body = text:sub(first, last)
  local stripped = body:match("^(.-)%s*$")
  local token = stripped:match("<[^<>]*>$") or stripped:match("%[[^%[%]]*%]$")
  return token and is_token(token) and first + #stripped - 1 or last
end

--- Renders the chat up to each message of the assistant, and returns the spans of these messages. The prompt before a
--- message must be a prefix of the chat that ends with it, and that chat must be a prefix of the whole text.
---@param text string the whole chat
---@param messages table[]
---@param first integer the number of the first message that counts
---@param render fun(count: integer, generation_prompt: boolean): string the text of the first messages
---@param is_token fun(token: string): boolean
---@return integer[][]? spans bytes {{first, last}, ...}
---@return string? reason why there are none
function M.by_prefixes(text, messages, first, render, is_token)
  local spans = {}
  for i, message in ipairs(messages) do
    if message.role == "assistant" and i >= first then
      if i == 1 then return nil, "the first message is the assistant's, and no prompt comes before it" end
      local prompt = render(i - 1, true)
      local turn = render(i, false)
      if not starts_with(turn, prompt) then
        return nil, ("the prompt before message %d does not begin the chat with it (%s)"):format(i,
          difference(prompt, turn))
      end
      if not starts_with(text, turn) then
        return nil, ("message %d is rendered differently once others follow (%s)"):format(i, difference(turn, text))
      end
      spans[#spans + 1] = { #prompt + 1, without_tail(text, #prompt + 1, #turn, is_token) }
    end
  end
  return spans
end

-- Tokens ------------------------------------------------------------------------------------------------

--- Returns the byte with which each token ends, by decoding; nil where the ids do not decode to the text itself.
local function token_ends(tokenizer, ids, text)
  local stream, ends, size, parts = tokenizer:stream(), {}, 0, {}
  for i, id in ipairs(ids) do
    local piece = stream:push(id)
    parts[i] = piece
    size = size + #piece
    ends[i] = size
  end
  if table.concat(parts) ~= text then return nil end
  return ends
end

--- Returns how many ids encode the first `size` bytes; raises where they share a token with what follows.
local function ids_before(tokenizer, ids, text, size)
  local head = tokenizer:encode(text:sub(1, size), { special = false })
  for i, id in ipairs(head) do
    if ids[i] ~= id then
      core.raise(("chat:encode: the tokenizer changes the text, and its tokens cross byte %d, where a turn of the "
        .. "assistant begins or ends (%q); write the text in Unicode's form NFC"):format(size,
        text:sub(math.max(1, size - 10), size + 10)))
    end
  end
  return #head
end

--- Returns 1 for each token that has a byte within a span, else 0.
---@param tokenizer text.Tokenizer
---@param ids integer[] of the whole text
---@param text string
---@param spans integer[][] bytes {{first, last}, ...}, in order
---@return integer[] mask
function M.mask(tokenizer, ids, text, spans)
  local mask = {}
  for i = 1, #ids do mask[i] = 0 end
  if #spans == 0 then return mask end
  local ends = token_ends(tokenizer, ids, text)
  if not ends then
    for _, span in ipairs(spans) do
      local first = ids_before(tokenizer, ids, text, span[1] - 1) + 1
      for i = first, ids_before(tokenizer, ids, text, span[2]) do mask[i] = 1 end
    end
    return mask
  end
  -- A token that ends within a character has no text of its own; it belongs to the token that completes it.
  local at, begin = 1, 0
  local s = 1
  while at <= #ids and s <= #spans do
    local last = at
    while last < #ids and ends[last] == begin do last = last + 1 end
    local first_byte, last_byte = begin + 1, ends[last]
    while s <= #spans and spans[s][2] < first_byte do s = s + 1 end
    if s <= #spans and spans[s][1] <= last_byte then
      for i = at, last do mask[i] = 1 end
    end
    at, begin = last + 1, last_byte
  end
  return mask
end

return M
