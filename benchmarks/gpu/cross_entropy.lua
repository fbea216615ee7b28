--- The cross entropy of logits: results against the CPU's, then time and memory of forward and backward.

local timing = require "timing"
local nn = require "lockstep.nn"
local torch = require "lockstep.torch"

local device = timing.device

--- Returns the loss and its gradient in float64 on the CPU.
local function results(logits, labels, smoothing)
  local x = logits:detach():requires_grad_(true)
  local loss = nn.cross_entropy(x, labels, { label_smoothing = smoothing })
  return { loss:detach():cpu():double(), torch.grad({ loss }, { x })[1]:cpu():double() }
end

-- A vocabulary for whole blocks, one whose rows are not aligned, and a short one for lanes of a warp.
local worst = 0
for _, classes in ipairs { 8192, 5003, 100 } do
  for _, smoothing in ipairs { 0, 0.1 } do
    torch.manual_seed(1)
    local logits, labels = torch.randn { 64, classes } * 4, torch.randint(classes, { 64 })
    labels[3] = -100
    local expected = results(logits:double(), labels, smoothing)
    for i, x in ipairs(results(logits:to(device), labels:to(device), smoothing)) do
      worst = math.max(worst, ((x - expected[i]):norm() / expected[i]:norm()):item())
    end
  end
end
timing.report("error / float64", worst)

local rows, classes = timing.size(4096, 32), timing.size(151936, 500)
-- Whole numbers below 2003, the same in both programs.
local x = torch.arange(rows * classes, { device = device }):remainder_(2003):to(timing.dtype)
local logits = (x / 256):view { rows, classes }:requires_grad_(true)
x = nil -- luacheck: ignore
local labels = timing.ids(rows, classes)
local function step()
  local loss = nn.cross_entropy(logits, labels)
  loss:backward()
  logits.grad = nil
  return loss:item()
end
timing.report("loss", step())
timing.report("ms", 1e3 * timing.seconds(5, 4, step))
local peak = timing.peak_mib(step)
if peak then timing.report("peak MiB", peak) end
