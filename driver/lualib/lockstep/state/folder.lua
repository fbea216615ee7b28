--- A folder is written as step-00000120.lockstep-part and renamed once it is complete and on the disk. A folder is a
--- state if its complete.json and its files agree, whatever its name. Folders in which a user has put a file are never
--- removed.

local core = require "lockstep.core"
local files = require "lockstep.core.files"
local plain = require "lockstep.plain"
local removal = require "lockstep.state.removal"

local M = {}

-- Ends of names that no user gives to a copy.
local PART, OLD = ".lockstep-part", ".lockstep-old"
local MARKER = "complete.json"
local FORMAT = 1

--- Returns the name of a state after `step` steps.
---@param step integer
---@return string
function M.name(step) return string.format("step-%08d", step) end

---@class state.Folder
---@field path string
---@field step integer
---@field suffix string "" once it is complete; PART, OLD: what a killed run left; ".torn": set aside
---@field is_foreign boolean? another run's: it stays as it is
---@field is_in_memory boolean? no folder: a snapshot that keepers have

--- The folders of states in `root`, the latest step first.
---@param root string
---@return state.Folder[]
function M.list(root)
  local found = {}
  for _, name in ipairs(files.list(root)) do
    local step, suffix = name:match("^step%-(%d+)(.*)$")
    if step then found[#found + 1] = { path = root .. "/" .. name, step = tonumber(step), suffix = suffix } end
  end
  table.sort(found, function(a, b)
    if a.step ~= b.step then return a.step > b.step end
    return a.suffix < b.suffix
  end)
  return found
end

--- Returns the folders that may be states, and how many were set aside. A folder that was being written when its run
--- ended is not a state, and not an error.
---@param root string
---@return state.Folder[] usable
---@return integer torn
function M.usable(root)
  local usable, torn = {}, 0
  for _, folder in ipairs(M.list(root)) do
    local is_unfinished = folder.suffix == PART and not plain.read_file(folder.path .. "/" .. MARKER)
    if folder.suffix == ".torn" then
      torn = torn + 1
    elseif not is_unfinished then
      usable[#usable + 1] = folder
    end
  end
  return usable, torn
end

-- The marker ------------------------------------------------------------------------------------------

---@class state.Marker
---@field step integer
---@field world_size integer
---@field values table<string, string> "shared" or "per_rank" by name
---@field files table<string, {bytes: integer, crc32: string}>

local function own_checksum(marker)
  local content = {}
  for key, value in pairs(marker) do
    if key ~= "crc32" then content[key] = value end
  end
  return (select(2, files.checksum_of { core.json_encode(content) }))
end

--- Returns the steps of a file job that say of the folder that it is complete, and bring that to the disk.
---@param path string
---@param marker state.Marker
---@return table[] steps see files.start
function M.completion(path, marker)
  local content = { format = FORMAT, step = marker.step, world_size = marker.world_size, values = marker.values,
    files = marker.files }
  content.crc32 = own_checksum(content)
  return { { "text", path .. "/" .. MARKER, core.json_encode(content, 2) .. "\n" }, { "sync", path } }
end

local function is_marker(content)
  if type(content) ~= "table" or content.crc32 ~= own_checksum(content) then return false end
  if not plain.is_whole(content.step, 0) or not plain.is_whole(content.world_size, 0) then return false end
  for name, file in pairs(content.files) do
    local fits = plain.is_whole(file.bytes, 0) and type(file.crc32) == "string"
    if name:find("/", 1, true) or not fits then return false end
  end
  return type(content.values) == "table"
end

local function read_marker(path)
  local name = path .. "/" .. MARKER
  local text, reason = plain.read_file(name)
  if not text then error(("there is no complete.json (%s): the folder was never finished"):format(reason), 0) end
  local ok, content = pcall(core.json_decode, text, name)
  if not ok then error(content, 0) end
  if type(content) == "table" and type(content.format) == "number" and content.format > FORMAT then
    error(("%s is of format %d, and this program reads up to %d: use a newer one"):format(name, content.format, FORMAT),
      0)
  end
  local known, whole = pcall(is_marker, content)
  if not known or not whole then
    error(("%s does not match its own checksum: it was changed, or is torn"):format(name), 0)
  end
  return content
end

local function check_file(path, expected)
  local has, should = files.size(path) -- before it is read: a link may lead to any size
  if not has then error("cannot open " .. should, 0) end
  should = expected.bytes
  local what = "%s has %d bytes, but complete.json says %d"
  if has == should then
    has, should = select(2, files.checksum(path)), expected.crc32
    what = "%s has the checksum %s, but complete.json says %s"
  end
  if has ~= should then
    error((what .. ": the file is torn, or belongs to another state"):format(path, has, should), 0)
  end
end

--- Reads the marker and compares the files with it, each `world`-th of them from the `rank`-th on. Raises what is
--- wrong: which file, what it should be.
---@param path string
---@param rank integer
---@param world integer
---@return state.Marker
function M.check(path, rank, world)
  local marker = read_marker(path)
  for i, name in ipairs(plain.keys(marker.files)) do
    if (i - 1) % world == rank then check_file(path .. "/" .. name, marker.files[name]) end
  end
  return marker
end

-- Making and removing ---------------------------------------------------------------------------------

local function is_own(name)
  return name == MARKER or name == "model.safetensors.index.json"
    or name:match("^model%-%d+%-of%-%d+%.safetensors$") or name:match("^state%-%d+%-of%-%d+%.safetensors$")
end

--- Returns the folder in which a state is written.
---@param root string
---@param step integer
---@return string path
function M.unfinished(root, step) return root .. "/" .. M.name(step) .. PART end

--- Makes a new, empty folder to fill. Removes the folder that a killed run left under that name.
---@param root string
---@param step integer
---@return string path
function M.begin(root, step)
  local path = M.unfinished(root, step)
  removal.make_room(path, is_own)
  core.make_folder(path)
  return path
end

--- Returns the steps of a file job that give the folder that M.completion completes its name, in place of another
--- state of that step. They keep this state and the `keep` - 1 before it, and remove the others and what killed runs
--- left. States that were set aside stay.
---@param root string
---@param step integer
---@param keep integer
---@return table[] steps see files.start
function M.publication(root, step, keep)
  local path, steps, removals = root .. "/" .. M.name(step), {}, {}
  local function remove(from, now)
    if not removal.foreign(from, is_own) then removals[#removals + 1] = { "remove", now or from, files.list(from) } end
  end
  if #files.list(path) > 0 then
    removal.make_room(path .. OLD, is_own)
    steps[1] = { "rename", path, path .. OLD }
    remove(path, path .. OLD)
  end
  local kept = 1
  for _, folder in ipairs(M.list(root)) do
    local is_older = folder.suffix == "" and folder.step < step
    local is_surplus = folder.suffix == "" and (folder.step > step or is_older and kept == keep)
    local is_left_over = folder.suffix == OLD or folder.suffix == PART and folder.step ~= step
    if is_surplus or is_left_over then
      remove(folder.path)
    elseif is_older then
      kept = kept + 1
    end
  end
  steps[#steps + 1] = { "rename", path .. PART, path }
  steps[#steps + 1] = { "sync", root }
  for _, removal_step in ipairs(removals) do steps[#steps + 1] = removal_step end
  return steps
end

--- Gives a whole state its name, where a killed run came to no more than to complete it.
---@param folder state.Folder
function M.adopt(folder)
  if folder.is_foreign or (folder.suffix ~= PART and folder.suffix ~= OLD) then return end
  pcall(files.rename, folder.path, (folder.path:gsub("%.[%a-]+$", "")))
end

--- Takes a torn state out of the way of those to come, and keeps it. Returns where it is.
---@param folder state.Folder
---@return string path
function M.set_aside(folder)
  if folder.is_foreign or folder.suffix ~= "" then return folder.path end
  local path = folder.path .. ".torn"
  return pcall(files.rename, folder.path, path) and path or folder.path
end

return M
