--- The interactive session: `./run` without a script.

local completion = require "lockstep.help.completion"
local help = require "lockstep.help"
local reference = require "lockstep.help.reference"
local suggestion = require "lockstep.help.suggestion"
local terminal = require "lockstep.core.terminal"

local M = {}

--- A value as the session shows it: tables with what they hold, to two levels; functions of the library by how they
--- are called.
---@param value any
---@param depth integer?
---@return string
function M.show(value, depth)
  if type(value) == "string" and depth then return ("%q"):format(value) end
  if type(value) == "function" and help.name_of(value) then return (help.text(value):match("^[^\n]+")) end
  local metatable = type(value) == "table" and debug.getmetatable(value)
  if type(value) ~= "table" or (metatable and metatable.__tostring) then return tostring(value) end
  if type(rawget(value, "class_name")) == "string" then return "class " .. value.class_name end
  depth = depth or 0
  if depth == 2 then return "{...}" end
  local parts, MOST, count = {}, 20, 0 -- count: of elements before the first nil
  while rawget(value, count + 1) ~= nil do
    count = count + 1
    if #parts < MOST then parts[count] = M.show(rawget(value, count), depth + 1) end
  end
  local names = {}
  for key in pairs(value) do
    if not (type(key) == "number" and key >= 1 and key <= count and key % 1 == 0) then names[#names + 1] = key end
  end
  table.sort(names, function(a, b) return tostring(a) < tostring(b) end)
  for _, key in ipairs(names) do
    if #parts == MOST then break end
    local name = type(key) == "string" and key:find("^[%a_][%w_]*$") and key or "[" .. M.show(key, depth + 1) .. "]"
    parts[#parts + 1] = name .. " = " .. M.show(rawget(value, key), depth + 1)
  end
  local left = count + #names - #parts
  if left > 0 then parts[#parts + 1] = ("... %d more"):format(left) end
  return "{" .. table.concat(parts, ", ") .. "}"
end

local function print_results(count, ...)
  for i = 1, count do print(M.show((select(i, ...)))) end
end

local function pass(...) return ... end

--- Compiles typed code: as an expression whose value is shown, or as statements. Otherwise returns nil, whether the
--- code is only unfinished, and its error.
---@param code string
---@return function?, boolean?, string?
function M.compile(code)
  code = code .. "\n" -- as typed: it ends a string in quotes, which the next line cannot continue
  local is_expression, as_expression = loadstring("return " .. code, "=typed")
  if is_expression then
    -- As an argument: a call that is returned is a tail call, and an error in it would have lost its line. After a
    -- comment the argument list must end on a line of its own.
    local call = loadstring("return (...)(" .. code:sub(1, -2) .. ")", "=typed")
      or loadstring("return (...)(" .. code .. ")", "=typed")
    return call and function() return call(pass) end or is_expression
  end
  local chunk, as_statements = loadstring(code, "=typed")
  if chunk then return chunk end
  local unfinished = (as_expression .. as_statements):find("near '<eof>'", 1, true) ~= nil
  return nil, unfinished, as_statements
end

--- "? torch.matmul" is help("torch.matmul").
local function as_help(line)
  local name = line:match("^%s*%?%s*(.-)%s*$")
  return name and ("help(%s)"):format(name == "" and "" or ("%q"):format(name)) or line
end

--- Returns an error's message and its frames: those of typed code and of scripts that it calls, without the library's
--- and the session's own.
local function describe_error(value)
  local explained = suggestion.explain(value, 4)
  local lines = { tostring(explained) }
  for frame in debug.traceback("", 3):gmatch("\n(\t[^\n]+)") do
    if frame:find("^\tlockstep/repl%.lua:") then break end
    if not frame:find("^\t%[C%]") and not frame:find("^\tlockstep[/.]") then lines[#lines + 1] = frame end
  end
  if #lines == 2 then lines[2] = nil end -- the message has that line
  if #lines > 1 then table.insert(lines, 2, "stack traceback:") end
  return table.concat(lines, "\n")
end

--- Calls the function compiled from `code`: returns true and its results, or false and an error as the session shows
--- it.
---@param chunk function
---@param code string
---@param protected_call (fun(fn: function, handler: function): boolean, any ...)? default xpcall
---@return boolean ok, any ...
function M.evaluate(chunk, code, protected_call)
  suggestion.typed["=typed"] = code
  -- No tail calls: suggestions count levels, and the traceback ends at this function.
  return pass((protected_call or xpcall)(chunk, function(e) return pass(describe_error(e)) end))
end

--- Shown where somebody types exit or quit, with or without brackets.
local LEAVE = "Ctrl-D or os.exit() ends the session"
local leave = setmetatable({}, { __tostring = function() return LEAVE end, __call = function() return LEAVE end })

--- Reads from stdin and runs until its end.
function M.run()
  for _, module in ipairs(reference.modules()) do
    if not module.name:find(".", 1, true) then
      _G[module.name] = require(module.name == "lockstep" and "lockstep" or "lockstep." .. module.name)
    end
  end
  _G.help, _G.exit, _G.quit = help.help, leave, leave
  -- Ctrl-C would not reach a loop that is compiled.
  jit.off()
  jit.flush()
  print("Lockstep: torch, nn, optim and the other modules are loaded; help() lists them, Tab completes, Ctrl-C "
    .. "interrupts, Ctrl-D ends the session")
  local code = ""
  while true do
    local line, is_interrupted = terminal.read_line(code == "" and "> " or ">> ", function(word)
      return completion.complete(word, _G)
    end)
    if not line then break end
    if is_interrupted then code = "" end
    code = code == "" and as_help(line) or code .. "\n" .. line
    local chunk, unfinished, message = M.compile(code)
    if chunk then
      local function show_results(...) print_results(select("#", ...), ...) end
      local ok, described = M.evaluate(function() show_results(chunk()) end, code, terminal.interruptibly)
      if not ok then print(described) end
      code = ""
    elseif not unfinished then
      print(message)
      code = ""
    end
  end
  print()
end

return M
