--- Tools of a chat: their schemas, the calls in what a model wrote, and the ids of their results.

local core = require "lockstep.core"
local options = require "lockstep.options"
local plain = require "lockstep.plain"

local M = {}

---@class text.Tool
---@field name string
---@field description string?
---@field parameters table? a JSON schema of the arguments; default: no arguments
---@field fn fun(arguments: table, problem: table): any the result: a string, or a value that JSON can hold

---@class text.ToolCall
---@field name string?
---@field arguments table?
---@field error string? why the text of the call is not valid

--- Returns the tools as chat:encode takes them: {type = "function", ["function"] = {...}} each.
---
---     local prompt = chat:encode(messages, { tools = text.tool_schemas(tools), generation_prompt = true })
---@param tools text.Tool[]
---@return table[]
function M.tool_schemas(tools)
  plain.check(type(tools) == "table", "text.tool_schemas: expected an array of tools, not a %s", type(tools))
  local schemas, seen = {}, {}
  for i, tool in ipairs(tools) do
    local o = options.read("text.tool_schemas", tool, { name = options.required, fn = options.required,
      description = "", parameters = options.optional })
    plain.check(type(o.name) == "string" and type(o.fn) == "function",
      "text.tool_schemas: tool %d must have a name and a function fn", i)
    plain.check(not seen[o.name], 'text.tool_schemas: two tools have the name "%s"', o.name)
    seen[o.name] = true
    local described = { name = o.name, description = o.description,
      parameters = o.parameters or { type = "object", properties = {} } }
    core.json_shapes()[described] = { keys = { "name", "description", "parameters" } }
    schemas[i] = { type = "function", ["function"] = described }
    core.json_shapes()[schemas[i]] = { keys = { "type", "function" } }
  end
  return schemas
end

--- Returns the call that a JSON object spells, or nil.
local function call_of(value)
  if type(value) ~= "table" or type(value.name) ~= "string" then return nil end
  local arguments = value.arguments or value.parameters
  if arguments == nil or arguments == core.null then arguments = {} end
  if type(arguments) ~= "table" then return nil end
  return { name = value.name, arguments = arguments }
end

local function read_json(text)
  local ok, value = pcall(core.json_decode, text)
  return ok and value or nil, not ok and value or nil
end

--- Returns the calls of a text that is JSON as a whole, {"name": ..., "parameters": ...} or a list of such; else nil.
local function calls_of_json(text)
  if not text:find "^%s*[%[{]" then return nil end
  local value = read_json(text)
  local one = call_of(value)
  if one then return { one } end
  local calls = {}
  for i, item in ipairs(type(value) == "table" and value or {}) do
    calls[i] = call_of(item)
    if not calls[i] then return nil end
  end
  return calls[1] and calls or nil
end

