--- A sharded model whose experts lie on several ranks: its experts are shared out over fewer ranks than all else.
---
--- Two cores of sharding.fully_shard take one module's units together. The first has all but the experts and the group
--- of all dp x cp ranks. The second has the experts, and the group of the ranks that hold the same ones.

local core_sharding = require "lockstep.core.sharding"
local plain = require "lockstep.plain"

local M = {}

---@class sharding.ExpertUnits
---@field group dist.Group the ranks that hold the same experts
---@field replicas integer whole copies among them
---@field modules table<nn.Module, true> the units

---@type table<nn.Module, sharding.ExpertUnits>
local units_of_net = setmetatable({}, { __mode = "k" })

--- Notes which ranks hold the same experts of a net, for sharding.fully_shard.
---@param net nn.Module
---@param units sharding.ExpertUnits
function M.note(net, units) units_of_net[net] = units end

--- Returns what was noted; nil for other nets.
---@param net nn.Module
---@return sharding.ExpertUnits?
function M.of(net) return units_of_net[net] end

--- Two cores as one: see lockstep.core.sharding.FullyShard.
---@class sharding.ShardedCores
---@field first lockstep.core.sharding.FullyShard all but the experts
---@field second lockstep.core.sharding.FullyShard the experts, with a root that has no parameters
---@field count integer units of `first`
---@field is_second table<string, true> names of the experts' parameters
local Cores = {}
Cores.__index = Cores

--- Calls fn(...) as a forward of a unit. The root is that of both. Collective.
---@param unit integer from 0
---@param fn fun(...): ...
---@param ... any
---@return any ...
function Cores:call(unit, fn, ...)
  if unit >= self.count then return self.second:call(unit - self.count + 1, fn, ...) end
  if unit > 0 then return self.first:call(unit, fn, ...) end
  -- The roots do not see their inputs, so that both are reduced at the end of backward. With an input that has a graph,
  -- as pictures of mimo, they would be reduced earlier and in the other order than on a rank without such an input. The
  -- ranks of both groups would wait for each other.
  local arguments, count = { ... }, select("#", ...)
  return self.first:call(0, function()
    return self.second:call(0, function() return fn(unpack(arguments, 1, count)) end)
  end)
end

--- Returns this rank's parts by the parameters' names.
---@return table<string, torch.Tensor>
function Cores:shards() return plain.copy(self.first:shards(), self.second:shards()) end

--- Calls fn(...) without averaging.
---@param fn fun(...): ...
---@param ... any
---@return any ...
function Cores:no_sync(fn, ...)
  return self.first:no_sync(function(...) return self.second:no_sync(fn, ...) end, ...)
end

--- Calls fn(...) with all parameters gathered. Collective.
---@param fn fun(...): ...
---@param ... any
---@return any ...
function Cores:full(fn, ...)
  return self.first:full(function(...) return self.second:full(fn, ...) end, ...)
end

--- Forgets whole gradients.
function Cores:drop_gradients()
  self.first:drop_gradients()
  self.second:drop_gradients()
end

--- Returns the whole tensors of a unit, from its shards or from `pieces`. Collective.
---@param unit integer from 0
---@param pieces torch.Tensor[]?
---@return table<string, torch.Tensor>
function Cores:gather(unit, pieces)
  if unit >= self.count then return self.second:gather(unit - self.count + 1, pieces) end
  return self.first:gather(unit, pieces)
end

--- Takes this rank's part of a whole value into the parameter's shard, or into another tensor.
---@param name string
---@param whole torch.Tensor
---@param into torch.Tensor?
function Cores:load(name, whole, into) (self.is_second[name] and self.second or self.first):load(name, whole, into) end

--- Returns the counts and bytes of both, added up.
---@return sharding.FullyShardStats
function Cores:stats()
  local stats, of_experts = self.first:stats(), self.second:stats()
  for name, value in pairs(of_experts) do
    stats[name] = name == "largest_unit_bytes" and math.max(stats[name], value) or stats[name] + value
  end
  return stats
end

--- Returns the core of a sharded model. Sorts units whose experts lie on several ranks behind the others. Collective.
---@param units sharding.Unit[] the root first
---@param buffers table[]
---@param o table options of sharding.fully_shard; `experts` where ranks share them
---@return lockstep.core.sharding.FullyShard|sharding.ShardedCores
function M.core(units, buffers, o)
  local experts, others = o.experts, plain.copy(o)
  others.experts = nil
  if not experts then return core_sharding.fully_shard(units, buffers, others) end
  local first, second, is_second = {}, { { name = "", module = units[1].module, parameters = {} } }, {}
  for _, unit in ipairs(units) do
    local list = experts.modules[unit.module] and second or first
    list[#list + 1] = unit
    for _, named in ipairs(list == second and unit.parameters or {}) do is_second[named[1]] = true end
  end
  -- The stages of a rank of a pipeline may have no experts.
  if #second == 1 then return core_sharding.fully_shard(units, buffers, others) end
  for i, unit in ipairs(first) do units[i] = unit end
  for i = 2, #second do units[#first + i - 1] = second[i] end
  local of_experts = plain.copy(others, { group = experts.group, replicas = experts.replicas })
  return setmetatable({ first = core_sharding.fully_shard(first, buffers, others),
    second = core_sharding.fully_shard(second, {}, of_experts), count = #first, is_second = is_second }, Cores)
end

return M
