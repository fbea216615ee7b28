--- The Lua source that a template becomes: lines, blocks, local variables, constants, and where the names of the
--- template live.
---
--- Text of the template gets into the source as string literals alone, and its names do, too: variables of the source
--- are numbered. The source sees `K`, its constants, the functions of lockstep.text.jinja.runtime, and nothing else:
---
---     x7         a name of the template, t8 what an expression gave; nil where a name is not set
---     R2[3]      a name that macros within its scope mention, or one beyond the number that Lua has room for
---     V["name"]  a variable of the rendering, or what stands for one that was not given
---     out, n     where text goes: out[1] to out[n]
---
--- A scope is a part of the template with names of its own: the template, a loop's body, a macro, a set block. A name
--- is looked up in the innermost scope that assigns it, then in the scopes around it, then in the variables of the
--- rendering. So a name that an outer scope assigns later has the rendering's value, where jinja2 gives it none.

local builtins = require "lockstep.text.jinja.builtins"
local values = require "lockstep.text.jinja.values"

local M = {}

-- Lua has room for 200 local variables in a function. Twenty loops within each other need 140.
local MAX_LOCALS = 50

---@class lockstep.jinja.Place
---@field text string the variable
---@field is_set boolean whether it certainly has a value here
---@field fallback string? the value of the name while it is unset; without it outer scopes are searched
---@field is_read boolean? whether the source reads it

---@class lockstep.jinja.Scope
---@field parent lockstep.jinja.Scope?
---@field level integer that of its function
---@field names table<string, lockstep.jinja.Place>
---@field in_macros table<string, true> names that macros within it mention
---@field loop integer? the number of the loop whose body it is

---@class lockstep.jinja.Generator
---@field is_split boolean whether bodies are cut into functions (a very large template); names are then in tables R,
---which these functions read
---@field code string[]
---@field loop {number: integer, level: integer, continues: boolean?}? the loop around a statement
---@field constants table
---@field free table<string, true> the variables of the rendering that are read
---@field scope lockstep.jinja.Scope
---@field level integer how many functions are around the current one; the template's own is 0
---@field live integer how many local variables are open in the current function
---@field has_table table<integer, boolean> whether the function at a level has a table R
---@field is_direct boolean whether text goes straight to the rendering's text, not to that of a macro or a set block
---@field line integer? the line that position.line has here; nil: any
---@field known table<string, table<string, string>> members that variables hold: from the object to key to variable
---@field changing table<string, true> the attributes that {% set x.attribute %} changes
local Generator = {}
Generator.__index = Generator
M.Generator = Generator

---@param is_split boolean see Generator.is_split
---@return lockstep.jinja.Generator
function M.new(is_split)
  return setmetatable({ is_split = is_split, code = {}, constants = {}, places = {}, free = {}, count = 0, level = -1,
    live = 0, known = {}, undo = {}, has_table = {}, changing = {}, is_direct = true }, Generator)
end

-- Lines, blocks and local variables ---------------------------------------------------------------------

