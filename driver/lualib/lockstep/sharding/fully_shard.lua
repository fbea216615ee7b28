--- sharding.fully_shard: a model whose parameters, gradients and optimizer state are shared out over ranks.

local clipping = require "lockstep.optim.clipping"
local core = require "lockstep.core"
local core_sharding = require "lockstep.core.sharding"
local data_parallel = require "lockstep.sharding.data_parallel"
local dist = require "lockstep.distributed"
local expert_units = require "lockstep.sharding.expert_units"
local float8_weights = require "lockstep.sharding.float8_weights"
local nn = require "lockstep.nn"
local nn_parameter = require "lockstep.nn.parameter"
local options = require "lockstep.options"
local places = require "lockstep.sharding.places"
local plain = require "lockstep.plain"
local reshard = require "lockstep.sharding.reshard"
local splits = require "lockstep.nn.splits"
local stage_parameters = require "lockstep.sharding.pipeline.parameters"
local torch = require "lockstep.torch"
local units_of = require "lockstep.sharding.units"
local verification = require "lockstep.sharding.verification"

local M = {}

--- The modules that are units of a sharded model.
local is_sharded = setmetatable({}, { __mode = "k" })

--- The sharded model of each shard, and the shard's place. Their values are weak because they hold the shard, which
--- would otherwise live for ever. The wrapped modules keep them, by PARTS.
local model_of_shard = setmetatable({}, { __mode = "kv" })
local place_of_shard = setmetatable({}, { __mode = "kv" })
local shard_of_parameter = setmetatable({}, { __mode = "kv" })
--- The sharded model of each parameter that it leaves whole.
local model_of_ignored = setmetatable({}, { __mode = "kv" })

--- Returns the sharded model whose parameters these are; nil where none of them is a part of one. Raises unless they
--- are its trained parameters: the norm of the model is over all gradients. Frozen parameters, and those that the model
--- ignores and its norm leaves out, may be among them.
---@param params torch.Tensor[]
---@param name string? of the caller; default "optim.clip_grad_norm"
---@return sharding.FullyShard?
function M.model_of_all(params, name)
  local model, count, given = nil, 0, {}
  for _, p in ipairs(params) do
    local other = model_of_shard[p]
    model = model or other
    if other and other == model then count, given[p] = count + 1, true end
  end
  if not model then return nil end
  local missing = 0
  for _, p in ipairs(model:parameters()) do
    if p.requires_grad and not given[p] and not model_of_ignored[p] then missing = missing + 1 end
  end
  for _, p in ipairs(params) do
    if model_of_ignored[p] == model then count = count + 1 end
  end
  if count ~= #params or missing > 0 then
    core.raise(("%s: %d of the %d parameters are of a sharded model, which trains %d more; give all that it trains and "
      .. "no other, or call model:clip_grad_norm(max_norm)"):format(name or "optim.clip_grad_norm", count, #params,
      missing))
  end
  return model
end

--- Where a shard belongs; nil for other tensors.
---@param tensor torch.Tensor
---@return sharding.Place?
function M.place_of(tensor) return place_of_shard[tensor] end

--- This rank's part of a parameter of a sharded module; nil for other tensors.
---@param parameter torch.Tensor
---@return torch.Tensor?
function M.shard_of(parameter) return shard_of_parameter[parameter] end

---@class sharding.FullyShard
---@operator call: any
local FullyShard = {}

--- The key of a model's own fields, which are not those of its net.
local PARTS = {}

--- Returns whether this is what fully_shard returned.
---@param value any
---@return boolean
function M.is_one(value) return type(value) == "table" and getmetatable(value) == FullyShard end

--- Returns whether fully_shard has sharded this module, or one that holds it as a unit.
---@param module any
---@return boolean
function M.is_sharded(module) return is_sharded[module] == true end

--- Raises where a parameter is a whole one of a sharded module, which never gets a gradient.
---@param caller string
---@param params torch.Tensor[]
function M.check_spans(caller, params)
  for i, p in ipairs(params) do
    if shard_of_parameter[p] then
      core.raise(("%s: parameter %d is of the module before it was sharded, and gets no gradient; give "
        .. "model:parameters() of what sharding.fully_shard returned"):format(caller, i))
    end
  end
