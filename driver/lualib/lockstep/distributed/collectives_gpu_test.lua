--- Collectives through NCCL, on as many ranks as this machine has GPUs; one is enough.

local dist = require "lockstep.distributed"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local RANKS = dist.world_size()

local function ones() return torch.ones({ 1000 }, { device = dist.device() }) end

t.test("TheBackendIsNccl", function() t.equal(dist.backend(), "nccl") end)

t.test("AllReduceSumsOnTheDevice", function()
  local x = ones() * (dist.rank() + 1)
  dist.all_reduce(x, "sum")
  t.equal(x:sum():item(), 1000 * RANKS * (RANKS + 1) / 2)
end)

t.test("AllGatherReturnsEveryRanksValues", function()
  for rank, x in ipairs(dist.all_gather(ones() * dist.rank())) do t.equal(x:sum():item(), 1000 * (rank - 1)) end
end)

t.test("ReduceScatterReturnsTheOwnPart", function()
  local parts = {}
  for rank = 1, RANKS do parts[rank] = ones() * rank end
  t.equal(dist.reduce_scatter(parts, "sum"):sum():item(), 1000 * RANKS * (dist.rank() + 1))
end)

t.test("BroadcastTakesTheSourcesValues", function()
  local x = ones() * dist.rank()
  dist.broadcast(x, RANKS - 1)
  t.equal(x:sum():item(), 1000 * (RANKS - 1))
end)
