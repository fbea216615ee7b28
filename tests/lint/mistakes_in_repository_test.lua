-- The search for mistakes (lockstep/help/mistakes.lua) has no false alarms: there are none in any Lua file of this
-- repository, nor in the blocks of its pages.

local mistakes = require "lockstep.help.mistakes"
local syntax = require "lockstep.help.syntax"
local t = require "lockstep.testing"

local function output_of(command)
  local pipe = assert(io.popen(command))
  local text = pipe:read("*a")
  pipe:close()
  return text
end

-- The test is linked from the workspace, where every file is.
local workspace = output_of("readlink -f tests/lint/mistakes_in_repository_test.lua"):match("^(.*)/tests/lint/")

local function files(ending)
  local names = output_of(("find '%s' -name 'bazel-*' -prune -o -name '*.%s' -type f -print"):format(workspace, ending))
  local list = {}
  for name in names:gmatch("[^\n]+") do list[#list + 1] = name end
  return list
end

local function check(path, text)
  t.truthy(syntax.read(text).complete, path .. " is Lua that syntax.lua does not read")
  local found = mistakes.find(text)
  t.equal(#found, 0, ("%s:%s: %s"):format(path, found[1] and found[1].line, found[1] and found[1].message))
end

t.test("NoLuaFileHasAMistake", function()
  local paths = files "lua"
  t.truthy(#paths > 300, #paths)
  for _, path in ipairs(paths) do
    local text = t.read_file(path)
    if loadstring(text:gsub("^#[^\n]*", "")) then check(path, text) end
  end
end)

t.test("NoBlockOfAPageHasAMistake", function()
  local count = 0
  for _, path in ipairs(files "md") do
    for block in t.read_file(path):gmatch("```lua\n(.-)```") do
      if loadstring(block) then check(path, block) end
      count = count + 1
    end
  end
  t.truthy(count > 30, count)
end)
