--- Runs every row of docs/pytorch.md: the code in the second column, after the page's first block of Lua. Where the row
--- has a value, the code must give it.

local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local file = assert(io.open("docs/pytorch.md"))
local page = file:read("*a")
file:close()
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

local function codes_of(cell)
  local codes = {}
  for code in cell:gmatch "`([^`]+)`" do codes[#codes + 1] = code end
  return codes
end

local rows = 0
for line in page:gmatch "[^\n]+" do
  local cells = {}
  for cell in line:gmatch "|%s*([^|]*)" do cells[#cells + 1] = cell end
  if line:find "^| `" then
    rows = rows + 1
    local value = table.concat(codes_of(cells[3] or ""), ", ")
    for _, code in ipairs(codes_of(cells[2])) do
      t.test("Row/" .. code, function()
        local given = run(code)
        if value ~= "" then t.equal(given, value) end
      end)
    end
  end
end

t.test("ThePageHasItsTables", function() t.truthy(rows > 100, rows) end)
