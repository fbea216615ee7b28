--- Steps on paper, from Lua: which orders are simulated.

local mimo = require "lockstep.mimo"
local t = require "lockstep.testing"

-- Vision feeds language both directly and through an adapter of two stages: interleaved, it starts three forwards
-- before its first backward, and language none. It sends them ahead.
t.test("AShortCutEndsInEveryOrder", function()
  local topology = mimo.topology { world_size = 4, modules = { { name = "vision" },
    { name = "adapter", pp = 2, first_rank = 1 }, { name = "language", first_rank = 3 } },
    edges = { { from = "vision", to = "adapter" }, { from = "adapter", to = "language" },
      { from = "vision", to = "language" } } }

  for _, order in ipairs { "sequential", "all_forwards_first", "1f1b", "all" } do
    topology:validate { micro_batch_size = 6, global_batch_size = 24, order = order }
    t.truthy(topology:check_schedule { micro_batches = 4, micro_batch_size = 6, order = order } > 0)
  end
  topology:validate { micro_batch_size = 6 }
  t.raises('order must be "sequential", "all_forwards_first", "1f1b", or "all"', topology.validate, topology,
    { micro_batch_size = 6, order = "backwards" })
  t.raises('"oder"', topology.validate, topology, { micro_batch_size = 6, oder = "1f1b" })
end)

t.test("ColocatedModulesAreNotInterleaved", function()
  local topology = mimo.topology { world_size = 2, modules = { { name = "vision", dp = 2 },
    { name = "language", tp = 2 } } }

  topology:validate { micro_batch_size = 6 }
  t.raises("1F1B wants one on each rank", topology.validate, topology, { micro_batch_size = 6, order = "1f1b" })
end)

t.test("NoEdgesAreNone", function()
  local modules = { { name = "vision" }, { name = "language", first_rank = 1 } }
  local function transfers(edges)
    local topology = mimo.topology { world_size = 2, modules = modules, edges = edges }
    return select(2, topology:check_schedule { micro_batch_size = 6 })
  end

  t.equal(transfers(nil), 2)
  t.equal(transfers {}, 0)
end)
