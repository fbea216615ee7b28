--- Pictures and videos to patches, as transformers' processors of the Qwen2-VL family and of Gemma 3 make them.

local config = require "lockstep.images.config"
local core = require "lockstep.core"
local core_images = require "lockstep.core.images"
local options = require "lockstep.options"
local plain = require "lockstep.plain"
local torch = require "lockstep.torch"

local M = {}

--- The result of images.processor. Calling it with a picture, uint8 [3, H, W], returns pixel_values, float32 [P, D],
--- and image_grid_thw, int64 [1, 3]. With pan and scan of Gemma 3 the grid has a row for each crop, too.
---@class images.Processor
---@field config images.Config of pictures
---@field video_config images.Config? of videos
---@operator call: torch.Tensor
local Processor = {}
Processor.__index = Processor

-- Sizes -------------------------------------------------------------------------------------------

--- The nearest whole number; of two, the even one.
local function round(x)
  local below = math.floor(x)
  local rest = x - below
  return (rest > 0.5 or (rest == 0.5 and below % 2 == 1)) and below + 1 or below
end

local function check_ratio(height, width)
  local ratio = math.max(height, width) / math.min(height, width)
  plain.check(ratio <= 200, "images.processor: a picture of %d x %d pixels (width x height): one side is %.0f times "
    .. "the other; at most 200 is supported", width, height, ratio)
end

--- Returns the size nearest to height x width that keeps its shape. Both sides are multiples of `factor`. The pixels of
--- all `frames` (1 for a picture) are within the limits.
---@param c images.Config
---@param height integer
---@param width integer
---@param frames number
---@param rounded_frames number
---@param max_pixels number
---@return integer, integer
local function smart_size(c, height, width, frames, rounded_frames, max_pixels)
  local factor = c.patch_size * c.merge_size
  check_ratio(height, width)
  local h, w = round(height / factor) * factor, round(width / factor) * factor
  if rounded_frames * h * w > max_pixels then
    local scale = math.sqrt(frames * height * width / max_pixels)
    h = math.max(factor, math.floor(height / scale / factor) * factor)
    w = math.max(factor, math.floor(width / scale / factor) * factor)
  elseif rounded_frames * h * w < c.min_pixels then
    local scale = math.sqrt(c.min_pixels / (frames * height * width))
    h = math.ceil(height * scale / factor) * factor
    w = math.ceil(width * scale / factor) * factor
  end
  return h, w
end

--- Returns the size to which a picture is resized.
---
---     local height, width = process:size(480, 640)
---@param height integer
---@param width integer
---@return integer height, integer width
function Processor:size(height, width)
  local c = self.config
  plain.check(plain.is_whole(height, 1) and plain.is_whole(width, 1),
    "process:size: height and width must be whole numbers of at least 1, got %s and %s", height, width)
  if c.side then return c.side, c.side end
  if not c.do_resize then return height, width end
  return smart_size(c, height, width, 1, 1, c.max_pixels)
end

--- As Processor:size, for a video of so many frames.
local function video_size(c, frames, height, width)
  if not c.do_resize then return height, width end
  local factor, max_pixels = c.patch_size * c.merge_size, c.max_pixels
  local floor = math.floor(c.min_pixels * 1.05)
  if not c.whole_video then
    if c.cap_pixels_per_frame then
      local total = math.floor(c.max_video_tokens * factor * factor * 0.9)
      max_pixels = math.max(math.min(max_pixels, math.floor(total * c.temporal_patch_size / frames)), floor)
    end
    return smart_size(c, height, width, 1, 1, max_pixels)
  end
  if c.cap_pixels_per_frame then
    local share = math.min(c.max_video_tokens * factor * factor, math.floor(max_pixels / frames))
    max_pixels = math.max(share, floor) * frames
  end
  plain.check(frames >= c.temporal_patch_size, "images.processor: a video of %d frames is too short; a patch spans %d "
    .. "frames", frames, c.temporal_patch_size)
  if height < factor or width < factor then
    local scale = math.max(factor / height, factor / width)
    height, width = math.floor(height * scale), math.floor(width * scale)
  end
  return smart_size(c, height, width, frames, round(frames / c.temporal_patch_size) * c.temporal_patch_size, max_pixels)
