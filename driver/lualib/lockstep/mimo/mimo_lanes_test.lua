--- An error on one rank of a replica with tp or cp reaches its siblings and every rank of both modules, whether the
--- rank ends or goes on. On four ranks: each test would wait for the run's timeout if a rank were left behind.

local dist = require "lockstep.distributed"
local mimo = require "lockstep.mimo"
local nn = require "lockstep.nn"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local RANK = dist.rank()

local GRIDS = {
  { name = "dp 2 to tp 2", { dp = 2 }, { tp = 2, first_rank = 2 } },
  { name = "dp 2 to cp 2", { dp = 2 }, { cp = 2, first_rank = 2 } },
  { name = "tp 2 to dp 2", { tp = 2 }, { dp = 2, first_rank = 2 } },
  { name = "cp 2 to tp 2", { cp = 2 }, { tp = 2, first_rank = 2 } },
  { name = "dp 1 to tp 3", {}, { tp = 3, first_rank = 1 } },
  { name = "tp 4 to cp 4 on the same ranks", { tp = 4 }, { cp = 4 } },
}

local function topology_of(grids)
  local from, to = grids[1], grids[2]
  from.name, to.name = "vision", "language"
  return mimo.topology { modules = { from, to } }
end

--- A bridge, and x of as many rows for each of four samples, on ranks of vision.
local function new_bridge(topology)
  local x
  if topology:peers("vision", "dp") then
    local _, dp_size = topology:dp_info(RANK, "vision")
    x = torch.ones { 4 / dp_size, 2 }:requires_grad_(true)
  end
  return mimo.bridge { topology = topology, from = "vision", to = "language" }, x
end

--- Forward and backward until this rank has heard of the failure; later calls fail, too.
local function train(bridge, x)
  for _ = 1, 4 do torch.sum(bridge(x, { rows_per_sample = { 1, 1, 1, 1 } })):backward() end
end

--- Fails on the rank `wrong` with `cause`, and on every other with an error that names both.
local function expect(wrong, cause, fn)
  local message = t.raises(cause, fn)
  if RANK ~= wrong then
    t.truthy(message:find(("rank %d ("):format(wrong), 1, true) and message:find(") failed: ", 1, true), message)
  end
end

for _, grids in ipairs(GRIDS) do
  local topology = topology_of(grids)

  for wrong = 0, 3 do
    t.test(("AMistakeInACallReachesAllRanks(%s, rank %d)"):format(grids.name, wrong), function()
      local bridge, x = new_bridge(topology)

      expect(wrong, "rows_per_sample holds -1", function()
        if RANK == wrong then bridge(x, { rows_per_sample = { 1, 1, -1, 1 } }) end
        train(bridge, x)
      end)

      t.raises("failed before", bridge, x)
    end)

    t.test(("AMistakeInALaterCallReachesAllRanks(%s, rank %d)"):format(grids.name, wrong), function()
      local bridge, x = new_bridge(topology)
      torch.sum(bridge(x, { rows_per_sample = { 1, 1, 1, 1 } })):backward()

      expect(wrong, "rows_per_sample holds -1", function()
        if RANK == wrong then bridge(x, { rows_per_sample = { 1, 1, -1, 1 } }) end
        train(bridge, x)
      end)
    end)

    t.test(("AMistakeInBackwardReachesAllRanks(%s, rank %d)"):format(grids.name, wrong), function()
      local bridge, x = new_bridge(topology)

      expect(wrong, "call backward without create_graph", function()
        local y = bridge(x, { rows_per_sample = { 1, 1, 1, 1 } })
        torch.sum(y):backward { create_graph = RANK == wrong }
        train(bridge, x)
      end)
    end)
  end
end

-- Graphs that are gone ------------------------------------------------------------------------------

--- Rank `wrong` throws y of its first call away; the others go back through it.
local function throw_away(grids, wrong)
  local bridge, x = new_bridge(topology_of(grids))
  local y = bridge(x, { rows_per_sample = { 1, 1, 1, 1 } })
  if RANK == wrong then
    y = nil -- luacheck: ignore
    collectgarbage()
    collectgarbage()
  else
    torch.sum(y):backward()
  end
  train(bridge, x)
end

for _, case in ipairs { { GRIDS[2], 3 }, { GRIDS[3], 1 }, { GRIDS[6], 2 } } do
  t.test(("AGraphThatOneSiblingThrowsAwayIsAnError(%s, rank %d)"):format(case[1].name, case[2]), function()
    t.raises(RANK == case[2] and "call 0" or "the graph of its call 0 is gone, and backward never ran through it",
      throw_away, case[1], case[2])
  end)
end

-- Ranks that share no rows with those that fail -------------------------------------------------------

t.test("AFailureOfOneReplicaIsAnErrorOfTheStepOnAllRanks", function()
  local topology = topology_of { name = "", { dp = 2 }, { dp = 2, first_rank = 2 } }
  local bridge, x = new_bridge(topology)
  local module = nn.Linear(2, 1)
  local opts = { topology = topology, modules = { [topology:module()] = module }, loss = "mean" }

  train(bridge, x) -- until rows have come, all ranks hear of each call

  -- Ranks 0 and 2 are one replica, ranks 1 and 3 the other.
  local ok = pcall(function()
    if RANK == 0 then bridge(x, { rows_per_sample = "none" }) end
    torch.sum(bridge(x, { rows_per_sample = { 1, 1, 1, 1 } })):backward()
  end)

  t.equal(ok, RANK % 2 == 1)
  t.raises("no rank reduces, since a bridge has failed on rank 0: ", mimo.reduce_gradients, opts)
end)
