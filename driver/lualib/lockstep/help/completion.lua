--- Completes a name that a user has begun to type.
---
---     completion.complete("torch.matm", _G)   --> { "torch.matmul" }

local core = require "lockstep.core"
local nn = require "lockstep.nn"
local syntax = require "lockstep.help.syntax"
local torch = require "lockstep.torch"

local M = {}

--- Names that can stand behind `value` and a dot or a colon, as the keys of a set. Looks into tables, and calls
--- nothing of the user's.
---@param value any
---@param separator "."|":"
---@return table<string, true>
function M.names_of(value, separator)
  local names = {}
  local function add(name)
    if type(name) == "string" and name:find("^[%a_][%w_]*$") then names[name] = true end
  end
  if torch.is_tensor(value) then
    for _, name in ipairs(separator == ":" and core.tensor_methods() or core.tensor_fields()) do add(name) end
    if separator == ":" then
      for _, name in ipairs(core.operators()) do
        if name:sub(1, 1) ~= "_" and core.is_tensor_method(name) then add(name) end
      end
    end
  end
  local levels = 0
  while type(value) == "table" and levels < 16 do
    for name in pairs(nn.is_module(value) and nn.fields(value) or value) do add(name) end
    if value == torch then
      for _, name in ipairs(core.operators()) do add(name) end
    end
    local metatable = getmetatable(value)
    local index = type(metatable) == "table" and rawget(metatable, "__index")
    value = type(index) == "table" and index or nn.is_module(value) and metatable or nil
    levels = levels + 1
  end
  return names
end

--- The value of a chain of names, "model.layers", read without metamethods but those of modules and tensors.
---@param chain string
---@param environment table where the first name is looked up
---@return any
function M.value_of(chain, environment)
  local value = environment
  for name in chain:gmatch("[^.:]+") do
    if nn.is_module(value) then
      value = nn.fields(value)[name]
    elseif type(value) == "table" then
      value = rawget(value, name)
    else
      return nil
    end
  end
  return value
end

--- Returns the sorted completions of `word`, a chain of names joined by dots and a colon. Names that begin with an
--- underscore come only if an underscore was typed.
---@param word string
---@param environment table where the first name is looked up
---@return string[]
function M.complete(word, environment)
  local before, separator, begun = word:match("^(.*)([.:])([%w_]*)$")
  local names
  if before then
    -- Nothing before the dot is the end of what is no chain of names: f(x).
    names = before ~= "" and M.names_of(M.value_of(before, environment), separator) or {}
  else
    before, separator, begun = "", "", word
    names = M.names_of(environment, ".")
    for keyword in pairs(syntax.KEYWORDS) do names[keyword] = true end
  end
  local found = {}
  for name in pairs(names) do
    if name:sub(1, #begun) == begun and (begun ~= "" or name:sub(1, 1) ~= "_") then
      found[#found + 1] = before .. separator .. name
    end
  end
  table.sort(found)
  return found
end

return M
