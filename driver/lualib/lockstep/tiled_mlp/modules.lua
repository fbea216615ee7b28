--- Finds modules by name for tiled_mlp.apply, and puts another forward into them.

local core = require "lockstep.core"
local fully_shard = require "lockstep.sharding.fully_shard"
local nn = require "lockstep.nn"
local plain = require "lockstep.plain"

local M = {}

--- Returns a Lua pattern for the ends of full names: "*" stands for one part of a name.
local function pattern_of(text)
  plain.check(type(text) == "string" and text ~= "", 'tiled_mlp.apply: modules must be an array of names, such as '
    .. '{ "layers.*.mlp" }, but holds %s', text == "" and '""' or "a " .. type(text))
  return "%." .. text:gsub("[%^%$%(%)%%%.%[%]%+%-%?]", "%%%0"):gsub("%*", "[^.]+") .. "$"
end

--- Returns the modules whose full names end with one of the names, each once and none inside another.
---@param net nn.Module
---@param names string[]
---@return {name: string, module: nn.Module}[]
function M.find(net, names)
  plain.check(type(names) == "table",
    'tiled_mlp.apply: modules must be an array of names, such as { "layers.*.mlp" }, not a %s', type(names))
  local found, seen, used, last_names = {}, {}, {}, {}
  local outer -- the module that was found last, with a dot behind its name
  for name, module in net:named_modules() do
    local is_inside = outer and name:sub(1, #outer) == outer
    for i, text in ipairs(names) do
      if name ~= "" and ("." .. name):find(pattern_of(text)) then
        used[i] = true
        if not seen[module] and not is_inside then
          seen[module], outer = true, name .. "."
          found[#found + 1] = { name = name, module = module }
        end
      end
    end
    if name ~= "" then last_names[name:match "[^.]*$"] = true end
  end
  plain.check(#names > 0, "tiled_mlp.apply: modules is empty; name the MLPs, or leave it out for those named \"mlp\"")
  for i, text in ipairs(names) do
    if not used[i] then
      local known = plain.keys(last_names)
      local nearest = core.nearest(text:match "[^.]*$", known)
      core.raise(('tiled_mlp.apply: no module is named "%s"%s; give modules = {...}. There are: %s'):format(text,
        nearest and (', did you mean "%s"?'):format(nearest) or "", table.concat(known, ", ")))
    end
  end
  return found
end

--- Raises for a module that cannot run in tiles.
local function check(name, module)
  plain.check(getmetatable(module) ~= nn.ModuleList, 'tiled_mlp.apply: "%s" is a ModuleList, which has no forward; '
    .. 'name its members, "%s.*"', name, name)
  for _, below in module:named_modules() do
    plain.check(not fully_shard.is_sharded(below),
      'tiled_mlp.apply: "%s" is a unit of sharding.fully_shard, and each tile would gather it anew; give it tiles '
      .. 'before the model is sharded, or make the layer around it the unit', name)
  end
end

--- The layers over modules, by their forward: `own` is the forward that was in the module's fields before.
---@type table<function, {own: function?, is_removed: boolean?}>
local layers = setmetatable({}, { __mode = "k" })

--- Takes a layer away, wherever it is among those of a module. If a script has put a forward of its own over it, it
--- stays there and passes calls on.
local function take_away(module, forward)
  local layer = layers[forward]
  layer.is_removed = true
  local top = nn.fields(module).forward
  if top == forward then
    module.forward = layer.own
    return
  end
  local above = layers[top]
  while above and above.own ~= forward do above = above.own and layers[above.own] end
  if above then above.own = layer.own end
end

--- Lets each module's forward be call(inner, module, x), where inner(module, x) is what it was. Returns a function that
--- undoes it, also if others have replaced it since.
---@param found {name: string, module: nn.Module}[]
---@param call fun(inner: function, module: nn.Module, x: torch.Tensor): ...
---@return fun()
function M.replace(found, call)
  for _, one in ipairs(found) do check(one.name, one.module) end
  local undo = {}
  for i, one in ipairs(found) do
    local module, layer = one.module, { own = nn.fields(one.module).forward }
    -- The class is looked up in each call: lora gives modules another.
    local function inner(self, ...) return (layer.own or getmetatable(self).forward)(self, ...) end
    local function forward(self, x, ...)
      if layer.is_removed then return inner(self, x, ...) end
      plain.check(select("#", ...) == 0, "tiled_mlp: %s was called with %d arguments, and only its first can be cut "
        .. "into tiles", one.name, 1 + select("#", ...))
      return call(inner, self, x)
    end
    layers[forward] = layer
    module.forward = forward
    undo[i] = function() take_away(module, forward) end
  end
  return function()
    for _, restore in ipairs(undo) do restore() end
  end
end

return M
