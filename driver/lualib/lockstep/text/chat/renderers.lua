--- Chats of model families whose templates write a turn differently once others follow: renderers of our own.
---
--- A renderer writes each turn of the assistant as the template writes it when it is the last message: that is what the
--- model generated. A chat that ends with a turn of the assistant therefore begins every longer one.

local core = require "lockstep.core"
local jinja = require "lockstep.text.jinja"
local plain = require "lockstep.plain"
local unicode = require "lockstep.text.jinja.unicode"

local M = {}

-- The chat as far as it is written: pieces of text, their size, and the spans that the assistant generated.
local Out = {}
Out.__index = Out

--- Adds text that the model is given.
---@param text string
function Out:add(text)
  self[#self + 1], self.size = text, self.size + #text
end

--- Adds what the assistant generates.
---@param text string
function Out:learn(text)
  self.spans[#self.spans + 1] = { self.size + 1, self.size + #text }
  self:add(text)
end

local function fail(name, message, ...) core.raise(('renderer "%s": ' .. message):format(name, ...)) end

local to_json, to_indented = jinja.compile("{{ v | tojson }}", "tojson"), jinja.compile("{{ v | tojson(indent=4) }}",
  "tojson")

local function json(value) return (to_json:render { v = value }) end

local function trim(text) return unicode.lstrip(unicode.rstrip(text)) end

local given = plain.given

--- Returns a list, empty for nil and null. Nothing would be written of a map.
local function list_of(name, what, value)
  value = given(value)
  if value == nil then return {} end
  if type(value) ~= "table" or value[1] == nil and next(value) ~= nil then
    fail(name, "%s must be a list, got %s", what, type(value) == "table" and "a table with keys" or "a " .. type(value))
  end
  return value
end

--- Returns the content of a message, which must be a text.
local function text_of(name, i, message)
  local content = message.content
  if content == nil then return "" end
  if type(content) ~= "string" then
    fail(name, "the content of message %d must be a string, got a %s", i, type(content))
  end
  return content
end

--- Returns the function of a call, whose name must be a string.
local function function_of(name, i, call)
  local called = type(call) == "table" and (given(call["function"]) or call)
  if type(called) ~= "table" or type(called.name) ~= "string" then
    fail(name, "a tool call of message %d has no name", i)
  end
  return called
end

-- Qwen3 -------------------------------------------------------------------------------------------------

local TOOLS_BEGIN = "# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are provided "
  .. "with function signatures within <tools></tools> XML tags:\n<tools>"
local TOOLS_END = "\n</tools>\n\nFor each function call, return a json object with function name and arguments within "
  .. "<tool_call></tool_call> XML tags:\n<tool_call>\n{\"name\": <function-name>, \"arguments\": <args-json-object>}\n"
  .. "</tool_call>"
local NO_THOUGHTS = "<think>\n\n</think>\n\n"

local KINDS = {
  image = { holder = "<|vision_start|><|image_pad|><|vision_end|>", label = "Picture %d: " },
  video = { holder = "<|vision_start|><|video_pad|><|vision_end|>", label = "Video %d: " },
}

--- Returns the text of parts, with a placeholder for each picture and video. `counts` are those before.
local function parts_text(name, i, content, counts, has_labels)
  local pieces = {}
  for _, part in ipairs(list_of(name, ("the content of message %d"):format(i), content)) do
    local kind = (part.type == "image" or part.image or part.image_url) and "image"
      or (part.type == "video" or part.video) and "video"
    if kind and not counts then fail(name, "message %d has a %s, which only users and tools may show", i, kind) end
    if kind then
      counts[kind] = (counts[kind] or 0) + 1
      pieces[#pieces + 1] = (has_labels and KINDS[kind].label:format(counts[kind]) or "") .. KINDS[kind].holder
    else
      pieces[#pieces + 1] = type(part.text) == "string" and part.text
        or fail(name, "message %d has a part that is neither text, image nor video", i)
    end
  end
  return table.concat(pieces)
end

--- Returns the reasoning and the answer of a message of the assistant.
local function thoughts_of(message, content)
  if type(message.reasoning_content) == "string" then return message.reasoning_content, content end
  local first = content:find("</think>", 1, true)
  if not first then return "", content end
  local reasoning = content:sub(1, first - 1):gsub("\n+$", ""):gsub("^.*<think>", "", 1):gsub("^\n+", "")
  return reasoning, (content:gsub("^.*</think>", "", 1):gsub("^\n+", ""))
end

local function qwen_calls(name, i, message, has_content)
  local pieces = {}
  for k, call in ipairs(list_of(name, ("tool_calls of message %d"):format(i), message.tool_calls)) do
    local called = function_of(name, i, call)
    local arguments = called.arguments
    pieces[k] = ('%s<tool_call>\n{"name": "%s", "arguments": %s}\n</tool_call>'):format(
      (k > 1 or has_content) and "\n" or "", called.name, type(arguments) == "string" and arguments or json(arguments))
  end
  return table.concat(pieces)
end

--- Makes the renderer of Qwen3 (thinks) or Qwen3-VL (shows pictures).
local function qwen(name, thinks, shows)
  return function(out, v)
    local messages, counts = v.messages, {}
    local function content_of(i, may_show)
      local content = messages[i].content
      if not shows or type(content) ~= "table" then return text_of(name, i, messages[i]) end
      return parts_text(name, i, content, may_show and counts or nil, v.add_vision_id == true)
    end
    local is_quiet = thinks and v.enable_thinking == false
    local first = messages[1].role == "system" and 2 or 1
    local tools = list_of(name, "tools", v.tools)
    if #tools > 0 then
      out:add("<|im_start|>system\n" .. (first == 2 and content_of(1) .. "\n\n" or "") .. TOOLS_BEGIN)
      for _, tool in ipairs(tools) do out:add("\n" .. json(tool)) end
      out:add(TOOLS_END .. "<|im_end|>\n")
    elseif first == 2 then
      out:add("<|im_start|>system\n" .. content_of(1) .. "<|im_end|>\n")
    end
    local is_asked = false -- Qwen3 thinks about a message of the user, and not before there is one
    for i = first, #messages do
      local message = messages[i]
      local role = message.role
      if role == "assistant" then
        local content = content_of(i)
        local has_content, prompt = content ~= "", "<|im_start|>assistant\n"
        if thinks then
          local reasoning
          reasoning, content = thoughts_of(message, content)
          has_content = content ~= ""
          reasoning = reasoning:gsub("^\n+", ""):gsub("\n+$", "")
          if is_asked then content = content:gsub("^\n+", "") end
          if is_asked and is_quiet and reasoning == "" then
            prompt = prompt .. NO_THOUGHTS
          elseif is_asked then
            content = "<think>\n" .. reasoning .. "\n</think>\n\n" .. content
          end
        elseif shows and type(message.content) == "table" then
          has_content = #message.content > 0
        end
        out:add(prompt)
        out:learn(content .. qwen_calls(name, i, message, has_content) .. "<|im_end|>")
        out:add("\n")
      elseif role == "tool" then
        local begins = i == 1 or messages[i - 1].role ~= "tool"
        local ends = i == #messages or messages[i + 1].role ~= "tool"
        out:add((begins and "<|im_start|>user" or "") .. "\n<tool_response>\n" .. content_of(i, true)
          .. "\n</tool_response>" .. (ends and "<|im_end|>\n" or ""))
      elseif role == "user" or role == "system" and not shows then
        local content = content_of(i, role == "user")
        is_asked = is_asked or role == "user" and not content:find "^<tool_response>.*</tool_response>$"
        out:add("<|im_start|>" .. role .. "\n" .. content .. "<|im_end|>\n")
      else
        fail(name, 'message %d has the role "%s", which the template leaves out', i, role)
      end
    end
    if v.add_generation_prompt then out:add("<|im_start|>assistant\n" .. (is_quiet and NO_THOUGHTS or "")) end
  end
end

-- Llama 3 -----------------------------------------------------------------------------------------------

local FORMAT = 'Respond in the format {"name": function name, "parameters": dictionary of argument name and its '
  .. "value}.Do not use variables.\n\n"
local AS_SYSTEM = "You have access to the following functions. To call a function, please respond with JSON for a "
  .. "function call." .. FORMAT
local AS_USER = "Given the following functions, please respond with a JSON for a function call with its proper "
  .. "arguments that best answers the given prompt.\n\n" .. FORMAT

local function header(role) return "<|start_header_id|>" .. role .. "<|end_header_id|>\n\n" end

local function llama_tools(tools)
  local pieces = {}
  for i, tool in ipairs(tools) do pieces[i] = to_indented:render { v = tool } .. "\n\n" end
  return table.concat(pieces)
end

--- Returns what the assistant generates of a call.
local function llama_call(name, i, message)
  local calls = list_of(name, ("tool_calls of message %d"):format(i), message.tool_calls)
  if #calls ~= 1 then fail(name, "message %d has %d tool calls; Llama 3 makes one at a time", i, #calls) end
  local called = function_of(name, i, calls[1])
  return ('{"name": "%s", "parameters": %s}'):format(called.name, json(called.arguments))
end

--- Makes the renderer of Llama 3.1 to 3.3 (knows_tools), or of Llama 3.
local function llama(name, knows_tools)
  return function(out, v)
    local messages, first, tools = v.messages, 1, given(v.tools) and list_of(name, "tools", v.tools)
    if tools and #tools > 0 and not knows_tools then fail(name, "the template leaves tools out") end
    out:add(v.bos_token or "<|begin_of_text|>")
    if knows_tools then
      local has_system = messages[1].role == "system"
      local in_user = v.tools_in_user_message ~= false
      out:add(header "system" .. (tools and "Environment: ipython\n" or "") .. "Cutting Knowledge Date: December 2023\n"
        .. "Today Date: " .. (given(v.date_string) or "26 Jul 2024") .. "\n\n"
        .. (tools and not in_user and AS_SYSTEM .. llama_tools(tools) or "")
        .. (has_system and trim(text_of(name, 1, messages[1])) or "") .. "<|eot_id|>")
      first = has_system and 2 or 1
      if tools and in_user then
        local message = messages[first]
        if not message or message.role ~= "user" then fail(name, "tools are shown in the first message of the user") end
        out:add(header "user" .. AS_USER .. llama_tools(tools) .. trim(text_of(name, first, message)) .. "<|eot_id|>")
        first = first + 1
      end
    end
    for i = first, #messages do
      local message = messages[i]
      local role = message.role
      if role == "assistant" then
        out:add(header "assistant")
        local calls = knows_tools and message.tool_calls
        if not calls and message.tool_calls and not text_of(name, i, message):find "%S" then
          fail(name, "message %d has tool calls alone, which the template leaves out", i)
        end
        out:learn((calls and llama_call(name, i, message) or trim(text_of(name, i, message))) .. "<|eot_id|>")
      elseif knows_tools and (role == "tool" or role == "ipython") then
        out:add(header "ipython" .. json(message.content == nil and "" or message.content) .. "<|eot_id|>")
      else
        out:add(header(role) .. trim(text_of(name, i, message)) .. "<|eot_id|>")
      end
    end
    if v.add_generation_prompt then out:add(header "assistant") end
  end
end

-- The renderers -----------------------------------------------------------------------------------------

---@class lockstep.text.chat.Renderer: lockstep.jinja.Template
---@field family string
---@field closes string the token that ends a turn
---@field write fun(out: table, variables: table)
local Renderer = {}
Renderer.__index = Renderer

--- Returns the text, and the bytes {{first, last}, ...} that the assistant generates.
---@param variables table<string, any>
---@return string text
---@return integer[][] spans
function Renderer:render(variables)
  for name, kind in pairs(self.names) do
    local value = given(variables[name])
    plain.check(value == nil or type(value) == kind, "%s: %s must be a %s, got a %s", self.name, name, kind,
      type(value))
  end
  if #list_of(self.family, "documents", variables.documents) > 0 then
    fail(self.family, "the template leaves documents out")
  end
  local out = setmetatable({ size = 0, spans = {} }, Out)
  self.write(out, variables)
  return table.concat(out), out.spans
end

--- All renderers by name.
---@type table<string, lockstep.text.chat.Renderer>
M.known = {}

local ORDER = { "qwen3", "qwen3_vl", "llama3_1", "llama3" }

local function add(name, write, closes, names)
  M.known[name] = setmetatable({ name = ('renderer "%s"'):format(name), family = name, write = write, names = names,
    closes = closes, has_generation = true }, Renderer)
end

add("qwen3", qwen("qwen3", true, false), "<|im_end|>", { enable_thinking = "boolean" })
add("qwen3_vl", qwen("qwen3_vl", false, true), "<|im_end|>", { add_vision_id = "boolean" })
add("llama3_1", llama("llama3_1", true), "<|eot_id|>", { date_string = "string", tools_in_user_message = "boolean" })
add("llama3", llama("llama3", false), "<|eot_id|>", {})

-- Recognising a template --------------------------------------------------------------------------------

-- Chats of one turn, which tell the families apart.
local function probes(name)
  local system, user = { role = "system", content = "s" }, { role = "user", content = " u \n" }
  local tools = { { name = "f", parameters = { x = 1 } } }
  local answer = { role = "assistant", content = "a", reasoning_content = "r", thinking = "r" }
  local list = { { messages = { system, user, answer } }, { messages = { user }, add_generation_prompt = true } }
  if name == "qwen3" then list[3] = { messages = { user, { role = "assistant", content = "a" } } } end
  if name == "qwen3_vl" then
    list[3] = { messages = { { role = "user", content = { { type = "image" }, { type = "text", text = "x" } } } } }
  end
  if name ~= "llama3" then
    local call = { role = "assistant", content = "", reasoning_content = "r", thinking = "r",
      tool_calls = { { ["function"] = { name = "f", arguments = { x = 2 } } } } }
    list[#list + 1] = { messages = { system, user, call, { role = "tool", content = "t" }, answer }, tools = tools }
  end
  for _, probe in ipairs(list) do
    probe.tools, probe.bos_token, probe.date_string = probe.tools or core.null, "<b>", "1 Jan 2000"
    probe.add_generation_prompt = probe.add_generation_prompt or false
  end
  return list
end

--- Returns the name of the renderer that writes chats of one turn as a template does, or nil.
---@param template lockstep.jinja.Template
---@return string?
function M.recognise(template)
  for _, name in ipairs(ORDER) do
    local is_equal = true
    for _, probe in ipairs(probes(name)) do
      local ok, text = pcall(template.render, template, probe)
      is_equal = is_equal and ok and text == (M.known[name]:render(probe))
    end
    if is_equal then return name end
  end
end

return M
