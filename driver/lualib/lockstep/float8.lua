--- Training with matrix products of 8-bit floating-point numbers, like torchao's convert_to_float8_training.
---
---     local count, left = float8.apply(model, { recipe = "rowwise" })
---     for _, one in ipairs(left) do print(one.name, one.reason) end
---
--- Inputs, weights and gradients are scaled and rounded to 8 bits for each of the three products of a linear
--- layer. Parameters, their names, dtypes and gradients stay as they are, and so do checkpoints, optimizers and
--- models.save. docs/kernels.md has the recipes.

local adapters = require "lockstep.lora.adapters"
local core = require "lockstep.core"
local lora_experts = require "lockstep.lora.experts"
local fully_shard = require "lockstep.sharding.fully_shard"
local nn = require "lockstep.nn"
local options = require "lockstep.options"
local plain = require "lockstep.plain"
local splits = require "lockstep.nn.splits"
local torch = require "lockstep.torch"

local M = {}

local CALLER = "float8.apply"
local HEADS = { lm_head = true, output = true }

--- Classes of linear layers, by recipe. Each has one whose casts of the weight are kept, and one that casts in each
--- call.
local classes = {}
for _, recipe in ipairs { "tensorwise", "rowwise", "rowwise_with_gw_hp" } do
  classes[recipe] = {}
  for _, keep in ipairs { true, false } do
    local class = nn.Linear:subclass "Float8Linear"
    class.float8_recipe = recipe
    function class:forward(x) return torch.ops.lockstep.float8_linear(x, self.weight, self.bias, recipe, keep) end
    classes[recipe][keep] = class
  end
end

local function fail(format, ...) core.raise(CALLER .. ": " .. format:format(...)) end
local function check(holds, message, ...) if not holds then fail(message, ...) end end

--- Returns the module whose layers are converted.
local function net_of(model)
  if fully_shard.is_one(model) then return fully_shard.net_of(model) end
  check(nn.is_module(model),
    "expected a module, or what sharding.fully_shard returned, not a %s; of replicas give replicas.module", type(model))
  return model
end

local function check_net(net)
  if #adapters.adapted(net) + #lora_experts.adapted(net) > 0 then
    fail("the model has adapters; call this before lora.apply")
  end
  for name, module in net:named_modules() do
    -- Each expert is whole on its rank.
    for _, value in pairs(module.holds_experts and {} or nn.fields(module)) do
      splits.refuse(CALLER, value, "float8 products of split layers are not supported")
    end
    check(not module.float8_recipe, '"%s" is a float8 layer already; call this once', name)
  end
end

--- Returns why a weight cannot be multiplied in float8, or nil.
local function obstacle_of_weight(weight)
  if weight.dtype == torch.float64 then return "its weight is float64" end
  local outputs, inputs = weight:size(-2), weight:size(-1)
  if outputs % 16 ~= 0 or inputs % 16 ~= 0 then
    return ("its weight is {%d, %d}, and not both are multiples of 16"):format(outputs, inputs)
  end
end

--- Returns why a layer cannot be converted, or nil.
local function obstacle(layer)
  local class = getmetatable(layer)
  if class ~= nn.Linear then return "its class is " .. class.class_name .. ", not Linear" end
  if fully_shard.is_sharded(layer) then
    return "it is a unit of sharding.fully_shard; shard the model after float8.apply"
  end
  if nn.fields(layer).forward then return "it has a forward of its own" end
  return obstacle_of_weight(layer.weight)
end

