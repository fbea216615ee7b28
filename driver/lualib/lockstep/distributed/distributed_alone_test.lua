-- A run of one rank: the same script runs, and every collective is of that rank alone.

local dist = require "lockstep.distributed"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local x = torch.tensor { 1, 2, 3 }

t.test("TheOneRankIsRankZeroOfOne", function()
  t.equal({ dist.rank(), dist.world_size(), dist.local_rank() }, { 0, 1, 0 })
end)

t.test("EveryReductionIsTheTensorItself", function()
  for _, op in ipairs { "sum", "min", "max", "avg" } do
    t.equal(dist.all_reduce(x:clone(), op), x, op)
    t.equal(dist.reduce_scatter({ x }, op), x, op)
  end
end)

t.test("EveryMoveReturnsWhatWasGiven", function()
  t.equal(dist.broadcast(x:clone(), 0), x)
  t.equal(dist.all_gather(x), { x })
  t.equal(dist.all_gather_object { a = { 1, 2 } }, { { a = { 1, 2 } } })
  dist.barrier()
end)

t.test("AGatheredTensorIsACopy", function()
  local gathered = dist.all_gather(x)[1]

  gathered:zero_()

  t.equal(x, torch.tensor { 1, 2, 3 })
end)

t.test("AGroupOfOneWorksToo", function()
  local group = dist.group { ranks = { 0 } }

  t.equal({ group:rank(), group:size(), group:ranks() }, { 0, 1, { 0 } })
  t.equal(dist.all_reduce(x:clone(), "sum", { group = group }), x)
end)

t.test("SendingWithoutAnotherRankIsAnError", function()
  t.raises("dist.send: dst is rank 0 itself, and a rank cannot wait for itself", dist.send, x, 0)
  t.raises("dist.recv: src must be one of the group's ranks {0}, not 1", dist.recv, x, 1)
end)
