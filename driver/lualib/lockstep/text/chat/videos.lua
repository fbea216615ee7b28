--- Videos in conversations: what processors of Qwen2.5-VL and Qwen3-VL add to a chat.

local images = require "lockstep.images"
local plain = require "lockstep.plain"
local replaced = require "lockstep.text.chat.replaced"
local torch = require "lockstep.torch"

local M = {}

-- The tokens around a video, and the one that stands for it, in templates of Qwen.
local BEGINS, PLACEHOLDER, ENDS = "<|vision_start|>", "<|video_pad|>", "<|vision_end|>"

local check = plain.checks "chat:encode: "

--- Options of images.video that a part may have.
local OPTIONS = { "fps", "num_frames", "min_frames", "max_frames" }

--- Videos of a conversation, ready for a model.
---@class text.Videos
---@field pieces string[] what stands in the text for each
---@field num_tokens integer of all
---@field pixels torch.Tensor[]
---@field grids torch.Tensor[]
---@field seconds number[]? that a temporal patch of each spans

--- Returns what Qwen3-VL reads in place of a video: each temporal patch after its time.
local function timed(times, tokens)
  local pieces = {}
  for i, time in ipairs(times) do
    pieces[i] = ("<%.1f seconds>"):format(time) .. BEGINS .. PLACEHOLDER:rep(tokens) .. ENDS
  end
  return table.concat(pieces)
end

--- Reads the videos of the messages in their order, one after the other.
---@param messages table[]
---@param folder string of relative paths
---@param process images.Processor
---@return text.Videos
function M.read(messages, folder, process)
  local c = process.video_config
  local found = { pieces = {}, num_tokens = 0, pixels = {}, grids = {}, seconds = not c.whole_video and {} or nil }
  for i, message in ipairs(messages) do
    for j, part in ipairs(type(message.content) == "table" and message.content or {}) do
      if part.type == "video" then
        local path = plain.given(part.video) or plain.given(part.path) or plain.given(part.url)
        check(type(path) == "string", 'message %d, part %d: a video is {type = "video", video = "cat.mp4"}; got %s', i,
          j, path == nil and "no path" or "a " .. type(path))
        local is_relative = folder ~= "." and path:sub(1, 1) ~= "/" and not path:find "^%a[%w+.-]*://"
        local opts = { processor = process }
        for _, key in ipairs(OPTIONS) do opts[key] = plain.given(part[key]) end
        local frames, info = images.video(is_relative and folder .. "/" .. path or path, opts)
        local pixels, grid, times = process:video(frames, info)
        local n, tokens = #found.grids + 1, pixels:size(0) / c.merge_size ^ 2
        found.pixels[n], found.grids[n], found.num_tokens = pixels, grid, found.num_tokens + tokens
        found.pieces[n] = c.whole_video and timed(times, tokens / #times)
          or BEGINS .. PLACEHOLDER:rep(tokens) .. ENDS
        if found.seconds then found.seconds[n] = c.temporal_patch_size / info.sampled_fps end
      end
    end
  end
  return found
end

--- Writes the placeholders of videos into a text. They belong there before the text becomes ids, because of the times.
--- The tokens around a video are replaced with it, as Qwen3-VL was trained. transformers 5.23 writes them twice.
---@param text string
---@param spans integer[][] of bytes
---@param videos text.Videos
---@return string text
---@return integer[][] spans
function M.write(text, spans, videos)
  local edits, from = {}, 1
  while true do
    local first, last = text:find(PLACEHOLDER, from, true)
    if not first then break end
    from = last + 1
    local is_between = text:sub(first - #BEGINS, first - 1) == BEGINS and text:sub(last + 1, last + #ENDS) == ENDS
    check(is_between or #videos.pieces == 0, "the template does not write %s%s%s for a video, as those of Qwen do",
      BEGINS, PLACEHOLDER, ENDS)
    edits[#edits + 1] = { first = first - #BEGINS, last = last + #ENDS, piece = videos.pieces[#edits + 1] }
  end
  check(#edits == #videos.pieces, "the text has %d placeholders %s, but the messages have %d videos; its model may "
    .. "take no videos", #edits, PLACEHOLDER, #videos.pieces)
  return replaced(text, spans, edits)
end

--- Adds videos to a sample, whose ids are of the text of M.write. No loss is of a placeholder.
---@param sample table as pictures.add returns it
---@param videos text.Videos
---@param tokenizer text.Tokenizer
function M.mark(sample, videos, tokenizer)
  if #videos.grids == 0 then return end
  local id, count = tokenizer:id(PLACEHOLDER), 0
  for i, own in ipairs(sample.input_ids) do
    if own == id then
      sample.mm_token_type_ids[i], sample.loss_mask[i], count = 2, 0, count + 1
    end
  end
  check(count == videos.num_tokens, "the ids have %d tokens %s, and the videos need %d; the tokenizer may not know it",
    count, PLACEHOLDER, videos.num_tokens)
  sample.pixel_values_videos, sample.video_grid_thw = torch.cat(videos.pixels), torch.cat(videos.grids)
  if videos.seconds then
    sample.second_per_grid_ts = torch.tensor(videos.seconds, { dtype = torch.float32 })
  end
end

return M
