--- URLs of files (RFC 8089).

local core_files = require "lockstep.core.files"

local M = {}

--- Returns the path of a URL of a file here, or nil. A path with characters in percent codes is read so unless there
--- is a file of that very name: not every program writes the codes.
---@param url string
---@return string?
function M.path(url)
  local path = url:match "^file://localhost(/.*)$" or url:match "^file://(/.*)$"
  if not path or core_files.kind(path) then return path end
  path = path:gsub("%%(%x%x)", function(digits) return string.char(tonumber(digits, 16)) end)
  return not path:find "%z" and path or nil -- no path has a zero byte
end

return M
