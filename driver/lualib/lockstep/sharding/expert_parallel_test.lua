--- The axis ep of sharding.parallelize: a mixture of experts on a grid learns what one rank learns, in float64.

local dist = require "lockstep.distributed"
local fixture = require "lockstep.sharding.parallelize_fixture"
local runs = require "lockstep.sharding.grid_runs_fixture"
local sharding = require "lockstep.sharding"
local t = require "lockstep.testing"

local WORLD = dist.world_size()

for _, row in ipairs(runs.of("expert_parallel", "train", WORLD)) do
  t.test("AGridLearnsAsOneRank_" .. runs.name(row), function()
    local can_clip = row.options.fully_shard and row.index % 2 == 0
    fixture.check(row.sizes, row.options, { form = row.family, seed = row.index,
      sync = row.index % 4 < 2 and "last" or "each", clip = can_clip and "model" or nil })
  end)
end

t.test("CopiesMustDivideTheRanksThatHoldTheSameExperts", function()
  if WORLD % 4 ~= 0 then return end
  t.raises("replicas 4 of the grid does not divide the 2 ranks that hold the same experts (dp 4 x cp 1 / ep 2)",
    sharding.parallelize, fixture.build("qwen3_moe", 1), sharding.grid { ep = 2, replicas = 4 })
end)
