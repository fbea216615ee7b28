--- LuaLS stubs of ATen's operators, from the dispatcher's schemas: torch.lua, and torch_internal.lua for the
--- operators whose names start with "_". See generate.lua.
---
--- An operator takes positional arguments, then a table of keyword arguments, and any parameter may travel in
--- that table. A schema therefore gives up to three signatures:
---
---     fun(self, dim?, keepdim?, options? {dtype})     every parameter in its place
---     fun(self, options {dim?, keepdim?, dtype?})     tensors in their place, the rest by name
---     fun(self, ...: integer)                         x:view(2, 3): the list that comes last, spread
---
--- A schema with `out` is one more key, `out`, of the schema without.

local core = require "lockstep.core"
local schema = require "lockstep.help.schema"

local RESERVED = require("lockstep.help.syntax").KEYWORDS

local M = {}


--- Keys that factories (torch.zeros and others) take in addition to their parameters.
local FACTORY_OPTIONS = "torch.FactoryOptions"
local FACTORY_KEYS = "{dtype: torch.dtype?, layout: torch.layout?, device: string?, pin_memory: boolean?, "
  .. "requires_grad: boolean?}"

---@class stubs.Signature
---@field parameters {name: string, type: string, optional: boolean}[]
---@field results schema.Result[]

local function variable(name) return RESERVED[name] and name .. "_" or name end

local function is_optional(parameter) return parameter.default ~= nil end

local function or_nil(type)
  local is_union = type:find("|", 1, true) and type:sub(1, 1) ~= "{"
  return (is_union and "(" .. type .. ")" or type) .. "?"
end

--- With nil where that is a value of its own, or where the argument may be left out.
local function value_type(parameter)
  if not parameter.type then return "nil" end
  return (parameter.nullable or is_optional(parameter)) and or_nil(parameter.type) or parameter.type
end

