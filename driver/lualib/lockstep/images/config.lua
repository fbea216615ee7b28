--- Reads the configuration files of Hugging Face image and video processors, and refuses what would change results.

local core = require "lockstep.core"
local plain = require "lockstep.plain"

local M = {}

--- The sizes and means that a processor works with.
---@class images.Config
---@field patch_size integer pixels of a patch's side
---@field temporal_patch_size integer frames of a patch
---@field merge_size integer patches of a side of the block that becomes one token
---@field min_pixels integer
---@field max_pixels integer
---@field do_resize boolean
---@field do_rescale boolean
---@field do_normalize boolean
---@field rescale_factor number
---@field image_mean number[]
---@field image_std number[]
---@field cap_pixels_per_frame boolean videos only
---@field max_video_tokens integer? videos only
---@field whole_video boolean videos only: the pixels of all frames together are limited, not those of each
---@field fps number? videos only: frames taken of each second of a file
---@field num_frames integer? videos only: frames taken of a file, in place of fps
---@field min_frames integer? videos only
---@field max_frames integer? videos only
---@field resample integer 2: bilinear, 3: bicubic
---@field side integer? Gemma 3 only: pixels of a side of the square that every picture becomes
---@field image_seq_length integer? Gemma 3 only: tokens of a picture
---@field do_pan_and_scan boolean? Gemma 3 only: long pictures come with crops of themselves
---@field pan_and_scan_min_crop_size integer? Gemma 3 only: pixels
---@field pan_and_scan_max_num_crops integer? Gemma 3 only
---@field pan_and_scan_min_ratio_to_activate number? Gemma 3 only: of the longer side to the other

local CLIP_MEAN, CLIP_STD = { 0.48145466, 0.4578275, 0.40821073 }, { 0.26862954, 0.26130258, 0.27577711 }

local function qwen2(size, more)
  return plain.copy({ do_resize = true, do_rescale = true, do_normalize = true, rescale_factor = 1 / 255,
    image_mean = CLIP_MEAN, image_std = CLIP_STD, patch_size = 14, temporal_patch_size = 2, merge_size = 2,
    cap_pixels_per_frame = false, whole_video = false, size = size, resample = 3 }, more)
end

local IMAGE = qwen2 { shortest_edge = 56 * 56, longest_edge = 28 * 28 * 1280 }
local VIDEO = qwen2({ shortest_edge = 128 * 28 * 28, longest_edge = 28 * 28 * 768 }, { max_video_tokens = 128000 })
local VIDEO_3 = qwen2({ shortest_edge = 128 * 32 * 32, longest_edge = 32 * 32 * 768 },
  { max_video_tokens = 768, patch_size = 16, image_mean = { 0.5, 0.5, 0.5 }, image_std = { 0.5, 0.5, 0.5 },
    whole_video = true })

-- The values for pan and scan are those of Gemma3Processor.
local GEMMA = { do_resize = true, do_rescale = true, do_normalize = true, rescale_factor = 1 / 255, resample = 2,
  image_mean = { 0.5, 0.5, 0.5 }, image_std = { 0.5, 0.5, 0.5 }, size = { height = 224, width = 224 },
  do_pan_and_scan = false, pan_and_scan_min_crop_size = 256, pan_and_scan_max_num_crops = 4,
  pan_and_scan_min_ratio_to_activate = 1.2, temporal_patch_size = 1 }

--- The defaults of transformers 5.23.0 for each type.
local TYPES = {
  image = { Qwen2VLImageProcessor = IMAGE, Qwen2VLImageProcessorFast = IMAGE, Qwen2_5_VLImageProcessor = IMAGE,
    Gemma3ImageProcessor = GEMMA, Gemma3ImageProcessorFast = GEMMA },
  video = { Qwen2VLVideoProcessor = VIDEO, Qwen3VLVideoProcessor = VIDEO_3 },
}

--- Keys that change nothing here: they are of Python alone.
local IGNORED = plain.words [[
  _valid_processor_keys data_format default_to_square device disable_grouping feature_extractor_type
  image_processor_type input_data_format processor_class return_tensors return_metadata video_metadata
  video_processor_type do_sample_frames max_duration max_image_size model_input_names
]]

--- Keys with the only value that is supported; null counts as absent.
local FIXED = { do_convert_rgb = true, do_center_crop = false, do_pad = false }
local ABSENT = { crop_size = true, pad_size = true }

