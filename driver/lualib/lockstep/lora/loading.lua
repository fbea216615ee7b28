--- A folder's adapters for a model: which modules they belong to, whether they fit, and their values.

local adapters = require "lockstep.lora.adapters"
local core = require "lockstep.core"
local experts = require "lockstep.lora.experts"
local files = require "lockstep.lora.files"
local few_bits = require "lockstep.nn.few_bits"
local nn = require "lockstep.nn"
local plain = require "lockstep.plain"
local splits = require "lockstep.nn.splits"
local torch = require "lockstep.torch"

local M = {}

---@class lora.Chosen the modules of a model that lora.apply or a folder is about
---@field layers lora.Found[] linear layers
---@field holders lora.Holder[] modules whose parameters have adapters
---@field saved lora.Found[] modules that are trained and saved as a whole
---@field unties boolean? whether a head that shares the embedding's weight becomes a module of its own

---@class lora.Folder
---@field dir string
---@field config table
---@field contents lora.Files
---@field wanted table<string, lora.LayerOptions> by the path of each adapter, once the model is known

--- Reads a folder.
---@param dir string
---@return lora.Folder
function M.read(dir) return { dir = dir, config = files.read_config(dir), contents = files.read_weights(dir) } end

--- Finds out what each adapter of a folder is, and checks that none lacks a part. Returns the names of the parameters
--- that have adapters, by the paths of these.
local function find_wanted(folder, holders)
  local parameters = {}
  for _, holder in ipairs(holders) do
    for name, path in pairs(experts.paths(holder.name, holder.parameters)) do
      parameters[path] = holder.name .. "." .. name
    end
  end
  folder.wanted = files.options_of(folder.dir, folder.config, folder.contents, parameters)
  return parameters
end

local function is_given(value)
  return value ~= nil and value ~= core.null and not (type(value) == "table" and next(value) == nil)
end

--- Raises where a linear layer is in target_modules and has no adapter in the folder: part of its file is missing.
local function check_targets(caller, model, folder, saved)
  local config = folder.config
  for _, key in ipairs { "exclude_modules", "layers_to_transform", "layers_pattern" } do
    if is_given(config[key]) then return end
  end
  local is_saved = {}
  for _, one in ipairs(saved) do is_saved[one.name] = true end
  for name, module in model:named_modules() do
    for _, target in ipairs(files.array(config.target_modules)) do
      if adapters.matches(name, target) and adapters.is_a(module, nn.Linear) and not folder.wanted[name]
          and not is_saved[name] then
        core.raise(string.format('%s has no adapter for "%s", which target_modules names ("%s")', caller, name, target))
      end
    end
  end
end

--- Finds the modules that are saved as a whole. A folder keeps the tie of head and embedding if it says so, or if it
--- has one value for both. In any other folder they are apart. Returns also whether the model's must be untied.
local function find_saved(caller, model, folder)
  local names, others = files.array(folder.config.modules_to_save), folder.contents.others
  local saved, tied = adapters.find_modules_to_save(caller, model, names), adapters.tied_head(model)
  local count, embedding = 0, nil
  for name, module in model:named_modules() do
    if tied and module == tied.module then embedding = name end
  end
  for _, one in ipairs(saved) do count = count + (tied and one.module == tied.module and 1 or 0) end
  if count == 0 then return saved, false end
  if folder.config.ensure_weight_tying == true then
    names = { embedding, tied.name, unpack(names) }
    return adapters.find_modules_to_save(caller, model, names), false
  end
  local head, embedded = others[tied.name .. ".weight"], others[embedding .. ".weight"]
  local is_one = count == 2 and head and embedded and torch.equal(head, embedded)
  return saved, model.untie ~= nil and not is_one
end