end

-- Pixels ------------------------------------------------------------------------------------------

--- Returns the value of each byte in each channel, float32 [3, 256], rounded as transformers' fused form rounds.
local function table_of(c)
  local bytes = torch.arange(256, { dtype = torch.float32 }):expand(3, 256)
  if not c.do_normalize then return c.do_rescale and bytes * c.rescale_factor or bytes:clone() end
  local scale = c.do_rescale and 1 / c.rescale_factor or 1
  local mean = torch.tensor(c.image_mean, { dtype = torch.float32 }) * scale
  local std = torch.tensor(c.image_std, { dtype = torch.float32 }) * scale
  return (bytes - mean:view(3, 1)) / std:view(3, 1)
end

--- frames: uint8 [F, 3, H, W], best with the three bytes of a pixel side by side: then nothing is copied into another
--- order. Returns pixel values and the grid.
local function cut(c, frames, height, width)
  local block = c.patch_size * c.merge_size
  plain.check(height % block == 0 and width % block == 0, "images.processor: the folder says do_resize = false, and %d "
    .. "x %d pixels (width x height) are not multiples of %d", width, height, block)
  if frames:size(2) ~= height or frames:size(3) ~= width then
    -- On bytes: in floating point the result differs by up to a tenth of the range.
    local resize = c.resample == 2 and torch._upsample_bilinear2d_aa or torch._upsample_bicubic2d_aa
    frames = resize(frames, { height, width }, false)
  end
  c.table = c.table or table_of(c)
  local pixels = core_images.patches(frames, c.table, c.patch_size, c.temporal_patch_size, c.merge_size)
  local t = math.ceil(frames:size(0) / c.temporal_patch_size)
  return pixels, torch.tensor({ { t, height / c.patch_size, width / c.patch_size } }, { dtype = torch.int64 })
end

local function check_pixels(caller, x, dims)
  local shape = dims == 3 and "[3, H, W]" or "[F, 3, H, W]"
  if not torch.is_tensor(x) or x.dtype ~= torch.uint8 or x:dim() ~= dims or x:size(dims - 3) ~= 3 or x:numel() == 0 then
    core.raise(string.format("%s: expected a uint8 tensor %s, as images.read gives it, got %s", caller, shape,
      torch.is_tensor(x) and tostring(x.dtype) .. " " .. tostring(x.shape) or "a " .. type(x)))
  end
  if x.device ~= "cpu" then core.raise(caller .. ": the pixels must be on the CPU, not on " .. tostring(x.device)) end
end

