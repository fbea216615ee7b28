--- Compiles operators, conditions and what is put out: the second part of lockstep.text.jinja.compile_expressions.

local limits = require "lockstep.text.jinja.limits"
local operators = require "lockstep.text.jinja.operators"
local values = require "lockstep.text.jinja.values"

jit.off(true, true) -- compiling traces through a template's closures takes longer than it saves

local MAX_TEXT = limits.MAX_TEXT
local position, str, truth = values.position, values.str, values.truth

--- Adds to `COMPILE`, and to M.compile_output and M.compile_condition.
local function add_operators(COMPILE, M)
  local compile, compile_all = M.compile, M.compile_all

  -- Operators ---------------------------------------------------------------------------------------------

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

  --- Compiles a sum: function(registers) -> operands as an array, whether all are str.
  ---@return function
  ---@return integer n
  local function compile_summands(node, scope)
    local items = compile_all(summands_of(node), scope)
    local n = #items
    return function(registers)
      local parts, are_text = {}, true
      for i = 1, n do
        local value = items[i](registers)
        are_text = are_text and type(value) == "string"
        parts[i] = value
      end
      return parts, are_text
    end, n
  end

  local function add_up(parts, n)
    local add, total = operators.binary["+"], parts[1]
    for i = 2, n do total = add(total, parts[i]) end
    return total
  end

  --- Compiles an expression whose text is put out: function(registers, out), which appends to out[1..out.n].
  function M.compile_output(node, scope)
    local line = node.line
    if node.type == "binary" and node.op == "+" then
      local items = compile_all(summands_of(node), scope)
      local n = #items
      return function(registers, out)
        position.line = line
        local count, are_text = out.n, true
        for i = 1, n do
          local value = items[i](registers)
          are_text = are_text and type(value) == "string"
          out[count + i] = value
        end
        if are_text then
          out.n = count + n
        else
          local parts = {}
          for i = 1, n do parts[i] = out[count + i] end
          out[count + 1], out.n = str(add_up(parts, n)), count + 1
        end
      end
    end
    local evaluate = compile(node, scope)
    return function(registers, out)
      position.line = line
      local value = evaluate(registers)
      if type(value) ~= "string" then value = str(value) end
      local count = out.n + 1
      out.n = count
      out[count] = value
    end
  end

  COMPILE.binary = function(node, scope)
    local apply = operators.binary[node.op]
    if node.op == "+" then
      if node.left.type == "binary" and node.left.op == "+" then
        local evaluate, n = compile_summands(node, scope)
        return function(registers)
          local parts, are_text = evaluate(registers)
          if are_text then return limits.concat(parts, "", n) end
          return add_up(parts, n)
        end
      end
      local left, right = compile(node.left, scope), compile(node.right, scope)
      return function(registers)
        local a = left(registers)
        local b = right(registers)
        if type(a) == "string" and type(b) == "string" then
          if #a + #b > MAX_TEXT then limits.check_text(#a + #b) end
          return a .. b
        end
        return apply(a, b)
      end
    end
    local left, right = compile(node.left, scope), compile(node.right, scope)
    return function(registers)
      local a = left(registers)
      return apply(a, right(registers))
    end
  end

  COMPILE.unary = function(node, scope)
    local operand, apply = compile(node.operand, scope), operators.unary[node.op]
    return function(registers) return apply(operand(registers)) end
  end

  COMPILE.concat = function(node, scope)
    local items = compile_all(node.items, scope)
    local n = #items
    return function(registers)
      local parts = {}
      for i = 1, n do parts[i] = str(items[i](registers)) end
      return limits.concat(parts, "", n)
    end
  end

  --- Comparisons with a constant str are the commonest part of templates.
  local function compile_equality(node, scope)
    local left, right = node.first, node.operands[1]
    if right.type ~= "const" or type(right.value) ~= "string" then return nil end
    local operand, constant, wanted = compile(left, scope), right.value, node.ops[1] == "=="
    return function(registers)
      local value = operand(registers)
      if type(value) == "string" then return (value == constant) == wanted end
      return values.equal(value, constant) == wanted
    end
  end

  COMPILE.compare = function(node, scope)
    local op = node.ops[1]
    if #node.ops == 1 then
      local equality = (op == "==" or op == "!=") and compile_equality(node, scope)
      if equality then return equality end
      local left, right, apply = compile(node.first, scope), compile(node.operands[1], scope), operators.compare[op]
      return function(registers)
        local a = left(registers)
        return apply(a, right(registers))
      end
    end
    local first, operands, apply = compile(node.first, scope), compile_all(node.operands, scope), {}
    for i, name in ipairs(node.ops) do apply[i] = operators.compare[name] end
    return function(registers)
      local a = first(registers)
      for i = 1, #operands do
        local b = operands[i](registers)
        if not apply[i](a, b) then return false end
        a = b
      end
      return true
    end
  end

  COMPILE["and"] = function(node, scope)
    local left, right = compile(node.left, scope), compile(node.right, scope)
    return function(registers)
      local value = left(registers)
      if not truth(value) then return value end
      return right(registers)
    end
  end

  COMPILE["or"] = function(node, scope)
    local left, right = compile(node.left, scope), compile(node.right, scope)
    return function(registers)
      local value = left(registers)
      if truth(value) then return value end
      return right(registers)
    end
  end

  COMPILE["not"] = function(node, scope)
    local operand = M.compile_condition(node.operand, scope)
    return function(registers) return not operand(registers) end
  end

  COMPILE.choice = function(node, scope)
    local test, yes = M.compile_condition(node.test, scope), compile(node.yes, scope)
    local no = node.no and compile(node.no, scope)
    local absent = values.undefined(("the condition on line %d is false and has no else"):format(node.line))
    return function(registers)
      if test(registers) then return yes(registers) end
      if no then return no(registers) end
      return absent
    end
  end

  -- Conditions --------------------------------------------------------------------------------------------

  local GIVES_BOOLEAN = { compare = true, test = true, ["not"] = true }

  --- Compiles an expression whose truth alone counts: function(registers) -> boolean.
  function M.compile_condition(node, scope)
    if GIVES_BOOLEAN[node.type] then return compile(node, scope) end
    if node.type == "and" or node.type == "or" then
      local left, right = M.compile_condition(node.left, scope), M.compile_condition(node.right, scope)
      if node.type == "and" then
        return function(registers) return left(registers) and right(registers) end
      end
      return function(registers) return left(registers) or right(registers) end
    end
    local evaluate = compile(node, scope)
    return function(registers)
      local value = evaluate(registers)
      if type(value) == "boolean" then return value end
      return truth(value)
    end
  end
end

return add_operators
