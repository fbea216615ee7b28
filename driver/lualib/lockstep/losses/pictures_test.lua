-- Pairs and answers whose prompts have pictures: how they become samples, and when their pixels are read.

local core = require "lockstep.core"
local data = require "lockstep.data"
local images = require "lockstep.images"
local losses = require "lockstep.losses"
local sharding = require "lockstep.sharding"
local t = require "lockstep.testing"
local text = require "lockstep.text"
local torch = require "lockstep.torch"

local dir = dofile "driver/lualib/lockstep/text/chat/vision_fixture.lua" "vlm"
local chat, tokenizer, process = text.chat(dir), text.tokenizer(dir), images.processor(dir)
core.write_file(dir .. "/cat.png", { t.read_file "driver/images/testdata/png_bits.png" })
core.write_file(dir .. "/dog.png", { t.read_file "driver/images/testdata/png_palette4.png" }) -- of the cat's size

local WORDS = { type = "text", text = "Which?" }

local function user(...) return { role = "user", content = { WORDS, ... } } end
local function assistant(content) return { role = "assistant", content = content } end
local function path(name) return { type = "image", path = name } end

--- Returns what read(source, ...) gives for rows of a file in the folder.
local function read(reader, rows, more)
  local file = dir .. "/rows.jsonl"
  data.save_jsonl(file, rows)
  local opts = { tokenizer = tokenizer, seq_len = 400, processor = process }
  for name, value in pairs(more or {}) do opts[name] = value end
  local samples, found
  t.printed(function() samples, found = reader(data.conversations(file), chat, opts) end)
  return samples, found
end

local function deal(samples) return losses.deal(samples, { seq_len = 400, grid = sharding.grid {} }) end

local PAIR = { prompt = { user(path "cat.png", path "dog.png") }, chosen = { assistant "A cat." },
  rejected = { assistant "No." } }

