--- Adapters in the modules of a model: which modules get one, and how it takes part in the forward pass.
---
--- A linear layer stays the object that it is, under its name. It gets the submodules lora_A and lora_B, in DoRA also
--- the parameter lora_magnitude_vector, and a class whose forward pass adds them. So names of weights are those of the
--- folder on disk, and names of adapters those of PEFT.

local core = require "lockstep.core"
local dist = require "lockstep.distributed"
local experts = require "lockstep.lora.experts"
local few_bits = require "lockstep.nn.few_bits"
local fused = require "lockstep.nn.fused"
local nn = require "lockstep.nn"
local plain = require "lockstep.plain"
local splits = require "lockstep.nn.splits"
local torch = require "lockstep.torch"

local M = {}

---@class lora.Adapter settings of one linear layer
---@field r integer
---@field alpha number
---@field scale number of the update
---@field dropout number
---@field rslora boolean
---@field dora boolean
---@field class table the layer's class without adapter
---@field is_disabled boolean

--- The adapter of each linear layer that has one.
---@type table<nn.Module, lora.Adapter>
local adapters = setmetatable({}, { __mode = "k" })

---@class lora.Original the value of a parameter before training
---@field fields table<string, any> of the module that holds the parameter
---@field name string
---@field tensor torch.Tensor

--- The values before training of each module that is trained and saved as a whole.
---@type table<nn.Module, lora.Original[]>
local originals = setmetatable({}, { __mode = "k" })

local IS_LOW = { [torch.bfloat16] = true, [torch.float16] = true }

---@class lora.Found
---@field name string
---@field module nn.Module

