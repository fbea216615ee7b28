--- Video files to frames, by stand-ins for ffprobe and ffmpeg; then by the real ones where they are installed. Choices
--- and chats are those of transformers (tests/images/make_videos.py).

local batching = require "lockstep.batching"
local core = require "lockstep.core"
local core_images = require "lockstep.core.images"
local data = require "lockstep.data"
local images = require "lockstep.images"
local models = require "lockstep.models"
local run = require "lockstep.run"
local t = require "lockstep.testing"
local text = require "lockstep.text"
local torch = require "lockstep.torch"
local video = require "lockstep.images.video"

local real = video.programs
local expected = data.json "driver/images/testdata/videos.json"
local HEIGHT, WIDTH = unpack(expected.file.size)

--- The formula of make_processed.py: uint8 [height, width, 3].
local function picture(height, width, seed)
  local int = { dtype = torch.int64 }
  local y, x = torch.arange(height, int):view(-1, 1, 1), torch.arange(width, int):view(1, -1, 1)
  local c = torch.arange(3, int):view(1, 1, -1)
  local third, fifth = x:div(3, { rounding_mode = "floor" }), y:div(5, { rounding_mode = "floor" })
  local values = y * y * 3 + x * x * 5 + x * y * 7 + c * 53 + third * fifth * 11 + seed * 19
  return values:remainder(256):to(torch.uint8)
end

local dir = run.dir .. "/stand in"
core.make_folder(dir)
for n = 0, expected.file.total - 1 do
  core.write_file(("%s/%d.ppm"):format(dir, n), { ("P6\n%d %d\n255\n"):format(WIDTH, HEIGHT),
    picture(HEIGHT, WIDTH, n) })
end

--- Writes a program of the shell. It notes its arguments, a line each, in NAME.txt.
local function program(name, body)
  local path = dir .. "/" .. name
  core.write_file(path, { "#!/bin/sh\ncd '" .. dir .. "'\nprintf '%s\\n' \"$@\" > " .. name .. ".txt\n" .. body })
  os.execute("chmod +x '" .. path .. "'")
  return path
end

local PACKETS = ("flags=K_\n"):rep(2) .. ("flags=__\n"):rep(expected.file.total - 2) .. "flags=_D\n"
local STREAM = ("width=%d\nheight=%d\nr_frame_rate=30/1\navg_frame_rate=15/2\n"):format(WIDTH, HEIGHT)
local FRAMES = "cat $(grep -o 'eq(n,[0-9]*)' ffmpeg.txt | sed 's/eq(n,//; s/)/.ppm/')\n"

--- Sets what the stand-ins write.
local function stand_in(probed, body)
  video.programs = { ffprobe = program("ffprobe", "printf '" .. probed:gsub("\n", "\\n") .. "'\n"),
    ffmpeg = program("ffmpeg", body or FRAMES) }
end

