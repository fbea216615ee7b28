-- Generation against a pass over the whole sequence without a cache, for every architecture: each id that
-- models.generate chooses is the best one of a pass over the prompt and all new ids. The prompts are random, with
-- pictures and videos where the model takes them.

local models = require "lockstep.models"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local TEXT = { "llama", "llama_tied", "qwen2", "qwen3", "qwen3_yarn", "qwen3_moe", "qwen3_moe_packed" }
-- Whether text stands between the temporal patches of a video.
local WITH_PICTURES = { qwen3_vl = true, qwen3_vl_moe = true, qwen2_5_vl = false }
local START, END, IMAGE, VIDEO, MERGE, PATCH = 55, 56, 57, 58, 2, 54
local NEW = 10

local I64 = { dtype = torch.int64 }

local function draw(least, most) return torch.randint(least, most + 1, { 1 }):item() end

local function add_text(ids, count)
  for _ = 1, count do ids[#ids + 1] = draw(0, 50) end
end

local function add_run(ids, id, count)
  ids[#ids + 1] = START
  for _ = 1, count do ids[#ids + 1] = id end
  ids[#ids + 1] = END
end

local function random_grid(frames) return { frames, MERGE * draw(1, 3), MERGE * draw(1, 3) } end

local function patches_of(grids)
  local count = 0
  for _, grid in ipairs(grids) do count = count + grid[1] * grid[2] * grid[3] end
  return torch.randn { count, PATCH }
end

--- A prompt with up to two pictures and up to two videos in random order, and text around them.
local function random_prompt(splits_frames)
  local ids, images, videos, seconds = {}, {}, {}, {}
  add_text(ids, draw(1, 4))
  for _ = 1, draw(0, 3) do
    if draw(0, 1) == 0 and #images < 2 then
      local grid = random_grid(1)
      images[#images + 1] = grid
      add_run(ids, IMAGE, grid[2] * grid[3] / MERGE ^ 2)
    elseif #videos < 2 then
      local grid = random_grid(draw(1, 5))
      videos[#videos + 1], seconds[#seconds + 1] = grid, draw(1, 12) / 4
      for _ = 1, splits_frames and grid[1] or 1 do
        add_text(ids, splits_frames and 2 or 0)
        add_run(ids, VIDEO, (splits_frames and 1 or grid[1]) * grid[2] * grid[3] / MERGE ^ 2)
      end
    end
    add_text(ids, draw(0, 3))
  end
  local prompt = { input_ids = ids }
  if #images > 0 then
    prompt.pixel_values, prompt.image_grid_thw = patches_of(images), torch.tensor(images, I64)
  end
  if #videos > 0 then
    prompt.pixel_values_videos, prompt.video_grid_thw = patches_of(videos), torch.tensor(videos, I64)
    prompt.second_per_grid_ts = seconds
  end
  return prompt
end

--- Raises unless each new id is the best after the ids before it, in one pass over all of them.
local function check(model, prompt, new, what)
  local ids, batch = { unpack(prompt.input_ids) }, {}
  for _, id in ipairs(new) do ids[#ids + 1] = id end
  for key, value in pairs(prompt) do batch[key] = value end
  batch.input_ids = torch.tensor(ids, I64)
  local logits = torch.no_grad(model, batch)
  for _, id in ipairs { IMAGE, VIDEO } do logits:select(-1, id):fill_(-math.huge) end
  for i, id in ipairs(new) do
    local row = logits[#prompt.input_ids + i - 2]
    local best = row:max():item()
    t.truthy(best - row[id]:item() <= 1e-4 * math.max(1, math.abs(best)),
      ("%s, new id %d: %d, the best is %d"):format(what, i, id, row:argmax():item()))
  end
end

--- Compares prompts together, alone, and in two rows, which they take in turn.
local function compare(folder, prompts)
  local model = models.load("tests/models/" .. folder)
  local options = { max_new_tokens = NEW, stop = {}, suppress = { IMAGE, VIDEO } }
  local together = models.generate(model, prompts, options)
  options.max_batch_size = 2
  local in_turn = models.generate(model, prompts, options)
  for i, prompt in ipairs(prompts) do
    t.equal({ #together[i], #in_turn[i] }, { NEW, NEW })
    check(model, prompt, in_turn[i], ("%s, prompt %d in turn"):format(folder, i))
    check(model, prompt, together[i], ("%s, prompt %d of %d"):format(folder, i, #prompts))
    check(model, prompt, models.generate(model, { prompt }, options)[1], ("%s, prompt %d alone"):format(folder, i))
  end
end

for _, folder in ipairs(TEXT) do
  t.test("NewIdsAreTheBestOfAFullPassIn_" .. folder, function()
    torch.manual_seed(1)
    local prompts = {}
    for i = 1, 5 do
      prompts[i] = { input_ids = {} }
      add_text(prompts[i].input_ids, i == 1 and 1 or draw(2, 20))
    end
    compare(folder, prompts)
  end)
end

for folder, splits_frames in pairs(WITH_PICTURES) do
  t.test("NewIdsAreTheBestOfAFullPassAfterPicturesAndVideosIn_" .. folder, function()
    torch.manual_seed(2)
    local prompts, videos = {}, 0
    for i = 1, 6 do
      prompts[i] = random_prompt(splits_frames)
      if prompts[i].video_grid_thw then videos = videos + 1 end
    end
    t.truthy(videos >= 2)
    compare(folder, prompts)
  end)
end
