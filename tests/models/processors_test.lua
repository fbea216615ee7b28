-- What changes logits before a token is drawn: the options of models.generate that generation_config.json has. The
-- references are transformers' formulas, number by number, over the whole sequence.

local core = require "lockstep.core"
local data = require "lockstep.data"
local models = require "lockstep.models"
local run = require "lockstep.run"
local sampling = require "lockstep.models.sampling"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local model = models.load "tests/models/qwen2"
local VOCAB = model.settings.vocab_size

--- RepetitionPenaltyLogitsProcessor: score = where(score < 0, score * penalty, score / penalty), of ids so far.
local function repeated(scores, ids, penalty)
  local seen = {}
  for _, id in ipairs(ids) do seen[id] = true end
  for id in pairs(seen) do scores[id] = scores[id] < 0 and scores[id] * penalty or scores[id] / penalty end
end

local function minus_infinity(scores, ids)
  for _, id in ipairs(ids) do scores[id] = -math.huge end
end

--- ForcedBOSTokenLogitsProcessor and ForcedEOSTokenLogitsProcessor.
local function forced(scores, ids)
  for id in pairs(scores) do scores[id] = -math.huge end
  for _, id in ipairs(ids) do scores[id] = 0 end
end

--- Returns the greedy ids after a prompt.
local function reference(prompt, o)
  local ids, found = { unpack(prompt) }, {}
  for step = 1, o.max_new_tokens do
    local row = torch.no_grad(model, { input_ids = torch.tensor(ids, { dtype = torch.int64 }) })[-1]:totable()
    local scores, best = {}, 0
    for i, value in ipairs(row) do scores[i - 1] = value end
    repeated(scores, ids, o.repetition_penalty or 1)
    if o.forced_begin and #ids == 1 then forced(scores, o.forced_begin) end
    if o.forced_end and step == o.max_new_tokens then forced(scores, o.forced_end) end
    minus_infinity(scores, o.suppress or {})
    if step == 1 then minus_infinity(scores, o.begin_suppress or {}) end
    for id = 1, VOCAB - 1 do
      if scores[id] > scores[best] then best = id end
    end
    ids[#ids + 1], found[step] = best, best
  end
  return found
end

local function draw_ids(count)
  local ids = {}
  for i = 1, count do ids[i] = math.random(VOCAB) - 1 end
  return ids
end

t.test("IdsAreThoseOfTransformersFormulas", function()
  for seed = 1, 25 do
    math.randomseed(seed)
    local prompts = { draw_ids(1), draw_ids(math.random(6)), draw_ids(math.random(6)) }
    local o = { max_new_tokens = math.random(8), stop = {} }
    if math.random(3) > 1 then o.repetition_penalty = 0.5 + 2 * math.random() end
    if math.random(2) == 1 then o.suppress = draw_ids(20) end
    if math.random(2) == 1 then o.begin_suppress = draw_ids(20) end
    -- Forced ids that are suppressed leave nothing to draw.
    if not o.suppress and not o.begin_suppress then o.forced_begin, o.forced_end = draw_ids(1), draw_ids(2) end
    local found = models.generate(model, prompts, o)
    for i, prompt in ipairs(prompts) do
      t.equal(found[i], reference(prompt, o), ("seed %d, prompt %d"):format(seed, i))
    end
  end
end)

--- MinPLogitsWarper: ids with a probability below min_p times the largest are removed.
t.test("MinPDrawsFromTheIdsThatReachItsShareOfTheLargest", function()
  local num_draws, sequences = 500, {}
  for i = 1, num_draws do sequences[i] = i end
  for seed = 1, 10 do
    math.randomseed(seed)
    local row, temperature, min_p, expected = {}, 0.5 + math.random(), 0.3 + 0.6 * math.random(), {}
    for i = 1, 8 do row[i] = 2 * math.random() end
    local largest = math.max(unpack(row))
    for i, value in ipairs(row) do
      if math.exp((value - largest) / temperature) >= min_p then expected[i - 1] = true end
    end
    local draw = sampling.sampler({ temperature = temperature, min_p = min_p, seed = seed }, num_draws)
    local found = {}
    for _, id in ipairs((draw(torch.tensor { row }:expand(num_draws, 8), sequences))) do found[id] = true end
    t.equal(found, expected, "seed " .. seed)
  end
end)

t.test("WhatIsNoSuchOptionIsRefused", function()
  local function complains(message, o)
    t.raises("models.generate: " .. message, models.generate, model, { { 1 } }, o)
  end
  complains("repetition_penalty must be a number above 0, got 0", { repetition_penalty = 0 })
  complains("min_p must be from 0 to 1, got 2", { min_p = 2, temperature = 1 })
  complains(("begin_suppress[1] must be an id from 0 to %d, got %d"):format(VOCAB - 1, VOCAB),
    { begin_suppress = { VOCAB } })
  complains("forced_end[1] must be an id from 0 to", { forced_end = { -1 } })
end)

--- Loads the model with a generation_config.json. Returns it, and what was printed.
local function with_file(file)
  local path = run.dir .. "/generation"
  core.make_folder(path)
  for _, name in ipairs { "config.json", "model.safetensors" } do
    core.write_file(path .. "/" .. name, { t.read_file("tests/models/qwen2/" .. name) })
  end
  data.save_json(path .. "/generation_config.json", file)
  return models.load(path)
end

t.test("KeysThatNoOptionStandsForAreOneLine", function()
  local _, heard = t.listening(with_file, { num_beams = 4, typical_p = 1, length_penalty = 1.5, bad_words_ids = {},
    do_sample = false, max_length = 20, watermarking_config = { bias = 2 }, min_p = data.null })
  t.equal(heard, 'lockstep: models: models.generate reads no "length_penalty", "num_beams", "watermarking_config" of '
    .. "generation_config.json\n")
  t.equal(select(2, t.listening(with_file, { num_beams = 1, repetition_penalty = 1.1, eos_token_id = 1 })), "")
end)

t.test("TheFilesValuesAreOptionsOfGenerate", function()
  local read = with_file { do_sample = true, temperature = 0.6, top_p = 0.95, min_p = 0.1, repetition_penalty = 1.05,
    suppress_tokens = { 5 }, begin_suppress_tokens = { 6, 7 }, forced_bos_token_id = 1, forced_eos_token_id = 2,
    eos_token_id = { 3, 4 }, max_new_tokens = 5, num_beams = 1, transformers_version = "4.51.0" }
  t.equal(read.generation, { temperature = 0.6, top_k = 50, top_p = 0.95, min_p = 0.1, repetition_penalty = 1.05,
    suppress = { 5 }, begin_suppress = { 6, 7 }, forced_begin = { 1 }, forced_end = { 2 }, max_new_tokens = 5 })
  t.equal(read.stop_ids, { 3, 4 })
  t.truthy(#models.generate(read, { { 1 } }, read.generation)[1] > 0)

  t.equal(with_file({ temperature = 0.6, top_p = data.null }).generation, { temperature = 0 })
  t.equal(with_file({ do_sample = true, top_k = 0 }).generation, { temperature = 1, top_p = 1 })
  t.equal(models.load("tests/models/llama").generation, nil)
end)
