--- The modules of this rank as the functions of gradients take them.

local core = require "lockstep.core"
local dist = require "lockstep.distributed"
local fully_shard = require "lockstep.sharding.fully_shard"
local plain = require "lockstep.plain"

local function ranks_of(topology, module, axes)
  local ranks = { unpack(topology:peers(module, axes)) }
  table.sort(ranks)
  return table.concat(ranks, ", ")
end

--- Whether sharding.data_parallel has averaged the module's gradients; an error if it did over other ranks.
local function is_averaged(name, topology, part)
  if type(part.module) ~= "table" or rawget(part.module, "replicas") == nil then return false end
  local over = {}
  for rank = 0, dist.world_size() - 1 do over[rank + 1] = rank end
  if part.module.group then over = { unpack(part.module.group:ranks()) } end
  table.sort(over)
  local over_text, own_text = table.concat(over, ", "), ranks_of(topology, part.name, "dp-cp")
  if over_text ~= own_text then
    core.raise(('%s: on rank %d sharding.data_parallel averages "%s" over ranks %s, but its replicas (dp and cp) are '
      .. "ranks %s; %s"):format(name, dist.rank(), part.name, over_text, own_text, not own_text:find(",")
      and "give the module itself" or ('make it with { group = topology:group("%s", "dp-cp") }'):format(part.name)))
  end
  return true
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

--- The modules of this rank in the order of the topology: {name, module, sizes, names, parameters, is_averaged}. A
--- parameter of two modules is listed with the first of them alone: it has one gradient, which is reduced, counted and
--- clipped once.
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
      local part = { name = module.name, module = given, sizes = module, names = {}, parameters = {} }
      part.is_averaged = is_averaged(name, topology, part)
      for parameter, p in given:named_parameters() do
        if fully_shard.place_of(p) then
          core.raise(('%s: on rank %d "%s" of "%s" is a shard of sharding.fully_shard, whose ranks have different '
            .. "parts of it; give plain modules, or those of sharding.data_parallel"):format(name, dist.rank(),
            parameter, module.name))
        elseif first[p] then
          check_shared(name, topology, first[p], part, parameter)
        else
          first[p] = part
          part.names[#part.names + 1], part.parameters[#part.parameters + 1] = parameter, p
        end
      end
      own[#own + 1] = part
    end
  end
  for given in pairs(modules) do
    if not known[given] then core.raise(string.format('%s: no module is called "%s"', name, tostring(given))) end
  end
  return own
end

return own_modules
