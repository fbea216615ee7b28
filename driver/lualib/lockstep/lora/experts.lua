--- Adapters of the weights of a mixture of experts: parameters [experts, out, in] that a module holds directly.
---
--- No layer computes with one of them alone, so that an adapter cannot add to its output. Reading the parameter from
--- its module gives W + scale * B A in place of W. The module itself reads it so, and every function that asks for
--- module.gate_up_proj. Each parameter has a submodule, lora_gate_up_proj, with lora_A [experts * r, in] and lora_B
--- [out, r * experts], laid out as PEFT does for its target_parameters.

local core = require "lockstep.core"
local nn = require "lockstep.nn"
local plain = require "lockstep.plain"
local torch = require "lockstep.torch"

local M = {}

local IS_LOW = { [torch.bfloat16] = true, [torch.float16] = true }

---@class lora.Packed the adapters in one module
---@field adapters table<string, lora.PackedAdapter> by the parameter's name
---@field class table the module's class without adapters
---@field is_disabled boolean

---@class lora.PackedAdapter settings of one parameter's adapter
---@field r integer
---@field alpha number
---@field scale number of the update
---@field rslora boolean

---@type table<nn.Module, lora.Packed>
local packed = setmetatable({}, { __mode = "k" })

---@param module nn.Module
---@return lora.Packed?
function M.of(module) return packed[module] end

---@class lora.Holder a module, and those of its parameters that have an adapter, in the order of their registration
---@field name string
---@field module nn.Module
---@field parameters string[]

--- A module's own parameters of three dimensions, in order.
local function own_parameters(module)
  local names = {}
  for name, p in module:named_parameters() do
    if not name:find(".", 1, true) and p:dim() == 3 then names[#names + 1] = name end
  end
  return names
end

--- The modules of a model with such parameters.
---@param model any
---@param is_chosen fun(full_name: string, module: nn.Module, name: string): boolean
---@return lora.Holder[]
local function holders(model, is_chosen)
  local found = {}
  for name, module in model:named_modules() do
    local chosen = {}
    for _, parameter in ipairs(own_parameters(module)) do
      local full = name == "" and parameter or name .. "." .. parameter
      if is_chosen(full, module, parameter) then chosen[#chosen + 1] = parameter end
    end
    if #chosen > 0 then found[#found + 1] = { name = name, module = module, parameters = chosen } end
  end
  return found
end

--- The modules of a model whose parameters have adapters, in order.
---@param model any
---@return lora.Holder[]
function M.adapted(model)
  return holders(model, function(_, module, name)
    return packed[module] ~= nil and packed[module].adapters[name] ~= nil
  end)
end

--- The modules that hold the parameters whose last names are in `targets`, in the model's order.
---@param caller string
---@param model nn.Module
---@param targets string[] "experts.gate_up_proj", or a full name
---@return lora.Holder[]
function M.find(caller, model, targets)
  local known, used = {}, {}
  local found = holders(model, function(full)
    known[full:match("[^.]*%.[^.]*$") or full] = true
    local chosen = false
    for _, target in ipairs(targets) do
      if full == target or full:sub(-#target - 1) == "." .. target then chosen, used[target] = true, true end
    end
    return chosen
  end)
  for _, target in ipairs(targets) do
    if not used[target] then
      local names = plain.keys(known)
      core.raise(string.format('%s: parameters: "%s" is the name of no parameter [experts, out, in] of the model; '
        .. "there are: %s", caller, target, #names > 0 and table.concat(names, ", ") or "none"))
    end
  end
  return found
end

-- The adapters ----------------------------------------------------------------------------------------

local function itself(p) return p end

--- The update of a parameter without its scale, as two factors: [experts, out, r] and [experts, r, in].
local function factors(module, name, whole)
  local adapter = nn.fields(module)["lora_" .. name]
  local a, b = whole(adapter.lora_A.weight), whole(adapter.lora_B.weight)
  local count = nn.fields(module)[name]:size(0)
  return b:view(b:size(0), -1, count):permute(2, 0, 1), a:view(count, -1, a:size(1))
end

--- The parameter with its update, in the parameter's dtype.
local function with_update(module, name, weight)
  local b, a = factors(module, name, itself)
  return torch.baddbmm(weight, b:to(weight.dtype), a:to(weight.dtype), { alpha = packed[module].adapters[name].scale })
end

--- Classes with adapters, by the class without.
local classes = setmetatable({}, { __mode = "k" })

local function class_with_adapters(class)
  if classes[class] then return classes[class] end
  local adapted = class:subclass("Lora" .. class.class_name)
  adapted.__index = function(self, key)
    local value = nn.fields(self)[key]
    if value == nil then return adapted[key] end
    local own = packed[self]
    if own and own.adapters[key] and not own.is_disabled then return with_update(self, key, value) end
    return value
  end
  classes[class] = adapted
  return adapted
end

local Factors = nn.Module:subclass("LoraFactors")

function Factors:init(weight, r)
  local where = { device = weight.device, dtype = IS_LOW[weight.dtype] and torch.float32 or weight.dtype }
  local count = weight:size(0)
  self.lora_A = nn.Linear(weight:size(2), count * r, { bias = false }):to(where)
  self.lora_B = nn.Linear(count * r, weight:size(1), { bias = false }):to(where)
  nn.init.zeros_(self.lora_B.weight)
end

--- Gives parameters of a module adapters whose updates are 0 at first.
---@param holder lora.Holder
---@param options_of fun(path: string): {r: integer, alpha: number, rslora: boolean} by PEFT's path; see paths
function M.add(holder, options_of)
  local module, adapters, paths = holder.module, {}, M.paths(holder.name, holder.parameters)
  for _, name in ipairs(holder.parameters) do
    local o = options_of(paths[name])
    module["lora_" .. name] = Factors(nn.fields(module)[name], o.r)
    adapters[name] = { r = o.r, alpha = o.alpha, rslora = o.rslora,
      scale = o.alpha / (o.rslora and math.sqrt(o.r) or o.r) }
  end
  packed[module] = { adapters = adapters, is_disabled = false, class = getmetatable(module) }
  setmetatable(module, class_with_adapters(getmetatable(module)))
end

--- The parameter with its update, in float32 or wider.
---@param module nn.Module
---@param name string
---@param whole fun(p: torch.Tensor): torch.Tensor the value of a parameter of the module
---@return torch.Tensor
function M.merged(module, name, whole)
  return torch.no_grad(function()
    local b, a = factors(module, name, whole)
    return torch.baddbmm(whole(nn.fields(module)[name]):to(a.dtype), b, a,
      { alpha = packed[module].adapters[name].scale })
  end)
end

--- Takes the adapters away; the parameters stay as they are.
---@param holder lora.Holder
function M.remove(holder)
  local module, own = holder.module, packed[holder.module]
  setmetatable(module, own.class)
  packed[module] = nil
  for _, name in ipairs(holder.parameters) do module["lora_" .. name] = nil end
end

-- PEFT's names ----------------------------------------------------------------------------------------

--- PEFT's names of a module's adapters: it wraps the module once for each parameter, the first one innermost. Returns
--- for each parameter of the holder the path of its lora_A and lora_B.
---@param name string of the module
---@param parameters string[] in the order of their registration
---@return table<string, string>
function M.paths(name, parameters)
  local paths = {}
  for i, parameter in ipairs(parameters) do paths[parameter] = name .. string.rep(".base_layer", #parameters - i) end
  return paths
end

return M
