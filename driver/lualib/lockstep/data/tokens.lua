--- Flat files of token ids. Scripts use data.tokens.

local core = require "lockstep.core"
local core_files = require "lockstep.core.files"
local options = require "lockstep.options"
local plain = require "lockstep.plain"
local torch = require "lockstep.torch"

local M = {}

local BYTES = { uint16 = 2, int32 = 4, uint32 = 4, int64 = 8 }

---@class lockstep.data.Tokens
---@field size integer how many tokens the file holds
---@field path string
---@field dtype string
---@field private ids torch.Tensor the mapped file
---@field private vocab_size integer?
local Tokens = {}
Tokens.__index = Tokens

local function check_integer(name, value)
  if type(value) == "number" and value % 1 == 0 then return end
  core.raise(("tokens:slice: %s must be an integer, got %s"):format(name, tostring(value)))
end

--- Returns the tokens at positions `first` to `last` - 1, counted from 0, as int64. Throws where the range is not
--- within the file, and where an id is negative or not below `vocab_size`.
---
---     local ids = tokens:slice(step * 1024, (step + 1) * 1024)
---@param first integer
---@param last integer
---@return torch.Tensor ids int64 [last - first], a copy
function Tokens:slice(first, last)
  check_integer("first", first)
  check_integer("last", last)
  plain.check(first >= 0 and last >= first and last <= self.size, "tokens:slice: positions %d to %d (excluded) are not "
    .. "within the %d tokens of %s", first, last, self.size, self.path)
  local ids = self.ids:narrow(0, first, last - first):to { dtype = torch.int64 }
  if last > first then self:check(ids, first) end
  return ids
end

---@private
---@param ids torch.Tensor
---@param first integer
function Tokens:check(ids, first)
  local low, high = ids:min():item(), ids:max():item()
  if low >= 0 and (not self.vocab_size or high < self.vocab_size) then return end
  local wrong = low < 0 and low or high
  local position = first + ids:eq(wrong):to { dtype = torch.int64 }:argmax():item()
  core.raise(("tokens:slice: %s has the id %d at position %d; expected 0 to %s. Check the dtype, which is %s"):format(
    self.path, wrong, position, self.vocab_size and tostring(self.vocab_size - 1) or "the vocabulary's size",
    self.dtype))
end

--- Opens a file. See data.tokens.
---@param path string
---@param opts {dtype: string?, vocab_size: integer?}?
---@return lockstep.data.Tokens
function M.open(path, opts)
  if type(path) ~= "string" then core.raise("data.tokens: the path must be a string, not a " .. type(path)) end
  local o = options.read("data.tokens", opts, { dtype = "uint16", vocab_size = options.optional })
  local width = BYTES[o.dtype]
  plain.check(width, 'data.tokens: dtype must be "uint16", "int32", "uint32" or "int64", got "%s"', o.dtype)
  if o.vocab_size and (type(o.vocab_size) ~= "number" or o.vocab_size < 1) then
    core.raise("data.tokens: vocab_size must be a positive integer, got " .. tostring(o.vocab_size))
  end
  local bytes, reason = core_files.size(path)
  if not bytes then core.raise("data.tokens: cannot open " .. reason) end
  plain.check(bytes ~= 0 and bytes % width == 0, "data.tokens: %s has %d bytes; expected a positive multiple of %d, "
    .. "the size of one id of dtype %s", path, bytes, width, o.dtype)
  return setmetatable({
    path = path,
    size = bytes / width,
    dtype = o.dtype,
    vocab_size = o.vocab_size,
    ids = torch.from_file(path, { shared = false, size = bytes / width, dtype = torch[o.dtype] }),
  }, Tokens)
end

return M
