--- Calls fn(...) without gradients, and with the modules of a model out of training mode. Each is in its own mode again
--- afterwards, also after an error.

local plain = require "lockstep.plain"
local schedule_free = require "lockstep.optim.schedule_free"
local torch = require "lockstep.torch"

---@param model nn.Module|sharding.DataParallel|sharding.FullyShard|sharding.Pipeline
---@param fn fun(...): ...
---@param ... any
---@return any ...
local function out_of_training(model, fn, ...)
  local modes = {} -- parents first: train() also reaches the modules inside
  for _, module in model:named_modules() do modes[#modes + 1] = { module, module.training } end
  model:eval()
  return plain.finally(function()
    for _, mode in ipairs(modes) do mode[1]:train(mode[2]) end
  end, schedule_free.around, model:parameters(), torch.no_grad, fn, ...)
end

return out_of_training
