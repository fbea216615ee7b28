--- Models whose linear layers keep their weights in 4 bits: the option load_in_4bit of models.load.

local adapters = require "lockstep.lora.adapters"
local core = require "lockstep.core"
local four_bit = require "lockstep.nn.four_bit"
local nn = require "lockstep.nn"
local options = require "lockstep.options"
local plain = require "lockstep.plain"
local torch = require "lockstep.torch"

local M = {}

local CALLER = "models.load: load_in_4bit"

---@class models.FourBitOptions
---@field quant_type ("nf4"|"fp4")? default "nf4"
---@field double_quant boolean? default true: the blocks' magnitudes are rounded to 8 bits, too
---@field compute_dtype torch.dtype? in which layers multiply; default: the dtype of their inputs
---@field skip string[]? last names of linear layers that stay whole, besides the head and routers of experts

--- Returns the options of load_in_4bit, or nil where weights are to be whole.
---@param given boolean|models.FourBitOptions|nil nil: as the folder is
---@param folder table? quantization_config of the folder
---@return models.FourBitOptions?
function M.options(given, folder)
  local is_packed = folder ~= nil and folder.quant_method == "bitsandbytes" and folder.load_in_4bit == true
  if given == nil then given = is_packed end
  if type(given) ~= "table" and type(given) ~= "boolean" then
    core.raise(CALLER .. " must be true, false or a table of options, not a " .. type(given))
  end
  if given == false then return nil end
  local o = options.read(CALLER, given == true and {} or given, { quant_type = "nf4", double_quant = true,
    compute_dtype = options.optional, skip = {} })
  plain.check(o.quant_type == "nf4" or o.quant_type == "fp4", '%s: quant_type must be "nf4" or "fp4", not "%s"', CALLER,
    o.quant_type)
  local dtype = o.compute_dtype
  plain.check(dtype == nil or dtype == torch.float32 or dtype == torch.bfloat16 or dtype == torch.float16,
    "%s: compute_dtype must be torch.float32, torch.bfloat16 or torch.float16, not %s", CALLER, tostring(dtype))
  o.is_packed = is_packed
  if is_packed and dtype == nil then o.compute_dtype = torch[folder.bnb_4bit_compute_dtype or "float32"] end
  if is_packed and type(given) == "table" and (given.quant_type or given.double_quant ~= nil or given.skip) then
    core.raise(CALLER .. ": the folder's weights are in 4 bits already; quant_type, double_quant and skip are for "
      .. "folders with whole weights")
  end
  return o
end

--- Raises for ways to load that need whole weights.
---@param o {grid: any, part: any, shard: any}
function M.check_alone(o)
  for _, name in ipairs { "grid", "part", "read_once" } do
    if o[name] then
      core.raise(("%s: layers in 4 bits are not for %s; give load_in_4bit = false, which reads whole weights%s"):format(
        CALLER, name, name == "grid" and ", or leave grid out and call sharding.fully_shard" or ""))
    end
  end
end

local function count_places(model)
  local counts = {}
  for _, module in model:named_modules() do
    for _, value in pairs(nn.fields(module)) do
      if torch.is_tensor(value) then counts[value] = (counts[value] or 0) + 1 end
    end
  end
  return counts
end

--- Returns the linear layers that are to be in 4 bits, with the names of their weights, by their fields. A folder in 4
--- bits says which. For others these are all but the head, routers of experts, and layers that share a weight.
---@param model models.CausalLM
---@param o models.FourBitOptions
---@param matrices table<string, nn.FourBitMatrix> of the folder
---@return table<table, {layer: nn.Linear, name: string}>
function M.choose(model, o, matrices)
  local chosen, counts, routers = {}, count_places(model), adapters.find_routers(model)
  local head = model:head_weight()
  local function is_skipped(name)
    for _, one in ipairs(o.skip) do
      if adapters.matches(name, one) then return true end
    end
    return name:match "[^.]*$" == "score" or routers[name]
  end
  for name, layer in model:named_modules() do
    if getmetatable(layer) == nn.Linear and counts[layer.weight] == 1 then
      local wants = matrices[name .. ".weight"] ~= nil
      if not o.is_packed then
        wants = not rawequal(layer.weight, head) and not is_skipped(name) and layer.weight:numel() % 2 == 0
      end
      if wants then chosen[nn.fields(layer)] = { layer = layer, name = name .. ".weight" } end
    end
  end
  plain.check(next(chosen), "%s: the model has no linear layer that could be in 4 bits", CALLER)
  return chosen
end

--- Puts a weight into 4 bits.
---@param one {layer: nn.Linear, name: string}
---@param whole fun(): torch.Tensor the weight, where the folder has no matrix of it
---@param how {device: string, dtype: torch.dtype?, four_bit: models.FourBitOptions, matrices: table}
function M.convert(one, whole, how)
  local o = how.four_bit
  local matrix = how.matrices[one.name]
  local weight = not matrix and whole() or nil
  matrix = matrix or four_bit.quantize(weight, { type = o.quant_type, double = o.double_quant })
  local dtype = how.dtype or (weight or matrix).dtype
  four_bit.put(one.layer, matrix, { device = how.device, dtype = dtype, compute_dtype = o.compute_dtype })
end

return M
