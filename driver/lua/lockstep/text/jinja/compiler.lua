--- Compiles statements to closures: function(registers) -> nil, or BREAK or CONTINUE where a loop has to act on it.
--- Expressions and what registers are: lockstep.text.jinja.compile_expressions.

local builtins = require "lockstep.text.jinja.builtins"
local expressions = require "lockstep.text.jinja.compile_expressions"
local limits = require "lockstep.text.jinja.limits"
local scopes = require "lockstep.text.jinja.scope"
local values = require "lockstep.text.jinja.values"

jit.off(true, true) -- compiling traces through a template's closures takes longer than it saves

local M = {}

local BREAK, CONTINUE = "break", "continue"

-- The key, which no template can name, of the spans of {% generation %} among the variables.
local SPANS = "{% generation %}"

local compile, position, str = expressions.compile, values.position, values.str
local fail = values.fail
local concat, MAX_STEPS, MAX_DEPTH, MAX_TEXT = table.concat, limits.MAX_STEPS, limits.MAX_DEPTH, limits.MAX_TEXT

local COMPILE = {}

--- Compiles statements into one closure.
local function compile_body(body, scope)
  local steps = {}
  for i, node in ipairs(body) do steps[i] = COMPILE[node.type](node, scope) end
  local n = #steps
  if n == 0 then return function() end end
  if n == 1 then return steps[1] end
  return function(registers)
    for i = 1, n do
      local signal = steps[i](registers)
      if signal then return signal end
    end
  end
end

--- Empties the slots of a scope: its names are unset where its body begins.
local function clear(registers, scope)
  for slot = scope.first, scope.last do registers[slot] = nil end
end

--- Runs a body and returns its text, and its signal.
local function capture(registers, run)
  local outer, out = registers.out, { n = 0 }
  registers.out = out
  local signal = run(registers)
  registers.out = outer
  local text = concat(out, "", 1, out.n)
  if #text > MAX_TEXT then limits.check_text(#text) end
  return text, signal
end

-- Output ------------------------------------------------------------------------------------------------

COMPILE.output = function(node, scope)
  local steps, n = {}, #node.items
  for i, item in ipairs(node.items) do
    local text = type(item) == "string" and item or item.type == "const" and str(item.value)
    if text then
      steps[i] = function(_, out)
        local count = out.n + 1
        out.n = count
        out[count] = text
      end
    else
      steps[i] = expressions.compile_output(item, scope)
    end
  end
  if n == 1 then
    local step = steps[1]
    return function(registers) step(registers, registers.out) end
  end
  return function(registers)
    local out = registers.out
    for i = 1, n do steps[i](registers, out) end
  end
end

-- Assignment --------------------------------------------------------------------------------------------

