--- Removes folders that this program wrote. A folder in which a user has put a file stays as it is.

local files = require "lockstep.core.files"

local M = {}

local UNFINISHED = "%.part%-%x+$" -- the end of a name while its file is being written

--- Returns the name of a file in the folder that `is_own` does not know, or nil.
---@param path string
---@param is_own fun(name: string): any
---@return string? foreign
function M.foreign(path, is_own)
  for _, name in ipairs(files.list(path)) do
    if not is_own((name:gsub(UNFINISHED, ""))) then return name end
  end
end

--- Removes the folder `path` with its files if `is_own` knows all of them. Otherwise leaves all of it, and returns the
--- name of one that is not ours.
---@param path string
---@param is_own fun(name: string): any
---@return string? foreign
function M.remove(path, is_own)
  local foreign = M.foreign(path, is_own)
  if foreign then return foreign end
  local is_gone = files.remove_folder(path, files.list(path))
  return not is_gone and files.list(path)[1] or nil -- one came meanwhile
end

--- Removes what a killed process left at `path`, to make room. Raises an error if it holds a file of the user.
---@param path string
---@param is_own fun(name: string): any
function M.make_room(path, is_own)
  local foreign = M.remove(path, is_own)
  if foreign then
    error(("%s is a name that this program uses while it writes, and holds %s, which it did not write; move it away")
      :format(path, foreign), 0)
  end
end

return M
