--- help(torch.matmul), help("optim.AdamW"), help("nn"): describes a value and its call, with an example.

local core = require "lockstep.core"
local reference = require "lockstep.help.reference"
local schema = require "lockstep.help.schema"
local torch = require "lockstep.torch"

local M = {}

--- Names that replace arguments in examples.
local EXAMPLES = {
  ["torch.Tensor"] = "other", integer = "0", ["integer[]"] = "{ 0 }", ["integer|integer[]"] = "{ 0 }", number = "0.5",
  ["torch.Scalar"] = "2", boolean = "true", ["torch.Tensor[]"] = "{ x, other }", ["torch.dtype"] = "torch.float32",
  string = '"cpu"',
}

local function argument(parameter, position)
  if position == 1 and parameter.type == "torch.Tensor" then return "x" end
  local text = parameter.default and parameter.default:match("^[\"'](.*)[\"']$")
  if text then return ("%q"):format(text) end
  if parameter.name:match("^dim") or parameter.name == "size" or parameter.name == "shape" then
    return parameter.type == "integer" and "0" or "{ 0 }"
  end
  return EXAMPLES[parameter.type] or parameter.name
end

--- Returns an example call of a schema, with its required arguments and one optional keyword.
local function example(name, parsed)
  local given, keyword = {}, nil
  for i, p in ipairs(parsed.parameters) do
    if p.default == nil and not p.keyword_only then
      given[#given + 1] = argument(p, i)
    elseif p.default ~= nil and p.type and not keyword and p.type ~= "torch.Tensor" then
      keyword = string.format("%s = %s", p.name, argument(p, i))
    end
  end
  local lines = { string.format("local y = torch.%s(%s)", name, table.concat(given, ", ")) }
  if given[1] == "x" then
    lines[2] = string.format("local y = x:%s(%s)", name, table.concat(given, ", ", 2))
  end
  if keyword then
    given[#given + 1] = "{ " .. keyword .. " }"
    lines[#lines + 1] = string.format("local y = torch.%s(%s)", name, table.concat(given, ", "))
  end
  return lines
end

--- Leaves out schemas that write into `out`, which add nothing; the first of the rest is the plainest.
local function operator_lines(name)
  local schemas, lines = core.schemas(name), {}
  local first
  for _, text in ipairs(schemas) do
    local parsed = schema.parse(text)
    local writes = false
    for _, p in ipairs(parsed.parameters) do writes = writes or (p.keyword_only and p.written) end
    if not writes then
      lines[#lines + 1] = text
      if not first or #parsed.parameters < #first.parameters then first = parsed end
    end
  end
  if not first then return schemas end
  lines[#lines + 1] = ""
  for _, line in ipairs(example(name, first)) do lines[#lines + 1] = "    " .. line end
  return lines
end

local function entry_lines(entry)
  local lines = { entry.signature }
  if #entry.text > 0 then lines[#lines + 1] = "" end
  for _, line in ipairs(entry.text) do lines[#lines + 1] = line end
  if #entry.parameters + #entry.returns > 0 then lines[#lines + 1] = "" end
  for _, parameter in ipairs(entry.parameters) do lines[#lines + 1] = "  " .. parameter end
  for _, result in ipairs(entry.returns) do lines[#lines + 1] = "  returns " .. result end
  return lines
end

local function module_lines(module)
  local lines = { module.name }
  for _, line in ipairs(module.text) do lines[#lines + 1] = line end
  lines[#lines + 1] = ""
  for _, entry in ipairs(module.entries) do
    if entry.kind == "function" and not entry.is_private then
      local summary = reference.summary(entry)
      lines[#lines + 1] = "  " .. entry.signature .. (summary ~= "" and "   " .. summary or "")
    end
  end
  if module.name == "torch" then
    lines[#lines + 1] = ("  and %d operators: help(\"torch.matmul\")"):format(#core.operators())
  end
  return lines
end

local function unknown(name)
  local known = {}
  local prefix = name:find("^torch%.") and "torch." or ""
  for i, operator in ipairs(core.operators()) do known[i] = prefix .. operator end
  for _, module in ipairs(reference.modules()) do
    known[#known + 1] = module.name
    for _, entry in ipairs(module.entries) do
      if not entry.is_private then known[#known + 1] = entry.name end
    end
  end
  local nearest = core.nearest(name, known)
  core.raise(string.format('help: there is nothing called "%s"%s', name,
    nearest and string.format('; did you mean "%s"?', nearest) or ""))
end

--- Returns the functions of a group within a module ("torch.cuda", "batching.cost"), or nil.
local function group_lines(name)
  local entries = {}
  for _, module in ipairs(reference.modules()) do
    for _, entry in ipairs(module.entries) do
      if entry.name:sub(1, #name + 1) == name .. "." then entries[#entries + 1] = entry end
    end
  end
  return entries[1] and module_lines { name = name, text = {}, entries = entries }
end

--- Describes a data type by its name, "torch.float32", or returns nil.
local function dtype_lines(name)
  local dtype = name:match("^torch%.[%w_]+$") and rawget(torch, name:match("[%w_]+$"))
  if type(dtype) ~= "userdata" then return end
  return { tostring(dtype), "", "A data type, of " .. torch.empty({ 1 }, { dtype = dtype }):element_size()
    .. " bytes for each element.", "", ("    local x = torch.zeros({ 2, 3 }, { dtype = %s })"):format(name),
    ("    local y = x:to(%s)"):format(name) }
end

--- Returns the lines of the entry with the shortest name that contains `name`, in whatever case, with a list of the
--- other such entries. Returns nil where no entry has such a name.
local function lines_of_part(name)
  local part, found, seen = name:lower(), {}, {}
  for _, module in ipairs(reference.modules()) do
    for _, entry in ipairs(module.entries) do
      if not entry.is_private and not seen[entry.name] and entry.name:match("[%w_]+$"):lower():find(part, 1, true) then
        seen[entry.name] = true
        found[#found + 1] = entry.name
      end
    end
  end
  if #found == 0 then return end
  table.sort(found, function(a, b)
    if #a ~= #b then return #a < #b end
    return a < b
  end)
  local lines = entry_lines(reference.find(found[1]))
  if #found > 1 then
    lines[#lines + 1] = ""
    lines[#lines + 1] = "see also: " .. table.concat(found, ", ", 2, math.min(#found, 8))
  end
  return lines
end

local function lines_of_name(name)
  local module = reference.find_module(name)
  if module then return module_lines(module) end
  local entry = reference.find(name)
  if entry then return entry_lines(entry) end
  local operator = name:match("^torch%.Tensor[.:]([%w_]+)$") or name:match("^torch%.([%w_]+)$") or name
  if operator:find("^[%w_]+$") and #core.schemas(operator) > 0 then return operator_lines(operator) end
  return group_lines(name) or dtype_lines(name) or name:find("^[%w_]+$") and #name > 2 and lines_of_part(name)
    or unknown(name)
end

--- Returns the name of a value in a table of the library, such as "torch.cuda.synchronize", or nil.
local function name_in(loaded, value, name, depth)
  if rawequal(loaded, value) then return name end
  if type(loaded) ~= "table" or rawget(loaded, "class_name") or depth == 3 then return end
  for key, member in pairs(loaded) do
    local found = type(key) == "string" and name_in(member, value, name .. "." .. key, depth + 1)
    if found then return found end
  end
end

--- Returns the name of a function, class or module in a loaded module of the library, or nil.
---@param value any
---@return string?
function M.name_of(value)
  if type(value) ~= "function" and type(value) ~= "table" and type(value) ~= "userdata" then return end
  for _, module in ipairs(reference.modules()) do
    local loaded = package.loaded["lockstep." .. module.name] or package.loaded[module.name]
    local found = name_in(loaded, value, module.name, 1)
    if found then return found end
  end
end

local function describe(value)
  if type(value) == "table" and type(value.class_name) == "string" then
    local entry = reference.find("nn." .. value.class_name)
    return entry and entry_lines(entry) or lines_of_name("nn.Module")
  end
  if torch.is_tensor(value) then
    local lines = { tostring(value), "" }
    local tensor = { name = "torch.Tensor", text = {}, entries = reference.methods("torch.Tensor") }
    for _, line in ipairs(module_lines(tensor)) do lines[#lines + 1] = line end
    lines[#lines + 1] = "  and operators: help(\"torch.relu\")"
    return lines
  end
  return { "a " .. type(value) .. " that is not Lockstep's" }
end

--- Describes a function, class or module of the library, or a name in quotes.
---
---     help(torch.matmul)   help("nn.Linear")   help("sharding")
---@param what any
---@return string
function M.text(what)
  if what == nil or what == "" then
    local lines = {}
    for _, module in ipairs(reference.modules()) do
      lines[#lines + 1] = ("%-16s%s"):format(module.name, reference.summary(module))
    end
    lines[#lines + 1] = 'help("nn") lists a module, help(torch.matmul) or help("torch.matmul") explains a function'
    return table.concat(lines, "\n")
  end
  local name = type(what) == "string" and what or M.name_of(what)
  return table.concat(name and lines_of_name(name) or describe(what), "\n")
end

--- Prints M.text(what).
---@param ... any what; nothing for the list of modules
function M.help(...)
  if select("#", ...) > 0 and ... == nil then
    core.raise('help: the argument is nil; a name in quotes works too: help("nn.Linear")')
  end
  print(M.text((...)))
end

return M
