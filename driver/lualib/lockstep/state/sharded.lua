--- Tensors of a state that no rank holds whole: parameters of sharding.fully_shard and sharding.tensor_parallel, and
--- what an optimizer keeps of them.
---
--- In a state they are whole tensors under the names that a plain model would have. So any number of ranks can resume
--- from them, sharded or not.

local core = require "lockstep.core"
local fully_shard = require "lockstep.sharding.fully_shard"
local splits = require "lockstep.nn.splits"
local plain = require "lockstep.plain"
local torch = require "lockstep.torch"

local M = {}

---@class state.Part
---@field place sharding.Place? of a sharded model
---@field split nn.Split? of a layer in parts
---@field tensor torch.Tensor this rank's part

--- Where a tensor of a parameter belongs; nil where it is whole. `of` is the parameter.
---@param of torch.Tensor
---@param tensor torch.Tensor
---@return state.Part?
function M.part(of, tensor)
  local split = splits.of(of)
  if split then -- means over the divided dimension are the same on every rank
    local is_part = tensor:dim() == of:dim() and tensor:size(split.dim) == of:size(split.dim)
    return is_part and { split = split, tensor = tensor } or nil
  end
  local place = fully_shard.place_of(of)
  if not place or tensor:dim() ~= 1 or tensor:numel() ~= of:numel() then return nil end
  return { place = place, tensor = tensor }
end

--- Stands for the whole tensor: its dtype and shape, without memory.
---@param part state.Part
---@return torch.Tensor
function M.outline(part)
  local shape = part.place and part.place.shape or splits.whole_shape(part.tensor, part.split)
  return torch.empty(shape, { dtype = part.tensor.dtype, device = "meta" })
end

--- Groups entries of one object, one field and one unit: what one gathering makes whole.
local function groups_of(entries)
  local groups, by_key = {}, {}
  for _, one in ipairs(entries) do
    if one.part and one.part.place then
      local place = one.part.place
      local key = ("%s %s %05d"):format(one.object, one.field or "", place.unit)
      if not by_key[key] then
        by_key[key] = { key = key, place = place, entries = {} }
        groups[#groups + 1] = by_key[key]
      end
      by_key[key].entries[place.name] = one
    end
  end
  table.sort(groups, function(a, b) return a.key < b.key end)
  return groups
end

--- Calls take(entry, whole) with the whole tensor of each entry that has a part, unit by unit. Collective.
---@param entries state.Tensor[]
---@param take fun(entry: state.Tensor, whole: torch.Tensor)
function M.each_whole(entries, take)
  for _, one in ipairs(entries) do
    if one.part and one.part.split then take(one, splits.whole(one.part.tensor, one.part.split)) end
  end
  for _, group in ipairs(groups_of(entries)) do
    local first = select(2, next(group.entries))
    local pieces = {}
    for i, one in ipairs(group.place.unit_parameters()) do
      -- Parameters of several dtypes are gathered one dtype after the other. What an optimizer keeps has one.
      local entry, dtype = group.entries[one.name], first.field and first.part.tensor.dtype or one.shard.dtype
      if entry and entry.part.tensor.dtype ~= dtype then
        core.raise(('run:save: the unit of "%s" has tensors of several dtypes, which one gathering cannot hold'):format(
          one.name))
      end
      pieces[i] = entry and entry.part.tensor or torch.zeros({ one.shard:numel() }, { dtype = dtype,
        device = one.shard.device })
    end
    local whole = group.place.gather(pieces)
    for _, name in ipairs(plain.keys(group.entries)) do take(group.entries[name], whole[name]) end
  end
end

--- Takes this rank's part of a whole tensor.
---@param part state.Part
---@param whole torch.Tensor
function M.restore(part, whole)
  local split = part.split
  if split then
    part.tensor:copy_(splits.own(whole, split))
  else
    part.place.load(whole, part.tensor)
  end
end

return M
