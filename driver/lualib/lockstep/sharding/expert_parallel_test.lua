--- The axis ep of sharding.parallelize: a mixture of experts on a grid learns what one rank learns, in float64.

local dist = require "lockstep.distributed"
local fixture = require "lockstep.sharding.parallelize_fixture"
local sharding = require "lockstep.sharding"
local t = require "lockstep.testing"

local WORLD = dist.world_size()

for _, form in ipairs { "qwen3_moe", "mixtral" } do
  for _, ep in ipairs { 2, 4 } do
    for i, kind in ipairs { "sharded", "replicas" } do
      if WORLD % ep == 0 then
        t.test(("AGridLearnsAsOneRank_%s_ep%d_%s"):format(form, ep, kind), function()
          local sync = (ep / 2 + i) % 2 == 0 and "last" or "each"
          fixture.check({ ep = ep }, { fully_shard = kind == "sharded" and {} },
            { form = form, seed = ep, sync = sync, clip = kind == "sharded" and "model" or nil })
        end)
      end
    end
  end
end

t.test("OtherWaysToShardLearnAsOneRank", function()
  fixture.check({ ep = 2 }, { fully_shard = { reshard_after_forward = false, prefetch = 3 } },
    { form = "qwen3_moe", seed = 11 })
  fixture.check({ ep = 2 }, { fully_shard = { units = { "model.layers.*.self_attn" }, skipped = "join" } },
    { form = "qwen3_moe", seed = 12 })
end)

t.test("CheckpointedLayersLearnAsOneRank", function()
  fixture.check({ ep = 2 }, { checkpoint = {} }, { form = "qwen3_moe", seed = 31 })
end)

t.test("TensorParallelLayersBesideExpertsLearnAsOneRank", function()
  if WORLD % 4 ~= 0 then return end
  fixture.check({ tp = 2, ep = 2 }, {}, { form = "qwen3_moe", seed = 20, clip = "model" })
  fixture.check({ tp = 2, ep = 2 }, { fully_shard = false }, { form = "qwen3_moe", seed = 21 })
end)

t.test("ModelsOfPicturesWithExpertsLearnAsOneRank", function()
  fixture.check({ ep = 2 }, {}, { form = "qwen3_vl_moe", seed = 60 })
end)

-- Experts lie on ranks that hold chunks of one sequence.
t.test("ChunksOfSequencesBesideExpertsLearnAsOneRank", function()
  for i, cp in ipairs { "ring", "all_to_all" } do
    fixture.check({ cp = 2, ep = 2 }, { cp = cp, fully_shard = i == 1 and {} }, { form = "qwen3_moe", seed = 50 + i })
  end
  if WORLD % 4 ~= 0 then return end
  fixture.check({ cp = 2, ep = 4 }, { cp = "ring" }, { form = "qwen3_moe", seed = 53, clip = "model" })
  fixture.check({ tp = 2, cp = 2, ep = 2 }, { cp = "ring", sequence = true }, { form = "qwen3_moe", seed = 54 })
end)

t.test("CopiesLearnAsOneRank", function()
  if WORLD % 4 ~= 0 then return end
  fixture.check({ ep = 2, replicas = 2 }, { fully_shard = {} }, { form = "qwen3_moe", seed = 22 })
  t.raises("replicas 4 of the grid does not divide the 2 ranks that hold the same experts (dp 4 x cp 1 / ep 2)",
    sharding.parallelize, fixture.build("qwen3_moe", 1), sharding.grid { ep = 2, replicas = 4 })
end)
