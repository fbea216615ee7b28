--- URLs of files (RFC 8089).

local core_files = require "lockstep.core.files"

local M = {}

--- Returns the path of a URL of a file on this host, or nil. Decodes percent codes, unless a file exists under the name
--- as it is written: not every program writes the codes.
---@param url string
---@return string?
function M.path(url)
  local path = url:match "^file://localhost(/.*)$" or url:match "^file://(/.*)$"
  if not path or core_files.kind(path) then return path end
  path = path:gsub("%%(%x%x)", function(digits) return string.char(tonumber(digits, 16)) end)
  return not path:find "%z" and path or nil -- no path has a zero byte
end

return M
