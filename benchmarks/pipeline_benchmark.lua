-- Measures how long the ranks of a pipeline wait, beside what the simulator says. Each rank's stages are timed alone,
-- one forward and one backward at a time while the other rank is idle, and the simulator replays the schedule with
-- these times (pipeline/timing.lua). Then a real step runs, and each rank adds up how long it waits for messages and
-- for the last rank. Prints medians over rounds; the two parts of a round follow one another.
--
-- With wait_ms each layer waits that long in forward and twice as long in backward, as a CPU does for its device. Then
-- ranks share nothing, and no other work on the machine makes a stage slower.
--
--     lockstep --nproc 2 benchmarks/pipeline_benchmark.lua [--set hidden=256 --set tokens=256 --set rounds=15]
--     lockstep --nproc 2 benchmarks/pipeline_benchmark.lua --set wait_ms=5 --set hidden=16 --set tokens=16

local cut = require "lockstep.sharding.pipeline.cut"
local dist = require "lockstep.distributed"
local ffi = require "ffi"
local models = require "lockstep.models"
local run = require "lockstep.run"
local schedule = require "lockstep.sharding.pipeline.schedule"
local sharding = require "lockstep.sharding"
local timing = require "lockstep.sharding.pipeline.timing"
local torch = require "lockstep.torch"

local config = run.config { hidden = 256, layers = 8, tokens = 256, rounds = 15, repeats = 3, wait_ms = 0 }
torch.set_num_threads(1)
local rank, world = dist.rank(), dist.world_size()
local grid = sharding.grid { pp = world }

ffi.cdef [[typedef struct { long s, ns; } bench_time; int clock_gettime(int clock, bench_time *time);
  int usleep(unsigned us);]]
local function seconds()
  local time = ffi.new "bench_time"
  ffi.C.clock_gettime(1, time) -- the same for all processes of a machine
  return tonumber(time.s) + 1e-9 * tonumber(time.ns)
end

local function median(list)
  local sorted = { unpack(list) }
  table.sort(sorted)
  return sorted[math.ceil(#sorted / 2)]
end

--- Returns the values of all ranks.
local function gather(value) return dist.all_gather_object(value) end

local function new_batch() return { input_ids = torch.randint(500, { config.tokens }) } end

--- Times one forward and one backward of a stage of this rank. Returns the seconds of both.
local function time_stage(model, stage)
  local net, batch = model.module, new_batch()
  local x = not stage.is_first and torch.randn({ config.tokens, config.hidden }):requires_grad_(true) or nil
  local start = seconds()
  local y, between
  if stage.is_last then
    y = cut.result(net, net, stage, batch, x, nil, "loss")
    between = seconds()
    y:backward()
  else
    y = cut.run(net, net, stage, batch, x)
    local gradient = torch.ones_like(y)
    between = seconds()
    y:backward(gradient)
  end
  return between - start, seconds() - between
end

--- Returns the seconds of all stages, each timed while the other ranks are idle.
local function time_alone(model)
  local own = {}
  for _, stage in ipairs(model.stages) do
    dist.barrier()
    if (stage.index - 1) % world == rank then
      local forward, backward = {}, {}
      for i = 1, config.repeats do forward[i], backward[i] = time_stage(model, stage) end
      own[stage.index] = { median(forward), median(backward) }
    end
  end
  local times = { forward = {}, backward = {} }
  for _, theirs in ipairs(gather(own)) do
    for s, one in pairs(theirs) do times.forward[s], times.backward[s] = one[1], one[2] end
  end
  model:zero_grad()
  return times
end

--- Lets a model note when its lists begin and end, and how long it waits within.
local function watch(model)
  local seen, runner = {}, model.runner
  for peer, link in pairs(runner.links) do
    runner.links[peer] = { start = function(_, ...)
      local batch = link:start(...)
      return { wait = function()
        local start = seconds()
        batch:wait()
        seen.waited = seen.waited + seconds() - start
      end }
    end }
  end
  local run_list = runner.run
  function runner.run(...)
    dist.barrier()
    seen.waited, seen.from = 0, seconds()
    run_list(...)
    seen.to = seconds()
  end
  return seen
end

--- Runs a step. Returns the seconds from the first rank's start to the last one's end, and the share in which a rank
--- waits, on average.
local function time_step(model, seen, num_micro_batches)
  local batches = {}
  torch.manual_seed(1)
  for i = 1, num_micro_batches do batches[i] = new_batch() end
  sharding.accumulate(model, batches, num_micro_batches * (config.tokens - 1), function(b) return model(b, "loss") end)
  model:zero_grad()
  local from, to, idle = math.huge, 0, 0
  local all = gather { from = seen.from, to = seen.to, waited = seen.waited }
  for _, one in ipairs(all) do from, to = math.min(from, one.from), math.max(to, one.to) end
  for _, one in ipairs(all) do idle = idle + one.waited + one.from - from + to - one.to end
  return to - from, idle / (world * (to - from))
end

--- Lets each layer wait as if a device computed it.
local function let_wait(net)
  local us = config.wait_ms * 1000
  for _, layer in ipairs(net.model.layers) do
    layer:register_forward_hook(function(_, _, y)
      ffi.C.usleep(us)
      y:register_hook(function() ffi.C.usleep(2 * us) end)
    end)
  end
end

local function measure(order, chunks, num_micro_batches)
  torch.manual_seed(1)
  local net = models.build { model_type = "llama", architectures = { "LlamaForCausalLM" }, vocab_size = 512,
    hidden_size = config.hidden, intermediate_size = 3 * config.hidden, num_hidden_layers = config.layers,
    num_attention_heads = 4 }
  if config.wait_ms > 0 then let_wait(net) end
  local model = sharding.parallelize(net, grid, { order = order, chunks = chunks, fully_shard = false })
  local seen = watch(model)
  local plan = schedule.make { ranks = world, chunks = chunks, micro_batches = num_micro_batches, order = order }
  local spans, bubbles, expected, bubble_ratios, span_ratios = {}, {}, {}, {}, {}
  for round = 0, config.rounds do
    local simulated = timing.replay(plan.lists, time_alone(model))
    local span, bubble = time_step(model, seen, num_micro_batches)
    if round > 0 then -- the first one makes memory
      spans[round], bubbles[round], expected[round] = span, bubble, simulated.bubble
      bubble_ratios[round], span_ratios[round] = bubble / simulated.bubble, span / simulated.span
    end
  end
  if rank == 0 then
    print(("%-20s %d chunks %2d micro-batches  step %7.1f ms (%.3f of simulated)  waits %4.1f %%, simulated %4.1f %% "
      .. "(%.3f of it), in units %4.1f %%"):format(order, chunks, num_micro_batches, 1e3 * median(spans),
      median(span_ratios), 100 * median(bubbles), 100 * median(expected), median(bubble_ratios), 100 * plan.bubble))
  end
end

for _, case in ipairs { { "1f1b", 1, 2 }, { "1f1b", 1, 4 }, { "1f1b", 1, 8 }, { "all_forwards_first", 1, 4 },
  { "interleaved", 2, 4 } } do
  measure(unpack(case))
end
