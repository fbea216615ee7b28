--- The parts that all optimizers share: groups of parameters, their state, and the way through a step.
---
--- A table of its own (OptimizerKind) describes an optimizer: its options, its moments, and a function that updates
--- a bucket of parameters. See adamw.lua, and the others of this folder.

local clipping = require "lockstep.optim.clipping"
local core = require "lockstep.core"
local core_graph = require "lockstep.core.graph"
local data_parallel = require "lockstep.sharding.data_parallel"
local fully_shard = require "lockstep.sharding.fully_shard"
local options = require "lockstep.options"
local options_seen = require "lockstep.optim.options_seen"
local plain = require "lockstep.plain"
local precision = require "lockstep.optim.precision"
local torch = require "lockstep.torch"

---@class OptimizerKind
---@field name string "optim.AdamW"
---@field defaults table<string, any> of the options, without master and states
---@field check fun(group: table, check: fun(holds: boolean, what: string, value: any)) of a group's options
---@field check_parameter (fun(p: torch.Tensor, what: string))? raises where the optimizer cannot update it
---@field moments fun(group: table): string[] names of the tensors that are kept for each parameter
---@field own_state (fun(p: torch.Tensor, policy: optim.Policy): table<string, torch.Tensor>)? what is kept besides, in
---any shape: bucket.states has it, and `update` writes it
---@field to_saved (fun(state: table<string, torch.Tensor>, p: torch.Tensor): table<string, torch.Tensor>)? what a state
---holds in place of these tensors
---@field from_saved (fun(state: table<string, torch.Tensor>, saved: table<string, torch.Tensor>))? takes that
---@field note (fun(optimizer: optim.Optimizer))? is called once
---@field before_step (fun(optimizer: optim.Optimizer))? raises where a step is a mistake
---@field forget (fun(optimizer: optim.Optimizer))? lets the parameters be the result, as other weights are loaded
---@field averaged (fun(optimizer: optim.Optimizer, fn: function, ...: any): any ...)? see optimizer:averaged
---@field is_collective boolean? whether all ranks must call `update` equally often
---@field takes_all_dtypes (fun(p: torch.Tensor): boolean)? whether `update` takes p, its master, gradient and moments
---in their own dtypes, rounds, and counts the step. Otherwise they are copied to one dtype
---@field takes_grad_scale boolean? whether `update` multiplies gradients by grad_scale as it reads them
---@field update fun(bucket: optim.Bucket, group: table, lr: number|torch.Tensor, grad_scale: torch.Tensor?)

--- Updates parameters by their gradients. Made by optim.AdamW and the others of this module.
---@class optim.Optimizer
---@field groups table[] each with params, lr and the other options; scripts may change the options between steps. A
---graph (lockstep.graph) then records again, which takes time: give `step` a factor for what changes often
---@field state table<torch.Tensor, table<string, torch.Tensor>> of each parameter
---@field num_steps integer? calls of step so far
---@field last_factor number? of the last call, if that was a number
local Optimizer = {}
Optimizer.__index = Optimizer

--- Raises an error where a script sets an option in the optimizer, which reads those of its groups.
function Optimizer:__newindex(key, value)
  plain.check(self.kind.defaults[key] == nil, "%s: %s is an option of each group, and would change nothing here; write "
    .. "optimizer.groups[1].%s = ..., or give optimizer:step a factor of the lr", self.kind.name, key, key)
  rawset(self, key, value)
end

--- Raises unless `params` is an array, of parameters perhaps.
---@param name string of the caller
---@param params any
local function check_array(name, params)
  if type(params) ~= "table" then core.raise(name .. ": params must be an array, not a " .. type(params)) end
  local ok, method = pcall(function() return params.parameters end)
  if ok and type(method) == "function" then
    core.raise(name .. ": params is a module; pass model:parameters()")
  end
end

--- Returns a function that raises an error in the optimizer's name unless something holds.
local function checker(kind)
  return function(holds, what, value)
    if not holds then core.raise(string.format("%s: %s, not %s", kind.name, what, tostring(value))) end
  end
end

local function check_options(kind, o)
  local check = checker(kind)
  for _, name in ipairs { "lr", "weight_decay" } do
    check(o[name] >= 0, name .. " must be a number of at least 0", o[name])
  end
  kind.check(o, check)
  return o
