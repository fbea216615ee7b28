--- Measures the cost of a script's collective, in microseconds, and the share of comparing the ranks' calls first:

local dist = require "lockstep.distributed"
local sharding = require "lockstep.sharding"
local torch = require "lockstep.torch"
local core_sharding = require "lockstep.core.sharding"
local ffi = require "ffi"

ffi.cdef [[
  struct benchmark_time { long seconds, nanoseconds; };
  int clock_gettime(int clock, struct benchmark_time* time);
]]
local now = ffi.new "struct benchmark_time"
local function microseconds()
  ffi.C.clock_gettime(1, now) -- CLOCK_MONOTONIC
  return 1e6 * tonumber(now.seconds) + 1e-3 * tonumber(now.nanoseconds)
end

local ROUNDS = 9
torch.set_num_threads(1)

--- The median over the rounds of microseconds per call.
local function time(calls, call)
  local rounds = {}
  for round = 1, ROUNDS do
    local start = microseconds()
    for _ = 1, calls do call() end
    rounds[round] = (microseconds() - start) / calls
  end
  table.sort(rounds)
  return rounds[(ROUNDS + 1) / 2]
end

-- The size of the messages that a comparison gathers: sharding/agreement/call_order.cc.
local gathering = core_sharding.gathering "benchmark"
local message = ("x"):rep(256)
local comparison = time(2000, function() gathering:gather_flags(message) end)

local lines = { { "comparison alone", comparison } }
for _, elements in ipairs { 1, 1000, 1000000 } do
  local x = torch.zeros { elements }
  lines[#lines + 1] = { "all_reduce of " .. elements, time(math.max(20, 1000000 / (elements + 1000)), function()
    dist.all_reduce(x)
  end) }
  assert(x:sum():item() == 0)
end
lines[#lines + 1] = { "weighted_mean", time(1000, function() assert(sharding.weighted_mean(4, 2) == 2) end) }

if dist.rank() == 0 then
  print(("%-24s %10s  %s"):format("", "us", "with / without comparison"))
  for _, line in ipairs(lines) do
    local ratio = line[2] > comparison and ("%.2f"):format(line[2] / (line[2] - comparison)) or ""
    print(("%-24s %10.1f  %s"):format(line[1], line[2], ratio))
  end
end
