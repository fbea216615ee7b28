--- Functions for plain values and files that Lua itself lacks.

local core = require "lockstep.core"
local core_files = require "lockstep.core.files"

local M = {}

--- Raises an error, blamed on the script's line, unless `holds`. Values after the text are put into it as by
--- string.format.
---
---     plain.check(type(x) == "table", "%s: expected a table, not a %s", caller, type(x))
---@param holds any
---@param text string
---@param ... any
function M.check(holds, text, ...)
  if not holds then core.raise(select("#", ...) == 0 and text or text:format(...)) end
end

--- Returns plain.check for errors that begin with `prefix`, and a function that raises such an error.
---
---     local check, fail = plain.checks "models.load: "
---@param prefix string
---@return fun(holds: any, text: string, ...: any) check
---@return fun(text: string, ...: any) fail
function M.checks(prefix)
  local function fail(text, ...) core.raise(prefix .. text:format(...)) end
  return function(holds, text, ...) if not holds then fail(text, ...) end end, fail
end

--- Calls fn(...), then undo(), also where fn raises an error. Returns what fn does.
---@param undo fun()
---@param fn fun(...): ...
---@param ... any
---@return any ...
function M.finally(undo, fn, ...)
  local function finish(ok, ...)
    undo()
    if not ok then error((...), 0) end
    return ...
  end
  return finish(pcall(fn, ...))
end

--- Returns the keys of a table in order. With `keep`, only those for which keep(key, value) is true.
---@param map table<any, any>
---@param keep (fun(key: any, value: any): any)?
---@return any[]
function M.keys(map, keep)
  local keys = {}
  for key, value in pairs(map) do
    if not keep or keep(key, value) then keys[#keys + 1] = key end
  end
  table.sort(keys)
  return keys
end

--- Returns the words of a text as a set: {word = true, ...}.
---
---     local IGNORED = plain.words "revision token use_cache"
---@param text string
---@return table<string, true>
function M.words(text)
  local set = {}
  for word in text:gmatch("%S+") do set[word] = true end
  return set
end

--- Returns a table with the same keys and values, and without a metatable. Values of `more` override them.
---@param map table
---@param more table?
---@return table
function M.copy(map, more)
  local copy = {}
  for key, value in pairs(map) do copy[key] = value end
  for key, value in pairs(more or {}) do copy[key] = value end
  return copy
end

--- Returns a value, but nil for the null of JSON.
---@param value any
---@return any
function M.given(value)
  if value ~= core.null then return value end
end

--- Returns whether a value is a whole number of at least `least`.
---@param value any
---@param least number
---@return boolean
function M.is_whole(value, least) return type(value) == "number" and value >= least and value % 1 == 0 end

--- Returns a text for messages about a wrong value: a number as it is, or a string in quotes. A value that is not of
--- the type `expected` becomes its type, as in "a table".
---@param value any
---@param expected "number"|"string"
---@return string
function M.shown(value, expected)
  if type(value) ~= expected then return "a " .. type(value) end
  return expected == "string" and '"' .. value .. '"' or tostring(value)
end

--- Returns whether a value is a function, or can be called as one.
---@param value any
---@return boolean
function M.is_callable(value)
  return type(value) == "function" or (getmetatable(value) or {}).__call ~= nil
end

--- Returns what a regular file holds, or nil and the reason. A link may lead to a pipe or a device, which is not read.
---@param path string
---@return string?
---@return string?
function M.read_file(path) return core_files.read(path) end

--- The name of this machine.
---@return string
function M.host_name()
  local file = io.open("/proc/sys/kernel/hostname")
  local name = file and file:read("*l")
  if file then file:close() end
  return name or "?"
end

return M
