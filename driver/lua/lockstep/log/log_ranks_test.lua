-- Logging on several ranks: every rank calls, rank 0 reports.

local data = require "lockstep.data"
local dist = require "lockstep.distributed"
local log = require "lockstep.log"
local run = require "lockstep.run"
local t = require "lockstep.testing"

t.test("EveryRankHasTheSameFolder", function()
  for _, dir in ipairs(dist.all_gather_object(run.dir)) do t.equal(dir, run.dir) end
end)

--- The losses in metrics.jsonl.
local function losses_written()
  local losses = {}
  if not io.open(run.dir .. "/metrics.jsonl") then return losses end
  for object in data.jsonl(run.dir .. "/metrics.jsonl") do losses[#losses + 1] = object.loss end
  return losses
end

t.test("OneRankAloneWritesAndPrints", function()
  local before = #losses_written()
  dist.barrier()
  local written, stdout = 0, io.stdout
  io.stdout = { write = function() written = written + 1 end, flush = function() end } -- luacheck: ignore 122
  for step = 0, 2 do log.step { step = step, loss = step + dist.rank() } end
  log.record("validation", { loss = 5 + dist.rank(), step = 2 })
  log.print("hello")
  io.stdout = stdout -- luacheck: ignore 122
  dist.barrier()

  t.equal({ select(before + 1, unpack(losses_written())) }, { 0, 1, 2, 5 })
  t.equal(written > 0, dist.rank() == 0)
end)

t.test("OneRankAloneDrawsTheCurve", function()
  local path = log.curve("loss.svg", { "loss" })

  t.equal(path, dist.rank() == 0 and run.dir .. "/loss.svg" or nil)
end)

t.test("RankZeroAloneWritesTheConfigurationThatEveryRankReturns", function()
  local config = run.config { lr = 0.1 }
  dist.barrier()

  t.equal(config.lr, 0.1)
  for line in data.lines(run.dir .. "/config.json") do t.truthy(line == "{" or line == "}" or line == '  "lr": 0.1') end
end)
