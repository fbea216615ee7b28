-- Measures micro-steps with long samples, kept whole and shared by groups of ranks (batching.prepare's `split`). Prints
-- the makespan over the ideal, as planned by cost and as measured in processor time of the ranks' own threads: the sum
-- over micro-steps of the slowest rank, over the mean of all ranks' time for whole samples.
--
--     lockstep --nproc 4 benchmarks/split_benchmark.lua [--set seq_len=4096 --set seed=3]

local batching = require "lockstep.batching"
local dist = require "lockstep.distributed"
local ffi = require "ffi"
local models = require "lockstep.models"
local run = require "lockstep.run"
local torch = require "lockstep.torch"

local config = run.config { samples = 24, seq_len = 4096, rounds = 3, seed = 3, max_group = 4 }
torch.set_num_threads(1)
local rank, world = dist.rank(), dist.world_size()

ffi.cdef "typedef struct { long s, ns; } bench_time; int clock_gettime(int clock, bench_time *time);"
local function cpu_seconds()
  local time = ffi.new "bench_time"
  ffi.C.clock_gettime(3, time) -- of this thread: others send and receive
  return tonumber(time.s) + 1e-9 * tonumber(time.ns)
end

torch.manual_seed(1)
local model = models.build { architectures = { "Qwen3ForCausalLM" }, model_type = "qwen3", vocab_size = 512,
  hidden_size = 128, intermediate_size = 256, num_hidden_layers = 3, num_attention_heads = 4, num_key_value_heads = 2,
  head_dim = 32, rope_theta = 10000, max_position_embeddings = 4096 }

local function sample(tokens)
  return { input_ids = torch.randint(512, { tokens }), loss_mask = torch.ones({ tokens }):bool() }
end

local function seconds_of(batch)
  local start = cpu_seconds()
  model:loss(batch):backward()
  return cpu_seconds() - start
end

--- Returns the cost that fits samples of two lengths on rank 0; the same on every rank.
local function fit()
  local function fastest(tokens)
    local least = math.huge
    for _ = 1, 4 do least = math.min(least, seconds_of(sample(tokens))) end
    return least
  end
  local short, long = math.floor(config.seq_len / 8), config.seq_len
  local of_short, of_long = fastest(short), fastest(long)
  local quadratic = math.max(0, (of_long / long - of_short / short) / (long - short))
  return dist.all_gather_object { linear = of_short / short - quadratic * short, quadratic = quadratic }[1]
end

--- Returns the processor seconds of each rank, by micro-step: the fastest of some rounds.
local function measure(micro_batches)
  local own = {}
  for _ = 1, config.rounds do
    for step, batch in ipairs(micro_batches) do
      own[step] = math.min(own[step] or math.huge, seconds_of(batch))
    end
  end
  return dist.all_gather_object(own)
end

local cost = fit()
torch.manual_seed(config.seed)
local samples = {}
for i = 1, config.samples do
  local tokens = math.exp(torch.randn(1):item() * 1.3 + math.log(config.seq_len / 16))
  samples[i] = sample(math.max(2, math.min(config.seq_len, math.floor(tokens))))
end

local ideal_s
for _, max_group in ipairs { 1, config.max_group } do
  local batches, report = batching.prepare { samples = samples, seq_len = config.seq_len, rank = rank, cost = cost,
    split = { max_group = max_group } }
  local ranks = measure(batches[rank + 1])
  local makespan, sum = 0, 0
  for step = 1, report.micro_steps do
    local slowest = 0
    for _, own in ipairs(ranks) do slowest, sum = math.max(slowest, own[step]), sum + own[step] end
    makespan = makespan + slowest
  end
  ideal_s = ideal_s or sum / world
  if rank == 0 then
    print(("groups of up to %d: %d of %d samples are split, %d micro-steps; makespan / ideal planned %.3f, measured "
      .. "%.3f; processor time over that of whole samples %.3f"):format(max_group, report.split_samples, #samples,
      report.micro_steps, report.makespan / report.ideal, makespan / ideal_s, sum / world / ideal_s))
  end
end
