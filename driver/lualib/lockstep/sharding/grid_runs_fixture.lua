--- The grids that tests train on, against one rank with the whole model. The tests iterate over these rows, and
--- docs/grids.lua writes the table of docs/parallelism.md from them. So a combination is in the table if it is run.
---
--- A new combination is a line here: `add` of the test's name, what the test does with it, the ranks, and for each of
--- some families the sizes for sharding.grid and the options for sharding.parallelize. A test runs the rows of its
--- number of ranks, on Gloo and on the strict backend of //tests/strict.

local plain = require "lockstep.plain"

local M = {}

--- A combination that one test trains.
---@class sharding.GridRun
---@field test string its file without "_test.lua"
---@field use string what the test does: "train", or a name that the test knows
---@field ranks integer
---@field sizes table<string, integer> for sharding.grid
---@field family string of parallelize_fixture.lua or pipeline_fixture.lua
---@field options sharding.ParallelOptions
---@field index integer among the rows of its test, for seeds

---@type sharding.GridRun[]
M.rows = {}

local num_rows = {} -- of each test

--- Adds a row for each family.
local function add(test, use, ranks, families, sizes, options)
  for _, family in ipairs(families) do
    num_rows[test] = (num_rows[test] or 0) + 1
    M.rows[#M.rows + 1] = { test = test, use = use, ranks = ranks, sizes = sizes, family = family,
      options = options or {}, index = num_rows[test] }
  end
end

local function sharded(more) return plain.copy({ fully_shard = {} }, more) end
local function replicas(more) return plain.copy({ fully_shard = false }, more) end

-- tp and dp -----------------------------------------------------------------------------------------------

local TP_SIZES = { [1] = { 1 }, [2] = { 2 }, [4] = { 2, 4 } }

--- Both kinds of dp, one of them with split tokens. Two sizes of tp have all four together.
local function both_kinds(index)
  return { sharded { sequence = index % 2 == 0 }, replicas { sequence = index % 2 == 1 } }
end

for _, ranks in ipairs { 1, 2, 4 } do
  for f, family in ipairs { "qwen3", "qwen3_tied", "qwen3_few_kv", "qwen3_moe", "qwen3_vl" } do
    for i, tp in ipairs(TP_SIZES[ranks]) do
      for _, options in ipairs(both_kinds(f + i + ranks / 2)) do
        add("parallelize", "train", ranks, { family }, { tp = tp }, options)
      end
    end
  end
  for i, tp in ipairs(TP_SIZES[ranks]) do
    for j, options in ipairs(both_kinds(i + ranks / 2)) do
      local family = ({ "qwen3", "qwen3_few_kv", "qwen3_moe" })[(math.floor(ranks / 2) + i + 2 * j) % 3 + 1]
      add("parallelize", "adapters", ranks, { family }, { tp = tp }, options)
      local with_dora = ({ "qwen3_few_kv", "phi3" })[(i + j) % 2 + 1]
      if ranks < 4 or i * j == 4 then add("parallelize", "dora", ranks, { with_dora }, { tp = tp }, options) end
    end
  end
end
add("parallelize", "train", 4, { "qwen3" }, { tp = 2, replicas = 2 }, { fully_shard = { deterministic = true } })

-- Plans of other families: fused weights, norms over all heads, sinks, latents. Two layers are two stages.
add("parallelize", "train", 2, { "olmo3", "gpt_oss", "deepseek_v3" }, { tp = 2 }, sharded())
add("parallelize", "train", 2, { "gemma3", "deepseek_v3_plain" }, { tp = 2 }, replicas())
add("parallelize", "train", 2, { "phi3", "gemma3_vision" }, { tp = 2 }, sharded { sequence = true })
add("parallelize", "train", 2, { "olmo3", "deepseek_v3" }, { tp = 2 }, replicas { sequence = true })
add("parallelize", "train", 4, { "olmo3" }, { tp = 4 }, sharded { sequence = true })
add("parallelize", "train", 4, { "phi3", "deepseek_v3" }, { tp = 2, pp = 2 }, replicas())
add("parallelize", "train", 4, { "gpt_oss", "gemma3", "gemma3_vision" }, { tp = 2, pp = 2 },
  replicas { sequence = true })
