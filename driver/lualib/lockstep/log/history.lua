--- The values that plots need: each series in bounded memory, however many steps a run has.
---
--- A series is a list of buckets, at first of one point each. When it has MAX_BUCKETS, neighbours merge in pairs. A
--- bucket keeps its lowest and highest point and one that is not finite, so that no spike and no gap is lost.

local M = {}

local MAX_BUCKETS = 1024

---@class log.Point
---@field step integer
---@field value number

---@class log.Bucket
---@field low log.Point?
---@field high log.Point?
---@field gap log.Point? not finite
---@field count integer points that it stands for

---@class log.Series
---@field buckets log.Bucket[]
---@field width integer points that a full bucket stands for
local Series = {}
Series.__index = Series

---@return log.Series
function M.series() return setmetatable({ buckets = {}, width = 1 }, Series) end

local function merge(a, b)
  local low, high = a.low, a.high
  if b.low and (not low or b.low.value < low.value) then low = b.low end
  if b.high and (not high or b.high.value > high.value) then high = b.high end
  return { low = low, high = high, gap = a.gap or b.gap, count = a.count + b.count }
end

local function halve(self)
  local merged = {}
  for i = 1, #self.buckets, 2 do
    merged[#merged + 1] = self.buckets[i + 1] and merge(self.buckets[i], self.buckets[i + 1]) or self.buckets[i]
  end
  self.buckets, self.width = merged, 2 * self.width
end

---@param step integer
---@param value number
function Series:add(step, value)
  local point = { step = step, value = value }
  local is_finite = value - value == 0
  local bucket = is_finite and { low = point, high = point, count = 1 } or { gap = point, count = 1 }
  local last = self.buckets[#self.buckets]
  if last and last.count < self.width then
    self.buckets[#self.buckets] = merge(last, bucket)
    return
  end
  if #self.buckets == MAX_BUCKETS then halve(self) end
  self.buckets[#self.buckets + 1] = bucket
end

--- The points to draw, by step: all of them up to MAX_BUCKETS, then each bucket's extremes.
---@return log.Point[]
function Series:points()
  local points = {}
  for _, bucket in ipairs(self.buckets) do
    local own = { bucket.low, bucket.low ~= bucket.high and bucket.high or nil }
    own[#own + 1] = bucket.gap
    table.sort(own, function(a, b) return a.step < b.step end)
    for _, point in ipairs(own) do points[#points + 1] = point end
  end
  return points
end

return M
