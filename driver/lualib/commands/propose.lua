--- `./run propose MODEL --set gpus=64`: grids that train a model, by predicted time and memory, and why others lose.

local core = require "lockstep.core"
local log = require "lockstep.log"
local run = require "lockstep.run"
local sharding = require "lockstep.sharding"

local config = run.config {
  gpus = 8,
  memory = 80,             -- GiB of a GPU
  seq_len = 4096,
  tokens_per_step = 2 ^ 22, -- of all ranks
  grid = {                 -- sizes that are given; 0: any
    tp = 0, cp = 0, ep = 0, pp = 0, dp = 0,
  },
}

if not run.args[1] then
  core.raise_usage("propose: name a model's folder, or OWNER/MODEL of the local cache, as in propose Qwen/Qwen3-32B "
    .. "--set gpus=64")
end
local grid = {}
for axis, size in pairs(config.grid) do grid[axis] = size > 0 and size or nil end
local proposals = sharding.propose { config = run.args[1], gpus = config.gpus, memory_gib = config.memory,
  seq_len = config.seq_len, tokens_per_step = config.tokens_per_step, grid = grid }
log.print(("%.4g parameters on %d GPUs of %g GiB, %d sequences of %d tokens a step"):format(proposals.parameters,
  config.gpus, config.memory, config.tokens_per_step / config.seq_len, config.seq_len))
log.print(tostring(proposals))
