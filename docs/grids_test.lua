--- The table of grids in docs/parallelism.md is what docs/generate.lua writes.

local grids = require "grids"
local runs = require "lockstep.sharding.grid_runs_fixture"
local t = require "lockstep.testing"

t.test("TheTableIsFresh", function()
  local page = t.read_file("docs/parallelism.md")

  if page ~= grids.fresh(page) then
    error("docs/parallelism.md is stale: bazel-bin/driver/lockstep --nproc 1 docs/generate.lua docs", 0)
  end
end)

t.test("ANewRowChangesTheTable", function()
  local page = t.read_file("docs/parallelism.md")
  runs.rows[#runs.rows + 1] = { test = "pipeline/pipeline", use = "train", ranks = 16, family = "qwen3_vl", index = 1,
    sizes = { pp = 4, cp = 2 }, options = { order = "1f1b", cp = "ring" } }

  local line = grids.table():match "[^\n]*\n$"

  t.equal(line, "| cp 2 x pp 4 x dp 2 | Qwen3-VL | `1f1b`, `fully_shard`, `ring` | training | `pipeline_test` |\n")
  t.truthy(page ~= grids.fresh(page))
  runs.rows[#runs.rows] = nil
end)

t.test("EachRowIsAGridOfItsRanks", function()
  local seen = {}
  for _, row in ipairs(runs.rows) do
    local sizes = runs.sizes(row)
    t.equal(sizes.tp * sizes.cp * sizes.pp * sizes.dp, row.ranks, runs.name(row))
    t.equal(sizes.dp * sizes.cp % sizes.ep, 0, runs.name(row))
    local key = ("%s %s %d %s"):format(row.test, row.use, row.ranks, runs.name(row))
    t.equal(seen[key], nil, key)
    seen[key] = true
  end
end)