add("parallelize", "train", 4, { "mixtral" }, { ep = 2, pp = 2 }, sharded())
add("parallelize", "train", 4, { "gpt_oss", "gemma3_vision" }, { cp = 2, pp = 2 }, sharded { cp = "all_to_all" })
add("parallelize", "train", 2, { "mixtral", "granite" }, { pp = 2 }, replicas { order = "all_forwards_first" })

-- States, folders and generation: each goes on from a grid in the others.
for _, use in ipairs { "state", "folder", "generation" } do
  for i, tp in ipairs { 1, 2, 4 } do
    for j, options in ipairs { sharded { sequence = tp == 2 }, replicas {} } do
      local families = use == "state" and { j == 1 and "qwen3_few_kv" or "qwen3_vl" }
        or use == "folder" and (j == 1 and { "qwen3_few_kv", "qwen3_vl" } or { "qwen3_tied", "qwen3_moe" })
        or { ({ "qwen3_moe", "qwen3_few_kv", "qwen3" })[(2 * i + j) % 3 + 1] }
      add("parallelize_state", use, 4, families, { tp = tp }, options)
    end
  end
end

add("parallelize_state", "state", 4, { "phi3" }, { tp = 2 }, sharded())
add("parallelize_state", "state", 4, { "phi3" }, { tp = 2 }, replicas { sequence = true })
add("parallelize_state", "folder", 4, { "olmo3" }, { tp = 4 }, replicas { sequence = true })
add("parallelize_state", "folder", 4, { "phi3" }, { tp = 2 }, sharded())
add("parallelize_state", "folder", 4, { "gpt_oss" }, { tp = 2 }, replicas())
add("parallelize_state", "generation", 4, { "olmo3", "phi3", "deepseek_v3" }, { tp = 2 }, replicas())
add("parallelize_state", "generation", 4, { "gpt_oss", "gemma3_vision" }, { tp = 2 }, sharded { sequence = true })

-- cp ------------------------------------------------------------------------------------------------------

local CP_SIZES = { [1] = { { cp = 1 } }, [2] = { { cp = 2 } }, [4] = { { cp = 4 }, { cp = 2 }, { cp = 2, tp = 2 } } }

for _, ranks in ipairs { 1, 2, 4 } do
  for _, sizes in ipairs(CP_SIZES[ranks]) do
    for _, cp in ipairs { "ring", "all_to_all" } do
      local families = { "qwen3", "qwen3_few_kv", "qwen3_moe", "qwen3_vl" }
      add("parallelize_context", "train", ranks, families, sizes, sharded { cp = cp })
      if not sizes.tp then add("parallelize_context", "train", ranks, families, sizes, replicas { cp = cp }) end
    end
    add("parallelize_context", "generation", ranks, { "qwen3_moe" }, sizes, sharded())
  end
  for _, cp in ipairs { "ring", "all_to_all" } do
    add("parallelize_context", "train", ranks, { "qwen3" }, { cp = ranks }, sharded { cp = cp, checkpoint = {} })
  end
end
add("parallelize_context", "train", 4, { "qwen3", "qwen3_vl" }, { cp = 2, tp = 2 },
  sharded { cp = "ring", sequence = true })
add("parallelize_context", "train", 4, { "qwen3_moe" }, { cp = 2, tp = 2 }, sharded { sequence = true })
add("parallelize_context", "train", 4, { "deepseek_v3" }, { cp = 2, tp = 2 }, sharded { cp = "ring", sequence = true })
add("parallelize_context", "train", 2, { "phi3_long" }, { cp = 2 }, replicas { cp = "ring" })
-- Sinks: a ring takes them once, and an exchange of heads those of its heads.
add("parallelize_context", "train", 2, { "gpt_oss" }, { cp = 2 }, replicas { cp = "all_to_all" })
add("parallelize_context", "train", 4, { "gpt_oss" }, { cp = 4 }, sharded { cp = "ring" })
add("parallelize_context", "train", 4, { "gpt_oss", "gemma3_vision" }, { cp = 2, tp = 2 },
  sharded { cp = "all_to_all", sequence = true })

