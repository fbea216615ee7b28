--- Compiles a template: generates the Lua source of its statements, and loads it. lockstep.text.jinja.generator says
--- what the source looks like.

local builtins = require "lockstep.text.jinja.builtins"
local generator = require "lockstep.text.jinja.generator"
local limits = require "lockstep.text.jinja.limits"
local plain = require "lockstep.plain"
local runtime = require "lockstep.text.jinja.runtime"
local values = require "lockstep.text.jinja.values"

jit.off(true, true) -- compiling traces of a template takes longer than it saves

local M = {}

local Generator = generator.Generator
require "lockstep.text.jinja.generate_expressions"(Generator)

local GENERATE = {}

-- A macro with more parameters takes them as an array.
local MAX_PARAMETERS = 40

-- Lua jumps over 32,767 instructions at most: beyond that, bodies are functions of this many statements.
local PART = 20

local concat = table.concat

--- Emits statements.
local function emit_statements(self, body)
  for _, node in ipairs(body) do GENERATE[node.type](self, node) end
end

--- Emits a function: its own variables, and what `generate` emits.
local function emit_function(self, head, generate)
  local outer = { self.known, self.live, self.line, self.is_direct, self.loop }
  self.known, self.live, self.line, self.loop, self.level = {}, 0, nil, nil, self.level + 1
  self:emit(head)
  local place, level = #self.code + 1, self.level
  self.code[place], self.has_table[level] = "", false
  generate()
  if self.has_table[level] then self.code[place] = ("local R%d = {}"):format(level) end
  self:emit("end")
  self.level = level - 1
  self.known, self.live, self.line, self.is_direct, self.loop = unpack(outer, 1, 5)
end