--- Chooses the modules of a model without adapters that a folder has something for.
---@param model nn.Module
---@param folder lora.Folder
---@return lora.Chosen
function M.choose(model, folder)
  local caller = "lora.load: " .. folder.dir
  local saved, unties = find_saved(caller, model, folder)
  local holders = experts.find(caller, model, files.array(folder.config.target_parameters))
  local parameters, layers = find_wanted(folder, holders), {}
  local names = plain.keys(folder.wanted, function(name) return not parameters[name] end)
  -- A full name may also be the last names of a layer elsewhere.
  for _, one in ipairs(adapters.find_targets(caller, model, names, saved)) do
    if folder.wanted[one.name] then layers[#layers + 1] = one end
  end
  plain.check(#layers >= #names,
    "%s has adapters for %d linear layers, of which the model has %d", caller, #names, #layers)
  check_targets(caller, model, folder, saved)
  return { layers = layers, holders = holders, saved = saved, unties = unties }
end

---@class lora.Place an adapter by its path in a folder
---@field path string
---@field weight torch.Tensor that is adapted, or a stand-in of its shape
---@field adapter table holds lora_A and lora_B, and lora_magnitude_vector in DoRA
---@field own {r: integer, alpha: number, rslora: boolean, dora: boolean?}

--- The adapters that the model should have, or has.
local function places_of(chosen)
  local places = {}
  for _, one in ipairs(chosen.layers) do
    places[#places + 1] = { path = one.name, weight = few_bits.outline(one.module), adapter = nn.fields(one.module),
      own = adapters.of(one.module) }
  end
  for _, holder in ipairs(chosen.holders) do
    local own = experts.of(holder.module)
    for name, path in pairs(experts.paths(holder.name, holder.parameters)) do
      local fields = nn.fields(holder.module)
      places[#places + 1] = { path = path, weight = fields[name], adapter = fields["lora_" .. name],
        own = own and own.adapters[name] }
    end
  end
  return places
end

--- Raises unless the model's adapters are those of a folder.
---@param folder lora.Folder
---@param chosen lora.Chosen
function M.check_same(folder, chosen)
  find_wanted(folder, chosen.holders)
  local count, places = 0, places_of(chosen)
  for _ in pairs(folder.wanted) do count = count + 1 end
  for _, place in ipairs(places) do
    local own, theirs = place.own, folder.wanted[place.path]
    plain.check(theirs, 'lora.load: %s has no adapter for "%s", which the model has', folder.dir, place.path)
    for _, key in ipairs { "r", "alpha", "rslora", "dora" } do
      plain.check((own[key] or false) == theirs[key],
        'lora.load: "%s" has %s = %s in the model, and %s in %s', place.path, key, own[key], theirs[key], folder.dir)
    end
  end
  plain.check(count == #places, "lora.load: %s has %d adapters, and the model has %d", folder.dir, count, #places)
end

--- Raises where a folder has two values for a weight that two modules of the model share.
local function check_tied(folder, saved)
  local first = {}
  for _, one in ipairs(saved) do
    for name in pairs(one.module:state_dict()) do
      local own = one.module
      for part in name:gmatch("[^.]+") do own = nn.fields(own)[part] or own[tonumber(part) + 1] end
      local full = one.name .. "." .. name
      local other = first[own]
      if other and not torch.equal(folder.contents.others[full], folder.contents.others[other]) then
        core.raise(string.format('lora.load: %s: "%s" and "%s" differ, and the model ties them: they are one weight',
          folder.dir, other, full))
      end
      first[own] = full
    end
  end
end

--- Returns the shape of a weight, of the whole one where it is split over ranks.
local function whole_shape(weight)
  local split = splits.of(weight)
  return split and splits.whole_shape(weight, split) or weight.shape
end

--- Raises unless the folder's tensors have the shapes that the model needs.
---@param folder lora.Folder
---@param chosen lora.Chosen
function M.check_shapes(folder, chosen)
  local function check(name, tensor, ...)
    local shape = "{" .. table.concat({ ... }, ", ") .. "}"
    plain.check(tostring(tensor.shape) == shape,
      'lora.load: %s: "%s" must have shape %s, as in the model, not %s', folder.dir, name, shape, tensor.shape)
  end
  for _, place in ipairs(places_of(chosen)) do
    local parts, weight = folder.contents.modules[place.path], place.weight
    if not parts then core.raise(string.format('lora.load: %s has no adapter "%s"', folder.dir, place.path)) end
    local shape = whole_shape(weight)
    local rows = folder.wanted[place.path].r * (#shape == 3 and shape[1] or 1)
    check(place.path .. ".lora_A.weight", parts.lora_A, rows, shape[#shape])
    check(place.path .. ".lora_B.weight", parts.lora_B, shape[#shape - 1], rows)
    if parts.lora_magnitude_vector then
      check(place.path .. ".lora_magnitude_vector", parts.lora_magnitude_vector, shape[1])
    end
  end
  local known, others = {}, folder.contents.others
  for _, one in ipairs(chosen.saved) do
    for name, tensor in pairs(one.module:state_dict()) do
      local full = one.name .. "." .. name
      plain.check(others[full], 'lora.load: %s lacks "%s" of modules_to_save', folder.dir, full)
      check(full, others[full], unpack(whole_shape(tensor)))
      known[full] = true
    end
  end
  if not chosen.unties then check_tied(folder, chosen.saved) end
  for name in pairs(others) do
    plain.check(known[name], 'lora.load: %s holds "%s", which is in no module of modules_to_save', folder.dir, name)
  end
end

--- Calls copy(into, value) for the folder's tensors, which go into the model's adapters and the modules that are saved
--- as a whole.
---@param folder lora.Folder
---@param chosen lora.Chosen
---@param copy fun(into: torch.Tensor, value: torch.Tensor)
function M.copy_in(folder, chosen, copy)
  torch.no_grad(function()
    for _, place in ipairs(places_of(chosen)) do
      local parts = folder.contents.modules[place.path]
      copy(place.adapter.lora_A.weight, parts.lora_A)
      copy(place.adapter.lora_B.weight, parts.lora_B)
      if parts.lora_magnitude_vector then copy(place.adapter.lora_magnitude_vector, parts.lora_magnitude_vector) end
    end
    for _, one in ipairs(chosen.saved) do
      for _, tensors in ipairs { one.module.named_parameters, one.module.named_buffers } do
        for name, tensor in tensors(one.module) do copy(tensor, folder.contents.others[one.name .. "." .. name]) end
      end
    end
  end)
end

return M
