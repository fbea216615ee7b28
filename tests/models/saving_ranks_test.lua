-- models.save and models.load with several ranks.

local dist = require "lockstep.distributed"
local models = require "lockstep.models"
local run = require "lockstep.run"
local t = require "lockstep.testing"

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
