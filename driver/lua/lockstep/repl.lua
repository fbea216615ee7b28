--- The interactive session: `./run` without a script.

local completion = require "lockstep.completion"
local help = require "lockstep.help"
local terminal = require "lockstep.core.terminal"

local M = {}

--- A value as the session shows it: tables with what they hold, to two levels.
---@param value any
---@param depth integer?
---@return string
function M.show(value, depth)
  if type(value) == "string" and depth then return ("%q"):format(value) end
  local metatable = type(value) == "table" and getmetatable(value)
  if type(value) ~= "table" or (metatable and metatable.__tostring) then return tostring(value) end
  if type(rawget(value, "class_name")) == "string" then return "class " .. value.class_name end
  depth = depth or 0
  if depth == 2 then return "{...}" end
  local parts, MOST = {}, 20
  for _, element in ipairs(value) do
    if #parts == MOST then break end
    parts[#parts + 1] = M.show(element, depth + 1)
  end
  local names = {}
  for key in pairs(value) do
    if not (type(key) == "number" and key >= 1 and key <= #value) then names[#names + 1] = key end
  end
  table.sort(names, function(a, b) return tostring(a) < tostring(b) end)
  for _, key in ipairs(names) do
    if #parts == MOST then break end
    local name = type(key) == "string" and key:find("^[%a_][%w_]*$") and key or "[" .. M.show(key, 1) .. "]"
    parts[#parts + 1] = name .. " = " .. M.show(value[key], depth + 1)
  end
  local left = #value + #names - #parts
  if left > 0 then parts[#parts + 1] = ("... %d more"):format(left) end
  return "{" .. table.concat(parts, ", ") .. "}"
end

local function print_results(count, ...)
  for i = 1, count do print(M.show((select(i, ...)))) end
end

--- Compiles what was typed: as an expression whose value is shown, or as statements. Otherwise returns
--- nil, whether it is only unfinished, and what is wrong with it.
---@param code string
---@return function?, boolean?, string?
function M.compile(code)
  code = code .. "\n" -- as typed: it ends a string in quotes, which the next line cannot continue
  local chunk, as_expression = loadstring("return " .. code, "=typed")
  if chunk then return chunk end
  local as_statements
  chunk, as_statements = loadstring(code, "=typed")
  if chunk then return chunk end
  local unfinished = (as_expression .. as_statements):find("near '<eof>'", 1, true) ~= nil
  return nil, unfinished, as_statements
end

--- "? torch.matmul" is help("torch.matmul").
local function as_help(line)
  local name = line:match("^%s*%?%s*(.-)%s*$")
  return name and ("help(%s)"):format(name == "" and "" or ("%q"):format(name)) or line
end

--- Reads from stdin and runs until its end.
function M.run()
  for _, name in ipairs { "torch", "nn", "optim", "distributed" } do
    _G[name] = require("lockstep." .. name)
  end
  _G.help = help.help
  -- Ctrl-C would not reach a loop that is compiled.
  jit.off()
  jit.flush()
  print("Lockstep: torch, nn, optim and distributed are loaded; help() lists what there is, Tab completes, "
    .. "Ctrl-C interrupts, Ctrl-D ends the session")
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
      local function finish(...) print_results(select("#", ...), ...) end
      local ok, trace = terminal.interruptibly(function() finish(chunk()) end, function(e)
        return debug.traceback(tostring(e), 2)
      end)
      if not ok then print(trace) end
      code = ""
    elseif not unfinished then
      print(message)
      code = ""
    end
  end
  print()
end

return M
