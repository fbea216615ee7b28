--- docs/trainers.md names settings of scripts in the last column of its tables: each must be in the run.config of the
--- script.

local t = require "lockstep.testing"

local function read(path)
  local file = assert(io.open(path))
  local content = file:read("*a")
  file:close()
  return content
end

--- Returns the table that a script gives to run.config.
local function settings_of(script)
  return assert(loadstring("return " .. read(script):match "run%.config (%b{})"))()
end

--- Returns whether a setting such as "lora.r" is in the table.
local function has(settings, name)
  for key in name:gmatch "[^.]+" do
    if type(settings) ~= "table" or settings[key] == nil then return false end
    settings = settings[key]
  end
  return true
end

local script, rows = nil, 0
for line in read("docs/trainers.md"):gmatch "[^\n]+" do
  if line:find "^#" then script = line:match "^## (scripts/.*%.lua)$" end
  local here = line:match "^| %a.*|%s*([^|]+)|$"
  if script and here then
    rows = rows + 1
    local name_of_script = script
    for name in here:gmatch "`([%l_][%w_.]*)`" do
      t.test(script .. "/" .. name, function()
        t.truthy(has(settings_of(name_of_script), name), ("%s has no setting %q"):format(name_of_script, name))
      end)
    end
  end
end

t.test("ThePageHasItsTables", function() t.truthy(rows > 20, rows) end)
