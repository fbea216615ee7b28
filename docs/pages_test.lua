--- Tests the tables of two pages. Every row of pytorch.md runs: the code in the second column, after the page's first
--- block of Lua. If the row has a value, the code must give it. In trainers.md the last column names settings of a
--- script: each must be in the script's run.config.

local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local read = t.read_file

--- Returns the pieces of code in a cell.
local function codes_of(cell)
  local codes = {}
  for code in cell:gmatch "`([^`]+)`" do codes[#codes + 1] = code end
  return codes
end

-- pytorch.md ----------------------------------------------------------------------------------------------

local page = read "docs/pytorch.md"
local prelude = page:match "```lua\n(.-)```"

--- Returns a value as the page shows it: tensors and arrays in braces.
local function show(value)
  if torch.is_tensor(value) then value = value:dim() == 0 and value:item() or value:totable() end
  if type(value) == "number" then return ("%g"):format(value) end
  if type(value) ~= "table" then return tostring(value) end
  local items = {}
  for i, item in ipairs(value) do items[i] = show(item) end
  return "{" .. table.concat(items, ", ") .. "}"
end

--- Runs one line of Lua, an expression or statements, and returns its values as the page shows them.
local function run(code)
  local chunk = loadstring(prelude .. "return " .. code) or assert(loadstring(prelude .. code))
  local results = { n = 0 }
  local function keep(...) results = { n = select("#", ...), ... } end
  keep(chunk())
  for i = 1, results.n do results[i] = show(results[i]) end
  return table.concat(results, ", ", 1, results.n)
end

local rows = 0
for line in page:gmatch "\n(| `[^\n]+)" do
  local cells = {}
  for cell in line:gmatch "|%s*([^|]*)" do cells[#cells + 1] = cell end
  rows = rows + 1
  local value = table.concat(codes_of(cells[3] or ""), ", ")
  for _, code in ipairs(codes_of(cells[2])) do
    t.test("Pytorch/" .. code, function()
      local given = run(code)
      if value ~= "" then t.equal(given, value) end
    end)
  end
end

-- trainers.md ---------------------------------------------------------------------------------------------

--- Returns the table that a script gives to run.config. In it, `here` is the script's folder.
local function settings_of(script)
  local settings = assert(loadstring("return " .. read(script):match "run%.config%(? ?(%b{})"))
  return setfenv(settings, { here = "scripts" })()
end

--- Returns whether a setting such as "lora.r" is in the table.
local function has(settings, name)
  for key in name:gmatch "[^.]+" do
    if type(settings) ~= "table" or settings[key] == nil then return false end
    settings = settings[key]
  end
  return true
end

local script
for line in read("docs/trainers.md"):gmatch "[^\n]+" do
  if line:find "^#" then script = line:match "^## (scripts/.*%.lua)$" end
  local here = script and line:match "^| %a.*|%s*([^|]+)|$"
  for _, name in ipairs(codes_of(here or "")) do
    local name_of_script = script
    if name:find "^[%l_][%w_.]*$" then
      rows = rows + 1
      t.test(script .. "/" .. name, function()
        t.truthy(has(settings_of(name_of_script), name), ("%s has no setting %q"):format(name_of_script, name))
      end)
    end
  end
end

t.test("ThePagesHaveTheirTables", function() t.truthy(rows > 120, rows) end)
