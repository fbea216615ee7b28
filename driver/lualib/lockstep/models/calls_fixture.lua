--- Counts what a function asks of the dispatcher, and the values that Lua reads: what would wait for a GPU.

local plain = require "lockstep.plain"
local torch = require "lockstep.torch"
local watching = require "lockstep.core.watching"

local M = {}

local READS = { item = true, totable = true }

--- Returns the calls of operators in fn by name ("aten::copy_"). `item` and `totable` of Lua count by these names; fn
--- gets these so far.
---@param fn fun(calls: table<string, integer>)
---@return table<string, integer> # 0 for others
function M.of(fn)
  local calls = setmetatable({}, { __index = function() return 0 end })
  local methods = getmetatable(torch.zeros {})
  local index = methods.__index
  methods.__index = function(x, key)
    if READS[key] then calls[key] = calls[key] + 1 end
    return index(x, key)
  end
  local costs = plain.finally(function() methods.__index = index end, watching.costs_of, "cpu", fn, calls)
  for _, op in ipairs(costs:report().operators) do calls[op.name] = op.calls end
  return calls
end

--- Returns the sum of the calls of some operators.
---@param calls table<string, integer>
---@param names string[]
---@return integer
function M.sum(calls, names)
  local sum = 0
  for _, name in ipairs(names) do sum = sum + calls[name] end
  return sum
end

return M
