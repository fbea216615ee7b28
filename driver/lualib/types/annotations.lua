--- Reads Lua files for their LuaLS annotations, and says which public functions lack them. A function is public
--- when a file defines it at the left margin as a field: `function M.f()`, `function Class:method()`.

local jit_util = require "jit.util"

local M = {}

---@class annotations.Function
---@field object string? "M" in `function M.f()`; none for a local function, which is public only if it gets out
---@field name string?
---@field line integer
---@field parameters string[] without self
---@field comment string[] the lines of `---` that stand right above

---@class annotations.File
---@field functions annotations.Function[]
---@field lines string[]
---@field module string? what its ---@meta names
---@field fields table<string, table<string, boolean>> class name to names of its ---@field
---@field classes table<string, string> local variable to class name
---@field subclasses table<string, boolean> local variables made by Base:subclass

--- Opcodes that return a value, found by compiling functions that do.
local RETURNS = {}
for _, code in ipairs { "return 1", "return 1, 2", "return ...", "return print()", "return print(...)" } do
  local fn = loadstring(code)
  local pc = 1
  while jit_util.funcbc(fn, pc + 1) do pc = pc + 1 end
  RETURNS[bit.band(jit_util.funcbc(fn, pc), 0xff)] = true
end

local function returns_value(proto)
  local pc = 1
  while true do
    local instruction = jit_util.funcbc(proto, pc)
    if not instruction then return false end
    if RETURNS[bit.band(instruction, 0xff)] then return true end
    pc = pc + 1
  end
end

--- Lines on which the functions start that return a value somewhere.
local function lines_that_return(chunk)
  local found = {}
  local function visit(proto)
    if returns_value(proto) then found[jit_util.funcinfo(proto).linedefined] = true end
    local index = -1
    while true do
      local constant = jit_util.funck(proto, index)
      if constant == nil then break end
      if type(constant) == "proto" then visit(constant) end
      index = index - 1
    end
  end
  visit(chunk)
  return found
end

---@param lines string[]
---@param line integer
---@return string[]
function M.comment_above(lines, line)
  local comment = {}
  while line > 1 and lines[line - 1]:match("^%s*%-%-%-") do
    line = line - 1
    table.insert(comment, 1, lines[line])
  end
  return comment
end

--- Reads the text of a file.
---@param text string
---@return annotations.File
function M.read(text)
  local file = { functions = {}, lines = {}, fields = {}, classes = {}, subclasses = {} }
  for line in (text .. "\n"):gmatch("(.-)\r?\n") do table.insert(file.lines, line) end
  local class
  for number, line in ipairs(file.lines) do
    class = line:match("^%-%-%-@class ([%w_.]+)") or (line:match("^%-%-%-") and class) or class
    local name = line:match("^%-%-%-@field ([%w_]+)")
    if name then
      file.fields[class] = file.fields[class] or {}
      file.fields[class][name] = true
    end
    local variable = line:match("^local ([%w_]+) = ") or line:match("^([%w_.]+) = {}$")
    if variable then
      if line:find(":subclass(", 1, true) then file.subclasses[variable] = true end
      for _, comment in ipairs(M.comment_above(file.lines, number)) do
        file.classes[variable] = comment:match("^%-%-%-@class ([%w_.]+)") or file.classes[variable]
      end
    end
    local object, field, list = line:match("^function ([%w_.]+)[.:]([%w_]+)%((.-)%)")
    list = list or line:match("^local function [%w_]+%((.-)%)") or line:match("^return function%((.-)%)")
    if list then
      local parameters = {}
      for parameter in list:gmatch("[%w_.]+") do
        if parameter ~= "self" then parameters[#parameters + 1] = parameter end
      end
      table.insert(file.functions, { object = object, name = field, line = number, parameters = parameters,
        comment = M.comment_above(file.lines, number) })
    end
    file.module = file.module or line:match("^%-%-%-@meta ([%w_.]+)")
  end
  return file
end

--- Metamethods speak through ---@operator; `init` and `forward` of a kind of module are what its class says.
local function needs_none(file, fn)
  return not fn.object or fn.name:sub(1, 1) == "_"
    or file.subclasses[fn.object] and (fn.name == "init" or fn.name == "forward")
end

--- Missing annotations of a file's public functions, one sentence for each; or those of the function that starts on
--- `only_line`, public or local.
---
---     annotations.problems("driver/lualib/lockstep/nn.lua", text)
---@param path string for the messages
---@param text string
---@param only_line? integer
---@return string[]
function M.problems(path, text, only_line)
  local file, problems = M.read(text), {}
  local returning = lines_that_return(assert(loadstring(text, "@" .. path)))
  for _, fn in ipairs(file.functions) do
    local asked = fn.line == only_line or not only_line and not needs_none(file, fn)
    if asked then
      local name = fn.object and fn.object .. "." .. fn.name or "the function"
      local function complain(what)
        problems[#problems + 1] = string.format("%s:%d: %s has no %s", path, fn.line, name, what)
      end
      local comment = table.concat(fn.comment, "\n") .. "\n"
      if #fn.comment == 0 then complain("comment of ---") end
      for _, parameter in ipairs(fn.parameters) do
        if not comment:find("---@param " .. parameter .. "%f[?%s]") and
            not (parameter == "..." and comment:find("---@param ...", 1, true)) then
          complain("---@param " .. parameter)
        end
      end
      if returning[fn.line] and not comment:find("---@return", 1, true) then complain("---@return") end
    end
  end
  return problems
end

return M
