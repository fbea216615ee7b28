--- Tests in Lua, run by the real program: see lua_test in //driver/lualib:lua_test.bzl.
---
---     local t = require "lockstep.testing"
---     t.test("AdditionIsCommutative", function() t.equal(1 + 2, 2 + 1) end)

local core = require "lockstep.core"
local dist = require "lockstep.distributed"
local plain = require "lockstep.plain"
local suggestion = require "lockstep.help.suggestion"
local torch = require "lockstep.torch"

local M = {}

local tests = {} ---@type {name: string, fn: function}[]

--- Adds a test. Its name is a sentence of what holds. With several ranks every rank runs it.
---@param name string
---@param fn function
function M.test(name, fn) tests[#tests + 1] = { name = name, fn = fn } end

local function show(value)
  if type(value) == "string" then return string.format("%q", value) end
  if type(value) ~= "table" or getmetatable(value) then return tostring(value) end
  local parts = {}
  for i, v in ipairs(value) do parts[i] = show(v) end
  for k, v in pairs(value) do
    if not (type(k) == "number" and k >= 1 and k <= #value) then parts[#parts + 1] = tostring(k) .. " = " .. show(v) end
  end
  return "{" .. table.concat(parts, ", ") .. "}"
end

local function same(a, b)
  if torch.is_tensor(a) and torch.is_tensor(b) then
    return a.dtype == b.dtype and tostring(a.shape) == tostring(b.shape) and torch.equal(a, b)
  end
  if type(a) ~= "table" or type(b) ~= "table" then return a == b end
  for k, v in pairs(a) do
    if not same(v, b[k]) then return false end
  end
  for k in pairs(b) do
    if a[k] == nil then return false end
  end
  return true
end

--- Fails unless both are the same: tensors by dtype, shape and every element, tables by content.
---@param actual any
---@param expected any
---@param what string?
function M.equal(actual, expected, what)
  if not same(actual, expected) then
    error(string.format("%sexpected %s, got %s", what and what .. ": " or "", show(expected), show(actual)), 2)
  end
end

--- Fails unless numbers, or tensors element by element, are within `tolerance` of each other.
---@param actual number|torch.Tensor
---@param expected number|torch.Tensor
---@param tolerance number
---@param what string?
function M.near(actual, expected, tolerance, what)
  local difference
  if torch.is_tensor(actual) then
    if torch.is_tensor(expected) and tostring(actual.shape) ~= tostring(expected.shape) then
      error(string.format("expected shape %s, got %s", tostring(expected.shape), tostring(actual.shape)), 2)
    end
    difference = (actual - expected):abs():max():item()
  else
    difference = math.abs(actual - expected)
  end
  if not (difference <= tolerance) then
    error(string.format("%sexpected %s within %g, got %s", what and what .. ": " or "", show(expected), tolerance,
      show(actual)), 2)
  end
end

--- Returns the content of a file.
---@param path string
---@return string
function M.read_file(path)
  return assert(plain.read_file(path))
end

--- Writes a file in the run's folder.
---@param name string
---@param content string
---@return string path
function M.write_file(name, content)
  local path = require("lockstep.run").dir .. "/" .. name
  core.write_file(path, { content })
  return path
end

--- Fails unless the value is true.
---@param value any
---@param what string?
function M.truthy(value, what)
  if not value then error(what or ("expected a true value, got " .. show(value)), 2) end
end

--- Fails unless fn(...) raises an error whose message contains `text`; returns the message.
---@param text string
---@param fn function
---@param ... any
---@return string
function M.raises(text, fn, ...)
  local ok, message = pcall(fn, ...)
  if ok then error(string.format("expected an error with %q, but there was none", text), 2) end
  if not tostring(message):find(text, 1, true) then
    error(string.format("expected an error with %q, got %q", text, tostring(message)), 2)
  end
  return tostring(message)
end

--- Returns the first result of fn(...), and the text that it wrote to stderr.
---@param fn function
---@param ... any
---@return any result
---@return string heard
function M.listening(fn, ...)
  local heard, stderr = {}, io.stderr
  io.stderr = { write = function(_, ...) heard[#heard + 1] = table.concat { ... } end } -- luacheck: ignore 122
  local result = plain.finally(function() io.stderr = stderr end, fn, ...) -- luacheck: ignore 122
  return result, table.concat(heard)
end

--- Fails if 120 more calls of step() hold more bytes of tensors than the first 40, or if Lua's heap grows. All ranks
--- make as many calls.
---@param step fun()
function M.memory_is_flat(step)
  local function held_after(count)
    for _ = 1, count do step() end
    collectgarbage()
    collectgarbage()
    return lockstep.memory()
  end
  held_after(20)
  local before = held_after(20)
  local heaps, growth, last = { before.lua }, math.huge, before
  for _ = 1, 6 do
    local now = held_after(20)
    -- What tests before this one left may be freed meanwhile. A leak grows in the other parts.
    M.truthy(now.tensors <= last.tensors, ("tensors grew from %d to %d bytes"):format(last.tensors, now.tensors))
    growth, last = math.min(growth, now.lua - last.lua), now
    heaps[#heaps + 1] = now.lua
  end
  -- A compiled trace or a larger table of strings comes at times. A leak grows in each part.
  M.truthy(growth < 2000, "Lua's heap grew: " .. table.concat(heaps, ", "))
end

local function escape(text)
  return (text:gsub("[%c<>&\"]", function(c)
    if c == "\n" then return "&#10;" end
    return string.format("&#%d;", c:byte() < 32 and 32 or c:byte())
  end))
end

local function write_xml(path, suite, results)
  local out = assert(io.open(path, "w"))
  local failures = 0
  for _, r in ipairs(results) do failures = failures + (r.message and 1 or 0) end
  out:write(string.format('<testsuites><testsuite name="%s" tests="%d" failures="%d">\n', suite, #results, failures))
  for _, r in ipairs(results) do
    out:write(string.format('<testcase classname="%s" name="%s" time="%.3f">', suite, escape(r.name), r.seconds))
    if r.message then out:write(string.format('<failure message="%s"/>', escape(r.message))) end
    out:write("</testcase>\n")
  end
  out:write("</testsuite></testsuites>\n")
  out:close()
end

--- Returns what fn(...) writes to standard output, then its results.
---@param fn function
---@param ... any
---@return string
---@return any ...
function M.printed(fn, ...)
  local parts, stdout = {}, io.stdout
  io.stdout = { -- luacheck: ignore 122
    write = function(_, ...)
      for i = 1, select("#", ...) do parts[#parts + 1] = tostring((select(i, ...))) end
    end,
    flush = function() end,
  }
  local results = { plain.finally(function() io.stdout = stdout end, fn, ...) } -- luacheck: ignore 122
  return table.concat(parts), unpack(results)
end

--- Runs the tests of `file` and ends with an error if one failed. With several ranks a failure on one
--- ends the run at once: the others may be waiting for it. Private to run_test.lua.
---@param file string
function M.main(file)
  dofile(file)
  if #tests == 0 then error(file .. " adds no test", 0) end
  local results, failed = {}, {}
  for _, test in ipairs(tests) do
    local start = core.now()
    local ok, message = xpcall(test.fn, function(e)
      local explained = suggestion.explain(e, 3)
      return debug.traceback(tostring(explained), 2)
    end)
    results[#results + 1] = { name = test.name, seconds = core.now() - start, message = not ok and message or nil }
    if not ok then
      failed[#failed + 1] = test.name
      io.stderr:write(string.format("FAILED %s: %s\n", test.name, message))
      if dist.world_size() > 1 then error(string.format("test %s: %s", test.name, message), 0) end
    elseif dist.rank() == 0 then
      io.stdout:write(string.format("passed %s (%.0f ms)\n", test.name, 1000 * results[#results].seconds))
    end
  end
  local xml = os.getenv("XML_OUTPUT_FILE")
  if xml and dist.rank() == 0 then write_xml(xml, file:match("([^/]+)%.lua$"), results) end
  if #failed > 0 then error(#failed .. " of " .. #tests .. " tests failed: " .. table.concat(failed, ", "), 0) end
end

return M