-- ep ------------------------------------------------------------------------------------------------------

for _, ranks in ipairs { 2, 4 } do
  local function add_experts(families, sizes, options)
    add("expert_parallel", "train", ranks, families, sizes, options)
  end
  for ep = 2, ranks, 2 do
    add_experts({ "qwen3_moe", "mixtral" }, { ep = ep }, sharded())
    add_experts({ "qwen3_moe", "mixtral" }, { ep = ep }, replicas())
  end
  add_experts({ "qwen3_moe" }, { ep = 2 }, { fully_shard = { reshard_after_forward = false, prefetch = 3 } })
  add_experts({ "qwen3_moe" }, { ep = 2 },
    { fully_shard = { units = { "model.layers.*.self_attn" }, skipped = "join" } })
  add_experts({ "qwen3_moe" }, { ep = 2 }, sharded { checkpoint = {} })
  add_experts({ "qwen3_vl_moe" }, { ep = 2 }, sharded())
  -- Experts lie on ranks that hold chunks of one sequence.
  add_experts({ "qwen3_moe" }, { cp = 2, ep = 2 }, sharded { cp = "ring" })
  add_experts({ "qwen3_moe" }, { cp = 2, ep = 2 }, replicas { cp = "all_to_all" })
end
add("expert_parallel", "train", 4, { "qwen3_moe" }, { cp = 2, ep = 4 }, sharded { cp = "ring" })
add("expert_parallel", "train", 4, { "qwen3_moe" }, { tp = 2, cp = 2, ep = 2 },
  sharded { cp = "ring", sequence = true })
add("expert_parallel", "train", 4, { "qwen3_moe" }, { tp = 2, ep = 2 }, sharded())
add("expert_parallel", "train", 4, { "qwen3_moe" }, { tp = 2, ep = 2 }, replicas())
add("expert_parallel", "train", 4, { "deepseek_v3", "gpt_oss" }, { tp = 2, ep = 2 }, sharded { sequence = true })
add("expert_parallel", "train", 2, { "gpt_oss" }, { ep = 2 }, replicas())
add("expert_parallel", "train", 4, { "gpt_oss" }, { cp = 2, ep = 4 }, sharded { cp = "ring" })
add("expert_parallel", "train", 4, { "qwen3_moe" }, { ep = 2, replicas = 2 }, sharded())

for _, ranks in ipairs { 2, 4 } do
  for _, use in ipairs { "state", "folder", "generation" } do
    add("expert_parallel_models", use, ranks, { "qwen3_moe" }, {}, sharded())
    add("expert_parallel_models", use, ranks, { "qwen3_moe" }, { ep = 2 }, sharded())
    add("expert_parallel_models", use, ranks, { "qwen3_moe" }, { ep = ranks }, replicas())
  end
end

-- pp ------------------------------------------------------------------------------------------------------

local PP_SIZES = { [2] = { { pp = 2 } }, [3] = { { pp = 3 } }, [4] = { { pp = 2, dp = 2 }, { pp = 2, tp = 2 } } }
local ORDERS = { { order = "1f1b" }, { order = "all_forwards_first" }, { order = "interleaved", chunks = 2 },
  { order = "all_forwards_first", chunks = 2 } }

for _, ranks in ipairs { 2, 3, 4 } do
  for _, order in ipairs(ORDERS) do
    for _, sizes in ipairs(PP_SIZES[ranks]) do
      add("pipeline/pipeline", "train", ranks, { "qwen3", "llama_tied", "qwen3_moe" }, sizes, replicas(order))
    end
    if ranks == 4 then
      add("pipeline/pipeline", "train", ranks, { "qwen3_moe", "llama_tied" }, { pp = 2, dp = 2 }, sharded(order))
    end
    add("pipeline/pipeline", "frozen", ranks, { "llama" }, PP_SIZES[ranks][1], replicas(order))
  end
