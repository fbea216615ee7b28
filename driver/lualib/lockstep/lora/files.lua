--- Folders of adapters as PEFT writes them: adapter_config.json and adapter_model.safetensors.

local across = require "lockstep.sharding.across"
local adapters = require "lockstep.lora.adapters"
local core = require "lockstep.core"
local core_files = require "lockstep.core.files"
local data = require "lockstep.data"
local experts = require "lockstep.lora.experts"
local fully_shard = require "lockstep.sharding.fully_shard"
local plain = require "lockstep.plain"
local splits = require "lockstep.nn.splits"

local M = {}

local CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
local PREFIX = "base_model.model."

-- The configuration -----------------------------------------------------------------------------------

--- Keys that change nothing where the weights are loaded: which modules have an adapter is read from the weights.
local NEUTRAL = plain.words [[
  auto_mapping base_model_name_or_path corda_config ensure_weight_tying eva_config exclude_modules inference_mode
  layers_pattern layers_to_transform loftq_config lora_ga_config megatron_config megatron_core peft_type peft_version
  qalora_group_size revision runtime_config target_modules task_type
]]

local READ = plain.words [[
  r lora_alpha lora_dropout use_rslora use_dora modules_to_save target_parameters rank_pattern alpha_pattern
  init_lora_weights bias
]]

--- Ways to begin that leave the base weights alone.
local INITIAL = { [true] = true, [false] = true, gaussian = true, eva = true, orthogonal = true }

local function is_nothing(value)
  return value == nil or value == core.null or value == false or type(value) == "table" and next(value) == nil
end

--- Returns a value of a config that must be an array, or an empty one.
---@param value any
---@return table
function M.array(value) return type(value) == "table" and value or {} end
local array = M.array

--- Returns the name in a pattern without "^" in front and without backslashes.
local function unescaped(key) return (key:gsub("^%^", ""):gsub("\\%.", ".")) end

local function check_config(path, config)
  local function check(holds, text, ...) plain.check(holds, "lora.load: %s: " .. text, path, ...) end
  local json = core.json_encode
  check(type(config) == "table", "expected a JSON object")
  check(config.peft_type == "LORA", 'peft_type must be "LORA", not %s', json(config.peft_type))
  for key, value in pairs(config) do
    check(NEUTRAL[key] or READ[key] or is_nothing(value),
      "%s = %s is not supported, and would change what the model computes", key, json(value))
  end
  local initial, bias, dropout = config.init_lora_weights, config.bias, config.lora_dropout
  check(is_nothing(initial) or INITIAL[initial], 'init_lora_weights = "%s" changes the base weights, too; convert the '
    .. "adapter with PEFT's path_initial_model_for_weight_conversion first", initial)
  check(is_nothing(bias) or bias == "none", 'bias = "%s" trains biases, which is not supported; expected "none"', bias)
  for _, key in ipairs { "r", "lora_alpha" } do
    check(type(config[key]) == "number", "%s must be a number, not %s", key, json(config[key]))
  end
  check(is_nothing(dropout) or type(dropout) == "number" and dropout >= 0 and dropout < 1,
    "lora_dropout must be at least 0 and below 1, not %s", json(dropout))
  for _, key in ipairs { "rank_pattern", "alpha_pattern" } do
    for name, value in pairs(is_nothing(config[key]) and {} or config[key]) do
      check(type(value) == "number", "%s of %s must be a number", key, name)
      check(not unescaped(name):find("[^%w_.]"),
        'the name "%s" in %s is a regular expression; only "^" in front, "." and "\\." are supported, so write the '
        .. "names out", name, key)
    end
  end
  for _, name in ipairs(array(config.modules_to_save)) do
    for _, target in ipairs(array(config.target_modules)) do
      if name == target then adapters.refuse_both("lora.load: " .. path, "target_modules", name) end
    end
  end
  return config
end

--- Returns whether a key of a pattern matches a name, as PEFT's get_pattern_key has it: a regular expression for the
--- whole name, or without "^" for its end.
local function matches(key, name)
  local expression = key:gsub("\\%.", "%%."):gsub("^%^", "") .. "$" -- of letters, "_" and ".": the same in Lua
  return name:find("^" .. expression) ~= nil or key:sub(1, 1) ~= "^" and name:find("%." .. expression) ~= nil
end

--- Returns the number of the first key in the file that matches a name, or `default`. The pattern is {key = number}.
local function by_pattern(pattern, name, default)
  if is_nothing(pattern) then return default end
  for _, key in ipairs(core.json_shapes()[pattern].keys) do
    if matches(key, name) then return pattern[key] end
  end
  return default
end

--- Reads a folder's configuration.
---@param dir string
---@return table
function M.read_config(dir)
  local path = dir .. "/" .. CONFIG
  local text = plain.read_file(path)
  plain.check(text,
    "lora.load: %s is not there; expected a folder with %s and %s, as PEFT writes it", path, CONFIG, WEIGHTS)
  return check_config(path, core.json_decode(text, path))
