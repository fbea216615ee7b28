-- Towers on the ranks of a pipeline: the time of a step of mimo.step with a tower on each rank of as many stages.
--
--     bazel-bin/driver/lockstep --nproc 4 benchmarks/mimo_waits_benchmark.lua --set stage_ms=40 --set tower_ms=24
--
-- Stages and towers wait, as a CPU does for its device: stage_ms and tower_ms in forward, twice that in backward.
-- "all towers first" is 1F1B of the stages after the towers' forward of all micro-batches, and before their backward.
-- No step is shorter than a rank's own work. Without a tower in any wait it would take that and the pipeline's bubble.

local ffi = require "ffi"
local dist, mimo = require "lockstep.distributed", require "lockstep.mimo"
local run, torch = require "lockstep.run", require "lockstep.torch"
local shared_list = require "lockstep.mimo.shared_list"

ffi.cdef [[typedef struct { long s, ns; } waits_time; int clock_gettime(int clock, waits_time *time);
  int usleep(unsigned us);]]
local function now()
  local time = ffi.new "waits_time"
  ffi.C.clock_gettime(1, time)
  return tonumber(time.s) + 1e-9 * tonumber(time.ns)
end

local config = run.config { stage_ms = 40, tower_ms = 24, micro_batches = 8, rounds = 5 }
local world, count = dist.world_size(), config.micro_batches
local topology = mimo.topology { modules = { { name = "vision", dp = world }, { name = "language", pp = world } } }
local w = torch.ones({ 8 }):requires_grad_(true)

local function layer(x, ms)
  ffi.C.usleep(1000 * ms)
  local y = x * w
  y:register_hook(function() ffi.C.usleep(2000 * ms) end)
  return y
end

local function step_of(order)
  local bridge = mimo.bridge { topology = topology, from = "vision", to = "language" }
  return mimo.step { topology = topology, bridges = { bridge }, micro_batches = count, order = order, modules = {
    vision = function(part) return layer(part.x, config.tower_ms) end,
    language = function(_, x)
      local y = layer(x, config.stage_ms)
      return dist.rank() == world - 1 and y:sum() or y
    end } }
end

--- Returns a step whose lists have the stages' operations between those of the towers.
local function towers_first()
  local make = shared_list.make
  function shared_list.make(...)
    local lists = make(...)
    for i, list in ipairs(lists) do
      local parts = { towers = {}, stage = {}, towers_backward = {} }
      for _, op in ipairs(list) do table.insert(parts[op.kind] or parts.stage, op) end
      lists[i] = {}
      for _, kind in ipairs { "towers", "stage", "towers_backward" } do
        for _, op in ipairs(parts[kind]) do table.insert(lists[i], op) end
      end
    end
    return lists
  end
  local step = step_of "1f1b"
  shared_list.make = make
  return step
end

local function seconds(step)
  local times = {}
  for i = 0, config.rounds do -- the first one connects
    dist.barrier()
    local started = now()
    step(function() return { x = torch.ones { world, 8 } } end)
    dist.barrier()
    if i > 0 then times[i] = now() - started end
  end
  table.sort(times)
  return times[math.ceil(#times / 2)]
end

local work = count * 3e-3 * (config.stage_ms + config.tower_ms)
local bubble = (world - 1) * 3e-3 * config.stage_ms
for _, case in ipairs { { "1f1b", step_of "1f1b" }, { "all towers first", towers_first() },
  { "all_forwards_first", step_of "all_forwards_first" } } do
  local time = seconds(case[2])
  if dist.rank() == 0 then
    print(("%-20s %4d ms; own work %d ms, with the bubble %d ms"):format(case[1], 1000 * time, 1000 * work,
      1000 * (work + bubble)))
  end
end
