--- Makes LuaLS stubs of the modules lockstep.core and lockstep.core.* from the comments above their C functions in
--- driver/lua. generate.lua writes them. The first comment of a source file begins with the module's name, and the
--- comment of each function with its signature:
---
---     // lockstep.core.sharding: parts of datasets, and packing.
---
---     // permute(size: integer, seed: integer, epoch: integer, position: integer) -> index: integer
---     // The order of an epoch that shards share.
---     int Permute(lua_State* state) {
---
--- `Packer:add(tokens: integer)` is a method of the class lockstep.core.sharding.Packer. Types are those of LuaLS. The
--- module's own classes need no prefix there. A result needs no name. A signature continues in the next line while a
--- bracket is open, after a comma, and before or after `->`. After a line with `//` alone another signature may follow.
---
--- Other types are written in the form of LuaLS: `// ---@class lockstep.core.JsonShape`.

local M = {}

---@class bindings.Function
---@field class string? of a method
---@field name string
---@field parameters {name: string, type: string}[]
---@field results {name: string?, type: string}[]
---@field text string[]
---@field native string the C function
---@field place string file:line
---@field num_read integer the last argument that the C function reads itself, without that of a method's object

--- Returns the number of brackets that the text opens, less those that it closes. The > of -> is no bracket.
local function depth_of(text)
  local _, opened = text:gsub("[%(%[{<]", "")
  local _, closed = text:gsub("%->", ""):gsub("[%)%]}>]", "")
  return opened - closed
end

--- Returns the pieces of a list, cut at the commas outside of brackets.
local function split(list)
  local pieces, depth, piece = {}, 0, ""
  for part, comma in (list .. ","):gmatch("([^,]*)(,)") do
    piece, depth = piece .. part, depth + depth_of(part)
    if depth == 0 then
      pieces[#pieces + 1] = piece:match("^%s*(.-)%s*$")
      piece = ""
    else
      piece = piece .. comma
    end
  end
  return pieces
end

--- Returns whether the text may be a type, not a sentence.
local function is_type(text)
  local outside = text:gsub("%b()", ""):gsub("%b{}", ""):gsub("%b<>", ""):gsub("([:,]) ", "%1")
  return not outside:find " " and not outside:find "[^.]%.$"
end

--- Reads `size: integer, seed: integer`, or types without names where these are results. Returns nil for other text.
local function read_list(list, are_results)
  local read = {}
  for _, piece in ipairs(list:find "%S" and split(list) or {}) do
    local name, type = piece:match "^([%a_][%w_]*%??): (.+)$"
    if not name then name, type = piece:match "^(%.%.%.): (.+)$" end
    local last = read[#read]
    if name or are_results then
      read[#read + 1] = { name = name, type = type or piece }
    elseif last and last.type:match "^fun%(" then
      last.type = last.type .. ", " .. piece -- fun(): string, string
    else
      return nil
    end
    if not is_type(read[#read].type) then return nil end
  end
  return read
end

--- Reads a signature; nil for other text.
---@param text string
---@return bindings.Function?
function M.signature(text)
  local name, list, rest = text:match("^([%w_:]+)(%b())(.*)$")
  local class, method = (name or ""):match("^([%w_]+):([%w_]+)$")
  if not name or not method and not name:match("^[%w_]+$") then return nil end
  local result_list = rest == "" and "" or rest:match("^ %-> (.+)$")
  local parameters, results = read_list(list:sub(2, -2), false), result_list and read_list(result_list, true)
  return parameters and results and { class = class, name = method or name, parameters = parameters, results = results,
    text = {} }
end

--- Reads the lines of a comment above a C function. Returns one entry for each signature in it.
local function read_comment(lines)
  local functions, i = {}, 1
  while i <= #lines do
    local signature, last = lines[i], i
    local is_first = i == 1 or lines[i - 1] == ""
    while is_first and lines[last + 1] and (depth_of(signature) > 0 or signature:match ",$" or signature:match "%->$"
        or lines[last + 1]:match("^%s*%->")) do
      last = last + 1
      signature = signature .. " " .. lines[last]:match("^%s*(.*)$")
    end
    local fn = is_first and M.signature(signature)
    if fn then
      if i > 1 then table.remove(functions[#functions].text) end -- the blank line between
      functions[#functions + 1], i = fn, last
    elseif #functions > 0 then
      table.insert(functions[#functions].text, lines[i])
    end
    i = i + 1
  end
  return functions
end

---@class bindings.Source
---@field path string
---@field module string?
---@field functions bindings.Function[]
---@field types string[] blocks of LuaLS, as they are
---@field names {name: string, native: string}[] the names by which Lua calls the C functions

--- Returns the number of the last argument that the body of a C function reads.
local function last_read(body)
  local last = 0
  for _, pattern in ipairs { "Read%w*%b<>%(state, (%d+)", "Read%w*%(state, (%d+)", "lua_toboolean%(state, (%d+)",
      "lua_isnoneornil%(state, (%d+)", "OptionTable [%w_]+%(state, (%d+)" } do
    for index in body:gmatch(pattern) do last = math.max(last, tonumber(index)) end
  end
  return last
end

--- Reads a source file of C++.
---@param path string for messages
---@param text string
---@return bindings.Source
function M.read(path, text)
  local source = { path = path, module = text:match("^// (lockstep%.core[%w_.]*): "), functions = {}, types = {},
    names = {} }
  if not source.module then return source end
  local comment, types, number = {}, {}, 0
  for line in text:gmatch("([^\n]*)\n") do
    number = number + 1
    local remark = line:match("^// ?(.*)$")
    local annotation = remark and remark:match("^%-%-%-@.*$")
    local native = line:match("^int ([%w_]+)%(lua_State%* ?[^,]*%)")
    if annotation then
      types[#types + 1] = annotation
    elseif remark then
      comment[#comment + 1] = remark
    elseif not line:match("^template <") then
      for _, fn in ipairs(native and read_comment(comment) or {}) do
        fn.native, fn.place = native, path .. ":" .. number
        local body = text:match("\nint " .. native .. "(%(lua_State.-\n[}\n])") or ""
        fn.num_read = math.max(last_read(body) - (fn.class and 1 or 0), 0)
        table.insert(source.functions, fn)
      end
      if #types > 0 then table.insert(source.types, table.concat(types, "\n")) end
      comment, types = {}, {}
    end
  end
  for name, native in text:gmatch('{%s*"([%w_]+)",%s*([%w_<>]+)}') do
    table.insert(source.names, { name = name, native = native:match("^CountedCall<(.*)>$") or native:match("^[%w_]+") })
  end
  return source
end

--- Reads all source files of driver/lua.
---@return bindings.Source[]
function M.sources()
  local sources = {}
  -- In a test this file is a link into the workspace.
  local this_file = debug.getinfo(1, "S").source:sub(2)
  local folder = assert(io.popen("readlink -f '" .. this_file .. "'")):read("*l"):match "^(.*)/driver/lualib/types/"
  for path in assert(io.popen("find '" .. folder .. "/driver/lua' -name '*.cc' -o -name '*.h'")):lines() do
    local file = assert(io.open(path))
    sources[#sources + 1] = M.read(path:sub(#folder + 2), file:read "*a")
    file:close()
  end
  table.sort(sources, function(a, b) return a.path < b.path end)
  return sources
end

--- Returns the descriptions of a C function that the source names: from the same file, or a header of its folder.
local function functions_of(source, native, sources)
  local folder, found = source.path:match("^(.*/)"), {}
  for _, other in ipairs(sources) do
    if other == source or other.path:match("^(.*/)[^/]*%.h$") == folder then
      for _, fn in ipairs(other.functions) do
        if fn.native == native then found[#found + 1] = fn end
      end
    end
  end
  return found
end

--- Returns a message for each comment that contradicts the code: by another name than Lua's, or too few parameters.
---@param sources bindings.Source[]
---@return string[]
function M.problems(sources)
  local problems = {}
  for _, source in ipairs(sources) do
    for _, name in ipairs(source.names) do
      local described, is_named = functions_of(source, name.native, sources), false
      for _, fn in ipairs(described) do is_named = is_named or fn.name == name.name end
      if #described > 0 and not is_named then
        problems[#problems + 1] = ("%s: the comment describes %s, but Lua calls %s by the name %s"):format(
          described[1].place, described[1].name, name.native, name.name)
      end
    end
    for _, fn in ipairs(source.functions) do
      local last = fn.parameters[#fn.parameters]
      if fn.num_read > #fn.parameters and not (last and last.name == "...") then
        problems[#problems + 1] = ("%s: the comment of %s has %d parameters, but %s reads %d"):format(fn.place, fn.name,
          #fn.parameters, fn.native, fn.num_read)
      end
    end
  end
  return problems
end

-- Text -----------------------------------------------------------------------------------------------

--- Returns the type of a module's value that is not a function.
local function type_of(value)
  if type(value) == "number" then return value % 1 == 0 and "integer" or "number" end
  if type(value) == "userdata" then return "lightuserdata" end
  if type(value) ~= "table" then return type(value) end
  local fields = {}
  for name, field in pairs(value) do fields[#fields + 1] = name .. ": " .. type_of(field) end
  table.sort(fields)
  return "{" .. table.concat(fields, ", ") .. "}"
end

--- Returns a function's stub. `qualified` gives the module's classes their prefix.
local function function_lines(fn, object, qualified)
  local lines, names = {}, {}
  for _, line in ipairs(fn.text) do lines[#lines + 1] = ("--- " .. line):match("^(.-)%s*$") end
  for _, p in ipairs(fn.parameters) do
    names[#names + 1] = p.name:match("^[^?]*")
    lines[#lines + 1] = "---@param " .. p.name .. " " .. qualified(p.type)
  end
  for _, r in ipairs(fn.results) do
    lines[#lines + 1] = "---@return " .. qualified(r.type) .. (r.name and " " .. r.name or "")
  end
  lines[#lines + 1] = "function " .. object .. fn.name .. "(" .. table.concat(names, ", ") .. ") end\n"
  return table.concat(lines, "\n")
end

--- Returns the stub of a module.
---@param module string
---@param sources bindings.Source[]
---@param values table<string, any> the module itself, for its values that are not functions
---@return string
function M.stub(module, sources, values)
  local own, classes, order, types = {}, {}, {}, {}
  for _, source in ipairs(sources) do
    if source.module == module then
      for _, block in ipairs(source.types) do types[#types + 1] = block .. "\n" end
      for _, fn in ipairs(source.functions) do
        if fn.class and not classes[fn.class] then
          classes[fn.class] = {}
          order[#order + 1] = fn.class
        end
        table.insert(classes[fn.class] or own, fn)
      end
    end
  end
  local is_own = {}
  for _, class in ipairs(order) do is_own[class] = true end
  for _, block in ipairs(types) do is_own[block:match("^%-%-%-@class " .. module .. "%.([%w_]+)\n") or ""] = true end
  local function qualified(text)
    return (text:gsub("[%w_.]+", function(name) return is_own[name] and module .. "." .. name end))
  end

  local variable = module:match("[%w_]+$")
  local lines = { "---@meta " .. module,
    "--- Written by generate.lua from the comments of driver/lua: do not edit.\n", "---@class " .. module }
  local fields = {}
  for name, value in pairs(values) do
    if type(value) ~= "function" then fields[#fields + 1] = "---@field " .. name .. " " .. type_of(value) end
  end
  table.sort(fields)
  for _, field in ipairs(fields) do lines[#lines + 1] = field end
  lines[#lines + 1] = "local " .. variable .. " = {}\n"
  for _, block in ipairs(types) do lines[#lines + 1] = block end
  for _, name in ipairs(order) do
    lines[#lines + 1] = "---@class " .. module .. "." .. name .. "\nlocal " .. name .. " = {}\n"
    for _, fn in ipairs(classes[name]) do lines[#lines + 1] = function_lines(fn, name .. ":", qualified) end
  end
  for _, fn in ipairs(own) do lines[#lines + 1] = function_lines(fn, variable .. ".", qualified) end
  lines[#lines + 1] = "return " .. variable
  return table.concat(lines, "\n") .. "\n"
end

--- Returns the stubs: content by the file's name.
---@return table<string, string>
function M.files()
  local files, sources = {}, M.sources()
  for _, source in ipairs(sources) do
    if source.module then
      local file = source.module:gsub("^lockstep%.", ""):gsub("%.", "_") .. ".lua"
      files[file] = files[file] or M.stub(source.module, sources, require(source.module))
    end
  end
  return files
end

return M
