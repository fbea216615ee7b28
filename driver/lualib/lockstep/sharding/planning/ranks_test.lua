--- The memory of each kind of rank, which --dry-run prints, for grids of more ranks than this machine has.

local models = require "lockstep.models"
local ranks = require "lockstep.sharding.planning.ranks"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local CONFIG = { model_type = "llama", vocab_size = 512, hidden_size = 128, intermediate_size = 384,
  num_attention_heads = 8, num_key_value_heads = 4, head_dim = 16, num_hidden_layers = 8 }

--- Returns the table's rows, as lists of words.
local function rows_of(sizes, options)
  local grid = { tp = 1, cp = 1, ep = 1, pp = 1, dp = 1, replicas = 1 }
  for axis, size in pairs(sizes) do grid[axis] = size end
  options.chunks, options.sequence = options.chunks or 1, options.sequence or false
  ranks.note(models.outline("test", CONFIG), grid, options)
  local rows = {}
  for line in ranks.table(256, 8):gmatch "\n([^\n]+)" do
    local words = {}
    for word in line:gsub(" to ", "-"):gmatch "%S+" do words[#words + 1] = word end
    rows[#rows + 1] = words
  end
  return rows
end

t.test("StagesThatHoldTheSameAreOneRow", function()
  local rows = rows_of({ tp = 8, pp = 4, dp = 32 }, { fully_shard = {}, order = "all_forwards_first" })

  t.equal(#rows, 4) -- with the head
  t.equal({ rows[2][1], rows[3][1], rows[4][1] }, { "0-255", "256-767", "768-1023" })
  t.equal({ rows[2][2], rows[3][2], rows[4][2] }, { "2", "2", "2" })
end)

t.test("EarlierStagesKeepMoreMicroBatches", function()
  local rows = rows_of({ pp = 8, dp = 128 }, { fully_shard = false, order = "1f1b" })

  t.equal(#rows, 9)
  local function activations(row) return tonumber(row[#row - 2]) end
  for i = 3, 8 do t.truthy(activations(rows[i]) < activations(rows[i - 1]), i) end
end)

t.test("ReplicasHoldAllMomentsAndShardsTheirPart", function()
  local whole, part = rows_of({ dp = 1024 }, { fully_shard = false }), rows_of({ dp = 4 }, { fully_shard = {} })

  t.near(tonumber(whole[2][5]), 4 * tonumber(part[2][5]), 0.3)
end)

t.test("OtherModulesHaveNoTable", function()
  ranks.note(require("lockstep.nn").Linear(2, 2), { dp = 2 }, {})

  t.equal(ranks.table(4, 1), nil)
end)

t.test("BytesAreThoseOfTheDtypes", function()
  local wide = rows_of({ dp = 4 }, { fully_shard = {} })
  local narrow = rows_of({ dp = 4 }, { fully_shard = { param_dtype = torch.bfloat16 } })

  t.near(tonumber(narrow[2][8]), tonumber(wide[2][8]) / 2, 0.06)
end)
