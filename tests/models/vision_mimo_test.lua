-- The vision tower on a rank of its own: rank 0 runs the tower, rank 1 the language model. The gradients of both are
-- those of the whole model on one rank. And so are those of two replicas that divide a packed batch.

local data = require "lockstep.data"
local dist = require "lockstep.distributed"
local mimo = require "lockstep.mimo"
local models = require "lockstep.models"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local topology = mimo.topology { world_size = 2, modules = {
  { name = "vision", first_rank = 0 }, { name = "language", first_rank = 1 } } }

local function difference(a, b) return (a - b):abs():max():item() end

for _, folder in ipairs { "qwen3_vl", "qwen2_5_vl" } do
  t.test("GradientsCrossTheBridgeIn_" .. folder, function()
    local answers = data.safetensors("tests/models/" .. folder .. "/answers.safetensors")
    local model = models.load("tests/models/" .. folder)
    local bridge = mimo.bridge { topology = topology, from = "vision", to = "language", dim = 0 }
    local batch = { input_ids = answers.input_ids, seq_lens = answers.seq_lens:totable(),
      loss_mask = answers.loss_mask, image_grid_thw = answers.image_grid_thw,
      video_grid_thw = answers.video_grid_thw, second_per_grid_ts = answers.second_per_grid_ts }
    local sees = topology:module(dist.rank()) == "vision"

    if sees then
      batch.pixel_values, batch.pixel_values_videos = answers.pixel_values, answers.pixel_values_videos
      torch.sum(bridge(model:visual(batch))):backward()
    else
      batch.visual = bridge(nil)
      local loss = model:loss(batch)
      t.near(loss:item() / answers.loss:item(), 1, 1e-5)
      loss:backward()
    end

    local count = 0
    for name, p in model:named_parameters() do
      if (name:find("visual", 1, true) ~= nil) == sees then
        local expected = answers["gradient." .. name]
        t.truthy(difference(p.grad, expected) <= 1e-4 * expected:abs():max():item(), name)
        count = count + 1
      else
        t.equal(p.grad, nil, name)
      end
    end
    t.truthy(count > 10)
  end)

  t.test("PartsOfAPackedBatchTrainAsTheWholeOf_" .. folder, function()
    local answers = data.safetensors("tests/models/" .. folder .. "/answers.safetensors")
    local model = models.load("tests/models/" .. folder)
    local batch, of_sample = { seq_lens = answers.seq_lens:totable() }, {}
    for _, key in ipairs { "input_ids", "loss_mask", "position_ids", "pixel_values", "image_grid_thw",
      "pixel_values_videos", "video_grid_thw", "second_per_grid_ts" } do
      batch[key] = answers[key]
    end
    for key, token in pairs { image_grid_thw = model.config.image_token_id,
      video_grid_thw = model.config.video_token_id } do
      local start, rows, grid = 0, {}, batch[key]:prod({ dim = 1 }):totable()
      for i, length in ipairs(batch.seq_lens) do
        local patches = batch.input_ids:narrow(0, start, length):eq(token):sum():item() * 4
        rows[i], start = 0, start + length
        while patches > 0 do
          patches, rows[i] = patches - table.remove(grid, 1), rows[i] + 1
        end
      end
      of_sample[key] = rows
    end

    local mine = mimo.slice(batch, dist.rank(), 2, { uneven = true, rows_per_sample = of_sample })
    local loss = model:loss(mine)
    loss:backward()

    t.near(dist.all_reduce(loss:detach()):item() / answers.loss:item(), 1, 1e-5)
    for name, p in model:named_parameters() do
      local expected = answers["gradient." .. name]
      local grad = dist.all_reduce(p.grad or torch.zeros_like(p))
      t.truthy(difference(grad, expected) <= 1e-4 * expected:abs():max():item(), name)
    end
  end)
end