local function arguments(name)
  local lines = {}
  for line in t.read_file(dir .. "/" .. name .. ".txt"):gmatch "([^\n]*)\n" do lines[#lines + 1] = line end
  return lines
end

local function touch(name)
  core.write_file(dir .. "/" .. name, { "a video" })
  return dir .. "/" .. name
end

local cat = touch "a cat's $HOME.mp4"
stand_in(PACKETS .. STREAM .. "duration=2.800000\n")

--- A folder of a family with a tokenizer and a template.
local function folder(family)
  local path = run.dir .. "/" .. family
  core.make_folder(path)
  local tokenizer = data.json "driver/text/testdata/qwen2.json"
  for i, token in ipairs(expected.added) do
    tokenizer.added_tokens[#tokenizer.added_tokens + 1] = { id = 2004 + i, content = token, special = true,
      lstrip = false, rstrip = false, normalized = false, single_word = false }
  end
  data.save_json(path .. "/tokenizer.json", tokenizer)
  core.write_file(path .. "/chat_template.jinja", { expected.template })
  data.save_json(path .. "/preprocessor_config.json", expected.image[family])
  data.save_json(path .. "/video_preprocessor_config.json", expected.video[family])
  return path
end

local folders = { qwen3_vl = folder "qwen3_vl", qwen2_5_vl = folder "qwen2_5_vl" }

t.test("TheChosenFramesComeWithTheirNumbersAndTimes", function()
  local frames, info = images.video(cat, { num_frames = 5 })

  t.equal(info, { fps = 7.5, numbers = { 0, 5, 10, 15, 20 }, seconds = 2.8, sampled_fps = 5 / 21 * 7.5 })
  t.equal(#frames, 5)
  for i, frame in ipairs(frames) do
    t.equal(frame, picture(HEIGHT, WIDTH, info.numbers[i]):permute(2, 0, 1))
  end
  local process = images.processor(folders.qwen3_vl)
  local _, grid, times = process:video(frames, info)
  t.equal(grid:totable(), { { 3, 4, 6 } })
  t.equal(#times, 3)
  for i, time in ipairs { 2.5, 12.5, 20 } do t.truthy(math.abs(times[i] * 7.5 - time) < 1e-9) end
  collectgarbage()
  t.equal(frames[5], picture(HEIGHT, WIDTH, 20):permute(2, 0, 1))
end)

t.test("TheProgramsGetTheFileAsOneArgumentAndReadNoNetwork", function()
  local function value(list, name)
    for i, argument in ipairs(list) do
      if argument == name then return list[i + 1] end
    end
  end
  for _, path in ipairs { cat, "file://" .. cat, "file://localhost" .. cat:gsub(" ", "%%20") } do
    images.video(path, { num_frames = 2 })
    for _, name in ipairs { "ffprobe", "ffmpeg" } do
      t.equal(value(arguments(name), "-i"), "file:" .. cat)
      t.equal(value(arguments(name), "-protocol_whitelist"), "file")
    end
  end
  local given = arguments "ffmpeg"
  t.equal(value(given, "-vf"), "select='(eq(n,0)+eq(n,20))',setpts=N/TB")
  t.equal({ value(given, "-frames:v"), value(given, "-pix_fmt"), value(given, "-map") }, { "2", "rgb24", "0:V:0" })
  core.write_file("-x.mp4", { "a video" })
  images.video("-x.mp4", { num_frames = 2 })
  os.remove "-x.mp4"
  t.equal(value(arguments "ffmpeg", "-i"), "file:-x.mp4")
end)

t.test("FramesAreChosenAsTransformersDoes", function()
  for _, case in ipairs(expected.choices) do
    local process = images.processor(folders[case.family])
    local c, what = process.video_config, core.json_encode(case)
    local o = { fps = case.options.fps or 2, num_frames = case.options.num_frames, min_frames = 4, max_frames = 768 }

    local numbers = video.choose(case, o, not c.whole_video and c.temporal_patch_size or nil, "x")

    local sum, squares = 0, 0
    for _, n in ipairs(numbers) do sum, squares = sum + n, squares + n * n end
    t.equal({ #numbers, sum, squares }, { case.count, case.sum, case.squares }, what)
    for i = 1, 3 do t.equal(numbers[i], case.numbers[i], what) end
    t.equal(numbers[#numbers], case.numbers[#case.numbers], what)
  end
end)

t.test("TheFolderAndTheCallSayHowManyFrames", function()
  local path = folders.qwen3_vl
  local function count(config, opts)
    local changed = {}
    for key, value in pairs(expected.video.qwen3_vl) do changed[key] = value end
    for key, value in pairs(config) do changed[key] = value end
    data.save_json(path .. "/video_preprocessor_config.json", changed)
    opts.processor = images.processor(path)
    return #images.video(cat, opts)
  end

  t.equal(count({}, {}), 5)                                        -- 2.8 seconds, 2 frames in each
  t.equal(count({ fps = 4 }, {}), 11)
  t.equal(count({ fps = 4 }, { fps = 3 }), 8)
  t.equal(count({ num_frames = 6, fps = data.null }, {}), 6)
  t.equal(count({ num_frames = 6 }, { fps = 3 }), 8)
  t.equal(count({ max_frames = 4 }, { fps = 3 }), 4)
  t.equal(count({ min_frames = 9 }, {}), 9)
  t.equal(count({}, { fps = 0.1, min_frames = 1 }), 1)
  t.equal(#images.video(cat), 5)
  t.equal(#images.video(cat, { fps = 100 }), 21)
  t.raises('"fps" must be a number above 0, got 0', count, { fps = 0 }, {})
  data.save_json(path .. "/video_preprocessor_config.json", expected.video.qwen3_vl)
end)

t.test("ChatsWithVideosAreThoseOfTransformers", function()
  for _, case in ipairs(expected.chats) do
    local chat, process = text.chat(folders[case.family]), images.processor(folders[case.family])
    for _, part in ipairs(case.messages[1].content) do
      if part.type == "video" then part.video = "a cat's $HOME.mp4" end
    end

    local sample = chat:encode(case.messages, { processor = process, folder = dir })

    t.equal(sample.input_ids, case.input_ids)
    t.equal(sample.mm_token_type_ids, case.types)
    t.equal(sample.video_grid_thw:totable(), case.grid)
    local flat = sample.pixel_values_videos:flatten():double()
    local at = (torch.arange(24, { dtype = torch.int64 }) * (flat:size(0) - 1)):div(23, { rounding_mode = "floor" })
    local entries = torch.tensor(case.entries, { dtype = torch.float64 })
    t.truthy((flat:index_select(0, at) - entries):abs():max():item() < 1e-6)
    t.truthy(math.abs(flat:abs():sum():item() / case.magnitude - 1) < 1e-6)
    local seconds = sample.second_per_grid_ts and sample.second_per_grid_ts:totable() or {}
    t.equal(#seconds, #case.seconds)
    for i, value in ipairs(seconds) do t.truthy(math.abs(value - case.seconds[i]) < 1e-6) end
    local said = {}
    for i, id in ipairs(sample.input_ids) do
      if sample.loss_mask[i] == 1 then said[#said + 1] = id end
    end
    t.equal(text.tokenizer(folders[case.family]):decode(said), "A cat.<|im_end|>")
  end
end)

t.test("TheAssistantsTurnIsLearntWithoutTheVideoInIt", function()
  for family, num_patches in pairs { qwen3_vl = 3, qwen2_5_vl = 2 } do -- of 5 and of 4 frames
    local path = folders[family]
    local chat, process = text.chat(path), images.processor(path)
    local sample = chat:encode({ { role = "user", content = "Show" }, { role = "assistant", content = {
      { type = "video", video = cat }, { type = "text", text = "Two." } } } }, { processor = process })

    local last, tokens = 0, 0
    for i, id in ipairs(sample.input_ids) do
      if id == 2008 then
        t.equal({ sample.loss_mask[i], sample.mm_token_type_ids[i] }, { 0, 2 })
        tokens = tokens + 1
      end
      last = sample.loss_mask[i] == 1 and i or last
    end
    t.equal(tokens, num_patches * 4 * 6 / 4)
    t.equal(text.tokenizer(path):decode { sample.input_ids[last] }, "<|im_end|>")
  end
end)

t.test("TheSampleIsOneThatAModelTakes", function()
  for family, path in pairs(folders) do
    local config = data.json("tests/models/" .. family .. "/config.json")
    local inner = config.text_config or config
    inner.vocab_size, config.image_token_id, config.video_token_id = 2010, 2007, 2008
    config.vision_config.patch_size = expected.video[family].patch_size
    if config.vision_config.window_size then config.vision_config.window_size = 56 end
    local sample = text.chat(path):encode({ { role = "user", content = { { type = "video", video = cat } } },
      { role = "assistant", content = "Two." } }, { processor = images.processor(path) })
    local micro = batching.prepare({ samples = { sample }, seq_len = 256, ranks = 1 })[1][1]

    local model = models.build(config)
    local sum, number = model:loss(micro)
    sum:backward()

    local learnt = 0
    for _, value in ipairs(sample.loss_mask) do learnt = learnt + value end
    t.equal(number, learnt)
    local largest = 0
    for _, parameter in ipairs(model.model.visual:parameters()) do
      largest = math.max(largest, parameter.grad and parameter.grad:abs():max():item() or 0)
    end
    t.truthy(largest > 0)
  end
end)

t.test("WhatIsNoVideoInAMessageIsNamed", function()
  local chat, process = text.chat(folders.qwen3_vl), images.processor(folders.qwen3_vl)
  local function refuses(message, content)
    t.raises(message, chat.encode, chat, { { role = "user", content = content } }, { processor = process })
  end
  refuses('message 1, part 1: a video is {type = "video", video = "cat.mp4"}; got no path', { { type = "video" } })
  refuses("got a table", { { type = "video", video = { 1 } } })
  refuses("the text has 1 placeholders <|video_pad|>, but the messages have 0 videos", "<|video_pad|>")
  refuses("https://x/y.mp4: only files are read", { { type = "video", url = "https://x/y.mp4" } })
  core.write_file(folders.qwen3_vl .. "/chat_template.jinja", { "{% for m in messages %}{{ m.role }}{% endfor %}" })
  local blind = text.chat(folders.qwen3_vl)
  t.raises("the text has 0 placeholders <|video_pad|>, but the messages have 1 videos", blind.encode, blind,
    { { role = "user", content = { { type = "video", video = cat } } } }, { processor = process, loss = "none" })
  core.write_file(folders.qwen3_vl .. "/chat_template.jinja", { expected.template })
end)

t.test("WhatCannotBeReadIsNamed", function()
  local function refuses(message, path, opts) t.raises(message, images.video, path, opts) end

  refuses("images.video: no/such.mp4: there is no such file", "no/such.mp4")
  refuses("is a folder, not a video", dir)
  refuses("expected a path, got a number", 3)
  refuses("expected a path, got an empty string", "")
  refuses("a text with a zero byte", "a\0b")
  refuses("http://x/y.mp4: only files are read: download it, and give its path", "http://x/y.mp4")
  refuses("give fps or num_frames, not both", cat, { fps = 1, num_frames = 3 })
  refuses("fps must be a number above 0, not -1", cat, { fps = -1 })
  refuses("max_frames must be a whole number of at least 1, not 0", cat, { max_frames = 0 })
  refuses("unknown option", cat, { frames = 3 })
  refuses("num_frames asks for 22 frames, and the video has 21", cat, { num_frames = 22 })
  refuses("5 frames of 90 x 60 pixels (width x height) are 81000 bytes, more than max_bytes, 80999; take fewer frames",
    cat, { num_frames = 5, max_bytes = 80999 })
  t.equal(#images.video(cat, { num_frames = 5, max_bytes = 81000 }), 5)
  refuses("the processor has no configuration of a video processor", cat, { processor = {} })
  stand_in "flags=K_\nflags=__\nwidth=90\nheight=60\navg_frame_rate=1/1\n"
  local spans = images.processor(folders.qwen2_5_vl)
  spans.video_config.temporal_patch_size = 4
  refuses("a patch spans 4 frames, and the video has 2", cat, { processor = spans })
  stand_in(PACKETS .. "duration=3.0\n")
  refuses("the file has no video stream", cat)
  stand_in(PACKETS .. "width=90\nheight=60\navg_frame_rate=0/0\nr_frame_rate=0/0\nduration=N/A\n")
  refuses("ffprobe knows neither the frames per second nor the length", cat)
  stand_in(PACKETS .. "width=90\nheight=60\navg_frame_rate=0/0\nr_frame_rate=0/0\nduration=3\n")
  t.equal(select(2, images.video(cat)).fps, 7)
  stand_in(PACKETS .. STREAM, "echo 'moov atom not found' >&2; exit 3")
  refuses(cat .. ": ffmpeg ended with status 3: moov atom not found", cat)
  stand_in(PACKETS .. STREAM, "cat 0.ppm 5.ppm; echo odd >&2")
  refuses("ffmpeg gave 2 of 5 frames that were chosen, the last of them number 20; the file may be cut off: odd", cat)
  stand_in(PACKETS .. STREAM, "cat 0.ppm; head -c 100 5.ppm")
  refuses("frame 1 has 87 of 16200 bytes of pixels", cat)
  stand_in(PACKETS .. STREAM, "cat *.ppm")
  refuses('stand in/ffmpeg" wrote more than', cat)
  program("ffprobe", "echo broken >&2; exit 1")
  refuses(cat .. ": ffprobe ended with status 1: broken", cat)
  video.programs = { ffprobe = "no-ffprobe", ffmpeg = "no-ffmpeg" }
  refuses('the program "ffprobe" is not installed on rank 0, and video files are read with it (Debian: apt-get install '
    .. "ffmpeg)", cat)
  video.programs = { ffprobe = real.ffprobe, ffmpeg = "no-ffmpeg" }
end)

t.test("TheRealProgramsGiveTheFramesThatWereWritten", function()
  video.programs = real
  local made = dir .. "/made.mkv"
  local code = core_images.run({ "ffmpeg", "-v", "error", "-y", "-framerate", "15/2", "-start_number", "0", "-i",
    dir .. "/%d.ppm", "-c:v", "ffv1", "-pix_fmt", "bgr0", made }, 1000, "test")
  if not code then return print "ffmpeg is not installed: skipped" end
  t.equal(code, 0)

  local frames, info = images.video(made, { fps = 3 })

  t.equal({ info.fps, #frames }, { 7.5, 8 })
  for i, frame in ipairs(frames) do
    t.equal(frame, picture(HEIGHT, WIDTH, info.numbers[i]):permute(2, 0, 1))
  end
  t.equal(#images.video(made, { num_frames = 21 }), 21)
  local long = dir .. "/long.avi" -- ffmpeg parses no sum of 768 numbers that is not balanced
  t.equal(core_images.run({ "ffmpeg", "-v", "error", "-y", "-f", "lavfi", "-i", "testsrc=size=16x16:rate=24",
    "-frames:v", "800", "-c:v", "rawvideo", "-pix_fmt", "bgr24", long }, 1000, "test"), 0)
  t.equal(#images.video(long, { fps = 24 }), 768)
  core.write_file(dir .. "/cut.mkv", { t.read_file(made):sub(1, 300) })
  t.raises("cut.mkv: ", images.video, dir .. "/cut.mkv")
  t.raises("ended with status", images.video, touch "text.mp4")
end)
