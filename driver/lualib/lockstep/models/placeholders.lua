--- Where pictures and videos stand among the ids of a batch, and the three position ids of each token: time, row and
--- column. Text counts up in all three; a picture counts its rows and columns from the position where it begins.
---
--- Text after a picture or a video begins at its largest position plus 1, as in the papers of Qwen2-VL and Qwen2.5-VL,
--- in transformers up to 5.2, and in vLLM. New tokens of generation continue likewise, so that they have the positions
--- that training gives them. In transformers 5.3 to 5.23 the text begins after max(rows, columns) positions. A long
--- video has more, and `generate` there continues after all of them.
---
--- In the ids each token of a picture is the id image_token_id, each of a video video_token_id. A picture has
--- t * h * w patches, by `grid_thw`; merge * merge of them become one token.

local core = require "lockstep.core"
local torch = require "lockstep.torch"

local M = {}

local function fail(message, ...) core.raise("models: " .. message:format(...)) end

local I64 = { dtype = torch.int64 }

--- The layout of an architecture's visual tokens.
---@class models.VisualLayout
---@field image integer id of a picture's tokens
---@field video integer id of a video's tokens
---@field merge integer patches of the side of a token's block
---@field split_frames boolean whether each temporal patch of a video is a run of its own, with text between
---@field interval fun(seconds: number?): number how far the time advances with each temporal patch

--- Reads a grid_thw tensor as {{t, h, w}, ...}. Throws where it is not whole blocks of merge * merge patches.
---@param name string of the field, for messages
---@param grid torch.Tensor? [items, 3] int64
---@param merge integer
---@return integer[][]
function M.read_grid(name, grid, merge)
  if grid == nil then return {} end
  if not torch.is_tensor(grid) or grid:dim() ~= 2 or grid:size(1) ~= 3 or grid:is_floating_point() then
    fail("%s must be a tensor of whole numbers [items, 3], got %s", name,
      torch.is_tensor(grid) and tostring(grid.dtype) .. " " .. tostring(grid.shape) or "a " .. type(grid))
  end
  local items = grid:totable()
  for i, item in ipairs(items) do
    local t, h, w = unpack(item)
    if t < 1 or h < 1 or w < 1 or h % merge ~= 0 or w % merge ~= 0 then
      fail("%s[%d] is {%d, %d, %d}; t must be at least 1, h and w multiples of %d", name, i - 1, t, h, w, merge)
    end
  end
  return items
end

