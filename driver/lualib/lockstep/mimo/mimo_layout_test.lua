--- Ranks with different topologies, or a different dim of a bridge, get an error, because rows would reach wrong ranks.
--- So does a caller whose table does not fit on a grid where nothing is sent.

local dist = require "lockstep.distributed"
local mimo = require "lockstep.mimo"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local RANK = dist.rank()

local function call(bridge)
  local x = RANK < 2 and torch.full({ 2, 2 }, RANK):requires_grad_(true) or nil
  torch.sum(bridge(x)):backward()
end

local DIFFERENT = "made this bridge with different topologies, or another dim"

t.test("AnotherOrderOfRanksIsAnErrorOnAll", function()
  local topology = mimo.topology { modules = {
    { name = "vision", dp = 2, ranks = RANK == 2 and { 1, 0 } or { 0, 1 } }, { name = "language", ranks = { 2 } },
  } }

  t.raises(DIFFERENT, call, mimo.bridge { topology = topology, from = "vision", to = "language" })
end)

t.test("AnotherDimIsAnErrorOnAll", function()
  local topology = mimo.topology { modules = { { name = "vision", dp = 2 }, { name = "language", first_rank = 2 } } }

  t.raises(DIFFERENT, call,
    mimo.bridge { topology = topology, from = "vision", to = "language", dim = RANK == 2 and 1 or 0 })
end)

t.test("OnEqualGridsTheTableIsCheckedToo", function()
  local topology = mimo.topology { modules = { { name = "vision", dp = 3 }, { name = "language", dp = 3 } } }
  local bridge = mimo.bridge { topology = topology, from = "vision", to = "language" }

  t.equal(bridge(torch.ones { 2, 4 }, { rows_per_sample = { 2, 2, 2 } }).shape[1], 2)
  t.raises("x has 3 rows on dim 0, but the samples of rank " .. RANK .. " have 2 of 6", bridge, torch.ones { 3, 4 },
    { rows_per_sample = { 2, 2, 2 } })
end)