t.test("APairHasEachPictureOnceAndAPlaceInBothConversations", function()
  local num_cut = 0
  local counting = setmetatable({ config = process.config }, { __call = function(_, picture)
    num_cut = num_cut + 1
    return process(picture)
  end })
  local pair = text.preference(PAIR)
  local sample = losses.pairs.sample(chat, pair, { seq_len = 400, processor = counting, folder = dir })
  local chosen = chat:encode(pair.chosen, { processor = process, folder = dir })
  local rejected = chat:encode(pair.rejected, { processor = process, folder = dir })

  t.equal(num_cut, 2)
  t.equal(sample.input_ids, torch.cat { torch.tensor(chosen.input_ids, { dtype = torch.int64 }),
    torch.tensor(rejected.input_ids, { dtype = torch.int64 }) })
  t.equal({ sample.pixel_values, sample.image_grid_thw }, { chosen.pixel_values, chosen.image_grid_thw })
  t.equal({ sample.image_order:totable(), sample.image_counts:totable() }, { { 0, 1, 0, 1 }, { { 2, 4 } } })
  t.equal(sample.loss_mask:sum():item(), #tokenizer:encode "A cat.<|im_end|>" + #tokenizer:encode "No.<|im_end|>")

  -- A picture of an answer is in its conversation alone.
  sample = losses.pairs.sample(chat, text.preference { prompt = PAIR.prompt, chosen = PAIR.chosen,
    rejected = { assistant "No.", user(path "cat.png"), assistant "A dog." } },
    { seq_len = 400, processor = process, folder = dir })
  t.equal({ sample.image_order:totable(), sample.image_counts:totable() }, { { 0, 1, 0, 1, 2 }, { { 3, 5 } } })
end)

t.test("PairsThatDifferInTheirPicturesAloneAreKept", function()
  local function row(name) -- the pictures have one size, so that the ids are the same
    return { chosen = { user(path "cat.png"), assistant "A cat." },
      rejected = { user(path(name)), assistant "A cat." } }
  end
  local samples, found = read(losses.pairs.read, { row "dog.png", row "cat.png" })
  t.equal({ #samples, found.skipped, found.rows }, { 1, 1, { 1 } })
  samples, found = read(losses.unpaired.read, { row "dog.png", row "cat.png" })
  t.equal({ #samples, found.skipped, found.rows }, { 2, 2, { 1, 1 } })
end)

t.test("PackedPairsCountTheirPicturesFromZero", function()
  local batch = losses.pairs.batch { input_ids = torch.arange(8), lengths = torch.tensor { { 2, 2 }, { 3, 1 } },
    pixel_values = torch.zeros { 12, 2 }, image_grid_thw = torch.ones({ 3, 3 }, { dtype = torch.int64 }),
    image_order = torch.tensor({ 0, 1, 0, 1, 0, 0 }, { dtype = torch.int64 }),
    image_counts = torch.tensor({ { 2, 4 }, { 1, 2 } }, { dtype = torch.int64 }) }
  t.equal({ batch.seq_lens, batch.image_order:totable() }, { { 2, 2, 3, 1 }, { 0, 1, 0, 1, 2, 2 } })
end)

t.test("PixelsAreReadWhenASampleIsDealt", function()
  local text_alone = { prompt = "Which?", chosen = "None.", rejected = "One." }
  local samples, found = read(losses.pairs.read, { PAIR, text_alone,
    { prompt = "Which?", chosen = "A cat.", rejected = "No.", image = "cat.png" } })
  t.equal({ #samples, samples[1].kind, samples[2].kind }, { 3, "pair+image", "pair" })
  t.truthy(samples[1].pixel_values:isnan():all():item())
  t.equal({ found.rows, #found.ids }, { { 1, 2, 3 }, 5 })

  local batches, report = deal(samples)
  local pixels, kinds = {}, {}
  for _, batch in ipairs(batches) do
    kinds[batch.kind], pixels[#pixels + 1] = #batch.samples, batch.pixel_values
  end
  local whole = losses.pairs.sample(chat, text.preference(PAIR), { seq_len = 400, processor = process, folder = dir })
  local cat = process(images.read(dir .. "/cat.png", { alpha = "drop" }))
  t.equal(kinds, { pair = 1, ["pair+image"] = 2 })
  t.equal({ report.tokens, report.loss_tokens }, { found.tokens, found.loss_tokens })
  t.near(torch.cat(pixels):double():sum(), whole.pixel_values:double():sum() + cat:double():sum(), 1e-6)
  t.equal(#torch.cat(pixels), #whole.pixel_values + #cat)

  local seen = {}
  for batch, before in losses.each(samples, 2, { seq_len = 400, grid = sharding.grid {} }) do
    for _, number in ipairs(batch.samples) do seen[#seen + 1] = before + number end
  end
  table.sort(seen)
  t.equal(seen, { 1, 2, 3 })
end)

t.test("AnswersToOtherPromptsKeepThePicturesOfThePrompt", function()
  local samples = read(losses.unpaired.read, {
    { prompt = "Which?", completion = "A cat.", label = true, image = "cat.png" },
    { prompt = "Which?", completion = "A cow.", label = false, image = "cat.png" },
    { prompt = "Which?", completion = "A dog.", label = true, image = "dog.png" },
    { prompt = "Which?", completion = "None.", label = true },
  })
  t.equal(samples[1].kind, "answer+image")
  local others = losses.unpaired.mismatched(samples, { seq_len = 400 })
  local answers = {}
  for i, other in ipairs(others) do
    t.equal({ other.kind, other.image_grid_thw }, { samples[i].kind, samples[i].image_grid_thw })
    local ids = {}
    for k, id in ipairs(other.input_ids:totable()) do
      if other.loss_mask[k - 1]:item() then ids[#ids + 1] = id end
    end
    answers[i] = tokenizer:decode(ids)
  end
  t.equal(answers, { "A dog.<|im_end|>", "A dog.<|im_end|>", "None.<|im_end|>", "A cat.<|im_end|>" })
  local batch = deal({ others[1] })[1]
  t.equal(batch.pixel_values, (process(images.read(dir .. "/cat.png", { alpha = "drop" }))))
end)

t.test("WhatIsWrongIsNamedWithFileAndLine", function()
  local good = { prompt = "Which?", chosen = "A cat.", rejected = "No.", image = "cat.png" }
  local function refuses(message, row, more, reader)
    t.raises("rows.jsonl, line 2: " .. message, read, reader or losses.pairs.read, { good, row }, more)
  end
  local places = { user({ type = "image" }) }

  refuses("images.read: " .. dir .. "/cow.png: cannot be read", { prompt = "Which?", chosen = "a", rejected = "b",
    images = { "cow.png" } })
  refuses('data.conversations: the messages have 1 places {"type": "image"} without a path, but "images" has 2 '
    .. "pictures", { prompt = places, chosen = "a", rejected = "b", images = { "cat.png", "cat.png" } })
  refuses('chat:encode: message 1, part 2: a picture is {type = "image", path = "cat.png"}, or has a tensor under '
    .. '"image"; got neither', { prompt = places, chosen = "a", rejected = "b" })
  refuses("losses.unpaired: the answer has a picture; only prompts may have some", { prompt = PAIR.prompt,
    chosen = { assistant "a", user(path "cat.png"), assistant "b" }, rejected = "b" }, nil, losses.unpaired.read)
  refuses("losses.pairs: the answer has a picture; only prompts and messages of the user may have some",
    { prompt = PAIR.prompt, chosen = { assistant { path "cat.png", WORDS } }, rejected = "b" })
  refuses("losses.pairs: the answer has a picture", { prompt = "Which?", chosen = "a",
    rejected = { assistant "b", user "c", assistant { WORDS, path "cat.png" } } })
  t.raises("rows.jsonl, line 1: chat:encode: message 1, part 1 is a picture, and the model takes text alone", read,
    losses.pairs.read, { good }, { processor = false })

  local samples = read(losses.pairs.read, { good, good })
  core.write_file(dir .. "/cat.png", { t.read_file "driver/images/testdata/png_rgba.png" })
  t.raises("rows.jsonl, line 1: its pictures have another size or number than when the run began", deal,
    { samples[1] })
  core.write_file(dir .. "/cat.png", { "gone" })
  t.raises("rows.jsonl, line 1: images.read", deal, { samples[1] })
end)
