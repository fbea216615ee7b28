--- Patches against those of transformers' processors (tests/images/make_processed.py, make_gemma3.py).

local core = require "lockstep.core"
local images = require "lockstep.images"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local expected = core.json_decode(assert(io.open("driver/images/testdata/processed.json")):read("*a"))

local folders = 0

--- A folder with these files, JSON by name.
local function folder(files)
  folders = folders + 1
  local dir = string.format("%s/processor_%d", os.getenv("TEST_TMPDIR") or os.getenv("TMPDIR") or "/tmp", folders)
  os.execute("rm -rf '" .. dir .. "' && mkdir -p '" .. dir .. "'")
  for name, value in pairs(files) do
    local file = assert(io.open(dir .. "/" .. name .. ".json", "w"))
    file:write(type(value) == "string" and value or core.json_encode(value))
    file:close()
  end
  return dir
end

--- `base` with some keys replaced.
local function with(base, changes)
  local result = {}
  for key, value in pairs(base) do result[key] = value end
  for key, value in pairs(changes) do result[key] = value end
  return result
end

--- The formula of make_processed.py: uint8 [3, height, width].
local function picture(height, width, seed)
  local int = { dtype = torch.int64 }
  local y, x = torch.arange(height, int):view(1, -1, 1), torch.arange(width, int):view(1, 1, -1)
  local c = torch.arange(3, int):view(-1, 1, 1)
  local third, fifth = x:div(3, { rounding_mode = "floor" }), y:div(5, { rounding_mode = "floor" })
  local values = y * y * 3 + x * x * 5 + x * y * 7 + c * 53 + third * fifth * 11 + seed * 19
  return values:remainder(256):to(torch.uint8)
end