--- Returns the pictures in the order of their placeholders, and which of their visual tokens have these places. Without
--- an order each picture has one place, and the second result is nil.
---@param items integer[][] as read_grid returns them
---@param order torch.Tensor? [places] int64, the numbers of the pictures, from 0
---@param merge integer
---@return integer[][] items
---@return torch.Tensor? rows [N] int64
---@return integer? tokens of all pictures, each once
function M.in_order(items, order, merge)
  if order == nil then return items, nil end
  if not torch.is_tensor(order) or order:dim() ~= 1 or order:is_floating_point() then
    fail("image_order must be a tensor of whole numbers [places], got %s",
      torch.is_tensor(order) and tostring(order.dtype) .. " " .. tostring(order.shape) or "a " .. type(order))
  end
  local starts, sum, ordered, rows = {}, 0, {}, {}
  for i, item in ipairs(items) do
    starts[i] = sum
    sum = sum + item[1] * item[2] * item[3] / merge ^ 2
  end
  starts[#items + 1] = sum
  for i, number in ipairs(order:totable()) do
    local item = items[number + 1]
    if not item then
      fail("image_order[%d] is %d, but image_grid_thw describes the pictures 0 to %d", i - 1, number, #items - 1)
    end
    ordered[i], rows[i] = item, torch.arange(starts[number + 1], starts[number + 2], I64)
  end
  return ordered, #rows > 0 and torch.cat(rows) or torch.zeros({ 0 }, I64), sum
end

--- The runs of placeholders that the grids demand, in their order: {t, h, w} in tokens, and the time's step.
local function runs_of(items, seconds, layout, is_video)
  local runs = {}
  for i, item in ipairs(items) do
    local t, h, w = item[1], item[2] / layout.merge, item[3] / layout.merge
    local step = is_video and layout.interval(seconds and seconds[i]) or 1
    for _ = 1, is_video and layout.split_frames and t or 1 do
      runs[#runs + 1] = { t = is_video and layout.split_frames and 1 or t, h = h, w = w, step = step, item = i - 1 }
    end
  end
  return runs
end

--- Appends the positions of a run that begins at `start`, and returns where the text after it begins.
local function append_run(rows, run, start)
  local n = #rows[1]
  -- In float32 and cut off, as transformers rounds.
  local times = (torch.arange(run.t, I64) * run.step):to(torch.int64):totable()
  for t = 1, run.t do
    for h = 0, run.h - 1 do
      for w = 0, run.w - 1 do
        n = n + 1
        rows[1][n], rows[2][n], rows[3][n] = start + times[t], start + h, start + w
      end
    end
  end
  return start + math.max(times[run.t] + 1, run.h, run.w)
end

local NAMES = { image = "image_grid_thw", video = "video_grid_thw" }

local function check_run(ids, from, run, id, kind, last)
  local count = run.t * run.h * run.w
  for i = from, from + count - 1 do
    if i > last or ids[i] ~= id then
      fail("%s %d needs %d placeholders (id %d) from token %d on, as %s says, but there are %d", kind, run.item, count,
        id, from - 1, NAMES[kind], i - from)
    end
  end
  return count
end

--- The result of `find`. Tokens are counted from 0.
---@class models.Visuals
---@field positions torch.Tensor [3, T] int64
---@field tokens torch.Tensor [N] int64, the places of the tokens of all pictures, then of all videos

--- Finds the visual tokens of packed sequences. Throws where placeholders and grids do not match.
---@param layout models.VisualLayout
---@param ids integer[]
---@param lengths integer[] of the sequences
---@param images integer[][] as read_grid returns them, of all sequences in their order
---@param videos integer[][]
---@param seconds number[]? of a temporal patch, for each video
---@return models.Visuals
function M.find(layout, ids, lengths, images, videos, seconds)
  local kinds = {
    [layout.image] = { kind = "image", runs = runs_of(images, seconds, layout, false), next = 1, tokens = {} },
    [layout.video] = { kind = "video", runs = runs_of(videos, seconds, layout, true), next = 1, tokens = {} },
  }
  local rows, first = { {}, {}, {} }, 1
  for _, length in ipairs(lengths) do
    local i, position, last = first, 0, first + length - 1
    while i <= last do
      local kind = kinds[ids[i]]
      if kind then
        local run = kind.runs[kind.next]
        if not run then
          fail("token %d is a placeholder of %s (id %d), but %s describes only %d", i - 1,
            kind.kind == "image" and "an image" or "a video", ids[i], NAMES[kind.kind],
            kind.kind == "image" and #images or #videos)
        end
        local count = check_run(ids, i, run, ids[i], kind.kind, last)
        for token = i - 1, i + count - 2 do kind.tokens[#kind.tokens + 1] = token end
        position = append_run(rows, run, position)
        kind.next, i = kind.next + 1, i + count
      else
        for row = 1, 3 do rows[row][i] = position end
        position, i = position + 1, i + 1
      end
    end
    first = last + 1
  end
  for id, kind in pairs(kinds) do
    if kind.next <= #kind.runs then
      fail("%s describes %d %ss, but input_ids has no placeholders (id %d) for %s %d", NAMES[kind.kind],
        kind.kind == "image" and #images or #videos, kind.kind, id, kind.kind, kind.runs[kind.next].item)
    end
  end
  local tokens = kinds[layout.image].tokens
  for _, token in ipairs(kinds[layout.video].tokens) do tokens[#tokens + 1] = token end
  return { positions = torch.tensor(rows, I64), tokens = torch.tensor(tokens, I64) }
end

return M
