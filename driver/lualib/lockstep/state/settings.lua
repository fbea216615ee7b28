--- A run's settings, saved with its objects: its configuration, which ranks compare, and the names that run:resume left
--- out.

local agreement = require "lockstep.state.agreement"
local core = require "lockstep.core"
local core_state = require "lockstep.core.state"
local plain = require "lockstep.plain"

local M = {}

local CONFIG = "run.config"

--- Returns the result of run.config as a value; nothing if the script has no configuration.
---@param config table?
---@return table<string, {bytes: string, tensors: torch.Tensor[]}>
function M.config_values(config)
  if not config then return {} end
  local bytes, inside = core_state.encode(config, "run:save: the configuration")
  return { [CONFIG] = { bytes = bytes, tensors = inside } }
end

--- The settings of a configuration as text, by their paths: {["optimizer.betas"] = "[0.9,0.95]"}.
local function settings_of(config, prefix, settings)
  for key, value in pairs(config) do
    local path = prefix .. tostring(key)
    if type(value) == "table" and rawget(value, 1) == nil then
      settings_of(value, path .. ".", settings)
    else
      settings[path] = type(value) == "table" and core.json_encode(value) or agreement.text_of(value)
    end
  end
  return settings
end

--- Removes a setting, or all of a group. Returns whether there was one.
local function leave_out(settings, path)
  local is_found = false
  for name in pairs(settings) do
    if name == path or name:sub(1, #path + 1) == path .. "." then
      settings[name], is_found = nil, true
    end
  end
  return is_found
end

--- Raises, on every rank, unless all ranks have the same configuration. Collective.
---@param config table
---@param per_rank string[] paths of settings that may differ
function M.compare(config, per_rank)
  local settings = settings_of(config, "", {})
  for _, path in ipairs(per_rank) do
    plain.check(leave_out(settings, tostring(path)),
      'run.config: per_rank names "%s", which the configuration lacks', path)
  end
  agreement.same("run.config", settings,
    'give every rank the same, or let it differ: run.config(defaults, { per_rank = { "%s" } })')
end

--- Returns the settings that differ from the saved values: {"batch_size 8 (was 4)"}.
---@param values table<string, {value: any}>
---@param config table?
---@return string[]
function M.config_changes(values, config)
  local saved = values[CONFIG] and values[CONFIG].value
  if type(saved) ~= "table" or not config then return {} end
  local before, now, changes = settings_of(saved, "", {}), settings_of(config, "", {}), {}
  for path, text in pairs(now) do
    if text ~= before[path] then
      changes[#changes + 1] = ("%s %s (was %s)"):format(path, text, before[path] or "not set")
    end
  end
  table.sort(changes)
  return changes
end

local LEFT_OUT = "run.without"

--- Returns the names that run:resume left out and the script does not register, as a value. The same command must be
--- able to continue from this state, which does not hold them.
---@param names string[]
---@return table<string, {bytes: string, tensors: torch.Tensor[]}>
function M.left_out_values(names)
  if #names == 0 then return {} end
  return { [LEFT_OUT] = { bytes = core_state.encode(names, "run:save"), tensors = {} } }
end

--- The same of a state that was read: each name as a key.
---@param values table<string, {value: any}>
---@return table<string, true>
function M.left_out_names(values)
  local names, saved = {}, values[LEFT_OUT] and values[LEFT_OUT].value
  for _, name in ipairs(type(saved) == "table" and saved or {}) do names[name] = true end
  return names
end

return M
