--- Conversations as a model's chat template writes them. Scripts use text.chat.
---
---     local chat = text.chat("Qwen3-0.6B")
---     local sample = chat:encode { { role = "user", content = "2 + 2?" }, { role = "assistant", content = "4" } }

local core = require "lockstep.core"
local folder = require "lockstep.text.chat.folder"
local jinja = require "lockstep.text.jinja"
local messages_of = require "lockstep.text.chat.messages"
local models_folder = require "lockstep.models.folder"
local options = require "lockstep.options"
local pictures = require "lockstep.text.chat.pictures"
local plain = require "lockstep.plain"
local renderers = require "lockstep.text.chat.renderers"
local spans_of = require "lockstep.text.chat.spans"
local tools = require "lockstep.text.chat.tools"
local videos_of = require "lockstep.text.chat.videos"

local M = {}

---@class lockstep.text.Chat
---@field dir string
---@field tokens table<string, string> the special tokens that templates know: bos_token, eos_token, ...
---@field private picture_tokens table<string, string> boi_token, eoi_token and image_token of Gemma 3
---@field private sources table<string, {source: string, name: string}>
---@field private compiled table<string, lockstep.jinja.Template>
---@field private recognised table<string, string> names of renderers
---@field private tokenizer_ text.Tokenizer?
---@field private has_warned boolean? of tools that the template leaves out
---@field private control_tokens string[]? what results of tools must not spell
local Chat = {}
Chat.__index = Chat

local RENDER = { generation_prompt = false, tools = options.optional, documents = options.optional,
  template = options.optional, renderer = options.optional }
local ENCODE = { loss = "all", loss_from = 1, processor = options.optional, folder = "." }
local NO_OPTIONS = {}

-- Variables of templates that cannot be given as such: the first argument, and the option generation_prompt.
local TAKEN = { messages = true, add_generation_prompt = true }

