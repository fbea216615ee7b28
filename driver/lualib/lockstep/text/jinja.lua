--- Templates as chat models bring them: Jinja, as jinja2 renders it for transformers.
---
---     local template = jinja.compile("{% for m in messages %}{{ m.content }}{% endfor %}", "chat_template.jinja")
---     local text, spans = template:render { messages = messages }

local compiler = require "lockstep.text.jinja.compiler"
local convert = require "lockstep.text.jinja.convert"
local core = require "lockstep.core"
local limits = require "lockstep.text.jinja.limits"
local parser = require "lockstep.text.jinja.parser"

local M = {}

---@class lockstep.jinja.Template
---@field name string what errors call it
---@field source string
---@field names table<string, true> all names that it mentions
---@field has_generation boolean whether it marks what the assistant says
---@field private run function
local Template = {}
Template.__index = Template

--- Runs `fn`; errors of the template get its name and line.
local function guarded(name, fn, ...)
  local ok, result, spans, misplaced = pcall(fn, ...)
  if ok then return result, spans, misplaced end
  result = limits.of_lua(result)
  if type(result) == "table" and result.template_error then
    local place = result.line > 0 and (", line %d"):format(result.line) or ""
    core.raise(("%s%s: %s"):format(name, place, result.template_error))
  elseif type(result) == "table" and result.refusal then
    core.raise(("%s, line %d: the template refuses the conversation: %s"):format(name, result.line, result.refusal))
  end
  error(result, 0)
end

local function render(self, variables)
  convert.begin()
  local text, spans, misplaced = self.run(variables)
  convert.check_text(text, variables)
  return text, spans, misplaced
end

--- Renders the template. A Lua value becomes the value of Python that JSON would make of it: see docs/text.md.
---
---     local text = template:render { messages = { { role = "user", content = "Hello" } } }
---@param variables table<string, any> functions, too: they are called with the arguments by place
---@return string text
---@return integer[][] spans bytes {{first, last}, ...} within {% generation %}
---@return integer? misplaced the line of a {% generation %} whose place in the text is unknown: it is within a macro
---or a set block
function Template:render(variables) return guarded(self.name, render, self, variables) end

--- Compiles a template.
---@param source string
---@param name string what errors call it
---@return lockstep.jinja.Template
function M.compile(source, name)
  return guarded(name, function()
    limits.begin()
    local body, has_generation, names = parser.parse(source)
    return setmetatable({ name = name, source = source, has_generation = has_generation, names = names,
      run = compiler.compile(body) }, Template)
  end)
end

return M
