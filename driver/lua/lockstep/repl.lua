--- The interactive session: `./run` without a script.

local M = {}

local function print_results(count, ...)
  for i = 1, count do print((select(i, ...))) end
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

--- Reads from stdin and runs until its end.
function M.run()
  for _, name in ipairs { "torch", "nn", "optim", "distributed" } do
    _G[name] = require("lockstep." .. name)
  end
  print("Lockstep: torch, nn, optim and distributed are loaded; Ctrl-D ends the session")
  local code = ""
  while true do
    io.stdout:write(code == "" and "> " or ">> ")
    io.stdout:flush()
    local line = io.read("*l")
    if not line then break end
    code = code == "" and line or code .. "\n" .. line
    local chunk, unfinished, message = M.compile(code)
    if chunk then
      local function finish(ok, ...)
        if ok then print_results(select("#", ...), ...) else print((...)) end
      end
      finish(xpcall(chunk, function(e) return debug.traceback(tostring(e), 2) end))
      code = ""
    elseif not unfinished then
      print(message)
      code = ""
    end
  end
  print()
end

return M
