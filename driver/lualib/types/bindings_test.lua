--- Stubs of the modules lockstep.core: how a comment above a C function becomes one, and that the comments agree with
--- the code. annotations_test.lua checks that every name of a module has a stub.

package.path = "driver/lualib/types/?.lua;" .. package.path

local bindings = require "bindings"
local t = require "lockstep.testing"

local function source(text)
  return bindings.read("driver/lua/bind/a/a.cc", "// lockstep.core.a: about a.\n\n" .. text)
end

local function functions_in(text)
  local stub = bindings.stub("lockstep.core.a", { source(text) }, {})
  return stub:match "\nlocal a = {}\n\n(.*)return a\n$":gsub("\n$", "")
end

-- Comments --------------------------------------------------------------------------------------------

t.test("ASignatureNamesParametersAndResults", function()
  t.equal(functions_in [[
// add(x: integer, options?: {by: integer?, at: table<string, integer>}) -> sum: integer, string?
// Adds. A second
// line.
int Add(lua_State* state) {
]], [[
--- Adds. A second
--- line.
---@param x integer
---@param options? {by: integer?, at: table<string, integer>}
---@return integer sum
---@return string?
function a.add(x, options) end
]])
end)

t.test("ASignatureMayTakeSeveralLines", function()
  for _, comment in ipairs { "// f(x: integer,\n//     y: {a: integer}[]) -> string",
    "// f(x: integer, y: {a:\n//     integer}[]) -> string", "// f(x: integer, y: {a: integer}[])\n//     -> string",
    "// f(x: integer, y: {a: integer}[]) ->\n//     string" } do
    t.equal(functions_in(comment .. "\n// Text.\nint F(lua_State* state) {\n"), "--- Text.\n---@param x integer\n"
      .. "---@param y {a: integer}[]\n---@return string\nfunction a.f(x, y) end\n", comment)
  end
end)

t.test("AFunctionIsAType", function()
  t.equal(functions_in [[
// node(forward: fun(): integer, string, fn: fun(...): ..., ...: any) -> ...: any
int Node(lua_State* state) {
]], [[
---@param forward fun(): integer, string
---@param fn fun(...): ...
---@param ... any
---@return any ...
function a.node(forward, fn, ...) end
]])
end)

t.test("AMethodHasAClassThatTypesMayName", function()
  t.equal(functions_in [[
// Box:open(other: Box)
int Open(lua_State* /*state*/) { return 0; }

// box(from: b.Box|Box[]) -> Box?
int NewBox(lua_State* state) {
]], [[
---@class lockstep.core.a.Box
local Box = {}

---@param other lockstep.core.a.Box
function Box:open(other) end

---@param from b.Box|lockstep.core.a.Box[]
---@return lockstep.core.a.Box?
function a.box(from) end
]])
end)

t.test("ATemplateIsDescribedOnceForEachName", function()
  t.equal(functions_in [[
// get() -> integer
//
// get_flag() -> boolean
template <bool kFlag>
int Get(lua_State* state) {
]], [[
---@return integer
function a.get() end

---@return boolean
function a.get_flag() end
]])
end)

t.test("OtherCommentsAreNoDescriptions", function()
  for _, text in ipairs { "// f(x) -> the sum\nint F(lua_State* state) {\n",
    "// f(x: integer)\nvoid F(lua_State* state) {\n", "// f(x: integer)\n\nint F(lua_State* state) {\n",
    "// f(x: integer) -> integer. It is even.\nint F(lua_State* state) {\n",
    "// f(x: integer) -> integer: from 1\nint F(lua_State* state) {\n",
    "// f(x: integer, y) -> integer\nint F(lua_State* state) {\n",
    "// Returns f(x: integer).\nint F(lua_State* state) {\n" } do
    t.equal(functions_in(text), "", text)
  end
  t.equal(bindings.read("a.cc", "// f()\nint F(lua_State* state) {\n").functions, {})
end)

t.test("FieldsOfAModuleHaveTheTypesOfTheirValues", function()
  local stub = bindings.stub("lockstep.core.a", { source "// ---@class lockstep.core.a.Kind\n// ---@field x Kind\n\n" },
    { defaults = { epoch = 0, share = 0.5, pad = false }, version = "1", call = print })

  t.equal(stub, [[
---@meta lockstep.core.a
--- Written by generate.lua from the comments of driver/lua: do not edit.

---@class lockstep.core.a
---@field defaults {epoch: integer, pad: boolean, share: number}
---@field version string
local a = {}

---@class lockstep.core.a.Kind
---@field x Kind

return a
]])
end)

-- Comments and code -----------------------------------------------------------------------------------

t.test("ACommentWithAnotherNameIsAProblem", function()
  local text = "// add(x: integer)\nint Add(lua_State* state) { return 0; }\n\n%s"

  t.equal(bindings.problems { source(text:format('{{"add", Add}, {"sub", Sub}}\n')) }, {})
  t.equal(bindings.problems { source(text:format('{{"sum", CountedCall<Add>}}\n')) },
    { "driver/lua/bind/a/a.cc:4: the comment describes add, but Lua calls Add by the name sum" })
end)

t.test("ACommentWithTooFewParametersIsAProblem", function()
  local text = '%s\nint Add(lua_State* state) {\n  return ReadInteger(state, 2, "y");\n}\n'

  for _, comment in ipairs { "// add(x: integer, y: integer)", "// Sum:add(y: integer)", "// add(...: integer)" } do
    t.equal(bindings.problems { source(text:format(comment)) }, {}, comment)
  end
  t.equal(bindings.problems { source(text:format "// add(x: integer)") },
    { "driver/lua/bind/a/a.cc:4: the comment of add has 1 parameters, but Add reads 2" })
end)

t.test("TheCommentsAgreeWithTheCode", function()
  local sources, count = bindings.sources(), 0
  for _, one in ipairs(sources) do count = count + #one.functions end

  t.truthy(count > 200, "only " .. count .. " C functions are described")
  t.equal(bindings.problems(sources), {})
end)

t.test("TheGeneratorWritesLua", function()
  for name, text in pairs(bindings.files()) do
    local chunk, message = loadstring(text, "@" .. name)
    t.truthy(chunk, message)
  end
end)