end
for _, order in ipairs { ORDERS[1], ORDERS[3] } do
  add("pipeline/pipeline", "train", 4, { "llama_tied", "qwen3_moe" }, { pp = 2, tp = 2 },
    replicas(plain.copy(order, { sequence = true })))
end

add("pipeline/pipeline_state", "state", 2, { "llama_tied" }, { pp = 2 }, replicas(ORDERS[1]))
add("pipeline/pipeline_state", "state", 2, { "qwen3_moe" }, { pp = 2 }, replicas(ORDERS[3]))
add("pipeline/pipeline_state", "state", 4, { "llama_tied", "qwen3_moe" }, { pp = 2, dp = 2 }, sharded(ORDERS[1]))
add("pipeline/pipeline_state", "state", 4, { "qwen3_moe" }, { pp = 2, ep = 2 }, sharded(ORDERS[3]))
add("pipeline/pipeline_state", "state", 4, { "qwen3_moe" }, { pp = 2, cp = 2 }, replicas(ORDERS[1]))
add("pipeline/pipeline_state", "state", 4, { "llama_tied", "qwen3_moe" }, { pp = 2, tp = 2 },
  replicas(plain.copy(ORDERS[3], { sequence = true })))

-- Products of pp with others. Orders, forms of attention, shards and replicas take turns.

local function add_products(ranks, sizes, families, more)
  for _, family in ipairs(families) do
    local turn = (num_rows["pipeline/pipeline_products"] or 0) + 1
    add("pipeline/pipeline_products", "train", ranks, { family }, sizes, plain.copy({
      order = ORDERS[turn % 4 + 1].order, chunks = ORDERS[turn % 4 + 1].chunks, fully_shard = turn % 3 ~= 0 and {},
      cp = sizes.cp and (turn % 2 == 0 and "ring" or "all_to_all") }, more or {}))
  end
end

local PICTURES, EXPERTS = { "qwen3_vl", "qwen3_vl_moe" }, { "qwen3_moe", "qwen3_late_moe", "qwen3_vl_moe" }
local ALL = { "qwen3", "qwen3_tied", "qwen3_moe", "qwen3_vl", "qwen3_vl_moe" }

for _, pp in ipairs { 2, 3 } do
  for _ = 1, pp == 2 and 2 or 1 do -- another turn of the options
    add_products(pp, { pp = pp }, PICTURES)
    add_products(2 * pp, { pp = pp, cp = 2 }, ALL)
    add_products(2 * pp, { pp = pp, ep = 2 }, EXPERTS)
  end
  add_products(2 * pp, { pp = pp, cp = 2, ep = 2 }, EXPERTS)
  add_products(2 * pp, { pp = pp, tp = 2 }, PICTURES)
  add_products(2 * pp, { pp = pp, tp = 2 }, PICTURES, { sequence = true })
  add_products(2 * pp, { pp = pp }, PICTURES)
end
add_products(8, { pp = 2, cp = 2, tp = 2 }, ALL)
add_products(8, { pp = 2, cp = 2, tp = 2 }, { "qwen3_tied", "qwen3_moe", "qwen3_vl_moe" },
  { sequence = true, cp = "ring" })
add_products(8, { pp = 2, cp = 2 }, { "qwen3_tied", "qwen3_moe", "qwen3_vl" })
add_products(8, { pp = 2, tp = 2, ep = 2 }, { "qwen3_late_moe", "qwen3_vl_moe" })
add_products(8, { pp = 2, ep = 2 }, { "qwen3_moe", "qwen3_vl_moe" })
add_products(8, { pp = 2, cp = 2, ep = 4 }, { "qwen3_moe", "qwen3_vl_moe" })
add_products(8, { pp = 2, cp = 2, tp = 2, ep = 2 }, { "qwen3_moe", "qwen3_vl_moe" }, { sequence = true, cp = "ring" })

