--- Tests the tables of two pages. Every row of pytorch.md runs: the code in the second column, after the page's first
--- block of Lua. If the row has a value, the code must give it. The list of what is missing is complete. In trainers.md
--- the last column names settings of a script: each must be in the script's run.config.

local core = require "lockstep.core"
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

-- The list in pytorch.md of missing names -----------------------------------------------------------------------

local nn, optim = require "lockstep.nn", require "lockstep.optim"
local OURS = { nn = nn, ["nn.Module"] = nn.Module, ["nn.init"] = nn.init, optim = optim, torch = torch }
local missing = page:match "\n## What PyTorch has and Lockstep does not\n(.-)\n## "

--- Returns the patterns of names in the first column, by the table of ours that lacks them.
local function patterns_of(text)
  local patterns = { nn = {}, ["nn.Module"] = {}, ["nn.init"] = {}, optim = {}, torch = {} }
  for cell in text:gmatch "\n| (`[^|]+)|" do
    for _, code in ipairs(codes_of(cell)) do
      local owner, name = code:match "^(.*)%.([%w_*]+)$"
      if not patterns[owner] then owner, name = "torch", code:match "^torch%.([%w_]+)" end
      table.insert(patterns[owner], "^" .. name:gsub("%*", ".*") .. "$")
    end
  end
  return patterns
end

local function has_name(owner, name)
  local ok, value = pcall(function() return OURS[owner][name] end) -- torch raises an error where it has no operator
  return ok and value ~= nil
end

local function is_listed(patterns, name)
  for _, pattern in ipairs(patterns) do
    if name:find(pattern) then return true end
  end
  return false
end

t.test("EachNameOfPyTorchIsOursOrListedAsMissing", function()
  local names, patterns = core.json_decode(read "tests/torch/names.json"), patterns_of(missing)
  t.truthy(#names.nn > 150 and #names["nn.Module"] > 50 and #names.optim > 10 and #names["nn.init"] > 10)
  for owner, list in pairs(names) do
    for _, name in ipairs(list) do
      local is_ours, is_missing, full = has_name(owner, name), is_listed(patterns[owner], name), owner .. "." .. name
      t.truthy(is_ours or is_missing, full .. " is missing, and not listed")
      t.truthy(not (is_ours and is_missing), full .. " is there, and listed as missing")
    end
    for _, pattern in ipairs(patterns[owner]) do
      local is_of_pytorch = false
      for _, name in ipairs(list) do is_of_pytorch = is_of_pytorch or name:find(pattern) ~= nil end
      t.truthy(is_of_pytorch, ("PyTorch has no %s.%s"):format(owner, pattern))
    end
  end
  t.truthy(#patterns.torch > 10)
  for _, pattern in ipairs(patterns.torch) do
    local name = pattern:sub(2, -2)
    t.truthy(name == "optim" or not has_name("torch", name), ("torch.%s is there, and listed as missing"):format(name))
  end
end)

t.test("WhatThePageCallsRefusedIsAnError", function()
  local refused = missing:match "\nThese options are refused with an error: (.-)%.\n\n"
  local codes = codes_of(refused)
  t.truthy(#codes > 8)
  for _, code in ipairs(codes) do
    t.truthy(not pcall(run, code), code .. " is no error")
  end
end)

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
