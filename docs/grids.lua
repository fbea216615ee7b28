--- The table of grids in parallelism.md, from the rows that the tests run: grid_runs_fixture.lua.

local runs = require "lockstep.sharding.grid_runs_fixture"

local M = {}

local START = "<!-- generate.lua writes this table from grid_runs_fixture.lua -->\n"
local END = "<!-- end of the table -->"

local FAMILIES = { qwen3 = "Qwen3", qwen3_tied = "Qwen3 with a tied head",
  qwen3_few_kv = "Qwen3 with few heads of keys and values", qwen3_moe = "Qwen3-MoE", qwen3_vl = "Qwen3-VL",
  qwen3_late_moe = "Qwen3-MoE with experts in late layers",
  qwen3_judge = "Qwen3 with scores",
  qwen3_vl_moe = "Qwen3-VL-MoE", mixtral = "Mixtral", llama = "Llama", llama_tied = "Llama with a tied head",
  olmo3 = "OLMo 3", phi3 = "Phi-3",
  phi3_long = "Phi-3 with long sequences", granite = "Granite",
  gpt_oss = "gpt-oss", gemma3 = "Gemma 3", gemma3_vision = "Gemma 3 with pictures",
  deepseek_v3 = "DeepSeek-V3", deepseek_v3_plain = "DeepSeek-V3 without latents of queries" }

--- What tests do with a grid.
local USES = { train = "training", adapters = "adapters", dora = "DoRA", frozen = "frozen layers", state = "states",
  folder = "folders", generation = "generation, evaluation", pairs = "preferences (DPO)", answers = "answers (KTO)",
  policy = "policy gradients (GRPO)", scores = "reward models" }

local function grid_text(row)
  local sizes, texts = runs.sizes(row), {}
  for _, axis in ipairs(runs.AXES) do
    if sizes[axis] > 1 then texts[#texts + 1] = axis .. " " .. sizes[axis] end
  end
  return #texts > 0 and table.concat(texts, " x ") or "one rank"
end

local function note(list, text)
  if not list[text] then
    list[text] = true
    list[#list + 1] = text
  end
end

--- Returns what is known of a word of the table, or fails: a new family or use needs a name here.
local function name_of(names, key)
  return names[key] or error(('docs/grids.lua has no words for "%s"'):format(key), 0)
end

local function new_line(grid)
  return { grid = grid, families = {}, words = {}, uses = {}, tests = {} }
end

--- Returns a line for each grid, as lists of what its rows have.
local function lines()
  local found = {}
  for _, row in ipairs(runs.rows) do
    local grid = grid_text(row)
    local line = found[grid]
    if not line then
      line = new_line(grid)
      found[grid] = line
      found[#found + 1] = line
    end
    note(line.families, name_of(FAMILIES, row.family))
    for _, word in ipairs(runs.words(row)) do note(line.words, "`" .. word .. "`") end
    note(line.uses, name_of(USES, row.use))
    note(line.tests, ("`%s_test`"):format(row.test:match "[^/]+$"))
  end
  return found
end

--- Returns the table.
---@return string
function M.table()
  local texts = { "| grid | models | options | what | tests |", "|---|---|---|---|---|" }
  for _, line in ipairs(lines()) do
    table.sort(line.words)
    local cells = { line.grid }
    for _, list in ipairs { line.families, line.words, line.uses, line.tests } do
      cells[#cells + 1] = table.concat(list, ", ")
    end
    texts[#texts + 1] = "| " .. table.concat(cells, " | ") .. " |"
  end
  return table.concat(texts, "\n") .. "\n"
end

--- Returns the page with a fresh table.
---@param page string
---@return string
function M.fresh(page)
  local _, start = page:find(START, 1, true)
  local finish = start and page:find(END, start, true)
  if not finish then error("parallelism.md has no place for the table of grids, between its two comments", 0) end
  return page:sub(1, start) .. M.table() .. page:sub(finish)
end

return M
