--- sharding.accumulate: the gradients of a step that consists of several micro-batches.

local plain = require "lockstep.plain"
local across = require "lockstep.sharding.across"
local agreement = require "lockstep.state.agreement"
local data_parallel = require "lockstep.sharding.data_parallel"
local disagreement = require "lockstep.sharding.disagreement"
local dist = require "lockstep.distributed"
local fully_shard = require "lockstep.sharding.fully_shard"
local grids = require "lockstep.sharding.grid"
local nn = require "lockstep.nn"
local nonfinite = require "lockstep.run.nonfinite"
local options = require "lockstep.options"
local terminal = require "lockstep.log.terminal"
local torch = require "lockstep.torch"
local trained = require "lockstep.sharding.loops.trained"

local NAME = "sharding.accumulate"

local check, fail = plain.checks(NAME .. ": ")

local function describe(value)
  if torch.is_tensor(value) then return "a tensor of shape " .. tostring(value.shape) end
  return plain.shown(value, "number")
end

local function check_arguments(model, micro_batches, count, fn)
  if not (data_parallel.is_one(model) or fully_shard.is_one(model) or across.is_one(model)) then
    fail("expected what sharding.data_parallel, fully_shard or parallelize returned, not %s", nn.is_module(model)
      and "the module itself; write local model = sharding.data_parallel(net), on one rank too, and call model, not net"
      or describe(model))
  end
  check(type(micro_batches) == "table", "expected this rank's list of micro-batches, got %s", describe(micro_batches))
  check(count ~= 0, "the count is 0: no token of this step has a loss; does any sample have an assistant's "
    .. "message, and does seq_len leave some of it?")
  check(type(count) == "number" and count > 0 and count < math.huge,
    "the count must be a number above 0, as report.loss_tokens of batching, not %s", describe(count))
  check(type(fn) == "function", "expected a function that returns a micro-batch's sum of losses, not %s", describe(fn))
end

--- Raises unless all ranks have the same options and count, and equally many micro-batches, at least one. `parts`: a
--- model whose ranks hold parts or copies of the same parameters, so that all must train the same ones; with stages,
--- those of one stage. Collective.
local function compare(num_micro_batches, count, o, group, parts)
  if dist.world_size() > 1 then
    local own, texts, options_of = torch.tensor({ num_micro_batches, count, o.sync == "each" and 1 or 0,
      o.on_nan == "skip" and 1 or 0, o.whole and 1 or 0, trained.outline(parts) }, { dtype = torch.float64 }), {}, {}
    local outlines = {}
    for i, row in ipairs(dist.all_gather(own, { group = group })) do
      local theirs, their_count, syncs_each, skips, is_whole = unpack(row:totable())
      outlines[i] = { unpack(row:totable(), 6) }
      texts[i] = ("%.17g micro-batches and a count of %.17g"):format(theirs, their_count)
      options_of[i] = ('sync = "%s", on_nan = "%s"%s'):format(syncs_each == 1 and "each" or "last",
        skips == 1 and "skip" or "error", is_whole == 1 and ", whole = true" or "")
    end
    local differing = disagreement.find(options_of, group and group:ranks())
    if differing then fail("the ranks give different options: %s", differing) end
    local found = disagreement.find(texts, group and group:ranks())
    check(not found,
      "every rank needs equally many micro-batches and the same count, that of all ranks, as report.loss_tokens of "
      .. "batching; got %s", found)
    if trained.differ(outlines) then trained.fail(NAME, parts, group) end
  end
  check(num_micro_batches ~= 0, "expected this rank's list of micro-batches, got an empty table")
end

--- The counts that fn returned for the micro-batches of this rank.
local Counts = {}
Counts.__index = Counts

--- Adds the count of a micro-batch; nil where fn returned none.
---@param count any
function Counts:add(count)
  self.micro_batches = self.micro_batches + 1
  if count == nil then return end
  if torch.is_tensor(count) and count:numel() == 1 then count = count:item() end
  check(type(count) == "number", "result 2 of the function must be the count of what it summed, a number, not %s",
    describe(count))
  self.given, self.sum, self.last = self.given + 1, self.sum + count, count
end