--- Sorts the modules that hold experts into those to convert and those that stay.
local function choose_experts(net)
  local chosen, left, seen = {}, {}, {}
  for name, module in net:named_modules() do
    if module.holds_experts and not seen[module] then
      seen[module] = true
      local reason
      for _, p in module:named_parameters() do
        if p:dim() == 3 then reason = reason or obstacle_of_weight(p) end
      end
      if reason then left[#left + 1] = { name = name, reason = reason } else chosen[#chosen + 1] = module end
    end
  end
  if #chosen == 0 then
    fail("experts = true, but the model has no experts that can be converted%s",
      left[1] and ('; "%s", for example: %s'):format(left[1].name, left[1].reason) or "")
  end
  return chosen, left
end

--- Returns why a layer is left out where the caller gives no filter, or nil.
local function default_reason(name, is_head, routers)
  if is_head or HEADS[adapters.last_name(name)] then return "it is the head" end
  if routers[name] then return "it is the router of experts" end
end

--- Returns why the caller's filter leaves a layer out, or nil.
local function filter_reason(filter, name, layer)
  local answer = filter(name, layer)
  check(type(answer) == "boolean", 'filter must return true or false, but returned %s for "%s"', answer, name)
  return not answer and "the filter left it out" or nil
end

---@class float8.Options
---@field recipe "tensorwise"|"rowwise"|"rowwise_with_gw_hp"|nil one scale for each tensor, the default and the fastest;
---or for each row, which is more exact; or that, with the gradient of the weight in the input's dtype
---@field filter nil|fun(name: string, layer: nn.Linear): boolean whether to convert a layer; default: all but the head
---("lm_head" or "output") and the routers of experts
---@field experts boolean? whether experts of mixtures multiply in float8, too; default: false. Each expert's weight has
---scales of its own, and so have its rows. Their casts are not kept. Routers stay as they are
---@field keep_casts boolean? whether a weight is cast once until it changes, which takes up to 2 bytes for each of its
---numbers; default: true. Results have the same bits

---@class float8.Left
---@field name string of a layer or of a module of experts
---@field reason string "it is the head"

--- Lets the linear layers of a model multiply in float8, in training and in evaluation. Layers whose dimensions are not
--- multiples of 16 stay as they are. Call it before lora.apply, before or after sharding.data_parallel and
--- sharding.fully_shard. Throws if no layer can be converted.
---
---     float8.apply(model, { filter = function(name) return name:find "mlp" ~= nil end })
---
--- Source: arXiv 2209.05433; the recipes are those of torchao 0.18.
---@param model any a module, or what sharding.fully_shard returned
---@param opts float8.Options?
---@return integer count layers that were converted, and modules of experts
---@return float8.Left[] left the linear layers that were not, in the model's order; then modules of experts
function M.apply(model, opts)
  local o = options.read(CALLER, opts, { recipe = "tensorwise", filter = options.optional, keep_casts = true,
    experts = false })
  local of_recipe = classes[o.recipe]
  local names = table.concat(plain.keys(classes), ", ")
  if not of_recipe then fail('recipe must be one of %s, not "%s"', names, o.recipe) end
  if o.filter and not plain.is_callable(o.filter) then fail("filter must be a function, not a %s", type(o.filter)) end
  local net = net_of(model)
  check_net(net)
  local routers, chosen, left, seen = adapters.find_routers(net), {}, {}, {}
  local head = type(net.head_weight) == "function" and net:head_weight() or nil
  for name, layer in net:named_modules() do
    if adapters.is_a(layer, nn.Linear) and not seen[layer] then
      seen[layer] = true
      local is_head = rawequal(layer.weight, head)
      local reason
      if o.filter then
        reason = filter_reason(o.filter, name, layer)
        if is_head and not reason then
          fail('filter chose "%s", the head, whose weight the loss reads without calling the layer; leave it out', name)
        end
      else
        reason = default_reason(name, is_head, routers)
      end
      reason = reason or obstacle(layer)
      if reason then
        left[#left + 1] = { name = name, reason = reason }
      else
        chosen[#chosen + 1] = layer
      end
    end
  end
  local experts_chosen, experts_left = {}, {}
  if o.experts then experts_chosen, experts_left = choose_experts(net) end
  if #chosen + #experts_chosen == 0 then
    local first = left[1] and ('; "%s", for example: %s'):format(left[1].name, left[1].reason) or ""
    fail("none of the model's %d linear layers can be converted%s", #left, first)
  end
  for _, layer in ipairs(chosen) do setmetatable(layer, of_recipe[o.keep_casts]) end
  for _, module in ipairs(experts_chosen) do module.float8_recipe = o.recipe end
  for _, one in ipairs(experts_left) do left[#left + 1] = one end
  -- Weights of these layers travel in another form from here on.
  if fully_shard.is_one(model) and fully_shard.gathers_float8(model) then fully_shard.rebuild(model, function() end) end
  return #chosen + #experts_chosen, left
end

--- Returns the bytes of all casts of weights that are kept now.
---@return integer
function M.kept_bytes() return torch.ops.lockstep.float8_kept_bytes() end

--- Frees all casts of weights that are kept: before a large evaluation of another model, for example. The next call of
--- a layer casts its weight again. Call it after a write that autograd does not see, through a pointer.
function M.forget() torch.ops.lockstep.float8_forget() end

return M
