-- The cost of saves of a large state in a loop of training: none, run:state { every }, and with async, in turns.
--
--     bazel-bin/driver/lockstep --nproc 2 --run-dir /tmp/saves benchmarks/save_benchmark.lua --set gib=1 --set every=20
--
-- A step is `step_ms` of work, of which `busy` is computed and the rest is waited for, as for a GPU. Prints, of each
-- way to save, the seconds of its loop, its cost in % of the loop without saves, its longest step, and the processor
-- seconds of rank 0 in it.

local core = require "lockstep.core"
local dist = require "lockstep.distributed"
local nn = require "lockstep.nn"
local run = require "lockstep.run"
local sharding = require "lockstep.sharding"
local torch = require "lockstep.torch"

local ffi = require "ffi"
ffi.cdef "int usleep(unsigned);"

local config = run.config { gib = 0.25, every = 20, steps = 60, step_ms = 100, busy = 0.5, turns = 3 }

local Big = nn.Module:subclass("Big")
function Big:init(num_tensors, elements)
  self.parts = nn.ModuleList {}
  for _ = 1, num_tensors do self.parts:append(nn.Linear(elements / 1024, 1024, { bias = false })) end
end

local num_tensors = math.max(1, math.floor(config.gib * 2 ^ 30 / 4 / 2 ^ 22 + 0.5)) -- 16 MiB each
local model = sharding.data_parallel(Big(num_tensors, 2 ^ 22))
local a = torch.randn({ 192, 192 })
local weight = model:parameters()[1]

local function step_of_work()
  local started = core.now()
  while core.now() - started < config.step_ms / 1000 * config.busy do a:matmul(a) end
  local left = config.step_ms / 1000 - (core.now() - started)
  if left > 0 then ffi.C.usleep(math.floor(left * 1e6)) end
  torch.no_grad(function() weight:mul_(0.999) end)
end

local base, num_loops = run.dir, 0

--- Returns the seconds of a loop, until its last step is done, those of its longest step, and processor seconds.
local function loop(opts)
  num_loops = num_loops + 1
  run.dir = ("%s/%d"):format(base, num_loops)
  core.make_folder(run.dir)
  dist.barrier()
  run:state({ model = model }, opts)
  local started, longest, last, seconds, processor = core.now(), 0, core.now(), 0, os.clock()
  for _ in run:steps(function() return true end, config.steps) do
    step_of_work()
    dist.barrier()
    longest, last = math.max(longest, core.now() - last), core.now()
    seconds = last - started -- without the save at the end of a run, which is waited for
  end
  processor = os.clock() - processor
  dist.barrier()
  if dist.rank() == 0 then os.execute(("rm -rf '%s'"):format(run.dir)) end
  return seconds, longest, processor
end

local WAYS = { { "no save", {} }, { "save", { every = config.every, keep = 1 } },
  { "async", { every = config.every, keep = 1, async = true } } }
local times = {}
loop(WAYS[3][2]) -- the first touch of all memory
for _ = 1, config.turns do
  for _, way in ipairs(WAYS) do
    local seconds, longest, processor = loop(way[2])
    times[way[1]] = times[way[1]] or {}
    table.insert(times[way[1]], { seconds, longest, processor })
  end
end
if dist.rank() == 0 then
  for _, way in ipairs(WAYS) do
    local name = way[1]
    table.sort(times[name], function(x, y) return x[1] < y[1] end)
    local middle = times[name][math.ceil(#times[name] / 2)]
    local without = times["no save"][math.ceil(#times[name] / 2)][1]
    print(("%-8s %7.2f s  %+6.1f %%  longest step %.2f s  processor %.2f s"):format(name, middle[1],
      100 * (middle[1] / without - 1), middle[2], middle[3]))
  end
end
