--- Reads the syntax of Lua, for a search for mistakes: see mistakes.lua.
---
---     local source = syntax.read("local x = torch.ones(2)\nprint('x: ' .. x)")
---     source.concatenated[2].binding.values[1].key      -- "ones": x is the result of a call of torch.ones
---
--- An expression is a table: its `kind`, the numbers of its first and last token in `from` and `to`, and what its kind
--- needs:
---
--- | kind | fields |
--- |---|---|
--- | "name" | `binding`: the variable |
--- | "field", of `a.b` | `of`, `key` |
--- | "method", of `a:b(...)` | `of`, `key`; the result of the call |
--- | "call", of `a(...)` | `of`; the result of the call |
--- | "logic", of `and` and `or` | `parts`: two expressions |
--- | "arithmetic" | `parts`: one or two expressions |
--- | "not" | `of` |
--- | "function" | `parameters`: names, `bindings`: their variables, `uses_self`: reads a global variable `self` |
--- | "string", "other" | |

local plain = require "lockstep.plain"

local M = {}

---@class syntax.Binding a variable: one declaration of a name, or a global
---@field name string
---@field values (syntax.Expression|false)[] all that is assigned to it, in the order of the text; false: unknown
---@field fields table<string, true> the names behind a dot
---@field called table<string, true> the names behind a colon
---@field asks_type boolean? whether its type is asked for, by type() or torch.is_tensor()

---@class syntax.Expression
---@field kind string
---@field from integer
---@field to integer
---@field of syntax.Expression?
---@field key string?
---@field parts syntax.Expression[]?
---@field binding syntax.Binding?
---@field parameters string[]?
---@field bindings syntax.Binding[]?
---@field uses_self boolean?

--- The words that are no names.
M.KEYWORDS = plain.words("and break do else elseif end false for function if in local nil not or repeat "
  .. "return then true until while")

--- Returns the end of a quoted string that begins at `first`.
local function end_of_string(text, first)
  local quote, at = text:sub(first, first), first
  while true do
    at = text:find("[\\\n" .. quote .. "]", at + 1)
    if not at then return #text end
    if text:sub(at, at) ~= "\\" then return at end
    at = at + 1
  end
end

