-- Random models, micro-batches and orders: stages train as one rank, and each operation is the one of the schedule.

local dist = require "lockstep.distributed"
local fixture = require "pipeline_fixture"
local sharding = require "lockstep.sharding"
local t = require "lockstep.testing"

local WORLD = dist.world_size()
local KINDS = { "llama", "qwen3", "qwen3_moe" }
local grid = sharding.grid { pp = WORLD == 4 and 2 or WORLD }

for seed = 1, 8 do
  t.test(("RandomPipelinesTrainAsOneRank_%d"):format(seed), function()
    local draw = fixture.drawer(1000 * WORLD + seed)
    local chunks = draw(2)
    local order = ({ "interleaved", "all_forwards_first", chunks == 1 and "1f1b" or "interleaved" })[draw(3)]
    local kind, options = KINDS[draw(3)], { layers = grid.pp * chunks + draw(4) - 1, tied = draw(2) == 1, seed = seed }
    local whole, reference = fixture.build(kind, options), fixture.build(kind, options)
    local model = fixture.divide(fixture.build(kind, options), grid, { order = order, chunks = chunks,
      fully_shard = draw(2) == 1 and {} or false })
    local steps = {}
    for i = 1, 2 do steps[i] = fixture.step_of(draw, grid.dp, draw(7)) end

    local losses, norms = fixture.train_on_rank_0(reference, steps)
    local own_losses, own_norms = fixture.train(model, steps, grid:rank "dp" + 1, whole)

    local what = ("%s, %s, %d chunks, %d layers"):format(kind, order, chunks, options.layers)
    for i = 1, #steps do
      t.near(own_losses[i], losses[i], 1e-10, what)
      t.near(own_norms[i], norms[i], 1e-10, what)
    end
    fixture.compare_parameters(model, reference, 1e-10)
  end)
end
