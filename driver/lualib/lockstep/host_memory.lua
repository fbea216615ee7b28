--- The memory of this machine: what the kernel reports, within the limit of the control group.

local M = {}

--- Returns the number after a name in a file of the kernel, or nil.
local function read_number(path, name)
  local file = io.open(path)
  local text = file and file:read "*a" or ""
  if file then file:close() end
  return tonumber(text:match(name .. "%s*(%d+)"))
end

--- Returns the bytes that this process and all others of its control group may have.
---@param root string? a folder in place of "/", of a test
---@return number
function M.total(root)
  root = root or ""
  return math.min(1024 * (read_number(root .. "/proc/meminfo", "MemTotal:") or math.huge),
    read_number(root .. "/sys/fs/cgroup/memory.max", "^") or math.huge)
end

--- Returns the bytes that the kernel can give now.
---@param root string? a folder in place of "/", of a test
---@return number
function M.free(root)
  root = root or ""
  local free = 1024 * (read_number(root .. "/proc/meminfo", "MemAvailable:") or math.huge)
  local limit = read_number(root .. "/sys/fs/cgroup/memory.max", "^") or math.huge
  return math.min(free, limit - (read_number(root .. "/sys/fs/cgroup/memory.current", "^") or 0))
end

return M
