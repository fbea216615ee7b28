--- Each family's tiny model against the recorded answers of transformers: logits, loss and gradients in float32 on the
--- device, then in bfloat16, where the device's own kernels compute. Arguments: a folder of folders, and their names.

local data = require "lockstep.data"
local models = require "lockstep.models"
local run = require "lockstep.run"
local timing = require "timing"
local torch = require "lockstep.torch"

local FIELDS = { "input_ids", "position_ids", "loss_mask", "pixel_values", "image_grid_thw", "pixel_values_videos",
  "video_grid_thw", "second_per_grid_ts" }

local function on_device(tensor) return tensor and tensor:to(timing.device) end

--- Returns the logits, and the gradients of the loss by name, all in float32 on the CPU.
local function results_of(folder, batch, dtype)
  local model = models.load(folder, { dtype = dtype, device = timing.device })
  local logits = torch.no_grad(model, batch):float():cpu()
  local sum = model:loss(batch)
  sum:backward()
  local gradients = {}
  for name, p in model:named_parameters() do gradients[name] = p.grad and p.grad:float():cpu() end
  return logits, gradients, sum:item()
end

--- Returns the norm of the difference of all gradients over the norm of the expected ones.
local function gradient_error(gradients, answers)
  local difference, size = 0, 0
  for key, expected in pairs(answers) do
    local name = key:match "^gradient%.(.*)"
    if name then
      local got = gradients[name] or error("no gradient for " .. name)
      difference = difference + (got - expected):square():sum():item()
      size = size + expected:square():sum():item()
    end
  end
  return math.sqrt(difference / size)
end

local function relative(got, expected) return ((got - expected):norm() / expected:norm()):item() end

local worst = {}
--- Keeps the largest error of each figure, and the family that has it. NaN is the largest of all.
local function note(figure, folder, value)
  local before = worst[figure]
  if not before or not (value <= before.value) then worst[figure] = { value = value, folder = folder } end
end

local num_failed, num_families = 0, 0
for i = 5, #run.args do
  local name = run.args[i]
  local folder = run.args[4] .. "/" .. name
  local answers = data.safetensors(folder .. "/answers.safetensors")
  num_families = num_families + 1
  local is_well, problem = pcall(function()
    local batch = { seq_lens = answers.seq_lens:totable() }
    for _, field in ipairs(FIELDS) do batch[field] = on_device(answers[field]) end
    local logits, gradients, sum = results_of(folder, batch, torch.float32)
    note("float32, logits", name, relative(logits, answers.logits))
    note("float32, loss", name, math.abs(sum / answers.loss:item() - 1))
    note("float32, gradients", name, gradient_error(gradients, answers))
    logits, gradients = results_of(folder, batch, torch.bfloat16)
    note("bfloat16, logits", name, relative(logits, answers.logits))
    note("bfloat16, gradients", name, gradient_error(gradients, answers))
  end)
  if not is_well then
    num_failed = num_failed + 1
    print(("# %s: %s"):format(name, tostring(problem)))
  end
end

timing.report("families", num_families)
timing.report("families that raise an error", num_failed)
for figure, of in pairs(worst) do
  print(("# %s: the largest error is %s's"):format(figure, of.folder))
  timing.report(figure, of.value)
end
