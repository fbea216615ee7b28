--- optim.GradScaler: training in float16, whose small gradients would be 0.

local core = require "lockstep.core"
local dist = require "lockstep.distributed"
local options = require "lockstep.options"
local plain = require "lockstep.plain"
local terminal = require "lockstep.log.terminal"
local torch = require "lockstep.torch"

local M = {}

--- A scale below this one helps no gradient: the model itself computes inf or NaN.
local LEAST_SCALE = 2 ^ -14
--- A larger scale is infinite in float32.
local LARGEST_SCALE = 2 ^ 127

--- Multiplies the loss by a number, so that float16 holds small gradients, and divides the gradients by it again. A
--- step whose gradients are inf or NaN is skipped on all ranks, and the scale becomes smaller.
---@class optim.GradScaler
---@field skipped integer steps so far that were skipped
local GradScaler = {}
GradScaler.__index = GradScaler

---@class optim.GradScalerOptions
---@field init_scale number? default 65536
---@field growth_factor number? default 2
---@field backoff_factor number? default 0.5
---@field growth_interval integer? default 2000: steps without inf or NaN before the scale grows
---@field enabled boolean? default true; false: scale, unscale_ and update do nothing, step is optimizer:step
---@field group dist.Group? of the ranks that skip together; default: all

--- Constructor: optim.GradScaler{init_scale = 65536}. For torch.autocast in float16 over float32 parameters; bfloat16
--- needs none. Methods, defaults and numbers are those of PyTorch's GradScaler.
---
---     local scaler = optim.GradScaler()
---     for step, batch in run:steps(loader) do
---       local loss = torch.autocast({ dtype = torch.float16 }, model_loss, model, batch)
---       scaler:scale(loss):backward()
---       scaler:unscale_(optimizer)                -- only if gradients are clipped or looked at
---       local norm = optim.clip_grad_norm(model:parameters(), 1.0)
---       local is_done = scaler:step(optimizer, schedule(step))
---       scaler:update()
---       optimizer:zero_grad()
---       log.step { loss = loss, grad_norm = is_done and norm or nil, scale = scaler:get_scale() }
---     end
---
--- Register it by run:state { scaler = scaler }.
---@param opts optim.GradScalerOptions?
---@return optim.GradScaler
function M.GradScaler(opts)
  local o = options.read("optim.GradScaler", opts, { init_scale = 2 ^ 16, growth_factor = 2, backoff_factor = 0.5,
    growth_interval = 2000, enabled = true, group = options.optional })
  local function check(holds, what, value)
    if not holds then core.raise(string.format("optim.GradScaler: %s, not %s", what, tostring(value))) end
  end
  check(o.init_scale >= LEAST_SCALE and o.init_scale <= LARGEST_SCALE,
    "init_scale must be a number from 2^-14 to 2^127", o.init_scale)
  check(o.growth_factor > 1 and o.growth_factor < math.huge, "growth_factor must be a number above 1", o.growth_factor)
  check(o.backoff_factor > 0 and o.backoff_factor < 1, "backoff_factor must be a number between 0 and 1",
    o.backoff_factor)
  check(o.growth_interval >= 1 and o.growth_interval % 1 == 0,
    "growth_interval must be a whole number of at least 1", o.growth_interval)
  return setmetatable({
    options = o, scale_now = o.init_scale, growth_tracker = 0, skipped = 0,
    checked = {}, -- of each optimizer since the last update: whether its gradients are finite, on all ranks
    stepped = {},
  }, GradScaler)
end

--- Returns the loss times the scale, in float32 or wider. Call backward() of it.
---@param loss torch.Tensor
---@return torch.Tensor
function GradScaler:scale(loss)
  plain.check(torch.is_tensor(loss), "optim.GradScaler:scale: the loss must be a tensor, not a %s", type(loss))
  if not self.options.enabled then return loss end
  local is_low = loss.dtype == torch.float16 or loss.dtype == torch.bfloat16
  return (is_low and loss:float() or loss) * self.scale_now
end

local function check_optimizer(name, optimizer)
  if type(optimizer) == "table" and type(optimizer.groups) == "table" then return end
  core.raise(string.format("optim.GradScaler:%s: expected an optimizer, not a %s", name, type(optimizer)))
end

--- The gradients of an optimizer by device and dtype.
local function gradients_of(optimizer)
  local lists = {}
  for _, group in ipairs(optimizer.groups) do
    for i, p in ipairs(group.params) do
      local grad = p.grad
      if grad and grad.dtype == torch.float16 then
        core.raise(string.format("optim.GradScaler:unscale_: the gradient of parameter %d is float16, where dividing "
          .. "by the scale gives 0; keep the parameters in float32 and compute in torch.autocast({ dtype = "
          .. "torch.float16 }, fn, ...)", i))
      end
      if grad then
        local key = grad.device .. tostring(grad.dtype)
        lists[key] = lists[key] or {}
        table.insert(lists[key], grad)
      end
    end
  end
  return lists