--- Keys that one family alone reads.
local OF_PATCHES = plain.words [[
  patch_size temporal_patch_size merge_size min_pixels max_pixels max_video_tokens cap_pixels_per_frame
]]
local OF_SQUARES = plain.words [[
  do_pan_and_scan pan_and_scan_min_crop_size pan_and_scan_max_num_crops pan_and_scan_min_ratio_to_activate
]]

local function show(value) return type(value) == "table" and core.json_encode(value) or tostring(value) end

--- The expected type of a value, by key.
local CHECKS = {
  do_resize = "boolean", do_rescale = "boolean", do_normalize = "boolean", cap_pixels_per_frame = "boolean",
  patch_size = "natural", temporal_patch_size = "natural", merge_size = "natural", min_pixels = "natural",
  max_pixels = "natural", max_video_tokens = "natural", fps = "positive", num_frames = "natural",
  min_frames = "natural", max_frames = "natural", rescale_factor = "positive", image_mean = "channels",
  image_std = "divisors", do_pan_and_scan = "boolean", pan_and_scan_min_crop_size = "natural",
  pan_and_scan_max_num_crops = "natural", pan_and_scan_min_ratio_to_activate = "positive",
}

--- The pixels of the largest block of patches that becomes one token: as many as of the largest picture.
local MAX_BLOCK = 178956970

local function is_finite(value) return type(value) == "number" and math.abs(value) < math.huge end

local function channels(value)
  return type(value) == "table" and #value == 3 and is_finite(value[1]) and is_finite(value[2]) and is_finite(value[3])
end

local function divisors(value)
  return channels(value) and value[1] ~= 0 and value[2] ~= 0 and value[3] ~= 0
end

local KINDS = {
  boolean = { "true or false", function(v) return type(v) == "boolean" end },
  natural = { "a whole number of at least 1", function(v) return plain.is_whole(v, 1) end },
  positive = { "a number above 0", function(v) return is_finite(v) and v > 0 end },
  channels = { "three numbers", channels },
  divisors = { "three numbers other than 0", divisors },
}

local function check(path, key, value)
  local expected, holds = unpack(KINDS[CHECKS[key]])
  plain.check(holds(value), 'images.processor: %s: "%s" must be %s, got %s', path, key, expected, show(value))
  return value
end

local function read_size(path, size, config)
  plain.check(type(size) == "table" and plain.is_whole(size.shortest_edge, 1) and plain.is_whole(size.longest_edge, 1),
    'images.processor: %s: "size" must hold shortest_edge and longest_edge, numbers of pixels of at least 1; got %s',
    path, show(size))
  for key in pairs(size) do
    plain.check(key == "shortest_edge" or key == "longest_edge",
      'images.processor: %s: "size" has an unknown key "%s"', path, key)
  end
  config.min_pixels, config.max_pixels = size.shortest_edge, size.longest_edge
end

local function refuse(path, key, value, expected)
  core.raise(string.format('images.processor: %s: "%s" is %s; only %s is supported', path, key, show(value), expected))
end

--- Returns the side of the square that pictures of Gemma 3 become.
local function read_square(path, size)
  plain.check(type(size) == "table" and plain.is_whole(size.height, 1) and size.height == size.width,
    'images.processor: %s: "size" must hold height and width, the same number of pixels of at least 1; got %s', path,
    show(size))
  return size.height
end

--- Returns the contents of a JSON file, or nil if there is no such file.
local function json(path)
  local text = plain.read_file(path)
  if not text then return nil end
  local value = core.json_decode(text, path)
  if type(value) ~= "table" then core.raise("images.processor: " .. path .. " must hold an object") end
  return value
end

