--- 200 steps of AdamW on bfloat16 parameters against float32 ones: low precision must follow.

local timing = require "timing"
local optim = require "lockstep.optim"
local torch = require "lockstep.torch"

local STEPS = 200

local function train(dtype)
  local w = torch.ones({ 256, 256 }, { dtype = dtype, device = timing.device }):requires_grad_(true)
  local optimizer = optim.AdamW({ w }, { lr = 1e-3, weight_decay = 0 })
  for _ = 1, STEPS do
    w.grad = torch.ones_like(w:detach())
    optimizer:step()
  end
  return w:detach():float():mean():item()
end

timing.report("moved, bfloat16 / float32", (1 - train(torch.bfloat16)) / (1 - train(torch.float32)))