--- Returns the statements of a body. An output of more than PART items becomes several.
local function pieces_of(body)
  local pieces = {}
  for _, node in ipairs(body) do
    if node.type ~= "output" then pieces[#pieces + 1] = node end
    for first = 1, node.type == "output" and #node.items or 0, PART do
      pieces[#pieces + 1] = { type = "output", line = node.line, items = { unpack(node.items, first,
        math.min(first + PART - 1, #node.items)) } }
    end
  end
  return pieces
end

--- Emits the body of a loop or of a branch. In a very large template it is cut into functions of PART statements. Such
--- a function returns "break" or "continue" if the loop around it must do so.
local function emit_body(self, body)
  if not self.is_split then return emit_statements(self, body) end
  local pieces, loop = pieces_of(body), self.loop
  for first = 1, #pieces, PART do
    local block = self:open("do")
    emit_function(self, "local function part()", function()
      self.loop = loop
      emit_statements(self, { unpack(pieces, first, math.min(first + PART - 1, #pieces)) })
    end)
    self.known = {} -- the part may have set the names whose members are known
    self:emit("local signal = part()")
    for _, signal in ipairs(loop and { "break", "continue" } or {}) do
      self:emit("if signal == %q then", signal)
      GENERATE[signal](self)
      self:emit("end")
    end
    self:close(block, "end")
  end
end

--- Emits a body with names of its own.
local function emit_scope(self, body)
  self:enter(body)
  self:declare_assigned(body)
  emit_statements(self, body)
  self:leave()
end

-- Output ------------------------------------------------------------------------------------------------

GENERATE.output = function(self, node)
  for _, item in ipairs(node.items) do
    local text = type(item) == "string" and item or item.type == "const" and values.str(item.value)
    if text then
      self:emit("n = n + 1")
      self:emit("out[n] = %q", text)
    else
      self:at(item.line)
      local block = self:open_statement()
      self:output(item)
      self:close(block, "end")
    end
  end
end

-- Assignment --------------------------------------------------------------------------------------------

--- Emits that a name or names get a value, an expression of Lua. `own` is whether they are declared here.
local function store(self, target, value, own)
  if target.type == "name" then
    if own then
      self:declare_name(target.name, value)
    else
      self:emit("%s = %s", self:assign(target.name), value)
    end
  elseif target.type == "namespace_item" then
    builtins.check_namespace_item(target.attribute, target.line)
    self:emit("set_attribute(%s, %q, %s, %q)", self:read(target.name), target.attribute, value, target.name)
  else
    local parts = {}
    for i = 1, #target.items do parts[i] = self:declare() end
    self:emit("%s = unpacked(%s, %d)", concat(parts, ", "), value, #parts)
    for i, item in ipairs(target.items) do store(self, item, parts[i], own) end
  end
end

GENERATE.set = function(self, node)
  self:at(node.line)
  local block = self:open_statement()
  store(self, node.target, self:value(node.value))
  self:close(block, "end")
  self:note_set(generator.names_of(node.target))
end

--- Emits a body whose text goes to a variable. Returns the variable, after the filters.
local function captured(self, node)
  local result, was_direct = self:declare(), self.is_direct
  local block = self:open("do")
  self:emit("local out, n = {}, 0")
  self.live, self.is_direct = self.live + 2, false
  emit_scope(self, node.body)
  self:emit("%s = joined(out, n)", result)
  self:close(block, "end")
  self.is_direct = was_direct
  self:at(node.line)
  for _, filter in ipairs(node.filters) do result = self:filter(filter, result) end
  return result
end

GENERATE.set_block = function(self, node)
  local block = self:open_statement()
  store(self, node.target, captured(self, node))
  self:close(block, "end")
  self:note_set(generator.names_of(node.target))
end

GENERATE.filter_block = function(self, node)
  local block = self:open_statement()
  local value = captured(self, node)
  self:emit("n = n + 1")
  self:emit("out[n] = str(%s)", value)
  self:close(block, "end")
end

GENERATE["with"] = function(self, node)
  local block = self:open("do")
  self:at(node.line)
  local given = self:values(node.values)
  self:enter(node.body)
  for i, target in ipairs(node.targets) do store(self, target, given[i], true) end
  self:declare_assigned(node.body)
  emit_statements(self, node.body)
  self:leave()
  self:close(block, "end")
end

-- Control -----------------------------------------------------------------------------------------------

GENERATE["if"] = function(self, node)
  self:at(node.line)
  local statement, label, n = self:open_statement(), self:number(), #node.tests
  local test, rest = self:condition(node.tests[1]), self:open("do")
  for i = 1, n do
    local block = self:open("if %s then", i == 1 and test or self:condition(node.tests[i]))
    emit_body(self, node.bodies[i])
    if i < n or node.otherwise then self:emit("goto l%d", label) end
    self:close(block, "end")
  end
  if node.otherwise then
    local block = self:open("do")
    emit_body(self, node.otherwise)
    self:close(block, "end")
  end
  self:emit("::l%d::", label)
  self:close(rest, "end")
  self:close(statement, "end")
end

GENERATE["break"] = function(self)
  self:emit(self.loop.level == self.level and "do break end" or "do return 'break' end")
end

GENERATE["continue"] = function(self)
  if self.loop.level ~= self.level then return self:emit("do return 'continue' end") end
  self.loop.continues = true
  self:emit("goto l%d", self.loop.number)
end

--- Emits that a loop goes only through the elements for which its own test holds.
local function selected(self, node, number)
  local block = self:open("do")
  self:emit("local kept, size = {}, 0")
  self.live = self.live + 2
  local loop = self:open("for i = first%d, last%d do turn()", number, number)
  self.live, self.line = self.live + 4, nil
  self:enter {}
  local item = self:declare(("items%d[i]"):format(number))
  store(self, node.target, item, true)
  self:emit("if %s then size = size + 1 kept[size] = %s end", self:condition(node.test), item)
  self:leave()
  self:close(loop, "end")
  self:emit("items%d, first%d, last%d = kept, 1, size", number, number, number)
  self:close(block, "end")
end

GENERATE["for"] = function(self, node)
  local number = self:number()
  local all, outer = self:open("do"), self.loop
  self:at(node.line)
  self:emit("local items%d, first%d, last%d = each(%s)", number, number, number, self:value(node.iterable))
  self.live = self.live + 3
  if node.test then selected(self, node, number) end
  local scope = self:enter(node.body)
  local creation, update = #self.code + 1, nil
  if node.uses_loop then
    self:declare_name("loop", (("{kind = 'loop', i = 0, n = last@ - first@ + 1, items = items@, before = first@ - 1}")
      :gsub("@", number)))
    scope.loop = number
  end
  -- As in jinja2, the else part follows unless some turn has reached the end of the body.
  local ended = node.otherwise and self:declare "false"
  local block = self:open("for i%d = first%d, last%d do turn()", number, number, number)
  self.live, self.line, self.loop = self.live + 4, nil, { number = number, level = self.level }
  local loop = scope.names.loop
  if loop then
    update = #self.code + 1
    self:emit("%s.i = i%d - first%d + 1", loop.text, number, number)
  end
  store(self, node.target, ("items%d[i%d]"):format(number, number), true)
  self:declare_assigned(node.body)
  emit_body(self, node.body)
  if ended then self:emit("%s = true", ended) end
  if self.loop.continues then self:emit("::l%d::", number) end
  self:close(block, "end")
  self:leave()
  if loop and not loop.is_read then self.code[creation], self.code[update] = "", "" end
  self.loop = outer
  if node.otherwise then
    local otherwise = self:open("if not %s then", ended)
    emit_scope(self, node.otherwise)
    self:close(otherwise, "end")
  end
  self:close(all, "end")
end

-- Macros ------------------------------------------------------------------------------------------------

--- Emits a macro. Returns the variable that holds it.
local function macro(self, node, name)
  local uses, size, parameters, places = {}, #node.params, {}, {}
  local number, is_large = self:number(), #node.params > MAX_PARAMETERS
  for i, param in ipairs(node.params) do
    parameters[i], places[param] = is_large and ("given[%d]"):format(i) or ("p%d"):format(i), i
  end
  for _, special in ipairs { "varargs", "kwargs", "caller" } do
    uses[special] = node.names[special] and not places[special]
  end
  local signature = { name = name, size = size, places = places, uses = uses, is_large = is_large }
  local list = is_large and "given" or concat(parameters, ", ")
  emit_function(self, ("local function macro%d(varargs, kwargs, caller%s)"):format(number,
    size > 0 and ", " .. list or ""), function()
    self.live, self.is_direct = 8 + (is_large and 1 or size), false
    self:emit("local line, out, n = enter(%q), {}, 0", name)
    self:enter(node.body)
    local names, fallbacks = self.scope.names, {}
    for i, param in ipairs(node.params) do
      fallbacks[i] = self:held(values.undefined(("the parameter %s of the macro %s was not given"):format(param, name)))
      names[param] = { text = parameters[i], fallback = fallbacks[i] }
    end
    for i, param in ipairs(node.params) do
      local block = self:open("if %s == nil then", parameters[i])
      self:emit("%s = %s", parameters[i], node.defaults[i] and self:value(node.defaults[i]) or fallbacks[i])
      self:close(block, "end")
      names[param] = { text = parameters[i], is_set = true }
      if self.scope.in_macros[param] then
        names[param] = nil
        self:declare_name(param, parameters[i])
      end
    end
    if uses.varargs then self:declare_name("varargs", "varargs or no_arguments()") end
    if uses.kwargs then self:declare_name("kwargs", "kwargs or no_dict()") end
    if uses.caller then
      self:declare_name "caller"
      self:emit("%s = caller", self.scope.names.caller.text)
    end
    self:declare_assigned(node.body)
    emit_statements(self, node.body)
    self:leave()
    self:emit("return finish(out, n, line)")
  end)
  return ("{kind = 'macro', run = macro%d, size = %d, signature = %s}"):format(number, is_large and -1 or size,
    self:held(signature))
end

GENERATE.macro = function(self, node)
  local block = self:open("do")
  self.live = self.live + 1
  local made = macro(self, node, node.name)
  self:emit("%s = %s", self:assign(node.name), made)
  self:close(block, "end")
  self:note_set { node.name }
end

GENERATE.call = function(self, node)
  local block = self:open("do")
  self.live = self.live + 1
  self:at(node.line)
  local made = self:declare(macro(self, node, "caller"))
  local call = plain.copy(node.call)
  call.kwargs = { unpack(node.call.kwargs) }
  call.kwargs[#call.kwargs + 1] = { "caller", given = made }
  local value = self:value(call)
  self:emit("n = n + 1")
  self:emit("out[n] = str(%s)", value)
  self:close(block, "end")
end

-- Marks of the assistant's text -------------------------------------------------------------------------

--- The body's text goes where all text goes; where it begins and ends is noted.
GENERATE.generation = function(self, node)
  local block = self:open("do")
  if not self.is_direct then
    self:emit("spans.misplaced = spans.misplaced or %d", node.line)
    emit_scope(self, node.body)
  else
    local first = self:declare("n + 1")
    emit_scope(self, node.body)
    self:emit("spans[#spans + 1] = {%s, n}", first)
  end
  self:close(block, "end")
end

-- Templates ---------------------------------------------------------------------------------------------

--- Notes the attributes that the statements of a body set.
local function add_changing(self, body)
  for _, node in ipairs(body or {}) do
    if node.target and node.target.type == "namespace_item" then self.changing[node.target.attribute] = true end
    for _, inner_body in ipairs(node.bodies or {}) do add_changing(self, inner_body) end
    add_changing(self, node.body)
    add_changing(self, node.otherwise)
  end
end

--- Returns the function of generated source: function(variables, spans) -> parts of the text, how many. Returns nil and
--- a message where Lua cannot take it.
local function load_source(self)
  local parameters = plain.keys(runtime.functions)
  local source = ("local K, %s = ...\n%s"):format(concat(parameters, ", "), concat(self.code, "\n"))
  local chunk, problem = load(source, "=template", "t", {})
  if not chunk then return nil, (problem:gsub("^.-:%d+: ", "")) end
  jit.off(chunk, true)
  local given = {}
  for i, name in ipairs(parameters) do given[i] = runtime.functions[name] end
  return chunk(self.constants, unpack(given))
end

--- Generates and loads the source of a template.
local function generate(body, is_split)
  local self = generator.new(is_split)
  add_changing(self, body)
  emit_function(self, "return function(variables, spans)", function()
    local place = #self.code + 1
    self:emit("local out, n = {}, 0")
    self.live = 5
    emit_scope(self, body)
    self:emit("return out, n")
    local given = {}
    for i, name in ipairs(plain.keys(self.free)) do
      given[i] = ("[%q] = variable(variables, %q, %s)"):format(name, name, self:held(generator.default_of(name)))
    end
    self.code[place] = ("local out, n, V = {}, 0, {%s}"):format(concat(given, ", "))
  end)
  return load_source(self)
end

--- Returns the bytes of spans of parts 1 to n.
local function bytes_of(spans, parts, n)
  if #spans == 0 then return {} end
  local offsets, size = {}, 0
  for i = 1, n do
    offsets[i] = size
    size = size + #parts[i]
  end
  offsets[n + 1] = size
  local marked = {}
  for _, span in ipairs(spans) do
    local first, last = offsets[span[1]] + 1, offsets[span[2] + 1]
    if last >= first then marked[#marked + 1] = { first, last } end
  end
  return marked
end

--- Compiles a template: function(variables) -> text, spans of bytes {{first, last}, ...}, the line of a mark whose
--- place in the text is unknown.
---@param body table[]
---@return any
function M.compile(body)
  local run, problem = generate(body, false)
  if not run then run, problem = generate(body, true) end
  if not run then values.fail_at(0, ("the template is too large or nested too deeply (%s)"):format(problem)) end
  return function(variables)
    local spans = {}
    local out, n = run(variables, spans)
    return limits.concat(out, "", n), bytes_of(spans, out, n), spans.misplaced
  end
end

return M
