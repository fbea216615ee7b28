--- Measures the cost of watching, in microseconds of CPU time and relative to a product of small matrices:

local core = require "lockstep.core"
local run = require "lockstep.run"
local torch = require "lockstep.torch"
local watching = require "lockstep.core.watching"

local CALLS, ROUNDS = 20000, 15
torch.set_num_threads(1)

--- Least microseconds of CPU time per call over the rounds.
local function time(call)
  local best = math.huge
  for _ = 1, ROUNDS do
    local start = os.clock()
    for _ = 1, CALLS do call() end
    best = math.min(best, os.clock() - start)
  end
  return 1e6 * best / CALLS
end

local function show(name, microseconds, of)
  print(("%-44s %8.3f  %6.2f"):format(name, microseconds, microseconds / of))
end

local m, n = torch.ones { 4, 4 }, torch.ones { 4, 4 }
local function matmul() return m:matmul(n) end
local function nothing() end

print(("%-44s %8s  %6s"):format("", "us", "ratio"))
time(matmul) -- once, to warm up
local plain = time(matmul)
show("4x4 matmul", plain, plain)
local counts, counted = lockstep.flops(time, matmul)
assert(counts.total == 2 * 4 * 4 * 4 * CALLS * ROUNDS and counts[1].calls == CALLS * ROUNDS)
show("4x4 matmul, FLOPs counted", counted, plain)
local report, tracked = lockstep.memory_by_line(time, matmul)
assert(report.peak_bytes > 0)
show("4x4 matmul, memory by line", tracked, plain)
CALLS, ROUNDS = 2000, 1
local path, traced = lockstep.profile({ path = "benchmark.json" }, time, matmul)
assert(io.open(path))
show("4x4 matmul, in a trace", traced, plain)
CALLS, ROUNDS = 20000, 15
show("4x4 matmul, after all that", time(matmul), plain)

show("lockstep.span(name, fn), no trace", time(function() lockstep.span("nothing", nothing) end), plain)
local events, object = watching.event_file(run.dir), {}
for i = 1, 10 do object["scalar_" .. i] = i end
show("10 numbers as JSON", time(function() core.json_encode(object) end), plain)
show("10 numbers into the event file", time(function() events:write(1, object) end), plain)