--- Returns the calls of tools that a model wrote, in order, and the text without them. Qwen and Hermes write
--- <tool_call>{"name": ..., "arguments": ...}</tool_call>. Llama 3.1 and Mistral write a text that is JSON as a whole:
--- {"name": ..., "parameters": ...}, or a list of such objects. A call within <tool_call> that cannot
--- be read has `error` in place of a name.
---
---     local calls, content = text.tool_calls(tokenizer:decode(ids, { skip_special = true }))
---@param written string
---@return text.ToolCall[] calls
---@return string content
function M.tool_calls(written)
  plain.check(type(written) == "string", "text.tool_calls: expected a string, not a %s", type(written))
  local whole = calls_of_json(written)
  if whole then return whole, "" end
  local calls, kept, at = {}, {}, 1
  while true do
    local first, last = written:find("<tool_call>", at, true)
    kept[#kept + 1] = written:sub(at, (first or 0) - 1)
    if not first then break end
    local ends, behind = written:find("</tool_call>", last + 1, true)
    local value, message = read_json(written:sub(last + 1, (ends or 0) - 1))
    calls[#calls + 1] = ends and call_of(value) or { error = not ends and "</tool_call> is missing"
      or message and "not JSON: " .. tostring(message):gsub("^[^\n]-:%d+: ", "")
      or 'expected {"name": ..., "arguments": {...}}' }
    at = (behind or #written) + 1
  end
  return calls, (table.concat(kept):gsub("^%s+", ""):gsub("%s+$", ""))
end

--- Returns the message of the assistant that makes calls, and those of their results.
---@param content string
---@param calls text.ToolCall[]
---@param results string[]
---@return table
---@return table[]
function M.messages(content, calls, results)
  local listed, answers = {}, {}
  for i, call in ipairs(calls) do
    local id = ("call%05d"):format(i % 1e5) -- nine letters and digits, which the templates of Mistral ask for
    listed[i] = { id = id, type = "function",
      ["function"] = { name = call.name or "invalid", arguments = call.arguments or {} } }
    answers[i] = { role = "tool", tool_call_id = id, name = call.name, content = results[i] }
  end
  return { role = "assistant", content = content, tool_calls = listed }, answers
end

-- Characters for private use that no text has: a token does not reach across them.
local BREAK = "\238\128\128\239\163\191\238\128\128"

--- Returns the tokens that a result must not spell: special ones, and others that the template writes.
local function control_tokens(chat)
  local tokens, sources = {}, {}
  for _, template in pairs(chat.sources) do sources[#sources + 1] = template.source end
  local path, written = chat.dir .. "/tokenizer.json", table.concat(sources)
  local text = plain.read_file(path)
  for _, token in ipairs(plain.given((text and core.json_decode(text, path) or {}).added_tokens) or {}) do
    local content = token.content
    if token.special or content:find "%S" and written:find(content, 1, true) then tokens[#tokens + 1] = content end
  end
  return tokens
end

--- Returns results in which each control token is broken behind its first character.
local function break_tokens(chat, results)
  chat.control_tokens = chat.control_tokens or control_tokens(chat)
  local broken = {}
  for i, result in ipairs(results) do
    for _, token in ipairs(chat.control_tokens) do
      if result:find(token, 1, true) then
        local first, rest = token:match "^(.[\128-\191]*)(.*)$"
        result = result:gsub((token:gsub("%p", "%%%0")), ((first .. BREAK .. rest):gsub("%%", "%%%%")))
      end
    end
    broken[i] = result
  end
  return broken
end

--- Returns the ids of a text. No token reaches across a break, and breaks have no ids.
---@param tokenizer text.Tokenizer
---@param text string
---@return integer[]
function M.encode(tokenizer, text)
  if not text:find(BREAK, 1, true) then return tokenizer:encode(text, { special = false }) end
  local ids = {}
  for part in (text .. BREAK):gmatch("(.-)" .. BREAK) do
    for _, id in ipairs(tokenizer:encode(part, { special = false })) do ids[#ids + 1] = id end
  end
  return ids
end

--- Returns the ids between a turn of the assistant and its next one: see chat:tool_results.
---@param chat lockstep.text.Chat
---@param messages table[]
---@param calls text.ToolCall[]
---@param results string[]
---@param opts table?
---@return integer[]
function M.results(chat, messages, calls, results, opts)
  plain.check(#calls > 0 and #calls == #results, "chat:tool_results: %d results for %d calls", #results, #calls)
  local all = { unpack(messages) }
  local turn, answers = M.messages("", calls, break_tokens(chat, results))
  all[#all + 1] = turn
  for _, answer in ipairs(answers) do all[#all + 1] = answer end
  local sample = chat:encode(all, plain.copy(opts or {}, { loss = "last", generation_prompt = false }))
  local asked = chat:encode(all, plain.copy(opts or {}, { generation_prompt = true })).input_ids
  local last, ids = #sample.input_ids, {}
  while last > 0 and sample.loss_mask[last] == 0 do last = last - 1 end
  plain.check(last > 0, "chat:tool_results: %s leaves out a turn of the assistant that only calls tools", chat.dir)
  for i, id in ipairs(asked) do
    plain.check(i > last or id == sample.input_ids[i], "chat:tool_results: %s writes the turns before the prompt of an "
      .. "answer differently than without it, from token %d on; choose a renderer", chat.dir, i)
    if i > last then ids[#ids + 1] = id end
  end
  return ids
end

return M
