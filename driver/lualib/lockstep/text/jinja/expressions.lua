--- The expression part of the parser: adds its methods to the class of lockstep.text.jinja.parser.
---
--- A node is {type=, line=, ...}:
---
---     const value | name name | list items | tuple items | dict keys values
---     attribute object name | item object index | slice object start stop step
---     call callee args kwargs | filter object name args kwargs | test object name args kwargs
---     binary op left right | unary op operand | concat items | compare first ops operands | and, or left right
---     not operand | choice test yes no

local values = require "lockstep.text.jinja.values"

local CONSTANTS = { ["true"] = true, True = true, ["false"] = false, False = false, none = values.none,
  None = values.none }

local COMPARISONS = { ["=="] = true, ["!="] = true, ["<"] = true, ["<="] = true, [">"] = true, [">="] = true }

-- Tokens that may begin the argument of a test without parentheses: `is divisibleby 3`.
local BEGINS_ARGUMENT = { name = true, string = true, number = true, ["("] = true, ["["] = true, ["{"] = true }

local function add_methods(Parser)
  function Parser:condition()
    local line = self.token.line
    local node = self:either()
    while self:skip_name("if") do
      local test = self:either()
      local no = self:skip_name("else") and self:condition() or nil
      node = { type = "choice", line = line, test = test, yes = node, no = no }
    end
    return node
  end

  --- Reads operands with a word between them, from the left.
  function Parser:joined(word, operand)
    local node = operand(self)
    while self:is_name(word) do
      local line = self:next().line
      node = { type = word, line = line, left = node, right = operand(self) }
    end
    return node
  end

  -- Everything but a conditional expression.
  function Parser:either() return self:joined("or", self.both) end

  function Parser:both() return self:joined("and", self.negation) end

  function Parser:negation()
    if not self:is_name("not") then return self:comparison() end
    local line = self:next().line
    return { type = "not", line = line, operand = self:negation() }
  end

  function Parser:comparison()
    local line = self.token.line
    local first, ops, operands = self:sum(), {}, {}
    while true do
      local op
      if COMPARISONS[self.token.type] then
        op = self:next().type
      elseif self:skip_name("in") then
        op = "in"
      elseif self:is_name("not") and self:is_name("in", 1) then
        self:next()
        self:next()
        op = "not in"
      else
        break
      end
      ops[#ops + 1], operands[#operands + 1] = op, self:sum()
    end
    if #ops == 0 then return first end
    return { type = "compare", line = line, first = first, ops = ops, operands = operands }
  end

  --- Parses operands of one level of binding with the operators between them.
  local function chain(operand, operators)
    return function(self)
      local node = operand(self)
      while operators[self.token.type] do
        local token = self:next()
        node = { type = "binary", line = token.line, op = token.type, left = node, right = operand(self) }
      end
      return node
    end
  end

  Parser.power = chain(function(self) return self:signed(true) end, { ["**"] = true })
  Parser.product = chain(Parser.power, { ["*"] = true, ["/"] = true, ["//"] = true, ["%"] = true })

  function Parser:concatenation()
    local line, items = self.token.line, { self:product() }
    while self:skip("~") do items[#items + 1] = self:product() end
    if #items == 1 then return items[1] end
    return { type = "concat", line = line, items = items }
  end

  Parser.sum = chain(Parser.concatenation, { ["+"] = true, ["-"] = true })

  function Parser:signed(with_filters)
    local node
    if self.token.type == "-" or self.token.type == "+" then
      local token = self:next()
      node = { type = "unary", line = token.line, op = token.type, operand = self:signed(false) }
    else
      node = self:primary()
    end
    node = self:postfix(node)
    return with_filters and self:filters_and_tests(node) or node
  end

  function Parser:primary()
    local token = self:next()
    local line = token.line
    if token.type == "name" then
      if CONSTANTS[token.value] ~= nil then return { type = "const", line = line, value = CONSTANTS[token.value] } end
      if token.value == "loop" then self.uses_loop = true end
      self.names[token.value] = true
      return { type = "name", line = line, name = token.value }
    end
    if token.type == "string" then
      local text = token.value
      while self.token.type == "string" do text = text .. self:next().value end
      return { type = "const", line = line, value = text }
    end
    if token.type == "number" then return { type = "const", line = line, value = token.value } end
    if token.type == "(" then
      local node = self:tuple { in_parentheses = true }
      self:expect(")")
      return node
    end
    if token.type == "[" then return { type = "list", line = line, items = self:items_until("]") } end
    if token.type == "{" then return self:dict(line) end
    self:fail_at_token(token, "an expression")
  end

  function Parser:items_until(closing)
    local items = {}
    while self.token.type ~= closing do
      items[#items + 1] = self:condition()
      if not self:skip(",") then break end
    end
    self:expect(closing)
    return items
  end

  function Parser:dict(line)
    local keys, entries = {}, {}
    while self.token.type ~= "}" do
      keys[#keys + 1] = self:condition()
      self:expect(":")
      entries[#keys] = self:condition()
      if not self:skip(",") then break end
    end
    self:expect("}")
    return { type = "dict", line = line, keys = keys, values = entries }
  end

  --- Parses an expression, or a tuple where commas follow. Options: in_parentheses allows the empty tuple; no_condition
  --- leaves a following `if` alone; targets parses primaries only.
  function Parser:tuple(opts)
    local line, items, has_comma = self.token.line, {}, false
    while not self:ends_tuple() do
      if opts.targets then
        items[#items + 1] = self:primary()
      else
        items[#items + 1] = opts.no_condition and self:either() or self:condition()
      end
      if not self:skip(",") then break end
      has_comma = true
    end
    if #items == 1 and not has_comma then return items[1] end
    if #items == 0 and not opts.in_parentheses then self:fail_at_token(self.token, "an expression") end
    return { type = "tuple", line = line, items = items }
  end

  function Parser:ends_tuple()
    local type_ = self.token.type
    return type_ == "variable_end" or type_ == "block_end" or type_ == ")" or self:is_name("in")
      or self:is_name("recursive")
  end

  function Parser:postfix(node)
    while true do
      local type_ = self.token.type
      if type_ == "." then
        local line = self:next().line
        local token = self:next()
        if token.type == "name" then
          node = { type = "attribute", line = line, object = node, name = token.value }
        elseif token.type == "number" then
          node = { type = "item", line = line, object = node, index = { type = "const", line = line,
            value = token.value } }
        else
          self:fail_at_token(token, "a name or a number after the dot")
        end
      elseif type_ == "[" then
        node = self:subscript(node)
      elseif type_ == "(" then
        node = self:call(node)
      else
        return node
      end
    end
  end

  function Parser:subscript(object)
    local line = self:expect("[").line
    local function bound()
      local type_ = self.token.type
      if type_ ~= ":" and type_ ~= "]" and type_ ~= "," then return self:condition() end
    end
    local start = bound()
    local node
    if self:skip(":") then
      node = { type = "slice", line = line, object = object, start = start, stop = bound() }
      if self:skip(":") then node.step = bound() end
    else
      if not start then self:fail_at_token(self.token, "an index") end
      node = { type = "item", line = line, object = object, index = start }
    end
    if self.token.type == "," then self:fail("an index of several parts is not supported", self.token.line) end
    self:expect("]")
    return node
  end

  --- Parses the arguments of a call: `args`, and `kwargs` as {{name, node}, ...}.
  function Parser:arguments()
    self:expect("(")
    local args, kwargs = {}, {}
    while self.token.type ~= ")" do
      if self.token.type == "*" or self.token.type == "**" then
        self:fail(("%s before an argument is not supported"):format(self.token.type), self.token.line)
      elseif self.token.type == "name" and self:peek().type == "=" then
        local name = self:next().value
        self:next()
        kwargs[#kwargs + 1] = { name, self:condition() }
      elseif #kwargs > 0 then
        self:fail("an argument without a name follows one with a name", self.token.line)
      else
        args[#args + 1] = self:condition()
      end
      if not self:skip(",") then break end
    end
    self:expect(")")
    return args, kwargs
  end

  function Parser:call(callee)
    local line = self.token.line
    local args, kwargs = self:arguments()
    return { type = "call", line = line, callee = callee, args = args, kwargs = kwargs }
  end

  --- Parses the name of a filter or test.
  function Parser:dotted_name()
    local token = self:expect("name")
    local name = token.value
    while self:skip(".") do name = name .. "." .. self:expect("name").value end
    return name, token.line
  end

  function Parser:filter(object)
    local name, line = self:dotted_name()
    local args, kwargs = {}, {}
    if self.token.type == "(" then args, kwargs = self:arguments() end
    return { type = "filter", line = line, object = object, name = name, args = args, kwargs = kwargs }
  end

  function Parser:test(object)
    local line = self:next().line
    local is_negated = self:skip_name("not")
    local name = self:dotted_name()
    local args, kwargs = {}, {}
    local token = self.token
    if token.type == "(" then
      args, kwargs = self:arguments()
    elseif BEGINS_ARGUMENT[token.type] and not (token.type == "name"
      and (token.value == "else" or token.value == "or" or token.value == "and")) then
      if self:is_name("is") then self:fail("tests with `is` cannot follow each other", token.line) end
      args = { self:postfix(self:primary()) }
    end
    local node = { type = "test", line = line, object = object, name = name, args = args, kwargs = kwargs }
    return is_negated and { type = "not", line = line, operand = node } or node
  end

  function Parser:filters_and_tests(node)
    while true do
      if self:skip("|") then
        node = self:filter(node)
      elseif self:is_name("is") then
        node = self:test(node)
      elseif self.token.type == "(" then
        node = self:call(node)
      else
        return node
      end
    end
  end
end

return add_methods