--- The modules of a model that have an adapter, in order.
---@param model any
---@return lora.Found[]
function M.adapted(model)
  local found = {}
  for name, module in model:named_modules() do
    if adapters[module] then found[#found + 1] = { name = name, module = module } end
  end
  return found
end

--- Returns the head of a model that shares the weight of the input embedding and has no head of its own: the name
--- lm_head, which PEFT knows, with the embedding's module. Returns nil for other models.
---@param model any
---@return lora.Found?
function M.tied_head(model)
  local embedding, root
  for name, module in model:named_modules() do
    root = root or module
    if name:match("[^.]*$") == "embed_tokens" then embedding = embedding or module end
  end
  local config = nn.fields(root).config
  local is_tied = type(config) == "table" and (rawget(config, "tie_word_embeddings") == true
    or type(rawget(config, "text_config")) == "table" and rawget(config.text_config, "tie_word_embeddings") == true)
  if is_tied and embedding and not nn.fields(root).lm_head then return { name = "lm_head", module = embedding } end
end

--- Gives the head of a model that shares the embedding's weight a module of its own, as PEFT does where it trains or
--- saves one of them without the other. `saved` gets that module. The caller gives it the embedding's values.
---@param model any
---@param saved lora.Found[]
---@return torch.Tensor head the weight, without values
---@return torch.Tensor embedding
function M.untie(model, saved)
  local tied = M.tied_head(model)
  model:untie()
  for _, one in ipairs(saved) do
    if one.name == tied.name then one.module = model.lm_head end
  end
  return model.lm_head.weight, tied.module.weight
end

--- Iterates over the names and modules of a model, last a head without a module of its own.
local function modules_and_head(model)
  local next_module, tied = model:named_modules(), M.tied_head(model)
  return function()
    local name, module = next_module()
    if name or not tied then return name, module end
    name, module, tied = tied.name, tied.module, nil
    return name, module
  end
end

--- The modules of a model that are saved as a whole, in order. A tied embedding is there twice.
---@param model any
---@return lora.Found[]
function M.saved(model)
  local found = {}
  for name, module in modules_and_head(model) do
    if originals[module] then found[#found + 1] = { name = name, module = module } end
  end
  return found
end

---@param module nn.Module
---@return lora.Adapter?
function M.of(module) return adapters[module] end

--- Calls visit(name, field, tensor) for the tensors of each module of a model, in each of their places.
---@param model any
---@param visit fun(name: string, field: string, tensor: torch.Tensor)
function M.each_tensor(model, visit)
  for name, module in model:named_modules() do
    for field, value in pairs(nn.fields(module)) do
      if torch.is_tensor(value) then visit(name, field, value) end
    end
  end
end

-- Choosing modules ------------------------------------------------------------------------------------

--- Returns whether a module is of a class, or of a subclass.
---@param module nn.Module
---@param class any
---@return boolean
function M.is_a(module, class)
  local own = getmetatable(module)
  while own do
    if own == class then return true end
    own = (getmetatable(own) or {}).__index
  end
  return false
end

--- The last name of "layers.0.q_proj", q_proj.
---@param name string
---@return string
function M.last_name(name) return name:match("[^.]*$") end

--- Whether a target names a module, as in PEFT: by its last names, "q_proj" or "self_attn.q_proj".
---@param name string
---@param target string
---@return boolean
function M.matches(name, target) return name == target or name:sub(-#target - 1) == "." .. target end

--- Whether the module computes the logits, by its name.
local function is_head(name) return M.last_name(name) == "lm_head" end

--- Whether "all-linear" leaves a module out, as PEFT does: a head of any kind.
local function is_any_head(name) return is_head(name) or name == "score" end

--- Returns the names of the routers of mixtures of experts: linear layers "gate" or "router" next to "experts".
---@param model any
---@return table<string, boolean>
function M.find_routers(model)
  local routers = {}
  for name in model:named_modules() do
    if M.last_name(name) == "experts" then
      for _, router in ipairs { "gate", "router" } do routers[name:gsub("experts$", router)] = true end
    end
  end
  return routers
end

--- Raises: a name that matches nothing, with those that there are.
local function no_match(caller, option, name, known, what)
  local nearest = core.nearest(M.last_name(name), known)
  core.raise(string.format('%s: %s: "%s" is the name of no %s of the model%s; there are: %s', caller, option, name,
    what, nearest and string.format(', did you mean "%s"?', nearest) or "",
    #known > 0 and table.concat(known, ", ") or "none"))
end

local function is_below(name, above)
  for _, one in ipairs(above) do
    if name == one.name or name:sub(1, #one.name + 1) == one.name .. "." then return true end
  end
  return false
end

--- The modules that a list of names chooses, in the model's order, but none twice and none inside another.
---@param caller string
---@param model nn.Module
---@param names string[]
---@return lora.Found[]
function M.find_modules_to_save(caller, model, names)
  local found, known, used = {}, {}, {}
  for name, module in modules_and_head(model) do
    if name ~= "" and #module:parameters() > 0 then
      known[M.last_name(name)] = true
      for _, target in ipairs(names) do
        if M.matches(name, target) then
          used[target] = true
          if not is_below(name, found) then found[#found + 1] = { name = name, module = module } end
        end
      end
    end
  end
  for _, target in ipairs(names) do
    if not used[target] then no_match(caller, "modules_to_save", target, plain.keys(known), "module") end
  end
  return found
end

--- Raises for a module that is in two lists.
---@param caller string
---@param list string
---@param name string
function M.refuse_both(caller, list, name)
  core.raise(string.format('%s: "%s" is in %s and in modules_to_save; a module has an adapter or is trained as a '
    .. "whole, so take it out of one", caller, name, list))
end

--- The linear layers that `targets` chooses, in the model's order.
---@param caller string
---@param model nn.Module
---@param targets string[]|"all-linear"
---@param saved lora.Found[] modules that get no adapter, since they are trained as a whole
---@return lora.Found[]
function M.find_targets(caller, model, targets, saved)
  local found, linear, used, others = {}, {}, {}, {}
  local routers = M.find_routers(model)
  for name, module in model:named_modules() do
    if M.is_a(module, nn.Linear) and not is_below(name, saved) then
      linear[M.last_name(name)] = true
      local chosen = targets == "all-linear" and not is_any_head(name) and not routers[name]
      for _, target in ipairs(type(targets) == "table" and targets or {}) do
        if M.matches(name, target) then chosen, used[target] = true, true end
      end
      if chosen then found[#found + 1] = { name = name, module = module } end
    elseif name ~= "" then
      others[#others + 1] = { name = name, module = module }
    end
  end
  for _, target in ipairs(type(targets) == "table" and targets or {}) do
    if not used[target] then
      for _, other in ipairs(others) do
        if M.matches(other.name, target) then
          if is_below(other.name, saved) then M.refuse_both(caller, "targets", target) end
          core.raise(string.format('%s: targets: "%s" is of the class %s, and only linear layers get an adapter; list '
            .. "it in modules_to_save to train it as a whole", caller, target, other.module.class_name))
        end
      end
      no_match(caller, "targets", target, plain.keys(linear), "linear layer")
    end
  end
  plain.check(targets ~= "all-linear" or #found ~= 0, "%s: the model has no linear layer below its head", caller)
  for _, one in ipairs(found) do
    plain.check(not is_head(one.name),
      '%s: targets: "%s" is the head, whose weight the loss reads without calling the layer, so that an adapter would '
      .. 'take no part; list "lm_head" in modules_to_save', caller, one.name)
  end
  return found
end

-- The forward pass ------------------------------------------------------------------------------------

--- The length of each row of W + scale * B A, in float32 or wider. [out]
local function row_norms(weight, update)
  return torch.linalg_vector_norm(weight:to(update.dtype) + update, 2, { 1 })
end

--- Returns what DoRA multiplies each row by, which gives it the length of its magnitude. [out] A row of zeros has no
--- direction, and stays as it is: PEFT divides by 0 there. Its update still has a gradient, so that it can leave 0.
local function factors(magnitudes, norms)
  local is_zero = norms:eq(0)
  return (magnitudes / norms:masked_fill(is_zero, 1)):masked_fill(is_zero, 1)
end

--- The lengths of the rows with the adapter in them, for DoRA. Section 4.3 of its paper: no gradient passes through
--- them.
local function norms_of(layer, scale)
  return torch.no_grad(function()
    local a, b = layer.lora_A.weight, layer.lora_B.weight
    local weight = few_bits.whole(layer):to(a.dtype)
    if weight.dtype == layer.weight.dtype then weight = weight:clone() end -- else it was made here
    return torch.linalg_vector_norm(weight:addmm_(b, a, { alpha = scale }), 2, { 1 })
  end)
end

--- Returns the layer's result with the update of LoRA, as one operator, or nil where there is none.
local function sum_of(layer, class, x, bias, dropout)
  local a, b, scale = layer.lora_A.weight, layer.lora_B.weight, adapters[layer].scale
  if class.forward == nn.Linear.forward then
    return fused.lora_linear(x, layer.weight, bias, a, b, scale, dropout)
  end
  if class.forward ~= few_bits.LinearFewBits.forward then return nil end
  return fused.lora_linear_few_bits(x, layer, bias, a, b, scale, dropout)
end

local function forward_of(class)
  return function(self, x)
    local adapter = adapters[self]
    if adapter.is_disabled then return class.forward(self, x) end
    local a, b = self.lora_A.weight, self.lora_B.weight
    local drops, dora = adapter.dropout > 0 and self.training, adapter.dora
    local kept = drops and dora and torch.dropout(x, adapter.dropout, true) or x
    local sum = sum_of(self, class, kept, not dora and self.bias or nil, drops and not dora and adapter.dropout or 0)
    if sum and not dora then return sum end
    if sum then
      local y = sum * factors(self.lora_magnitude_vector, norms_of(self, adapter.scale))
      -- As in PEFT, the magnitudes are for W of the kept numbers. W of the others is added as it is.
      if drops then return (y + class.forward(self, x - kept)):to(sum.dtype) end
      return (self.bias and y + self.bias or y):to(sum.dtype)
    end
    local result = class.forward(self, x)
    local dtype = result.dtype
    kept = kept:to(a.dtype)
    if drops and not dora then kept = torch.dropout(kept, adapter.dropout, true) end
    local update = nn.linear(nn.linear(kept, a), b) * adapter.scale
    if not dora then return (result + update):to(dtype) end
    local factor = factors(self.lora_magnitude_vector, norms_of(self, adapter.scale))
    local base = result
    if drops then
      base = torch.linear(kept, few_bits.whole(self):to(a.dtype))
    elseif self.bias then
      base = base - self.bias
    end
    return (result + (factor - 1) * base + factor * update):to(dtype)
  end
end

--- The length of each row of W + scale * B A, of a layer in parts. `owner`: where each rank has a part of every row.
local function norms_of_parts(layer, scale, owner)
  local norms = row_norms(layer.weight, torch.matmul(layer.lora_B.weight, layer.lora_A.weight) * scale)
  if not owner then return norms end
  return dist.all_reduce(norms:square(), "sum", { group = owner.group }):sqrt()
end

--- The update of a layer that sharding.tensor_parallel has split: of this rank's outputs, or its share of a sum.
splits.update_of = function(layer, x, result, owner)
  local adapter = adapters[layer]
  if not adapter or adapter.is_disabled then return nil end
  local a, drops = layer.lora_A.weight, adapter.dropout > 0 and layer.training
  x = x:to(a.dtype)
  if drops then
    local function drop() return torch.dropout(x, adapter.dropout, true) end
    x = owner and splits.with_own_random(owner, drop) or drop()
  end
  local update = nn.linear(nn.linear(x, a), layer.lora_B.weight) * adapter.scale
  if not adapter.dora then return update:to(result.dtype) end
  local norms = torch.no_grad(norms_of_parts, layer, adapter.scale, owner)
  local factor, base = factors(layer.lora_magnitude_vector, norms), result
  if drops then
    base = torch.linear(x, layer.weight:to(x.dtype))
  elseif layer.bias and not owner then -- the result of a part of the features has no bias yet
    base = base - layer.bias
  end
  return ((factor - 1) * base + factor * update):to(result.dtype)
end

--- Classes with an adapter, by the class without.
local classes = setmetatable({}, { __mode = "k" })

local function class_with_adapter(class)
  if not classes[class] then
    classes[class] = class:subclass("Lora" .. class.class_name)
    classes[class].forward = forward_of(class)
  end
  return classes[class]
end

--- Gives a linear layer an adapter whose update is 0 at first.
---@param module nn.Module
---@param o lora.LayerOptions
function M.add(module, o)
  local out, input, dtype = few_bits.describe(module)
  local where = { device = module.weight.device, dtype = IS_LOW[dtype] and torch.float32 or dtype }
  module.lora_A = nn.Linear(input, o.r, { bias = false }):to(where)
  module.lora_B = nn.Linear(o.r, out, { bias = false }):to(where)
  nn.init.zeros_(module.lora_B.weight)
  if o.dora then
    module.lora_magnitude_vector = M.magnitudes(module, module.weight):requires_grad_(true)
  end
  adapters[module] = {
    r = o.r, alpha = o.alpha, scale = o.alpha / (o.rslora and math.sqrt(o.r) or o.r), dropout = o.dropout,
    rslora = o.rslora, dora = o.dora, class = getmetatable(module), is_disabled = false,
  }
  setmetatable(module, class_with_adapter(getmetatable(module)))
end

--- Lets a module be trained and saved as a whole.
---@param module nn.Module
function M.train_whole(module)
  module:requires_grad_(true)
  local kept, copies = {}, {}
  for i, place in ipairs(nn.parameter_places(module)) do
    copies[place.tensor] = copies[place.tensor] or place.tensor:detach():clone()
    kept[i] = { fields = place.fields, name = place.name, tensor = copies[place.tensor] }
  end
  originals[module] = kept
end

-- Merging and switching off ---------------------------------------------------------------------------

--- The weight with its adapter, in float32 or wider.
---@param module nn.Module
---@param whole fun(p: torch.Tensor): torch.Tensor the value of a parameter of the layer
---@return torch.Tensor
function M.merged_weight(module, whole)
  local adapter = adapters[module]
  return torch.no_grad(function()
    local before = few_bits.whole(module, whole(module.weight))
    local update = torch.matmul(whole(module.lora_B.weight), whole(module.lora_A.weight)) * adapter.scale
    local weight = before:to(update.dtype) + update
    if not adapter.dora then return weight end
    return weight * factors(whole(module.lora_magnitude_vector), row_norms(before, update)):unsqueeze(1)
  end)
end

--- The length of each row of a layer's weight, with which DoRA begins, in float32 or wider. [out]
---@param module nn.Linear
---@param weight torch.Tensor its parameter, whole
---@return torch.Tensor
function M.magnitudes(module, weight)
  weight = torch.no_grad(few_bits.whole, module, weight)
  local dtype = IS_LOW[weight.dtype] and torch.float32 or weight.dtype
  return row_norms(weight:detach(), torch.zeros({}, { device = weight.device, dtype = dtype }))
end

--- Takes the adapter away; the weight stays as it is.
---@param module nn.Module
function M.remove(module)
  setmetatable(module, adapters[module].class)
  adapters[module] = nil
  module.lora_A, module.lora_B, module.lora_magnitude_vector = nil, nil, nil
end

--- Gives the values before training of a module that is trained as a whole.
---@param module nn.Module
---@param whole fun(p: torch.Tensor): torch.Tensor the value of a parameter
function M.fill_originals(module, whole)
  for _, original in ipairs(originals[module]) do original.tensor:copy_(whole(original.fields[original.name])) end
end

--- Forgets that a module is saved as a whole.
---@param module nn.Module
function M.forget_original(module) originals[module] = nil end

--- Lets modules that are trained as a whole compute with their values before. Returns functions that undo it.
local function use_originals(model)
  local undo = {}
  for _, one in ipairs(M.saved(model)) do
    for _, original in ipairs(originals[one.module]) do
      local now = original.fields[original.name]
      original.fields[original.name] = original.tensor:to { device = now.device, dtype = now.dtype }
      undo[#undo + 1] = function() original.fields[original.name] = now end
    end
  end
  return undo
end

--- Calls fn(...) with all adapters of the model switched off, and without recording for backward.
---@param model any
---@param fn function
---@param ... any
---@return any ...
function M.without(model, fn, ...)
  local settings, before = {}, {}
  for _, one in ipairs(M.adapted(model)) do settings[#settings + 1] = adapters[one.module] end
  for _, one in ipairs(experts.adapted(model)) do settings[#settings + 1] = experts.of(one.module) end
  local undo = use_originals(model)
  for i, one in ipairs(settings) do before[i], one.is_disabled = one.is_disabled, true end
  return plain.finally(function()
    for i = #undo, 1, -1 do undo[i]() end -- a tied head is there twice
    for i, one in ipairs(settings) do one.is_disabled = before[i] end
  end, torch.no_grad, fn, ...)
end

return M
