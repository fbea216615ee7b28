--- Shapes of tables from JSON: the order of keys, which empty tables are arrays, which whole numbers have a point. They
--- belong to the Lua state that read the JSON. data.loader sends them to its workers and back with the samples.

local core = require "lockstep.core"

local M = {}

--- Returns the shapes in a value: those of each table within it, in a form that travels. nil without any.
---@param value any
---@return table?
function M.of(value)
  if type(value) ~= "table" then return nil end
  local known, all, numbers, seen = core.json_shapes(), {}, {}, {}
  local function visit(part)
    if seen[part] then return nil end
    seen[part] = true
    local node
    local shape = known[part]
    if shape then
      if not numbers[shape] then
        all[#all + 1] = shape
        numbers[shape] = #all
      end
      node = { numbers[shape] }
    end
    for key, inner in next, part do
      local below = type(inner) == "table" and visit(inner)
      if below then
        node = node or { false }
        node[2] = node[2] or {}
        node[2][key] = below
      end
    end
    return node
  end
  local root = visit(value)
  return root and { all = all, root = root } or nil
end

--- Gives the tables of a value the shapes that M.of returned in another state.
---@param value any
---@param shapes table?
---@return any value
function M.restore(value, shapes)
  if not shapes then return value end
  local known = core.json_shapes()
  local function visit(part, node)
    if node[1] then known[part] = shapes.all[node[1]] end
    for key, below in pairs(node[2] or {}) do visit(part[key], below) end
  end
  visit(value, shapes.root)
  return value
end

return M
