--- run.elastic on one to three ranks. tests/elastic_test.cc has runs that go on with other numbers of ranks, and ends.

local dist = require "lockstep.distributed"
local run = require "lockstep.run"
local t = require "lockstep.testing"

local world = dist.world_size()

t.test("TheGlobalBatchStays", function()
  local elastic = run.elastic { min = 1, max = 3 }
  for micro_batch = 1, 4 do
    local batch = micro_batch * world * 6
    local rows, micro_batches = elastic:share(batch, micro_batch)
    t.equal({ rows * world, micro_batches * micro_batch }, { batch, rows })
  end
  t.equal({ elastic:share(12 * world, 2) }, { 12, 6 })
  t.equal(run.progress.num_shared, 6 * world) -- --evict-slow asks whether fewer ranks could share them
  t.equal({ elastic:share(6 * world) }, { 6, 1 })
  t.equal({ run.elastic { min = world }.max, elastic.min, elastic.max }, { math.huge, 1, 3 })
end)

-- Ranks of one row of dp are given the same micro-batches: dividing by all ranks would shrink the global batch.
t.test("OnAGridTheRowsOfDpShare", function()
  local elastic = run.elastic { min = 1, max = 3 }
  t.equal({ elastic:share(16, 2, 1) }, { 16, 8 })
  t.equal({ elastic:share(16, 2, 2) }, { 8, 4 })
  t.raises("rows_of_dp must be a whole number of at least 1, got 0", elastic.share, elastic, 16, 2, 0)
end)

t.test("WorldsThatWouldDoAreNamed", function()
  local elastic = run.elastic { min = 1, max = 8 }
  t.equal(elastic:worlds(16, 2), "1, 2, 4, 8")
  t.equal(elastic:worlds(7, 7), "1")
  t.equal(run.elastic { min = 1 }:worlds(2 ^ 14, 1), "1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048 and 3 more")
  local none = run.elastic { min = 1, max = 8 }
  none.min = 5
  t.equal(none:worlds(9, 1), "none")
  t.equal(elastic:worlds(2 ^ 52, 2 ^ 52), "1")
end)

t.test("MistakesAreNamed", function()
  t.raises('run.elastic: the option "min" is missing', run.elastic, {})
  t.raises("run.elastic: min must be a whole number of ranks, at least 1, got 0", run.elastic, { min = 0 })
  t.raises("at least min = 2, got 1", run.elastic, { min = 2, max = 1 })
  t.raises("at least min = 2, got 2.5", run.elastic, { min = 2, max = 2.5 })
  t.raises('unknown option "most"', run.elastic, { min = 1, most = 2 })
  local elastic = run.elastic { min = 1 }
  t.raises("batch must be a whole number of at least 1, got 0", elastic.share, elastic, 0)
  t.raises("batch must be a whole number of at least 1, got a string", elastic.share, elastic, "8")
  t.raises("micro_batch must be a whole number of at least 1, got 1.5", elastic.share, elastic, 8, 1.5)
  t.raises("a batch of 8 rows is not a multiple of micro_batch = 3, on any", elastic.share, elastic, 8, 3)
end)

t.test("RanksGiveTheSameLimits", function()
  if world == 1 then return end
  t.raises("run.elastic: ranks do not agree: max is 4 on rank 0, and 5 on rank 1", run.elastic,
    { min = 1, max = dist.rank() == 0 and 4 or 5 })
end)