end

--- The ranks that share a model; nil: all ranks.
---@param value any
---@return dist.Group?
function M.group_of(value) return M.is_one(value) and value[PARTS].options.group or nil end

--- Returns the number of the copy of the model that this rank's shards are of, from 0; less than `replicas`.
---@param model sharding.FullyShard
---@return integer
function M.copy_of(model)
  local o = model[PARTS].options
  local position, size = dist.rank(), dist.world_size()
  if o.group then
    local ranks = o.group:ranks()
    size = #ranks
    for i, rank in ipairs(ranks) do position = rank == dist.rank() and i - 1 or position end
  end
  return math.floor(position / (size / o.replicas))
end

--- Nested plain tables with their floating-point tensors in another dtype.
local function cast(value, dtype)
  return data_parallel.each_tensor(value, function(x)
    return x:is_floating_point() and x.dtype ~= dtype and x:to(dtype) or x
  end)
end

--- Calls fn(net, ...) as a forward of a unit. Inputs get the dtype of the gathered parameters.
local function call_unit(parts, unit, fn, module, ...)
  local replaced = unit == 0 and parts.replaced()
  plain.check(not replaced,
    'fully_shard: "%s" was replaced after the model was sharded; the new tensor is neither averaged nor saved: change '
    .. 'its values inside model:full(fn), or replace it before the model is sharded', replaced)
  local dtype = parts.options.param_dtype
  if not dtype then return parts.core:call(unit, fn, module, ...) end
  local count, inputs = select("#", ...), { ... }
  for i = 1, count do inputs[i] = cast(inputs[i], dtype) end
  return parts.core:call(unit, fn, module, unpack(inputs, 1, count))
end

--- Notes where the shards of a unit belong.
local function note_places(parts, index, unit)
  for name, place in pairs(places.of_unit(parts, index, unit)) do
    parts.places[name] = place
    place_of_shard[parts.shards[name]] = place
    model_of_shard[parts.shards[name]] = parts.model
    shard_of_parameter[parts.tensors[name]] = parts.shards[name]
  end
end

--- Puts a forward into each unit's module that gathers the unit around the module's own.
local function wrap(parts)
  for i, unit in ipairs(parts.units) do
    local forward = unit.module.forward
    parts.forwards[i] = nn.fields(unit.module).forward
    unit.module.forward = function(module, ...) return call_unit(parts, i - 1, forward, module, ...) end
    is_sharded[unit.module] = true
  end
end

