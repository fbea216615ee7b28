-- The vision tower on a rank of its own: rank 0 runs the tower, rank 1 the language model. The gradients of both are
-- those of the whole model on one rank.

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
end
