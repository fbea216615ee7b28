--- Where the names of a template live.
---
--- A scope is a part of the template with names of its own: the template, a loop's body, a macro, a set block. Names
--- that are assigned within it get a slot in the registers of its activation: the run of the template or of one macro
--- call.
--- A name is looked up from the innermost scope that assigns it outwards, and then in the variables of the call.

local M = {}

---@class lockstep.jinja.Scope
---@field parent lockstep.jinja.Scope?
---@field activation {slots: integer, depth: integer}
---@field names table<string, integer> slots
---@field first integer the first slot of this scope
---@field assigned integer the first slot that its body assigns: those before it are its own names
---@field last integer its last slot
local Scope = {}
Scope.__index = Scope

local function add_target(names, target)
  if target.type == "name" then
    names[#names + 1] = target.name
  elseif target.type == "tuple" then
    for _, item in ipairs(target.items) do add_target(names, item) end
  end
end

--- Adds the names that statements assign in their own scope, not in the scopes within it.
local function add_assigned(names, body)
  for _, node in ipairs(body or {}) do
    if node.type == "set" or node.type == "set_block" then
      add_target(names, node.target)
    elseif node.type == "macro" then
      names[#names + 1] = node.name
    elseif node.type == "if" then
      for _, branch in ipairs(node.bodies) do add_assigned(names, branch) end
      add_assigned(names, node.otherwise)
    end
  end
end

--- Returns a scope for `body`.
---@param parent lockstep.jinja.Scope?
---@param body table[]
---@param own string[]? names that the scope has besides
---@param is_activation boolean? whether it has registers of its own, as a macro does
---@return lockstep.jinja.Scope
function M.new(parent, body, own, is_activation)
  local activation = parent and parent.activation
  if is_activation then activation = { slots = 0, depth = activation and activation.depth + 1 or 0 } end
  local self = setmetatable({ parent = parent, activation = activation, names = {} }, Scope)
  self.first = activation.slots + 1
  local function add_slots(names)
    for _, name in ipairs(names) do
      if not self.names[name] then
        activation.slots = activation.slots + 1
        self.names[name] = activation.slots
      end
    end
  end
  add_slots(own or {})
  self.assigned = activation.slots + 1
  local names = {}
  add_assigned(names, body)
  add_slots(names)
  self.last = activation.slots
  return self
end

--- Returns where a name may be, innermost first: {{up = how many activations outwards, slot =}, ...}.
---@param name string
---@return {up: integer, slot: integer}[]
function Scope:places(name)
  local places, scope = {}, self
  while scope do
    local slot = scope.names[name]
    if slot then places[#places + 1] = { up = self.activation.depth - scope.activation.depth, slot = slot } end
    scope = scope.parent
  end
  return places
end

M.add_target = add_target

return M
