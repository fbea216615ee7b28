--- batching.survey: what is said before a run begins about samples that it would cut or not learn.

local batching = require "lockstep.batching"
local data = require "lockstep.data"
local dist = require "lockstep.distributed"
local plain = require "lockstep.plain"
local run = require "lockstep.run"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local RANK = dist.rank()

--- A file of lines {"n": tokens, "loss": from which token on}, and what else they hold.
local files = 0
local function source_of(lines)
  files = files + 1
  local path = ("%s/lines-%d.jsonl"):format(run.dir, files)
  if RANK == 0 then
    local file = assert(io.open(path, "w"))
    for _, line in ipairs(lines) do file:write(line, "\n") end
    file:close()
  end
  dist.barrier()
  return data.source(path)
end

local function encode(line)
  if line.broken then error("this line is broken", 0) end
  local sample = { input_ids = {}, loss_mask = {} }
  for i = 1, line.n do sample.input_ids[i], sample.loss_mask[i] = i, i >= line.loss and 1 or 0 end
  return sample
end

--- Surveys, and returns the result, what rank 0 printed, and the survey's records in metrics.jsonl.
local function survey(opts)
  local found
  local printed = t.printed(function() found = batching.survey(opts) end)
  local records = {}
  for object in RANK == 0 and data.jsonl(run.dir .. "/metrics.jsonl") or function() end do
    if object.event == "survey" then records[#records + 1] = object end
  end
  dist.barrier()
  return found, printed, records[#records]
end

local function has(text, part) t.truthy(RANK > 0 or text:find(part, 1, true), ("%q lacks %q"):format(text, part)) end

t.test("WhatIsCutAndWhatTeachesNothingIsCountedAndNamed", function()
  local lines = {}
  for i = 1, 30 do lines[i] = '{"n": 10, "loss": 5}' end
  lines[4], lines[9], lines[20], lines[21] = '{"n": 15, "loss": 12}', '{"n": 15, "loss": 13}', '{"n": 3, "loss": 4}',
    '{"n": 1, "loss": 1, "weight": 2, "id": null}'
  local source = source_of(lines)

  local found, printed, record = survey { source = source, map = encode, seq_len = 12, reads = { "n", "loss" } }

  t.equal(found, { samples = 30, tokens = 26 * 10 + 2 * 12 + 3 + 1, loss_tokens = 26 * 6 + 1, truncated_samples = 2,
    truncated_tokens = 6, truncated_loss_tokens = 3 + 3, dropped_samples = 0, samples_without_loss = 3, roles = {} })
  has(printed, "survey at step 0  loss_tokens 157  samples 30  samples_without_loss 3  tokens 288  "
    .. "truncated_loss_tokens 6  truncated_samples 2  truncated_tokens 6\n")
  has(printed, "fields of samples that are not read: weight\n")
  has(printed, "with seq_len = 12 these samples are not learnt as a whole:\n")
  local place = "lines-1.jsonl, line "
  local said = {
    "4: 3 of 15 tokens are cut, 3 of them with a loss",
    "9: 3 of 15 tokens are cut, 3 of them with a loss; nothing is left to learn",
    "20: no token has a loss", "21: no token has a loss",
  }
  if RANK == 0 then
    local lines_of_file = {}
    for line in data.lines(run.dir .. "/survey.txt") do lines_of_file[#lines_of_file + 1] = line end
    t.equal(#lines_of_file, 4)
    for _, line in ipairs(said) do
      has(printed, place .. line .. "\n")
      has(table.concat(lines_of_file, "\n") .. "\n", place .. line .. "\n")
    end
    t.equal({ record.samples, record.dropped_samples, record.truncated_samples }, { 30, 0, 2 })
  end
end)

t.test("CutsAreAnErrorOrLeaveSamplesOutByTheRule", function()
  local lines = {}
  for i = 1, 10 do lines[i] = '{"n": 10, "loss": 5}' end
  lines[4], lines[9], lines[7] = '{"n": 15, "loss": 12}', '{"n": 14, "loss": 13}', '{"n": 3, "loss": 4}'
  local source = source_of(lines)
  local place = ("lines-%d.jsonl, line "):format(files)
  local message
  t.printed(function()
    message = t.raises("batching.survey: 2 of 10 samples are longer than seq_len = 12. A cut would lose 5 tokens, 5 of "
      .. "them with a loss. Raise seq_len, or set on_cut to \"cut\", or to \"drop\" to leave the samples out:\n",
      batching.survey, { source = source, map = encode, seq_len = 12, on_cut = "error" })
  end)
  for _, line in ipairs { "4: 3 of 15 tokens are cut, 3 of them with a loss", "7: no token has a loss" } do
    t.truthy(message:find(place .. line, 1, true), message)
  end
  survey { source = source, map = encode, seq_len = 15, on_cut = "error" }

  local found, printed = survey { source = source, map = encode, seq_len = 12, on_cut = "drop" }
  t.equal({ found.samples, found.tokens, found.loss_tokens, found.dropped_samples, found.truncated_samples,
    found.truncated_tokens, found.truncated_loss_tokens }, { 10, 7 * 10 + 3, 7 * 6, 2, 0, 29, 4 + 2 })
  has(printed, place .. "4: is left out with its 15 tokens, 4 of them with a loss\n")
  t.raises('batching.survey: on_cut must be "cut", "drop" or "error", not "skip"', batching.survey,
    { source = source, map = encode, seq_len = 12, on_cut = "skip" })
end)

t.test("HeldOutSamplesThatEvaluationCutsAreCountedAndNamedApart", function()
  local lines = {}
  for i = 1, 20 do lines[i] = ('{"n": %d, "loss": 5}'):format(i <= 8 and i % 2 == 0 and 20 or 10) end
  local held_out, source = source_of(lines), source_of { '{"n": 10, "loss": 5}', '{"n": 10, "loss": 5}' }
  local place = ("held out: .*lines%%-%d.jsonl, line "):format(files - 1)
  for _, rule in ipairs { "error", "cut", "drop" } do
    for most, cut in pairs { [2] = 1, [5] = 2, [8] = 4, [100] = 4 } do
      local found, printed, record = survey { source = source, map = encode, seq_len = 12, on_cut = rule,
        held_out = held_out, held_out_samples = most }
      t.equal({ found.held_out_samples, found.held_out_truncated_samples, found.held_out_truncated_tokens },
        { math.min(most, 20), cut, 8 * cut })
      t.equal({ found.samples, found.truncated_samples, found.dropped_samples }, { 2, 0, 0 })
      t.truthy(RANK > 0 or printed:find(place .. "2: 8 of 20 tokens are cut, 8 of them with a loss"), printed)
      t.truthy(RANK > 0 or not printed:find(place .. "5"), printed)
      t.equal(record and record.held_out_truncated_samples, RANK == 0 and cut or nil)
    end
  end
  local without = survey { source = source, map = encode, seq_len = 12, held_out = {} }
  t.equal(without.held_out_samples, nil)
  lines[3], lines[4] = '{"broken": true}', '{"broken": true}' -- evaluation refuses them
  local found = survey { source = source, map = encode, seq_len = 12, held_out = source_of(lines) }
  t.equal(found.held_out_truncated_samples, 3)
end)

t.test("AnEpochHasTheSamplesThatOnCutKeeps", function()
  local lines = {}
  for i = 1, 700 do lines[i] = ('{"n": %d, "loss": 2}'):format(i % 7 == 0 and 13 or 12) end
  lines[1] = '{"broken": true}' -- the survey refuses it
  local source = source_of(lines)
  for rule, count in pairs { cut = 700, error = 700, drop = 600 } do
    t.equal(batching.samples_kept { source = source, map = encode, seq_len = 12, on_cut = rule }, count)
  end
  t.raises('batching.samples_kept: on_cut must be "cut", "drop" or "error", not "skip"', batching.samples_kept,
    { source = source, map = encode, seq_len = 12, on_cut = "skip" })
end)

t.test("TheRolesOfMessagesAreCounted", function()
  local function chat(...)
    local messages = {}
    for i, role in ipairs { ... } do messages[i] = { role = role, content = "" } end
    return { messages = messages }
  end
  local source = { chat("system", "user", "assistant"), chat("user", "assistant", "user", "assistant"), { n = 1 },
    chat("user", "tool", "assistant") }
  local found, printed = survey { source = source, map = function() return encode { n = 3, loss = 2 } end, seq_len = 3 }
  t.equal(found.roles, { assistant = 4, system = 1, tool = 1, user = 4 })
  has(printed, "  messages  assistant 4  system 1  tool 1  user 4\n")
end)

t.test("OnlySamplesThatWillBeDrawnAreSurveyedInTheLoadersOrder", function()
  local lines = {}
  for i = 1, 50 do lines[i] = ('{"n": %d, "loss": 1}'):format(i + 1) end
  local source = source_of(lines)
  for _, count in ipairs { 1, 7, 50, 90 } do
    local loader, tokens, drawn = data.loader { source = source, seed = 5, rank = 0, world = 1 }, 0, math.min(count, 50)
    for _ = 1, drawn do tokens = tokens + loader().n end
    local found = survey { source = source, map = encode, seq_len = 100, samples = count, seed = 5 }
    t.equal({ found.samples, found.tokens, found.loss_tokens }, { drawn, tokens, tokens - drawn })
  end
end)

-- More samples than the ranks survey between two meetings, and a map that draws random numbers.
t.test("AMapsRandomNumbersLeaveTheScriptsAlone", function()
  local lines = {}
  for i = 1, 1100 do lines[i] = '{"n": 4, "loss": 2}' end
  math.randomseed(3)
  local expected = math.random()
  math.randomseed(3)
  local found = survey { source = source_of(lines), map = function(line)
    math.random()
    return encode(line)
  end, seq_len = 4 }
  t.equal(math.random(), expected)
  t.equal({ found.samples, found.samples_without_loss }, { 1100, 0 })
end)

t.test("SamplesThatCannotBeTrainedOnAreOneErrorOnEveryRank", function()
  local lines = {}
  for i = 1, 20 do lines[i] = i % 2 == 0 and '{"broken": true}' or '{"n": 3, "loss": 2}' end
  lines[7], lines[9] = '{"n": 0, "loss": 1}', '{"n": '
  local message = t.raises("batching.survey: 12 of 20 samples cannot be trained on:\n", batching.survey,
    { source = source_of(lines), map = encode, seq_len = 8 })
  local count = select(2, message:gsub("%.jsonl, line %d+: this line is broken\n", ""))
  t.truthy(count >= 3 and count <= 5, message)
  t.truthy(message:find("  and 7 more: see .*/survey%.txt$"), message)
  dist.barrier()
  local path, all = ("%s/lines-%d.jsonl"):format(run.dir, files), plain.read_file(run.dir .. "/survey.txt")
  t.truthy(all:find(".jsonl, line 7: batching: sample 1 has no tokens", 1, true), all)
  t.truthy(all:find(path .. ", line 9: ", 1, true) and not all:find("line 9: [^\n]*line 9: "), all)
  t.equal(select(2, all:gsub("\n", "\n")), 12)
end)

t.test("ASourceThatTeachesNothingIsAnError", function()
  local source = source_of { '{"n": 3, "loss": 4}', '{"n": 9, "loss": 9}' }
  t.raises("batching.survey: no token of 2 samples has a loss with seq_len = 8", function()
    t.printed(batching.survey, { source = source, map = encode, seq_len = 8 })
  end)
  t.raises("batching.survey: map must be a function that returns a sample, not a string", batching.survey,
    { source = source, map = "encode", seq_len = 8 })
  t.raises("batching.survey: samples must be at least 1, not 0", batching.survey,
    { source = source, map = encode, seq_len = 8, samples = 0 })
end)

t.test("PicturesAreCutAsTheRunCutsThem", function()
  local function picture(line)
    local types = { 0, 1, 1, 0, 1, 1, 1, 0 } -- two pictures, of 2 and 3 tokens
    return { input_ids = { 1, 2, 3, 4, 5, 6, 7, 8 }, loss_mask = { 0, 0, 0, 1, 0, 0, 0, 1 }, mm_token_type_ids = types,
      pixel_values = torch.zeros { 20, 3 }, image_grid_thw = torch.tensor({ { 1, 2, 4 }, { 1, 2, 6 } },
        { dtype = torch.int64 }), id = nil, kind = line.kind }
  end
  local found = survey { source = source_of { "{}", "{}" }, map = picture, seq_len = 6 }
  t.equal({ found.tokens, found.loss_tokens, found.truncated_tokens, found.truncated_loss_tokens }, { 8, 2, 8, 2 })
end)