--- Raises on every rank if a loss of one is NaN or infinite, or if the ranks' counts do not add up to the divisor. No
--- count is checked if no rank's fn returns counts. Collective, on the CPU.
---@param divisor number
---@param group dist.Group?
---@param bad integer the first micro-batch of this rank with such a loss, or 0
---@param times integer ranks that each return the results of one micro-batch
function Counts:compare(divisor, group, bad, times)
  local own = torch.tensor({ dist.rank(), self.micro_batches, self.given, self.sum, bad }, { dtype = torch.float64 })
  local ranks = torch.stack(dist.all_gather(own, { group = group }))
  local _, micro_batches, given, sum, any_bad = unpack(ranks:sum(0):totable())
  -- In a dry run the other ranks are copies of this one.
  if ranks:size(0) > 1 and ranks[{ 0, 0 }]:item() == ranks[{ 1, 0 }]:item() then return end
  if any_bad > 0 then
    local found = {}
    for _, one in ipairs(ranks:totable()) do
      if one[5] > 0 then found[#found + 1] = ("micro-batch %d on rank %d"):format(one[5], one[1]) end
    end
    fail('the loss of %s is NaN or infinite; the step\'s gradients are dropped. on_nan = "skip" leaves such a '
      .. "micro-batch out", table.concat(found, ", of "))
  end
  if given == 0 then return end
  check(given == micro_batches, "the function returned a count for %d of the %d micro-batches of all ranks; return "
    .. "one for each, or for none", given, micro_batches)
  sum = sum / times
  -- Counts may be sums of weights. Those of tokens are exact.
  check(math.abs(sum - divisor) <= 1e-6 * divisor, "the divisor is %.17g, but the function summed the losses of %.17g "
    .. "over all micro-batches and ranks (its second result); the loss and its gradient would be %.4g times too %s. "
    .. "Give report.loss_tokens of batching, or the sum of the counts over all ranks", divisor, sum,
    sum > divisor and sum / divisor or divisor / sum, sum > divisor and "large" or "small")
end

--- Starts to read a tensor of one element. Returns a function that returns it as a number, without waiting for what the
--- device is given in the meantime.
local function start_reading(value)
  if value.device == "cpu" then return function() return value:item() end end
  local copy, event = value:to("cpu", { non_blocking = true }), torch.cuda.Event()
  event:record()
  return function()
    event:synchronize()
    return copy:item()
  end
end

--- Returns the first loss that is not finite, or 0. `sum` is theirs, which is not finite either if one of them is not.
local function first_nonfinite(losses, sum)
  if nonfinite.is_finite(sum) then return 0 end
  for i, loss in ipairs(losses) do
    if not nonfinite.is_finite(loss:item()) then return i end
  end
  return 0 -- each is, and their sum is too large
end

--- The micro-steps that every rank leaves out, because the loss of one of their micro-batches is not finite.
local Skipped = {}
Skipped.__index = Skipped

--- Returns whether every rank's loss of a micro-step is finite, and notes the micro-step if one's is not. Collective.
---@param micro_step integer
---@param loss torch.Tensor
---@param count number of this rank's micro-batch
---@param group dist.Group?
---@return boolean
function Skipped:check(micro_step, loss, count, group)
  local own = torch.tensor({ dist.rank(), loss:item(), count }, { dtype = torch.float64 })
  local names, tokens = {}, 0
  for _, theirs in ipairs(dist.all_gather(own, { group = group })) do
    local rank, value, rank_count = unpack(theirs:totable())
    tokens = tokens + rank_count
    if not nonfinite.is_finite(value) then
      names[#names + 1] = ("%s on rank %d"):format(nonfinite.describe { loss = value }, rank)
    end
  end
  if #names == 0 then return true end
  self.steps, self.tokens = self.steps + 1, self.tokens + tokens
  self.lines[self.steps] = ("micro-batch %d: %s"):format(micro_step, table.concat(names, ", "))
  return false
end

--- Returns copies of the gradients that a model has.
local function gradients_of(model)
  local copies = {}
  for _, p in ipairs(model:parameters()) do copies[p] = p.grad and p.grad:clone() end
  return copies
end

--- Scales a model's gradients, but for what they held before.
---@param before table<torch.Tensor, torch.Tensor>
local function scale_gradients(model, factor, before)
  torch.no_grad(function()
    for _, p in ipairs(model:parameters()) do
      if before[p] then
        p.grad:sub_(before[p]):mul_(factor):add_(before[p])
      elseif p.grad then
        p.grad:mul_(factor)
      end
    end
  end)
end

--- Returns a sum as a tensor on the loss's device, in float64.
local function as_double(value, index, device)
  if type(value) == "number" then return torch.tensor(value, { dtype = torch.float64, device = device }) end
  check(torch.is_tensor(value) and value:numel() == 1,
    "result %d of the function must be a number or a tensor of one element, not %s", index, describe(value))
  return value:detach():double():reshape {}
end

local function check_loss(loss)
  if torch.is_tensor(loss) and loss:numel() == 1 then return end
  fail("the function must return the sum of a micro-batch's losses, a tensor of one element, not %s", describe(loss))
end

--- Returns how many ranks compute each micro-batch's loss as a whole: with the option `whole` those of cp.
local function times_of(model, o)
  local grid = grids.of(model)
  return o.whole and grid and grid.cp or 1
end

local function new_counts() return setmetatable({ micro_batches = 0, given = 0, sum = 0 }, Counts) end

--- The same for a model whose parts are on different ranks: see across.lua. Losses are on the ranks of its last part.
local function over_stages(model, micro_batches, count, fn, o)
  check(o.on_nan == "error", 'on_nan = "skip" is not for %s: the ranks with the loss know it after others have gone '
    .. "on; leave on_nan out", model.what)
  compare(#micro_batches, count, o, nil, model)
  local totals, losses, counts, num_sums, device = {}, {}, new_counts(), 1, dist.device()
  local times = times_of(model, o)
  local function take(i, is_last, loss, own_count, ...)
    num_sums = 1 + select("#", ...)
    check_loss(loss)
    if not is_last then return end
    check(loss.requires_grad, "the loss of micro-batch %d does not require a gradient: it is detached, or the function "
      .. "ran without gradients (torch.no_grad)", i)
    losses[#losses + 1], device = loss:detach(), loss.device
    if model.is_counted then counts:add(own_count) end
    for k, sum in ipairs { loss, ... } do
      sum = as_double(sum, k == 1 and 1 or k + 1, loss.device)
      totals[k] = totals[k] and totals[k] + sum or sum
    end
  end
  local ok, message = pcall(function()
    model:learn(micro_batches, count * times, fn, take)
    counts:compare(count, nil, totals[1] and first_nonfinite(losses, totals[1]:item()) or 0, times)
  end)
  if not ok then
    model:zero_grad()
    error(message, 0)
  end
  for k = 1, num_sums do
    totals[k] = model.is_counted and totals[k] or torch.zeros({}, { dtype = torch.float64, device = device })
  end
  return unpack(torch.unbind(dist.all_reduce(torch.stack(totals), "sum") / (count * times)))
end

---@class sharding.AccumulateOptions
---@field sync "last"|"each"? "last" unless given
---@field on_nan "error"|"skip"? "error" unless given
---@field whole boolean? fn's results are of the whole micro-batch also where cp cuts it: false unless given

--- Runs forward and backward for each micro-batch of a step: fn must return the sum of its losses, never their mean.
--- Returns the mean loss over all ranks. The gradients are those of this mean.
---
---     local loss = sharding.accumulate(model, micro_batches, report.loss_tokens, function(micro_batch)
---       return model(micro_batch, "loss") -- the sum, and the count of tokens
---     end)
---
--- fn returns the sum of a micro-batch's losses, and how many it summed, as sharding.evaluate's does. The mean is the
--- sum over micro-batches and ranks divided by `count`, the number of loss tokens (or samples) over all ranks. If fn's
--- counts do not add up to it, the mean and its gradient would be wrong by a factor: every rank gets an error. Without
--- a count (nil) nothing is compared: a loss that is a mean then trains at a smaller learning rate, without an error.
---
--- Further results of fn are sums, too, without gradients: their means are returned after the loss. The means are in
--- float64, and the same on every rank.
---
--- sync = "last" averages gradients over ranks in the backward of the last micro-batch. With sharding.fully_shard this
--- takes the memory of the whole model's gradients on each rank. "each" averages in every backward instead: more
--- communication, less memory. A model with pp always averages once, at the end.
---
--- With pp (sharding.parallelize) fn runs on the rank of every stage. On stages before the last one, model(micro_batch,
--- "loss") returns 0 and 0, and fn's results are not used.
---
--- A loss that is NaN or infinite is an error on every rank, which names the rank and the micro-batch. With on_nan =
--- "skip", all ranks leave out their micro-batches of that index: their backward does not run. The means and the
--- gradients are those of the rest. The last result is the number of micro-batches that each rank left out; it may be
--- 0. If none is left, every rank gets an error. fn must return counts. Each micro-batch waits for its loss and for the
--- other ranks. If the last micro-batch is left out and sync is "last", fn is called once more with an earlier one: its
--- backward, with weight 0, averages the gradients. Gradients from before the call must be averaged already; they are
--- copied, which takes their memory.
---
--- With cp model(micro_batch, "loss") is the loss of this rank's chunk. Log-probabilities and scores are those of the
--- whole micro-batch on every rank of cp. A loss that fn computes from them counts once with whole = true.
---
--- An error of fn, or of the comparison, drops the gradients of all parameters of the model.
---
--- Collective: every rank of the model's group calls this with equally many micro-batches and the same count, else
--- every rank gets an error before any of them is learnt from.
---@param model sharding.DataParallel|sharding.FullyShard|sharding.Pipeline
---@param micro_batches any[] of this rank
---@param count number over all ranks
---@param fn fun(micro_batch: any): torch.Tensor, number?, ... the sum of losses, a tensor of one element; their count;
---further sums
---@param opts sharding.AccumulateOptions?
---@return torch.Tensor mean loss, a float64 scalar on the loss's device
---@return torch.Tensor|integer ... means of further sums; with on_nan = "skip" then the number left out
local function accumulate(model, micro_batches, count, fn, opts)
  local o = options.read(NAME, opts, { sync = "last", on_nan = "error", whole = false })
  check_arguments(model, micro_batches, count, fn)
  check(o.sync == "last" or o.sync == "each", 'sync must be "last" or "each", not "%s"', o.sync)
  check(o.on_nan == "error" or o.on_nan == "skip", 'on_nan must be "error" or "skip", not "%s"', o.on_nan)
  if across.is_one(model) then return over_stages(model, micro_batches, count, fn, o) end
  local group = data_parallel.group_of(model) or fully_shard.group_of(model)
  local grid = grids.of(model)
  local together = group -- the ranks that communicate in each micro-batch
  if grid then together = grid.ranks_of_all end
  compare(#micro_batches, count, o, together, grid and grid.tp > 1 and model or nil)
  -- The wrappers average gradients over ranks. The gradient of the mean is the number of ranks times that.
  local times = times_of(model, o)
  local scale = (group and group:size() or dist.world_size()) / (count * times)
  local totals, losses, counts = {}, {}, new_counts()
  local skipped = o.on_nan == "skip" and setmetatable({ steps = 0, tokens = 0, lines = {} }, Skipped)
  local before = skipped and gradients_of(model)
  local last_learnt, read_sum

  local function add(i, loss, own_count, ...)
    check_loss(loss)
    counts:add(own_count)
    if skipped then
      check(own_count ~= nil, 'on_nan = "skip" needs the count of each micro-batch, the second result of the function')
      if not skipped:check(i, loss:detach(), counts.last, group) then return end
    end
    check(loss.requires_grad, "the loss of micro-batch %d does not require a gradient: it is detached, the function "
      .. "ran without gradients (torch.no_grad), or no parameter that it depends on is trained", i)
    local sums = { loss, ... }
    check(#totals == 0 or #sums == #totals,
      "the function returned %d sums for this micro-batch, and %d for the one before", #sums, #totals)
    for k, sum in ipairs(sums) do
      sum = as_double(sum, k == 1 and 1 or k + 1, loss.device)
      totals[k] = totals[k] and totals[k] + sum or sum
    end
    losses[#losses + 1], last_learnt = loss:detach(), i
    if i == #micro_batches then read_sum = start_reading(totals[1]) end
    torch.mul(loss, scale):backward()
  end
  local function learn(i) add(i, fn(micro_batches[i])) end

  --- Averages the gradients where the micro-batch that should have done so was left out.
  local function average()
    collectgarbage() -- the graph of that forward pass
    local loss = fn(micro_batches[last_learnt])
    torch.mul(loss, 0):backward()
  end

  local function learn_all()
    for i = 1, #micro_batches do
      if o.sync == "last" and i < #micro_batches then
        model:no_sync(learn, i)
      else
        learn(i)
      end
    end
    counts:compare(count, group, read_sum and not skipped and first_nonfinite(losses, read_sum()) or 0, times)
    if not skipped or skipped.steps == 0 then return end
    local lines = table.concat(skipped.lines, "; ")
    check(last_learnt, "no micro-batch of this step has a finite loss on every rank: %s", lines)
    skipped.tokens = skipped.tokens / times
    check(count > skipped.tokens, "the micro-batches that remain have no token with a loss: %s", lines)
    if o.sync == "last" and last_learnt < #micro_batches then average() end
    scale_gradients(model, count / (count - skipped.tokens), before)
    if dist.rank() == (together and together:ranks()[1] or 0) then
      terminal.print_line(("%s: left out %d of %d %s of each rank: %s"):format(NAME, skipped.steps,
        #micro_batches, #micro_batches == 1 and "micro-batch" or "micro-batches", lines))
    end
  end
  local ok, message = pcall(learn_all)
  if not ok then
    model:zero_grad() -- the gradients of this step, also those that no_sync holds
    error(message, 0)
  end
  local sums = dist.all_reduce(torch.stack(totals), "sum", { group = group })
  if not skipped then return unpack(torch.unbind(sums / (count * times))) end
  local means = torch.unbind(sums / ((count - skipped.tokens) * times))
  means[#means + 1] = skipped.steps
  return unpack(means)
end

return agreement.counted(accumulate)
