--- Generates the source of operators, conditions and what is put out: the second part of
--- lockstep.text.jinja.generate_expressions.

local limits = require "lockstep.text.jinja.limits"
local operators = require "lockstep.text.jinja.operators"
local values = require "lockstep.text.jinja.values"

-- More operands than these are added up in a table; a longer condition is kept in a variable.
local MAX_OPERANDS, MAX_CONDITION = 20, 500

local function add_operators(Generator, GENERATE, constant_of)
  -- Sums ------------------------------------------------------------------------------------------------

  --- Returns the operands of a + b + c, in order.
  local function summands_of(node)
    local reversed = {}
    while node.type == "binary" and node.op == "+" do
      reversed[#reversed + 1] = node.right
      node = node.left
    end
    local summands = { node }
    for i = #reversed, 1, -1 do summands[#summands + 1] = reversed[i] end
    return summands
  end

  --- Emits operands. Returns expressions of Lua for them, and a condition: that all are str and their text is not too
  --- large.
  local function operands_of(self, nodes)
    local parts, tests, sizes = self:values(nodes), {}, { "0" }
    for i, node in ipairs(nodes) do
      if node.type == "const" and type(node.value) == "string" then
        sizes[1] = ("%d"):format(sizes[1] + #node.value)
      else
        tests[#tests + 1] = ("type(%s) == 'string'"):format(parts[i])
        sizes[#sizes + 1] = "#" .. parts[i]
      end
    end
    tests[#tests + 1] = ("%s <= %d"):format(table.concat(sizes, " + "), limits.MAX_TEXT)
    return parts, table.concat(tests, " and ")
  end

  --- Generates a sum or a concatenation of operands; `general` is the function that takes any of them.
  local function joined(self, nodes, general)
    local n = #nodes
    if n > MAX_OPERANDS then
      local parts = self:declare("{}")
      for i, node in ipairs(nodes) do
        local block = self:open("do")
        self:emit("%s[%d] = %s", parts, i, self:value(node))
        self:close(block, "end")
      end
      return self:declare(("%s(%s, %d)"):format(general, parts, n))
    end
    local parts, are_text = operands_of(self, nodes)
    local result = self:declare()
    self:emit("if %s then %s = %s", are_text, result, table.concat(parts, " .. "))
    self:emit("else %s = %s({%s}, %d) end", result, general, table.concat(parts, ", "), n)
    return result
  end

  --- Emits an expression whose text is put out.
  ---@param node table
  function Generator:output(node)
    local summands = node.type == "binary" and node.op == "+" and summands_of(node)
    if not summands or #summands > MAX_OPERANDS then
      local value = self:value(node)
      self:emit("n = n + 1")
      self:emit("if type(%s) == 'string' then out[n] = %s else out[n] = str(%s) end", value, value, value)
      return
    end
    local parts, are_text = operands_of(self, summands)
    self:emit("if %s then", are_text)
    for i, part in ipairs(parts) do self:emit("out[n + %d] = %s", i, part) end
    self:emit("n = n + %d", #parts)
    self:emit("else n = n + 1 out[n] = str(sum_of({%s}, %d)) end", table.concat(parts, ", "), #parts)
  end

  GENERATE.concat = function(self, node) return joined(self, node.items, "texts_of") end

  GENERATE.binary = function(self, node)
    if node.op == "+" then return joined(self, summands_of(node), "sum_of") end
    local left = self:value(node.left)
    return self:declare(("%s(%s, %s)"):format(self:held(operators.binary[node.op]), left, self:value(node.right)))
  end

  GENERATE.unary = function(self, node)
    local constant = constant_of(node)
    if constant then return self:constant(constant) end
    return self:declare(("%s(%s)"):format(self:held(operators.unary[node.op]), self:value(node.operand)))
  end

  -- Comparisons -----------------------------------------------------------------------------------------

  --- Returns a condition of Lua for left == right; two strs or two numbers need no function.
  local function equality(self, left, node)
    local right = self:value(node)
    local kind = node.type == "const" and type(node.value)
    if kind == "string" then
      return ("(%s == %s or type(%s) == 'table' and equal(%s, %s))"):format(left, right, left, left, right)
    end
    return ("(%s == %s or equal(%s, %s))"):format(left, right, left, right)
  end

  --- Returns a condition of Lua for left in right, where right is a list of constant strs; nil for others.
  local function membership(self, left, node)
    local list = (node.type == "list" or node.type == "tuple") and #node.items < MAX_OPERANDS and constant_of(node)
    if not list or list.n == 0 then return nil end
    local tests = {}
    for i = 1, list.n do
      if type(list[i]) ~= "string" then return nil end
      tests[i] = ("%s == %q"):format(left, list[i])
    end
    return ("(%s or type(%s) == 'table' and contains(%s, %s))"):format(table.concat(tests, " or "), left, left,
      self:held(list))
  end

  --- Returns a condition of Lua for one comparison, and an expression of Lua for its right side.
  local function comparison(self, left, op, node)
    local is_negated = op == "!=" or op == "not in"
    local test = (op == "==" or op == "!=") and equality(self, left, node)
      or (op == "in" or op == "not in") and membership(self, left, node)
    if test then return is_negated and "not " .. test or test end
    return self:declare(("%s(%s, %s)"):format(self:held(operators.compare[op]), left, self:value(node)))
  end

  local function compare(self, node)
    local left = self:value(node.first)
    if #node.ops == 1 then return comparison(self, left, node.ops[1], node.operands[1]) end
    local result, blocks = self:declare("false"), {}
    for i, op in ipairs(node.ops) do
      local right = self:value(node.operands[i])
      blocks[i] = self:open("if %s(%s, %s) then", self:held(operators.compare[op]), left, right)
      left = right
    end
    self:emit("%s = true", result)
    for i = #blocks, 1, -1 do self:close(blocks[i], "end") end
    return result
  end

  -- Conditions ------------------------------------------------------------------------------------------

  local function truth(value) return ("(%s == true or %s and %s ~= '' and truth(%s))"):format(value, value, value,
    value) end

  --- Generates a condition, but keeps the lines that it emits out of the source. Returns the condition, these lines,
  --- and the block that they belong to. The block is still open: the caller closes it.
  local function condition_with_lines(self, node)
    local code, block = self.code, self:open("")
    self.code = {}
    local condition = self:condition(node)
    local lines = self.code
    self.code = code
    return condition, lines, block
  end

  --- Returns a condition of Lua for left and right, or left or right.
  local function both(self, node)
    local left = self:condition(node.left)
    local right, lines, block = condition_with_lines(self, node.right)
    if #lines == 0 then
      self:close(block, "")
      return ("(%s %s %s)"):format(left, node.type, right)
    end
    self.live = block.live -- the result is a variable of the block around this one
    local result = self:declare(left)
    block.live = self.live
    self:emit(node.type == "and" and "if %s then" or "if not %s then", result)
    for _, line in ipairs(lines) do self:emit(line) end
    self:emit("%s = %s", result, right)
    self:close(block, "end")
    return result
  end

  --- Emits what a node needs whose truth alone counts. Returns an expression of Lua that is true or false.
  ---@param node table
  ---@return string
  function Generator:condition(node)
    local test
    if node.type == "compare" then
      test = compare(self, node)
    elseif node.type == "test" then
      test = self:test(node)
    elseif node.type == "not" then
      test = "not " .. self:condition(node.operand)
    elseif node.type == "and" or node.type == "or" then
      test = both(self, node)
    else
      test = truth(self:value(node))
    end
    return #test > MAX_CONDITION and self:declare(test) or test
  end

  for _, kind in ipairs { "compare", "test", "not" } do
    GENERATE[kind] = function(self, node) return self:declare(self:condition(node)) end
  end

  local function choose(self, node)
    local result = self:declare(self:value(node.left))
    local block = self:open(node.type == "and" and "if %s then" or "if not %s then", truth(result))
    self:emit("%s = %s", result, self:value(node.right))
    self:close(block, "end")
    return result
  end

  GENERATE["and"], GENERATE["or"] = choose, choose

  GENERATE.choice = function(self, node)
    local result = self:declare()
    local block = self:open("if %s then", self:condition(node.test))
    self:emit("%s = %s", result, self:value(node.yes))
    self:close(block, "else")
    block = self:open("")
    local no = node.no and self:value(node.no)
      or self:held(values.undefined(("the condition on line %d is false and has no else"):format(node.line)))
    self:emit("%s = %s", result, no)
    self:close(block, "end")
    return result
  end
end

return add_operators
