-- models.generate with max_batch_size: a prompt that waits takes the row of a sequence that has ended. The reference is
-- each prompt alone, in float64, for random prompts and lengths, and every form of attention. Prompts that are the same
-- are computed once. full_pass_test.lua has prompts with pictures.

local models = require "lockstep.models"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local FOLDERS = dofile "tests/models/families_fixture.lua"
for _, folder in ipairs { "llama", "llama_tied", "qwen2", "qwen3", "qwen3_yarn", "qwen3_moe", "qwen3_vl",
  "qwen2_5_vl", "phi3_longrope", "llama_dynamic" } do
  table.insert(FOLDERS, folder)
end

local function load(folder) return models.load("tests/models/" .. folder, { dtype = torch.float64 }) end

local function draw_ids(count)
  local ids = {}
  for i = 1, count do ids[i] = math.random(0, 50) end
  return ids
end

--- Returns prompts of random lengths, some of them the same, and a limit for each.
local function draw_prompts(count, most_new)
  local prompts, limits = {}, {}
  for i = 1, count do
    prompts[i] = i > 1 and math.random(4) == 1 and prompts[math.random(i - 1)] or draw_ids(math.random(20))
    limits[i] = math.random(5) == 1 and math.random(most_new or 1) or math.random(8)
  end
  return prompts, limits
end

--- Returns the ids of each prompt alone.
local function alone(model, prompts, limits, o)
  local results = {}
  for i, prompt in ipairs(prompts) do
    o.max_new_tokens = limits[i]
    results[i] = models.generate(model, { prompt }, o)[1]
  end
  return results
end

for _, folder in ipairs(FOLDERS) do
  t.test("IdsInTurnAreThoseOfEachPromptAloneIn_" .. folder, function()
    local model = load(folder)
    for seed = 1, 2 do
      math.randomseed(seed)
      local prompts, limits = draw_prompts(10, 30)
      local o = { stop = { math.random(0, 50) }, suppress = { 57, 58 } }
      local expected = alone(model, prompts, limits, o)

      o.max_new_tokens, o.max_batch_size = limits, math.random(4)

      local found = models.generate(model, prompts, o)
      for i, ids in ipairs(found) do
        t.equal(ids, expected[i], ("seed %d, %d rows, prompt %d"):format(seed, o.max_batch_size, i))
      end
    end
  end)
end

t.test("TokensMoveWhenTheLastColumnIsFull", function()
  local model = load "qwen2" -- with a window in its second layer
  math.randomseed(5)
  local prompts, limits = draw_prompts(6), { 140, 90, 140, 100, 110, 130 } -- 128 columns are to spare
  local expected = alone(model, prompts, limits, { stop = {} })

  local found = models.generate(model, prompts, { max_new_tokens = limits, stop = {}, max_batch_size = 2 })

  for i, ids in ipairs(found) do t.equal(ids, expected[i], "prompt " .. i) end
end)

t.test("DrawsDoNotDependOnTheRows", function()
  local model = load "qwen3"
  for seed = 1, 3 do
    math.randomseed(seed)
    local prompts, limits = draw_prompts(12, 20)
    local o = { max_new_tokens = limits, temperature = 1.2, top_p = 0.9, seed = seed, stop = { 3, 5 },
      repetition_penalty = 1.3, forced_end = { 7 }, begin_suppress = { 1, 2 } }
    local expected = models.generate(model, prompts, o)
    for _, size in ipairs { 1, 3, 12, 100 } do
      o.max_batch_size = size
      t.equal(models.generate(model, prompts, o), expected, ("seed %d, %d rows"):format(seed, size))
    end
  end
end)

