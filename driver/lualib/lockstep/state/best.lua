--- Compares a run's metric with its best value so far, for run:keep_best. Every state holds the record, so a resumed
--- run decides as if it had never stopped.

local plain = require "lockstep.plain"
local agreement = require "lockstep.state.agreement"
local contents = require "lockstep.state.contents"
local core = require "lockstep.core"
local core_state = require "lockstep.core.state"
local torch = require "lockstep.torch"

local M = {}

local VALUE = "run.best"

---@class state.Best
---@field metric string
---@field value number
---@field mode "min"|"max"
---@field step integer steps that were done

local record ---@type state.Best?
local metric, mode_before ---@type string?, string? what this process keeps the best by

--- Forgets the record, or goes on from one that was saved.
---@param saved state.Best?
function M.begin(saved) record, metric = saved, nil end

--- Goes back to the record before M.improves.
---@param before state.Best?
function M.take_back(before) record = before end

--- Returns the record.
---@return state.Best?
function M.record() return record end

--- Returns the record as a value of a state; nothing without one.
---@return table<string, {bytes: string, tensors: torch.Tensor[]}>
function M.values()
  if not record then return {} end
  return { [VALUE] = { bytes = core_state.encode(record, "run:save"), tensors = {} } }
end

--- Returns the record among the values of a state that was read, or nil.
---@param values table<string, {value: any}>
---@return state.Best?
function M.read(values) return values[VALUE] and values[VALUE].value end

--- Returns the record among the tensors of a state that was read.
---@param tensors table<string, torch.Tensor>
---@return state.Best
function M.of_tensors(tensors) return contents.take_value(tensors, VALUE) end

--- Returns the best's mode. A metric whose name ends in "loss" is best at its lowest.
local function mode_of(name, mode)
  if mode == nil and name:find "loss$" then return "min" end
  if mode == "min" or mode == "max" then return mode end
  core.raise(('run:keep_best: is the highest "%s" the best, or the lowest? write run:keep_best("%s", value, { mode = '
    .. '"max" }) or { mode = "min" }%s'):format(name, name, mode == nil and "" or ", not " .. tostring(mode)))
end

--- Raises an error on every rank unless all ranks pass the same. Collective.
local function check_same(now)
  local own = { metric = now.metric, mode = now.mode, step = tostring(now.step), value = ("%.17g"):format(now.value) }
  agreement.begin("run:keep_best")
  local field, first, other, rank = agreement.difference(own)
  plain.check(not field,
    "run:keep_best: ranks do not agree: the %s is %s on rank 0, and %s on rank %d; give every rank the same, a value "
    .. "of all ranks from sharding.evaluate or sharding.weighted_mean", field == "value" and now.metric or field, first,
    other, rank)
end

--- Returns whether a value is better than all before it, and then takes it as the record. Collective.
---@param name string
---@param value number|torch.Tensor
---@param mode "min"|"max"|nil
---@param step integer steps that are done
---@return boolean
function M.improves(name, value, mode, step)
  plain.check(type(name) == "string" and name ~= "",
    "run:keep_best: the first argument is the metric's name, as in run:keep_best(\"loss\", loss)")
  if torch.is_tensor(value) and value:numel() == 1 then value = value:item() end
  if type(value) ~= "number" then
    core.raise(("run:keep_best: %s must be a number or a tensor of one element, not %s"):format(name,
      torch.is_tensor(value) and "one of shape " .. tostring(value.shape) or "a " .. type(value)))
  end
  local now = { metric = name, value = value, mode = mode_of(name, mode), step = step }
  check_same(now)
  if metric and metric ~= name then
    core.raise(('run:keep_best: this run keeps the best "%s", and a run keeps one; it was called with "%s"'):format(
      metric, name))
  end
  if metric and mode_before ~= now.mode then
    core.raise(('run:keep_best: the best "%s" was that of mode "%s" before, and of mode "%s" now; give every call the '
      .. "same"):format(name, mode_before, now.mode))
  end
  metric, mode_before = name, now.mode
  local is_finite = value - value == 0
  local before = record and record.metric == name and record.mode == now.mode and record.value
  local is_better = not before or now.mode == "min" and value < before or now.mode == "max" and value > before
  if is_finite and is_better then record = now end
  return is_finite and is_better
end

return M