-- Preferences and policies --------------------------------------------------------------------------------

-- Losses of log-probabilities take turns.
local TEXT_LOSSES = { "pairs", "answers", "policy" }

local function add_losses(ranks, family, sizes, options)
  local turn = (num_rows.preferences_ranks or 0) % #TEXT_LOSSES + 1
  add("preferences_ranks", TEXT_LOSSES[turn], ranks, { family }, sizes, options)
end
local function add_scores(ranks, family, sizes, options)
  add("preferences_ranks", "scores", ranks, { family .. "_judge" }, sizes, options)
end

add_losses(2, "qwen3", {}, sharded())
add_losses(2, "qwen3", { tp = 2 }, replicas { sequence = true })
add_losses(2, "qwen3", { cp = 2 }, sharded { cp = "ring" })
add_losses(2, "qwen3", { pp = 2 }, replicas())
add_losses(2, "qwen3_moe", { ep = 2 }, sharded())
add_losses(4, "qwen3", { tp = 2 }, sharded())
add_losses(4, "qwen3", { tp = 2, cp = 2 }, sharded { sequence = true })
add_losses(4, "qwen3", { cp = 2, pp = 2 }, replicas { cp = "ring" })
add_losses(4, "qwen3_moe", { cp = 2, ep = 2 }, sharded())
add_scores(2, "qwen3", { tp = 2 }, replicas { sequence = true })
add_scores(2, "qwen3", { cp = 2 }, sharded { cp = "ring" })
add_scores(4, "qwen3", { cp = 2, pp = 2 }, replicas { cp = "ring" })

-- Reading -------------------------------------------------------------------------------------------------

M.AXES = { "tp", "cp", "ep", "pp", "dp" }

--- Returns a row's sizes, with dp.
---@param row sharding.GridRun
---@return table<string, integer>
function M.sizes(row)
  local sizes = { replicas = row.sizes.replicas or 1 }
  for _, axis in ipairs(M.AXES) do sizes[axis] = row.sizes[axis] or 1 end
  sizes.dp = row.ranks / (sizes.tp * sizes.cp * sizes.pp)
  return sizes
end

--- Returns the words that tell how a row differs from the defaults, in a fixed order.
---@param row sharding.GridRun
---@return string[]
function M.words(row)
  local o, words = row.options, {}
  words[1] = o.fully_shard == false and "replicas" or "fully_shard"
  if row.sizes.replicas then words[#words + 1] = "replicas = " .. row.sizes.replicas end
  if o.cp then words[#words + 1] = o.cp end
  if o.order then words[#words + 1] = o.order .. (o.chunks and " of " .. o.chunks .. " chunks" or "") end
  for _, name in ipairs { "sequence", "checkpoint" } do
    if o[name] then words[#words + 1] = name end
  end
  return words
end

--- Returns a name for a row's test.
---@param row sharding.GridRun
---@return string
function M.name(row)
  local parts = { row.index, row.family }
  for _, axis in ipairs(M.AXES) do
    local size = row.sizes[axis]
    if size then parts[#parts + 1] = axis .. size end
  end
  for _, word in ipairs(M.words(row)) do parts[#parts + 1] = (word:gsub("%W+", "_"):gsub("_$", "")) end
  return table.concat(parts, "_")
end

--- Returns the rows that a test runs on a number of ranks. Fails where there are none: the test would run nothing.
---@param test string
---@param use string
---@param ranks integer
---@return sharding.GridRun[]
function M.of(test, use, ranks)
  local found = {}
  for _, row in ipairs(M.rows) do
    if row.test == test and row.use == use and row.ranks == ranks then found[#found + 1] = row end
  end
  if #found == 0 then error(('no row says that %s runs "%s" on %d ranks'):format(test, use, ranks), 2) end
  return found
end

return M