--- The type of a table of keyword arguments, and whether it may be left out.
local function table_type(parameters)
  local keys, all_optional = {}, true
  for _, p in ipairs(parameters) do
    local key = RESERVED[p.name] and '["' .. p.name .. '"]' or p.name
    keys[#keys + 1] = key .. ": " .. value_type(p)
    all_optional = all_optional and is_optional(p)
  end
  local text = "{" .. table.concat(keys, ", ") .. "}"
  return text == FACTORY_KEYS and FACTORY_OPTIONS or text, all_optional
end

local function signature(s, positional, keywords, options_required)
  local parameters = {}
  for _, p in ipairs(positional) do
    local type = is_optional(p) and (p.type or "nil") or value_type(p)
    parameters[#parameters + 1] = { name = variable(p.name), type = type, optional = is_optional(p) }
  end
  if #keywords > 0 then
    local type, all_optional = table_type(keywords)
    parameters[#parameters + 1] = { name = "options", type = type, optional = all_optional and not options_required }
  end
  return { parameters = parameters, results = s.results }
end

local function callable(s)
  for _, p in ipairs(s.parameters) do
    if not p.type and not is_optional(p) and not p.nullable then return false end
  end
  for _, r in ipairs(s.results) do
    if not r.type then return false end
  end
  return true
end

local function is_tensor(p) return p.type ~= nil and p.type:find("torch.Tensor", 1, true) ~= nil end

---@return stubs.Signature[]
local function signatures(s)
  local positional, keywords, leading, named = {}, {}, {}, {}
  local of_tensors = s.parameters[1] ~= nil and is_tensor(s.parameters[1])
  for _, p in ipairs(s.parameters) do
    if not p.keyword_only then
      positional[#positional + 1] = p
      -- A factory has no tensors: what must be given leads.
      local leads = #named == 0 and not is_optional(p) and (is_tensor(p) or not of_tensors)
      table.insert(leads and leading or named, p)
    elseif p.type then
      keywords[#keywords + 1] = p
    end
  end
  while #positional > 0 and not positional[#positional].type do positional[#positional] = nil end
  local result = { signature(s, positional, keywords) }
  local last = positional[#positional]
  if last and last.spreads then
    local spread = signature(s, positional, {})
    spread.parameters[#positional] =
      { name = "...", type = #keywords > 0 and "integer|table" or "integer", optional = false }
    result[#result + 1] = spread
  end
  local by_name = {}
  for _, p in ipairs(named) do
    if p.type then by_name[#by_name + 1] = p end
  end
  if #by_name > 0 and not (#by_name == 1 and by_name[1].spreads) then
    for _, p in ipairs(keywords) do by_name[#by_name + 1] = p end
    result[#result + 1] = signature(s, leading, by_name, true)
  end
  return result
end

--- A number may stand for a tensor next to another tensor: torch.maximum(x, 0). Only for these parameters.
local OPERANDS = { self = true, other = true, exponent = true }
local function allow_numbers(s)
  for i, p in ipairs(s.parameters) do
    if i > 1 and OPERANDS[p.name] and p.type == "torch.Tensor" and not p.written then p.type = "torch.Tensor|number" end
  end
end

local function is_out(p) return p.keyword_only and p.written end

--- Equal for a schema with `out` and its twin: names of all parameters but the results.
local function call_key(s)
  local names = {}
  for _, p in ipairs(s.parameters) do
    if not is_out(p) then names[#names + 1] = p.name .. ":" .. tostring(p.type) end
  end
  return table.concat(names, ",")
end

--- Gives each schema without `out` the keys of its twin with it; a schema with `out` that has no twin stays.
local function merge_outs(schemas)
  local plain, by_key = {}, {}
  for _, s in ipairs(schemas) do
    local outs = {}
    for _, p in ipairs(s.parameters) do
      if is_out(p) then outs[#outs + 1] = p end
    end
    s.outs = outs
    if #outs == 0 then
      plain[#plain + 1] = s
      by_key[call_key(s)] = s
    end
  end
  for _, s in ipairs(schemas) do
    local twin = #s.outs > 0 and by_key[call_key(s)]
    if twin then
      for _, p in ipairs(s.outs) do
        local copy = {}
        for k, v in pairs(p) do copy[k] = v end
        copy.default = "None"
        table.insert(twin.parameters, copy)
      end
    elseif #s.outs > 0 then
      plain[#plain + 1] = s
    end
  end
  return plain
end

--- Factories also take requires_grad, which is no parameter of any schema.
local function add_requires_grad(schemas)
  for _, s in ipairs(schemas) do
    for i, p in ipairs(s.parameters) do
      if p.name == "pin_memory" then
        table.insert(s.parameters, i + 1,
          { name = "requires_grad", type = "boolean", default = "False", keyword_only = true })
        break
      end
    end
  end
end

-- Text -----------------------------------------------------------------------------------------------

local function overload_line(s)
  local parameters, results = {}, {}
  for _, p in ipairs(s.parameters) do
    parameters[#parameters + 1] = p.name .. ": " .. (p.optional and or_nil(p.type) or p.type)
  end
  for _, r in ipairs(s.results) do results[#results + 1] = r.type end
  return "---@overload fun(" .. table.concat(parameters, ", ") .. ")"
    .. (#results > 0 and ": " .. table.concat(results, ", ") or "")
end

local function function_lines(name, main, overloads, out)
  local names = {}
  for _, overload in ipairs(overloads) do out[#out + 1] = overload end
  for _, p in ipairs(main.parameters) do
    names[#names + 1] = p.name
    out[#out + 1] = "---@param " .. p.name .. (p.optional and "? " or " ") .. p.type
  end
  for _, r in ipairs(main.results) do out[#out + 1] = "---@return " .. r.type .. (r.name and " " .. r.name or "") end
  local list = "(" .. table.concat(names, ", ") .. ") end"
  out[#out + 1] = RESERVED[name] and 'torch["' .. name .. '"] = function' .. list or "function torch." .. name .. list
end

--- The schema that an editor shows for all comes first: of most tensors (a factory: of fewest), then of most
--- parameters.
local function sort_telling_first(schemas, is_factory)
  local rank = {}
  for i, s in ipairs(schemas) do
    local num_tensors = 0
    for _, p in ipairs(s.parameters) do
      if is_tensor(p) and not is_out(p) then num_tensors = num_tensors + 1 end
    end
    rank[s] = num_tensors * (is_factory and -1e6 or 1e6) + #s.parameters * 1e3 - i
  end
  table.sort(schemas, function(a, b) return rank[a] > rank[b] end)
end

--- The stub of one operator, as lines; nil where Lua can call none of its schemas.
---@param name string
---@param texts string[] its schemas
---@return string[]?
function M.operator(name, texts)
  local schemas, is_factory = {}, false
  for _, text in ipairs(texts) do
    local s = schema.parse(text)
    for _, p in ipairs(s.parameters) do is_factory = is_factory or p.name == "pin_memory" end
    if callable(s) then schemas[#schemas + 1] = s end
  end
  if #schemas == 0 then return nil end
  for _, s in ipairs(schemas) do allow_numbers(s) end
  schemas = merge_outs(schemas)
  if is_factory then add_requires_grad(schemas) end
  sort_telling_first(schemas, is_factory)
  local main, overloads, seen = nil, {}, {}
  for _, s in ipairs(schemas) do
    for _, sig in ipairs(signatures(s)) do
      local line = overload_line(sig)
      if not main then
        main = sig
      elseif not seen[line] then
        overloads[#overloads + 1] = line
      end
      seen[line] = true
    end
  end
  local lines = {}
  function_lines(name, main, overloads, lines)
  return lines
end

local HEADER = [[
---@meta %s
--- %s
--- Written by generate.lua from the dispatcher's schemas: do not edit; types_test says how to refresh it.

---@class lockstep.torch
local torch = {}

---@class torch.Tensor
local Tensor = {}
]]

--- Names that the hand-written stubs in this folder define: "torch.full", "Tensor:size".
local function hand_written()
  local folder = debug.getinfo(1, "S").source:match("^@(.*/)") or ""
  local names = {}
  for _, file in ipairs { "torch_functions.lua", "tensor.lua" } do
    for line in io.lines(folder .. file) do
      local name = line:match("^function ([%w_]+[.:][%w_]+)")
      if name then names[name] = true end
    end
  end
  for _, field in ipairs(core.tensor_fields()) do names["Tensor:" .. field] = true end
  return names
end

local function field(object, name)
  return RESERVED[name] and object .. '["' .. name .. '"]' or object .. "." .. name
end

--- The generated files: content by name.
---@return table<string, string>
function M.files()
  local public = { HEADER:format("lockstep.torch", "ATen's operators, as functions and as methods of tensors.") }
  local internal = { HEADER:format("_", "ATen's operators whose names start with an underscore: they may change.") }
  local written, unreachable = hand_written(), {}
  for _, name in ipairs(core.operators()) do
    local out = name:sub(1, 1) == "_" and internal or public
    local lines = M.operator(name, core.schemas(name))
    if not lines then
      unreachable[#unreachable + 1] = name
    else
      if not written["torch." .. name] then out[#out + 1] = table.concat(lines, "\n") end
      if core.is_tensor_method(name) and not written["Tensor:" .. name] then
        out[#out + 1] = field("Tensor", name) .. " = " .. field("torch", name)
      end
    end
  end
  internal[#internal + 1] =
    "\n-- They take or return what has no form in Lua: " .. table.concat(unreachable, ", ") .. "."
  public[#public + 1] = "\nreturn torch"
  return {
    ["torch.lua"] = table.concat(public, "\n") .. "\n",
    ["torch_internal.lua"] = table.concat(internal, "\n") .. "\n",
  }
end

return M
