--- Tables of options, checked: every function of the library that takes named options reads them
--- through here.

local core = require "lockstep.core"
local foreign = require "lockstep.help.foreign"
local plain = require "lockstep.plain"

local M = {}

--- Stands in a table of defaults for an option that must be given.
M.required = setmetatable({}, { __tostring = function() return "required" end })

--- Stands in a table of defaults for an option that may be absent.
M.optional = setmetatable({}, { __tostring = function() return "optional" end })

local function describe(value)
  if type(value) == "string" then return '"' .. value .. '"' end
  if type(value) == "number" or type(value) == "boolean" then return tostring(value) end
  return "a " .. type(value)
end

--- Returns what was probably meant by an unknown option, for the end of a message: '; did you mean "lr"?', or "".
---@param name string the function
---@param key any
---@param known string[] the function's options
---@return string
function M.hint(name, key, known)
  if type(key) ~= "string" then return "" end
  local nearest = core.nearest(key, known)
  local hint = foreign.hint(name, key, known) or nearest and ('did you mean "%s"?'):format(nearest)
  return hint and "; " .. hint or ""
end

--- Complains about the first key of `given` that `defaults` lacks.
---@param name string the function, for the message
---@param given table
---@param defaults table
function M.check_known(name, given, defaults)
  for key in pairs(given) do
    if defaults[key] == nil then
      local names = plain.keys(defaults)
      core.raise(string.format('%s: unknown option "%s"%s (known: %s)', name, tostring(key), M.hint(name, key, names),
        table.concat(names, ", ")))
    end
  end
end

--- `defaults` overridden by `given`. A value must be of the type of its default.
---
---     local o = options.read("optim.AdamW", given, { lr = 1e-3, betas = { 0.9, 0.999 } })
---@param name string the function, for messages
---@param given table?
---@param defaults table<string, any> with options.required and options.optional for what has none
---@return table
function M.read(name, given, defaults)
  if given == nil then given = {} end
  if type(given) ~= "table" then
    core.raise(string.format("%s: options must be a table, not %s", name, describe(given)))
  end
  M.check_known(name, given, defaults)
  local result = {}
  for key, default in pairs(defaults) do
    -- Raw: a run's configuration complains about keys that it lacks, and its groups may be options.
    local value = rawget(given, key)
    if default == M.required then
      if value == nil then core.raise(string.format('%s: the option "%s" is missing', name, key)) end
    elseif value == nil then
      if default ~= M.optional then value = default end
    elseif default ~= M.optional and type(value) ~= type(default) then
      local expected = type(default) == "userdata" and "value such as " .. tostring(default) or type(default)
      core.raise(string.format('%s: %s must be a %s, not %s', name, key, expected, describe(value)))
    end
    result[key] = value
  end
  return result
end

local noted = {}

--- Prints a line on rank 0 for each of `keys` that the script gave: it changes nothing here. A sweep may leave it in. A
--- line is printed once, however often the function is called.
---@param name string the function, for the line
---@param given table?
---@param keys string[]
---@param reason string 'without offload = "host"'
function M.note_unused(name, given, keys, reason)
  for _, key in ipairs(keys) do
    local line = ("lockstep: %s: %s has no effect %s\n"):format(name, key, reason)
    if rawget(given or {}, key) and not noted[line] and tonumber(os.getenv "RANK" or 0) == 0 then
      noted[line] = true
      io.stderr:write(line)
    end
  end
end

return M
