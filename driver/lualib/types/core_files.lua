---@meta lockstep.core.files
--- Folders, and whether files are whole, as run:save() asks. The program's side is driver/lua/bind/program/files.cc.

---@class lockstep.core.files
local files = {}

--- Sorted names in a folder; none if it does not exist.
---@param folder string
---@return string[]
function files.list(folder) end

---@param from string
---@param to string
function files.rename(from, to) end

--- Removes a file, a link or an empty folder; does nothing if it does not exist.
---@param path string
function files.remove(path) end

--- Removes these files of a folder, and the folder if that was all. If the path is a link, removes the link alone.
---@param path string
---@param names string[]
---@return boolean is_gone
function files.remove_folder(path, names) end

--- Work on files by a thread.
---@class lockstep.core.files.Job
local Job = {}

--- Whether wait would return at once.
---@return boolean
function Job:is_done() end

--- Waits for the end. Returns for each step the length and checksum of the file that it wrote, otherwise false. Raises
--- the error of the step that failed.
---@return ({bytes: integer, crc32: string}|false)[]
function Job:wait() end

--- Starts a thread that works on files, step by step up to the first error. The tensors must not change meanwhile.
--- Steps: {"tensors", path, tensors by name, metadata}, {"text", path, text}, {"sync", folder}, {"rename", from, to},
--- {"remove", folder, names} (see remove_folder).
---@param steps any[][]
---@return lockstep.core.files.Job
function files.start(steps) end

--- Makes a new folder whose name begins with `prefix`.
---@param prefix string
---@return string path
function files.temporary_folder(prefix) end

--- Brings the names in a folder to the disk.
---@param folder string
function files.sync(folder) end

--- What a path leads to; nil if nothing is there.
---@param path string
---@return "file"|"folder"|"pipe"|"other"|nil
function files.kind(path) end

--- The length of a regular file in bytes; nil and the reason for anything else.
---@param path string
---@return integer?
---@return string? reason
function files.size(path) end

--- The content of a regular file of less than 2 GiB; nil and the reason for anything else. Never waits.
---@param path string
---@return string?
---@return string? reason
function files.read(path) end

--- A file's length, and its CRC-32 as in zlib and gzip, in eight hexadecimal digits.
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

--- Locks a folder for this process until it ends. Returns true; false and the holder's name if another process has it;
--- or nil and the reason if it cannot be locked. Leaves a file run.lock in the folder.
---@param folder string
---@return boolean? locked
---@return string? what
function files.lock(folder) end

---@class lockstep.core.files.AppendFile
local AppendFile = {}

--- Writes all of the record at the end of the file, or nothing. Returns true, or nil and the reason.
---@param record string
---@return boolean? written
---@return string? reason
function AppendFile:append(record) end

--- Opens a file that grows by whole records. Returns nil and the reason if it cannot be opened.
---@param path string
---@return lockstep.core.files.AppendFile?
---@return string? reason
function files.append_file(path) end

return files
