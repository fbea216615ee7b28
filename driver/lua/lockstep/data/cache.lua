--- The folder that set-up fetches files to, and that indexes of data are kept in.

local M = {}

--- $LOCKSTEP_CACHE, or "lockstep" in the user's cache folder.
---@return string
function M.folder()
  local cache = os.getenv("LOCKSTEP_CACHE")
  if cache then return cache end
  return (os.getenv("XDG_CACHE_HOME") or (os.getenv("HOME") or "") .. "/.cache") .. "/lockstep"
end

return M
