--- Forward hooks of modules: see nn.Module:register_forward_hook.

local plain = require "lockstep.plain"

local M = {}

--- Where a module keeps its hooks, in the order of registration; nil without hooks.
local HOOKS = "_forward_hooks"

---@class nn.HookHandle
---@field package is_removed boolean?
local HookHandle = {}
HookHandle.__index = HookHandle

--- Takes the hook away. A second call does nothing.
function HookHandle:remove()
  local left = {}
  for _, handle in ipairs(rawget(self.module, HOOKS) or {}) do
    if handle ~= self then left[#left + 1] = handle end
  end
  rawset(self.module, HOOKS, #left > 0 and left or nil)
  self.is_removed = true
end

--- Returns whether a module has hooks.
---@param module nn.Module
---@return boolean
function M.has(module) return rawget(module, HOOKS) ~= nil end

local function pack(...) return { n = select("#", ...), ... } end

local function run(self, hooks, ...)
  local results, inputs = pack(self:forward(...)), pack(...)
  for _, handle in ipairs(hooks) do
    local given = pack(handle.hook(self, inputs, unpack(results, 1, results.n)))
    if given[1] ~= nil then results = given end
  end
  return unpack(results, 1, results.n)
end

--- Calls a module: its forward pass, then its hooks.
---@param self nn.Module
---@param ... any
---@return any ...
function M.call(self, ...)
  local hooks = rawget(self, HOOKS)
  if not hooks then return self:forward(...) end
  return run(self, hooks, ...)
end

--- Adds a hook to a module.
---@param module nn.Module
---@param hook function
---@return nn.HookHandle
function M.register(module, hook)
  plain.check(type(hook) == "function",
    "%s:register_forward_hook: the hook must be a function, not a %s", module.class_name, type(hook))
  local handle = setmetatable({ module = module, hook = hook }, HookHandle)
  -- A new array: a pass that runs goes on with the old one.
  local hooks = { unpack(rawget(module, HOOKS) or {}) }
  hooks[#hooks + 1] = handle
  rawset(module, HOOKS, hooks)
  return handle
end

return M
