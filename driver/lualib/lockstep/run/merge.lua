--- run.merge: a script's configuration, with values of the command line in the types of its defaults.

local core = require "lockstep.core"
local plain = require "lockstep.plain"

--- Returns text from the command line as one line, for a message.
local function shown(text)
  return (text:gsub("%c", function(c) return c == "\n" and "\\n" or ("\\x%02x"):format(c:byte()) end))
end

local function refuse(path, text, format, ...)
  core.raise_usage(string.format("--set %s=%s: " .. format, shown(path), shown(text), ...))
end

local function parse_scalar(path, text, default)
  local kind = type(default)
  if kind == "string" then
    if not pcall(core.json_encode, text) then refuse(path, text, "the value must be text in UTF-8") end
    return text
  elseif kind == "number" then
    local value = tonumber(text)
    -- NaN and the infinities have no form in JSON, so config.json could not hold them.
    if not value then refuse(path, text, "the value must be a number") end
    if value - value ~= 0 then refuse(path, text, "the value must be a finite number") end
    if math.abs(value) >= 2 ^ 53 and text:match "^%s*[+-]?%w+%s*$" and not text:match "^%s*[+-]?%d+[eE]" then
      refuse(path, text, "a whole number must be below 2^53 = 9007199254740992, or would be rounded; 1e16 is a way to "
        .. "write a rounded one")
    end
    return value
  elseif kind == "boolean" then
    if text == "true" then return true elseif text == "false" then return false end
    refuse(path, text, "the value must be true or false")
  end
  refuse(path, text, "the script's value is a %s, which the command line cannot give", kind)
end

--- Parses an array of the type of its first element: "0.9,0.95".
local function parse_array(path, text, default)
  local values = {}
  if text:match "^%s*[%[{].*[%]}]%s*$" then refuse(path, text, "a list has no brackets; write it as %s=a,b", path) end
  for part in (text .. ","):gmatch("(.-),") do
    if part == "" then refuse(path, text, "element %d of the list is empty", #values + 1) end
    values[#values + 1] = parse_scalar(path, part, default[1])
  end
  return values
end

local function paths_of(config, prefix, paths)
  for key, value in pairs(config) do
    local path = prefix .. tostring(key)
    if type(value) == "table" and value[1] == nil then
      paths_of(value, path .. ".", paths)
    else
      paths[#paths + 1] = path
    end
  end
  return paths
end

local function apply_setting(config, path, text, presets)
  local node, last = config, nil
  for key in (path .. "."):gmatch("(.-)%.") do
    if last ~= nil then node = node[last] end
    if type(node) ~= "table" or node[key] == nil then
      local paths = paths_of(config, "", {})
      table.sort(paths)
      local nearest = core.nearest(path, paths)
      refuse(path, text, "the script has no such key%s (known: %s)",
        nearest and string.format('; did you mean "%s"?', nearest) or "", table.concat(paths, ", "))
    end
    last = key
  end
  local default = node[last]
  if type(default) == "table" and next(default) == nil then
    refuse(path, text, "the script's value is an empty table, which tells no type; the command line cannot set it")
  elseif type(default) == "table" and default[1] == nil then
    local preset = presets[path] and presets[path][text]
    if not preset then
      local words = presets[path] and " (or a word: " .. table.concat(plain.keys(presets[path]), ", ") .. ")"
      refuse(path, text, "%s is a group of keys; set one of them%s", shown(path), words or "")
    end
    for key, value in pairs(preset) do
      plain.check(type(default[key]) == type(value), "run.config: presets.%s.%s: %s.%s must be a %s, as in the "
        .. "defaults, not a %s", path, text, path, tostring(key), type(default[key]), type(value))
      default[key] = value
    end
    return
  end
  node[last] = type(default) == "table" and parse_array(path, text, default) or parse_scalar(path, text, default)
end

--- Copies a configuration's default at `path`. `inside` holds the tables around it.
local function copy(value, path, inside)
  plain.check(type(value) ~= "number" or value - value == 0,
    "run.config: %s is %s; expected a finite number", path, value)
  if type(value) ~= "table" then return value end
  if inside[value] then core.raise(("run.config: %s is a table that contains itself"):format(path)) end
  inside[value] = true
  local result = {}
  for k, v in pairs(value) do result[k] = copy(v, ("%s.%s"):format(path, tostring(k)), inside) end
  inside[value] = nil
  return result
end

--- Makes reading a misspelt key an error, instead of a nil that fails elsewhere.
local function guard(config, name)
  for key, value in pairs(config) do
    if type(value) == "table" and value[1] == nil then guard(value, name .. "." .. tostring(key)) end
  end
  return setmetatable(config, {
    __index = function(_, key)
      local keys = {}
      for k in pairs(config) do keys[#keys + 1] = tostring(k) end
      table.sort(keys)
      core.raise(string.format('%s has no key "%s" (known: %s)', name, tostring(key), table.concat(keys, ", ")))
    end,
  })
end

--- Does what run.merge says.
---@generic T: table
---@param defaults T
---@param settings string[][]
---@param presets table<string, table<string, table>>?
---@return T
local function merge(defaults, settings, presets)
  if type(defaults) ~= "table" then core.raise("run.config: defaults must be a table, not a " .. type(defaults)) end
  plain.check(type(settings) == "table",
    'run.merge: the settings must be an array of pairs, as in {{"a.b", "2"}}, not a %s', type(settings))
  local config = copy(defaults, "config", {})
  for i, setting in ipairs(settings) do
    plain.check(type(setting) == "table" and type(setting[1]) == "string" and type(setting[2]) == "string",
      'run.merge: setting %d must be a pair of strings, as in {"a.b", "2"}', i)
    apply_setting(config, setting[1], setting[2], presets or {})
  end
  return guard(config, "config")
end

return merge
