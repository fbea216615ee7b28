--- The modules of this rank as the functions of gradients take them.

local core = require "lockstep.core"
local dist = require "lockstep.distributed"
local fully_shard = require "lockstep.sharding.fully_shard"
local pipeline = require "lockstep.sharding.pipeline"
local plain = require "lockstep.plain"

local function ranks_of(topology, module, axes)
  local ranks = { unpack(topology:peers(module, axes)) }
  table.sort(ranks)
  return table.concat(ranks, ", ")
end

--- Returns whether sharding.data_parallel, fully_shard or a pipeline has averaged the module's gradients. Raises an
--- error if it did over other ranks.
local function is_averaged(name, topology, part)
  if pipeline.is_one(part.module) then return true end -- over the ranks of its stage
  local is_sharded = fully_shard.is_one(part.module)
  if not is_sharded and (type(part.module) ~= "table" or rawget(part.module, "replicas") == nil) then return false end
  local over, group = {}, part.module.group
  if is_sharded then group = fully_shard.group_of(part.module) end
  for rank = 0, dist.world_size() - 1 do over[rank + 1] = rank end
  if group then over = { unpack(group:ranks()) } end
  table.sort(over)
  local over_text, own_text = table.concat(over, ", "), ranks_of(topology, part.name, "dp-cp")
  if over_text ~= own_text then
    core.raise(('%s: on rank %d sharding.%s averages "%s" over ranks %s, but its replicas (dp and cp) are '
      .. "ranks %s; %s"):format(name, dist.rank(), is_sharded and "fully_shard" or "data_parallel", part.name,
      over_text, own_text, not own_text:find(",") and "give the module itself"
      or ('make it with { group = topology:group("%s", "dp-cp") }'):format(part.name)))
  end
  return true
end

--- Raises an error for the whole parameter of a sharded module, which gets no gradient.
local function check_is_trained(name, part, parameter, p)
  if not fully_shard.shard_of(p) then return end
  core.raise(('%s: on rank %d "%s" of "%s" is of the module before it was sharded, and gets no gradient; give what '
    .. "sharding.fully_shard returned"):format(name, dist.rank(), parameter, part.name))
end

--- Adds the parameters of a part to the list. A sharded module has two parts: its shards, which are averaged, and the
--- parameters that it ignores, which are not.
local function add_parts(own, name, topology, part)
  part.is_averaged = is_averaged(name, topology, part)
  own[#own + 1] = part
  if not fully_shard.is_one(part.module) then return part, part end
  if topology.shared[part.name] then
    core.raise(('%s: "%s" has weights that its stages share, and is a module of sharding.fully_shard, which divides '
      .. "them over ranks; give a plain module"):format(name, part.name))
  end
  part.copy = fully_shard.copy_of(part.module)
  local ignored = { name = part.name, module = part.module, sizes = part.sizes, names = {}, parameters = {},
    is_averaged = false }
  own[#own + 1] = ignored
  return part, ignored
end

--- Raises an error unless one reduction is right for a parameter of both parts.
local function check_shared(name, topology, first, second, parameter)
  local what = ('%s: on rank %d "%s" and "%s" share the parameter "%s"'):format(name, dist.rank(), first.name,
    second.name, parameter)
  for _, axes in ipairs { "dp-cp", "tp", "pp" } do
    local a, b = ranks_of(topology, first.name, axes), ranks_of(topology, second.name, axes)
    plain.check(a == b, "%s, but are divided over the ranks differently: over %s this is one of ranks %s and of ranks "
      .. "%s; give both modules the same dp, cp, tp and pp, or each a parameter of its own", what, axes, a, b)
  end
  plain.check(first.is_averaged == second.is_averaged,
    "%s, but sharding.data_parallel averages one of them alone; wrap both or neither", what)
end

--- The modules of this rank in the order of the topology: {name, module, sizes, names, parameters, is_averaged, copy}.
--- A parameter of two modules is listed with the first of them alone: it has one gradient, which is reduced, counted
--- and clipped once. A module of sharding.fully_shard is listed twice: with its shards, where `copy` is the number of
--- the copy that they are of, and with the parameters that it ignores.
---@param name string of the function, for errors
---@param topology mimo.Topology
---@param modules table<string, nn.Module>
---@return table[]
local function own_modules(name, topology, modules)
  topology.core:check_world(name)
  local known, own = {}, {}
  local first = {} -- by parameter: the part that has it
  for _, module in ipairs(topology:modules()) do
    known[module.name] = true
    local given = modules[module.name]
    local here = topology:peers(module.name, "dp") ~= nil
    if here and not given then
      core.raise(string.format('%s: rank %d has the module "%s"; give it in modules', name, dist.rank(), module.name))
    elseif given and not here then
      core.raise(string.format('%s: rank %d does not have the module "%s"', name, dist.rank(), module.name))
    elseif given then
      local whole, ignored = add_parts(own, name, topology,
        { name = module.name, module = given, sizes = module, names = {}, parameters = {} })
      for parameter, p in given:named_parameters() do
        local part = fully_shard.place_of(p) and whole or ignored
        check_is_trained(name, part, parameter, p)
        if first[p] then
          check_shared(name, topology, first[p], part, parameter)
        else
          first[p] = part
          part.names[#part.names + 1], part.parameters[#part.parameters + 1] = parameter, p
        end
      end
    end
  end
  for given in pairs(modules) do
    if not known[given] then core.raise(string.format('%s: no module is called "%s"', name, tostring(given))) end
  end
  return own
end

return own_modules
