--- Optimizers and gradient clipping.
---
---     local optimizer = optim.AdamW(model:parameters(), { lr = 3e-4, weight_decay = 0.1 })
---     loss:backward()
---     local norm = optim.clip_grad_norm(model:parameters(), 1.0)
---     optimizer:step(schedule(step)); optimizer:zero_grad()

local core = require "lockstep.core"
local options = require "lockstep.options"
local torch = require "lockstep.torch"

local M = {}

M.schedule = require "lockstep.schedule"

--- AdamW (arXiv 1711.05101) on ATen's fused kernels: one call updates all parameters of a group.
---@class optim.AdamW
---@field groups table[] each with params, lr, betas, eps, weight_decay
local AdamW = {}
AdamW.__index = AdamW

local DEFAULTS = { lr = 1e-3, betas = { 0.9, 0.999 }, eps = 1e-8, weight_decay = 1e-2 }

local function check(holds, what, value)
  if not holds then core.raise(string.format("optim.AdamW: %s, not %s", what, tostring(value))) end
end

local function check_options(o)
  for _, name in ipairs { "lr", "eps", "weight_decay" } do
    check(o[name] >= 0, name .. " must be a number of at least 0", o[name])
  end
  check(#o.betas == 2, "betas must be two numbers, as in {0.9, 0.999}", "an array of " .. #o.betas)
  for _, beta in ipairs(o.betas) do
    check(type(beta) == "number" and beta >= 0 and beta < 1, "betas must be numbers from 0 to below 1", beta)
  end
  return o
end

local function read_group(given, defaults)
  local group = check_options(options.read("optim.AdamW", given, {
    params = options.required, lr = defaults.lr, betas = defaults.betas, eps = defaults.eps,
    weight_decay = defaults.weight_decay,
  }))
  check(type(group.params) == "table", "a group's params must be an array", type(group.params))
  check(#group.params > 0, "a group must have parameters", "an empty array")
  for i, p in ipairs(group.params) do
    check(torch.is_tensor(p), string.format("parameter %d must be a tensor", i), "a " .. type(p))
    check(p.is_leaf, string.format("parameter %d must be a tensor of its own", i), "the result of a computation")
  end
  return group
end

--- Constructor: optim.AdamW(params, {lr =, betas =, eps =, weight_decay =}). `params` is an array of
--- tensors, or of groups, `{{params = {...}, weight_decay = 0.1}, {params = {...}, lr = 1e-4}}`,
--- whose options override those of the second argument.
---@param params torch.Tensor[]|table[]
---@param opts {lr: number?, betas: number[]?, eps: number?, weight_decay: number?}?
---@return optim.AdamW
function M.AdamW(params, opts)
  if type(params) ~= "table" then core.raise("optim.AdamW: params must be an array, not a " .. type(params)) end
  local defaults = check_options(options.read("optim.AdamW", opts, DEFAULTS))
  if params.params then core.raise("optim.AdamW: groups come in an array: {{params = ...}, ...}") end
  local given = params
  if #params == 0 or torch.is_tensor(params[1]) then given = { { params = params } } end
  local self = setmetatable({ groups = {}, state = {} }, AdamW)
  local seen = {}
  for _, group in ipairs(given) do
    group = read_group(group, defaults)
    for _, p in ipairs(group.params) do
      if seen[p] then core.raise("optim.AdamW: a parameter appears twice; tied weights count once") end
      seen[p] = true
    end
    table.insert(self.groups, group)
  end
  return self
end

local function same_layout(a, b)
  local strides_a, strides_b = a:stride(), b:stride()
  for i, stride in ipairs(strides_a) do
    if stride ~= strides_b[i] then return false end
  end
  return true
end

local function state_of(self, p)
  local state = self.state[p]
  if not state then
    state = {
      -- float32 whatever the default: as such the kernel reads it on a GPU.
      step = torch.zeros({}, { device = p.device, dtype = torch.float32 }),
      exp_avg = torch.zeros_like(p:detach()),
      exp_avg_sq = torch.zeros_like(p:detach()),
    }
    if not same_layout(p, state.exp_avg) then
      core.raise(string.format("optim.AdamW: a parameter of shape %s is a slice of a larger tensor, which the fused "
        .. "kernel cannot update; make the parameter of x:clone()", tostring(p.shape)))
    end
    self.state[p] = state
  end
  return state
end

--- The gradient in the parameter's own layout: the kernel walks both memories side by side, whatever
--- their strides say.
local function grad_like(p, grad)
  return same_layout(p, grad) and grad or torch.empty_like(p):copy_(grad)
end

--- The fused kernel wants one device and dtype: sorts what has a gradient into such lists.
local function buckets_of(self, group)
  local buckets, order = {}, {}
  for _, p in ipairs(group.params) do
    local grad = p.grad
    if grad then
      local key = p.device .. tostring(p.dtype)
      local b = buckets[key]
      if not b then
        b = { params = {}, grads = {}, exp_avgs = {}, exp_avg_sqs = {}, steps = {} }
        buckets[key] = b
        order[#order + 1] = b
      end
      local state = state_of(self, p)
      local n = #b.params + 1
      b.params[n], b.grads[n], b.steps[n] = p, grad_like(p, grad), state.step
      b.exp_avgs[n], b.exp_avg_sqs[n] = state.exp_avg, state.exp_avg_sq
    end
  end
  return order
end

--- Updates every parameter that has a gradient.
---@param factor (number|torch.Tensor)? multiplies each group's lr: what a schedule returns; default 1. A tensor of one
---element on the parameters' device in a graph (lockstep.graph), which would keep a number for ever
function AdamW:step(factor)
  if type(factor) == "number" and torch.cuda.is_current_stream_capturing() then
    core.raise("optimizer:step: the factor is a number, and a graph is being recorded, which would keep it for ever; "
      .. "give a tensor on the device, as an argument of the graph's function")
  end
  factor = factor or 1
  if type(factor) ~= "number" and not (torch.is_tensor(factor) and factor:numel() == 1) then
    core.raise("optimizer:step: the factor must be a number, as a schedule returns, or a tensor of one element, not "
      .. (torch.is_tensor(factor) and "one of shape " .. tostring(factor.shape) or "a " .. type(factor)))
  end
  torch.no_grad(function()
    for _, group in ipairs(self.groups) do
      for _, b in ipairs(buckets_of(self, group)) do
        torch._foreach_add_(b.steps, 1)
        torch._fused_adamw_(b.params, b.grads, b.exp_avgs, b.exp_avg_sqs, {}, b.steps, {
          lr = factor * group.lr, beta1 = group.betas[1], beta2 = group.betas[2],
          weight_decay = group.weight_decay, eps = group.eps, amsgrad = false, maximize = false,
        })
      end
    end
  end)
end

--- Forgets all gradients.
function AdamW:zero_grad()
  for _, group in ipairs(self.groups) do
    for _, p in ipairs(group.params) do p.grad = nil end
  end
end

--- Everything that resuming needs, in the order of the parameters. Shares memory with the optimizer.
---@return {states: table[]}
function AdamW:state_dict()
  local states = {}
  for _, group in ipairs(self.groups) do
    for _, p in ipairs(group.params) do states[#states + 1] = state_of(self, p) end
  end
  return { states = states }
end

--- Copies in what state_dict returned for the same parameters in the same order.
---@param saved {states: table[]}
function AdamW:load_state_dict(saved)
  local own = self:state_dict().states
  if type(saved) ~= "table" or type(saved.states) ~= "table" or #saved.states ~= #own then
    core.raise(string.format("optimizer:load_state_dict: there are %d parameters, but the state holds %s", #own,
      type(saved) == "table" and type(saved.states) == "table" and #saved.states or "none"))
  end
  for i, state in ipairs(own) do
    if type(saved.states[i]) ~= "table" then
      core.raise(string.format("optimizer:load_state_dict: the state of parameter %d must be a table of tensors, "
        .. "not a %s", i, type(saved.states[i])))
    end
    for name, tensor in pairs(state) do
      local given = saved.states[i][name]
      -- copy_ would spread a smaller tensor over a larger one.
      if not torch.is_tensor(given) or tostring(given.shape) ~= tostring(tensor.shape) then
        core.raise(string.format("optimizer:load_state_dict: %s of parameter %d must have shape %s, not %s", name, i,
          tostring(tensor.shape), torch.is_tensor(given) and tostring(given.shape) or tostring(given)))
      end
    end
  end
  torch.no_grad(function()
    for i, state in ipairs(own) do
      for name, tensor in pairs(state) do tensor:copy_(saved.states[i][name]) end
    end
  end)
end

--- Scales the gradients so that their joint 2-norm is at most `max_norm`; returns the norm before,
--- a scalar tensor (no transfer from the device). Where gradients are averaged over ranks each rank
--- holds the same ones, and so gets the same norm.
---@param params torch.Tensor[]
---@param max_norm number
---@return torch.Tensor
function M.clip_grad_norm(params, max_norm)
  if type(params) ~= "table" then
    core.raise("optim.clip_grad_norm: params must be an array, not a " .. type(params))
  end
  if type(max_norm) ~= "number" or max_norm <= 0 or max_norm ~= max_norm then
    core.raise("optim.clip_grad_norm: max_norm must be a number above 0, not " .. tostring(max_norm))
  end
  return torch.no_grad(function()
    local grads = {}
    for i, p in ipairs(params) do
      if not torch.is_tensor(p) then
        core.raise(string.format("optim.clip_grad_norm: parameter %d is a %s, not a tensor", i, type(p)))
      end
      local grad = p.grad
      if grad then grads[#grads + 1] = grad end
    end
    if #grads == 0 then return torch.zeros({}) end
    local norm = torch.linalg_vector_norm(torch.stack(torch._foreach_norm(grads, 2)))
    torch._foreach_mul_(grads, torch.clamp(max_norm / (norm + 1e-6), { max = 1 }))
    return norm
  end)
end

return M
