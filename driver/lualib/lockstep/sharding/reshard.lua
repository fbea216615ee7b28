--- Parameters that join or leave a sharded model: for sharding.fully_shard. Whole values are there for one unit at a
--- time.

local dist = require "lockstep.distributed"
local nn = require "lockstep.nn"
local places = require "lockstep.sharding.places"
local plain = require "lockstep.plain"
local splits = require "lockstep.nn.splits"
local torch = require "lockstep.torch"

local M = {}

--- Returns a function that gives the whole value of a parameter. Collective.
---@param parts table of a sharded model
---@return fun(name: string): torch.Tensor
function M.whole_of(parts)
  local unit, values
  return function(name)
    local place = parts.places[name]
    if not place then return places.ignored(parts, name) end
    if unit ~= place.unit then unit, values = place.unit, places.gather(parts, place.unit) end
    return values[name]
  end
end

--- Lets parameters take whole values: each rank its part.
---@param parts table of a sharded model
---@param values table<string, torch.Tensor>
function M.load_values(parts, values)
  for name, value in pairs(values) do places.load(parts, name, value) end
end

--- Puts a tensor with the place of one element in memory where each sharded parameter is.
local function put_outlines(parts)
  local outlines = {}
  for name, place in pairs(parts.places) do
    local strides, shard, tensor = {}, parts.shards[name], parts.tensors[name]
    for d = 1, #place.unit_shape do strides[d] = 0 end
    outlines[tensor] = torch.empty_strided(place.unit_shape, strides, { dtype = shard.dtype, device = tensor.device })
      :requires_grad_(shard.requires_grad)
    splits.move(tensor, outlines[tensor])
  end
  for _, module in parts.net:named_modules() do
    local fields = nn.fields(module)
    for field, value in pairs(fields) do
      if torch.is_tensor(value) and outlines[value] then fields[field] = outlines[value] end
    end
  end
end

--- Calls change(net) without sharding, and shards the net again with `build`. Collective.
---@param old table parts of the model before
---@param change fun(net: nn.Module)
---@param build fun(options: table): table parts of the model after
function M.change(old, change, build)
  put_outlines(old)
  change(old.net)
  local group = old.options.group
  local first, values = group and group:ranks()[1] or 0, {}
  for name, p in old.net:named_parameters() do
    if not old.shards[name] then
      values[name] = dist.broadcast(p:detach():clone(), first, { group = group })
    end
  end
  local new = build(plain.copy({ units = old.given.units, ignore = old.given.ignore }, old.options))
  for name, value in pairs(values) do -- of this rank's part, where tensor_parallel has split the layer
    if new.places[name] then
      new.core:load(name, value)
    else
      torch.no_grad(function() new.shards[name]:copy_(value) end)
    end
  end
  for i = 1, #old.units do
    for name, value in pairs(old.core:gather(i - 1)) do
      if new.places[name] then new.core:load(name, value) end
    end
  end
end

return M