--- Adds a line. With arguments, `text` is a format.
---@param text string
---@param ... any
function Generator:emit(text, ...)
  self.code[#self.code + 1] = select("#", ...) > 0 and text:format(...) or text
end

--- Returns a number that no other variable has.
---@return integer
function Generator:number()
  self.count = self.count + 1
  return self.count
end

--- Begins a block. Returns what `close` needs.
---@param head string
---@param ... any
---@return table
function Generator:open(head, ...)
  if head ~= "" then self:emit(head, ...) end
  return { live = self.live, undo = #self.undo, line = self.line }
end

--- Begins the block of a statement. While there is room, its variables stay for the next statements.
---@return table?
function Generator:open_statement() return self.live > MAX_LOCALS / 2 and self:open("do") or nil end

--- Ends a block: forgets its variables and what only holds within it.
---@param block table?
---@param tail string
function Generator:close(block, tail)
  if not block then return end
  for i = #self.undo, block.undo + 1, -1 do
    self.undo[i]()
    self.undo[i] = nil
  end
  self.live = block.live
  if self.line ~= block.line then self.line = nil end
  if tail ~= "" then self:emit(tail) end
end

--- Declares a variable. Returns its name.
---@param value string? an expression of Lua
---@return string
function Generator:declare(value)
  local number = self:number()
  if self.live >= MAX_LOCALS then return self:declare_in_table(number, value) end
  self.live = self.live + 1
  self:emit(value and "local t%d = %s" or "local t%d", number, value)
  return "t" .. number
end

--- Declares a variable in the table R of the function: functions within this one may read it. Returns its name.
---@param number integer
---@param value string?
---@return string
function Generator:declare_in_table(number, value)
  self.has_table[self.level] = true
  local text = ("R%d[%d]"):format(self.level, number)
  self:emit("%s = %s", text, value or "nil")
  return text
end

--- Returns an expression of Lua for a constant of the template.
---@param value any
---@return string
function Generator:constant(value)
  local t = type(value)
  if t == "string" then return ("%q"):format(value) end
  if t == "boolean" then return tostring(value) end
  if t == "number" and value % 1 == 0 then return ("%d"):format(value) end
  if value == values.none then return "none" end
  return self:held(value)
end

--- Returns an expression of Lua for a value that is made before the template runs.
---@param value any
---@return string
function Generator:held(value)
  if not self.places[value] then
    self.constants[#self.constants + 1] = value
    self.places[value] = #self.constants
  end
  return ("K[%d]"):format(self.places[value])
end

--- Sets the line that errors name.
---@param line integer
function Generator:at(line)
  if self.line == line then return end
  self.line = line
  self:emit("position.line = %d", line)
end

-- Scopes and names --------------------------------------------------------------------------------------

local function add_target(names, target)
  if target.type == "name" then
    names[#names + 1] = target.name
  elseif target.type == "tuple" then
    for _, item in ipairs(target.items) do add_target(names, item) end
  end
end

--- Returns the names of a target of an assignment.
---@param target table
---@return string[]
function M.names_of(target)
  local names = {}
  add_target(names, target)
  return names
end

--- Adds the names that statements assign in their own scope, not in the scopes within it.
local function add_assigned(names, body)
  for _, node in ipairs(body or {}) do
    if node.type == "set" or node.type == "set_block" then
      add_target(names, node.target)
    elseif node.type == "macro" then
      names[#names + 1] = node.name
    elseif node.type == "if" then
      for _, branch in ipairs(node.bodies) do add_assigned(names, branch) end
      add_assigned(names, node.otherwise)
    end
  end
end

--- Adds the names that the macros and {% call %} blocks within a body mention.
local function add_names_in_macros(names, body)
  for _, node in ipairs(body or {}) do
    for name in pairs(node.names or {}) do names[name] = true end
    for name in pairs(node.default_names or {}) do names[name] = true end
    for _, branch in ipairs(node.bodies or {}) do add_names_in_macros(names, branch) end
    add_names_in_macros(names, node.body)
    add_names_in_macros(names, node.otherwise)
  end
end

--- Enters the scope of a body. `leave` ends it.
---@param body table[]
---@return lockstep.jinja.Scope
function Generator:enter(body)
  local scope = { parent = self.scope, level = self.level, names = {}, in_macros = {} }
  add_names_in_macros(scope.in_macros, body)
  self.scope = scope
  return scope
end

--- Leaves the current scope.
function Generator:leave() self.scope = self.scope.parent end

--- Declares a name of the current scope. Returns its variable.
---@param name string
---@param value string? an expression of Lua; without it the name is unset
---@return string
function Generator:declare_name(name, value)
  local scope = self.scope
  local text
  if scope.names[name] then
    text = scope.names[name].text
    self:emit("%s = %s", text, value or "nil")
  elseif scope.in_macros[name] or self.is_split then
    text = self:declare_in_table(self:number(), value)
  else
    text = self:declare(value)
  end
  scope.names[name] = { text = text, is_set = value ~= nil }
  return text
end

--- Declares the names that a body assigns in the current scope, unset.
---@param body table[]
function Generator:declare_assigned(body)
  local names = {}
  add_assigned(names, body)
  for _, name in ipairs(names) do
    if not self.scope.names[name] then self:declare_name(name) end
  end
end

--- Returns the variable of a name of the current scope, which changes.
---@param name string
---@return string
function Generator:assign(name)
  local text = self.scope.names[name].text
  self.known[text] = nil
  return text
end

--- Notes that names of the current scope are set from here to the end of the block.
---@param names string[]
function Generator:note_set(names)
  for _, name in ipairs(names) do
    local place = self.scope.names[name]
    if not place.is_set then
      place.is_set = true
      self.undo[#self.undo + 1] = function() place.is_set = false end
    end
  end
end

--- Returns the variable of a name. Emits where to look for it while it may be unset.
---@param name string
---@return string
function Generator:read(name)
  local found, scope = {}, self.scope
  while scope do
    local place = scope.names[name]
    if place then
      place.is_read = true
      found[#found + 1] = place.text
      found[#found + 1] = place.fallback
      if place.fallback then break end
      -- A macro may outlive the loop that it was made in, whose names are unset then.
      if place.is_set and (scope.level == self.level or not scope.parent) then break end
    end
    scope = scope.parent
  end
  if not scope then
    self.free[name] = true
    found[#found + 1] = ("V[%q]"):format(name)
  end
  if #found == 1 then return found[1] end
  local result = self:declare(found[1])
  for i = 2, #found do self:emit("if %s == nil then %s = %s end", result, result, found[i]) end
  return result
end

--- Returns the value of a variable that was not given: a function that every template has, or undefined.
---@param name string
---@return any
function M.default_of(name) return builtins[name] or values.undefined(("%s is undefined"):format(name)) end

--- Returns the number of the loop that `loop` stands for, or nil where that is not certain.
---@return integer?
function Generator:loop_number()
  local scope = self.scope
  while scope and not scope.names.loop do scope = scope.parent end
  return scope and scope.level == self.level and scope.loop or nil
end

-- Members -----------------------------------------------------------------------------------------------

--- Keeps the variable that holds a member of an object up to the end of the block.
---@param object string
---@param key string
---@param variable string
---@return string
function Generator:remember(object, key, variable)
  local members = self.known[object] or {}
  self.known[object], members[key] = members, variable
  self.undo[#self.undo + 1] = function() members[key] = nil end
  return variable
end

--- Returns the variable that holds a member of an object, or nil.
---@param object string
---@param key string
---@return string?
function Generator:recall(object, key) return self.known[object] and self.known[object][key] end

return M
