--- The table of lockstep.profile { roofline = true }: what the operators cost, next to what this machine can do.

local plain = require "lockstep.plain"
local tables = require "lockstep.log.tables"

local M = {}

local SHOWN = 5 -- operators of the second table

---@class log.OperatorCost
---@field name string "aten::mm"
---@field group string "matrix products"
---@field calls number
---@field bytes number read and written
---@field flops number
---@field seconds number
---@field bound_s number the least time that the peaks allow; 0 where there is no peak

---@class log.CostReport
---@field seconds number of all that was measured
---@field device string
---@field bytes_per_s number the peak of a copy
---@field flops_per_s table<string, number> the peak of a product of matrices, by dtype
---@field operators log.OperatorCost[] the longest first

local function ms(seconds) return ("%.2f ms"):format(1000 * seconds) end

local function percent(part, whole) return whole > 0 and ("%.0f%%"):format(100 * part / whole) or "" end

--- A row of a cost: `steps` is what it is divided by, `total` the time of all.
local function row(name, cost, steps, total)
  return { name, ("%.4g"):format(cost.calls / steps), tables.rounded(cost.bytes / steps) .. "B",
    cost.flops > 0 and tables.rounded(cost.flops / steps) or "", ms(cost.seconds / steps), percent(cost.seconds, total),
    cost.bound_s > 0 and percent(cost.bound_s, cost.seconds) or "" }
end

local function head(title) return { title, "calls", "bytes", "FLOPs", "time", "share", "of peak" } end

--- Returns the sums of groups, the longest first, and the time that is no operator's.
local function by_group(report)
  local groups, by_name, elsewhere = {}, {}, report.seconds
  for _, op in ipairs(report.operators) do
    local group = by_name[op.group]
    if not group then
      group = { name = op.group, calls = 0, bytes = 0, flops = 0, seconds = 0, bound_s = 0 }
      by_name[op.group], groups[#groups + 1] = group, group
    end
    for _, field in ipairs { "calls", "bytes", "flops", "seconds", "bound_s" } do
      group[field] = group[field] + op[field]
    end
    elsewhere = elsewhere - op.seconds
  end
  table.sort(groups, function(a, b)
    if a.seconds ~= b.seconds then return a.seconds > b.seconds end
    return a.name < b.name
  end)
  return groups, math.max(0, elsewhere)
end

--- Returns the operators that lose the most time against their bounds.
local function furthest(report)
  local found = {}
  for _, op in ipairs(report.operators) do
    if op.bound_s > 0 and op.seconds > op.bound_s then found[#found + 1] = op end
  end
  table.sort(found, function(a, b)
    local lost_a, lost_b = a.seconds - a.bound_s, b.seconds - b.bound_s
    if lost_a ~= lost_b then return lost_a > lost_b end
    return a.name < b.name
  end)
  return found
end

local function peaks_of(report)
  local parts = { ("copy %sB/s"):format(tables.rounded(report.bytes_per_s)) }
  for _, dtype in ipairs(plain.keys(report.flops_per_s)) do
    parts[#parts + 1] = ("%s products %sFLOP/s"):format(dtype, tables.rounded(report.flops_per_s[dtype]))
  end
  return table.concat(parts, ", ")
end

--- Returns the tables as text: groups of operators, then the operators that lose the most time.
---@param report log.CostReport
---@param steps integer? the numbers are means over so many; nil: of one call
---@return string
function M.text(report, steps)
  local divisor, total = steps or 1, report.seconds
  local what = steps and ("a step of %s, the mean of %d"):format(ms(total / divisor), steps) or ms(total)
  local rows = { head "group" }
  local groups, elsewhere = by_group(report)
  for _, group in ipairs(groups) do rows[#rows + 1] = row(group.name, group, divisor, total) end
  rows[#rows + 1] = { "outside of operators", "", "", "", ms(elsewhere / divisor), percent(elsewhere, total), "" }
  local text = ("roofline of %s on %s\npeaks here: %s\n\n%s"):format(what, report.device, peaks_of(report),
    tables.columns(rows))
  local lost = furthest(report)
  if #lost == 0 then return text end
  rows = { head "most time to gain" }
  for i = 1, math.min(SHOWN, #lost) do rows[#rows + 1] = row(lost[i].name, lost[i], divisor, total) end
  return text .. "\n\n" .. tables.columns(rows)
end

return M
