--- sharding.evaluate: the mean over held-out data that is split over the ranks.

local across = require "lockstep.sharding.across"
local agreement = require "lockstep.state.agreement"
local core = require "lockstep.core"
local core_sharding = require "lockstep.core.sharding"
local data_parallel = require "lockstep.sharding.data_parallel"
local dist = require "lockstep.distributed"
local fully_shard = require "lockstep.sharding.fully_shard"
local grids = require "lockstep.sharding.grid"
local means = require "lockstep.sharding.loops.means"
local nn = require "lockstep.nn"
local options = require "lockstep.options"
local out_of_training = require "lockstep.sharding.loops.out_of_training"
local plain = require "lockstep.plain"
local sending = require "lockstep.sharding.sending"
local splits = require "lockstep.nn.splits"
local terminal = require "lockstep.log.terminal"
local torch = require "lockstep.torch"

local NAME = "sharding.evaluate"
local rank_at = sending.rank_at

--- Stands for the batch of a rank that has none, and whose model needs none.
local NONE = {}

--- Returns whether the ranks communicate inside a forward pass of the model.
local function is_sharded(model)
  if fully_shard.is_one(model) or across.is_one(model) or splits.has_parts(model:parameters()) then return true end
  for _, module in model:named_modules() do
    if fully_shard.is_sharded(module) then return true end
  end
  return false
end

