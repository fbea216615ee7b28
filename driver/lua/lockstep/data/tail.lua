--- data.tail: the values that another program appends to a file, one JSON value per line.

local core = require "lockstep.core"
local ffi = require "ffi"
local options = require "lockstep.options"

ffi.cdef "int poll(void* fds, unsigned long count, int milliseconds);"

--- The time between two looks at the file while nothing comes.
local INTERVAL_MS = 100

---@class data.Tail
---@field path string
---@field lines integer lines returned so far
---@field private offset integer bytes of these lines
---@field private ahead string bytes read beyond them
---@operator call: any
local Tail = {}
Tail.__index = Tail

local function fail(message, ...) core.raise("data.tail: " .. message:format(...)) end

--- Reads what the file holds beyond the bytes that were read before.
local function read_on(self)
  local file = io.open(self.path, "rb")
  if not file then
    if self.offset > 0 then fail("%s is gone, after %d lines", self.path, self.lines) end
    return
  end
  local seen, size = self.offset + #self.ahead, file:seek "end"
  local bytes = ""
  if size > seen then
    file:seek("set", seen)
    bytes = file:read "*a"
  end
  file:close()
  if size < seen then
    fail("%s has %d bytes, but %d were read before: lines may be appended to it, not removed", self.path, size, seen)
  end
  self.ahead = self.ahead .. bytes
end

--- Returns the next line's value, or nil if no further line is complete yet. A line is complete with its line feed. An
--- error names the line.
---@return any
function Tail:try()
  local ends = self.ahead:find("\n", 1, true)
  if not ends then
    read_on(self)
    ends = self.ahead:find("\n", 1, true)
  end
  if not ends then return nil end
  local line = self.ahead:sub(1, ends - 1)
  local value = core.json_decode(line, ("%s, line %d"):format(self.path, self.lines + 1))
  self.ahead, self.offset, self.lines = self.ahead:sub(ends + 1), self.offset + ends, self.lines + 1
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
function Tail:state_dict() return { offset = self.offset, lines = self.lines } end

--- Goes on from what state_dict returned.
---@param state table
function Tail:load_state_dict(state)
  local o = options.read("data.tail: load_state_dict", state, { offset = 0, lines = 0 })
  self.offset, self.lines, self.ahead = o.offset, o.lines, ""
end

--- See data.tail.
---@param path string
---@return data.Tail
return function(path)
  if type(path) ~= "string" then fail("the path must be a string, not a %s", type(path)) end
  return setmetatable({ path = path, lines = 0, offset = 0, ahead = "" }, Tail)
end
