--- Chooses the weights that a sharded model gathers in float8. Private to sharding.fully_shard.

local dist = require "lockstep.distributed"
local nn = require "lockstep.nn"
local torch = require "lockstep.torch"

local M = {}

--- Returns why the weight of a float8 layer cannot be gathered in float8, or nil.
---@param layer nn.Module
---@param o table options of fully_shard
---@param num_users integer modules that hold the weight
local function obstacle(layer, o, num_users)
  local dtype = o.param_dtype or layer.weight.dtype
  if layer.float8_recipe ~= "tensorwise" then
    return ('its recipe is "%s": only the scales of "tensorwise" are known before the weight is whole'):format(
      layer.float8_recipe)
  end
  if layer.class_name ~= "Float8Linear" then return "it has an adapter" end
  if nn.fields(layer).forward then return "it has a forward of its own" end
  if num_users > 1 then return "another module holds its weight, too" end
  if o.offload then return "its masters are in host memory" end
  if dtype == torch.float64 then return "it is gathered in float64" end
end

--- Returns the number of ranks that share one copy of the weights.
local function ranks_of_copy(group, replicas)
  return (group and #group:ranks() or dist.world_size()) / replicas
end

--- Returns the names of the weights to gather in float8, and the float8 layers whose weights are not among them.
---@param net nn.Module
---@param found sharding.Units
---@param o table options of fully_shard
---@return string[] names
---@return float8.Left[] left
function M.find(net, found, o)
  local names, left, users, name_of, of_experts = {}, {}, {}, {}, {}
  if not o.float8_gather then return names, left end
  for _, unit in ipairs(found.units) do
    for _, named in ipairs(unit.parameters) do
      name_of[named[2]] = named[1]
      of_experts[named[2]] = o.experts and o.experts.modules[unit.module]
    end
  end
  local modules, seen = {}, {}
  for name, module in net:named_modules() do
    if not seen[module] then modules[#modules + 1] = { name, module } end
    seen[module] = true
  end
  for _, one in ipairs(modules) do
    for _, value in pairs(nn.fields(one[2])) do
      if torch.is_tensor(value) then users[value] = (users[value] or 0) + 1 end
    end
  end
  for _, one in ipairs(modules) do
    local name, layer = one[1], one[2]
    if layer.float8_recipe and layer.holds_experts then
      left[#left + 1] = { name = name, reason = "it holds experts, whose weights are cast for each product" }
    elseif layer.float8_recipe then
      local weight = layer.weight
      local reason = obstacle(layer, o, users[weight])
      local at = of_experts[weight] and o.experts or o
      if not name_of[weight] then
        reason = "it is ignored, and whole on every rank"
      elseif ranks_of_copy(at.group, at.replicas) <= 1 then
        reason = reason or "one rank keeps the whole weight"
      end
      if reason then
        left[#left + 1] = { name = name, reason = reason }
      else
        names[#names + 1] = name_of[weight]
      end
    end
  end
  return names, left
end

return M
