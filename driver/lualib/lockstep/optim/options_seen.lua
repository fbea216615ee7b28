--- The options and states that optimizers use while lockstep.graph records. A recording keeps options as numbers, and
--- the states' addresses, so the graph asks before each repetition whether the optimizers still have the same. See
--- lockstep/graph.lua.

local M = {}

local seen -- optimizers, and copies of their groups, since start()

local function copy(value)
  if type(value) ~= "table" then return value end
  local all = {}
  for key, inner in pairs(value) do all[key] = copy(inner) end
  return all
end

--- Returns the name of an option that differs, or nil. Tensors are the same if they are one.
local function difference(kept, now, name)
  if type(kept) ~= "table" or type(now) ~= "table" then
    local is_same = rawequal(kept, now) or (kept ~= kept and now ~= now)
    return not is_same and name or nil
  end
  for key, inner in pairs(kept) do
    local found = difference(inner, now[key], name or tostring(key))
    if found then return found end
  end
  for key in pairs(now) do
    if kept[key] == nil then return name or tostring(key) end
  end
end

--- Begins a list of the optimizers that take a step. The last recording under way has it.
function M.start() seen = {} end

--- Returns the list since start().
---@return table[]
function M.finish()
  local list = seen
  seen = nil
  return list or {}
end

--- Notes an optimizer that takes a step in a recording.
---@param optimizer optim.Optimizer
function M.note(optimizer)
  if not seen then return end
  table.insert(seen, { optimizer = optimizer, groups = copy(optimizer.groups),
    state = copy(optimizer.state) })
end

--- Returns what has changed since a list was made, or nil.
---@param list table[] of finish()
---@return string?
function M.changed(list)
  for _, one in ipairs(list) do
    local now = one.optimizer.groups
    if #now ~= #one.groups then return "an optimizer has another number of groups" end
    for i, group in ipairs(one.groups) do
      local name = difference(group, now[i])
      if name then return string.format("an optimizer's %s has changed", name) end
    end
    if difference(one.state, one.optimizer.state, "state") then return "an optimizer's state is another one" end
  end
end

return M
