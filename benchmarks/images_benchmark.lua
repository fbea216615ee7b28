-- The Lua half of images_benchmark.py: milliseconds of CPU time to read and process each picture of a folder.

local images = require "lockstep.images"

local folder = os.getenv "LOCKSTEP_BENCHMARK_IMAGES"
local process = images.processor(folder)

local function least(call)
  local best = math.huge
  for _ = 1, 20 do
    local start = os.clock()
    call()
    best = math.min(best, os.clock() - start)
  end
  return 1e3 * best
end

for path in io.popen("ls " .. folder .. "/*.jpg " .. folder .. "/*.png " .. folder .. "/*.webp"):lines() do
  local name = path:match("[^/]+$")
  print(name .. ", read " .. least(function() images.read(path) end))
  print(name .. ", read and process " .. least(function() process(images.read(path)) end))
end