end

local PRECISION = { master = "float32", states = torch.float32 }

local function with_precision(defaults, more) return plain.copy(plain.copy(PRECISION, defaults), more) end

local function read_group(kind, given, defaults)
  local check = checker(kind)
  local group = check_options(kind, options.read(kind.name, given,
    with_precision(defaults, { params = options.required })))
  check(type(group.params) == "table", "a group's params must be an array", type(group.params))
  for i, p in ipairs(group.params) do
    check(torch.is_tensor(p), string.format("parameter %d must be a tensor", i), "a " .. type(p))
    check(p.is_leaf, string.format("parameter %d must be a tensor of its own", i), "the result of a computation")
    if kind.check_parameter then kind.check_parameter(p, string.format("%s: parameter %d", kind.name, i)) end
  end
  fully_shard.check_spans(kind.name, group.params)
  -- Scripts may change what stays in the group between steps. The policy holds for the optimizer's life.
  local policy = precision.policy(kind.name, group.master, group.states, group.params)
  group.master, group.states = nil, nil
  return group, policy
end

--- Makes an optimizer of a kind. `params` is an array of tensors, or of groups.
---@param kind OptimizerKind
---@param params torch.Tensor[]|table[]
---@param opts table?
---@return optim.Optimizer
local function new(kind, params, opts)
  check_array(kind.name, params)
  local defaults = check_options(kind, options.read(kind.name, opts, with_precision(kind.defaults, {})))
  if params.params then core.raise(kind.name .. ": groups come in an array: {{params = ...}, ...}") end
  local given = params
  if #params == 0 or torch.is_tensor(params[1]) then given = { { params = params } } end
  local self = setmetatable({ kind = kind, groups = {}, state = {}, policies = {}, last = {} }, Optimizer)
  local seen, count = {}, 0
  for i, one in ipairs(given) do
    local group, policy = read_group(kind, one, defaults)
    for _, p in ipairs(group.params) do
      if seen[p] then core.raise(kind.name .. ": a parameter appears twice; tied weights count once") end
      seen[p] = true
      count = count + 1
    end
    self.groups[i], self.policies[i] = group, policy
  end
  -- One of the two that optim.groups returns may be empty.
  checker(kind)(count > 0, "a group must have parameters", "an empty array")
  if kind.note then kind.note(self) end
  return self
end

--- Raises where the elements of a parameter do not fill their memory, which the fused kernels expect.
local function check_layout(self, p)
  if precision.same_layout(p, torch.empty_like(p:detach(), { device = "meta" })) then return end
  core.raise(string.format("%s: a parameter of shape %s is a slice of a larger tensor, which the fused "
    .. "kernel cannot update; make the parameter of x:clone()", self.kind.name, tostring(p.shape)))
end

local function state_of(self, p, moments, policy)
  local state = self.state[p]
  if not state then
    if torch.cuda.is_current_stream_capturing() then
      core_graph.refuse(string.format("%s: a parameter of shape %s has no state yet, and a graph that is being "
        .. "recorded would make a new one in each call; give lockstep.graph a larger warmup",
        self.kind.name, tostring(p.shape)))
    end
    check_layout(self, p)
    state = precision.new_state(p, policy)
    if self.kind.own_state then state = plain.copy(state, self.kind.own_state(p:detach(), policy)) end
    self.state[p] = state
  end
  for _, moment in ipairs(moments) do
    state[moment] = state[moment] or precision.new_moment(p, policy)
  end
  return state
end

--- Returns the buckets of the group's last step with the gradients of this one, or nil if these do not fit. To sort
--- parameters into new buckets takes longer than a small parameter's update.
---
--- self.last has, by group: its buckets, and for each of its parameters the bucket, the index in it, and the state. All
--- three are false for a parameter that had no gradient. `first` is the position of the group's first parameter.
local function last_buckets(self, group, first)
  local last = self.last[group]
  if not last or last.first ~= first or #last.bucket_of ~= #group.params then return nil end
  for _, bucket in ipairs(last.buckets) do
    if not self.kind.takes_all_dtypes(bucket.params[1]) then return nil end
  end
  for i, p in ipairs(group.params) do
    local bucket, n = last.bucket_of[i], last.index_of[i]
    if not bucket then
      if p.grad then return nil end
    elseif bucket.owners[n] ~= p or last.states[i] ~= self.state[p] or not bucket:take_gradient(n) then
      return nil
    end
  end
  return last.buckets