--- Adds what Gemma 3 has in other files: the patches of its tower, and the tokens of a picture.
local function complete_square(config, path)
  local dir = path:match "^(.*)/"
  local whole = json(dir .. "/config.json")
  plain.check(whole and type(whole.vision_config) == "table", "images.processor: %s: the patches of Gemma 3 are those "
    .. "of vision_config in %s/config.json, which is not there", path, dir)
  local function number(owner, key, fallback)
    local value = plain.given(owner[key])
    if value == nil then value = fallback end
    plain.check(plain.is_whole(value, 1), 'images.processor: %s/config.json: "%s" must be a whole number of at least '
      .. "1, got %s", dir, key, show(value))
    return value
  end
  local side, tokens = number(whole.vision_config, "image_size", 224), number(whole, "mm_tokens_per_image", 256)
  config.patch_size = number(whole.vision_config, "patch_size", 16)
  plain.check(side == config.side, 'images.processor: %s: "size" is %d x %d, but image_size of vision_config in '
    .. "config.json is %s", path, config.side, config.side, side)
  config.merge_size = side / config.patch_size / math.sqrt(tokens)
  plain.check(plain.is_whole(config.merge_size, 1), "images.processor: %s/config.json: mm_tokens_per_image %d must be "
    .. "a square that divides the patches of %d x %d pixels evenly", dir, tokens, side, side)
  local length = plain.given((json(dir .. "/processor_config.json") or {}).image_seq_length) or 256
  plain.check(length == tokens, "images.processor: %s: image_seq_length of processor_config.json is %s (256 without "
    .. "the key), but mm_tokens_per_image of config.json is %d", dir, show(length), tokens)
  config.image_seq_length = tokens
end

--- Returns the configuration that `given`, the contents of a file, describes. `fallback` is the type where it has none.
---@param kind "image"|"video"
---@param given table
---@param path string for messages
---@param fallback string?
---@return images.Config
function M.read(kind, given, path, fallback)
  local type_key = kind .. "_processor_type"
  local name = given[type_key] or fallback
  local defaults = name and TYPES[kind][name]
  plain.check(defaults, 'images.processor: %s: "%s" is %s; known: %s', path, type_key, name,
    table.concat(plain.keys(TYPES[kind]), ", "))
  local config, is_square = plain.copy(defaults), defaults == GEMMA
  local size = plain.given(given.size) or defaults.size
  if is_square then config.side = read_square(path, size) else read_size(path, size, config) end
  config.size = nil
  for key, value in pairs(given) do
    local absent = value == core.null
    if FIXED[key] ~= nil then
      if not absent and value ~= FIXED[key] then refuse(path, key, value, show(FIXED[key])) end
    elseif key == "resample" then
      if not absent and value ~= defaults.resample then refuse(path, key, value, tostring(defaults.resample)) end
    elseif ABSENT[key] or key == "image_seq_length" and not is_square then
      if not absent then refuse(path, key, value, "null") end
    elseif CHECKS[key] and not (is_square and OF_PATCHES or OF_SQUARES)[key] then
      if not absent then config[key] = check(path, key, value) end
    elseif not IGNORED[key] and key ~= "size" and key ~= "image_seq_length" then
      core.raise(string.format('images.processor: %s: unknown key "%s" = %s, which could change results', path,
        tostring(key), show(value)))
    end
  end
  if is_square then
    if not config.do_resize then refuse(path, "do_resize", false, "true") end
    complete_square(config, path)
  elseif config.whole_video and (given.min_pixels or given.max_pixels) then
    core.raise(string.format('images.processor: %s: %s takes its limits from "size"; remove min_pixels and max_pixels',
      path, name))
  elseif config.min_pixels > config.max_pixels then
    core.raise(string.format("images.processor: %s: at least %d pixels and at most %d contradict each other", path,
      config.min_pixels, config.max_pixels))
  end
  if (config.patch_size * config.merge_size) ^ 2 * config.temporal_patch_size > MAX_BLOCK then
    core.raise(string.format("images.processor: %s: patch_size %d, merge_size %d and temporal_patch_size %d make a "
      .. "token of more than %d pixels", path, config.patch_size, config.merge_size, config.temporal_patch_size,
      MAX_BLOCK))
  end
  return config
end

--- The contents of the file that describes processors of this kind, and its path: processor_config.json (version 5 of
--- transformers) before the files that are named for one kind.
---@param dir string
---@param kind "image"|"video"
---@return table?, string?
function M.find(dir, kind)
  local path = dir .. "/processor_config.json"
  local whole = json(path)
  local own = whole and whole[kind .. "_processor"]
  if type(own) == "table" then return own, path end
  local names = kind == "image" and { "preprocessor_config.json" }
    or { "video_preprocessor_config.json", "preprocessor_config.json" }
  for _, name in ipairs(names) do
    path = dir .. "/" .. name
    local found = json(path)
    if found then return found, path end
  end
end

return M