--- Returns the kind and the end of the token at `at`. A comment has no kind.
local function token_at(text, at)
  local level = text:match("^%-%-%[(=*)%[", at) or text:match("^%[(=*)%[", at)
  local is_comment = text:find("^%-%-", at) ~= nil
  if level then
    return not is_comment and "string" or nil, select(2, text:find("]" .. level .. "]", at, true)) or #text
  end
  if is_comment then return nil, select(2, text:find("[^\n]*", at)) end
  if text:find("^[\"']", at) then return "string", end_of_string(text, at) end
  local word = text:match("^[%a_][%w_]*", at)
  if word then return M.KEYWORDS[word] and "keyword" or "name", at + #word - 1 end
  local number = text:match("^%d*%.?%d*[eE][+-]?%d+", at) or text:match("^%.?%d[%w.]*", at)
  if number then return "number", at + #number - 1 end
  local operator = text:match("^%.%.%.?", at) or text:match("^[=~<>]=", at) or text:match("^::", at)
  return "operator", at + (operator and #operator or 1) - 1
end

local function tokens_of(text)
  local tokens, at = {}, text:find("^#") and text:find("\n", 1, true) or 1 -- "#!" is no code
  while true do
    at = text:find("%S", at)
    if not at then break end
    local kind, last = token_at(text, at)
    if kind then tokens[#tokens + 1] = { kind = kind, text = text:sub(at, last), first = at, last = last } end
    at = last + 1
  end
  tokens[#tokens + 1] = { kind = "end of text", text = "", first = #text + 1, last = #text }
  return tokens
end

--- How strongly operators bind to their left and right.
local PRIORITY = { ["or"] = { 1, 1 }, ["and"] = { 2, 2 }, [".."] = { 5, 4 }, ["^"] = { 10, 9 } }
for text in pairs(plain.words "< > <= >= ~= ==") do PRIORITY[text] = { 3, 3 } end
for text in pairs(plain.words "+ -") do PRIORITY[text] = { 6, 6 } end
for text in pairs(plain.words "* / %") do PRIORITY[text] = { 7, 7 } end
local OF_UNARY = 8
local KIND = { ["and"] = "logic", ["or"] = "logic", ["+"] = "arithmetic", ["-"] = "arithmetic", ["*"] = "arithmetic",
  ["/"] = "arithmetic", ["%"] = "arithmetic", ["^"] = "arithmetic" }
local ENDS_BLOCK = { ["end"] = true, ["else"] = true, ["elseif"] = true, ["until"] = true }

local STOP = {} -- the error value where the text is no Lua

---@class syntax.Source what mistakes.lua looks at, in the order of the text
---@field tokens table[] `text`, and the positions `first` and `last`
---@field conditions syntax.Expression[] behind if, elseif, while and until
---@field concatenated syntax.Expression[] the operands of ..
---@field iterated {of: syntax.Expression, from: integer, names: string[]}[] what "for ... in" has, if it is one value
---@field defined table[] functions `key` of `owner`: `from` and `to`, `value`, and `has_colon`
---@field named {from: integer, open: integer, first: integer, to: integer}[] calls such as f(x, dim=1)

--- Returns the syntax of a text. Of a text that is not Lua, returns the syntax before the mistake.
---@param text string
---@return syntax.Source
function M.read(text)
  local tokens, i = tokens_of(text), 1
  local source = { tokens = tokens, conditions = {}, concatenated = {}, iterated = {}, defined = {}, named = {} }
  local globals = { names = {} }
  local scope, current_function = globals, nil
  local expression, block

  local function is(symbol)
    local token = tokens[i]
    return token.text == symbol and (token.kind == "operator" or token.kind == "keyword")
  end
  local function accept(symbol)
    if not is(symbol) then return false end
    i = i + 1
    return true
  end
  local function expect(symbol) if not accept(symbol) then error(STOP) end end
  local function name()
    if tokens[i].kind ~= "name" then error(STOP) end
    i = i + 1
    return tokens[i - 1].text
  end
  local function add(list, value) list[#list + 1] = value end

  -- Variables ---------------------------------------------------------------------------------------------

  local function new_binding(word, value) return { name = word, values = { value }, fields = {}, called = {} } end
  local function declare(word, value)
    scope.names[word] = new_binding(word, value)
    return scope.names[word]
  end
  local function resolve(word)
    local at = scope
    while at do
      if at.names[word] then return at.names[word] end
      at = at.up
    end
    if word == "self" and current_function then current_function.uses_self = true end
    globals.names[word] = new_binding(word, nil)
    return globals.names[word]
  end
  local function within_scope(fn)
    scope = { names = {}, up = scope }
    fn()
    scope = scope.up
  end

  -- Expressions -------------------------------------------------------------------------------------------

  local function list()
    local values = {}
    repeat add(values, (expression())) until not accept(",")
    return values
  end

  --- Reads the arguments of a call and returns the first. Named ones are no Lua, and noted.
  local function arguments(from)
    if not accept("(") then return (expression()) end -- a string or a table
    local open, first_named, first = i - 1, nil, nil
    if accept(")") then return end
    repeat
      if tokens[i].kind == "name" and tokens[i + 1].text == "=" then
        first_named = first_named or i
        i = i + 2
      end
      local value = expression()
      first = first or value
    until not accept(",")
    expect(")")
    if first_named then add(source.named, { from = from, open = open, first = first_named, to = i - 1 }) end
    return first
  end

  local function is_question(callee)
    return callee.kind == "name" and callee.binding.name == "type" or callee.key == "is_tensor"
  end

  --- a, a.b, a[b], a:b(...), a(...)
  local function chain()
    local from = i
    local node
    if accept("(") then
      local inside = expression()
      expect(")")
      node = setmetatable({ from = from, to = i - 1 }, { __index = inside })
    else
      local word = name()
      node = { kind = "name", binding = resolve(word), from = from, to = from }
    end
    while true do
      local of = node
      if accept(".") then
        node = { kind = "field", key = name() }
        if of.binding then of.binding.fields[node.key] = true end
      elseif accept("[") then
        node = { kind = "other" }
        expression()
        expect("]")
      elseif accept(":") then
        node = { kind = "method", key = name() }
        arguments(from)
        if of.binding then of.binding.called[node.key] = true end
      elseif is("(") or is("{") or tokens[i].kind == "string" then
        node = { kind = "call" }
        local first = arguments(from)
        if first and first.binding and is_question(of) then first.binding.asks_type = true end
      else
        return of
      end
      node.of, node.from, node.to = of, from, i - 1
    end
  end

  local function function_body(has_self)
    local node = { kind = "function", from = i, parameters = {}, bindings = {} }
    local outer = current_function
    current_function = node
    within_scope(function()
      if has_self then declare("self", false) end
      expect("(")
      if not is(")") then
        repeat
          local word = accept("...") and "..." or name()
          add(node.parameters, word)
          add(node.bindings, declare(word, false))
        until not accept(",")
      end
      expect(")")
      node.head = i - 1
      block()
    end)
    expect("end")
    current_function, node.to = outer, i - 1
    if outer and node.uses_self then outer.uses_self = true end
    return node
  end

  local function constructor()
    expect("{")
    while not accept("}") do
      if accept("[") then
        expression()
        expect("]")
        expect("=")
      elseif tokens[i].kind == "name" and tokens[i + 1].text == "=" then
        i = i + 2
      end
      expression()
      if not accept(",") and not accept(";") and not is("}") then error(STOP) end
    end
  end

  local function operand()
    local token, from = tokens[i], i
    if token.kind == "string" then
      i = i + 1
      return { kind = "string", from = from, to = from }
    elseif token.kind == "name" or is("(") then
      return chain()
    elseif accept("function") then
      return function_body(false)
    elseif is("{") then
      constructor()
      return { kind = "other", from = from, to = i - 1 }
    elseif accept("not") then
      local of = expression(OF_UNARY)
      return { kind = "not", of = of, from = from, to = i - 1 }
    elseif accept("-") then
      local of = expression(OF_UNARY)
      return { kind = "arithmetic", parts = { of }, from = from, to = i - 1 }
    elseif accept("#") then
      expression(OF_UNARY)
      return { kind = "other", from = from, to = i - 1 }
    elseif token.kind == "number" or is("nil") or is("true") or is("false") or is("...") then
      i = i + 1
      return { kind = "other", from = from, to = from }
    end
    error(STOP)
  end

  --- Reads operators that bind more strongly than `limit`.
  function expression(limit)
    local node = operand()
    while true do
      local token = tokens[i]
      local priority = (token.kind == "operator" or token.kind == "keyword") and PRIORITY[token.text]
      if not priority or priority[1] <= (limit or 0) then return node end
      i = i + 1
      local right = expression(priority[2])
      if token.text == ".." then
        add(source.concatenated, node)
        add(source.concatenated, right)
      end
      node = { kind = KIND[token.text] or "other", parts = { node, right }, from = node.from, to = right.to }
    end
  end

  -- Statements --------------------------------------------------------------------------------------------

  local function condition() add(source.conditions, (expression())) end

  local function if_statement()
    condition()
    expect("then")
    within_scope(block)
    while accept("elseif") do
      condition()
      expect("then")
      within_scope(block)
    end
    if accept("else") then within_scope(block) end
    expect("end")
  end

  local function do_block()
    expect("do")
    block()
    expect("end")
  end

  local function for_statement(from)
    local names = {}
    repeat add(names, name()) until not accept(",")
    local is_iterated = not accept("=")
    if is_iterated then expect("in") end
    local values = list()
    if is_iterated and #values == 1 then add(source.iterated, { of = values[1], from = from, names = names }) end
    within_scope(function()
      for _, word in ipairs(names) do declare(word, false) end
      do_block()
    end)
  end

  local function function_statement(from)
    local owner = { kind = "name", binding = resolve(name()), from = from, to = from }
    local key, has_colon
    while is(".") or is(":") do
      if key then owner = { kind = "field", of = owner, key = key, from = from, to = i - 1 } end
      has_colon = is(":")
      i = i + 1
      key = name()
    end
    local value = function_body(has_colon)
    if key then
      add(source.defined, { owner = owner, key = key, from = from, to = value.head, value = value,
        has_colon = has_colon })
    else
      add(owner.binding.values, value)
    end
  end

  local function local_statement()
    if accept("function") then
      local binding = declare(name(), nil)
      add(binding.values, function_body(false))
      return
    end
    local names = {}
    repeat add(names, name()) until not accept(",")
    local values = accept("=") and list() or {}
    for k, word in ipairs(names) do declare(word, values[k] or false) end
  end

  local function assignment()
    local from = i
    local targets = { chain() }
    if not is("=") and not is(",") then return end -- a call
    while accept(",") do add(targets, chain()) end
    expect("=")
    for k, value in ipairs(list()) do
      local target = targets[k]
      if target and target.kind == "field" and value.kind == "function" then
        add(source.defined, { owner = target.of, key = target.key, from = from, to = value.head, value = value })
      end
      if target then target.value = value end
    end
    for _, target in ipairs(targets) do
      if target.kind == "name" then add(target.binding.values, target.value or false) end
    end
  end

  local function statement()
    local from = i
    if accept(";") then return
    elseif accept("if") then if_statement()
    elseif accept("while") then
      condition()
      within_scope(do_block)
    elseif is("do") then within_scope(do_block)
    elseif accept("for") then for_statement(from)
    elseif accept("repeat") then
      within_scope(function()
        block()
        expect("until")
        condition()
      end)
    elseif accept("function") then function_statement(from)
    elseif accept("local") then local_statement()
    elseif accept("return") then
      if not (is(";") or ENDS_BLOCK[tokens[i].text] or tokens[i].kind == "end of text") then list() end
    elseif accept("break") then return
    elseif accept("::") then
      name()
      expect("::")
    elseif tokens[i].text == "goto" and tokens[i + 1].kind == "name" then i = i + 2
    else assignment() end
  end

  function block()
    while tokens[i].kind ~= "end of text" and not (tokens[i].kind == "keyword" and ENDS_BLOCK[tokens[i].text]) do
      statement()
    end
  end

  local ok, problem = pcall(function()
    block()
    if tokens[i].kind ~= "end of text" then error(STOP) end
  end)
  if not ok and problem ~= STOP then error(problem, 0) end
  source.complete = ok
  return source
end

return M