--- Returns the template that the options choose, and its variables.
---@private
---@param caller string
---@param messages table[]
---@param opts table?
---@return any
function Chat:variables(caller, messages, opts)
  plain.check(opts == nil or type(opts) == "table", "%s: options must be a table, not a %s", caller, type(opts))
  local o, others = NO_OPTIONS, NO_OPTIONS
  if opts and next(opts) ~= nil then
    local known = {}
    others = {}
    for key, value in pairs(opts) do
      if RENDER[key] ~= nil then
        known[key] = value
      elseif ENCODE[key] == nil then
        others[key] = value
      end
    end
    o = options.read(caller, known, RENDER)
    if o.renderer == "" then o.renderer = nil end
  end
  if o.template and o.renderer and o.renderer ~= "auto" then
    core.raise(("%s: the renderer \"%s\" reads no template; leave template = \"%s\" or the renderer out"):format(caller,
      tostring(o.renderer), tostring(o.template)))
  end
  local chosen = o.template or (o.tools and self.sources.tool_use and "tool_use") or "default"
  local template = o.renderer and self:renderer(caller, o.renderer, chosen) or self:template(caller, chosen)
  local variables = plain.copy(self.tokens)
  for name, value in pairs(others) do
    if TAKEN[name] or not template.names[name] then
      local names = { "generation_prompt", "tools", "documents", "template", "renderer", "loss", "loss_from",
        "processor", "folder" }
      for mentioned in pairs(template.names) do names[#names + 1] = mentioned end
      local hint = options.hint(caller, name, names)
      core.raise(('%s: unknown option "%s"%s%s'):format(caller, tostring(name), hint,
        TAKEN[name] and "" or (": %s mentions no such variable"):format(template.name)))
    end
    variables[name] = value
  end
  variables.messages = messages_of.prepare(caller, messages)
  variables.tools, variables.documents = messages_of.list(o.tools), messages_of.list(o.documents)
  variables.tools = variables.tools == nil and core.null or variables.tools
  if type(variables.tools) == "table" and not o.renderer and not template.names.tools and not self.has_warned then
    self.has_warned = true
    if tonumber(os.getenv "RANK" or 0) == 0 then
      io.stderr:write(("lockstep: warning: %s: %s does not mention tools, so the model is not told of them; describe "
        .. "them in a message, or give the folder a template with tools\n"):format(caller, template.name))
    end
  end
  variables.documents = variables.documents == nil and core.null or variables.documents
  variables.add_generation_prompt = o.generation_prompt or false
  return template, variables
end

---@private
---@param caller string
---@param name string
---@return any
function Chat:template(caller, name)
  if self.compiled[name] then return self.compiled[name] end
  local source = self.sources[name]
  if not source then
    core.raise(('%s: %s has no template "%s" (it has: %s); choose one with template = "..."'):format(caller, self.dir,
      tostring(name), table.concat(plain.keys(self.sources), ", ")))
  end
  self.compiled[name] = jinja.compile(source.source, source.name)
  return self.compiled[name]
end

--- Returns the renderer of a name; of "auto" the one that writes a chat of one turn as the template does.
---@private
---@param caller string
---@param name string
---@param template string
---@return any
function Chat:renderer(caller, name, template)
  if name == "auto" then
    local source = self:template(caller, template)
    self.recognised[template] = self.recognised[template] or renderers.recognise(source)
    if self.recognised[template] then return renderers.known[self.recognised[template]] end
    core.raise(('%s: renderer = "auto": %s is of no known family; leave the option out to use the template'):format(
      caller, source.name))
  end
  if renderers.known[name] then return renderers.known[name] end
  local names = plain.keys(renderers.known)
  table.insert(names, 1, "auto")
  core.raise(('%s: there is no renderer "%s" (known: %s)'):format(caller, tostring(name), table.concat(names, ", ")))
end

--- Returns the conversation as the model's template writes it.
---
---     chat:render(messages, { generation_prompt = true, enable_thinking = false })
---
--- Messages are tables with `role` and `content`, and whatever else the template reads: tool_calls, reasoning_content.
--- Tables that data.json or data.jsonl read keep the order of their keys; others are written with sorted keys.
---@param messages table[]
---@param opts table? generation_prompt: boolean, ends with the header of an answer; tools: table[]; documents: table[];
---template: string, one of several templates; renderer: string, "auto" or a name, see docs/chat.md ("" for none); any
---other key is a variable that the template mentions
---@return string text
function Chat:render(messages, opts)
  local template, variables = self:variables("chat:render", messages, opts)
  return (template:render(variables))
end

--- Returns the text, as chat:render, and which bytes of it the template marks with {% generation %}.
---
---     local text, spans = chat:render_marked(messages)
---@param messages table[]
---@param opts table? as chat:render
---@return string text
---@return integer[][] spans {{first, last}, ...}, from 1 on
function Chat:render_marked(messages, opts)
  local template, variables = self:variables("chat:render_marked", messages, opts)
  local text, spans = template:render(variables)
  return text, spans
end

--- Returns the tokenizer of the folder, which is opened when it is first needed.
---@private
---@return any
function Chat:tokenizer()
  if not self.tokenizer_ then self.tokenizer_ = require("lockstep.text").tokenizer(self.dir) end
  return self.tokenizer_
end

--- Returns where the assistant speaks, from message number `first` on, without messages that are not to be learnt.
---@private
---@param template any
---@param variables table
---@param first integer
---@return string text
---@return integer[][] spans
function Chat:spans(template, variables, first)
  local messages = variables.messages
  local learnt = spans_of.learnt(messages)
  if not learnt then return self:all_spans(template, variables, first) end
  local text, spans = self:all_spans(template, variables, first)
  local before, kept = spans_of.count_assistants(messages, first - 1), {}
  plain.check(#spans == #learnt - before, "chat:encode: %s marks %d parts of %d messages of the assistant, so it is "
    .. "not known which part is that of a message with weight or train; mark each message once", template.name, #spans,
    #learnt - before)
  for i, span in ipairs(spans) do
    if learnt[before + i] then kept[#kept + 1] = span end
  end
  return text, kept
end

---@private
---@param template any
---@param variables table
---@param first integer
---@return any
function Chat:all_spans(template, variables, first)
  local messages = variables.messages
  local function render(count, generation_prompt)
    local changed = plain.copy(variables)
    changed.messages, changed.add_generation_prompt = { unpack(messages, 1, count) }, generation_prompt
    return template:render(changed)
  end
  local text, spans, misplaced = template:render(variables)
  local before = spans_of.count_assistants(messages, first - 1)
  if template.has_generation then
    plain.check(not misplaced,
      "chat:encode: %s, line %d: {%% generation %%} is within a macro, a set block or a filter, where its place in "
      .. "the text is unknown; move it out", template.name, misplaced)
    if before == 0 then return text, spans end
    local marked = #select(2, render(first - 1, false)) -- a message may be marked in parts
    if marked >= #spans and spans_of.count_assistants(messages, #messages) > before then
      core.raise(("chat:encode: %s marks %d parts of this conversation with {%% generation %%}, and %d of the messages "
        .. "before message %d alone; mark each message of the assistant"):format(template.name, #spans, marked, first))
    end
    return text, { unpack(spans, marked + 1) }
  end
  spans = spans_of.by_markers(text, messages)
  if spans then return text, { unpack(spans, before + 1) } end
  local tokenizer = self:tokenizer()
  local function is_token(token) return tokenizer:id(token) ~= nil end
  local found, reason = spans_of.by_prefixes(text, messages, first, render, is_token)
  if found then return text, found end
  core.raise(("chat:encode: no rule gives the loss mask of this conversation. %s has no {%% generation %%} marks, "
    .. "and %s. Put {%% generation %%} and {%% endgeneration %%} around what the assistant says in a copy of the "
    .. "template%s, or choose a renderer if there is one for the model"):format(template.name, reason,
    first > 1 and "" or ', or learn the last answer alone with loss = "last"'))
end

--- Returns the conversation as ids, with a loss mask: 1 on what the assistant says, up to and with the token that ends
--- its turn. The ids are those of the whole text of chat:render.
---
---     local sample = chat:encode(messages, { tools = tools })
---
--- The mask comes of the first of these rules that applies:
---
--- 1. The template marks what the assistant says with {% generation %}. A token counts if one of its bytes is marked.
--- 2. The text has the markers of ChatML (Qwen) or Llama 3, no message contains them, and there are as many turns of
---    the assistant as messages of it. A turn counts from behind its header to its closing token.
--- 3. Every chat up to and with a message of the assistant begins the whole chat, and begins with the prompt before the
---    message. What comes behind that prompt counts.
---
--- Where none applies, the conversation is refused with an error that says why. A renderer marks what it writes.
--- With `processor = images.processor(dir)` pictures of the messages are read: parts like {type = "image", path =
--- "cat.png"}, or {type = "image_url", image_url = {url = "data:image/png;base64,..."}}. The sample then has
--- pixel_values and image_grid_thw, and each token of a picture its id. Processors of Qwen2.5-VL and Qwen3-VL read
--- videos as well, {type = "video", video = "cat.mp4", fps = 2}, by images.video: pixel_values_videos, video_grid_thw.
---@param messages table[]
---@param opts table? as chat:render; with generation_prompt the mask is 0 everywhere. loss: "all" answers (default),
---the "last" one, or "none". loss_from: the number of the first message that may count, default 1. processor:
---images.Processor. folder: where relative paths of pictures and videos begin; default "."
---@return {input_ids: integer[], loss_mask: integer[]} sample for batching.prepare, or a prompt of models.generate
function Chat:encode(messages, opts)
  if opts and opts.processor and type(messages) == "table" then messages = pictures.renamed(messages) end
  local template, variables = self:variables("chat:encode", messages, opts)
  local loss = ENCODE.loss
  if opts and opts.loss ~= nil then loss = opts.loss end
  plain.check(loss == "all" or loss == "last" or loss == "none",
    'chat:encode: loss must be "all", "last" or "none", got %s', loss)
  local first = opts and opts.loss_from or ENCODE.loss_from
  plain.check(plain.is_whole(first, 1), "chat:encode: loss_from must be the number of a message, from 1 on, not %s",
    first)
  local text, spans
  if loss == "none" or variables.add_generation_prompt then
    text, spans = template:render(variables), {}
  else
    text, spans = self:spans(template, variables, math.max(first, loss == "last" and spans_of.last_assistant(
      variables.messages) or 1))
  end
  local tokenizer = self:tokenizer()
  if template.closes and not tokenizer:id(template.closes) then
    core.raise(("chat:encode: %s ends turns with %s, which is no token of %s; choose the renderer of the model's "
      .. "family"):format(template.name, template.closes, self.dir))
  end
  local process, found, seen = opts and opts.processor, nil, nil
  local folder_of, videos = opts and opts.folder or ENCODE.folder, nil
  if process then found = pictures.find(messages, folder_of, process.video_config ~= nil) end
  if process and process.video_config then
    videos = videos_of.read(messages, folder_of, process)
    text, spans = videos_of.write(text, spans, videos)
  end
  if process and process.config.image_seq_length then
    text, spans, seen = pictures.write(text, spans, found, self.picture_tokens, process)
  end
  local ids = #spans == 0 and tools.encode(tokenizer, text) or tokenizer:encode(text, { special = false })
  local sample = { input_ids = ids, loss_mask = spans_of.mask(tokenizer, ids, text, spans) }
  if seen then return pictures.mark(sample, seen, self.picture_tokens, tokenizer, process) end
  if not process then return sample end
  sample = pictures.add(sample, found, tokenizer, process)
  if videos then videos_of.mark(sample, videos, tokenizer) end
  return sample
end

--- Returns the ids that stand between a turn of the assistant with calls of tools and its next turn: the results, as
--- messages of the role "tool", and the header of an answer. What the model wrote stays as it is: append the ids to it.
--- A special token that a result spells, or another added token that the template writes, is ordinary text there: a
--- result cannot end its turn or begin another one.
---
---     local ids = chat:tool_results(messages, text.tool_calls(written), { "4" }, { tools = schemas })
---@param messages table[] before the assistant's turn
---@param calls text.ToolCall[]
---@param results string[] of each call
---@param opts table? those with which the prompt was encoded
---@return integer[]
function Chat:tool_results(messages, calls, results, opts)
  return tools.results(self, messages, calls, results, opts)
end

--- Returns the id that ends a text.
---@private
---@return integer
function Chat:end_id()
  local id = self.tokens.eos_token and self:tokenizer():id(self.tokens.eos_token)
  if id then return id end
  local path = self.dir .. "/config.json"
  local config = plain.read_file(path)
  id = config and core.json_decode(config, path).eos_token_id
  if type(id) == "table" then id = id[1] end
  if type(id) == "number" then return id end
  core.raise(("chat:encode_sample: %s names no token that ends a text: no eos_token in tokenizer_config.json, and no "
    .. "eos_token_id in config.json"):format(self.dir))
end

--- Returns a sample of a file as ids, with a loss mask: a conversation in any form that docs/chat.md lists, with its
--- tools, documents and chat_template_kwargs; or plain `text`, which is learnt as a whole, without the template and
--- with the token that ends a text. Without a processor pictures are an error.
---
---     local sample = chat:encode_sample({ instruction = "2 + 2?", output = "4" }, { roles = "critic" })
---@param sample table as data.source reads it
---@param opts table? as chat:encode, and roles: string, further roles that the template knows, split by commas
---@return {input_ids: integer[], loss_mask: integer[]} sample
function Chat:encode_sample(sample, opts)
  local more = plain.copy(opts or {})
  local row = require("lockstep.text.chat.samples").row(sample, { roles = more.roles }, "text.conversation")
  more.roles = nil
  if row.text then
    local ids, mask = self:tokenizer():encode(row.text), {}
    local last = self:end_id()
    if ids[#ids] ~= last then ids[#ids + 1] = last end
    for i = 1, #ids do mask[i] = 1 end
    return { input_ids = ids, loss_mask = mask }
  end
  if not more.processor then pictures.refuse(row.messages) end
  return self:encode(row.messages, M.options(row, more))
end

--- Returns options of chat:encode with the tools, the documents and the template's variables of a sample.
---@param row text.Row|text.Preference
---@param opts table
---@return table
function M.options(row, opts)
  local all = plain.copy(opts, { tools = row.tools, documents = row.documents })
  for name, value in pairs(row.chat_template_kwargs or {}) do
    plain.check(RENDER[name] == nil and ENCODE[name] == nil,
      '"%s" of chat_template_kwargs is no variable of a template', name)
    if value ~= core.null then all[name] = value end
  end
  return all
end

--- Opens the chat template of a Hugging Face folder. See text.chat.
---@param dir string
---@param tokenizer text.Tokenizer? default: that of the folder
---@return lockstep.text.Chat
function M.open(dir, tokenizer)
  dir = models_folder.find(dir, "text.chat")
  local tokens, picture_tokens = folder.tokens(dir)
  return setmetatable({ dir = dir, tokens = tokens, picture_tokens = picture_tokens,
    sources = folder.templates(dir), compiled = {}, recognised = {}, tokenizer_ = tokenizer }, Chat)
end

return M