--- Returns the ids, and the tokens of each call of the model.
local function watched(model, prompts, o)
  local hidden, calls = model.hidden, {}
  function model:hidden(batch, ...)
    calls[#calls + 1] = { batch.continues and "next" or "prompts", batch.input_ids:size(0) }
    return hidden(self, batch, ...)
  end
  local ids = models.generate(model, prompts, o)
  model.hidden = nil
  return ids, calls
end

t.test("AFreeRowIsTakenAtOnce", function()
  local _, calls = watched(load "llama", { { 1, 2 }, { 3 }, { 4, 5, 6 }, { 7 } },
    { max_new_tokens = { 1, 4, 2, 2 }, max_batch_size = 2, stop = {} })

  t.equal(calls, { { "prompts", 3 }, { "prompts", 3 }, { "next", 2 }, { "prompts", 1 }, { "next", 2 }, { "next", 1 } })
end)

t.test("PromptsThatAreTheSameAreComputedOnce", function()
  local model = load "llama"
  local prompts, o = {}, { max_new_tokens = 6, temperature = 1.5, seed = 2, stop = {} }
  for i = 1, 8 do prompts[i] = i <= 4 and { 3, 1, 4 } or { 2, 7, 1, 8 } end
  local function first(calls)
    local tokens = 0
    for _, call in ipairs(calls) do tokens = tokens + (call[1] == "prompts" and call[2] or 0) end
    return tokens
  end

  local together, calls = watched(model, prompts, o)
  t.equal(first(calls), 3 + 4)
  o.max_batch_size = 3 -- the others of a group enter later
  local in_turn, calls_in_turn = watched(model, prompts, o)
  t.equal(first(calls_in_turn), 3 + 4)
  t.equal(in_turn, together)
  for i = 2, 4 do t.truthy(table.concat(together[i], " ") ~= table.concat(together[1], " "), "draws differ") end
  -- Another dtype keeps the ids and not the tensors.
  prompts[2] = torch.tensor({ 3, 1, 4 }, { dtype = torch.int32 })
  t.equal(first(select(2, watched(model, prompts, o))), 3 + 3 + 4)
end)

t.test("PromptsWithOtherPositionsOrPicturesAreOthers", function()
  local model = load "llama"
  local prompts = { { 3, 1, 4 }, { input_ids = { 3, 1, 4 }, position_ids = torch.arange(3) * 2 } }

  local _, calls = watched(model, prompts, { max_new_tokens = 1 })

  t.equal(calls, { { "prompts", 6 } })
  local vlm, pictures = load "qwen3_vl", {}
  torch.manual_seed(1)
  for i = 1, 3 do
    pictures[i] = { input_ids = { 1, 55, 57, 56, 2 },
      image_grid_thw = torch.tensor({ { 1, 2, 2 } }, { dtype = torch.int64 }),
      pixel_values = i == 3 and pictures[1].pixel_values:clone() or torch.randn { 4, 54 } }
  end
  local o = { max_new_tokens = 8, stop = {}, suppress = { 57, 58 } }
  local ids, calls_of_pictures = watched(vlm, pictures, o)
  t.equal(calls_of_pictures[1], { "prompts", 10 })
  t.equal(ids, alone(vlm, pictures, { 8, 8, 8 }, { stop = {}, suppress = { 57, 58 } }))
end)

t.test("BadOptionsAreNamed", function()
  local model = load "llama"
  local function fails(message, o)
    t.raises("models.generate: " .. message, models.generate, model, { { 1 }, { 2 } }, o)
  end

  fails("max_batch_size must be a whole number of at least 1, got 0", { max_batch_size = 0 })
  fails("max_batch_size must be a whole number of at least 1, got 2.5", { max_batch_size = 2.5 })
  fails("max_batch_size must be a whole number of at least 1, got all", { max_batch_size = "all" })
  fails("max_new_tokens must be a number, or one for each of 2 prompts, got 1", { max_new_tokens = { 3 } })
  fails("max_new_tokens must be a whole number of at least 1, got 0", { max_new_tokens = { 3, 0 } })
  fails("max_new_tokens must be a whole number of at least 1, got many", { max_new_tokens = "many" })
end)