local function check(values, grid, case)
  local what = core.json_encode(case.size) .. " of " .. (case.family or "gemma3")
  local rows = type(case.grid[1]) == "table" and case.grid or { case.grid }
  t.equal(grid, torch.tensor(rows, { dtype = torch.int64 }), what)
  t.equal(values:size(0), #rows * rows[1][1] * rows[1][2] * rows[1][3], what)
  local flat = values:flatten():double()
  local count = flat:size(0)
  local at = (torch.arange(24, { dtype = torch.int64 }) * (count - 1)):div(23, { rounding_mode = "floor" })
  t.near(flat:index_select(0, at), torch.tensor(case.entries, { dtype = torch.float64 }), 1e-6, what)
  t.near(flat:sum():item(), case.sum, 1e-7 * case.magnitude + 1e-6, what)
  t.near(flat:abs():sum():item(), case.magnitude, 1e-7 * case.magnitude, what)
  if case.all then t.near(flat, torch.tensor(case.all, { dtype = torch.float64 }), 1e-6, what) end
end

t.test("PicturesOfEverySizeBecomeTheValuesOfTransformers", function()
  for family, config in pairs(expected.image) do
    local process = images.processor(folder { preprocessor_config = config })
    for _, case in ipairs(expected.images) do
      if case.family == family then
        local values, grid = process(picture(case.size[1], case.size[2], case.seed))
        check(values, grid, case)
      end
    end
  end
  t.equal(#expected.images, 41)
end)

local gemma = core.json_decode(assert(io.open("driver/images/testdata/gemma3.json")):read("*a"))

--- The files of a Gemma 3 folder, where what is given takes the place of its own.
local function gemma_files(processor, model, whole)
  return { preprocessor_config = with(gemma.config, processor or {}), config = with(gemma.model, model or {}),
    processor_config = whole or { image_seq_length = gemma.model.mm_tokens_per_image } }
end

t.test("SquaresAndCropsOfGemma3AreThoseOfTransformers", function()
  local alone, pan = images.processor(folder(gemma_files())), images.processor(folder(gemma_files(gemma.pan)))
  local most = 0
  for _, case in ipairs(gemma.images) do
    local values, grid = (case.pan and pan or alone)(picture(case.size[1], case.size[2], case.seed))
    check(values, grid, case)
    most = math.max(most, grid:size(0))
  end
  t.equal({ #gemma.images, most }, { 24, 4 })
  t.equal({ alone:size(480, 641) }, { 42, 42 })
  local whole = { image_processor = gemma.config, image_seq_length = 9 }
  local values = alone(picture(9, 7, 3))
  t.equal((images.processor(folder { processor_config = whole, config = gemma.model })(picture(9, 7, 3))), values)
end)

t.test("AFolderOfGemma3IsOfOnePiece", function()
  local function refused(message, ...) t.raises(message, images.processor, folder(gemma_files(...))) end
  refused('"size" must hold height and width, the same number of pixels of at least 1; got {"height":4', { size =
    { height = 4, width = 6 } })
  refused('"size" is 48 x 48, but image_size of vision_config in config.json is 42', { size = { height = 48,
    width = 48 } })
  refused('"resample" is 3; only 2 is supported', { resample = 3 })
  refused('"do_resize" is false; only true is supported', { do_resize = false })
  refused('unknown key "merge_size" = 2', { merge_size = 2 })
  refused('"pan_and_scan_max_num_crops" must be a whole number of at least 1, got 0',
    { pan_and_scan_max_num_crops = 0 })
  refused("mm_tokens_per_image 10 must be a square that divides the patches", {}, { mm_tokens_per_image = 10 })
  refused("mm_tokens_per_image 16 must be a square that divides the patches", {}, { mm_tokens_per_image = 16 })
  refused("image_seq_length of processor_config.json is 256 (256 without the key), but mm_tokens_per_image of "
    .. "config.json is 9", {}, {}, { processor_class = "Gemma3Processor" })
  t.raises("the patches of Gemma 3 are those of vision_config in", images.processor,
    folder { preprocessor_config = gemma.config })
  t.raises('unknown key "do_pan_and_scan" = true', images.processor,
    folder { preprocessor_config = with(expected.image.qwen3_vl, { do_pan_and_scan = true }) })
  t.raises("process:video: the folder has no configuration of a video processor", function()
    images.processor(folder(gemma_files())):video({ picture(4, 4, 0) }, { fps = 1 })
  end)
end)

t.test("VideosBecomeTheValuesOfTransformers", function()
  for _, case in ipairs(expected.videos) do
    local process = images.processor(folder {
      preprocessor_config = expected.image[case.family],
      video_preprocessor_config = with(expected.video[case.family], case.more),
    })
    local frames, numbers = {}, {}
    for i = 1, case.size[1] do
      frames[i], numbers[i] = picture(case.size[2], case.size[3], i - 1), 3 * (i - 1)
    end
    local values, grid, times = process:video(frames, { fps = 7.5, numbers = numbers })
    check(values, grid, case)
    t.near(torch.tensor(times), torch.tensor(case.times), 1e-6)
    t.equal((process:video(torch.stack(frames), { fps = 1 })), values)
  end
end)

t.test("AViewGivesTheSameAsItsCopy", function()
  local process = images.processor(folder { preprocessor_config = expected.image.qwen3_vl })
  local wide = picture(70, 130, 1)
  local part = wide[{ {}, { 3, 67 }, { 5, 101 } }]

  t.equal((process(part)), (process(part:contiguous())))
  local rows = part:permute(1, 2, 0):contiguous():permute(2, 0, 1)
  t.equal((process(rows)), (process(part:contiguous())))
end)

t.test("AFolderOfVersion5HoldsBothInOneFile", function()
  local both = images.processor(folder { processor_config = { processor_class = "Qwen3VLProcessor",
    image_processor = expected.image.qwen3_vl, video_processor = expected.video.qwen3_vl },
    preprocessor_config = expected.image.qwen2_5_vl })

  t.equal(both.config.patch_size, 16)
  t.equal(both.video_config.max_pixels, 200000)
  -- An older processor_config.json holds neither.
  local older = images.processor(folder { processor_config = { processor_class = "Qwen2_5_VLProcessor" },
    preprocessor_config = expected.image.qwen2_5_vl })
  t.equal(older.config.patch_size, 14)
  t.equal(older.video_config.max_pixels, 602112)
end)

t.test("SizesAreKnownWithoutAPicture", function()
  local process = images.processor(folder { preprocessor_config = expected.image.qwen2_5_vl })
  for _, case in ipairs(expected.images) do
    if case.family == "qwen2_5_vl" then
      local height, width = process:size(case.size[1], case.size[2])
      t.equal({ height, width }, { case.grid[2] * 14, case.grid[3] * 14 })
    end
  end
end)

t.test("ASizeIsOfAPicture", function()
  for _, do_resize in ipairs { true, false } do
    local process = images.processor(folder { preprocessor_config = with(expected.image.qwen2_5_vl,
      { do_resize = do_resize }) })
    for given, got in pairs { [{ 0, 0 }] = "0 and 0", [{ -28, 56 }] = "-28 and 56", [{ 56, 0 / 0 }] = "56 and nan",
      [{ 28.5, 28 }] = "28.5 and 28", [{ math.huge, 28 }] = "inf and 28", [{ "28", 28 }] = "28 and 28",
      [{ 28 }] = "28 and nil" } do
      t.raises("process:size: height and width must be whole numbers of at least 1, got " .. got, process.size, process,
        given[1], given[2])
    end
  end
end)

t.test("WithoutResizingThePictureMustFit", function()
  local process = images.processor(folder { preprocessor_config = with(expected.image.qwen2_5_vl,
    { do_resize = false, do_normalize = false, do_rescale = false }) })

  t.equal(process(picture(28, 56, 0)):size(0), 8)
  t.near(process(picture(28, 56, 0)):max():item(), 255, 0)
  t.raises("30 x 28 pixels (width x height) are not multiples of 28", process, picture(28, 30, 0))
end)

t.test("WhatWouldChangeResultsIsRefused", function()
  local base = expected.image.qwen2_5_vl
  local function refused(message, changes)
    t.raises(message, images.processor, folder { preprocessor_config = with(base, changes) })
  end
  refused('"image_processor_type" is SiglipImageProcessor; known: Gemma3ImageProcessor, ',
    { image_processor_type = "SiglipImageProcessor" })
  refused('unknown key "sharpen" = 2, which could change results', { sharpen = 2 })
  refused('"resample" is 2; only 3 is supported', { resample = 2 })
  refused('"do_convert_rgb" is false; only true is supported', { do_convert_rgb = false })
  refused('"do_center_crop" is true; only false is supported', { do_center_crop = true })
  refused('"do_pad" is true; only false is supported', { do_pad = true })
  refused('"crop_size" is {"height":4}; only null is supported', { crop_size = { height = 4 } })
  refused('"patch_size" must be a whole number of at least 1, got 0', { patch_size = 0 })
  refused('"image_mean" must be three numbers, got [0.5,0.5]', { image_mean = { 0.5, 0.5 } })
  refused('"image_std" must be three numbers other than 0, got [0.5,0,0.5]', { image_std = { 0.5, 0, 0.5 } })
  refused("patch_size 1000000000, merge_size 2 and temporal_patch_size 2 make a token of more than 178956970 pixels",
    { patch_size = 1e9 })
  refused("patch_size 14, merge_size 2 and temporal_patch_size 1000000000 make", { temporal_patch_size = 1e9 })
  refused('"size" must hold shortest_edge and longest_edge', { size = { height = 4, width = 4 } })
  refused("contradict each other", { min_pixels = 700000 })
  t.raises("neither preprocessor_config.json nor", images.processor, folder {})
  t.raises("preprocessor_config.json", images.processor, folder { preprocessor_config = "{" })
  t.truthy(images.processor(folder { preprocessor_config = with(base, { crop_size = core.null, do_pad = false }) }))
end)

t.test("BadPixelsAreNamed", function()
  local process = images.processor(folder { preprocessor_config = expected.image.qwen2_5_vl })
  local function refused(message, ...) t.raises(message, ...) end

  refused("expected a uint8 tensor [3, H, W]", process, torch.ones(3, 4, 4))
  refused("expected a uint8 tensor [3, H, W]", process, picture(4, 4, 0):unsqueeze(0))
  refused("got a string", process, "cat.jpg")
  refused("the pixels must be on the CPU, not on meta", process, picture(4, 4, 0):to { device = "meta" })
  refused("a picture of 300 x 1 pixels (width x height): one side is 300 times the other", process, picture(1, 300, 0))
  refused("fps", process.video, process, { picture(4, 4, 0) })
  refused("fps must be a number above 0", process.video, process, { picture(4, 4, 0) }, { fps = 0 })
  refused("expected frames", process.video, process, {}, { fps = 1 })
  refused("frame 1 is {3, 4, 5} and frame 0 is {3, 4, 4}", process.video, process,
    { picture(4, 4, 0), picture(4, 5, 0) }, { fps = 1 })
  refused("one entry for each of 1 frames, got 2", process.video, process, { picture(4, 4, 0) },
    { fps = 1, numbers = { 0, 1 } })
end)