--- Says how --verify-every computes a pass: hooks see the whole gradients, which are dropped before any is averaged.
local function verified(parts, pass)
  local leaves = {}
  for _, name in ipairs(parts.names) do
    if parts.shards[name].requires_grad then leaves[#leaves + 1] = { name, parts.tensors[name] } end
  end
  return { group = parts.options.group, leaves = leaves, pass = pass,
    buffers = function() return parts.net:named_buffers() end,
    gradients = function(forward)
      local found, handles, kept = {}, {}, {}
      for _, name in ipairs(parts.ignored) do kept[parts.shards[name]] = parts.shards[name].grad or false end
      for i, leaf in ipairs(leaves) do
        handles[i] = leaf[2]:register_hook(function(gradient) found[i] = gradient:clone() end)
      end
      plain.finally(function()
        for _, handle in ipairs(handles) do handle:remove() end
        parts.core:drop_gradients()
        for tensor, gradient in pairs(kept) do tensor.grad = gradient or nil end
      end, function()
        parts.core:no_sync(function()
          local total
          for _, output in ipairs(forward()) do total = total and total + output:sum() or output:sum() end
          if total then total:backward() end
        end)
      end)
      return found
    end }
end

--- Calls a pass of the whole model, which --verify-every may compare first.
local function call_model(model, pass, ...)
  local parts = model[PARTS]
  if torch.is_grad_enabled() then
    -- Whole gradients of passes before would be dropped with those of the comparison.
    if not parts.keeps_whole then verification.before_pass(model, function() return verified(parts, pass) end, ...) end
    parts.keeps_whole = parts.is_unsynced
  end
  return pass(...)
end

function FullyShard:__index(key)
  local own = FullyShard[key]
  if own ~= nil then return own end
  local parts = self[PARTS]
  local value = parts.net[key]
  if type(value) ~= "function" then return value end
  local method = parts.methods[value]
  if not method then
    -- The net's own method, as a forward of the root: it reads the root's weights and calls units.
    method = function(first, ...)
      if first ~= self then return value(first, ...) end
      return call_model(self, function(...) return call_unit(parts, 0, value, parts.net, ...) end, ...)
    end
    parts.methods[value] = method
  end
  return method
end

function FullyShard:__newindex(key, value) self[PARTS].net[key] = value end

--- The net's forward pass. The backward that follows leaves each rank its part of the mean gradients.
---@param ... any
---@return any ...
function FullyShard:__call(...) return call_model(self, self[PARTS].net, ...) end

function FullyShard:__tostring() return "fully_shard(" .. tostring(self[PARTS].net) .. ")" end

--- This rank's part of every parameter, with the parameter's name: 1-D, perhaps empty. Ignored parameters are whole.
---@return fun(): string?, torch.Tensor?
function FullyShard:named_parameters()
  local parts, i = self[PARTS], 0
  return function()
    i = i + 1
    local name = parts.names[i]
    if name then return name, parts.shards[name] end
  end
end

---@return torch.Tensor[]
function FullyShard:parameters()
  local shards = {}
  for _, shard in self:named_parameters() do shards[#shards + 1] = shard end
  return shards
end

--- Forgets all gradients, also whole ones that no_sync has left.
function FullyShard:zero_grad()
  self[PARTS].keeps_whole, self[PARTS].is_unsynced = nil, nil
  self[PARTS].core:drop_gradients()
  for _, shard in self:named_parameters() do shard.grad = nil end
end

--- Freezes (false) or unfreezes all parameters.
---@param requires_grad boolean
---@return sharding.FullyShard
function FullyShard:requires_grad_(requires_grad)
  for _, shard in self:named_parameters() do shard:requires_grad_(requires_grad and shard:is_floating_point()) end
  return self
end

---@param training boolean? default true
---@return sharding.FullyShard
function FullyShard:train(training)
  self[PARTS].net:train(training)
  return self
end

--- Turns training mode off.
---@return sharding.FullyShard
function FullyShard:eval() return self:train(false) end

--- Raises: a sharded model stays where it is.
function FullyShard.to()
  core.raise("sharding.fully_shard: a sharded model stays on its device and in its dtype; move the module before you "
    .. "shard it, and pass param_dtype to compute in another dtype")
end

for _, name in ipairs { "named_buffers", "named_modules", "num_parameters" } do
  FullyShard[name] = function(self) return self[PARTS].net[name](self[PARTS].net) end
end

--- Calls fn(...) without reduction: gradients of backward passes inside stay whole on each rank and add up, and the
--- next backward outside averages their sum. Costs the memory of the whole model's gradients, in reduce_dtype. Every
--- rank alike. To give such gradients up, call zero_grad of the model; an optimizer's knows nothing of them.
---@param fn function
---@param ... any
---@return any ...
function FullyShard:no_sync(fn, ...)
  local parts = self[PARTS]
  local before = parts.is_unsynced
  parts.is_unsynced = true
  return plain.finally(function() parts.is_unsynced = before end, parts.core.no_sync, parts.core, fn, ...)
end

--- Scales gradients so that the norm of all of them over all ranks is at most `max_norm`; returns the norm before,
--- the same on every rank. Ignored parameters do not count. Collective.
---@param max_norm number
---@param opts {p: number?}? the norm's exponent: 2 unless given, 1 or math.huge
---@return torch.Tensor
function FullyShard:clip_grad_norm(max_norm, opts)
  local o = options.read("clip_grad_norm", opts, { p = 2 })
  local parts = self[PARTS]
  local params, is_stage = {}, false
  for _, shard in self:named_parameters() do is_stage = is_stage or stage_parameters.of(shard) ~= nil end
  if not (parts.is_split or is_stage) then return parts.core:clip_grad_norm(max_norm, o.p) end
  for name, shard in self:named_parameters() do params[#params + 1] = parts.places[name] and shard or nil end
  return clipping.clip("clip_grad_norm", params, max_norm, o.p)
end

--- Calls fn(...) with the values of all parameters in the net. Changes in place that fn makes to parameters are kept;
--- every rank makes the same. Costs the memory of the whole model. Not within forward or backward. Collective.
---@param fn function
---@param ... any
---@return any ...
function FullyShard:full(fn, ...) return self[PARTS].core:full(fn, ...) end

--- Whole parameters and buffers by name, on every rank, in the masters' dtype: copies. Costs the memory of the whole
--- model. Collective.
---@return table<string, torch.Tensor>
function FullyShard:state_dict() return self:some_state(function() return true end) end

--- Parameters for whose names keep(name) is true, as state_dict has them, and all buffers. A unit without one of them
--- is not gathered. Collective: every rank keeps the same. Private to the library.
---@param keep fun(name: string): any
---@return table<string, torch.Tensor>
function FullyShard:some_state(keep)
  local parts, state = self[PARTS], {}
  local function has(name)
    for _, alias in ipairs(parts.aliases[name]) do
      if keep(alias) then return true end
    end
  end
  for i, unit in ipairs(parts.units) do
    local is_needed = false
    for _, named in ipairs(unit.parameters) do is_needed = is_needed or has(named[1]) end
    for name, whole in pairs(is_needed and places.gather(parts, i - 1, nil, has) or {}) do
      for _, alias in ipairs(has(name) and parts.aliases[name] or {}) do state[alias] = whole end
    end
  end
  for _, name in ipairs(parts.ignored) do
    local whole = has(name) and places.ignored(parts, name) or nil
    for _, alias in ipairs(parts.aliases[name]) do state[alias] = whole end
  end
  for name, buffer in parts.net:named_buffers() do state[name] = buffer end
  return state
end

--- Takes whole values: each rank its part. Every name of the net must be there, in its shape, and no other.
---@param state table<string, torch.Tensor>
function FullyShard:load_state_dict(state)
  local parts = self[PARTS]
  nn_parameter.check_state("load_state_dict", state, plain.copy(parts.net:state_dict(), places.outlines(parts)))
  torch.no_grad(function()
    for _, name in ipairs(parts.names) do places.load(parts, name, state[name]) end
    for name, buffer in parts.net:named_buffers() do buffer:copy_(state[name]) end
  end)
end

---@class sharding.FullyShardStats
---@field gathers integer collectives that gathered a unit
---@field reductions integer collectives that reduced a unit's gradients
---@field joined integer collectives that this rank took part in without its own need (skipped = "join")
---@field prefetched integer of the gathers, ahead of their use
---@field gather_bytes integer that each rank sent to each other rank in the gathers
---@field scale_reductions integer collectives that found the scales of all weights that are gathered in float8
---@field float8_weights integer weights that are gathered in float8
---@field exchanged integer of the gathers and reductions: small ones on CPUs, which travelled with their comparison
---@field shard_bytes integer this rank's masters
---@field largest_unit_bytes integer the largest unit beside the root, gathered
---@field root_bytes integer the root, gathered
---@field pool_bytes integer buffers for gathered units and whole gradients, now
---@field peak_pool_bytes integer their largest sum so far

--- Returns counts of the model's collectives, and the memory that it holds.
---@return sharding.FullyShardStats
function FullyShard:sharding_stats() return self[PARTS].core:stats() end

--- Returns the layers of float8.apply whose weights do not travel in float8 in spite of float8_gather, and why.
---@return float8.Left[]
function FullyShard:float8_left() return self[PARTS].float8_left end

---@class sharding.FullyShardOptions
---@field units string[]?
---@field param_dtype torch.dtype?
---@field reduce_dtype torch.dtype?
---@field reshard_after_forward boolean? true
---@field prefetch integer? 1
---@field group dist.Group?
---@field replicas integer? 1
---@field skipped "error"|"join"?
---@field offload "host"?
---@field deterministic boolean? false
---@field ignore string[]?
---@field float8_gather boolean? false

local function check_choice(name, value, choices)
  for _, choice in ipairs(choices) do
    if value == choice then return value end
  end
  core.raise(('sharding.fully_shard: %s must be "%s", not "%s"'):format(name, table.concat(choices, '" or "'),
    tostring(value)))
end

local function read_options(opts)
  local o = options.read("sharding.fully_shard", opts, plain.copy(core_sharding.fully_shard_defaults, {
    units = options.optional, param_dtype = options.optional, reduce_dtype = options.optional,
    group = options.optional, replicas = 1, skipped = "error", offload = options.optional, deterministic = false,
    ignore = {}, float8_gather = false }))
  check_choice("skipped", o.skipped, { "error", "join" })
  if o.offload ~= nil then check_choice("offload", o.offload, { "host" }) end
  return o
end

--- Shards a module; `model` becomes the result, if it is given.
local function build(net, o, has_values, model)
  local found = units_of.find(net, o.units, o.ignore, o.experts and o.experts.modules)
  for _, unit in ipairs(found.units) do
    if is_sharded[unit.module] then
      core.raise(("sharding.fully_shard: %s is sharded already; shard the whole module once"):format(
        unit.name == "" and "the module" or '"' .. unit.name .. '"'))
    end
  end
  local buffers = {}
  for name, buffer in net:named_buffers() do buffers[#buffers + 1] = { name, buffer } end
  local parts = { net = net, units = found.units, names = found.names, aliases = found.aliases,
    ignored = found.ignored, options = o, methods = {}, places = {}, tensors = found.tensors, forwards = {},
    given = { units = o.units, ignore = o.ignore }, model = model or setmetatable({}, FullyShard) }
  o.units, o.ignore, o.has_values = nil, nil, has_values
  local of_core = plain.copy(o)
  of_core.float8_gather = nil
  of_core.float8_weights, parts.float8_left = float8_weights.find(net, found, o)
  parts.core = expert_units.core(found.units, buffers, of_core)
  parts.shards = parts.core:shards()
  parts.replaced = units_of.replaced_since(net, found.tensors)
  rawset(parts.model, PARTS, parts)
  for i, unit in ipairs(parts.units) do note_places(parts, i - 1, unit) end
  for _, name in ipairs(found.ignored) do
    parts.shards[name] = found.tensors[name]
    model_of_ignored[found.tensors[name]] = parts.model
  end
  wrap(parts)
  return parts.model
end

local function shard(net, opts, has_values)
  if not nn.is_module(net) then core.raise("sharding.fully_shard: expected a module, not a " .. type(net)) end
  local o = read_options(opts)
  o.experts = expert_units.of(net)
  splits.check_same_parts("sharding.fully_shard", net, o.group)
  return build(net, o, has_values)
end

--- The module inside of what fully_shard returned.
---@param model sharding.FullyShard
---@return nn.Module
function M.net_of(model) return model[PARTS].net end

--- Returns a function that gives the whole value of a parameter, in the masters' dtype. It keeps one unit at a time.
--- Collective.
---@param model sharding.FullyShard
---@return fun(name: string): torch.Tensor
function M.whole_of(model) return reshard.whole_of(model[PARTS]) end

--- Lets parameters take whole values: each rank its part.
---@param model sharding.FullyShard
---@param values table<string, torch.Tensor>
function M.load_values(model, values) reshard.load_values(model[PARTS], values) end

--- Calls change(net), which adds parameters to the module or takes some away, and shards it again; the model stays the
--- object that it is. Values of parameters that stay are kept, and new ones are those of the group's first rank. change
--- cannot read or write values of parameters that were there before. Collective.
---@param model sharding.FullyShard
---@param change fun(net: nn.Module)
function M.rebuild(model, change)
  local old = model[PARTS]
  for i, unit in ipairs(old.units) do
    nn.fields(unit.module).forward = old.forwards[i]
    is_sharded[unit.module] = nil
  end
  reshard.change(old, change, function(o)
    build(old.net, o, false, model)
    return model[PARTS]
  end)
  for name, given in pairs(old.shards) do -- an optimizer of the shards before gets no gradient
    local now = model[PARTS].shards[name] or model[PARTS].shards[model[PARTS].names[1]]
    if not rawequal(given, now) then shard_of_parameter[given] = now end
  end
end

--- Returns whether a sharded model gathers weights of float8 layers in float8.
---@param model sharding.FullyShard
---@return boolean
function M.gathers_float8(model) return model[PARTS].options.float8_gather end

--- Shards a module over ranks: each keeps an equal part of every parameter, of its gradient and of the optimizer's
--- state. A unit's parameters are gathered before its forward and its backward, and freed after each.
---
---     local model = sharding.fully_shard(net, { param_dtype = torch.bfloat16 })
---     local optimizer = optim.AdamW(model:parameters())
---     model(x):sum():backward()
---     model:clip_grad_norm(1.0)
---     optimizer:step()
---
--- `units`: names of modules, "*" for any one name; default: the members of every ModuleList. All other parameters are
--- the root, which stays gathered from forward to the end of backward. A weight that units share belongs to the lowest
--- unit that contains them.
---
--- `param_dtype`: of gathered parameters and of floating-point inputs; masters keep their own. `reduce_dtype`: in which
--- gradients travel. Both default to the parameters' own dtype. `reshard_after_forward` = false keeps units gathered
--- until their backward. `prefetch`: the number of units that are gathered ahead. `replicas`: the number of groups of
--- ranks that each keep a whole copy. `offload` = "host": shards, their gradients and so the optimizer are in host
--- memory. `ignore`: names of parameters or modules that stay whole on every rank; their gradients are not averaged.
---
--- `float8_gather`: weights of the layers that float8.apply has converted, with the recipe "tensorwise", travel in
--- float8: a byte for a number. Results have the same bits. See docs/fully_shard.md for the weights that cannot.
---
--- `skipped`: what happens if ranks use different units. "error": all ranks raise it and name the unit. "join": a rank
--- that skips a unit takes part with a zero gradient. A parameter that no rank has used in a pass gets no gradient.
---
--- The net's methods may be called on the result, as forward passes of the root. Its modules are changed: use them
--- through the result from here on. Values of rank 0 are taken, buffers too.
---
--- Collective: every rank of `group` calls this with the same module and options. Source: PyTorch's FSDP2.
---@param net nn.Module
---@param opts sharding.FullyShardOptions?
---@return sharding.FullyShard
function M.fully_shard(net, opts) return shard(net, opts, true) end

--- Gives each parameter on the device "meta" the place of one element in memory, and ignored ones all of theirs.
local function outline(net, opts, dtype_of, device)
  local o, made = read_options(opts), {}
  local found = units_of.find(net, o.units, o.ignore)
  for name, meta in pairs(found.tensors) do
    local shape, strides = {}, {}
    for d = 1, meta:dim() do shape[d], strides[d] = meta:size(d - 1), 0 end
    made[meta] = torch.empty_strided(shape, strides, { dtype = dtype_of(name), device = device })
  end
  for _, name in ipairs(found.ignored) do
    local meta = found.tensors[name]
    made[meta] = torch.zeros(meta.shape, { dtype = dtype_of(name), device = device })
  end
  for meta, tensor in pairs(made) do splits.move(meta, tensor) end
  for _, place in ipairs(nn.parameter_places(net)) do
    place.fields[place.name] = made[place.tensor]:requires_grad_(true)
  end
end

--- Shards a module that nn.parameter.on_meta built: nowhere is there a copy of the whole. The masters are zeros.
--- Returns the model, and a function that takes the whole value of a parameter and keeps this rank's part.
---@param net nn.Module
---@param opts sharding.FullyShardOptions
---@param dtype_of fun(name: string): torch.dtype of a parameter's master
---@param device string
---@return sharding.FullyShard
---@return fun(name: string, whole: torch.Tensor) take
function M.from_meta(net, opts, dtype_of, device)
  outline(net, opts, dtype_of, device)
  local model = shard(net, opts, false)
  local parts = model[PARTS]
  return model, function(name, whole) reshard.load_values(parts, { [name] = whole }) end
end

return M