--- Returns the crops that pan and scan adds to a picture: squares, nearly, from left to right or from top to bottom.
---@param c images.Config
---@param image torch.Tensor [3, H, W]
---@return torch.Tensor[]
local function crops_of(c, image)
  local dim = image:size(2) >= image:size(1) and 2 or 1
  local long, short, smallest = image:size(dim), image:size(3 - dim), c.pan_and_scan_min_crop_size
  if long / short < c.pan_and_scan_min_ratio_to_activate then return {} end
  local count = math.min(math.floor(long / short + 0.5), math.floor(long / smallest))
  count = math.min(c.pan_and_scan_max_num_crops, math.max(2, count))
  local size, crops = math.ceil(long / count), {}
  if math.min(size, short) < smallest then return {} end
  for first = 0, long - 1, size do
    crops[#crops + 1] = image:narrow(dim, first, math.min(size, long - first))
  end
  return crops
end

function Processor:__call(image)
  check_pixels("images.processor", image, 3)
  local height, width = self:size(image:size(1), image:size(2))
  local views, pixels, grids = { image }, {}, {}
  for _, crop in ipairs(self.config.do_pan_and_scan and crops_of(self.config, image) or {}) do
    views[#views + 1] = crop
  end
  for i, view in ipairs(views) do
    pixels[i], grids[i] = cut(self.config, view:permute(1, 2, 0):unsqueeze(0):permute(0, 3, 1, 2), height, width)
  end
  if #views == 1 then return pixels[1], grids[1] end
  return torch.cat(pixels), torch.cat(grids)
end

--- The mean time in seconds of the first and last frame of each patch.
local function seconds(numbers, fps, span)
  local times = {}
  for first = 1, #numbers, span do
    local last = math.min(first + span - 1, #numbers)
    times[#times + 1] = (numbers[first] / fps + numbers[last] / fps) / 2
  end
  return times
end

local function stack(frames)
  if torch.is_tensor(frames) then return frames end
  plain.check(type(frames) == "table" and #frames ~= 0,
    "process:video: expected frames, an array of uint8 tensors [3, H, W] or one tensor [F, 3, H, W], got %s",
    type(frames) == "table" and "none" or "a " .. type(frames))
  local rows = {} -- [H, W, 3]
  for i, frame in ipairs(frames) do
    check_pixels("process:video", frame, 3)
    plain.check(tostring(frame.shape) == tostring(frames[1].shape), "process:video: frame %d is %s and frame 0 is %s; "
      .. "all frames must have one size", i - 1, frame.shape, frames[1].shape)
    rows[i] = frame:permute(1, 2, 0)
  end
  return torch.stack(rows):permute(0, 3, 1, 2)
end

--- Returns the patches of a video, pixel_values_videos [P, D] and video_grid_thw [1, 3], and the times of its temporal
--- patches in seconds. The frames are taken as they are: choosing them is the caller's part. A last patch that lacks
--- frames repeats the last one. For frames of images.video its second result is `opts`. Qwen3-VL writes each time
--- before its patch: string.format("<%.1f seconds>", time).
---
---     local pixels, grid, times = process:video(frames, { fps = 24, numbers = { 0, 12, 24, 36 } })
---@param frames torch.Tensor[]|torch.Tensor uint8, [3, H, W] each, or [F, 3, H, W]
---@param opts {fps: number, numbers: integer[]?, seconds: number?, sampled_fps: number?} fps: of the video; numbers:
--- which of its frames these are, from 0; default 0, 1, 2, ...; seconds and sampled_fps of images.video change nothing
---@return torch.Tensor pixel_values_videos
---@return torch.Tensor video_grid_thw
---@return number[] times
function Processor:video(frames, opts)
  local o = options.read("process:video", opts, { fps = options.required, numbers = options.optional,
    seconds = options.optional, sampled_fps = options.optional })
  local c = self.video_config
  if not c then core.raise("process:video: the folder has no configuration of a video processor") end
  plain.check(type(o.fps) == "number" and o.fps > 0 and o.fps < math.huge,
    "process:video: fps must be a number above 0, not %s", o.fps)
  frames = stack(frames)
  check_pixels("process:video", frames, 4)
  local count, numbers = frames:size(0), o.numbers or {}
  if not o.numbers then
    for i = 1, count do numbers[i] = i - 1 end
  elseif type(numbers) ~= "table" or #numbers ~= count then
    core.raise(string.format("process:video: numbers must be an array with one entry for each of %d frames, got %s",
      count, type(numbers) == "table" and tostring(#numbers) or "a " .. type(numbers)))
  end
  local height, width = video_size(c, count, frames:size(2), frames:size(3))
  local pixels, grid = cut(c, frames, height, width)
  return pixels, grid, seconds(numbers, o.fps, c.temporal_patch_size)
end

--- The type of video processor that goes with a folder without one of its own.
local function video_fallback(found)
  return tostring(found.processor_class):find("Qwen3", 1, true) and "Qwen3VLVideoProcessor" or "Qwen2VLVideoProcessor"
end

--- Returns the processor of a Hugging Face folder.
---@param dir string
---@return images.Processor
function M.open(dir)
  local found, path = config.find(dir, "image")
  plain.check(found, "images.processor: %s has neither preprocessor_config.json nor a processor_config.json "
    .. 'with "image_processor"', dir)
  local self = { config = config.read("image", found, path) }
  if self.config.side then return setmetatable(self, Processor) end -- Gemma 3 takes no videos
  local video, video_path = config.find(dir, "video")
  if video then self.video_config = config.read("video", video, video_path, video_fallback(video)) end
  return setmetatable(self, Processor)
end

return M
