--- Reads frames of video files by the programs ffprobe and ffmpeg. Only the chosen frames leave ffmpeg.

local core_files = require "lockstep.core.files"
local core_images = require "lockstep.core.images"
local file_url = require "lockstep.images.file_url"
local options = require "lockstep.options"
local plain = require "lockstep.plain"
local torch = require "lockstep.torch"

local M = {}

local NAME = "images.video"
local check = plain.checks(NAME .. ": ")

--- Defaults of transformers' video processors of Qwen, for folders that do not give them.
local FPS, MIN_FRAMES, MAX_FRAMES = 2, 4, 768

--- The programs that are run. Tests replace them. Private to the library.
---@type table<string, string>
M.programs = { ffprobe = "ffprobe", ffmpeg = "ffmpeg" }

--- The most bytes that ffprobe may write. It writes some 10 for each frame, so this is enough for days of video.
local MAX_PROBE = 2 ^ 28

--- The most bytes of a frame's header.
local MAX_HEADER = 64

--- The most frames at once: their numbers must fit into one argument of a program.
local MAX_CHOSEN = 8000

--- The properties of a video that ffprobe reads, without decoding.
---@class images.Probe
---@field total integer frames
---@field fps number
---@field seconds number
---@field width integer
---@field height integer

-- Choosing ----------------------------------------------------------------------------------------

--- Returns the nearest whole number, and the even one where two are equally near.
local function round(x)
  local below = math.floor(x)
  local rest = x - below
  return (rest > 0.5 or (rest == 0.5 and below % 2 == 1)) and below + 1 or below
end

--- Returns `count` numbers at even distances from the first to the last frame, as Qwen3VLVideoProcessor does.
local function spread(total, count)
  local numbers, step = {}, (total - 1) / (count - 1)
  for i = 1, count do numbers[i] = count == 1 and 0 or round((i - 1) * step) end
  return numbers
end

--- Returns the first number of each of `count` equal parts, as Qwen2VLVideoProcessor does, which computes in float32.
local function parts(total, count)
  local values, numbers = torch.arange(0, total, total / count, { dtype = torch.float32 }):totable(), {}
  for i = 1, count do numbers[i] = math.floor(values[i]) end
  return numbers
end

--- Returns which frames are taken, from 0 on. Private to the library.
---@param found {total: integer, fps: number}
---@param o {fps: number?, num_frames: integer?, min_frames: integer, max_frames: integer}
---@param span integer? of Qwen2VLVideoProcessor, whose count of frames is a multiple of it
---@param path string for messages
---@return integer[]
function M.choose(found, o, span, path)
  local total, count = found.total, o.num_frames
  if span then
    if count then
      count = round(count / span) * span
    else
      local most = math.floor(math.min(o.max_frames, total) / span) * span
      count = math.min(math.max(total / found.fps * o.fps, o.min_frames), most, total)
      count = math.floor(count / span) * span
    end
    check(count > 0, "%s: a patch spans %d frames, and the video has %d (num_frames %s)", path, span, total,
      o.num_frames or "absent")
  elseif not count then
    count = math.min(math.max(math.floor(total / found.fps * o.fps), o.min_frames), o.max_frames, total)
  end
  check(count <= total, "%s: num_frames asks for %d frames, and the video has %d", path, count, total)
  return (span and parts or spread)(total, count)
end

-- The programs ------------------------------------------------------------------------------------

--- Raises an error if the program is missing or has failed.
local function check_program(name, path, code, err)
  check(code, '%s: the program "%s" is not installed on rank %s, and video files are read with it (Debian: apt-get '
    .. "install ffmpeg), or give process:video frames of your own", path, name, os.getenv "RANK" or 0)
  check(code == 0, "%s: %s ended with status %d: %s", path, name, code, (err:gsub("%s+$", "")))
end

--- Returns a number that is written as "30000/1001" or "30"; nil for "0/0" and "N/A".
local function ratio(text)
  local over, under = (text or ""):match "^(%d+)/(%d+)$"
  local value = over and tonumber(over) / tonumber(under) or tonumber(text)
  return value and value > 0 and value < math.huge and value or nil
end

--- Reads a file's properties by ffprobe. Counts frames by their packets, without those that players drop.
---@return images.Probe
local function probe(path)
  local code, out, err = core_images.run({ M.programs.ffprobe, "-v", "error", "-protocol_whitelist", "file",
    "-select_streams", "V:0", "-show_entries",
    "packet=flags:stream=width,height,avg_frame_rate,r_frame_rate:format=duration",
    "-of", "default=noprint_wrappers=1", "-i", "file:" .. path }, MAX_PROBE, NAME .. ": " .. path)
  check_program("ffprobe", path, code, err)
  local total, found = 0, {}
  for key, value in out:gmatch "([%w_]+)=([^\n]*)" do
    if key ~= "flags" then
      found[key] = value
    elseif not value:find("D", 1, true) then
      total = total + 1
    end
  end
  local width, height = tonumber(found.width), tonumber(found.height)
  check(width and height and width > 0 and height > 0 and total > 0, "%s: the file has no video stream", path)
  local fps, seconds = ratio(found.avg_frame_rate) or ratio(found.r_frame_rate), ratio(found.duration)
  fps = fps or seconds and total / seconds
  check(fps, "%s: ffprobe knows neither the frames per second nor the length of the video", path)
  return { total = total, fps = fps, seconds = seconds or total / fps, width = width, height = height }
