--- First values of a model's weights.

local nn = require "lockstep.nn"
local torch = require "lockstep.torch"

local M = {}

--- Gives the parameters of a model that was built on "meta" memory and random values: matrices normal, biases 0, the
--- rest (norms) 1.
---@generic T: nn.Module
---@param model T
---@param o {dtype: torch.dtype, device: string, deviation: number}
---@return T
function M.fill(model, o)
  local made = {}
  for _, place in ipairs(nn.parameter_places(model)) do
    local tensor = made[place.tensor]
    if not tensor then
      tensor = torch.empty(place.tensor.shape, { device = o.device, dtype = o.dtype })
      if place.name == "bias" then
        tensor:zero_()
      elseif tensor:dim() == 1 then
        tensor:fill_(1)
      else
        tensor:normal_(0, o.deviation)
      end
      made[place.tensor] = tensor:requires_grad_(true)
    end
    place.fields[place.name] = tensor
  end
  return model
end

return M
