--- Generates the source of expressions: adds to the class of lockstep.text.jinja.generator.
---
--- `value` gives an expression of Lua without effects, which may be written several times: a variable or a literal. The
--- statements that compute it are emitted.

local access = require "lockstep.text.jinja.access"
local builtins = require "lockstep.text.jinja.builtins"
local core = require "lockstep.core"
local filters = require "lockstep.text.jinja.filters"
local methods = require "lockstep.text.jinja.methods"
local plain = require "lockstep.plain"
local tests = require "lockstep.text.jinja.tests"
local values = require "lockstep.text.jinja.values"

local GENERATE = {}

-- Lua passes this many arguments in variables.
local MAX_ARGUMENTS = 40

local function is_text(node) return node.type == "const" and type(node.value) == "string" end

local function add_methods(Generator)
  --- Emits what a node needs. Returns an expression of Lua for its value.
  ---@param node table
  ---@return string
  function Generator:value(node) return GENERATE[node.type](self, node) end

  --- Emits what a node needs. Returns an expression of Lua that an index may follow.
  ---@param node table
  ---@return string
  function Generator:object(node)
    local value = self:value(node)
    local is_variable = value:find("^%a") and value ~= "true" and value ~= "false"
    return is_variable and value or self:declare(value)
  end

  --- Emits what nodes need, in order. Returns an expression of Lua for each.
  ---@param nodes table[]
  ---@return string[]
  function Generator:values(nodes)
    local found = {}
    for i, node in ipairs(nodes) do found[i] = self:value(node) end
    return found
  end

  --- Returns the value of a node that is the same in each rendering, or nil.
  ---@param node table
  ---@return any
  local function constant_of(node)
    if node.type == "const" then return node.value end
    if node.type == "unary" and node.op == "-" then
      local operand = constant_of(node.operand)
      return type(operand) == "number" and -operand or nil
    end
    if node.type ~= "list" and node.type ~= "tuple" then return nil end
    local items = {}
    for i, item in ipairs(node.items) do
      items[i] = constant_of(item)
      if items[i] == nil then return nil end
    end
    return values[node.type](items, #items)
  end

  GENERATE.const = function(self, node) return self:constant(node.value) end
  GENERATE.name = function(self, node) return self:read(node.name) end

  GENERATE.list = function(self, node)
    local constant = constant_of(node)
    if constant then return self:held(constant) end
    return self:declare(("%s_of({%s}, %d)"):format(node.type, table.concat(self:values(node.items), ", "),
      #node.items))
  end
  GENERATE.tuple = GENERATE.list

  GENERATE.dict = function(self, node)
    local items = {}
    for i, key in ipairs(node.keys) do
      items[2 * i - 1] = self:value(key)
      items[2 * i] = self:value(node.values[i])
    end
    return self:declare(("dict_of({%s}, %d)"):format(table.concat(items, ", "), #items))
  end

  -- Attributes, items, slices ---------------------------------------------------------------------------

  --- Generates `object.name` and `object["name"]`; `get` is for what is neither a dict's item nor a namespace's. Dicts
  --- never change, nor do namespaces under names that no {% set %} gives: such members are read once.
  local function member(self, object, name, get)
    local key = get .. "." .. name
    local found = self:recall(object, key)
    if found then return found end
    local map = self:recall(object, "") or self:remember(object, "",
      self:declare(("type(%s) == 'table' and %s.map or NOTHING"):format(object, object)))
    local result = self:declare(("%s[%q]"):format(map, name))
    self:emit("if %s == nil then %s = %s(%s, %q) end", result, result, get, object, name)
    return self.changing[name] and result or self:remember(object, key, result)
  end

  -- The attributes of `loop`; %d is the number of the loop.
  local LOOP = { index = "i%d - first%d + 1", index0 = "i%d - first%d", revindex = "last%d - i%d + 1",
    revindex0 = "last%d - i%d", first = "i%d == first%d", last = "i%d == last%d", length = "last%d - first%d + 1" }
  local NEIGHBOURS = { previtem = { "first", -1, "previous" }, nextitem = { "last", 1, "next" } }

  local function loop_attribute(self, number, name)
    if LOOP[name] then return self:declare(LOOP[name]:format(number, number)) end
    local bound, step, which = unpack(NEIGHBOURS[name])
    local result = self:declare(self:held(values.undefined(("there is no %s item"):format(which))))
    self:emit("if i%d ~= %s%d then %s = items%d[i%d + %d] end", number, bound, number, result, number, number, step)
    return result
  end

  GENERATE.attribute = function(self, node)
    local name = node.name
    if node.object.type == "name" and node.object.name == "loop" and (LOOP[name] or NEIGHBOURS[name]) then
      local number = self:loop_number()
      if number then return loop_attribute(self, number, name) end
    end
    local object = self:object(node.object)
    if methods.dict[name] == nil then return member(self, object, name, "attribute") end
    return self:declare(("attribute(%s, %q)"):format(object, name))
  end

  GENERATE.item = function(self, node)
    local object = self:object(node.object)
    if is_text(node.index) then return member(self, object, node.index.value, "item") end
    return self:declare(("item(%s, %s)"):format(object, self:value(node.index)))
  end

  GENERATE.slice = function(self, node)
    local parts = { self:value(node.object) }
    for _, bound in ipairs { "start", "stop", "step" } do
      parts[#parts + 1] = node[bound] and self:value(node[bound]) or "nil"
    end
    return self:declare(("slice(%s)"):format(table.concat(parts, ", ")))
  end

  -- Calls -----------------------------------------------------------------------------------------------

  --- Emits the arguments of a call. Returns those by place, and an expression of Lua for those by name.
  local function arguments(self, node)
    local args, pairs_ = self:values(node.args), {}
    for i, pair in ipairs(node.kwargs) do
      pairs_[i] = ("{%q, %s}"):format(pair[1], pair.given or self:value(pair[2]))
    end
    return args, #pairs_ > 0 and "{" .. table.concat(pairs_, ", ") .. "}" or "NO_NAMES"
  end

  --- Generates the call of a method. Those of str and dict run without a table of arguments.
  local function method_call(self, node)
    local object, name, n = self:object(node.callee.object), node.callee.name, #node.args
    local args, kwargs = arguments(self, node)
    local list = table.concat(args, ", ")
    local general = ("call_method(%s, %q, {%s}, %d, %s)"):format(object, name, list, n, kwargs)
    local of_str, of_dict = methods.str[name], methods.dict[name]
    local is_plain = #node.kwargs == 0 and n < MAX_ARGUMENTS
    local is_str, is_dict = is_plain and of_str and n <= #of_str.params, is_plain and of_dict and n <= #of_dict.params
    if not is_str and not is_dict then return self:declare(general) end
    local result, passed = self:declare(), n > 0 and object .. ", " .. list or object
    if is_str then
      self:emit("if type(%s) == 'string' then %s = %s(%s)", object, result, self:held(of_str.fn), passed)
    else
      self:emit("if type(%s) == 'table' and %s.kind == 'dict' then", object, object)
      if name == "get" and n > 0 and is_text(node.args[1]) then
        self:emit("%s = %s.map[%s] if %s == nil then %s = %s end", result, object, args[1], result, result,
          args[2] or "none")
      else
        self:emit("%s = %s(%s)", result, self:held(of_dict.fn), passed)
      end
    end
    self:emit("else %s = %s end", result, general)
    return result
  end

  --- Generates namespace(a = 1, b = 2) where `namespace` is the function of every template; nil for other calls.
  local function new_namespace(self, node, callee)
    if node.callee.name ~= "namespace" or callee ~= 'V["namespace"]' or #node.args > 0 then return nil end
    local seen, items, args = {}, {}, {}
    for _, pair in ipairs(node.kwargs) do
      if seen[pair[1]] or pair.given or pair[1]:sub(1, 1) == "_" then return nil end
      seen[pair[1]] = true
    end
    for i, pair in ipairs(node.kwargs) do
      local value = self:value(pair[2])
      items[i], args[i] = ("[%q] = %s"):format(pair[1], value), ("{%q, %s}"):format(pair[1], value)
    end
    local result = self:declare()
    self:emit("if %s == %s then %s = {kind = 'namespace', map = {%s}}", callee, self:held(builtins.namespace), result,
      table.concat(items, ", "))
    self:emit("else %s = call(%s, {}, 0, {%s}, 'namespace') end", result, callee, table.concat(args, ", "))
    return result
  end

  GENERATE.call = function(self, node)
    if node.callee.type == "attribute" then return method_call(self, node) end
    local callee = self:object(node.callee)
    local made = new_namespace(self, node, callee)
    if made then return made end
    local args, kwargs = arguments(self, node)
    local n, list = #args, table.concat(args, ", ")
    local general = ("call(%s, {%s}, %d, %s, %s)"):format(callee, list, n, kwargs,
      node.callee.name and self:constant(node.callee.name) or "nil")
    if #node.kwargs > 0 or n > MAX_ARGUMENTS then return self:declare(general) end
    local result = self:declare()
    self:emit("if type(%s) == 'table' and %s.kind == 'macro' and %s.size >= %d then", callee, callee, callee, n)
    self:emit("%s = %s.run(nil, nil, nil%s)", result, callee, n > 0 and ", " .. list or "")
    self:emit("else %s = %s end", result, general)
    return result
  end

  -- Filters and tests -----------------------------------------------------------------------------------

  local function find_function(kind, known, node)
    local found = known[node.name]
    if found then return found end
    local names = plain.keys(known, function(name) return name:find("^%a") end)
    local nearest = core.nearest(node.name, names)
    values.fail_at(node.line, ("there is no %s named %s in this interpreter%s (known: %s)"):format(kind, node.name,
      nearest and ("; did you mean %s?"):format(nearest) or "", table.concat(names, ", ")))
  end

  --- Returns the call of a filter or a test of `object`, an expression of Lua that is to be written once.
  local function application(self, kind, known, node, object)
    local found = find_function(kind, known, node)
    local what, params = kind .. " " .. node.name, found.params
    if #node.args > #params and not found.variadic then
      values.fail_at(node.line, ("the %s takes %d arguments, got %d"):format(what, #params, #node.args))
    end
    local fn = self:held(found.fn)
    local given, names = {}, {} -- for place_arguments, where the names' values are expressions of Lua
    for i, arg in ipairs(node.args) do given[i] = self:value(arg) end
    for i, pair in ipairs(node.kwargs) do names[i] = { pair[1], self:value(pair[2]) } end
    local count = #given
    local list = table.concat(given, ", ")
    local fits = found.takes_names or pcall(function()
      count = access.place_arguments(what, params, given, count, names)
    end)
    if found.takes_names or not fits then
      for i, pair in ipairs(names) do names[i] = ("{%q, %s}"):format(unpack(pair)) end
      local by_name = ("{%s}, %d, {%s}"):format(list, #node.args, table.concat(names, ", "))
      if fits then return ("%s(%s, %s)"):format(fn, object, by_name) end
      return ("misfit(%q, %s, %s)"):format("the " .. what, self:held(params), by_name)
    end
    local passed = { object }
    for i = 1, count do passed[i + 1] = given[i] or "nil" end
    return ("%s(%s)"):format(fn, table.concat(passed, ", "))
  end

  --- Emits a filter of a value. Returns an expression of Lua for what it gives.
  ---@param node table
  ---@param object string
  ---@return string
  function Generator:filter(node, object)
    local name, n = node.name, #node.args
    if (name == "default" or name == "d") and n == 1 and #node.kwargs == 0 then
      local result, otherwise = self:declare(object), self:value(node.args[1])
      self:emit("if type(%s) == 'table' and %s.kind == 'undefined' then %s = %s end", result, result, result, otherwise)
      return result
    end
    return self:declare(application(self, "filter", filters, node, object))
  end

  GENERATE.filter = function(self, node) return self:filter(node, self:value(node.object)) end

  --- Tests without arguments that most templates make: %s is the value.
  local TESTS = {
    defined = "not (type(%s) == 'table' and %s.kind == 'undefined')",
    undefined = "(type(%s) == 'table' and %s.kind == 'undefined')",
    none = "(%s == none)",
    string = "(type(%s) == 'string' or type(%s) == 'table' and %s.kind == 'markup')",
    mapping = "(type(%s) == 'table' and %s.kind == 'dict')",
    ["true"] = "(%s == true)",
    ["false"] = "(%s == false)",
  }

  --- Returns the condition of Lua for a test.
  ---@param node table
  ---@return string
  function Generator:test(node)
    local object = self:object(node.object)
    local known = #node.args == 0 and #node.kwargs == 0 and TESTS[node.name]
    if known then return (known:gsub("%%s", function() return object end)) end
    return self:declare(application(self, "test", tests, node, object))
  end

  tests.filter = { fn = function(name) return filters[name] ~= nil end, params = {} }
  tests.test = { fn = function(name) return tests[name] ~= nil end, params = {} }

  require "lockstep.text.jinja.generate_operators"(Generator, GENERATE, constant_of)
end

return add_methods
