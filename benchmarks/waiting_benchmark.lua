--- How much of a step the digits run waits for its data, with a loader in place of its list:
---
---     bazel build -c opt //driver:lockstep
---     bazel-bin/driver/lockstep --nproc 2 benchmarks/waiting_benchmark.lua
---
--- Each line of a JSONL file is a digit; workers read it, move it about and make the sample; batching.stream plans
--- batches from windows of samples, which every rank reads alike. Prints the share of the steps' time, after the first
--- ten, that run:steps waited; --set workers=0 shows what the workers save.

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
local stream = batching.stream { source = loader, buffer = config.samples_per_step, seq_len = config.seq_len }

torch.manual_seed(1)
local model = model_of.VisionLanguageModel {
  vision = config.vision, text = config.text, vocab_size = digits.vocab_size, image_token = digits.IMAGE,
}
local replicas = sharding.data_parallel(model)
local optimizer = optim.AdamW(model:parameters(), { lr = 1.5e-3 })

local waited, total, started = 0, 0, core.now()
for step, micro_batches, report in run:steps(stream, config.steps) do
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
end
log.print(("waiting for data: %.2f %% of %.1f ms a step"):format(100 * waited / total,
  1000 * total / (config.steps - 10)))
