-- dist.functional on two ranks and three: values, gradients and mistakes.
-- sharding/functional/functional_test.cc compares the gradients with finite differences.

local dist = require "lockstep.distributed"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local rank, world = dist.rank(), dist.world_size()
local f = dist.functional

local function leaf(values) return torch.tensor(values, { dtype = torch.float64 }):requires_grad_(true) end

-- The numbers that an in-place collective gets wrong.
t.test("AllReduceGivesTheGradientOfTheSumOfAllLosses", function()
  local w = leaf { 0.5 }

  f.all_reduce((w * (rank + 1)):exp()):sum():backward()

  t.near(w.grad:item(), world * (rank + 1) * math.exp(0.5 * (rank + 1)), 1e-9)
end)

t.test("AllReduceOfAMean", function()
  local w = leaf { rank }

  local mean = f.all_reduce(w, "avg")
  mean:sum():backward()

  t.near(mean:item(), (world - 1) / 2, 1e-12)
  t.near(w.grad:item(), 1, 1e-12)
end)

-- Each rank's loss weighs the whole by rank + 1.
t.test("AllGatherAndReduceScatterAreEachOthersGradient", function()
  local sum = world * (world + 1) / 2
  local own = leaf { { rank, rank } }
  local whole = f.all_gather(own)
  ;(whole * (rank + 1)):sum():backward()
  t.equal(whole.shape, { world, 2 })
  t.equal(whole:detach()[world - 1], torch.tensor({ world - 1, world - 1 }, { dtype = torch.float64 }))
  t.equal(own.grad, torch.full({ 1, 2 }, sum, { dtype = torch.float64 }))

  local wide = torch.full({ 2, world }, rank + 1, { dtype = torch.float64 }):requires_grad_(true)
  local part = f.reduce_scatter(wide, { dim = 1 })
  ;(part * (rank + 1)):sum():backward()
  t.equal(part:detach(), torch.full({ 2, 1 }, sum, { dtype = torch.float64 }))
  t.equal(wide.grad[0], torch.arange(1, world + 1, { dtype = torch.float64 }))
end)

t.test("AllToAllSendsEachRankItsPart", function()
  local x = (torch.arange(world, { dtype = torch.float64 }) + 10 * rank):requires_grad_(true)

  local y = f.all_to_all(x, { split_dim = 0, concat_dim = 0 })
  ;(y * (rank + 1)):sum():backward()

  t.equal(y:detach(), torch.arange(world, { dtype = torch.float64 }) * 10 + rank)
  t.equal(x.grad, torch.arange(1, world + 1, { dtype = torch.float64 }))
end)

t.test("AllToAllSendsAsManyRowsAsTheCountsSay", function()
  -- Rank r sends all of its r rows to rank 0, which has none itself.
  local sent, received = {}, {}
  for r = 1, world do sent[r], received[r] = r == 1 and rank or 0, rank == 0 and r - 1 or 0 end
  local x = torch.full({ rank, 2 }, rank, { dtype = torch.float64 }):requires_grad_(true)

  local y = f.all_to_all(x, { sent = sent, received = received })
  ;(y * 3):sum():backward()

  t.equal(y:size(0), rank == 0 and world * (world - 1) / 2 or 0)
  if rank == 0 then t.equal(y:detach()[y:size(0) - 1][0]:item(), world - 1) end
  t.equal(x.grad, torch.full({ rank, 2 }, 3, { dtype = torch.float64 }))
end)

t.test("BroadcastGivesTheSourceEveryRanksGradient", function()
  local source = world - 1
  local x = leaf { rank, rank }

  local y = f.broadcast(x, source)
  ;(y * (rank + 1)):sum():backward()

  t.equal(y:detach(), torch.full({ 2 }, source, { dtype = torch.float64 }))
  t.equal(x.grad, torch.full({ 2 }, rank == source and world * (world + 1) / 2 or 0, { dtype = torch.float64 }))
end)

t.test("AGroupHasRanksOfTheWorld", function()
  if rank == 0 then return end
  local ranks = {}
  for r = 1, world - 1 do ranks[r] = r end
  local group = dist.group { ranks = ranks }

  t.equal(f.all_reduce(torch.tensor(rank), "sum", { group = group }):item(), world * (world - 1) / 2)
  t.equal(f.broadcast(torch.tensor(rank), world - 1, { group = group }):item(), world - 1)
  t.equal(f.all_gather(torch.tensor { rank }, { group = group }).shape, { world - 1 })
  t.raises("dist.functional.broadcast: src must be one of the group's ranks", f.broadcast, torch.tensor(1), 0,
    { group = group })
end)

t.test("AResultWithoutGradientsRequiresNone", function()
  local w = leaf { 1 }

  t.equal(f.all_reduce(w:detach()).requires_grad, false)
  t.equal(torch.no_grad(f.all_reduce, w).requires_grad, false)
  t.truthy(f.all_reduce(w).requires_grad)
end)

t.test("MistakesAreRefusedBeforeAnyRankWaits", function()
  local x = torch.ones { 2, world + 1 }
  local cases = {
    { f.all_reduce, { 3 }, "dist.functional.all_reduce: x must be a tensor, not the number 3" },
    { f.all_reduce, { x, "max" }, 'dist.functional.all_reduce: op must be "sum" or "avg", not "max"' },
    { f.all_reduce, { x, "sum", { dim = 1 } }, 'dist.functional.all_reduce: unknown option "dim"' },
    { f.all_reduce, { x:bool() }, "dist.functional.all_reduce: bool {2, " .. world + 1 .. "} cannot be reduced" },
    { f.all_reduce, { x:long(), "avg" }, "the mean of whole numbers would be rounded" },
    { f.all_gather, { x, { dim = 2 } }, "all_gather: dimension 2 is out of range for a tensor of 2 dimensions" },
    { f.reduce_scatter, { x, { dim = 1 } }, string.format("dimension 1 has size %d, which is not divisible by the %d",
      world + 1, world) },
    { f.all_to_all, { x }, "dist.functional.all_to_all: split_dim is missing" },
    { f.all_to_all, { x, { split_dim = 0 } }, "dist.functional.all_to_all: concat_dim is missing" },
    { f.all_to_all, { x, { sent = { 1 } } }, "dist.functional.all_to_all: received is missing" },
    { f.all_to_all, { x, { sent = { 1 }, received = { 1 }, split_dim = 0 } }, "split_dim is for equal parts" },
    { f.broadcast, { x }, "dist.functional.broadcast: src must be a number, not nothing" },
  }
  for _, case in ipairs(cases) do t.raises(case[3], case[1], unpack(case[2])) end
end)
