--- Tables of measurements as text.

local M = {}

--- Returns rows as text, the first column aligned left and the others right.
---@param rows string[][]
---@return string
function M.columns(rows)
  local widths, lines = {}, {}
  for _, row in ipairs(rows) do
    for i, cell in ipairs(row) do widths[i] = math.max(widths[i] or 0, #cell) end
  end
  for r, row in ipairs(rows) do
    local cells = {}
    for i, cell in ipairs(row) do
      local room = (" "):rep(widths[i] - #cell)
      cells[i] = i == 1 and cell .. room or room .. cell
    end
    lines[r] = (table.concat(cells, "  "):gsub(" +$", ""))
  end
  return table.concat(lines, "\n")
end

local UNITS = { { 1e15, "P" }, { 1e12, "T" }, { 1e9, "G" }, { 1e6, "M" }, { 1e3, "k" } }

--- Returns a number in the largest unit that it reaches, and that unit: 1.5 and "G", 153 and "".
---@param value number
---@param reach number the part of a unit that reaches it: a little less than 1, for a number that rounds up to the unit
---@return number, string
function M.scaled(value, reach)
  for _, unit in ipairs(UNITS) do
    if math.abs(value) >= reach * unit[1] then return value / unit[1], unit[2] end
  end
  return value, ""
end

--- Formats a count in three digits and a unit: "1.50 G", "153 ".
---@param count number
---@return string
function M.rounded(count)
  local scaled, unit = M.scaled(count, 0.9995)
  return string.format(unit == "" and "%.0f %s" or "%.2f %s", scaled, unit)
end

return M
