--- Pictures: files to RGB tensors, RGB to the pixel values that a vision model takes.
---
---     local process = images.processor("Qwen3-VL-2B-Instruct")    -- a Hugging Face folder
---     local pixel_values, image_grid_thw = process(images.read("cat.jpg"))

local core = require "lockstep.core"
local core_images = require "lockstep.core.images"
local folder = require "lockstep.models.folder"
local options = require "lockstep.options"
local plain = require "lockstep.plain"
local processor = require "lockstep.images.processor"
local video = require "lockstep.images.video"

local M = {}

--- Width times height; Pillow refuses larger pictures.
local MAX_PIXELS = 178956970

--- Reads a JPEG, PNG or WebP picture, upright: the pixels of Pillow's `convert("RGB")` after EXIF transposition, byte
--- for byte. Blends transparent pixels over white, as transformers' processors do. The bytes tell the format. A string
--- that begins as such a file does is taken as its bytes, any other as a path. Throws where the file is cut off,
--- corrupt, an animated WebP or larger than max_pixels.
---
---     local image = images.read("photo.jpg")                       -- uint8 {3, 480, 640}
---     local image = images.read(sample.png_bytes, { alpha = "drop" })
---@param path_or_bytes string
---@param opts {alpha: ("drop"|"white")?, max_pixels: integer?}? alpha: "drop" ignores it, as Pillow's
--- `convert("RGB")` alone does; default "white"
---@return torch.Tensor # uint8 [3, H, W], RGB
function M.read(path_or_bytes, opts)
  local o = options.read("images.read", opts, { alpha = "white", max_pixels = MAX_PIXELS })
  if type(path_or_bytes) ~= "string" then
    core.raise("images.read: expected a path or the bytes of a picture, got a " .. type(path_or_bytes))
  elseif path_or_bytes == "" then
    core.raise "images.read: expected a path or the bytes of a picture, got an empty string"
  elseif o.alpha ~= "drop" and o.alpha ~= "white" then
    core.raise(string.format('images.read: alpha must be "drop" or "white", not "%s"', o.alpha))
  elseif not plain.is_whole(o.max_pixels, 1) then
    core.raise("images.read: max_pixels must be a whole number of at least 1, not " .. tostring(o.max_pixels))
  end
  -- A path holds no zero byte and is short: what does, or is long, is a picture that is damaged from its start.
  local bytes = core_images.is_image(path_or_bytes) or #path_or_bytes > 4096 or path_or_bytes:find("%z") ~= nil
  local read = bytes and core_images.decode or core_images.read
  return read(path_or_bytes, o.alpha == "white", o.max_pixels, "images.read")
end

--- The second result of images.video: options of process:video.
---@class images.VideoInfo
---@field fps number of the video
---@field numbers integer[] the frames that were taken, from 0
---@field seconds number the length of the video
---@field sampled_fps number frames taken in each second

--- Reads frames of a video file, upright, by the programs ffprobe and ffmpeg, which must be installed. Chooses frames
--- as transformers does for the type of the processor, or for Qwen3-VL without one. The folder of a processor gives the
--- defaults of fps, num_frames, min_frames and max_frames. Throws where the file is damaged or holds no video, and
--- where the frames would be more than max_bytes.
---
---     local frames, info = images.video("cat.mp4", { fps = 1, processor = process })
---     local pixels, grid, times = process:video(frames, info)
---@param path string or a URL of a file, "file:///..."
---@param opts {fps: number?, num_frames: integer?, min_frames: integer?, max_frames: integer?,
--- processor: images.Processor?, max_bytes: integer?}? fps: frames for each second, default 2; num_frames: how many
--- instead; min_frames, default 4, and max_frames, default 768, with fps; max_bytes: of the frames, default 4 GiB
---@return torch.Tensor[] frames uint8 [3, H, W] each, RGB
---@return images.VideoInfo info
function M.video(path, opts) return video.read(path, opts) end

--- Returns the processor of a Hugging Face folder, built from its preprocessor_config.json, or from
--- processor_config.json where that holds `image_processor`. Supported: Qwen2VLImageProcessor (Qwen2-VL, Qwen2.5-VL,
--- Qwen3-VL) and its video counterparts, and Gemma3ImageProcessor. Other types, unknown keys and values that would
--- change results are errors.
---
---     local process = images.processor(dir)
---     local pixel_values, image_grid_thw = process(image)          -- float32 [P, D], int64 [1, 3]
---     local pixels, grid, seconds = process:video(frames, { fps = 2 })
---@param dir string a folder, or OWNER/MODEL in Hugging Face's local cache
---@return images.Processor
function M.processor(dir) return processor.open(folder.find(dir, "images.processor")) end

return M
