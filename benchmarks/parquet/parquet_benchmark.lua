--- Measures how long data.source takes to open a Parquet file, and for a sample of it. parquet_benchmark.py runs this.

local core = require "lockstep.core"
local data = require "lockstep.data"

local path = assert(os.getenv "LOCKSTEP_BENCHMARK_FILE")
local cache = os.tmpname()
os.remove(cache)

local function timed(name, units, fn)
  local start, processor_start = core.now(), os.clock()
  local result = fn()
  print(("%s %.4f"):format(name, 1e6 * (core.now() - start) / units))
  print(("%s, processor %.4f"):format(name, 1e6 * (os.clock() - processor_start) / units))
  return result
end

local source = timed("open", 1e6, function() return data.source(path, { cache = cache }) end)
timed("open again", 1e6, function() return data.source(path, { cache = cache }) end)
timed("in order", #source, function()
  for i = 1, #source do assert(source[i].id == i - 1) end
end)
local loader = data.loader { source = source, epochs = 1 }
timed("shuffled", #source, function()
  local count = 0
  for sample in loader do count = count + #sample.messages / 2 end
  assert(count == #source)
end)
os.execute("rm -r '" .. cache .. "'")