--- Returns an iterator that yields the same as `batches`, and a filler for a rank that has run out: its last batch, or
--- another rank's where it never had one. Collective.
local function with_fillers(batches, sharded, group)
  local ok, first = pcall(batches)
  local is_first = true
  local function next_batch()
    if not is_first then return batches() end
    local value = first
    is_first, first = false, nil
    if not ok then error(value, 0) end
    return value
  end
  local states, without, source = dist.all_gather_object(not ok and "error" or first == nil and "none" or "batch",
    { group = group }), {}, nil
  for i, state in ipairs(states) do
    if state == "error" then return next_batch end -- which the loop raises on every rank
    if state == "batch" then source = source or i else without[#without + 1] = tostring(rank_at(group, i)) end
  end
  if #without == 0 or not source then return next_batch end
  local borrowed, problem = sending.send(NAME, first, source, group)
  if problem and sharded then
    core.raise(("%s: ranks {%s} have no batch; the model is sharded, so each rank needs one, and rank %d's cannot be "
      .. "sent: %s; give `filler`"):format(NAME, table.concat(without, ", "), rank_at(group, source), problem))
  end
  return next_batch, function(last)
    if last ~= nil then return last end
    if problem then return NONE end
    return borrowed
  end
end

--- Adds up a value over batches, on the device of the newest one.
local Total = {}
Total.__index = Total

local function new_total(name)
  return setmetatable({ name = name, value = torch.zeros({}, { dtype = torch.float64 }) }, Total)
end

--- Returns a value of fn in float64.
---@param value any
---@return torch.Tensor
function Total:read(value)
  if type(value) == "number" then
    plain.check(self.name ~= "count" or not (value < 0),
      "sharding.evaluate: the count of a batch must be at least 0, not %s", tostring(value))
    value = torch.tensor(value, { dtype = torch.float64 })
  end
  plain.check(torch.is_tensor(value),
    "sharding.evaluate: the function must return a batch's sum and count; its %s is a %s", self.name, type(value))
  plain.check(not value:is_complex(), "sharding.evaluate: the %s of a batch is %s; it must be real", self.name,
    tostring(value.dtype))
  value = value:double()
  local is_one = value:numel() == 1 and self.value:numel() == 1
  if self.has_begun and not is_one and tostring(value.shape) ~= tostring(self.value.shape) then
    core.raise(("sharding.evaluate: the %s of this batch has shape %s, and that of the batches before %s"):format(
      self.name, tostring(value.shape), tostring(self.value.shape)))
  end
  if not self.has_begun then self.value = torch.zeros_like(value) end
  self.has_begun = true
  return value
end

--- Adds what Total:read returned if `finite` holds.
---@param value torch.Tensor
---@param finite torch.Tensor without dimensions
function Total:add(value, finite)
  self.value = self.value:to(value.device) + torch.where(finite:to(value.device), value, torch.zeros_like(value))
end

--- Gives a rank on which fn was not called zeros like the sums of the others. Returns the number of batches of all
--- ranks that are excluded, the number of all, and the first excluded one of each rank in words. Collective.
---@param finite torch.Tensor[] of this rank's batches, without dimensions
local function agree(finite, sum, count, group)
  local own = { excluded = 0, total = #finite, shape = sum.has_begun and { unpack(sum.value.shape) } or false,
    is_on_cpu = sum.value.device == "cpu" }
  for i, holds in ipairs(#finite > 0 and torch.stack(finite):totable() or {}) do
    if not holds then own.excluded, own.first = own.excluded + 1, own.first or i end
  end
  local excluded, total, first = 0, 0, {}
  for i, theirs in ipairs(dist.all_gather_object(own, { group = group })) do
    excluded, total = excluded + theirs.excluded, total + theirs.total
    if theirs.first then first[#first + 1] = ("rank %d, batch %d"):format(rank_at(group, i), theirs.first) end
    if theirs.shape and not sum.has_begun then
      sum.value = torch.zeros(theirs.shape,
        { dtype = torch.float64, device = theirs.is_on_cpu and "cpu" or dist.device() })
    end
  end
  if count.value:numel() == 1 then count.value = count.value:reshape {} end
  count.value = count.value:to(sum.value.device):expand_as(sum.value)
  return excluded, total, table.concat(first, "; ")
end

--- Returns the mean of fn over held-out data that is split over the ranks. The mean is the sum over all batches of all
--- ranks divided by the count over them.
---
---     local loss = sharding.evaluate(model, my_batches(), function(batch) return model(batch, "loss") end)
---
--- fn returns a batch's sum and its count, as numbers or tensors. It runs without gradients, and with the model's
--- modules out of training mode. The parts may differ in length: a rank that has no batch left repeats its last one
--- without weight, so that all ranks call a sharded model equally often. A rank that never had one takes a copy of
--- another rank's first batch. `filler` makes another batch in place of both (see sharding.lockstep). A batch that
--- cannot be copied, because it holds a function, say, is an error if the model is sharded. Otherwise fn is not called
--- on a rank without a batch.
---
--- A batch whose sum or count is NaN or infinite is left out. The second result is the number of such batches on all
--- ranks. The group's first rank prints a line that names the first one of each rank. If the count over all ranks is
--- 0, because no batch is left or no token has a loss, every rank gets an error.
---
--- Collective: every rank of `group` calls this.
---@generic T
---@param model nn.Module|sharding.DataParallel|sharding.FullyShard|sharding.Pipeline
---@param batches fun(): T? returns the next batch of this rank, or nil when there is none
---@param fn fun(batch: T): number|torch.Tensor, number|torch.Tensor
---@param opts {filler: (fun(last: T?): T)?, group: dist.Group?}?
---@return number|torch.Tensor # a number where fn's sum has one element, else a tensor in float64
---@return integer # batches of all ranks that were left out, the same on every rank
local function evaluate(model, batches, fn, opts)
  local o = options.read(NAME, opts, { filler = options.optional, group = options.optional })
  local is_across = across.is_one(model)
  plain.check(nn.is_module(model) or data_parallel.is_one(model) or fully_shard.is_one(model) or is_across,
    "sharding.evaluate: the model must be a module, or what sharding.data_parallel or sharding.fully_shard returned, "
      .. "not %s", torch.is_tensor(model) and "a tensor" or "a " .. type(model))
  plain.check(plain.is_callable(batches),
    "sharding.evaluate: the iterator must be a function that returns the next batch, not a %s", type(batches))
  plain.check(type(fn) == "function",
    "sharding.evaluate: expected a function that returns a batch's sum and count, not a %s", type(fn))
  local grid = grids.of(model)
  if grid and not o.group and not is_across then o.group = grid:group "dp_cp" end
  local sum, count, finite = new_total "sum", new_total "count", {}
  local function take(batch, real)
    if batch == NONE then return end
    local batch_sum, batch_count
    if is_across then batch_sum, batch_count = model:measure(batch, fn) else batch_sum, batch_count = fn(batch) end
    batch_sum, batch_count = sum:read(batch_sum), count:read(batch_count)
    if batch_count:numel() ~= 1 and not pcall(batch_count.expand_as, batch_count, batch_sum) then
      core.raise(("%s: the count of this batch has shape %s, and its sum %s; give one count, or one for each element "
        .. "of the sum"):format(NAME, tostring(batch_count.shape), tostring(batch_sum.shape)))
    end
    if not real then return end
    local holds = batch_sum:isfinite():all():logical_and(batch_count:isfinite():all():to(batch_sum.device))
    finite[#finite + 1] = holds
    sum:add(batch_sum, holds)
    count:add(batch_count, holds)
  end
  out_of_training(model, function()
    local next_batch, filler = batches, o.filler
    if not filler then next_batch, filler = with_fillers(batches, is_sharded(model), o.group) end
    local loop = core_sharding.lockstep(next_batch, { policy = "until_last", filler = filler, group = o.group })
    for batch, real in function() return loop:next() end do take(batch, real) end
  end)
  local excluded, total, first = agree(finite, sum, count, o.group)
  if excluded > 0 and dist.rank() == (grid and (grid.first or 0) or rank_at(o.group, 1)) then
    terminal.print_line(("%s: left out %d of %d batches, whose sum or count is NaN or infinite; the first of each "
      .. "rank: %s"):format(NAME, excluded, total, first))
  end
  -- A dry run is of the first stage alone, and the last stage has the sums and counts.
  if is_across and excluded == 0 and package.loaded["lockstep.dry_run"] and count.value:eq(0):all():item() then
    return 0, 0
  end
  local mean = means.over_ranks(sum.value, count.value, o.group, excluded > 0
    and ("%s: the count over all ranks is 0: of %d batches %d have a sum or count that is NaN or infinite (%s)"):format(
      NAME, total, excluded, first)
    or NAME .. ": the count over all ranks is 0; is there a held-out batch, and has it a token with a loss?")
  return mean:numel() == 1 and mean:item() or mean, excluded
end

return agreement.counted(evaluate)
