-- models with several ranks: loading and saving, and gradients under data_parallel.

local dist = require "lockstep.distributed"
local models = require "lockstep.models"
local run = require "lockstep.run"
local sharding = require "lockstep.sharding"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

t.test("RankZeroWritesAndAllRanksReadTheFolder", function()
  local model = models.load "tests/models/qwen3_moe"
  local path = dist.all_gather_object(run.dir .. "/model")[1]

  models.save(model, path, { like = "tests/models/qwen3_moe" })

  t.equal(models.load(path):state_dict(), model:state_dict())
end)

t.test("AllRanksGetTheErrorOfRankZero", function()
  local model = models.load "tests/models/qwen3"

  t.raises("there is no folder nowhere", models.save, model, run.dir .. "/other", { like = "nowhere" })
end)

--- The tokens of a rank: another number on each.
local function batch_of(rank)
  return { input_ids = (torch.arange(8 + 3 * rank) * 7 + rank):remainder(61), seq_lens = { 5, 3 + 3 * rank } }
end

t.test("LossesUnderDataParallelHaveTheGradientOfAllTokens", function()
  local total, expected = 0, models.load "tests/models/qwen3"
  for rank = 0, dist.world_size() - 1 do
    local sum, count = expected:loss(batch_of(rank))
    sum:backward()
    total = total + count
  end
  local model = models.load "tests/models/qwen3"
  local replicas = sharding.data_parallel(model)

  local sum = replicas(batch_of(dist.rank()), "loss")
  -- data_parallel takes the mean over ranks, so each rank's share is times their number.
  ;(sum * (dist.world_size() / total)):backward()

  local gradients = {}
  for name, p in model:named_parameters() do gradients[name] = p.grad end
  for name, p in expected:named_parameters() do t.near(gradients[name], p.grad / total, 1e-5, name) end
end)
