--- Sorts the parameters of a module into units that are gathered together: for sharding.fully_shard.

local core = require "lockstep.core"
local nn = require "lockstep.nn"
local plain = require "lockstep.plain"
local torch = require "lockstep.torch"

local M = {}

--- A Lua pattern for names with "*" in place of any one part.
local function pattern_of(text, option)
  plain.check(type(text) == "string" and text ~= "",
    "sharding.fully_shard: %s must hold names, such as \"layers.*\", not %s", option,
    type(text) == "string" and "an empty one" or "a " .. type(text))
  return "^" .. text:gsub("[%^%$%(%)%%%.%[%]%+%-%?]", "%%%0"):gsub("%*", "[^.]+") .. "$"
end

--- The modules below `net` with their names, parents first.
local function modules_of(net)
  local modules, names = {}, {}
  for name, module in net:named_modules() do
    modules[#modules + 1] = { name = name, module = module }
    if name ~= "" then names[#names + 1] = name end
  end
  return modules, names
end

local function is_list(module) return getmetatable(module) == nn.ModuleList end

--- Whether a module is a unit: by the patterns, or as a member of a ModuleList.
local function choose(modules, names, given)
  local chosen = {}
  if given == nil then
    for _, one in ipairs(modules) do
      if is_list(one.module) then
        for _, member in ipairs(one.module) do chosen[member] = true end
      end
    end
    return chosen
  end
  plain.check(type(given) == "table",
    'sharding.fully_shard: units must be an array of names, such as { "layers.*" }, not a %s', type(given))
  for _, text in ipairs(given) do
    local pattern, matched = pattern_of(text, "units"), false
    for _, one in ipairs(modules) do
      if one.name ~= "" and one.name:find(pattern) then
        plain.check(not is_list(one.module),
          'sharding.fully_shard: "%s" is a ModuleList, which has no forward; name its members, "%s.*"', one.name,
          one.name)
        chosen[one.module], matched = true, true
      end
    end
    if not matched then
      local nearest = core.nearest(text, names)
      core.raise(('sharding.fully_shard: units: no module is named "%s"%s'):format(text,
        nearest and ('; did you mean "%s"?'):format(nearest) or ""))
    end
  end
  return chosen
end

--- The units that contain a module, by its name, outermost first.
local function chain_of(name, by_name, chosen)
  local chain = {}
  for stop in (name .. "."):gmatch("()%.") do
    local module = by_name[name:sub(1, stop - 1)]
    if module and chosen[module] then chain[#chain + 1] = module end
  end
  return chain
end

--- Returns the first units of two chains, as far as they are the same.
local function common(a, b)
  local shared = {}
  for i = 1, math.min(#a, #b) do
    if a[i] ~= b[i] then break end
    shared[i] = a[i]
  end
  return shared
end

--- Whether a parameter's name, or one of the modules that contain it, is among the patterns.
local function is_ignored(name, patterns, used)
  for stop in (name .. "."):gmatch("()%.") do
    for i, pattern in ipairs(patterns) do
      if name:sub(1, stop - 1):find(pattern) then
        used[i] = true
        return true
      end
    end
  end
  return false
end

---@class sharding.Unit
---@field name string "" for the root
---@field module nn.Module
---@field parameters table[] {{name, tensor}, ...}

---@class sharding.Units
---@field units sharding.Unit[] the root first
---@field names string[] of all parameters, in the module's order
---@field tensors table<string, torch.Tensor>
---@field aliases table<string, string[]> all names of a parameter, by its first
---@field ignored string[] names of parameters that stay whole

--- Sorts a module's parameters into units.
---@param net nn.Module
---@param given string[]? patterns; nil: members of ModuleLists
---@param ignore string[] patterns of parameters or modules
---@param more table<nn.Module, any>? modules that are units besides
---@return sharding.Units
function M.find(net, given, ignore, more)
  local modules, module_names = modules_of(net)
  local chosen, by_name, found = choose(modules, module_names, given), {}, { names = {}, tensors = {}, aliases = {},
    ignored = {}, units = { { name = "", module = net, parameters = {} } } }
  for module in pairs(more or {}) do chosen[module] = true end
  local unit_of, first_name = { [net] = found.units[1] }, {}
  for _, one in ipairs(modules) do
    by_name[one.name] = one.module
    if chosen[one.module] and not unit_of[one.module] then
      unit_of[one.module] = { name = one.name, module = one.module, parameters = {} }
      table.insert(found.units, unit_of[one.module])
    end
  end
  for name, p in net:named_parameters() do
    found.names[#found.names + 1], found.tensors[name], found.aliases[name] = name, p, {}
    first_name[p] = name
  end
  local owner = {}
  for _, one in ipairs(modules) do
    local chain = one.name == "" and {} or chain_of(one.name, by_name, chosen)
    for field, value in pairs(nn.fields(one.module)) do
      local name = torch.is_tensor(value) and first_name[value]
      if name then
        table.insert(found.aliases[name], one.name == "" and field or one.name .. "." .. field)
        owner[name] = owner[name] and common(owner[name], chain) or chain
      end
    end
  end
  local patterns, used = {}, {}
  for i, text in ipairs(ignore) do patterns[i] = pattern_of(text, "ignore") end
  for _, name in ipairs(found.names) do
    if is_ignored(name, patterns, used) then
      table.insert(found.ignored, name)
    else
      local chain = owner[name]
      table.insert(unit_of[chain[#chain] or net].parameters, { name, found.tensors[name] })
    end
  end
  for i, text in ipairs(ignore) do
    plain.check(used[i], 'sharding.fully_shard: ignore: no parameter or module is named "%s"', text)
  end
  return found
end

--- Notes where a module keeps its parameters and modules. The function that it returns gives the name of a parameter
--- that is in one of these places since, requires a gradient, and was not in the module then. A library may put a
--- frozen tensor there for a while.
---@param net nn.Module
---@param tensors table<string, torch.Tensor> the module's parameters
---@return fun(): string?
function M.replaced_since(net, tensors)
  local known, places = {}, {}
  for _, tensor in pairs(tensors) do known[tensor] = true end
  for prefix, module in net:named_modules() do
    for field, value in pairs(nn.fields(module)) do
      if nn.is_module(value) or torch.is_tensor(value) and known[value] then
        local name = prefix == "" and tostring(field) or prefix .. "." .. tostring(field)
        places[#places + 1] = { fields = nn.fields(module), field = field, value = value, name = name }
      end
    end
  end
  return function()
    for _, place in ipairs(places) do
      local value = place.fields[place.field]
      if not rawequal(value, place.value) then
        if torch.is_tensor(value) and value.requires_grad then return place.name end
        for name, p in (nn.is_module(value) and value or nn.ModuleList {}):named_parameters() do
          if not known[p] and p.requires_grad then return place.name .. "." .. name end
        end
      end
    end
  end
end

return M
