--- Parses a template into a tree. Expressions are in lockstep.text.jinja.expressions.
---
--- A statement is {type=, line=, ...}:
---
---     output items: text, or nodes of expressions | set target value | set_block target filters body
---     if tests bodies otherwise | for target iterable test body otherwise uses_loop
---     macro name params defaults body names | call params defaults call body names | filter_block filters body
---     with targets values body | generation body | break | continue

local lexer = require "lockstep.text.jinja.lexer"
local plain = require "lockstep.plain"
local values = require "lockstep.text.jinja.values"

local M = {}

local position = values.position

---@class lockstep.jinja.Parser
---@field tokens table[]
---@field at integer
---@field token table the token at `at`
---@field uses_loop boolean whether the name `loop` was read
---@field has_generation boolean whether the template has {% generation %}
---@field names table<string, true> all names that the template mentions
---@field loops integer how many loops are open here
local Parser = {}
Parser.__index = Parser
require "lockstep.text.jinja.expressions"(Parser)

local NAMES = { eof = "the end of the template", data = "text", variable_begin = "{{", variable_end = "}}",
  block_begin = "{%", block_end = "%}" }

local function describe(token)
  if token.type == "name" then return '"' .. token.value .. '"' end
  if token.type == "string" then return "a string" end
  if token.type == "number" then return "a number" end
  return NAMES[token.type] or '"' .. token.type .. '"'
end

--- Raises an error of the template.
---@param message string
---@param line integer?
function Parser:fail(message, line) values.fail_at(line or self.token.line, message) end

--- Raises an error that names the expected thing and the token.
---@param token table
---@param expected string
function Parser:fail_at_token(token, expected)
  self:fail(("expected %s, got %s"):format(expected, describe(token)), token.line)
end

--- Returns the current token and moves on.
---@return any
function Parser:next()
  local token = self.token
  if token.type ~= "eof" then
    self.at = self.at + 1
    self.token = self.tokens[self.at]
  end
  return token
end

--- Returns the token behind the current one.
---@return any
function Parser:peek() return self.tokens[self.at + 1] or self.token end

--- Moves past a token of a type. Returns whether it was there.
---@param type_ string
---@return boolean
function Parser:skip(type_)
  if self.token.type ~= type_ then return false end
  self:next()
  return true
end

--- Returns whether the token is a name.
---@param name string
---@param ahead integer?
---@return boolean
function Parser:is_name(name, ahead)
  local token = self.tokens[self.at + (ahead or 0)]
  return token ~= nil and token.type == "name" and token.value == name
end

--- Moves past a name. Returns whether it was there.
---@param name string
---@return boolean
function Parser:skip_name(name)
  if not self:is_name(name) then return false end
  self:next()
  return true
end

--- Moves past a token of a type. Raises an error where it is not there.
---@param type_ string
---@return any
function Parser:expect(type_)
  if self.token.type ~= type_ then self:fail_at_token(self.token, NAMES[type_] or '"' .. type_ .. '"') end
  return self:next()
end

-- Statements --------------------------------------------------------------------------------------------

