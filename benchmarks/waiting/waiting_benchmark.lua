--- Measures how long the steps of the digits run wait for data that comes from a loader instead of a list:
---
---     bazel build -c opt //driver:lockstep
---     bazel-bin/driver/lockstep --nproc 2 benchmarks/waiting/waiting_benchmark.lua
---
--- Each line of a JSONL file is a digit. Workers read it, shift it and make the sample. Every rank reads all samples,
--- and batching.stream plans batches from windows of them.
---
--- Prints the share of the time that run:steps waited, and the share of this thread's processor time that the loader
--- and all of the data took, both without the first ten steps. The second is the one to trust on a busy machine.
--- With --set workers=0 there are no workers.

package.path = package.path .. ";scripts/?.lua"

local batching = require "lockstep.batching"
local core = require "lockstep.core"
local data = require "lockstep.data"
local digits = require "digits_data"
local dist = require "lockstep.distributed"
local log = require "lockstep.log"
local model_of = require "digits_model"
local optim = require "lockstep.optim"
local run = require "lockstep.run"
local sharding = require "lockstep.sharding"
local torch = require "lockstep.torch"

local config = run.config {
  steps = 60, samples_per_step = 96, seq_len = 256, workers = 1,
  vision = { hidden = 64, heads = 4, depth = 2, patch_dim = 4, patches = 16 },
  text = { hidden = 64, heads = 4, depth = 2, intermediate = 192 },
}

local path = run.dir .. "/digits.jsonl"
if dist.rank() == 0 then
  local lines = {}
  for i, digit in ipairs((digits.load())) do
    lines[i] = core.json_encode { pixels = digit.pixels:view(-1):totable(), label = digit.label }
  end
  core.write_file(path, { table.concat(lines, "\n"), "\n" })
end
dist.barrier()

local loader = data.loader {
  source = data.source(path, { cache = run.dir .. "/cache" }), map = "waiting_benchmark_map", workers = config.workers,
  prefetch = config.samples_per_step, seed = 1, rank = 0, world = 1,
}
--- Seconds of processor time that this thread has had.
local ffi = require "ffi"
ffi.cdef "struct loader_time { long s; long ns; }; int clock_gettime(int clock, struct loader_time *time);"
local function processor_now()
  local time = ffi.new "struct loader_time"
  assert(ffi.C.clock_gettime(3, time) == 0)
  return tonumber(time.s) + tonumber(time.ns) / 1e9
end

local in_loader, in_data = 0, 0
local function draw()
  local start = processor_now()
  local sample = loader()
  in_loader = in_loader + processor_now() - start
  return sample
end
local stream = batching.stream { source = draw, buffer = config.samples_per_step, seq_len = config.seq_len }

torch.manual_seed(1)
local model = model_of.VisionLanguageModel {
  vision = config.vision, text = config.text, vocab_size = digits.vocab_size, image_token = digits.IMAGE,
}
local replicas = sharding.data_parallel(model)
local optimizer = optim.AdamW(model:parameters(), { lr = 1.5e-3 })

local function next_window()
  local start = processor_now()
  local micro_batches, report = stream()
  in_data = in_data + processor_now() - start
  return micro_batches, report
end

local waited, total, started = 0, 0, core.now()
local processor_started
for step, micro_batches, report in run:steps(next_window, config.steps) do
  local seconds = run.progress.data_seconds -- log.step sets it to 0
  for i, micro_batch in ipairs(micro_batches) do
    local function learn()
      local sum = model_of.loss_sum(replicas, micro_batch)
      torch.mul(sum, dist.world_size() / report.loss_tokens):backward()
    end
    if i < #micro_batches then replicas:no_sync(learn) else learn() end
  end
  optimizer:step()
  optimizer:zero_grad()
  log.step { micro_batches = #micro_batches }
  if step >= 10 then waited, total = waited + seconds, total + core.now() - started end
  started = core.now()
  if step == 9 then in_loader, in_data, processor_started = 0, 0, processor_now() end
end
local steps, processor = config.steps - 10, processor_now() - processor_started
log.print(("waiting for data: %.2f %% of %.1f ms a step"):format(100 * waited / total, 1000 * total / steps))
log.print(("processor time: %.2f %% in the loader, %.2f %% in all of the data, of %.1f ms a step"):format(
  100 * in_loader / processor, 100 * in_data / processor, 1000 * processor / steps))
