--- Tests the part of --dry-run that shows a batch. tests/dry_run_test.cc runs the whole.

local batching = require "lockstep.batching"
local first_sample = require "lockstep.data.first_sample"
local images = require "lockstep.images"
local t = require "lockstep.testing"
local text = require "lockstep.text"
local torch = require "lockstep.torch"

local function int64(values) return torch.tensor(values, { dtype = torch.int64 }) end

local function lines_of(shown)
  local lines = {}
  for line in (shown .. "\n"):gmatch "(.-)\n" do lines[#lines + 1] = line end
  return lines
end

t.test("TheFirstBatchOfEachKindIsFoundAndPaddingIsNot", function()
  local image, words = { kind = "image", input_ids = int64 { 1 } }, { kind = "text", input_ids = { 2 } }
  local again = { kind = "text", input_ids = int64 { 3 } }
  local copy = { kind = "video", input_ids = int64 { 4 }, padding = true }

  t.equal(first_sample.find { report = {}, micro_batches = { copy, words, again, image } }, { words, image })
  t.equal(first_sample.find(words), { words })
  t.equal(first_sample.find { x = torch.ones { 2 } }, {})
  t.equal(first_sample.find(5), {})
end)

t.test("IdsWithLossAreInBracketsAndRepeatsAreCounted", function()
  local shown = first_sample.describe {
    kind = "text", input_ids = int64 { 9, 9, 9, 9, 9, 5, 5, 6, 7, 1, 2 }, seq_lens = { 9, 2 },
    loss_mask = torch.tensor { false, false, false, false, false, false, true, true, false, true, true },
  }

  t.equal(lines_of(shown), {
    "sample      text, the first of its micro-batch: 9 tokens, 2 of them trained on, in [[ ]]",
    "  ids     9 (5 times) 5 [[5 6]] 7",
    "  text    not known: the script has opened no text.tokenizer",
  })
end)

t.test("TextIsWholeCharactersOfEachPart", function()
  local tok = text.tokenizer "driver/text/testdata/gpt2.json"
  local asked, said = tok:encode "Où est 日本?\n", tok:encode "à l'\27[31mest"
  local ids, mask = {}, {}
  for _, id in ipairs(asked) do ids[#ids + 1], mask[#mask + 1] = id, 0 end
  for _, id in ipairs(said) do ids[#ids + 1], mask[#mask + 1] = id, 1 end

  local lines = lines_of(first_sample.describe({ input_ids = ids, loss_mask = mask }, tok))

  t.equal(lines[1]:match "batch: (.*) of", ("%d tokens, %d"):format(#ids, #said))
  t.equal(lines[3], "  text    Où est 日本?")
  t.equal(lines[4], "          [[à l'\\x1b[31mest]]")
end)

t.test("BytesThatAreNoCharacterAreShownAsSuch", function()
  local tok = text.tokenizer "driver/text/testdata/gpt2.json"
  local byte = tok:encode "日"[1]

  local lines = lines_of(first_sample.describe({ input_ids = { byte, byte, byte, byte } }, tok))

  t.equal(lines[2], ("  ids     %d (4 times)"):format(byte))
  t.equal(lines[3], "  text    " .. ("\239\191\189"):rep(4))
end)

t.test("RowsOfIdsShowTheFirstAndWithoutALossMaskItIsSaid", function()
  local lines = lines_of(first_sample.describe { input_ids = int64 { { 1, 2 }, { 3, 4 } } })

  t.equal(lines[1], "sample      the first of its batch: 2 tokens, without a loss_mask")
  t.equal(lines[2], "  ids     1 2")
end)

t.test("LongSamplesSayHowMuchIsLeftOut", function()
  local ids, mask = {}, {}
  for i = 1, 1000 do ids[i], mask[i] = i, i > 900 end
  local long = first_sample.describe { input_ids = ids, loss_mask = mask }
  for i = 1, 1000 do mask[i] = i % 2 end
  local parts = first_sample.describe { input_ids = ids, loss_mask = mask }

  t.equal(long:match "48  (%b()) %[%[901", "(and 852 more tokens)")
  t.equal(long:match "948  (%b())%]%]", "(and 52 more tokens)")
  t.equal(parts:match "12  (%b())\n", "(and 988 more parts)")
end)

-- A picture of 64 x 32 pixels whose lower right quarter is the brightest.
local function picture()
  local image = torch.zeros({ 3, 32, 64 }, { dtype = torch.uint8 })
  image[{ {}, { 0, 16 }, { 32, 64 } }]:fill_(100)
  image[{ {}, { 16, 32 }, { 32, 64 } }]:fill_(250)
  return image
end

local function processor()
  local dir = os.tmpname()
  os.remove(dir)
  require("lockstep.core").make_folder(dir)
  local file = assert(io.open(dir .. "/preprocessor_config.json", "w"))
  file:write [[{"image_processor_type": "Qwen2VLImageProcessor", "size": {"shortest_edge": 1024,
    "longest_edge": 1048576}, "patch_size": 16, "temporal_patch_size": 2, "merge_size": 2}]]
  file:close()
  local process = images.processor(dir)
  os.remove(dir .. "/preprocessor_config.json")
  os.remove(dir)
  return process
end

t.test("PatchesAreThePictureThatTheyWereCutFrom", function()
  local pixel_values, grid = processor()(picture())
  local whole = first_sample.describe { input_ids = { 1 }, pixel_values = picture() }
  local patches = first_sample.describe { input_ids = { 1 }, pixel_values = pixel_values, image_grid_thw = grid }

  local lines = lines_of(patches)
  t.equal(lines[4], "  picture 1 of 1 in the batch, 64 x 32 pixels (width x height)")
  t.equal(lines[5], (" "):rep(10) .. (" "):rep(32) .. ("="):rep(32))
  t.equal(lines[20], (" "):rep(10) .. (" "):rep(32) .. ("@"):rep(32))
  t.equal(#lines, 20)
  t.equal(whole, patches)
end)

t.test("PicturesOfOtherSamplesAreNotShown", function()
  local process = processor()
  local function sample(image, num_pictures)
    local pixel_values, grid = process(image)
    local all, grids, ids = {}, {}, {}
    for i = 1, num_pictures do all[i], grids[i] = pixel_values, grid end
    for i = 1, 2 * num_pictures do ids[i] = 7 end
    ids[#ids + 1] = 8
    local mask = {}
    for i = 1, #ids do mask[i] = 1 end
    return { input_ids = ids, loss_mask = mask, pixel_values = torch.cat(all), image_grid_thw = torch.cat(grids) }
  end
  local opts = {
    samples = { sample(picture(), 3), sample(255 - picture(), 4) }, seq_len = 32, ranks = 1, image_token_id = 7,
    pad_to_multiple_of = 32,
  }
  local batch = batching.prepare(opts)[1][1]
  t.equal(#batch.seq_lens, 2)

  local shown = first_sample.describe(batch, nil, opts)

  local own = batch.samples[1] == 1 and "3" or "4"
  t.equal(shown:match "picture 1 of (%d), 64 x 32", own)
  t.equal(shown:match "picture 2 of (%d), 64 x 32", own)
  t.equal(shown:match "picture 3", nil)
end)

t.test("OneGreyChannelAndTallPicturesFit", function()
  local tall = torch.zeros { 1, 400, 4 }
  tall[{ 0, { 200, 400 } }]:fill_(1)

  local lines = lines_of(first_sample.describe { input_ids = { 1 }, pixel_values = tall })

  t.equal(lines[4], "  picture 1 of 1 in the batch, 4 x 400 pixels (width x height)")
  t.equal(#lines <= 4 + 50, true)
  t.equal(lines[#lines]:match "@+", "@")
end)
