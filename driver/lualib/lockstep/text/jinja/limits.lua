--- Where a rendering stands, its errors, and what it may use: a template that never ends, or that fills the memory, is
--- an error of its line. docs/chat.md states the limits.

local bit = require "bit"

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
--- The most memory of a rendering's values, in bytes. As much again may wait for Lua's collector.
M.MAX_BYTES = 2 ^ 28
--- The bytes reserved for the small values of an iteration of a loop, or of the call of a macro.
M.TURN_BYTES = 4096

-- Elements that are copied in about the time of a step.
local COPIED = 64
-- Bytes that are reserved between two looks at Lua's memory.
local BETWEEN_LOOKS = 2 ^ 20
-- Elements that `grow` counts at once, and the bytes of each.
local GROWTH, ELEMENT_BYTES = 4096, 64
-- Bytes of an element in Lua's array itself.
local SLOT_BYTES = 16

--- The line of the statement that runs, which errors name, and what the rendering has used so far: `reserved` bytes.
--- Lua's memory was `base` when it began, in which there is no garbage once `is_sure`; the next look is due at `look`
--- reserved bytes.
M.position = { line = 0, steps = 0, depth = 0, reserved = 0, look = math.huge, base = 0, is_sure = false }

local position = M.position

--- Raises an error of the template. render and compile add the template's name and line.
---@param message string
function M.fail(message) error({ template_error = message, line = position.line }, 0) end

--- Begins a rendering.
function M.begin()
  position.line, position.steps, position.depth = 0, 0, 0
  position.reserved, position.look, position.base = 0, BETWEEN_LOOKS, collectgarbage "count" * 1024
  position.is_sure = false
end

--- Throws where `bytes` more than Lua has now are too many.
local function look(bytes)
  -- Garbage from before the rendering must not count as memory that others hold.
  if not position.is_sure and position.reserved > M.MAX_BYTES / 2 then
    collectgarbage()
    position.base, position.is_sure = math.min(position.base, collectgarbage "count" * 1024), true
  end
  local limit = position.base + M.MAX_BYTES
  if collectgarbage "count" * 1024 + bytes > limit + M.MAX_BYTES then
    collectgarbage()
    if collectgarbage "count" * 1024 + bytes > limit then
      M.fail(("the template needs more than %d bytes of memory"):format(M.MAX_BYTES))
    end
  end
  position.look = position.reserved + BETWEEN_LOOKS
end

--- Says that a value of about so many bytes is to be made. Throws where the rendering has too many.
---@param bytes number
function M.reserve(bytes)
  local reserved = position.reserved + bytes
  position.reserved = reserved
  if reserved > position.look then look(bytes) end
end

--- Reserves the elements of an array that grows to an unknown size; it has `n` now. Lua doubles a full array.
---@param n integer
function M.grow(n)
  if n % GROWTH == 0 then M.reserve(bit.band(n, n - 1) == 0 and n * 2 * SLOT_BYTES or GROWTH * ELEMENT_BYTES) end
end

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

--- Reserves a text. Throws where it would be too large.
---@param size number bytes
function M.check_text(size)
  if size > M.MAX_TEXT then
    M.fail(("a text of %.0f bytes is too large; at most %d"):format(size, M.MAX_TEXT))
  end
  M.reserve(size)
end

--- Reserves a list of `n`, and counts the copies of its elements. Throws where that would be too large.
---@param n integer
function M.check_list(n)
  if n > M.MAX_LIST then M.fail(("a list of %.0f elements is too large; at most %d"):format(n, M.MAX_LIST)) end
  M.step(math.ceil(math.max(0, n) / COPIED))
  M.reserve(ELEMENT_BYTES * math.max(0, n))
end

--- Reserves an array of `n` elements that exist already, or are small.
---@param n integer
function M.reserve_array(n) M.reserve(ELEMENT_BYTES * (n + 1)) end

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
  M.check_text(size)
  return table.concat(parts, separator, 1, n)
end

-- Lua's own messages, where a limit of Lua is reached before one of ours.
local OF_LUA = {
  ["stack overflow"] = "the template is nested too deeply",
  ["string length overflow"] = "the template makes a text that is too large",
  ["table overflow"] = "the template makes a list that is too large",
  ["not enough memory"] = "the template needs more memory than there is",
}

--- Returns the template's error that stands for an error of Lua; any other value as it is.
---@param trouble any
---@return any
function M.of_lua(trouble)
  if type(trouble) ~= "string" then return trouble end
  local meaning = "this interpreter failed (" .. trouble .. ")"
  for message, limit in pairs(OF_LUA) do
    if trouble:find(message, 1, true) then meaning = ("%s (%s)"):format(limit, message) end
  end
  return { template_error = meaning, line = position.line }
end

return M