end

--- Returns the buckets of this step's parameters, which have a gradient. Runs what is full before.
local function new_buckets(self, group, policy, first, run)
  local last = { first = first, buckets = {}, bucket_of = {}, index_of = {}, states = {} }
  local by_key, order, is_reusable = {}, {}, true
  local moments = self.kind.moments(group)
  for i, p in ipairs(group.params) do
    last.bucket_of[i], last.index_of[i], last.states[i] = false, false, false
    if p.grad then
      local takes_all = self.kind.takes_all_dtypes ~= nil and self.kind.takes_all_dtypes(p)
        and precision.fits_one_pass(p, policy)
      local key = precision.bucket_key(p, policy, takes_all)
      local bucket = by_key[key]
      if not bucket then
        bucket = precision.bucket(moments, takes_all)
        by_key[key] = bucket
        order[#order + 1] = key
      end
      local state = state_of(self, p, moments, policy)
      bucket:add(p, state, policy, first + i - 1)
      last.bucket_of[i], last.index_of[i], last.states[i] = bucket, #bucket.params, state
      if bucket.copied > precision.MAX_COPIED and not self.kind.is_collective then
        run(bucket)
        by_key[key] = precision.bucket(moments, takes_all)
        is_reusable = false
      end
    end
  end
  for _, key in ipairs(order) do
    local bucket = by_key[key]
    if #bucket.params > 0 then table.insert(last.buckets, bucket) end
    is_reusable = is_reusable and bucket:is_reusable()
  end
  self.last[group] = is_reusable and last or nil
  return last.buckets
end

--- Updates the parameters of a group that have a gradient. `first` is the position of its first parameter.
local function update_group(self, group, policy, first, lr, grad_scale)
  local function run(bucket)
    bucket:run(function(b) self.kind.update(b, group, lr, grad_scale) end)
  end
  for _, bucket in ipairs(last_buckets(self, group, first) or new_buckets(self, group, policy, first, run)) do
    run(bucket)
  end
end

--- Returns the joint norm of the optimizer's gradients, and the number by which the update multiplies them. Multiplies
--- them itself, and returns no number, where the update cannot.
local function clip(self, max_norm)
  local params = {}
  for _, group in ipairs(self.groups) do
    for _, p in ipairs(group.params) do params[#params + 1] = p end
  end
  local sharded = fully_shard.model_of_all(params, "optimizer:step")
  if sharded then return sharded:clip_grad_norm(max_norm) end
  local grads = clipping.gradients("optimizer:step", params)
  local norm, scale = clipping.norm(params, grads, max_norm, 2)
  if self.kind.takes_grad_scale then return norm, scale end
  if scale then torch._foreach_mul_(grads, scale) end
  return norm
end

local function check_factor(factor)
  if type(factor) == "number" and torch.cuda.is_current_stream_capturing() then
    core_graph.refuse("optimizer:step: the factor is a number, and a graph is being recorded, which would keep it "
      .. "forever; give a tensor on the device, as an argument of the graph's function")
  end
  if factor ~= nil and type(factor) ~= "number" and not (torch.is_tensor(factor) and factor:numel() == 1) then
    core.raise("optimizer:step: the factor must be a number, as a schedule returns, or a tensor of one element, not "
      .. (torch.is_tensor(factor) and "one of shape " .. tostring(factor.shape)
        or type(factor) == "table" and "a table; options are the second argument" or "a " .. type(factor)))
  end
end

local STEP = { max_grad_norm = options.optional }

--- Updates every parameter that has a gradient.
---
---     local norm = optimizer:step(schedule(step), { max_grad_norm = 1.0 })
---
--- With `max_grad_norm` it scales the gradients first, so that their joint 2-norm is at most that number. It returns
--- the norm before, as optim.clip_grad_norm does. The norm is over all parameters of this optimizer. In
--- optim.AdamW gradients are multiplied as they are read. This saves a pass over memory, leaves p.grad as it was, and
--- does not round gradients of low precision again. The others, and all optimizers of a sharded model
--- (sharding.fully_shard) multiply p.grad first. For a sharded model the optimizer must have all of its trained
--- parameters, no others.
---@param factor (number|torch.Tensor)? multiplies each group's lr: what a schedule returns; default 1. A tensor of one
---element on the parameters' device in a graph (lockstep.graph), which would keep a number for ever
---@param opts {max_grad_norm: number?}?
---@return torch.Tensor? norm a scalar tensor, with max_grad_norm
function Optimizer:step(factor, opts)
  check_factor(factor)
  if self.kind.before_step then self.kind.before_step(self) end
  local max_norm = opts and options.read("optimizer:step", opts, STEP).max_grad_norm
  if max_norm ~= nil then clipping.check("optimizer:step: max_grad_norm", max_norm) end
  factor = factor or 1
  self.num_steps, self.last_factor = (self.num_steps or 0) + 1, type(factor) == "number" and factor or nil
  for _, group in ipairs(self.groups) do data_parallel.check_backward(group.params) end
  if not self.has_stepped then -- the module may have been sharded after the optimizer was made
    for _, group in ipairs(self.groups) do fully_shard.check_spans("optimizer:step", group.params) end
    self.has_stepped = true
  end
  if torch.cuda.is_current_stream_capturing() then options_seen.note(self) end
  return torch.no_grad(function()
    local norm, grad_scale
    if max_norm then norm, grad_scale = clip(self, max_norm) end
    local first = 1
    for i, group in ipairs(self.groups) do
      update_group(self, group, self.policies[i], first, factor * group.lr, grad_scale)
      first = first + #group.params
    end
    return norm
  end)
end

--- Forgets all gradients.
function Optimizer:zero_grad()
  for _, group in ipairs(self.groups) do
    for _, p in ipairs(group.params) do p.grad = nil end
  end
end

--- Everything that resuming needs, in the order of the parameters. Shares memory with the optimizer. A parameter that
--- is frozen, and was never trained, has an empty state.
---@return {states: table[]}
function Optimizer:state_dict()
  local states = {}
  for i, group in ipairs(self.groups) do
    local moments = self.kind.moments(group)
    for _, p in ipairs(group.params) do
      local is_idle = not p.requires_grad and not self.state[p]
      local state = is_idle and {} or state_of(self, p, moments, self.policies[i])
      states[#states + 1] = self.kind.to_saved and not is_idle and self.kind.to_saved(state, p:detach()) or state
    end
  end
  return { states = states }
end

--- Takes values that were copied into the tensors of state_dict, where these are not the optimizer's own. Private to
--- the library.
---@param saved {states: table[]}
function Optimizer:absorb(saved)
  if not self.kind.from_saved then return end
  local index = 0
  torch.no_grad(function()
    for _, group in ipairs(self.groups) do
      for _, p in ipairs(group.params) do
        index = index + 1
        if next(saved.states[index]) then self.kind.from_saved(self.state[p], saved.states[index]) end
      end
    end
  end)
end

--- Calls fn(...) while the parameters hold what the optimizer would have others use, and gives them their values back.
--- optim.ScheduleFreeAdamW has an average of the weights; for all others these are the parameters as they are.
---
---     optimizer:averaged(function() torch.save(...) end)
---@param fn function
---@param ... any
---@return any ...
function Optimizer:averaged(fn, ...)
  if self.kind.averaged then return self.kind.averaged(self, fn, ...) end
  return fn(...)
end

--- Copies in what state_dict returned for the same parameters in the same order.
---@param saved {states: table[]}
function Optimizer:load_state_dict(saved)
  local present = self:state_dict()
  local own = present.states
  plain.check(type(saved) == "table" and type(saved.states) == "table" and #saved.states == #own,
    "optimizer:load_state_dict: there are %d parameters, but the state holds %s", #own,
    type(saved) == "table" and type(saved.states) == "table" and #saved.states or "none")
  for i, state in ipairs(own) do
    plain.check(type(saved.states[i]) == "table", "optimizer:load_state_dict: the state of parameter %d must be a "
      .. "table of tensors, not a %s", i, type(saved.states[i]))
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
  self:absorb(present)
end

return { check_array = check_array, new = new }
