-- Draws the runs of mimo_curves.sh: lockstep docs/pictures/mimo_curves.lua RUNS PICTURES

local core = require "lockstep.core"
local data = require "lockstep.data"
local plot = require "lockstep.log.plot"
local run = require "lockstep.run"

local folder, pictures = run.args[1], run.args[2]

--- The losses of a run.
local function losses(name)
  local points = {}
  for line in data.lines(folder .. "/" .. name .. "/metrics.jsonl") do
    local object = core.json_decode(line)
    if object.loss then points[#points + 1] = { step = object.step, value = object.loss } end
  end
  assert(#points > 0, name .. " has no losses")
  return points
end

local alone = losses "alone"
local curves = { { name = "one rank", points = alone } }
local differences = {}
for vision = 1, 3 do
  local largest = {}
  for _, language in ipairs { 1, 2, 4 } do
    local points = losses(vision .. "-" .. language)
    if language == ({ 1, 2, 4 })[vision] then
      curves[#curves + 1] = { name = ("dp %d and %d"):format(vision, language), points = points }
    end
    for i, point in ipairs(points) do
      local off = math.abs(point.value / alone[i].value - 1)
      largest[i] = { step = point.step, value = math.max(off, largest[i] and largest[i].value or 1e-9) }
    end
  end
  differences[vision] = { name = ("vision dp %d"):format(vision), points = largest }
  local most = 0
  for _, point in ipairs(largest) do most = math.max(most, point.value) end
  print(("vision dp %d: losses differ by %.2g at most"):format(vision, most))
end
core.write_file(pictures .. "/mimo_curves.svg", { plot.svg(curves, { title = "loss" }, nil, "loss") })
core.write_file(pictures .. "/mimo_difference.svg",
  { plot.svg(differences, { title = "relative difference from one rank", log_scale = true }, nil,
    "relative difference") })