end

--- Divides the optimizer's gradients by the scale, in place, and notes whether all are finite on every rank. step does
--- it where this was not called. Collective.
---@param optimizer optim.Optimizer
function GradScaler:unscale_(optimizer)
  check_optimizer("unscale_", optimizer)
  if not self.options.enabled then return end
  plain.check(self.checked[optimizer] == nil, "optim.GradScaler:unscale_: this optimizer's gradients were divided by "
    .. "the scale already; call unscale_ once between two calls of update")
  torch.no_grad(function()
    local found = torch.zeros({ 1 }, { device = dist.device(), dtype = torch.float32 })
    for _, grads in pairs(gradients_of(optimizer)) do
      local device = grads[1].device
      local bad = torch.zeros({ 1 }, { device = device, dtype = torch.float32 })
      local inverse = torch.full({ 1 }, 1 / self.scale_now, { device = device, dtype = torch.float32 })
      torch._amp_foreach_non_finite_check_and_unscale_(grads, bad, inverse)
      found = torch.maximum(found, bad:to { device = found.device })
    end
    if dist.world_size() > 1 then dist.all_reduce(found, "max", { group = self.options.group }) end
    self.checked[optimizer] = found:item() == 0
  end)
end

--- Calls optimizer:step(factor, opts), unless a gradient is inf or NaN on some rank. Collective.
---@param optimizer optim.Optimizer
---@param factor (number|torch.Tensor)? see optimizer:step
---@param opts {max_grad_norm: number?}? see optimizer:step; the norm is that of the unscaled gradients
---@return boolean is_done false where the step was skipped, alike on all ranks
---@return torch.Tensor? norm what optimizer:step returned
function GradScaler:step(optimizer, factor, opts)
  check_optimizer("step", optimizer)
  if not self.options.enabled then return true, optimizer:step(factor, opts) end
  if self.stepped[optimizer] then
    core.raise("optim.GradScaler:step: this optimizer has made its step; call update before the next one")
  end
  if self.checked[optimizer] == nil then self:unscale_(optimizer) end
  self.stepped[optimizer] = true
  if not self.checked[optimizer] then return false end
  return true, optimizer:step(factor, opts)
end

local function report_skipped(self, before)
  self.skipped = self.skipped + 1
  if self.scale_now < LEAST_SCALE then
    core.raise(string.format("optim.GradScaler:update: gradients are inf or NaN at a scale of %g, after %d skipped "
      .. "steps; the model itself computes inf or NaN, also without the scale", before, self.skipped))
  end
  if dist.rank() == 0 then
    terminal.print_line(string.format("optim.GradScaler: a step was skipped, whose gradients are inf or NaN at a scale "
      .. "of %g; the scale is %g now (skipped %d)", before, self.scale_now, self.skipped))
  end
end

--- Chooses the scale of the next step. Call it once per step, after the steps of all optimizers.
function GradScaler:update()
  if not self.options.enabled then return end
  local is_finite
  for _, is_good in pairs(self.checked) do is_finite = is_good and is_finite ~= false end
  plain.check(is_finite ~= nil,
    "optim.GradScaler:update: no gradients were checked since the last update; call scaler:step(optimizer) before")
  self.checked, self.stepped = {}, {}
  if not is_finite then
    local before = self.scale_now
    self.scale_now, self.growth_tracker = before * self.options.backoff_factor, 0
    report_skipped(self, before)
    return
  end
  self.growth_tracker = self.growth_tracker + 1
  if self.growth_tracker < self.options.growth_interval then return end
  self.growth_tracker = 0
  local larger = self.scale_now * self.options.growth_factor
  if larger <= LARGEST_SCALE then self.scale_now = larger end
end

--- The number that the next loss is multiplied by.
---@return number
function GradScaler:get_scale() return self.options.enabled and self.scale_now or 1 end

--- Returns what resuming needs.
---@return {scale: number, growth_tracker: integer, skipped: integer}
function GradScaler:state_dict()
  return { scale = self.scale_now, growth_tracker = self.growth_tracker, skipped = self.skipped }
end

--- Takes what state_dict returned.
---@param state {scale: number, growth_tracker: integer, skipped: integer}
function GradScaler:load_state_dict(state)
  plain.check(type(state) == "table",
    "optim.GradScaler:load_state_dict: the state must be a table, not a %s", type(state))
  for _, name in ipairs { "scale", "growth_tracker", "skipped" } do
    plain.check(type(state[name]) == "number",
      "optim.GradScaler:load_state_dict: %s must be a number, not %s", name, state[name])
  end
  self.scale_now, self.growth_tracker, self.skipped = state.scale, state.growth_tracker, state.skipped
end

return M
