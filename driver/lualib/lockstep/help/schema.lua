--- Reads the schemas that lockstep.core lists, "torch.add(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor",
--- and says what each type is in Lua: the rules of driver/lua/operators/arguments.cc.

local M = {}

---@class schema.Parameter
---@field name string
---@field type string? the LuaLS type without nil; nil where no Lua value can be given
---@field nullable boolean nil is a value of its own: `Tensor?`
---@field default string? as the schema writes it
---@field keyword_only boolean
---@field written boolean the operator writes into it: `Tensor(a!)`
---@field spreads boolean numbers in a row may stand for the list: x:view(2, 3)

---@class schema.Result
---@field name string?
---@field type string? nil where it has no form in Lua

---@class schema.Schema
---@field name string of the operator, without "torch."
---@field parameters schema.Parameter[]
---@field results schema.Result[]

local LUA_TYPES = {
  Tensor = "torch.Tensor",
  int = "integer",
  SymInt = "integer",
  float = "number",
  Scalar = "torch.Scalar",
  bool = "boolean",
  str = "string",
  ScalarType = "torch.dtype",
  Device = "string",
  Layout = "torch.layout",
  MemoryFormat = "torch.memory_format",
}

--- Where a result is not what a parameter of its type is.
local RESULT_TYPES = { Scalar = "number", SymBool = "boolean" }

local ELEMENT_TYPES = {
  Tensor = "torch.Tensor[]",
  ["Tensor?"] = "(torch.Tensor|false)[]",
  int = "integer[]",
  SymInt = "integer[]",
  float = "number[]",
  Scalar = "torch.Scalar[]",
  bool = "boolean[]",
}

--- Splits at the commas that stand in no bracket and no string.
local function split(text)
  local parts, depth, start, in_string = {}, 0, 1, false
  local i = 1
  while i <= #text do
    local c = text:sub(i, i)
    if in_string then
      if c == "\\" then i = i + 1 elseif c == '"' then in_string = false end
    elseif c == '"' then
      in_string = true
    elseif c == "(" or c == "[" then
      depth = depth + 1
    elseif c == ")" or c == "]" then
      depth = depth - 1
    elseif c == "," and depth == 0 then
      parts[#parts + 1] = text:sub(start, i - 1):match("^%s*(.*)$")
      start = i + 1
    end
    i = i + 1
  end
  local last = text:sub(start):match("^%s*(.*)$")
  if last ~= "" then parts[#parts + 1] = last end
  return parts
end

--- "int[2]?" -> "integer|integer[]", nullable, false. The list without a length spreads.
local function lua_type(text)
  local bare = text:gsub("%b()", "")  -- alias marks: Tensor(a!)
  local nullable = bare:sub(-1) == "?"
  if nullable then bare = bare:sub(1, -2) end
  local element, length = bare:match("^(.-)%[(%d*)%]$")
  if not element then return LUA_TYPES[bare], nullable, false end
  local list = ELEMENT_TYPES[element]
  if list ~= "integer[]" then return list, nullable, false end
  -- A single number stands for a list of known length, as kernel_size = 3.
  return length == "" and list or "integer|integer[]", nullable, length == ""
end

local function parse_parameter(text, keyword_only)
  local left, default = text:match("^(.-)=(.*)$")
  left = left or text
  local type_text, name = left:match("^(.*) ([%w_]+)$")
  if not name then error("schema: cannot read the parameter: " .. text, 0) end
  local type, nullable, spreads = lua_type(type_text)
  return {
    name = name, type = type, nullable = nullable, default = default, keyword_only = keyword_only,
    written = type_text:find("!", 1, true) ~= nil, spreads = spreads,
  }
end

local function parse_result(text)
  local type_text, name = text:match("^(.*[^%-]) ([%w_]+)$")
  type_text = type_text or text
  return { name = name, type = RESULT_TYPES[type_text] or (lua_type(type_text)) }
end

--- Reads one schema.
---
---     schema.parse("torch.relu(Tensor self) -> Tensor").results[1].type   --> "torch.Tensor"
---@param text string
---@return schema.Schema
function M.parse(text)
  local name, arguments, results = text:match("^torch%.([%w_]+)(%b())%s*%->%s*(.*)$")
  if not name then error("schema: cannot read: " .. text, 0) end
  local schema = { name = name, parameters = {}, results = {} }
  local keyword_only = false
  for _, part in ipairs(split(arguments:sub(2, -2))) do
    if part == "*" then
      keyword_only = true
    else
      table.insert(schema.parameters, parse_parameter(part, keyword_only))
    end
  end
  -- "()" has no results, "(Tensor, Tensor)" has two; "Tensor(a!)" and "Tensor(a)[]" have one.
  local list = results:match("^%((.*)%)$")
  for _, part in ipairs(list and split(list) or { results }) do table.insert(schema.results, parse_result(part)) end
  return schema
end

return M
