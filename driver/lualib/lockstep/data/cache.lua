--- The folder that set-up fetches files to, and that indexes of data are kept in.

local M = {}

--- $LOCKSTEP_CACHE, or "lockstep" in the user's cache folder. An empty variable counts as not set, and so does an
--- XDG_CACHE_HOME that is relative, as its specification asks.
---@return string
function M.folder()
  local cache, user = os.getenv("LOCKSTEP_CACHE"), os.getenv("XDG_CACHE_HOME")
  if cache and cache ~= "" then return cache end
  if not user or user:sub(1, 1) ~= "/" then user = (os.getenv("HOME") or "") .. "/.cache" end
  return user .. "/lockstep"
end

--- Returns the places where a file of set-up may be: in the archive of ./package, if the program came in one, and in
--- the cache.
---@param name string
---@return string[]
function M.places(name)
  local packed, fetched = os.getenv("LOCKSTEP_DATA"), M.folder() .. "/data/" .. name
  if not packed or packed == "" then return { fetched } end
  return { packed .. "/" .. name, fetched }
end

return M
