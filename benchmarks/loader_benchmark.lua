--- Measures the microseconds that data.loader takes for a sample. loader_benchmark.py runs this.

local core = require "lockstep.core"
local data = require "lockstep.data"
local torch = require "lockstep.torch"

torch.set_num_threads(1)
local path = assert(os.getenv "LOCKSTEP_BENCHMARK_FILE")
local source = data.source(path, { cache = path .. "-cache" })

local function measure(name, workers, map)
  local loader = data.loader {
    source = source, epochs = 1, workers = workers, prefetch = 64, map = map,
    options = "driver/text/testdata/qwen2.json",
  }
  local start, processor_start, count = core.now(), os.clock(), 0
  for _ in loader do count = count + 1 end
  assert(count == #source)
  print(("%s, %d workers %.4f"):format(name, workers, 1e6 * (core.now() - start) / count))
  print(("%s, %d workers, processor %.4f"):format(name, workers, 1e6 * (os.clock() - processor_start) / count))
end

for workers = 0, 2, 2 do measure("read", workers) end
for workers = 0, 2, 2 do measure("read and tokenise", workers, "loader_benchmark_map") end
