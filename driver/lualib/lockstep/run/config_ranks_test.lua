--- run.config on several ranks: the configurations must be the same, but for what the script lets differ.

local dist = require "lockstep.distributed"
local run = require "lockstep.run"
local t = require "lockstep.testing"

local RANK = dist.rank()

--- The configuration of a script whose last rank has other values.
local function config(of_others, of_last, opts)
  return run.config(RANK == dist.world_size() - 1 and of_last or of_others, opts)
end

t.test("AValueThatDiffersIsNamedOnEveryRank", function()
  t.raises('run.config: ranks do not agree: optimizer.lr is 0.1 on rank 0, and 0.2 on rank 1; give every rank the '
    .. 'same, or let it differ: run.config(defaults, { per_rank = { "optimizer.lr" } })', config,
    { steps = 4, optimizer = { lr = 0.1 } }, { steps = 4, optimizer = { lr = 0.2 } })
  t.raises("betas is [0.9,0.95] on rank 0, and [0.9,0.99] on rank 1", config, { betas = { 0.9, 0.95 } },
    { betas = { 0.9, 0.99 } })
  t.raises("seed is 9007199254740991 on rank 0, and 9007199254740990 on rank 1", config, { seed = 2 ^ 53 - 1 },
    { seed = 2 ^ 53 - 2 })
  t.raises("name is not set on rank 0, and digits on rank 1", config, { steps = 1 }, { steps = 1, name = "digits" })
  t.raises("name is digits on rank 0, and not set on rank 1", config, { steps = 1, name = "digits" }, { steps = 1 })
end)

t.test("EqualConfigurationsPassWhateverTheOrderOfTheirKeys", function()
  local given = { a = 1, b = true, c = "x", list = { 1, 2 }, group = { deeper = { x = 0.1 } } }
  local again = {}
  for _, key in ipairs { "group", "list", "c", "b", "a" } do again[key] = given[key] end

  t.equal(config(given, again).group.deeper.x, 0.1)
end)

t.test("ASettingThatTheScriptLetsDifferMayDiffer", function()
  local own = { steps = 4, data = { folder = "/disk" .. RANK, size = 7 } }
  t.equal(config(own, own, { per_rank = { "data.folder" } }).data.folder, "/disk" .. RANK)
  t.equal(config(own, own, { per_rank = { "data" } }).data.folder, "/disk" .. RANK)

  t.raises("data.folder is /disk0 on rank 0, and /disk1 on rank 1", config, own, own, { per_rank = { "data.size" } })
  t.raises('run.config: per_rank names "dat", which the configuration lacks', config, own, own,
    { per_rank = { "dat" } })
end)