--- Returns a closure that stores a value: function(registers, value).
local function compile_target(target, scope)
  if target.type == "name" then
    local slot = scope.names[target.name]
    return function(registers, value) registers[slot] = value end
  end
  if target.type == "namespace_item" then
    local name, key = target.name, target.attribute
    local namespace = compile({ type = "name", name = name, line = target.line }, scope)
    builtins.check_namespace_item(key)
    return function(registers, value)
      local held = namespace(registers)
      if type(held) ~= "table" or held.kind ~= "namespace" then
        fail(("%s.%s cannot be set: %s is a %s, not a namespace"):format(name, key, name, values.type_name(held)))
      end
      values.set_item(held, key, value)
    end
  end
  local parts = {}
  for i, item in ipairs(target.items) do parts[i] = compile_target(item, scope) end
  return function(registers, value)
    local items, first, last = values.iterate(value)
    if last - first + 1 ~= #parts then
      fail(("expected %d values to unpack, got %d"):format(#parts, last - first + 1))
    end
    for i = 1, #parts do parts[i](registers, items[first + i - 1]) end
  end
end

COMPILE.set = function(node, scope)
  local value, line = compile(node.value, scope), node.line
  if node.target.type == "name" then
    local slot = scope.names[node.target.name]
    return function(registers)
      position.line = line
      registers[slot] = value(registers)
    end
  end
  local store = compile_target(node.target, scope)
  return function(registers)
    position.line = line
    store(registers, value(registers))
  end
end

--- Compiles the filters of a block: function(registers, text) -> value.
local function compile_filters(filters, scope)
  local applications = {}
  for i, filter in ipairs(filters) do applications[i] = expressions.compile_filter(filter, scope) end
  return function(registers, value)
    for i = 1, #applications do value = applications[i](registers, value) end
    return value
  end
end

--- Compiles a body with names of its own. Returns the closure, which empties them first, and the scope.
local function compile_inner(body, scope, own)
  local inner = scopes.new(scope, body, own)
  local run = compile_body(body, inner)
  if inner.last < inner.first then return run, inner end
  return function(registers)
    clear(registers, inner)
    return run(registers)
  end, inner
end

COMPILE.set_block = function(node, scope)
  local run = compile_inner(node.body, scope)
  local store, apply, line = compile_target(node.target, scope), compile_filters(node.filters, scope), node.line
  return function(registers)
    local text, signal = capture(registers, run)
    if signal then return signal end
    position.line = line
    store(registers, apply(registers, text))
  end
end

COMPILE.filter_block = function(node, scope)
  local run, apply, line = compile_inner(node.body, scope), compile_filters(node.filters, scope), node.line
  return function(registers)
    local text, signal = capture(registers, run)
    if signal then return signal end
    position.line = line
    local out = registers.out
    out.n = out.n + 1
    out[out.n] = str(apply(registers, text))
  end
end

COMPILE["with"] = function(node, scope)
  local names = {}
  for _, target in ipairs(node.targets) do scopes.add_target(names, target) end
  local inner = scopes.new(scope, node.body, names)
  local run, given, stores, line = compile_body(node.body, inner), {}, {}, node.line
  for i, value in ipairs(node.values) do
    given[i], stores[i] = compile(value, scope), compile_target(node.targets[i], inner)
  end
  return function(registers)
    position.line = line
    local held = {}
    for i = 1, #given do held[i] = given[i](registers) end
    clear(registers, inner)
    for i = 1, #stores do stores[i](registers, held[i]) end
    return run(registers)
  end
end

-- Control -----------------------------------------------------------------------------------------------

COMPILE["if"] = function(node, scope)
  local conditions, bodies, n, line = {}, {}, #node.tests, node.line
  for i, test in ipairs(node.tests) do
    conditions[i], bodies[i] = expressions.compile_condition(test, scope), compile_body(node.bodies[i], scope)
  end
  local otherwise = node.otherwise and compile_body(node.otherwise, scope)
  if n == 1 then
    local condition, body = conditions[1], bodies[1]
    return function(registers)
      position.line = line
      if condition(registers) then return body(registers) end
      if otherwise then return otherwise(registers) end
    end
  end
  return function(registers)
    position.line = line
    for i = 1, n do
      if conditions[i](registers) then return bodies[i](registers) end
    end
    if otherwise then return otherwise(registers) end
  end
end

COMPILE["break"] = function() return function() return BREAK end end
COMPILE["continue"] = function() return function() return CONTINUE end end

--- Returns the elements for which the loop's own test holds: an array, its first index and its last.
local function selected(registers, items, first, last, store, test)
  local kept, n = {}, 0
  for i = first, last do
    store(registers, items[i])
    if test(registers) then
      n = n + 1
      kept[n] = items[i]
    end
  end
  return kept, 1, n
end

COMPILE["for"] = function(node, scope)
  local names = {}
  scopes.add_target(names, node.target)
  if node.uses_loop then names[#names + 1] = "loop" end
  local inner = scopes.new(scope, node.body, names)
  local iterable, store = compile(node.iterable, scope), compile_target(node.target, inner)
  local test = node.test and expressions.compile_condition(node.test, inner)
  local run = compile_body(node.body, inner)
  local otherwise = node.otherwise and compile_inner(node.otherwise, scope)
  local loop_slot, line, assigned, filled = inner.names.loop, node.line, inner.assigned, inner.last
  return function(registers)
    position.line = line
    local items, first, last = values.iterate(iterable(registers))
    local steps = position.steps + last - first + 1
    position.steps = steps
    if steps > MAX_STEPS then limits.step(0) end
    if test then
      clear(registers, inner)
      items, first, last = selected(registers, items, first, last, store, test)
    end
    local loop = loop_slot and { kind = "loop", i = 0, n = last - first + 1, items = items, before = first - 1 }
    for i = first, last do
      for slot = assigned, filled do registers[slot] = nil end
      store(registers, items[i])
      if loop_slot then
        loop.i = i - first + 1
        registers[loop_slot] = loop
      end
      if run(registers) == BREAK then break end
    end
    if otherwise and last < first then return otherwise(registers) end
  end
end

-- Macros ------------------------------------------------------------------------------------------------

-- Names that a macro's body may use for arguments beyond its parameters.
local EXTRA = { "varargs", "kwargs", "caller" }

--- Moves the arguments that are given by name into their places. Returns the others, and the caller. `uses` are the
--- names that the body mentions.
local function sort_arguments(name, places, uses, args, kwargs)
  local others, caller = values.dict(), nil
  for _, pair in ipairs(kwargs) do
    local key = pair[1]
    local place = places[key]
    if place and args[place] ~= nil then fail(("the macro %s got two values for %s"):format(name, key)) end
    if place then
      args[place] = pair[2]
    elseif key == "caller" and uses.caller then
      caller = pair[2]
    elseif uses.kwargs then
      values.set_item(others, key, pair[2])
    else
      fail(("the macro %s has no parameter %s"):format(name, key))
    end
  end
  return others, caller
end

--- Compiles a macro: function(registers where it is defined) -> value.
local function compile_macro(node, scope, name)
  local own, places = {}, {}
  for i, param in ipairs(node.params) do own[i], places[param] = param, i end
  for _, extra in ipairs(EXTRA) do own[#own + 1] = extra end
  local inner = scopes.new(scope, node.body, own, true)
  local run, defaults, slots, missing = compile_body(node.body, inner), {}, {}, {}
  for i, param in ipairs(node.params) do
    slots[i] = inner.names[param]
    defaults[i] = node.defaults[i] and compile(node.defaults[i], inner)
    missing[i] = values.undefined(("the parameter %s of the macro %s was not given"):format(param, name))
  end
  local n_params, names, uses = #node.params, inner.names, node.names
  return function(outer)
    local function call(args, n, kwargs)
      local line = position.line
      local depth, steps = position.depth + 1, position.steps + 1
      position.depth, position.steps = depth, steps
      if depth > MAX_DEPTH or steps > MAX_STEPS then limits.fail_macro(name) end
      local others, caller
      if #kwargs > 0 or uses.kwargs then others, caller = sort_arguments(name, places, uses, args, kwargs) end
      local registers = { up = outer, variables = outer.variables, out = { n = 0 } }
      for i = 1, n_params do
        local value = args[i]
        if value == nil then value = defaults[i] and defaults[i](registers) or missing[i] end
        registers[slots[i]] = value
      end
      if n > n_params and not uses.varargs then
        fail(("the macro %s takes %d arguments, got %d"):format(name, n_params, n))
      end
      if uses.varargs then
        local rest = {}
        for i = n_params + 1, n do rest[i - n_params] = args[i] end
        registers[names.varargs] = values.tuple(rest, math.max(0, n - n_params))
      end
      registers[names.kwargs], registers[names.caller] = others, caller
      run(registers)
      position.line, position.depth = line, depth - 1
      local text = concat(registers.out, "", 1, registers.out.n)
      if #text > MAX_TEXT then limits.check_text(#text) end
      return text
    end
    return { kind = "macro", name = name, call = call }
  end
end

COMPILE.macro = function(node, scope)
  local make, slot = compile_macro(node, scope, node.name), scope.names[node.name]
  return function(registers) registers[slot] = make(registers) end
end

COMPILE.call = function(node, scope)
  local make, line = compile_macro(node, scope, "caller"), node.line
  local call = { type = "call", line = line, callee = node.call.callee, args = node.call.args, kwargs = {} }
  for i, pair in ipairs(node.call.kwargs) do call.kwargs[i] = pair end
  local caller -- the macro of the call that runs
  call.kwargs[#call.kwargs + 1] = { "caller", { type = "compiled", run = function() return caller end } }
  local run = compile(call, scope)
  return function(registers)
    position.line = line
    local outer = caller
    caller = make(registers)
    local text = str(run(registers))
    caller = outer
    local out = registers.out
    out.n = out.n + 1
    out[out.n] = text
  end
end

-- Marks of the assistant's text -------------------------------------------------------------------------

--- The body's text goes where all text goes; where it begins and ends is noted in the render's own output.
COMPILE.generation = function(node, scope)
  local run, line = compile_inner(node.body, scope), node.line
  return function(registers)
    local out = registers.out
    local spans = registers.variables[SPANS]
    if not out.is_whole then
      spans.misplaced = spans.misplaced or line
      return run(registers)
    end
    local first = out.n + 1
    run(registers)
    spans[#spans + 1] = { first, out.n }
  end
end

--- Compiles a template: function(variables) -> text, spans of bytes {{first, last}, ...}, the line of a mark whose
--- place in the text is unknown.
---@param body table[]
---@return any
function M.compile(body)
  local scope = scopes.new(nil, body, nil, true)
  local run = compile_body(body, scope)
  return function(variables)
    local spans = {}
    variables[SPANS] = spans
    local out = { n = 0, is_whole = true }
    run { variables = variables, out = out }
    local text = concat(out, "", 1, out.n)
    limits.check_text(#text)
    if #spans == 0 then return text, {}, spans.misplaced end
    local offsets, size = {}, 0
    for i = 1, out.n do
      offsets[i] = size
      size = size + #out[i]
    end
    offsets[out.n + 1] = size
    local marked = {}
    for _, span in ipairs(spans) do
      local first, last = offsets[span[1]] + 1, offsets[span[2] + 1]
      if last >= first then marked[#marked + 1] = { first, last } end
    end
    return text, marked, spans.misplaced
  end
end

return M
