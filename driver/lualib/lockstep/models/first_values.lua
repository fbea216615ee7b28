--- First values of a model's weights.

local core = require "lockstep.core"
local host_memory = require "lockstep.host_memory"
local nn = require "lockstep.nn"
local plain = require "lockstep.plain"
local torch = require "lockstep.torch"

local M = {}

--- Returns the bytes of memory, within the limit of the control group, and swap space that this process may have.
local function machine_bytes()
  local swap = (plain.read_file("/proc/meminfo") or ""):match "SwapTotal:%s*(%d+) kB"
  return host_memory.total() + 1024 * (tonumber(swap) or 0)
end

--- Throws if a model that was built on "meta" does not fit in this machine's memory: Linux would grant it, and end the
--- process as it is filled.
local function check_memory(model, dtype)
  local seen, elements = {}, 0
  for _, place in ipairs(nn.parameter_places(model)) do
    if not seen[place.tensor] then elements = elements + place.tensor:numel() end
    seen[place.tensor] = true
  end
  local bytes, most = elements * torch.empty(0, { dtype = dtype }):element_size(), machine_bytes()
  if bytes > most then
    core.raise(("models.build: the config makes %.4g parameters, which take %.4g GiB as %s, and this machine has %.4g "
      .. "GiB of memory; models.load with shard = { ... } gives each rank a part"):format(elements, bytes / 2 ^ 30,
      tostring(dtype), most / 2 ^ 30))
  end
end

--- Gives the parameters of a model that was built on "meta" memory and random values: matrices normal, biases 0, the
--- rest (norms) 1, or the module's first_value. A module's `first_values` draw other values of its parameters, by name.
---@generic T: nn.Module
---@param model T
---@param o {dtype: torch.dtype, device: string, deviation: number}
---@return T
function M.fill(model, o)
  if tostring(o.device):match "^cpu" then check_memory(model, o.dtype) end
  local made = {}
  for _, place in ipairs(nn.parameter_places(model)) do
    local tensor = made[place.tensor]
    if not tensor then
      tensor = torch.empty(place.tensor.shape, { device = o.device, dtype = o.dtype })
      local draw = (place.fields.first_values or {})[place.name]
      if draw then
        draw(tensor)
      elseif place.name:match "bias$" then
        tensor:zero_()
      elseif tensor:dim() == 1 then
        tensor:fill_(place.fields.first_value or 1)
      else
        tensor:normal_(0, o.deviation)
      end
      made[place.tensor] = tensor:requires_grad_(true)
    end
    place.fields[place.name] = tensor
  end
  for _, buffer in model:named_buffers() do
    if o.device ~= "meta" then buffer:set_data(buffer:to(o.device)) end
  end
  return model
end

return M
