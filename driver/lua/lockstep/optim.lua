--- Optimizers and gradient clipping.
---
---     local optimizer = optim.AdamW(model:parameters(), { lr = 3e-4, weight_decay = 0.1 })
---     loss:backward()
---     local norm = optim.clip_grad_norm(model:parameters(), 1.0)
---     optimizer:step(schedule(step)); optimizer:zero_grad()

local core = require "lockstep.core"
local options = require "lockstep.options"
local precision = require "lockstep.optim.precision"
local torch = require "lockstep.torch"

local M = {}

M.schedule = require "lockstep.schedule"

---@class optim.AdamWOptions
---@field lr number? default 1e-3
---@field betas number[]? default {0.9, 0.999}
---@field eps number? default 1e-8
---@field weight_decay number? default 0.01
---@field master ("float32"|"stochastic"|"none")? for bfloat16 and float16 parameters; default "float32"
---@field states torch.dtype? of the moments: torch.bfloat16, or torch.float32 (default; for float64 parameters float64)

--- AdamW (arXiv 1711.05101) on ATen's fused kernels: one call updates all parameters of a group.
---@class optim.AdamW
---@field groups table[] each with params, lr, betas, eps, weight_decay
local AdamW = {}
AdamW.__index = AdamW

local DEFAULTS = {
  lr = 1e-3, betas = { 0.9, 0.999 }, eps = 1e-8, weight_decay = 1e-2, master = "float32", states = torch.float32,
}

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
    weight_decay = defaults.weight_decay, master = defaults.master, states = defaults.states,
  }))
  check(type(group.params) == "table", "a group's params must be an array", type(group.params))
  check(#group.params > 0, "a group must have parameters", "an empty array")
  for i, p in ipairs(group.params) do
    check(torch.is_tensor(p), string.format("parameter %d must be a tensor", i), "a " .. type(p))
    check(p.is_leaf, string.format("parameter %d must be a tensor of its own", i), "the result of a computation")
  end
  -- Scripts may change what stays in the group between steps. The policy holds for the optimizer's life.
  local policy = precision.policy("optim.AdamW", group.master, group.states, group.params)
  group.master, group.states = nil, nil
  return group, policy
end

--- Raises unless `params` is an array, of parameters perhaps.
local function check_array(name, params)
  if type(params) ~= "table" then core.raise(name .. ": params must be an array, not a " .. type(params)) end
  local ok, method = pcall(function() return params.parameters end)
  if ok and type(method) == "function" then
    core.raise(name .. ": params is a module; pass model:parameters()")
  end
end

--- Constructor: optim.AdamW(params, {lr =, betas =, eps =, weight_decay =, master =, states =}). `params` is an array
--- of tensors, or of groups, `{{params = {...}, weight_decay = 0.1}, {params = {...}, lr = 1e-4}}`, whose options
--- override those of the second argument.
---
--- Parameters in bfloat16 and float16 train as well as float32 ones. By default, the optimizer keeps a float32 copy of
--- each, its master: 4 bytes per element. A step updates the master and rounds it into the parameter. Values that a
--- script writes into a parameter between two steps go into the master, too.
---
--- `master = "stochastic"` needs no such copy, for bfloat16. It rounds each update up or down at random, so that the
--- mean is exact. `master = "none"` rounds to nearest, which loses every step smaller than 0.2 % of the weight.
--- `states = torch.bfloat16` halves the memory of the moments. They are rounded at random (with "none" to nearest).
---@param params torch.Tensor[]|table[]
---@param opts optim.AdamWOptions?
---@return optim.AdamW
function M.AdamW(params, opts)
  check_array("optim.AdamW", params)
  local defaults = check_options(options.read("optim.AdamW", opts, DEFAULTS))
  if params.params then core.raise("optim.AdamW: groups come in an array: {{params = ...}, ...}") end
  local given = params
  if #params == 0 or torch.is_tensor(params[1]) then given = { { params = params } } end
  local self = setmetatable({ groups = {}, state = {}, policies = {} }, AdamW)
  local seen = {}
  for i, one in ipairs(given) do
    local group, policy = read_group(one, defaults)
    for _, p in ipairs(group.params) do
      if seen[p] then core.raise("optim.AdamW: a parameter appears twice; tied weights count once") end
      seen[p] = true
    end
    self.groups[i], self.policies[i] = group, policy
  end
  return self
end

local function state_of(self, p, policy)
  local state = self.state[p]
  if not state then
    state = precision.new_state(p, policy)
    if not precision.same_layout(p, state.exp_avg) then
      core.raise(string.format("optim.AdamW: a parameter of shape %s is a slice of a larger tensor, which the fused "
        .. "kernel cannot update; make the parameter of x:clone()", tostring(p.shape)))
    end
    self.state[p] = state
  end
  return state
end

--- Updates the parameters of a group that have a gradient. `first` is the position of its first parameter.
local function update_group(self, group, policy, first, lr)
  local buckets, order = {}, {}
  local function run(bucket)
    bucket:run(function(b)
      torch._fused_adamw_(b.params, b.grads, b.exp_avgs, b.exp_avg_sqs, {}, b.steps, {
        lr = lr, beta1 = group.betas[1], beta2 = group.betas[2],
        weight_decay = group.weight_decay, eps = group.eps, amsgrad = false, maximize = false,
      })
    end)
  end
  for i, p in ipairs(group.params) do
    if p.grad then
      local key = precision.bucket_key(p, policy)
      local bucket = buckets[key]
      if not bucket then
        bucket = precision.bucket()
        buckets[key] = bucket
        order[#order + 1] = key
      end
      bucket:add(p, state_of(self, p, policy), policy, first + i - 1)
      if bucket.copied > precision.MAX_COPIED then
        run(bucket)
        buckets[key] = precision.bucket()
      end
    end
  end
  for _, key in ipairs(order) do
    if #buckets[key].params > 0 then run(buckets[key]) end
  end
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
    local first = 1
    for i, group in ipairs(self.groups) do
      update_group(self, group, self.policies[i], first, factor * group.lr)
      first = first + #group.params
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
  for i, group in ipairs(self.groups) do
    for _, p in ipairs(group.params) do states[#states + 1] = state_of(self, p, self.policies[i]) end
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
--- a scalar tensor (no transfer from the device), in float32 for gradients of lower precision. Where gradients are
--- averaged over ranks each rank holds the same ones, and so gets the same norm. Of a model that is sharded
--- (sharding.fully_shard) all parameters must be given; the norm is then that over all ranks, and this is collective.
---@param params torch.Tensor[]
---@param max_norm number
---@return torch.Tensor
function M.clip_grad_norm(params, max_norm)
  check_array("optim.clip_grad_norm", params)
  if type(max_norm) ~= "number" or max_norm <= 0 or max_norm ~= max_norm then
    core.raise("optim.clip_grad_norm: max_norm must be a number above 0, not " .. tostring(max_norm))
  end
  local sharded = require("lockstep.sharding.fully_shard").model_of_all(params)
  if sharded then return sharded:clip_grad_norm(max_norm) end
  return torch.no_grad(function()
    local grads, has_low, has_double = {}, false, false
    for i, p in ipairs(params) do
      if not torch.is_tensor(p) then
        core.raise(string.format("optim.clip_grad_norm: parameter %d is a %s, not a tensor", i, type(p)))
      end
      local grad = p.grad
      if grad then
        grads[#grads + 1] = grad
        has_low = has_low or precision.is_low(grad)
        has_double = has_double or grad.dtype == torch.float64
      end
    end
    if #grads == 0 then return torch.zeros({}) end
    -- The norm of float16 gradients may be above float16's largest number, and would scale them to 0.
    local dtype = has_low and (has_double and torch.float64 or torch.float32) or nil
    local norm = torch.linalg_vector_norm(torch.stack(torch._foreach_norm(grads, 2, dtype)))
    torch._foreach_mul_(grads, torch.clamp(max_norm / (norm + 1e-6), { max = 1 }))
    return norm
  end)
end

return M
