--- mimo.separate with stages: a tower on ranks of its own, and a language model that is a pipeline, train as one rank.
--- Float64, AdamW, clipping, several micro-batches of pictures, videos and text.

local dist = require "lockstep.distributed"
local fixture = require "lockstep.mimo.separate_fixture"
local models = require "lockstep.models"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local WORLD, DIR = dist.world_size(), fixture.DIR

local GRIDS = {
  [3] = { { pp = 2 }, { pp = 2, order = "all_forwards_first", fully_shard = true } },
  [4] = { },
  [5] = { { pp = 2, tp = 2 } , {pp = 2, fully_shard = true}},
}
for _, given in ipairs(GRIDS[WORLD]) do
  local folder, vision_ranks = given.folder or "qwen3_vl", given.vision or 1
  local parallel = { tp = given.tp, cp = given.cp, pp = given.pp, chunks = given.chunks, sequence = given.sequence,
    fully_shard = given.fully_shard }
  t.test("x", function()
    fixture.multiple = 4
    local rows = (WORLD - vision_ranks) / ((given.tp or 1) * (given.cp or 1) * given.pp)
    local curve, alone = fixture.train_alone(folder, rows, given)
    local model, optimizer, config = fixture.make(folder, vision_ranks, parallel, given)
    t.equal(model.ranks, rows)

    fixture.run_steps(model, optimizer, config, 1, fixture.STEPS, curve)
    models.save(model, DIR .. "/model")

    local saved = models.load(DIR .. "/model", { dtype = torch.float64 }):state_dict()
    for key, value in pairs(alone:state_dict()) do t.truthy(fixture.difference(saved[key], value) < 1e-10, key) end
    dist.barrier()
  end)
end