end

-- The weights -----------------------------------------------------------------------------------------

---@class lora.Files what a folder holds
---@field modules table<string, {lora_A: torch.Tensor?, lora_B: torch.Tensor?, lora_magnitude_vector: torch.Tensor?}>
---@field others table<string, torch.Tensor> of modules that were saved as a whole, by full name

--- Reads a folder's weights, by the model's names.
---@param dir string
---@return lora.Files
function M.read_weights(dir)
  local path = dir .. "/" .. WEIGHTS
  if not core_files.kind(path) then
    core.raise(string.format("lora.load: %s is not there%s", path, core_files.kind(dir .. "/adapter_model.bin")
      and "; adapter_model.bin is a pickle, which runs code as it is read: convert it to safetensors" or ""))
  end
  local found = { modules = {}, others = {} }
  for key, tensor in pairs((data.safetensors(path))) do
    local name = key:sub(1, #PREFIX) == PREFIX and key:sub(#PREFIX + 1)
    plain.check(name, 'lora.load: %s: the key "%s" does not begin with "%s"', path, key, PREFIX)
    if not tensor:is_floating_point() then
      core.raise(string.format('lora.load: %s: "%s" has the dtype %s; weights must be of floating point', path, key,
        tostring(tensor.dtype)))
    elseif not tensor:isfinite():all():item() then
      core.raise(string.format('lora.load: %s: "%s" holds NaN or infinity', path, key))
    end
    local module, part = name:match("^(.*)%.(lora_[AB])%.weight$")
    if not module then module, part = name:match("^(.*)%.(lora_magnitude_vector)$") end
    if module then
      found.modules[module] = found.modules[module] or {}
      found.modules[module][part] = tensor
    elseif name:find("lora_", 1, true) then
      core.raise(string.format('lora.load: %s: "%s" is not supported; adapters of linear layers have lora_A.weight, '
        .. "lora_B.weight and lora_magnitude_vector", path, key))
    else
      found.others[name] = tensor
    end
  end
  return found
end

---@class lora.LayerOptions
---@field r integer
---@field alpha number
---@field dropout number
---@field rslora boolean
---@field dora boolean

--- The options of each adapter, by its path.
---@param dir string for messages
---@param config table
---@param files lora.Files
---@param parameters table<string, string> the names of parameters with adapters, by the paths of these
---@return table<string, lora.LayerOptions>
function M.options_of(dir, config, files, parameters)
  local all = {}
  for name, parts in pairs(files.modules) do
    local dora = config.use_dora == true
    for _, part in ipairs { "lora_A", "lora_B", dora and "lora_magnitude_vector" or nil } do
      if not parts[part] then core.raise(string.format('lora.load: %s: "%s" has no %s', dir, name, part)) end
    end
    if parts.lora_magnitude_vector and not dora then
      core.raise(string.format('lora.load: %s: "%s" has a lora_magnitude_vector, but use_dora is not true', dir, name))
    end
    local full = parameters[name] or name
    all[name] = {
      r = by_pattern(config.rank_pattern, full, config.r),
      alpha = by_pattern(config.alpha_pattern, full, config.lora_alpha),
      dropout = config.lora_dropout or 0, rslora = config.use_rslora == true, dora = dora,
    }
  end
  if next(all) == nil then core.raise(string.format("lora.load: %s holds no adapter", dir)) end
  return all
end

-- Writing ---------------------------------------------------------------------------------------------

--- Shortens full names to their ends, where an end chooses none of the other names.
---@param chosen string[]
---@param others string[]
---@param pattern string of the end
local function short_names(chosen, others, pattern)
  local is_chosen, is_ambiguous, names, seen = {}, {}, {}, {}
  for _, name in ipairs(chosen) do is_chosen[name] = true end
  for _, name in ipairs(others) do
    if not is_chosen[name] then is_ambiguous[name:match(pattern) or name] = true end
  end
  for _, name in ipairs(chosen) do
    local short = name:match(pattern) or name
    if is_ambiguous[short] then short = name end
    if not seen[short] then names[#names + 1] = short end
    seen[short] = true
  end
  table.sort(names)
  return #names > 0 and names or core.null
end

local function names_of(found)
  local names = {}
  for i, one in ipairs(found) do names[i] = one.name end
  return names
end

--- The full names of the parameters of some modules.
local function parameter_names(holders)
  local names = {}
  for _, holder in ipairs(holders) do
    for _, name in ipairs(holder.parameters) do names[#names + 1] = holder.name .. "." .. name end
  end
  return names
end

--- The settings of all adapters, by the names that patterns match.
local function settings_of(found, holders)
  local all = {}
  for _, one in ipairs(found) do all[one.name] = adapters.of(one.module) end
  for _, holder in ipairs(holders) do
    for name, own in pairs(experts.of(holder.module).adapters) do all[holder.name .. "." .. name] = own end
  end
  return all
end

--- Returns the pattern of the settings that differ from `default`. "^" is before a name that is the end of another.
local function pattern_of(settings, field, default)
  local pattern = {}
  for name, own in pairs(settings) do
    if own[field] ~= default then
      local key = name
      for other in pairs(settings) do
        if other ~= name and adapters.matches(other, name) then key = "^" .. name end
      end
      pattern[key] = own[field]
    end
  end
  return next(pattern) and pattern or nil
end

--- Returns the content of a model's adapter_config.json.
---@param model any
---@return table
function M.config_of(model)
  local found, holders = adapters.adapted(model), experts.adapted(model)
  local settings = settings_of(found, holders)
  local layer = found[1] and adapters.of(found[1].module) or {}
  local first = holders[1] and experts.of(holders[1].module).adapters[holders[1].parameters[1]] or layer
  local modules, parameters = {}, {}
  for name in model:named_modules() do modules[#modules + 1] = name end
  for name in model:named_parameters() do parameters[#parameters + 1] = name end
  local whole = names_of(adapters.saved(model))
  local base = model.source or model.module and model.module.source -- where models.load found it
  return {
    peft_type = "LORA", task_type = base and "CAUSAL_LM" or core.null, base_model_name_or_path = base or core.null,
    inference_mode = true,
    r = first.r, lora_alpha = first.alpha, lora_dropout = layer.dropout or 0, use_rslora = first.rslora,
    use_dora = layer.dora or false, bias = "none", fan_in_fan_out = false, init_lora_weights = true,
    target_modules = short_names(names_of(found), modules, "[^.]*$"),
    target_parameters = short_names(parameter_names(holders), parameters, "[^.]*%.[^.]*$"),
    modules_to_save = #whole > 0 and whole or core.null,
    ensure_weight_tying = #whole > 0 and adapters.tied_head(model) ~= nil,
    rank_pattern = pattern_of(settings, "r", first.r), alpha_pattern = pattern_of(settings, "alpha", first.alpha),
  }
end

--- Returns the content of adapter_config.json for a model that will be divided; nil without adapters.
---@param model any
---@return table?
function M.config_before(model)
  if #adapters.adapted(model) + #experts.adapted(model) > 0 then return M.config_of(model) end
end

--- The tensors of a model's adapters and of the modules that are saved as a whole, by PEFT's keys.
---@param model any
---@return table<string, torch.Tensor>
function M.tensors_of(model)
  local saved, tensors = adapters.saved(model), {}
  -- The frozen parts of the base stay parts: whole they may not fit on one rank.
  local function is_written(name)
    if name:find("lora_", 1, true) then return true end
    for _, one in ipairs(saved) do
      if name:sub(1, #one.name + 1) == one.name .. "." then return true end
    end
  end
  local callee = across.is_one(model) and model:callable() or model
  local state = fully_shard.is_one(callee) and callee:some_state(is_written) or model:state_dict()
  for name, p in model:named_parameters() do
    local split = splits.of(p)
    if split and is_written(name) then state[name] = splits.whole(p, split) end
  end
  for _, one in ipairs(adapters.adapted(model)) do
    for _, part in ipairs { "lora_A.weight", "lora_B.weight", "lora_magnitude_vector" } do
      tensors[PREFIX .. one.name .. "." .. part] = state[one.name .. "." .. part]
    end
  end
  for _, holder in ipairs(experts.adapted(model)) do
    for name, path in pairs(experts.paths(holder.name, holder.parameters)) do
      for _, part in ipairs { "lora_A.weight", "lora_B.weight" } do
        tensors[PREFIX .. path .. "." .. part] = state[("%s.lora_%s.%s"):format(holder.name, name, part)]
      end
    end
  end
  for _, one in ipairs(saved) do
    local below = one.name .. "."
    for name, tensor in pairs(state) do
      if name:sub(1, #below) == below then tensors[PREFIX .. name] = tensor end
    end
  end
  local tied = adapters.tied_head(model)
  for _, one in ipairs(tied and saved or {}) do
    if one.module == tied.module and one.name ~= tied.name then
      tensors[PREFIX .. tied.name .. ".weight"] = tensors[PREFIX .. one.name .. ".weight"]
    end
  end
  return tensors
end

--- Writes a folder on this rank.
---@param dir string
---@param config table
---@param tensors table<string, torch.Tensor>
function M.write(dir, config, tensors)
  core.make_folder(dir)
  -- A folder whose weights are those of another adapter must not look whole.
  core_files.remove(dir .. "/" .. CONFIG)
  data.save_safetensors(dir .. "/" .. WEIGHTS, tensors, { metadata = { format = "pt" } })
  core.write_file(dir .. "/" .. CONFIG, { core.json_encode(config, 2) .. "\n" })
end

return M
