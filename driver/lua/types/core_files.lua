---@meta lockstep.core.files
--- Folders, and whether files are whole, as run:save() asks. The program's side is driver/lua/files.cc.

---@class lockstep.core.files
local files = {}

--- Names of what a folder holds, sorted; none where it is not there.
---@param folder string
---@return string[]
function files.list(folder) end

---@param from string
---@param to string
function files.rename(from, to) end

--- Removes a file, or a folder with all in it; nothing where it is not there.
---@param path string
function files.remove(path) end

--- Brings the names in a folder to the disk.
---@param folder string
function files.sync(folder) end

--- Of a file: its length, and the CRC-32 of zlib and gzip in eight hexadecimal digits.
---@param path string
---@return integer bytes
---@return string crc32
function files.checksum(path) end

--- The same of pieces one behind the other; tensors as the bytes they hold.
---@param pieces (string|torch.Tensor)[]
---@return integer bytes
---@return string crc32
function files.checksum_of(pieces) end

--- Why a file cannot be written, new or in place of another: nil where nothing is seen to be in the way.
---@param path string
---@return string?
function files.why_unwritable(path) end

--- Takes a folder for this process alone, as long as it lives: true; false, and who has it; or nil, and why it cannot
--- be locked. What it leaves in the folder is run.lock.
---@param folder string
---@return boolean? locked
---@return string? what
function files.lock(folder) end

return files
