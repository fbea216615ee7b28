--- Suggests a name for an error about something that is nil:
---
---     train.lua:7: attempt to call field 'Liner' (a nil value); did you mean "nn.Linear"?

local completion = require "lockstep.help.completion"
local core = require "lockstep.core"
local plain = require "lockstep.plain"
local torch = require "lockstep.torch"

local M = {}

--- The text of chunks that are not files, by their names: lines typed in a session.
---@type table<string, string>
M.typed = {}

--- The maximum number of lines from a function's name to the end of its call.
local LINES_OF_A_CALL = 20

local function lines_of(source)
  local lines = {}
  if M.typed[source] then
    for line in (M.typed[source] .. "\n"):gmatch("(.-)\n") do lines[#lines + 1] = line end
  elseif source:sub(1, 1) == "@" then
    local file = io.open(source:sub(2))
    if not file then return lines end
    for line in file:lines() do lines[#lines + 1] = line end
    file:close()
  end
  return lines
end

--- The code of a line: without comments, and with nothing in its strings.
local function code_of(line)
  return (line:gsub("\\.", ""):gsub("(['\"])(.-)%1", "''"):gsub("%-%-.*$", ""))
end

--- The chains of names before ".name" or ":name" in the last line that has one, and which of the two it was:
--- {{"nn", "."}, ...}. None where one of them is no chain of names alone, as f().name or t[1].name: it might be that.
local function receivers_of(name, info)
  local lines, number = lines_of(info.source), info.currentline
  local found, written = {}, "([.:])" .. name .. "%f[^%w_]"
  local function code() return code_of(lines[number] or "") end
  while not code():find(written) and number > info.currentline - LINES_OF_A_CALL do number = number - 1 end
  local line = code()
  for at, separator in line:gmatch("()" .. written) do
    local before, chain = line:sub(1, at - 1):match("^(.-)([%a_][%w_.]*)$")
    if not chain or before:find("[.:)%]]$") then return {} end
    found[#found + 1] = { chain, separator }
  end
  return found
end

--- Returns the meaning of names in a function where it stopped: its variables, those around it, the globals.
local function environment_of(level, info)
  local names = setmetatable({}, { __index = getfenv(info.func) })
  for i = 1, info.nups do
    local name, value = debug.getupvalue(info.func, i)
    names[name] = value
  end
  local i, name, value = 1, debug.getlocal(level + 1, 1)
  while name do
    names[name] = value
    i = i + 1
    name, value = debug.getlocal(level + 1, i)
  end
  return names
end

--- Returns the value of a chain of names, such as nn.functional, or nil.
local function value_of(chain, environment)
  local first, rest = chain:match("^([^.]+)%.?(.*)$")
  local value = environment[first]
  if rest ~= "" then value = completion.value_of(rest, value) end
  return value
end

--- Returns the names that do not begin with _, in order.
local function public_names(names)
  return plain.keys(names, function(name) return name:sub(1, 1) ~= "_" end)
end

local function nearest(name, names)
  if #name >= 3 then return core.nearest(name, public_names(names)) end -- a shorter one is near to every name
end

--- The name that was probably meant, "nn.Linear", or nil.
local function meant(kind, name, level)
  local info = debug.getinfo(level + 1, "Slfu")
  if kind == "global" then return nearest(name, completion.names_of(getfenv(info.func), ".")) end
  local environment = environment_of(level + 1, info)
  for _, receiver in ipairs(receivers_of(name, info)) do
    local chain, separator = unpack(receiver)
    local names = completion.names_of(value_of(chain, environment), separator)
    -- Another object's, on the same line, that has it.
    if not names[name] then
      local near = nearest(name, names)
      if near then return chain .. separator .. near end
    end
  end
end

--- Returns what the object in front of a missing method says about it, or nil. Metatables may have a function
--- __missing(object, name) for that: it returns a remark, or nil.
local function remark_of_object(name, level)
  local info = debug.getinfo(level + 1, "Slfu")
  local environment = environment_of(level + 1, info)
  for _, receiver in ipairs(receivers_of(name, info)) do
    local value = value_of(receiver[1], environment)
    local meta = type(value) == "table" and getmetatable(value)
    local remarked = type(meta) == "table" and rawget(meta, "__missing") and meta.__missing(value, name, receiver[1])
    if remarked then return remarked end
  end
end

--- Returns all names of the module of the library that has no field `name`, as nn has no LocalAttention; or nil.
local function listed(name, level)
  local info = debug.getinfo(level + 1, "Slfu")
  local environment = environment_of(level + 1, info)
  for _, receiver in ipairs(receivers_of(name, info)) do
    local value = environment[receiver[1]]
    if type(value) == "table" and rawget(package.loaded, "lockstep." .. receiver[1]) == value then
      return receiver[1] .. " has " .. table.concat(public_names(completion.names_of(value, ".")), ", ")
    end
  end
end

--- The number of frames that are searched for a call with a dot, those of the error's handler included.
local FRAMES_OF_A_DOT = 16

local function is_librarys(info) return info.source:find("^@lockstep[/.]") ~= nil end

--- Returns whether `value` is what a method takes for self where it was called with a dot.
local function is_no_self(info, name, value)
  if info.what == "C" or name ~= "self" or info.namewhat == "method" then return false end
  -- Objects of scripts may be plain tables; those of the library have a metatable.
  if type(value) == "table" then
    return is_librarys(info) and getmetatable(value) == nil and info.namewhat == "field"
  end
  return true
end

--- Returns a remark where a method was called with a dot, or nil: m.forward(x) takes x for the module. For a method of
--- the library, also returns the place of the call in the script.
---@return string?
---@return string? place "train.lua:3"
local function called_with_dot()
  local found, is_found_in_library
  for frame = 2, FRAMES_OF_A_DOT do
    local info = debug.getinfo(frame, "Snl")
    if not info then break end
    local is_in_library = is_librarys(info)
    if found and info.what ~= "C" and not is_in_library then
      return found, is_found_in_library and ("%s:%d"):format(info.short_src, info.currentline) or nil
    end
    local name, value = debug.getlocal(frame, 1)
    -- The outermost one of the library: a method may hand its self on to functions.
    if is_no_self(info, name, value) then
      -- The frame of a tail call has another function's name.
      local called = info.namewhat == "field" and info.name
      local is = torch.is_tensor(value) and "a tensor" or type(value) == "nil" and "nil" or "a " .. type(value)
      found = ("%s was called with a dot, so that its self is %s: use a colon, as in object:%s(...)"):format(
        called and ('"%s"'):format(called) or "a method", is, called or "method")
      is_found_in_library = is_in_library
    end
  end
  return found
end

--- Returns a remark where a tensor's method in C++ was called with a dot, or nil: x.backward() takes nothing for x.
local function tensor_called_with_dot(message, level)
  local name = message:match "([%a_][%w_]*): x must be a tensor, not "
    or message:find('"self" ', 1, true) and message:match "torch%.([%a_][%w_]*) cannot be called with"
  local info = name and debug.getinfo(level, "Slfu")
  while info and info.what == "C" do
    level = level + 1
    info = debug.getinfo(level, "Slfu")
  end
  if not info then return end
  local environment = environment_of(level, info)
  for _, receiver in ipairs(receivers_of(name, info)) do
    local chain, separator = unpack(receiver)
    if separator == "." and torch.is_tensor(value_of(chain, environment)) then
      return ('"%s" was called with a dot: use a colon, as in %s:%s(...)'):format(name, chain, name)
    end
  end
end

--- The place at the start of a message that Lua itself raised in the library.
local OF_LIBRARY = "^lockstep[/%w_]*%.lua:%d+: "

--- Returns a remark on an error that is not about a misspelled name, or nil; and the place to blame in place of the
--- message's, or nil.
local function remark(message, level)
  if message:find("attempt to compare .*userdata") then
    return "tensors are compared element by element: x:gt(1), x:ge(1), x:lt(1), x:le(1), torch.eq(x, 1)"
  end
  if message:find("attempt to concatenate .*userdata") then
    return "a tensor is joined to a string as its number, x:item(), or as text, tostring(x)"
  end
  if message:find("')' expected near '='", 1, true) then
    return "named arguments are a table in braces: x:sum({ dim = 1 }), not x:sum(dim = 1)"
  end
  if message:find("'self'", 1, true) or message:find("a tensor has no field", 1, true) or message:find(OF_LIBRARY) then
    local remarked, place = called_with_dot() -- no tail call: levels are counted
    if remarked then return remarked, place end
  end
  local remarked = tensor_called_with_dot(message, level + 1) -- no tail call: levels are counted
  return remarked
end

--- Returns `message` with a remark on the mistake behind it. Where a name is nil, the remark is the name that was
--- probably meant, what the object says (see __missing), or all names of the library's module. Where self is no object,
--- a tensor is compared with a number or joined to a string, or an argument has a name, it says what to write. `level`
--- counts as for debug.getinfo, to the function that the error stopped: 3 where the caller is the error's handler.
---@param message any an error's value
---@param level integer
---@return any message
function M.explain(message, level)
  if type(message) ~= "string" then return message end
  local remarked, place = remark(message, level + 1)
  if place then message = message:gsub(OF_LIBRARY, place:gsub("%%", "%%%%") .. ": ") end
  if remarked then return message .. (message:find("\n", 1, true) and "\n  " or "; ") .. remarked end
  local kind, name = message:match("attempt to %a+ (%a+) '([%a_][%w_]*)' %(a nil value%)$")
  if kind ~= "field" and kind ~= "method" and kind ~= "global" then return message end
  local of_object = kind ~= "global" and remark_of_object(name, level)
  if of_object then return ("%s; %s"):format(message, of_object) end
  local name_meant = meant(kind, name, level)
  if name_meant then return ('%s; did you mean "%s"?'):format(message, name_meant) end
  local all = kind == "field" and listed(name, level)
  return all and ("%s; %s"):format(message, all) or message
end

return M
