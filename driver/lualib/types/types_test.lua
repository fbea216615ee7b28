--- The stubs of ATen's operators: how a schema becomes one, and that every operator has one.

package.path = "driver/lualib/types/?.lua;" .. package.path

local core = require "lockstep.core"
local schema = require "lockstep.help.schema"
local stubs = require "stubs"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

-- Schemas ---------------------------------------------------------------------------------------------

local function type_of(parameter)
  return schema.parse("torch.f(" .. parameter .. ") -> ()").parameters[1].type
end

t.test("EveryTypeThatLuaCanGiveHasItsName", function()
  for parameter, type in pairs {
    ["Tensor x"] = "torch.Tensor", ["Tensor(a!) x"] = "torch.Tensor", ["Tensor(a -> *) x"] = "torch.Tensor",
    ["Tensor[] x"] = "torch.Tensor[]", ["Tensor(a!)[] x"] = "torch.Tensor[]",
    ["Tensor?[] x"] = "(torch.Tensor|false)[]", ["Scalar x"] = "torch.Scalar", ["Scalar[] x"] = "torch.Scalar[]",
    ["int x"] = "integer", ["SymInt x"] = "integer", ["int[] x"] = "integer[]", ["SymInt[2] x"] = "integer|integer[]",
    ["float x"] = "number", ["float[] x"] = "number[]", ["bool x"] = "boolean", ["bool[3] x"] = "boolean[]",
    ["str x"] = "string", ["ScalarType x"] = "torch.dtype", ["Device x"] = "string", ["Layout x"] = "torch.layout",
    ["MemoryFormat x"] = "torch.memory_format",
  } do
    t.equal(type_of(parameter), type, parameter)
  end
end)

t.test("TypesThatLuaCannotGiveAreNil", function()
  for _, parameter in ipairs { "Generator x", "Storage x", "Stream x", "str[] x",
    "__torch__.torch.classes.rnn.CellParamsBase[] x" } do
    t.equal(type_of(parameter), nil, parameter)
  end
end)

