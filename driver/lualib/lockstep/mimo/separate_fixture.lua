--- Models of pictures and text whose tower has ranks of its own, for tests: batches, models, and the curve of one rank.

local data = require "lockstep.data"
local dist = require "lockstep.distributed"
local lora = require "lockstep.lora"
local mimo = require "lockstep.mimo"
local models = require "lockstep.models"
local optim = require "lockstep.optim"
local plain = require "lockstep.plain"
local run = require "lockstep.run"
local sharding = require "lockstep.sharding"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local M = {
  STEPS = 4,
  -- Values of text_config: experts that 2 ranks share out, and a balance loss.
  EXPERTS = { num_hidden_layers = 3, num_local_experts = 4, output_router_logits = true, router_aux_loss_coef = 0.05 },
  MICRO_BATCHES = 3,
  multiple = 1, -- The number of tokens of a batch is a multiple of it.
  DIR = dist.all_gather_object(run.dir)[1],
}

--- A generator that gives every rank the same numbers.
local random = 1
local function draw(n)
  random = (random * 16807) % 2147483647
  return math.floor(random / 1000) % n
end

--- Returns the ids of a picture or a video of h x w tokens in t frames, its patches and its grid.
local function item_of(config, kind, frames)
  local vision = config.vision_config
  local merge, h, w = vision.spatial_merge_size, 1 + draw(3), 1 + draw(2)
  local ids, patches = {}, frames * h * w * merge ^ 2
  for frame = 1, frames do
    if kind == "video" and frame > 1 then ids[#ids + 1] = 7 end
    for _ = 1, h * w do ids[#ids + 1] = config[kind .. "_token_id"] end
  end
  local values = 3 * (vision.temporal_patch_size or 2) * vision.patch_size ^ 2
  return ids, torch.randn({ patches, values }, { dtype = torch.float64 }), { frames, h * merge, w * merge }
end

--- A packed batch of one language rank: samples of text, with 0 to 2 pictures each where there are pictures.
local function batch_of(config, has_pictures)
  local ids, mask, lengths = {}, {}, {}
  local pixels, grids = { image = {}, video = {} }, { image = {}, video = {} }
  local is_qwen3 = config.model_type:find "qwen3_vl" ~= nil
  for s = 1, 1 + draw(3) do
    local before = #ids
    for _ = 1, has_pictures and draw(3) + (s == 1 and 1 or 0) or 0 do
      local kind = is_qwen3 and draw(4) == 0 and "video" or "image"
      local item, patches, grid = item_of(config, kind, kind == "video" and 2 or 1)
      for _, id in ipairs(item) do ids[#ids + 1], mask[#mask + 1] = id, false end
      ids[#ids + 1], mask[#mask + 1] = 3 + draw(20), true
      table.insert(pixels[kind], patches)
      table.insert(grids[kind], grid)
    end
    for _ = 1, 2 + draw(6) do ids[#ids + 1], mask[#mask + 1] = 3 + draw(20), draw(3) > 0 end
    mask[before + 1], lengths[s] = false, #ids - before
  end
  while #ids % M.multiple ~= 0 do
    ids[#ids + 1], mask[#mask + 1], lengths[#lengths] = 3 + draw(20), true, lengths[#lengths] + 1
  end
  mask[#mask] = true
  local batch = { input_ids = torch.tensor(ids, { dtype = torch.int64 }), loss_mask = torch.tensor(mask),
    seq_lens = lengths }
  for kind, keys in pairs { image = { "pixel_values", "image_grid_thw" },
    video = { "pixel_values_videos", "video_grid_thw" } } do
    if #pixels[kind] > 0 then
      batch[keys[1]] = torch.cat(pixels[kind])
      batch[keys[2]] = torch.tensor(grids[kind], { dtype = torch.int64 })
    end
  end
  return batch
end

--- The micro-batches of a step for so many language ranks, and the count of its tokens. The last step has no pictures.
function M.step_of(config, step, rows)
  random = 1000 * step + 77
  torch.manual_seed(step)
  local micro_batches, count = {}, 0
  for m = 1, M.MICRO_BATCHES do
    micro_batches[m] = {}
    for row = 1, rows do
      -- Some rows have no picture while others have some.
      local batch = batch_of(config, step < M.STEPS and m ~= 2 and (row + m) % 3 ~= 0)
      micro_batches[m][row], count = batch, count + batch.loss_mask:sum():item()
    end
  end
  return micro_batches, count
end

--- Returns a whole model. `adapter`: with one of both parts. `text`: other values of text_config, with random weights.
--- `freezes`: patterns of the names that are not trained, with | between them.
local function net_of(folder, o)
  torch.manual_seed(5)
  local path, net = "tests/models/" .. folder
  if o.text then
    local config = data.json(path .. "/config.json")
    config.text_config = plain.copy(config.text_config, o.text)
    net = models.build(config, { dtype = torch.float64 })
  else
    net = models.load(path, { dtype = torch.float64 })
  end
  torch.manual_seed(5)
  if o.adapter then lora.apply(net, { r = 4, targets = "all-linear" }) end
  for name, p in net:named_parameters() do
    for pattern in (o.freezes or ""):gmatch "[^|]+" do
      if name:find(pattern) then p:requires_grad_(false) end
    end
  end
  return net
end

--- Trains the whole model, on this rank alone, for `steps` or STEPS steps. Returns losses, norms and the weights at
--- the end.
function M.train_alone(folder, rows, o)
  local net = net_of(folder, o or {})
  local optimizer, curve = optim.AdamW(net:parameters(), { lr = 1e-2, weight_decay = 0.1 }), {}
  for step = 1, o and o.steps or M.STEPS do
    local micro_batches, count = M.step_of(net.config, step, rows)
    local sum = 0
    for _, micro_batch in ipairs(micro_batches) do
      for _, batch in ipairs(micro_batch) do
        local loss = net(batch, "loss") / count
        if loss.requires_grad then loss:backward() end -- not without pictures, if the tower alone is trained
        sum = sum + loss:item()
      end
    end
    local norm = optim.clip_grad_norm(net:parameters(), 0.5):item()
    optimizer:step()
    optimizer:zero_grad()
    curve[step] = { sum, norm }
  end
  return curve, net
end

function M.loss_of(model) return function(micro_batch) return model(micro_batch, "loss") end end

function M.relative(a, b) return math.abs(a - b) / math.abs(b) end

--- The largest difference of two tensors, relative to the largest element.
function M.difference(a, b) return ((a - b):abs():max() / b:abs():max()):item() end

function M.run_steps(model, optimizer, config, first, last, curve)
  for step = first, last do
    local micro_batches, count = M.step_of(config, step, model.ranks)
    local loss = sharding.accumulate(model, micro_batches, count, M.loss_of(model)):item()
    local norm = optim.clip_grad_norm(model:parameters(), 0.5):item()
    optimizer:step()
    optimizer:zero_grad()
    t.truthy(M.relative(loss, curve[step][1]) < 1e-10, ("step %d: loss %.17g, not %.17g"):format(step, loss,
      curve[step][1]))
    t.truthy(M.relative(norm, curve[step][2]) < 1e-10, ("step %d: norm %.17g, not %.17g"):format(step, norm,
      curve[step][2]))
  end
end

--- Returns the model in parts, its optimizer and its configuration. o: as for train_alone, and `order`.
function M.make(folder, vision_ranks, parallel, o)
  o = o or {}
  local net = net_of(folder, o)
  local model = mimo.separate(net, { vision_ranks = vision_ranks, parallel = parallel, order = o.order })
  return model, optim.AdamW(model:parameters(), { lr = 1e-2, weight_decay = 0.1 }), net.config
end

return M
