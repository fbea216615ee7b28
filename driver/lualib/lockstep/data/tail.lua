--- data.tail: the values that another program appends to a file, one JSON value per line.

local core = require "lockstep.core"
local ffi = require "ffi"
local options = require "lockstep.options"

ffi.cdef "int poll(void* fds, unsigned long count, int milliseconds);"

--- The time between two looks at the file while nothing comes.
local INTERVAL_MS = 100

--- Bytes before the place in the file, which tell whether it is still the same file.
local REMEMBERED = 256

---@class data.Tail
---@field path string
---@field lines integer lines of the file returned so far, and blank ones among them
---@field private offset integer bytes of these lines
---@field private last string the last of these bytes
---@field private ahead string bytes read, from `at` on beyond these lines
---@field private at integer
---@operator call: any
local Tail = {}
Tail.__index = Tail

local function fail(message, ...) core.raise("data.tail: " .. message:format(...)) end

--- Reads what the file holds beyond the bytes that were read before.
local function read_on(self)
  self.ahead, self.at = self.ahead:sub(self.at), 1
  local file, seen = io.open(self.path, "rb"), self.offset + #self.ahead
  if not file then
    if seen > 0 then fail("%s is gone, after %d lines", self.path, self.lines) end
    return
  end
  local size, known = file:seek "end", (self.last .. self.ahead):sub(-REMEMBERED)
  local bytes = ""
  if size >= seen then
    file:seek("set", seen - #known)
    bytes = file:read "*a"
  end
  file:close()
  if not bytes then fail("%s cannot be read; is it a folder?", self.path) end
  if size < seen then
    fail("%s has %d bytes, but %d were read before: lines may be appended to it, not removed", self.path, size, seen)
  elseif bytes:sub(1, #known) ~= known then
    fail("%s was replaced or changed: bytes %d to %d, after %d lines, are not those that were read before; lines may "
      .. "only be appended to it", self.path, seen - #known, seen - 1, self.lines)
  end
  self.ahead = self.ahead .. bytes:sub(#known + 1)
end

--- Takes the next line from the file, without its line feed, or nil if none is complete yet.
local function next_line(self)
  local ends = self.ahead:find("\n", self.at, true)
  if not ends then
    read_on(self)
    ends = self.ahead:find("\n", 1, true)
  end
  return ends and self.ahead:sub(self.at, ends - 1)
end

--- Goes on after the line that next_line returned.
local function pass(self, line)
  self.last = (self.last .. line .. "\n"):sub(-REMEMBERED)
  self.at, self.offset, self.lines = self.at + #line + 1, self.offset + #line + 1, self.lines + 1
end

--- Returns the next line's value, or nil if no further line is complete yet. A line is complete with its line feed;
--- blank lines are skipped. An error names the line.
---@return any
function Tail:try()
  local line = next_line(self)
  while line and not line:find "[^ \t\r]" do
    pass(self, line)
    line = next_line(self)
  end
  if not line then return nil end
  local value = core.json_decode(line, ("%s, line %d"):format(self.path, self.lines + 1))
  pass(self, line)
  return value
end

--- Returns the next line's value, and waits until there is one.
---@return any
function Tail:__call()
  while true do
    local value = self:try()
    if value ~= nil then return value end
    ffi.C.poll(nil, 0, INTERVAL_MS)
  end
end

--- Returns the place after the last line returned: for run:state.
---@return table
function Tail:state_dict()
  local last = self.last:gsub(".", function(byte) return ("%02x"):format(byte:byte()) end)
  return { offset = self.offset, lines = self.lines, last = last }
end

--- Goes on from what state_dict returned.
---@param state table
function Tail:load_state_dict(state)
  local o = options.read("data.tail: load_state_dict", state, { offset = 0, lines = 0, last = "" })
  self.offset, self.lines, self.ahead = o.offset, o.lines, ""
  self.at = 1
  self.last = o.last:gsub("%x%x", function(hex) return string.char(tonumber(hex, 16)) end)
end

--- See data.tail.
---@param path string
---@return data.Tail
return function(path)
  if type(path) ~= "string" then fail("the path must be a string, not a %s", type(path)) end
  return setmetatable({ path = path, lines = 0, offset = 0, last = "", ahead = "", at = 1 }, Tail)
end