t.test("DefaultsMayHoldCommasAndQuotes", function()
  local parsed = schema.parse('torch.f(int[2] a=[1, 1], str b="\\",", *, float? c=None) -> ()')

  t.equal(#parsed.parameters, 3)
  t.equal(parsed.parameters[1].default, "[1, 1]")
  t.equal(parsed.parameters[2].default, '"\\","')
  t.equal(parsed.parameters[2].keyword_only, false)
  t.equal(parsed.parameters[3].nullable, true)
  t.equal(parsed.parameters[3].keyword_only, true)
end)

t.test("ResultsAreNoneOneOrSeveral", function()
  local function results(text)
    local names = {}
    for i, r in ipairs(schema.parse("torch.f() -> " .. text).results) do
      names[i] = tostring(r.type) .. (r.name and " " .. r.name or "")
    end
    return table.concat(names, ", ")
  end
  t.equal(results "()", "")
  t.equal(results "Tensor", "torch.Tensor")
  t.equal(results "Tensor(a!)", "torch.Tensor")
  t.equal(results "Tensor(a)[]", "torch.Tensor[]")
  t.equal(results "(Tensor, int)", "torch.Tensor, integer")
  t.equal(results "(Tensor(a!) values, Tensor(b!) indices)", "torch.Tensor values, torch.Tensor indices")
  t.equal(results "Scalar", "number")
  t.equal(results "Dict(Tensor, Tensor)", "nil")
end)

t.test("EverySchemaOfTheDispatcherIsRead", function()
  local count = 0
  for _, name in ipairs(core.operators()) do
    for _, text in ipairs(core.schemas(name)) do
      t.equal(schema.parse(text).name, name, text)
      count = count + 1
    end
  end
  t.truthy(count > 3000, "only " .. count .. " schemas")
end)

t.test("ResultsAreOfTheTypesThatTheStubsSay", function()
  local x = torch.ones(2)

  t.equal(torch.result_type(x, x), torch.float32)  -- ScalarType
  t.equal(torch.sym_is_contiguous(x), true)        -- SymBool
  t.equal(torch._local_scalar_dense(x[0]), 1)      -- Scalar
end)

-- Stubs -----------------------------------------------------------------------------------------------

local function stub(name, ...) return table.concat(assert(stubs.operator(name, { ... })), "\n") end

t.test("TensorsStandInPlaceAndTheRestMayTravelByName", function()
  t.equal(stub("softmax", "torch.softmax(Tensor self, int dim, ScalarType? dtype=None) -> Tensor"), [[
---@overload fun(self: torch.Tensor, options: {dim: integer, dtype: torch.dtype?}): torch.Tensor
---@param self torch.Tensor
---@param dim integer
---@param dtype? torch.dtype
---@return torch.Tensor
function torch.softmax(self, dim, dtype) end]])
end)

t.test("OutIsAKeywordOfTheSchemaWithoutIt", function()
  t.equal(stub("mm", "torch.mm(Tensor self, Tensor mat2) -> Tensor",
    "torch.mm(Tensor self, Tensor mat2, *, Tensor(a!) out) -> Tensor(a!)"), [[
---@param self torch.Tensor
---@param mat2 torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.mm(self, mat2, options) end]])
end)

t.test("AListThatComesLastMayBeSpread", function()
  t.equal(stub("view", "torch.view(Tensor(a) self, SymInt[] size) -> Tensor(a)"), [[
---@overload fun(self: torch.Tensor, ...: integer): torch.Tensor
---@param self torch.Tensor
---@param size integer[]
---@return torch.Tensor
function torch.view(self, size) end]])
end)

t.test("FactoriesTakeRequiresGrad", function()
  t.equal(stub("zeros", "torch.zeros(SymInt[] size, *, ScalarType? dtype=None, Layout? layout=None, "
    .. "Device? device=None, bool? pin_memory=None) -> Tensor"), [[
---@overload fun(...: integer|table): torch.Tensor
---@param size integer[]
---@param options? torch.FactoryOptions
---@return torch.Tensor
function torch.zeros(size, options) end]])
end)

t.test("SeveralResultsAreSeveralReturns", function()
  t.equal(stub("kthvalue", "torch.kthvalue(Tensor self, *, int k) -> (Tensor values, Tensor indices)"), [[
---@param self torch.Tensor
---@param options {k: integer}
---@return torch.Tensor values
---@return torch.Tensor indices
function torch.kthvalue(self, options) end]])
end)

t.test("ReservedWordsAreSpelledOtherwise", function()
  t.equal(stub("repeat", "torch.repeat(Tensor self, int end, *, int? in=None) -> Tensor"), [[
---@overload fun(self: torch.Tensor, options: {["end"]: integer, ["in"]: integer?}): torch.Tensor
---@param self torch.Tensor
---@param end_ integer
---@param options? {["in"]: integer?}
---@return torch.Tensor
torch["repeat"] = function(self, end_, options) end]])
end)

t.test("ASchemaThatLuaCannotCallIsLeftOut", function()
  t.equal(stubs.operator("f", { "torch.f(Tensor self, Stream s) -> ()" }), nil)
  t.equal(stubs.operator("f", { "torch.f(Tensor self) -> Dict(Tensor, Tensor)" }), nil)
  t.equal(stub("f", "torch.f(Tensor self, Stream s) -> ()", "torch.f(Tensor self, *, Generator? g=None) -> ()"),
    "---@param self torch.Tensor\nfunction torch.f(self) end")
end)

t.test("EveryOperatorIsStubbedOrListedAsUnreachable", function()
  local text = { assert(io.open("driver/lualib/types/torch_functions.lua")):read("*a") }
  for _, file in pairs(stubs.files()) do text[#text + 1] = file end
  text = table.concat(text)
  local stubbed, unreachable = {}, text:match("no form in Lua: ([^.]*)%.")
  for name in text:gmatch("\nfunction torch%.([%w_]+)%(") do stubbed[name] = true end
  for name in text:gmatch('\ntorch%["([%w_]+)"%] = function') do stubbed[name] = true end
  for name in unreachable:gmatch("[%w_]+") do stubbed[name] = true end
  for _, name in ipairs(core.operators()) do t.truthy(stubbed[name], name .. " has no stub") end
end)

-- The files -------------------------------------------------------------------------------------------

t.test("TheGeneratorWritesLua", function()
  for name, text in pairs(stubs.files()) do
    local chunk, message = loadstring(text, "@" .. name)
    t.truthy(chunk, message)
  end
end)

t.test("EveryStubIsALuaFileOfItsOwn", function()
  for path in io.popen("find -L driver/lualib/types -name '*.lua'"):lines() do
    local chunk, message = loadfile(path)
    t.truthy(chunk, message)
  end
end)