end

--- Returns an expression of ffmpeg that is 1 for frames of the numbers from `first` to `last`. It is a balanced tree,
--- because ffmpeg parses only some 100 levels.
local function is_one_of(numbers, first, last)
  if first == last then return ("eq(n,%d)"):format(numbers[first]) end
  local middle = math.floor((first + last) / 2)
  return "(" .. is_one_of(numbers, first, middle) .. "+" .. is_one_of(numbers, middle + 1, last) .. ")"
end

--- Returns the frames of these numbers. The times that setpts gives are whole seconds, so that no frame is repeated or
--- dropped to keep a rate.
local function decode(path, numbers, size)
  local code, frames, err = core_images.frames({ M.programs.ffmpeg, "-v", "error", "-nostdin", "-xerror",
    "-protocol_whitelist", "file", "-i", "file:" .. path, "-map", "0:V:0",
    "-vf", "select='" .. is_one_of(numbers, 1, #numbers) .. "',setpts=N/TB", "-r", "1",
    "-frames:v", tostring(#numbers), "-pix_fmt", "rgb24", "-c:v", "ppm", "-f", "image2pipe", "-" },
    #numbers * (size + MAX_HEADER), NAME .. ": " .. path)
  check_program("ffmpeg", path, code, err)
  check(#frames == #numbers, "%s: ffmpeg gave %d of %d frames that were chosen, the last of them number %d; the file "
    .. "may be cut off%s", path, #frames, #numbers, numbers[#numbers], err ~= "" and ": " .. err:gsub("%s+$", "") or "")
  return frames
end

-- Reading -----------------------------------------------------------------------------------------

local OPTIONS = { processor = options.optional, fps = options.optional, num_frames = options.optional,
  min_frames = options.optional, max_frames = options.optional, max_bytes = 2 ^ 32 }

--- Checks the options, and adds those of the processor's folder to them.
local function read_options(opts)
  local o = options.read(NAME, opts, OPTIONS)
  local config = {}
  if o.processor then
    config = type(o.processor) == "table" and o.processor.video_config
    check(config, "the processor has no configuration of a video processor")
  end
  check(not (o.fps and o.num_frames), "give fps or num_frames, not both")
  check(o.fps == nil or type(o.fps) == "number" and o.fps > 0 and o.fps < math.huge,
    "fps must be a number above 0, not %s", o.fps)
  for _, key in ipairs { "num_frames", "min_frames", "max_frames", "max_bytes" } do
    check(o[key] == nil or plain.is_whole(o[key], 1), "%s must be a whole number of at least 1, not %s", key, o[key])
  end
  if not o.fps and not o.num_frames then o.num_frames = config.num_frames end
  o.fps = o.fps or config.fps or FPS
  o.min_frames, o.max_frames = o.min_frames or config.min_frames or MIN_FRAMES,
    o.max_frames or config.max_frames or MAX_FRAMES
  return o, config.whole_video == false and config.temporal_patch_size or nil
end

--- See images.video.
---@param path string
---@param opts table?
---@return torch.Tensor[] frames
---@return images.VideoInfo info
function M.read(path, opts)
  local o, span = read_options(opts)
  check(type(path) == "string" and path ~= "" and not path:find "%z", "expected a path, got %s",
    type(path) == "string" and (path == "" and "an empty string" or "a text with a zero byte") or "a " .. type(path))
  path = file_url.path(path) or path
  check(not path:find "^%a[%w+.-]*://", "%s: only files are read: download it, and give its path", path)
  local kind = core_files.kind(path)
  check(kind, "%s: there is no such file", path)
  check(kind ~= "folder", "%s: is a folder, not a video", path)
  local found = probe(path)
  local numbers = M.choose(found, o, span, path)
  local size = found.width * found.height * 3
  check(#numbers * size <= o.max_bytes, "%s: %d frames of %d x %d pixels (width x height) are %.0f bytes, more than "
    .. "max_bytes, %.0f; take fewer frames (fps, num_frames, max_frames) or raise max_bytes", path, #numbers,
    found.width, found.height, #numbers * size, o.max_bytes)
  check(#numbers <= MAX_CHOSEN, "%s: %d frames are chosen, and ffmpeg takes at most %d at once; take fewer (fps, "
    .. "num_frames, max_frames)", path, #numbers, MAX_CHOSEN)
  return decode(path, numbers, size), { fps = found.fps, numbers = numbers, seconds = found.seconds,
    sampled_fps = #numbers / found.total * found.fps }
end

return M
