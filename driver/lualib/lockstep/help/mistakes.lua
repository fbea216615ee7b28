--- Finds mistakes in the text of a script that Lua does not report, or not in words that help: habits of Python, and
--- tensors where Lua expects something else.
---
---     train.lua:7: the condition "x:gt(1):all()" is a tensor, which is always true in Lua; add :item()
---
--- Each brings a warning before the script runs. There are no false alarms: where the text does not tell what a value
--- is, there is no warning.

local core = require "lockstep.core"
local dist = require "lockstep.distributed"
local plain = require "lockstep.plain"
local syntax = require "lockstep.help.syntax"

local M = {}

---@class mistakes.Mistake
---@field line integer
---@field code string the code that is wrong
---@field message string with the code, and what to write

--- Methods that return a tensor of booleans.
local ANSWERS = plain.words("all any eq ge gt isclose isfinite isinf isnan le logical_and logical_not logical_or "
  .. "logical_xor lt ne")

--- Functions of torch, and methods of tensors, that return a tensor.
local RETURNS_TENSOR = plain.words("abs add all any arange argmax argmin bfloat16 bool cat clamp clone contiguous cos "
  .. "cumsum detach div double empty eq exp expand eye flatten float full gather ge gelu gt half index_select int le "
  .. "linspace log log_softmax logsumexp long lt masked_fill matmul max mean min mul narrow ne neg norm ones ones_like "
  .. "permute pow prod rand randint randn relu reshape rsqrt select sigmoid silu sin softmax sqrt square squeeze stack "
  .. "std sub sum t tanh tensor to transpose tril triu unsqueeze var view where zeros zeros_like")

--- Methods that return a table, and the function that visits it.
local TABLES = { parameters = "ipairs", state_dict = "pairs" }

--- Names by which a function with a dot may take the module itself.
local SELF = plain.words "self this module"

--- Fields of tensors. A value with a field of another name is not a tensor.
local TENSOR_FIELDS = plain.words "device dtype grad grad_fn is_leaf layout requires_grad shape"

--- Returns whether a condition is certain to be a tensor, as "not x:gt(1):all()" is.
local function is_answer(node)
  if node.kind == "not" then return is_answer(node.of) end
  if node.kind == "logic" then return is_answer(node.parts[1]) or is_answer(node.parts[2]) end
  return node.kind == "method" and ANSWERS[node.key] == true
end

local is_tensor

--- Returns whether all that is assigned to a variable are tensors. A variable with a call of x:backward() is one, if it
--- is assigned once and nothing asks for its type.
local function holds_tensor(binding)
  if #binding.values == 0 or binding.is_visited then return false end
  if binding.called.backward and #binding.values == 1 and not binding.asks_type then return true end
  binding.is_visited = true
  local all = true
  for _, value in ipairs(binding.values) do all = all and value and is_tensor(value) end
  binding.is_visited = nil
  return all
end

--- Returns whether an expression is certain to be a tensor.
function is_tensor(node)
  if node.kind == "name" then return holds_tensor(node.binding) end
  if node.kind == "method" then return RETURNS_TENSOR[node.key] ~= nil and is_tensor(node.of) end
  if node.kind == "arithmetic" then
    return is_tensor(node.parts[1]) or node.parts[2] ~= nil and is_tensor(node.parts[2])
  end
  local callee = node.kind == "call" and node.of
  local module = callee and callee.kind == "field" and callee.of
  return module and module.kind == "name" and module.binding.name == "torch" and RETURNS_TENSOR[callee.key] ~= nil
end

--- Returns whether a variable holds a class of modules: nn.Module:subclass("Net").
local function is_class(node)
  local values = node.kind == "name" and node.binding.values or {}
  return #values == 1 and values[1] and values[1].kind == "method" and values[1].key == "subclass"
end

--- Returns whether a function with a dot lacks its self.
local function lacks_self(source_defined)
  local value = source_defined.value
  if value.uses_self then return true end
  local first, binding = value.parameters[1], value.bindings[1]
  if source_defined.key ~= "forward" and source_defined.key ~= "init" then return false end
  if not first or SELF[first] or first:find("^_") or first == "..." then return false end
  for field in pairs(binding.fields) do
    if not TENSOR_FIELDS[field] then return false end
  end
  return true
end

--- Returns the mistakes in a text, in the order of its lines.
---@param text string
---@return mistakes.Mistake[]
function M.find(text)
  local source, found = syntax.read(text), {}
  local tokens = source.tokens
  local function code_of(from, to)
    return from <= to and text:sub(tokens[from].first, tokens[to].last):gsub("%s+", " ") or ""
  end
  local function add(from, to, message, ...)
    local at = tokens[from].first
    local line = select(2, text:sub(1, at):gsub("\n", "")) + 1
    found[#found + 1] = { line = line, at = at, code = code_of(from, to), message = message:format(...) }
  end

  for _, node in ipairs(source.conditions) do
    if is_answer(node) then
      add(node.from, node.to, 'the condition "%s" is a tensor, which is always true in Lua; add :item()',
        code_of(node.from, node.to))
    end
  end

  for _, node in ipairs(source.concatenated) do
    if is_tensor(node) then
      local code = code_of(node.from, node.to)
      local object = node.kind == "arithmetic" and "(" .. code .. ")" or code
      add(node.from, node.to, '"%s" is a tensor, and .. joins strings and numbers; write %s:item() for its number, or '
        .. "tostring(%s)", code, object, code)
    end
  end

  local own = {} -- a method that the script defines may return anything
  for _, one in ipairs(source.defined) do own[one.key] = true end
  for _, one in ipairs(source.iterated) do
    local visit = one.of.kind == "method" and not own[one.of.key] and TABLES[one.of.key]
    if visit then
      local code, to = code_of(one.of.from, one.of.to), one.of.to
      add(one.from, to, '"%s" has a table where Lua expects an iterator; write "for %s in %s(%s)"',
        code_of(one.from, to), #one.names > 1 and table.concat(one.names, ", ") or "_, " .. one.names[1], visit, code)
    end
  end

  for _, one in ipairs(source.defined) do
    if not one.has_colon and is_class(one.owner) and lacks_self(one) then
      local arguments = table.concat(one.value.parameters, ", ")
      add(one.from, one.to, '"%s" has a dot, so that its first argument is the module itself; write "function '
        .. '%s:%s(%s)"', code_of(one.from, one.to), one.owner.binding.name, one.key, arguments)
    end
  end

  for _, one in ipairs(source.named) do
    local named = text:sub(tokens[one.first].first, tokens[one.to].first - 1):gsub("%s+", " "):gsub("%s$", "")
    add(one.from, one.to, '"%s" is not Lua: named arguments are a table in braces; write "%s{ %s })"',
      code_of(one.from, one.to), code_of(one.from, one.first - 1):gsub(",$", ", "), named:gsub(" ?= ?", " = "))
  end

  table.sort(found, function(a, b) return a.at < b.at end)
  return found
end

--- Warns on rank 0 of each mistake in the script that is about to run.
function M.warn()
  if dist.rank() ~= 0 then return end
  local path = core.script()
  local file = io.open(path, "rb")
  if not file then return end
  local text = file:seek("end") and file:seek("set") and file:read("*a") -- a pipe is not read here
  file:close()
  if not text then return end
  for _, one in ipairs(M.find(text)) do
    io.stderr:write(("lockstep: warning: %s:%d: %s\n"):format(path, one.line, one.message))
  end
end

return M
