--- Parameters that the first and the last stage of a module have in common: an embedding that is the head, too. Each
--- stage has a copy and only its part of the gradient.

local core = require "lockstep.core"
local dist = require "lockstep.distributed"
local plain = require "lockstep.plain"
local torch = require "lockstep.torch"

local M = {}

--- Separates the options of mimo.topology: those for the core, and shared weights by the module's name.
---@param opts table
---@return table core_opts
---@return table<string, {first: string, last: string}[]> shared
function M.take(opts)
  local shared, modules = {}, {}
  if type(opts) ~= "table" or type(opts.modules) ~= "table" then return opts, shared end
  for key, module in pairs(opts.modules) do
    modules[key] = module
    if type(module) == "table" and module.shared ~= nil then
      local name = tostring(module.name)
      plain.check(type(module.shared) == "table" and #module.shared ~= 0 and (module.pp or 1) ~= 1,
        'mimo.topology: shared of "%s" is a list of {first = ..., last = ...}, for a module with pp > 1; '
        .. "with one stage, let both places use one tensor", name)
      local seen = {}
      for _, pair in ipairs(module.shared) do
        plain.check(type(pair) == "table" and type(pair.first) == "string" and type(pair.last) == "string",
          'mimo.topology: shared of "%s" names a parameter of the first and one of the last stage: {first = '
          .. '"embed.weight", last = "head.weight"}', name)
        for _, place in ipairs { "first", "last" } do
          local parameter = place .. " " .. pair[place]
          if seen[parameter] then
            core.raise(('mimo.topology: shared of "%s" names "%s" of the %s stage twice; a parameter is shared with '
              .. "one of the other stage"):format(name, pair[place], place))
          end
          seen[parameter] = true
        end
      end
      shared[name], modules[key] = module.shared, {}
      for field, value in pairs(module) do
        if field ~= "shared" then modules[key][field] = value end
      end
    end
  end
  local core_opts = plain.copy(opts)
  core_opts.modules = modules
  return core_opts, shared
end

--- Raises an error unless both stages hold the same values: what differs at the start drifts apart for good.
local function check_values(group, part, names, parameters)
  for i, p in ipairs(parameters) do
    local shapes = dist.all_gather_object({ tostring(p.shape), tostring(p.dtype) }, { group = group })
    local same = shapes[1][1] == shapes[2][1] and shapes[1][2] == shapes[2][2]
    if same then
      local values = dist.all_gather(p:detach(), { group = group })
      same = torch.equal(values[1], values[2])
    end
    if not same then
      core.raise(('mimo: "%s" shares "%s" between its first and last stage, ranks %s, where it is %s %s and %s %s%s; '
        .. "both must start as the same tensor"):format(part.name, names[i], table.concat(group:ranks(), " and "),
        shapes[1][2], shapes[1][1], shapes[2][2], shapes[2][1], shapes[1][1] == shapes[2][1] and ", of other values"
        or ""))
    end
  end
end

--- Returns the weights that a part of own_modules shares with another stage: the parameters, the group of both stages,
--- and whether this is the last stage; nothing on other ranks. Sets part.shared, the set of their names. Collective
--- over both stages the first time.
---@param topology mimo.Topology
---@param part table
---@return torch.Tensor[]?
---@return dist.Group?
---@return boolean? is_last
function M.find(topology, part)
  local pairs_of = topology.shared[part.name]
  local line = pairs_of and topology:peers(part.name, "pp")
  local is_last = line and line[#line] == dist.rank()
  if not line or not (is_last or line[1] == dist.rank()) then return end
  local names, parameters, at = {}, {}, {}
  for i, name in ipairs(part.names) do at[name] = i end
  part.shared = {}
  for i, pair in ipairs(pairs_of) do
    local name = is_last and pair.last or pair.first
    if not at[name] then
      local nearest = core.nearest(name, part.names)
      core.raise(('mimo: shared of "%s" names "%s", which its %s stage on rank %d does not have%s'):format(part.name,
        name, is_last and "last" or "first", dist.rank(), nearest and ('; did you mean "%s"?'):format(nearest) or ""))
    end
    names[i], parameters[i], part.shared[name] = name, part.parameters[at[name]], true
  end
  local key = part.name .. "/embedding"
  if not topology.groups[key] then
    local group = dist.group { ranks = { line[1], line[#line] } }
    check_values(group, part, names, parameters)
    topology.groups[key] = group
  end
  return parameters, topology.groups[key], is_last
end

return M
