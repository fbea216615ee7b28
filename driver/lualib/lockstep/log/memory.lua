--- Measures the memory of tensors over time, for log.memory.

local plain = require "lockstep.plain"
local watching = require "lockstep.core.watching"

local M = {}

--- Points of a line, at most. A picture has as many columns.
local COLUMNS = 600

--- Returns a line with at most COLUMNS points: the most that was held in each of as many equal times.
---@param points number[][] {seconds, bytes} each, in order
---@return {step: number, value: number}[] # seconds and MiB
function M.line(points)
  local line, total = {}, points[#points] and points[#points][1] or 0
  local column
  for _, point in ipairs(points) do
    local here = total > 0 and math.floor(COLUMNS * point[1] / total) or 0
    local mib = point[2] / 2 ^ 20
    if here ~= column then
      line[#line + 1] = { step = point[1], value = mib }
      column = here
    else
      line[#line].value = math.max(line[#line].value, mib)
    end
  end
  return line
end

--- Calls the function of each part, and returns a line for each and the most that each held.
---@param device string
---@param parts {[1]: string, [2]: function}[]
---@return {name: string, points: {step: number, value: number}[]}[]
---@return table<string, integer> peaks bytes
function M.measure(device, parts)
  plain.check(type(parts) == "table" and #parts > 0, 'log.memory: the parts must be an array such as '
    .. '{ { "plain", train_step } }, not %s', type(parts) == "table" and "an empty table" or "a " .. type(parts))
  local index_of = {}
  for i, part in ipairs(parts) do
    plain.check(type(part) == "table" and type(part[1]) == "string" and plain.is_callable(part[2]),
      'log.memory: part %d must be a name and a function, as in { "plain", train_step }', i)
    local name = part[1]
    plain.check(not index_of[name], 'log.memory: parts %s and %d are both named "%s"; give each a name of its own',
      index_of[name], i, name)
    index_of[name] = i
  end
  local series, peaks = {}, {}
  for i, part in ipairs(parts) do
    collectgarbage() -- dead tensors of the part before
    local points, peak = watching.memory_over_time(device, part[2])
    series[i], peaks[part[1]] = { name = part[1], points = M.line(points) }, peak
  end
  return series, peaks
end

return M
