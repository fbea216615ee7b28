--- Files and folders, for scripts that look for data or write some. Lua's `io` works as usual, but cannot tell a folder
--- from a file, and a file that it writes is there before it is complete.

local core = require "lockstep.core"
local core_files = require "lockstep.core.files"

local M = {}

--- Returns the sorted names in a folder; an empty table if it does not exist. Raises an error if it cannot be read.
---
---     if #files.list(dir) == 0 then write_model(dir) end
---@param folder string
---@return string[]
function M.list(folder) return core_files.list(folder) end

--- Returns the type of what a path leads to, or nil if nothing is there. Does not open it.
---@param path string
---@return "file"|"folder"|"pipe"|"other"|nil
function M.kind(path) return core_files.kind(path) end

--- Returns the content of a regular file of less than 2 GiB; nil and the reason for anything else. Never waits, as `io`
--- does for a pipe.
---
---     local text = assert(files.read "notes.txt")
---@param path string
---@return string? text
---@return string? reason
function M.read(path) return core_files.read(path) end

--- Returns a file's length, and its CRC-32 as in zlib and gzip, in eight hexadecimal digits. Ranks that compare these
--- know whether they read equal files. Raises an error if the file cannot be read.
---@param path string
---@return integer bytes
---@return string crc32
function M.checksum(path) return core_files.checksum(path) end

--- Returns the length and the CRC-32 of pieces one behind the other; tensors count as the bytes that they hold.
---
---     local bytes, crc32 = files.checksum_of { "ids\n", torch.arange(8) }
---@param pieces (string|torch.Tensor)[]
---@return integer bytes
---@return string crc32
function M.checksum_of(pieces) return core_files.checksum_of(pieces) end

--- Writes a file, which takes its name once it is complete: another rank or a killed run never sees a part. Throws if
--- it cannot be written. Let one rank write it.
---
---     if dist.rank() == 0 then files.write(dir .. "/ids.bin", { "ids\n", torch.arange(8) }) end
---@param path string
---@param pieces (string|torch.Tensor)[] one behind the other; tensors as the bytes that they hold
function M.write(path, pieces) core.write_file(path, pieces) end

--- Makes a folder and those above it, unless they are there.
---@param path string
function M.make_folder(path) core.make_folder(path) end

return M
