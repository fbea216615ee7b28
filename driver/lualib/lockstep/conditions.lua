--- Tensors in conditions: `if x:gt(1):all() then` runs whatever x holds, since Lua takes every tensor for true.
---
--- Lua has no metamethod that would notice. So the text of a script is searched for conditions that end with a call
--- whose result is a tensor, and each brings a warning before the script runs.

local core = require "lockstep.core"
local dist = require "lockstep.distributed"

local M = {}

--- Methods that answer with a tensor of booleans.
local ANSWERS = {
  all = true, any = true, eq = true, ge = true, gt = true, isclose = true, isfinite = true, isinf = true,
  isnan = true, le = true, logical_and = true, logical_not = true, logical_or = true, lt = true, ne = true,
}

--- Returns the text with comments and strings blanked: lines and positions stay as they are.
local function code_of(text)
  text = text:gsub("\\[^\n]", "  ") -- escapes occur in strings alone
  local parts, at = {}, 1
  for _ = 1, #text do
    local first = text:find("[%-%[\"']", at)
    if not first then break end
    local equals = text:match("^%-%-%[(=*)%[", first) or text:match("^%[(=*)%[", first)
    local last
    if equals then
      last = select(2, text:find("]" .. equals .. "]", first, true)) or #text
    else
      last = select(2, text:find("^%-%-[^\n]*", first)) or select(2, text:find("^\"[^\"\n]*\"?", first))
        or select(2, text:find("^'[^'\n]*'?", first))
    end
    parts[#parts + 1] = text:sub(at, first - 1)
    parts[#parts + 1] = last and text:sub(first, last):gsub("[^\n]", " ") or text:sub(first, first)
    at = (last or first) + 1
  end
  return table.concat(parts) .. text:sub(at)
end

--- Whether an operand of a condition ends with a call of a method that returns a tensor, as in "not x:gt(1):all()".
local function is_tensor(operand)
  operand = operand:match("^%s*(.-)%s*$"):gsub("^not%f[^%w_]%s*", "")
  local inside = operand:match("^%((.*)%)$")
  if inside and operand:match("^%b()$") then return is_tensor(inside) end
  local name = operand:match(":%s*([%a_][%w_]*)%s*%b()$")
  return ANSWERS[name or ""] == true and not operand:find("[=<>]")
end

--- Returns the conditions of a script that hold a tensor where true or false is expected.
---@param text string
---@return {line: integer, code: string}[]
function M.find(text)
  local code, found = code_of(text), {}
  local function search(keyword, stop)
    for at, condition in code:gmatch("%f[%w_]" .. keyword .. "%f[^%w_]()(.-)%f[%w_]" .. stop .. "%f[^%w_]") do
      local split = condition:gsub("%f[%w_]and%f[^%w_]", "\0"):gsub("%f[%w_]or%f[^%w_]", "\0")
      for operand in split:gmatch("[^%z]+") do
        if is_tensor(operand) then
          local _, lines = code:sub(1, at):gsub("\n", "")
          found[#found + 1] = { line = lines + 1, code = (text:sub(at, at + #condition - 1):match("^%s*(.-)%s*$")) }
          break
        end
      end
    end
  end
  search("if", "then")
  search("elseif", "then")
  search("while", "do")
  table.sort(found, function(a, b) return a.line < b.line end)
  return found
end

--- Warns of each such condition in the script that is about to run.
function M.warn()
  if dist.rank() ~= 0 then return end
  local path = core.script()
  local file = io.open(path, "rb")
  if not file then return end
  local text = file:seek("end") and file:seek("set") and file:read("*a") -- a pipe is not read here
  file:close()
  if not text then return end
  for _, one in ipairs(M.find(text)) do
    io.stderr:write(("lockstep: warning: %s:%d: the condition \"%s\" is a tensor, which is always true in Lua; add "
      .. ":item()\n"):format(path, one.line, one.code))
  end
end

return M
