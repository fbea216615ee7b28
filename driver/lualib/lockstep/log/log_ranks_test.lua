-- Logging on several ranks: every rank calls, rank 0 reports.

local core = require "lockstep.core"
local data = require "lockstep.data"
local dist = require "lockstep.distributed"
local log = require "lockstep.log"
local run = require "lockstep.run"
local sharding = require "lockstep.sharding"
local t = require "lockstep.testing"
local watching = require "lockstep.core.watching"

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

-- Stragglers --------------------------------------------------------------------------------------------

local WORK_S = 0.02

--- Works for WORK_S or a little longer. Ranks that wait meanwhile do not work: only a lower limit is certain.
local function work()
  local start = core.now()
  while core.now() - start < WORK_S do end
end

t.test("TheAgreementsOfAStepTellEachRanksOwnWork", function()
  run:finite {}
  watching.work_of_ranks()
  if dist.rank() == 1 then work() end
  run:finite {}

  local seconds = watching.work_of_ranks()
  t.equal(#seconds, dist.world_size())
  t.truthy(seconds[2] >= WORK_S - 1e-6, "rank 1 worked " .. seconds[2])
  for _, theirs in ipairs(dist.all_gather_object(seconds)) do t.equal(theirs, seconds) end
  t.equal(watching.work_of_ranks(), nil)
end)

t.test("ALoopsOffersTellTheWorkOfTheStepsBeforeThem", function()
  for read_ahead = 0, 1 do
    run:finite {}
    watching.work_of_ranks()
    local n = 0
    local function three_batches()
      n = n + 1
      return n <= 3 and n or nil
    end
    for _ in sharding.lockstep(three_batches, { read_ahead = read_ahead }) do
      if dist.rank() == 1 then work() end
    end

    -- The last offer of a loop that reads ahead is made before the last step.
    local seconds = watching.work_of_ranks()
    t.truthy(seconds[2] >= (3 - read_ahead) * WORK_S - 1e-6, "rank 1 worked " .. seconds[2])
  end
end)

t.test("TheStepsRecordNamesTheSlowestRank", function()
  local work_of_ranks, stdout, seconds = watching.work_of_ranks, io.stdout, nil
  watching.work_of_ranks = function()
    seconds = work_of_ranks()
    return seconds
  end
  io.stdout = { write = function() end, flush = function() end } -- luacheck: ignore 122
  run:finite {}
  log.step { step = 3 }
  if dist.rank() == 1 then work() end
  run:finite {}
  log.step { step = 4 }
  watching.work_of_ranks, io.stdout = work_of_ranks, stdout -- luacheck: ignore 122
  dist.barrier()

  if dist.rank() > 0 then return end
  local last
  for object in data.jsonl(run.dir .. "/metrics.jsonl") do last = object end
  t.equal(last.slowest_rank, seconds[1] > seconds[2] and 0 or 1)
  t.near(last.slowest_late_s, math.abs(seconds[1] - seconds[2]), 1e-9)
end)
