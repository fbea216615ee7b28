--- Every public name of the library is annotated for editors: in its Lua source, or in a stub where it is C++.

package.path = "driver/lualib/types/?.lua;" .. package.path

local annotations = require "annotations"
local bindings = require "bindings"
local core = require "lockstep.core"
local t = require "lockstep.testing"

local read = t.read_file

local function files_under(folder)
  local paths = {}
  for path in assert(io.popen("find -L " .. folder .. " -name '*.lua'")):lines() do paths[#paths + 1] = path end
  table.sort(paths)
  return paths
end

local function expect_none(problems)
  table.sort(problems)
  t.truthy(#problems == 0, #problems .. " names lack annotations:\n  " .. table.concat(problems, "\n  "))
end

-- The files of the library, by module name.
local library = { lockstep = "driver/lualib/lockstep.lua" }
for _, path in ipairs(files_under("driver/lualib/lockstep")) do
  library[path:match("^driver/lualib/(.*)%.lua$"):gsub("/", ".")] = path
end

-- C++ has a stub for each module: class name and names by module.
local native, stubs, stub_classes = {}, {}, {}
for name in pairs(package.preload) do
  if name:match("^lockstep") then native[#native + 1] = name end
end
table.sort(native)
local texts = {}
for _, path in ipairs(files_under("driver/lualib/types")) do
  if not path:match "_test%.lua$" then texts[path:match("[^/]*$")] = read(path) end
end
-- Written for editors, not committed.
for _, files in ipairs { require("stubs").files(), bindings.files() } do
  for name, text in pairs(files) do texts[name] = text end
end
for path, text in pairs(texts) do
  local file = annotations.read(text)
  if file.module then
    stubs[file.module] = file.module ~= "_" and path or nil
    for class, fields in pairs(file.fields) do
      stub_classes[class] = stub_classes[class] or {}
      for name in pairs(fields) do stub_classes[class][name] = path end
    end
    for _, fn in ipairs(file.functions) do
      local class = file.classes[fn.object]
      stub_classes[class] = stub_classes[class] or {}
      stub_classes[class][fn.name] = path
    end
  end
end

-- The checker -----------------------------------------------------------------------------------------

local function problems_of(text) return table.concat(annotations.problems("f.lua", text), "; ") end

t.test("AnAnnotatedFunctionHasNoProblem", function()
  t.equal(problems_of [[
local M = {}
--- Adds.
---@param a number
---@param b? number
---@param ... any
---@return number
function M.add(a, b, ...) return a + (b or 0) + select("#", ...) end
]], "")
end)

t.test("AFunctionWithoutCommentIsAProblem", function()
  t.equal(problems_of "local M = {}\nfunction M.f() end", "f.lua:2: M.f has no comment of ---")
end)

t.test("ACommentAboveABlankLineIsNotTheFunctions", function()
  t.equal(problems_of "local M = {}\n--- Far.\n\nfunction M.f() end", "f.lua:4: M.f has no comment of ---")
end)

t.test("AMissingParameterIsAProblem", function()
  t.equal(problems_of "local M = {}\n---@param ab any\nfunction M.f(a, ...) end",
    "f.lua:3: M.f has no ---@param a; f.lua:3: M.f has no ---@param ...")
end)

t.test("AReturnedValueWithoutReturnIsAProblem", function()
  for _, body in ipairs { "return 1", "return 1, 2", "return ...", "return M.f()", "return M.f(...)",
    "if M then return nil end", "local x = 1; local function g() return x end; if M then return g end" } do
    t.equal(problems_of("local M = {}\n---@param ... any\nfunction M.f(...) " .. body .. " end"),
      "f.lua:3: M.f has no ---@return", body)
  end
end)

t.test("AFunctionInsideMayReturn", function()
  t.equal(problems_of [[
local M = {}
--- Sets g.
function M:f()
  self.g = function() return 1 end
  return
end
]], "")
end)

t.test("KindsOfModulesInheritInitAndForward", function()
  t.equal(problems_of [[
local Net = Module:subclass("Net")
function Net:init(size) self.size = size end
function Net:forward(x) return x end
function Net:__tostring() return "Net" end
function Net:other() end
]], "f.lua:5: Net.other has no comment of ---")
end)

t.test("ALocalFunctionIsLookedAtWhereItIsAskedFor", function()
  local text = "local function f(a) return a end\nreturn function(b) end"

  t.equal(annotations.problems("f.lua", text), {})
  t.equal(annotations.problems("f.lua", text, 1), { "f.lua:1: the function has no comment of ---",
    "f.lua:1: the function has no ---@param a", "f.lua:1: the function has no ---@return" })
  t.equal(annotations.problems("f.lua", text, 2), { "f.lua:2: the function has no comment of ---",
    "f.lua:2: the function has no ---@param b" })
end)

-- The library -----------------------------------------------------------------------------------------

t.test("EveryPublicFunctionOfTheLibraryIsAnnotated", function()
  local problems = {}
  for _, path in pairs(library) do
    for _, problem in ipairs(annotations.problems(path, read(path))) do problems[#problems + 1] = problem end
  end
  expect_none(problems)
end)

--- Whether the source says what the value is: above `M.key =` or `local key =`, or in a ---@field.
local function is_documented(file, key)
  for _, fields in pairs(file.fields) do
    if fields[key] then return true end
  end
  for number, line in ipairs(file.lines) do
    if line:match("^M%." .. key .. " = ") or line:match("^local " .. key .. " = ") then
      return #annotations.comment_above(file.lines, number) > 0
    end
  end
  return false
end

--- Whether a part of a module, a file in its folder, says what the value is.
local function is_in_part(name, key, value)
  for part, path in pairs(library) do
    local fields = part:sub(1, #name + 1) == name .. "." and require(part)
    local is_same = type(fields) == "table" and rawequal(fields[key], value)
    if is_same and is_documented(annotations.read(read(path)), key) then return true end
  end
  return false
end

--- Missing annotations of a function in the file that defines it; nil for a function in C++.
local function problems_of_function(fn)
  local info = debug.getinfo(fn, "S")
  if info.what ~= "Lua" then return nil end
  local path = "driver/lualib/" .. info.source:sub(2)
  return annotations.problems(path, read(path), info.linedefined)
end

t.test("EveryFieldOfALibraryModuleIsAnnotated", function()
  local problems, modules = {}, {}
  local function add(found)
    for _, problem in ipairs(found) do problems[#problems + 1] = problem end
  end
  -- Parts of parts, such as lockstep.text.jinja.filters, are tables by the names of others.
  for name in pairs(library) do
    if not name:match("^lockstep%.[^.]+%.[^.]+%.") then modules[require(name)] = name end
  end
  local function visit(where, path, fields)
    local file = annotations.read(read(path))
    for key, value in pairs(fields) do
      local is_namespace = type(value) == "table" and getmetatable(value) == nil and next(value) ~= nil
      local is_known = key:sub(1, 1) == "_" or modules[value] or is_documented(file, key)
        or type(value) == "table" and is_in_part(where, key, value)
      local lacks = not is_known and type(value) == "function" and problems_of_function(value)
      if lacks then
        add(lacks)
      elseif not is_known and is_namespace and where:find("%.[^.]*%.") == nil then
        visit(where .. "." .. key, path, value)  -- a table of functions, such as batching.cost
      elseif not is_known then
        add { string.format("%s: %s.%s has no comment of ---", path, where, key) }
      end
    end
  end
  for module, name in pairs(modules) do
    if type(module) == "table" then
      visit(name, library[name], module)
    else
      add(problems_of_function(module))  -- a module may be a function, such as lockstep.sharding.pack
    end
  end
  expect_none(problems)
end)

-- Options in C++ --------------------------------------------------------------------------------------

-- The structs of C++ have the names, types and defaults of these options, and the classes explain them.
for class, place in pairs {
  ["sharding.DataParallelOptions"] = { "sharding/data_parallel.lua", "sharding", "data_parallel_defaults" },
  ["sharding.FullyShardOptions"] = { "sharding/fully_shard.lua", "sharding", "fully_shard_defaults" },
  ["checkpoint.Options"] = { "checkpoint.lua", "checkpoint", "offload_defaults" },
  ["tiled_mlp.Options"] = { "tiled_mlp.lua", "tiled_mlp", "defaults" },
  ["tiled_mlp.CrossEntropy"] = { "tiled_mlp.lua", "tiled_mlp", "cross_entropy_defaults" },
} do
  t.test("TheClassExplainsTheOptionsOfTheStruct(" .. class .. ")", function()
    local fields = read("driver/lualib/lockstep/" .. place[1]):match("%-%-%-@class " .. class .. "\n(.-)\n\n")
    for name, default in pairs(require("lockstep.core." .. place[2])[place[3]]) do
      local type_name, text = fields:match("%-%-%-@field " .. name .. " (%w+)%?([^\n]*)")
      t.truthy(type_name, class .. " has no field " .. name)
      t.equal((type_name:gsub("^integer$", "number")), type(default), name)
      local said = text:match "^ (%-?%d+)$" or text:match "^ (true)$" or text:match "^ (false)$"
        or text:match "default (%S+)"
      -- 0 tile_tokens leave the number to the library.
      if said and name ~= "tile_tokens" then t.equal(said, tostring(default), name .. ": the default") end
    end
  end)
end

-- Functions in C++ ------------------------------------------------------------------------------------

t.test("EveryNativeModuleHasAStub", function()
  t.truthy(#native >= 5)
  local problems = {}
  for _, name in ipairs(native) do
    if not stubs[name] then
      problems[#problems + 1] = name .. ": no file of driver/lualib/types begins with ---@meta " .. name
    end
  end
  expect_none(problems)
end)

t.test("EveryNameOfANativeModuleIsInItsStub", function()
  local problems = {}
  local function visit(class, object)
    for key, value in pairs(object) do
      if not (stub_classes[class] or {})[key] then
        problems[#problems + 1] = class .. "." .. tostring(key) .. ": no stub of it in driver/lualib/types, and "
          .. "no signature above its C function as driver/lualib/types/bindings.lua reads it"
      elseif type(value) == "table" and not key:find "defaults$" then -- fields of structs of C++
        visit(class .. "." .. key, value)
      end
    end
  end
  for _, name in ipairs(native) do visit(name, require(name)) end
  expect_none(problems)
end)

t.test("AStubNamesOnlyWhatIsThere", function()
  local problems = {}
  for _, name in ipairs(native) do
    local module = require(name)
    for key, path in pairs(stub_classes[name] or {}) do
      -- lockstep.torch finds operators when they are asked for.
      local ok, value = pcall(function() return module[key] end)
      if not ok or value == nil then problems[#problems + 1] = path .. ": " .. name .. " has no " .. key end
    end
  end
  expect_none(problems)
end)

t.test("MethodsAndFieldsOfTensorsAreInTheStubs", function()
  local problems = {}
  for _, names in ipairs { core.tensor_methods(), core.tensor_fields() } do
    for _, name in ipairs(names) do
      if not stub_classes["torch.Tensor"][name] then
        problems[#problems + 1] = "driver/lualib/types/tensor.lua: torch.Tensor has no " .. name
      end
    end
  end
  expect_none(problems)
end)

--- Metatables of C++ objects: they stand in the registry under their name.
local function native_objects()
  local objects = {}
  for name, metatable in pairs(debug.getregistry()) do
    if type(metatable) == "table" and rawget(metatable, "__name") == name and type(metatable.__index) == "table" then
      objects[name] = metatable.__index
    end
  end
  return objects
end

t.test("EveryNativeObjectHasAClassWithItsMethods", function()
  for _, name in ipairs(native) do require(name) end
  local objects, problems = native_objects(), {}
  t.truthy(objects.group, "the registry must hold the group's metatable")
  for name, methods in pairs(objects) do
    local expected = {}
    for method in pairs(methods) do expected[#expected + 1] = method end
    local found = #expected == 0 -- one that the program keeps for itself
    table.sort(expected)
    for _, names in pairs(stub_classes) do
      local listed = {}
      for method in pairs(names) do listed[#listed + 1] = method end
      table.sort(listed)
      found = found or table.concat(listed, " ") == table.concat(expected, " ")
    end
    if not found then
      problems[#problems + 1] = string.format('"%s": no class has just these methods, in driver/lualib/types or above '
        .. "C functions (see driver/lualib/types/bindings.lua): %s", name, table.concat(expected, ", "))
    end
  end
  expect_none(problems)
end)
