--- The terminal side of the log: lines, a progress bar, numbers as a person reads them.

local core = require "lockstep.core"
local plain = require "lockstep.plain"
local tables = require "lockstep.log.tables"

local M = {}

local bar_is_shown = false

local function erase_bar()
  if bar_is_shown then io.stdout:write("\r\27[K") end
  bar_is_shown = false
end

--- Draws how much of the run is done below the lines. Draws nothing where stdout is not a terminal.
---@param step integer
---@param total integer?
---@param text string
function M.draw_bar(step, total, text)
  local width = core.terminal_width()
  if not width or not total then return end
  local room = math.max(10, math.min(40, width - #text - 10))
  local filled = math.floor(room * (step + 1) / total)
  local bar = string.rep("█", filled) .. string.rep("░", room - filled)
  io.stdout:write(string.format("%s %3d%% %s", bar, math.floor(100 * (step + 1) / total), text))
  io.stdout:flush()
  bar_is_shown = true
end

--- Prints a line above the progress bar.
---@param line string
function M.print_line(line)
  erase_bar()
  io.stdout:write(line, "\n")
  io.stdout:flush()
end

--- Formats seconds as "1:02:03" or "2:03".
---@param seconds number
---@return string
function M.duration(seconds)
  seconds = math.max(0, math.floor(seconds + 0.5))
  local hours, minutes = math.floor(seconds / 3600), math.floor(seconds / 60) % 60
  if hours > 0 then return string.format("%d:%02d:%02d", hours, minutes, seconds % 60) end
  return string.format("%d:%02d", minutes, seconds % 60)
end

--- Formats a rate or a count in three digits: 9.2k, 153, 1.4M.
---@param value number
---@return string
function M.rounded(value)
  -- A value that rounds up to the next unit belongs to it: never "1000.0k".
  local scaled, unit = tables.scaled(value, 0.99995)
  return string.format(unit == "" and "%.0f%s" or "%.1f%s", scaled, unit)
end

--- Formats a number for a column of the step line.
---@param value number
---@return string
function M.short(value)
  local size = math.abs(value)
  if value ~= value or size == math.huge then return tostring(value) end
  if value % 1 == 0 and size < 1e4 then return string.format("%d", value) end
  if size >= 1e15 or size < 1e-2 then return string.format("%.2e", value) end
  if size >= 1e4 then return M.rounded(value) end
  if size >= 1e2 then return string.format("%.1f", value) end
  return string.format("%.4f", value)
end

--- Columns of the step line, in order; others follow by name.
local FIRST = { "loss", "grad_norm", "lr" }

--- Formats fields as "loss 0.5000  lr 1.00e-03".
---@param fields table<string, number>
---@return string
function M.columns(fields)
  local parts, used = {}, {}
  for _, name in ipairs(FIRST) do
    if fields[name] then parts[#parts + 1] = name .. " " .. M.short(fields[name]) end
    used[name] = true
  end
  local rest = plain.keys(fields, function(name) return not used[name] end)
  for _, name in ipairs(rest) do parts[#parts + 1] = name .. " " .. M.short(fields[name]) end
  return table.concat(parts, "  ")
end

return M
