--- Where a rendering stands, its errors, and what it may use: a template that never ends, or that fills the memory, is
--- an error of its line. docs/chat.md states the limits.

jit.off(true, true) -- compiling traces of a template takes longer than it saves

local M = {}

--- The most iterations of loops and calls of macros of one rendering.
M.MAX_STEPS = 10000000
--- The most macros that call each other. jinja2 itself ends before 250.
M.MAX_DEPTH = 256
--- The largest text that a template makes, in bytes.
M.MAX_TEXT = 2 ^ 26
--- The largest list that + and * make.
M.MAX_LIST = 1000000

-- Elements that are copied in about the time of a step.
local COPIED = 64

--- The line of the statement that runs, which errors name, and what the rendering has used so far.
M.position = { line = 0, steps = 0, depth = 0 }

local position = M.position

--- Raises an error of the template. render and compile add the template's name and line.
---@param message string
function M.fail(message) error({ template_error = message, line = position.line }, 0) end

--- Begins a rendering.
function M.begin() position.line, position.steps, position.depth = 0, 0, 0 end

--- Counts `n` steps.
---@param n integer
function M.step(n)
  local steps = position.steps + n
  position.steps = steps
  if steps > M.MAX_STEPS then
    M.fail(("the template takes more than %d steps (iterations of loops and calls of macros); it may never end"):format(
      M.MAX_STEPS))
  end
end

--- Raises the error of the call of a macro that is one too many.
---@param name string
function M.fail_macro(name)
  M.step(0)
  M.fail(("macros call each other more than %d deep, down to %s; it may call itself for ever"):format(M.MAX_DEPTH,
    name))
end

--- Throws where a text would be too large.
---@param size number bytes
function M.check_text(size)
  if size > M.MAX_TEXT then
    M.fail(("a text of %.0f bytes is too large; at most %d"):format(size, M.MAX_TEXT))
  end
end

--- Counts the copies of elements that make a list of `n`. Throws where that would be too large.
---@param n integer
function M.check_list(n)
  if n > M.MAX_LIST then M.fail(("a list of %.0f elements is too large; at most %d"):format(n, M.MAX_LIST)) end
  M.step(math.ceil(math.max(0, n) / COPIED))
end

--- Returns `text`, `times` times.
---@param text string
---@param times integer
---@return string
function M.repeated(text, times)
  M.check_text(#text * times)
  return text:rep(times)
end

--- Returns table.concat of parts 1 to n.
---@param parts string[]
---@param separator string
---@param n integer
---@return string
function M.concat(parts, separator, n)
  local size = #separator * n
  for i = 1, n do size = size + #parts[i] end
  if size > M.MAX_TEXT then M.check_text(size) end
  return table.concat(parts, separator, 1, n)
end

-- Lua's own messages, where a limit of Lua is reached before one of ours.
local OF_LUA = {
  ["stack overflow"] = "the template is nested too deeply",
  ["string length overflow"] = "the template makes a text that is too large",
  ["table overflow"] = "the template makes a list that is too large",
  ["not enough memory"] = "the template needs more memory than there is",
}

--- Returns the template's error that stands for an error of Lua about a limit of its own; any other error as it is.
---@param trouble any
---@return any
function M.of_lua(trouble)
  for message, meaning in pairs(OF_LUA) do
    if type(trouble) == "string" and trouble:find(message, 1, true) then
      return { template_error = ("%s (%s)"):format(meaning, message), line = position.line }
    end
  end
  return trouble
end

return M
