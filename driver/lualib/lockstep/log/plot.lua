--- Line plots as SVG text.

local core = require "lockstep.core"
local options = require "lockstep.options"
local svg = require "lockstep.log.svg"

local M = {}

local WIDTH, HEIGHT = 720, 400
local LEFT, RIGHT, TOP, BOTTOM = 64, 24, 40, 48
local COLORS = { "#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#17becf" }

local LARGEST = 1e307 -- a span of more could be infinite

local function finite(value) return value == value and math.abs(value) ~= math.huge end

--- Returns round steps, 1, 2 or 5 times a power of ten; about `count` of them cover the span.
local function ticks(low, high, count)
  local raw = (high - low) / count
  local magnitude = 10 ^ math.floor(math.log10(raw))
  local step = magnitude * 10
  for _, m in ipairs { 1, 2, 5 } do
    if m * magnitude >= raw then
      step = m * magnitude
      break
    end
  end
  local result = {}
  for i = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) do result[#result + 1] = i * step end
  return result
end

-- The first tick may be -0, which would be printed so.
local function number(x) return string.format("%.4g", x == 0 and 0 or x) end

--- Returns what the y axis shows: the last parts of the names, "loss" for "loss" and "validation.loss".
local function quantities(series)
  local names, seen = {}, {}
  for _, s in ipairs(series) do
    local name = s.name:match "[^.]*$"
    if not seen[name] then names[#names + 1] = name end
    seen[name] = true
  end
  return table.concat(names, ", ")
end

local function bounds(series, of)
  local low, high = math.huge, -math.huge
  for _, s in ipairs(series) do
    for _, p in ipairs(s.points) do
      local v = of(p)
      if finite(v) then low, high = math.min(low, v), math.max(high, v) end
    end
  end
  if low > high then return 0, 1 end
  low, high = math.max(low, -LARGEST), math.min(high, LARGEST)
  local least = math.max(math.abs(low), math.abs(high)) * 1e-9 -- a step of ticks must change a number
  if high - low <= least then
    local half = math.max(0.5, least)
    return low - half, high + half
  end
  return low, high
end

local function check_series(series)
  local function check(holds, what)
    local example = '{{name = "loss", points = {{step = 0, value = 2.3}}}}'
    if not holds then core.raise("plot.svg: " .. what .. ", as in " .. example) end
  end
  check(type(series) == "table", "the series must be an array")
  for i, s in ipairs(series) do
    check(type(s) == "table" and type(s.name) == "string" and type(s.points) == "table",
      string.format("series %d must have a name and points", i))
    for j, p in ipairs(s.points) do
      check(type(p) == "table" and type(p.step) == "number" and type(p.value) == "number",
        string.format("point %d of series %d must have a step and a value, both numbers", j, i))
    end
  end
end

--- A plot of `series` over steps. Points that are not finite break their line. `x_name` and `y_name`: what lies on the
--- axes, if it is not steps, and not what the series' names say.
---@param series {name: string, points: {step: number, value: number}[]}[]
---@param given {title: string?, log_scale: boolean?}?
---@param x_name string?
---@param y_name string?
---@return string
function M.svg(series, given, x_name, y_name)
  check_series(series)
  for _, name in ipairs { x_name or false, y_name or false } do
    if name and type(name) ~= "string" then
      core.raise("plot.svg: the name of an axis must be a string, not a " .. type(name))
    end
  end
  local o = options.read("log.curve", given, { title = "", log_scale = false })
  local function y_of(p) return o.log_scale and math.log10(p.value) or p.value end
  local x_low, x_high = bounds(series, function(p) return p.step end)
  local y_low, y_high = bounds(series, y_of)
  local function px(x) return LEFT + (x - x_low) / (x_high - x_low) * (WIDTH - LEFT - RIGHT) end
  local function py(y) return HEIGHT - BOTTOM - (y - y_low) / (y_high - y_low) * (HEIGHT - TOP - BOTTOM) end

  local add, finish = svg.begin(WIDTH, HEIGHT)
  add('<text x="%d" y="22" font-size="15">%s</text>', LEFT, svg.escape(o.title))
  for _, y in ipairs(ticks(y_low, y_high, 5)) do
    add('<line x1="%d" y1="%.1f" x2="%d" y2="%.1f" stroke="#e5e5e5"/>', LEFT, py(y), WIDTH - RIGHT, py(y))
    add('<text x="%d" y="%.1f" text-anchor="end">%s</text>', LEFT - 8, py(y) + 4,
      number(o.log_scale and 10 ^ y or y))
  end
  for _, x in ipairs(ticks(x_low, x_high, 8)) do
    add('<text x="%.1f" y="%d" text-anchor="middle">%s</text>', px(x), HEIGHT - BOTTOM + 18, number(x))
  end
  add('<text x="%d" y="%d" text-anchor="middle">%s</text>', (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10,
    svg.escape(x_name or "step"))
  add('<text transform="translate(16,%d) rotate(-90)" text-anchor="middle">%s%s</text>', (TOP + HEIGHT - BOTTOM) / 2,
    svg.escape(y_name or quantities(series)), o.log_scale and " (log scale)" or "")
  for i, s in ipairs(series) do
    local color = COLORS[(i - 1) % #COLORS + 1]
    local line = {}
    local function flush()
      if #line == 1 then
        -- A line through one point shows nothing.
        local x, y = line[1]:match("(.+),(.+)")
        add('<circle cx="%s" cy="%s" r="2.5" fill="%s"/>', x, y, color)
      elseif #line > 1 then
        add('<polyline fill="none" stroke="%s" stroke-width="1.5" points="%s"/>', color, table.concat(line, " "))
      end
      line = {}
    end
    for _, p in ipairs(s.points) do
      if finite(y_of(p)) then
        line[#line + 1] = string.format("%.1f,%.1f", px(p.step), py(y_of(p)))
      else
        flush()
      end
    end
    flush()
    -- Many names get a line of their own below the title.
    add('<text x="%d" y="%d" text-anchor="end" fill="%s">%s</text>', WIDTH - RIGHT - 130 * (#series - i),
      #series > 3 and 36 or 22, color, svg.escape(s.name))
  end
  return finish()
end

return M