--- Parses statements up to one of the tags `ends`; nil: to the end of the template. Returns them and the name of the
--- tag, which has been read.
---@param ends string[]?
---@param opened table
---@return any
function Parser:body(ends, opened)
  local body, output = {}, nil
  local function add_output(item, line)
    if not output then
      output = { type = "output", line = line, items = {} }
      body[#body + 1] = output
    end
    output.items[#output.items + 1] = item
  end
  while true do
    local token = self:next()
    position.line = token.line
    if token.type == "eof" then
      if not ends then return body end
      self:fail(("{%% %s %%} of line %d is not closed; expected {%% %s %%}"):format(opened.name, opened.line,
        table.concat(ends, " %} or {% ")), token.line)
    elseif token.type == "data" then
      add_output(token.value, token.line)
    elseif token.type == "variable_begin" then
      add_output(self:tuple {}, token.line)
      self:expect("variable_end")
    else
      output = nil
      local name = self:expect("name")
      for _, end_name in ipairs(ends or {}) do
        if name.value == end_name then return body, end_name end
      end
      body[#body + 1] = self:statement(name)
      self:expect("block_end")
    end
  end
end

--- Parses the body of a statement whose tag has been read, from the tag's end on.
---@param opened table
---@param ... any
---@return any
function Parser:block(opened, ...)
  self:expect("block_end")
  return self:body({ ... }, { name = opened.value, line = opened.line })
end

--- Parses a name or names to assign to.
---@return any
function Parser:target()
  local node = self:tuple { targets = true }
  local function check(part)
    if part.type == "tuple" then
      for _, item in ipairs(part.items) do check(item) end
    elseif part.type ~= "name" then
      self:fail("expected names to assign to", part.line)
    elseif part.name == "loop" and self.loops > 0 then
      self:fail("loop cannot be assigned to: within a loop it is what the loop says of itself", part.line)
    end
  end
  check(node)
  return node
end

local STATEMENTS = {}

STATEMENTS.set = function(self, token)
  local target
  if self.token.type == "name" and self:peek().type == "." then
    local name = self:next()
    self:next()
    target = { type = "namespace_item", line = token.line, name = name.value, attribute = self:expect("name").value }
  else
    target = self:target()
  end
  if self:skip("=") then return { type = "set", line = token.line, target = target, value = self:tuple {} } end
  local filters = {}
  while self:skip("|") do filters[#filters + 1] = self:filter() end
  return { type = "set_block", line = token.line, target = target, filters = filters,
    body = self:block(token, "endset") }
end

STATEMENTS["if"] = function(self, token)
  local node = { type = "if", line = token.line, tests = {}, bodies = {} }
  local ended = "elif"
  while ended == "elif" do
    node.tests[#node.tests + 1] = self:tuple { no_condition = true }
    node.bodies[#node.tests], ended = self:block(token, "elif", "else", "endif")
  end
  if ended == "else" then node.otherwise = self:block(token, "endif") end
  return node
end

STATEMENTS["for"] = function(self, token)
  self.loops = self.loops + 1
  local node = { type = "for", line = token.line, target = self:target() }
  if not self:skip_name("in") then self:fail_at_token(self.token, '"in"') end
  node.iterable = self:tuple { no_condition = true }
  if self:skip_name("if") then node.test = self:condition() end
  if self:is_name("recursive") then self:fail("recursive loops are not supported") end
  local uses_loop = self.uses_loop
  self.uses_loop = false
  local ended
  node.body, ended = self:block(token, "endfor", "else")
  node.uses_loop = self.uses_loop
  self.uses_loop, self.loops = uses_loop, self.loops - 1
  if ended == "else" then node.otherwise = self:block(token, "endfor") end
  return node
end

--- Parses a body that no break or continue can leave. Returns it and the names that it mentions.
---@param ... any
---@return any
function Parser:closed_block(...)
  local loops, names = self.loops, self.names
  self.loops, self.names = 0, {}
  local body, inner = self:block(...), self.names
  self.loops, self.names = loops, names
  for name in pairs(inner) do names[name] = true end
  return body, inner
end

--- Parses the parameters of a macro and their defaults. Returns the names that the defaults mention, too.
---@return any
function Parser:signature()
  local params, defaults, names = {}, {}, self.names
  self.names = {}
  self:expect("(")
  while self.token.type ~= ")" do
    local name = self:expect("name")
    params[#params + 1] = name.value
    if self:skip("=") then
      defaults[#params] = self:condition()
    elseif next(defaults) then
      self:fail(("the parameter %s needs a default, as the one before it has"):format(name.value), name.line)
    end
    if not self:skip(",") then break end
  end
  self:expect(")")
  local mentioned = self.names
  self.names = names
  for name in pairs(mentioned) do names[name] = true end
  return params, defaults, mentioned
end

STATEMENTS.macro = function(self, token)
  local node = { type = "macro", line = token.line, name = self:expect("name").value }
  node.params, node.defaults, node.default_names = self:signature()
  node.body, node.names = self:closed_block(token, "endmacro")
  return node
end

STATEMENTS.call = function(self, token)
  local node = { type = "call", line = token.line, params = {}, defaults = {} }
  if self.token.type == "(" then node.params, node.defaults, node.default_names = self:signature() end
  node.call = self:condition()
  if node.call.type ~= "call" then self:fail("expected a call after {% call %}", token.line) end
  node.body, node.names = self:closed_block(token, "endcall")
  return node
end

STATEMENTS.filter = function(self, token)
  local filters = { self:filter() }
  while self:skip("|") do filters[#filters + 1] = self:filter() end
  return { type = "filter_block", line = token.line, filters = filters, body = self:block(token, "endfilter") }
end

STATEMENTS["with"] = function(self, token)
  local node = { type = "with", line = token.line, targets = {}, values = {} }
  while self.token.type ~= "block_end" do
    node.targets[#node.targets + 1] = self:target()
    self:expect("=")
    node.values[#node.targets] = self:condition()
    if not self:skip(",") then break end
  end
  node.body = self:block(token, "endwith")
  return node
end

STATEMENTS.generation = function(self, token)
  self.has_generation = true
  return { type = "generation", line = token.line, body = self:closed_block(token, "endgeneration") }
end

for _, name in ipairs { "break", "continue" } do
  STATEMENTS[name] = function(self, token)
    if self.loops == 0 then self:fail(("{%% %s %%} is not within a loop"):format(name), token.line) end
    return { type = name, line = token.line }
  end
end

--- Parses a statement whose name has been read.
---@param token table
---@return any
function Parser:statement(token)
  local parse = STATEMENTS[token.value]
  if parse then return parse(self, token) end
  self:fail(('{%% %s %%} is not a statement that this interpreter knows (known: %s, raw)'):format(token.value,
    table.concat(plain.keys(STATEMENTS), ", ")), token.line)
end

--- Returns the statements of a template.
---@param source string
---@return table[] body
---@return boolean has_generation
---@return table<string, true> names all that it mentions
function M.parse(source)
  local tokens = lexer.tokenize(source)
  local self = setmetatable({ tokens = tokens, at = 1, token = tokens[1], uses_loop = false, loops = 0,
    has_generation = false, names = {} }, Parser)
  return self:body(), self.has_generation, self.names
end

return M
