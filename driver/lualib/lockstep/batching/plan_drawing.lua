--- Draws a plan for batching.draw: as text, and as SVG.

local core = require "lockstep.core"
local svg = require "lockstep.log.svg"

local M = {}

--- Returns the sum over micro-steps of the most expensive rank's cost, and the cost of each micro-step.
local function levels_of(batches)
  local levels, makespan = {}, 0
  for _, list in ipairs(batches) do
    for step, batch in ipairs(list) do
      if type(batch.cost) ~= "number" then core.raise("batching.draw: a micro-batch has no cost") end
      levels[step] = math.max(levels[step] or 0, batch.cost)
    end
  end
  for _, level in ipairs(levels) do makespan = makespan + level end
  return levels, makespan
end

-- Text ----------------------------------------------------------------------------------------------

local function letter_of(batch)
  local letter = batch.kind:sub(1, 1)
  return batch.padding and letter:lower() or letter:upper()
end

local function text(batches, levels, makespan, width)
  local label = #("rank " .. #batches - 1) + 1
  local room = math.max(#levels, width - label - #levels - 1)
  local lines = {}
  for index, list in ipairs(batches) do
    local parts = { ("rank %d "):format(index - 1), (" "):rep(label - #("rank %d "):format(index - 1)), "|" }
    for step, batch in ipairs(list) do
      local cells = math.max(1, math.floor(room * levels[step] / makespan + 0.5))
      local filled = levels[step] > 0 and math.max(1, math.floor(cells * batch.cost / levels[step] + 0.5)) or cells
      parts[#parts + 1] = letter_of(batch):rep(filled) .. ("."):rep(cells - filled) .. "|"
    end
    lines[index] = table.concat(parts)
  end
  return table.concat(lines, "\n")
end

-- SVG -----------------------------------------------------------------------------------------------

local COLORS = { "#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377" }
local ROW, LABEL, WIDTH = 26, 60, 900

local function picture(batches, levels, makespan)
  local kinds, color_of = {}, {}
  for _, batch in ipairs(batches[1]) do
    if not color_of[batch.kind] then
      kinds[#kinds + 1] = batch.kind
      color_of[batch.kind] = COLORS[(#kinds - 1) % #COLORS + 1]
    end
  end
  local scale = makespan > 0 and (WIDTH - LABEL - 10) / makespan or 0
  local add, finish = svg.begin(WIDTH, (#batches + 1) * ROW + 10)
  for index, list in ipairs(batches) do
    local y = (index - 1) * ROW + 5
    add('<text x="5" y="%d">rank %d</text>', y + 16, index - 1)
    local x = LABEL
    for step, batch in ipairs(list) do
      add('<rect x="%.1f" y="%d" width="%.1f" height="%d" fill="#eeeeee"/>', x, y, levels[step] * scale, ROW - 4)
      add('<rect x="%.1f" y="%d" width="%.1f" height="%d" fill="%s"%s><title>%s%s, cost %g</title></rect>', x, y,
        batch.cost * scale, ROW - 4, color_of[batch.kind] or COLORS[1], batch.padding and ' opacity="0.35"' or "",
        svg.escape(batch.kind), batch.padding and " padding" or "", batch.cost)
      x = x + levels[step] * scale
      add('<line x1="%.1f" y1="0" x2="%.1f" y2="%d" stroke="white" stroke-width="2"/>', x, x, #batches * ROW + 5)
    end
  end
  local x = LABEL
  for _, kind in ipairs(kinds) do
    add('<rect x="%d" y="%d" width="12" height="12" fill="%s"/>', x, #batches * ROW + 14, color_of[kind])
    add('<text x="%d" y="%d">%s</text>', x + 17, #batches * ROW + 25, svg.escape(kind))
    x = x + 40 + 8 * #kind
  end
  add('<text x="%d" y="%d">a column: a micro-step, as wide as its cost; pale: padding; grey: waiting for the most '
    .. 'expensive rank</text>', x, #batches * ROW + 25)
  return finish()
end

--- See batching.draw.
---@param batches batching.MicroBatch[][]
---@param width integer
---@param svg_path string?
---@return string
function M.draw(batches, width, svg_path)
  local levels, makespan = levels_of(batches)
  for _, list in ipairs(batches) do
    if #list ~= #levels then
      core.raise("batching.draw: the ranks' lists differ in length; prepare without `rank` to have those of all ranks")
    end
  end
  if svg_path then core.write_file(svg_path, { picture(batches, levels, makespan) }) end
  return text(batches, levels, makespan, width)
end

return M
