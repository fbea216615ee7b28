--- Whole tensors of a model of sharding.fully_shard, and where each rank's part belongs. If sharding.tensor_parallel
--- has split a layer before, fully_shard shares out a part of it. The whole tensors here are those of the model.

local splits = require "lockstep.nn.splits"
local spread = require "lockstep.nn.spread"
local torch = require "lockstep.torch"

local M = {}

--- Makes a parameter's parts whole, and other tensors that consist of such parts. Private to the library.
---@class sharding.Place
---@field name string of the parameter
---@field unit integer from 0
---@field shape integer[] of the whole parameter
---@field unit_shape integer[] of what fully_shard shares out: the same, or a part of tensor_parallel
---@field unit_parameters fun(): {name: string, shard: torch.Tensor}[] of the unit, in its order
---@field gather fun(pieces: torch.Tensor[]): table<string, torch.Tensor> whole tensors from parts. Collective.
---@field load fun(whole: torch.Tensor, into: torch.Tensor) copies this rank's part of a whole tensor

local function shape_of(tensor)
  local shape = {}
  for d = 0, tensor:dim() - 1 do shape[d + 1] = tensor:size(d) end
  return shape
end

--- Returns the whole tensors of a unit, from its shards or from `pieces`. Collective.
---@param parts table of a sharded model
---@param unit integer from 0
---@param pieces torch.Tensor[]?
---@param keep (fun(name: string): any)? the others stay as tensor_parallel has cut them
---@return table<string, torch.Tensor>
function M.gather(parts, unit, pieces, keep)
  local whole = parts.core:gather(unit, pieces)
  for _, named in ipairs(parts.units[unit + 1].parameters) do
    local split = splits.of(named[2])
    if split and (not keep or keep(named[1])) then whole[named[1]] = splits.whole(whole[named[1]], split) end
  end
  return whole
end

--- Takes this rank's part of a whole value into the parameter's shard, or into another tensor of the shard's size.
---@param parts table of a sharded model
---@param name string
---@param whole torch.Tensor
---@param into torch.Tensor?
function M.load(parts, name, whole, into)
  local split = splits.of(parts.tensors[name])
  if split then whole = splits.own(whole, split, name) end
  if parts.places[name] then
    parts.core:load(name, whole, into)
  else -- a parameter that stays whole
    torch.no_grad(function() (into or parts.shards[name]):copy_(whole) end)
  end
end

--- Returns the whole value of a parameter that is not sharded. Collective where tensor_parallel has split it.
---@param parts table of a sharded model
---@param name string
---@return torch.Tensor
function M.ignored(parts, name)
  local value, split = parts.shards[name]:detach(), splits.of(parts.tensors[name])
  return split and splits.whole(value, split) or value
end

--- Returns stand-ins without memory for the whole parameters that tensor_parallel has split, by all their names.
---@param parts table of a sharded model
---@return table<string, torch.Tensor>
function M.outlines(parts)
  local outlines = {}
  for name, tensor in pairs(parts.tensors) do
    local split = splits.of(tensor)
    if split then
      local whole = torch.empty(splits.whole_shape(tensor, split), { dtype = tensor.dtype, device = "meta" })
      for _, alias in ipairs(parts.aliases[name]) do outlines[alias] = whole end
    end
  end
  return outlines
end

--- Notes where the shards of a unit belong, and over which ranks their elements lie.
---@param parts table of a sharded model
---@param index integer of the unit, from 0
---@param unit sharding.Unit
---@return table<string, sharding.Place>
function M.of_unit(parts, index, unit)
  local members, places = {}, {}
  for i, named in ipairs(unit.parameters) do members[i] = { name = named[1], shard = parts.shards[named[1]] } end
  for _, named in ipairs(unit.parameters) do
    local name, split = named[1], splits.of(named[2])
    local o = parts.options.experts and parts.options.experts.modules[unit.module] and parts.options.experts
      or parts.options
    local groups = { o.group or false, split and (split.owner.group or false) }
    spread.note(parts.shards[name], groups, o.replicas * (split and split.copies or 1))
    places[name] = {
      name = name, unit = index, unit_shape = shape_of(named[2]),
      shape = split and splits.whole_shape(named[2], split) or shape_of(named[2]),
      unit_parameters = function() return members end,
      gather = function(pieces) return M.gather(parts, index, pieces) end,
      load = function(whole, into) M.load(parts, name, whole, into) end,
    }
    parts.is_split = parts.is_split or split ~= nil
  end
  return places
end

return M
