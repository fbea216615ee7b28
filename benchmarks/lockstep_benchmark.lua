-- Measures the time that sharding.lockstep adds to a loop whose steps take 2 ms. The peer is a blocking all-reduce for
-- each batch: the flag that prime-rl's pull request 2636 reduces and reads back.
--
--     bazel-bin/driver/lockstep --nproc 2 benchmarks/lockstep_benchmark.lua [ROUNDS]
--
-- A step computes for 2 ms on this rank's core. The loops alternate; each figure is the median of rounds.

local dist = require "lockstep.distributed"
local run = require "lockstep.run"
local sharding = require "lockstep.sharding"
local torch = require "lockstep.torch"

local STEPS, STEP_S, ROUNDS = 250, 2e-3, tonumber(run.args[1] or 15)
local core = require "lockstep.core"

local a = torch.randn { 64, 64 }

-- Work of a fixed amount: a loop that watched the clock would hide what the other loops cost.
local function repeats_in(seconds)
  local fastest = math.huge
  for _ = 1, 20 do
    local started = core.now()
    for _ = 1, 100 do torch.mm(a, a) end
    fastest = math.min(fastest, (core.now() - started) / 100)
  end
  return math.max(1, math.ceil(seconds / fastest))
end

-- The same on all ranks.
local repeats = dist.broadcast(torch.tensor { repeats_in(STEP_S) }, 0):item()
local function step()
  for _ = 1, repeats do torch.mm(a, a) end
end

local function loader()
  local i = 0
  return function()
    i = i + 1
    if i <= STEPS then return i end
  end
end

local loops = {
  { "plain loop", function()
    for _ in loader() do step() end
  end },
  { "sharding.lockstep", function()
    for _ in sharding.lockstep(loader()) do step() end
  end },
  { "blocking all_reduce", function()
    local next_batch = loader()
    repeat
      local has_batch = next_batch() ~= nil
      local flag = dist.all_reduce(torch.tensor { has_batch and 1 or 0 }, "min"):item()
      if flag == 1 then step() end
    until flag == 0
  end },
}

local times = {}
for round = 0, ROUNDS do
  for i, loop in ipairs(loops) do
    dist.barrier()
    local started = core.now()
    loop[2]()
    dist.barrier()
    times[i] = times[i] or {}
    if round > 0 then times[i][round] = core.now() - started end  -- the first round warms up
  end
end

-- The time of one agreement without a step to hide it in.
local BARE = 2000
local function bare(name, body)
  local best = math.huge
  for _ = 1, 3 do
    dist.barrier()
    local started = core.now()
    body()
    best = math.min(best, core.now() - started)
  end
  if dist.rank() == 0 then print(("%-20s %.1f us alone"):format(name, 1e6 * best / BARE)) end
end
bare("sharding.lockstep", function()
  local left = BARE
  for _ in sharding.lockstep(function() left = left - 1; return left >= 0 and left or nil end) do end
end)
bare("blocking all_reduce", function()
  local flag = torch.tensor { 1 }
  for _ = 1, BARE do dist.all_reduce(flag, "min") end
end)

-- Ratios within a round cancel what the machine does meanwhile.
local function median(values)
  table.sort(values)
  return values[math.floor((#values + 1) / 2)]
end
for i, loop in ipairs(loops) do
  local seconds, ratios = {}, {}
  for round = 1, ROUNDS do
    seconds[round], ratios[round] = times[i][round], times[i][round] / times[1][round]
  end
  if dist.rank() == 0 then
    print(("%-20s %.3f ms a step, %.4f of the plain loop"):format(loop[1], 1e3 * median(seconds) / STEPS,
      median(ratios)))
  end
end
