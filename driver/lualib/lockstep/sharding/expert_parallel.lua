--- The experts of a mixture on several ranks: the axis `ep` of sharding.parallelize.

local adapted = require "lockstep.lora.experts"
local dist = require "lockstep.distributed"
local expert_units = require "lockstep.sharding.expert_units"
local members_of = require "lockstep.sharding.members"
local plain = require "lockstep.plain"
local splits = require "lockstep.nn.splits"
local tensor_parallel = require "lockstep.sharding.tensor_parallel"

local M = {}

local check = plain.checks "sharding.parallelize: "

--- Returns the modules of a net that hold experts, with their names.
---@param net nn.Module
---@return {name: string, module: models.Experts}[]
function M.find(net)
  local found = {}
  for name, module in net:named_modules() do
    if module.holds_experts then found[#found + 1] = { name = name, module = module } end
  end
  return found
end

--- Divides the experts of each mixture among the ranks of a group, in place: the group's first rank has the first ones.
--- Tokens travel to them and back. Gradients of a rank's experts are over the tokens of all ranks of the group, divided
--- by the number of ranks, as those of the other parameters are once they have been averaged.
---
--- Collective: every rank of `group` calls this with the same net. Values are those of the group's first rank.
---@param net nn.Module
---@param group dist.Group
---@param has_values boolean? false: the net is on "meta"; default true
function M.divide(net, group, has_values)
  local owner, found = members_of("sharding.parallelize", "group", group), M.find(net)
  check(#found > 0, "ep is %d, but %s has no mixture of experts", owner.size, net.class_name)
  for _, one in ipairs(found) do
    check(not adapted.of(one.module),
      '"%s" has adapters of its experts, which ep does not divide; give lora.apply other targets', one.name)
    local count = one.module.gate_up_proj:size(0)
    check(count % owner.size == 0, '"%s": %d experts cannot be divided by ep %d', one.name, count, owner.size)
    for _, p in one.module:named_parameters() do
      splits.refuse("sharding.parallelize", p, "divide the experts once")
    end
  end
  for _, one in ipairs(found) do
    for _, p in one.module:named_parameters() do -- the same order on every rank
      if has_values ~= false then dist.broadcast(p:detach(), owner.ranks[1], { group = group }) end
      tensor_parallel.cut(p, 0, { kind = "experts" }, owner)
    end
    one.module.owner = owner
  end
end

--- Returns the options with which fully_shard shares out a net whose experts M.divide has divided: the experts over the
--- ranks that hold the same ones, all else along dp x cp.
---@param net nn.Module
---@param grid sharding.Grid
---@param opts sharding.FullyShardOptions|false false: every rank keeps the whole of what it computes with
---@return sharding.FullyShardOptions
function M.shards(net, grid, opts)
  local shared = grid.dp * grid.cp
  local replicas, own_replicas = grid.replicas, grid.replicas
  if not opts then replicas, own_replicas = shared, shared / grid.ep end
  check(shared / grid.ep % own_replicas == 0,
    "replicas %d of the grid does not divide the %d ranks that hold the same experts (dp %d x cp %d / ep %d)", replicas,
    shared / grid.ep, grid.dp, grid.cp, grid.ep)
  local modules = {}
  for _, one in ipairs(M.find(net)) do modules[one.module] = true end
  expert_units.note(net, { group = grid:group "expert_dp", replicas = own_replicas, modules = modules })
  return plain.copy(opts or {}, { group = grid:group "dp_cp", replicas = replicas })
end

return M
