--- Models whose linear layers keep their weights in 4 or 8 bits: the options load_in_4bit and load_in_8bit of
--- models.load.

local adapters = require "lockstep.lora.adapters"
local core = require "lockstep.core"
local few_bits = require "lockstep.nn.few_bits"
local nn = require "lockstep.nn"
local options = require "lockstep.options"
local plain = require "lockstep.plain"
local torch = require "lockstep.torch"

local M = {}

---@class models.FewBitsOptions
---@field quant_type ("nf4"|"fp4")? default "nf4"
---@field double_quant boolean? default true: the blocks' magnitudes are rounded to 8 bits, too
---@field compute_dtype torch.dtype? in which layers multiply; default: the dtype of their inputs
---@field skip string[]? last names of linear layers that stay whole, besides the head and routers of experts

---@class models.EightBitsOptions
---@field compute_dtype torch.dtype? as of load_in_4bit
---@field skip string[]? likewise

--- Returns the option that a folder's own weights are for, load_in_4bit or load_in_8bit, or nil.
local function of_folder(folder)
  if not folder or folder.quant_method ~= "bitsandbytes" then return nil end
  return folder.load_in_4bit == true and "load_in_4bit" or folder.load_in_8bit == true and "load_in_8bit" or nil
end

--- Returns which of the two options layers follow, or nil where weights are to be whole.
local function chosen_option(o, packed)
  for _, name in ipairs { "load_in_4bit", "load_in_8bit" } do
    local given = o[name]
    plain.check(given == nil or type(given) == "table" or type(given) == "boolean",
      "models.load: %s must be true, false or a table of options, not a %s", name, type(given))
  end
  plain.check(not (o.load_in_4bit and o.load_in_8bit), "models.load: give load_in_4bit or load_in_8bit, not both")
  if o.load_in_4bit then return "load_in_4bit" end
  if o.load_in_8bit then return "load_in_8bit" end
  if not packed or o[packed] == false then return nil end
  -- Weights in 8 bits are read whole where layers cannot keep them.
  if packed == "load_in_8bit" and (o.grid or o.part or o.read_once or o.dtype == torch.float64) then return nil end
  return packed
end

--- Returns how layers keep their weights, or nil where weights are to be whole. Without an option they are as in the
--- folder.
---@param o models.LoadOptions
---@param folder table? quantization_config of the folder
---@return models.FewBitsOptions?
function M.options(o, folder)
  local packed = of_folder(folder)
  local name = chosen_option(o, packed)
  if not name then return nil end
  local caller, given, is_packed = "models.load: " .. name, o[name], name == packed
  local known = { compute_dtype = options.optional, skip = {} }
  if name == "load_in_4bit" then known.quant_type, known.double_quant = "nf4", true end
  local result = options.read(caller, type(given) == "table" and given or {}, known)
  for _, one in ipairs(result.skip) do
    plain.check(type(one) == "string", "%s: skip must be names of layers, got a %s", caller, type(one))
  end
  if name == "load_in_8bit" then result.quant_type = "int8" end
  plain.check(name == "load_in_8bit" or result.quant_type == "nf4" or result.quant_type == "fp4",
    '%s: quant_type must be "nf4" or "fp4", not "%s"', caller, result.quant_type)
  local dtype = result.compute_dtype
  plain.check(dtype == nil or dtype == torch.float32 or dtype == torch.bfloat16 or dtype == torch.float16,
    "%s: compute_dtype must be torch.float32, torch.bfloat16 or torch.float16, not %s", caller, tostring(dtype))
  result.is_packed, result.caller, result.option = is_packed, caller, name
  if is_packed and dtype == nil and name == "load_in_4bit" then
    result.compute_dtype = torch[folder.bnb_4bit_compute_dtype or "float32"]
  end
  plain.check(o.dtype ~= torch.float64 or result.compute_dtype, "%s: layers do not multiply in float64; give it "
    .. "compute_dtype = torch.float32, or load the model with another dtype", caller)
  if is_packed and type(given) == "table" and (given.quant_type or given.double_quant ~= nil or given.skip) then
    core.raise(("%s: the folder's weights are in %s bits already; quant_type, double_quant and skip are for folders "
      .. "with whole weights"):format(caller, name:match "%d"))
  end
  return result
end

--- Raises for ways to load that need whole weights.
---@param few_bits_options models.FewBitsOptions
---@param o {grid: any, part: any, read_once: any}
function M.check_alone(few_bits_options, o)
  for _, name in ipairs { "grid", "part", "read_once" } do
    if o[name] then
      core.raise(("%s: layers in %s bits are not for %s; give %s = false, which reads whole weights%s"):format(
        few_bits_options.caller, few_bits_options.option:match "%d", name, few_bits_options.option,
        name == "grid" and ", or leave grid out and call sharding.fully_shard" or ""))
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

--- Returns the linear layers that are to be in few bits, with the names of their weights, by their fields. A folder in
--- few bits says which. For others these are all but the head, routers of experts, and layers that share a weight.
---@param model models.CausalLM
---@param o models.FewBitsOptions
---@param matrices table<string, nn.FewBitsMatrix> of the folder
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
        wants = not rawequal(layer.weight, head) and not is_skipped(name)
          and (o.quant_type == "int8" or layer.weight:numel() % 2 == 0)
      end
      if wants then chosen[nn.fields(layer)] = { layer = layer, name = name .. ".weight" } end
    end
  end
  plain.check(next(chosen), "%s: the model has no linear layer that could be in %s bits", o.caller,
    o.option:match "%d")
  return chosen
end

--- Puts a weight into few bits.
---@param one {layer: nn.Linear, name: string}
---@param whole fun(): torch.Tensor the weight, where the folder has no matrix of it
---@param how {device: string, dtype: torch.dtype?, few_bits: models.FewBitsOptions, matrices: table}
function M.convert(one, whole, how)
  local o = how.few_bits
  local matrix = o.is_packed and how.matrices[one.name]
  local weight = not matrix and whole() or nil
  matrix = matrix or few_bits.quantize(weight, { type = o.quant_type, double = o.double_quant })
  local dtype = how.dtype or (weight or matrix).dtype
  few_bits.put(one.layer, matrix, { device = how.device, dtype = dtype, compute_dtype = o.compute_dtype })
end

return M
