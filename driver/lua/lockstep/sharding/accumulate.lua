--- sharding.accumulate: the gradients of a step that consists of several micro-batches.

local agreement = require "lockstep.state.agreement"
local core = require "lockstep.core"
local data_parallel = require "lockstep.sharding.data_parallel"
local disagreement = require "lockstep.sharding.disagreement"
local dist = require "lockstep.distributed"
local fully_shard = require "lockstep.sharding.fully_shard"
local options = require "lockstep.options"
local torch = require "lockstep.torch"

local NAME = "sharding.accumulate"

local function fail(message, ...) core.raise(NAME .. ": " .. message:format(...)) end
local function check(holds, message, ...) if not holds then fail(message, ...) end end

local function describe(value)
  if torch.is_tensor(value) then return "a tensor of shape " .. tostring(value.shape) end
  return type(value) == "number" and tostring(value) or "a " .. type(value)
end

local function check_arguments(model, micro_batches, count, fn)
  if not (data_parallel.is_one(model) or fully_shard.is_one(model)) then
    fail("expected what sharding.data_parallel or sharding.fully_shard returned, not %s", describe(model))
  end
  if type(micro_batches) ~= "table" then
    fail("expected this rank's list of micro-batches, got %s", describe(micro_batches))
  end
  check(count ~= 0, "the count is 0: no token of this step has a loss; does any sample have an assistant's "
    .. "message, and does seq_len leave some of it?")
  if type(count) ~= "number" or not (count > 0 and count < math.huge) then
    fail("the count must be a number above 0, as report.loss_tokens of batching, not %s", describe(count))
  end
  if type(fn) ~= "function" then
    fail("expected a function that returns a micro-batch's sum of losses, not %s", describe(fn))
  end
end

--- Raises unless all ranks have equally many micro-batches, at least one, and the same count. Collective.
local function compare(num_micro_batches, count, group)
  if dist.world_size() > 1 then
    local own, texts = torch.tensor({ num_micro_batches, count }, { dtype = torch.float64 }), {}
    for i, pair in ipairs(dist.all_gather(own, { group = group })) do
      texts[i] = ("%.17g micro-batches and a count of %.17g"):format(unpack(pair:totable()))
    end
    local found = disagreement.find(texts, group and group:ranks())
    if found then
      fail("every rank needs equally many micro-batches and the same count, that of all ranks, as report.loss_tokens "
        .. "of batching; got %s", found)
    end
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
  if type(count) ~= "number" then
    fail("result 2 of the function must be the count of what it summed, a number, not %s", describe(count))
  end
  self.given, self.sum = self.given + 1, self.sum + count
end

--- Raises on every rank if the ranks' counts do not add up to the divisor. Nothing is checked if no rank's fn returns
--- counts. Collective, on the CPU: no device waits.
---@param divisor number
---@param group dist.Group?
function Counts:compare(divisor, group)
  local own = torch.tensor({ dist.rank(), self.micro_batches, self.given, self.sum }, { dtype = torch.float64 })
  local ranks = torch.stack(dist.all_gather(own, { group = group }))
  local _, micro_batches, given, sum = unpack(ranks:sum(0):totable())
  -- In a dry run the other ranks are copies of this one.
  local is_mirrored = ranks:size(0) > 1 and ranks[{ 0, 0 }]:item() == ranks[{ 1, 0 }]:item()
  if given == 0 or is_mirrored then return end
  check(given == micro_batches, "the function returned a count for %d of the %d micro-batches of all ranks; return "
    .. "one for each, or for none", given, micro_batches)
  -- Counts may be sums of weights. Those of tokens are exact.
  check(math.abs(sum - divisor) <= 1e-6 * divisor, "the divisor is %.17g, but the function summed the losses of %.17g "
    .. "over all micro-batches and ranks (its second result); the loss and its gradient would be %.4g times too %s. "
    .. "Give report.loss_tokens of batching, or the sum of the counts over all ranks", divisor, sum,
    sum > divisor and sum / divisor or divisor / sum, sum > divisor and "large" or "small")
end

--- Returns a sum as a tensor on the loss's device, in float64.
local function as_double(value, index, device)
  if type(value) == "number" then return torch.tensor(value, { dtype = torch.float64, device = device }) end
  if not torch.is_tensor(value) or value:numel() ~= 1 then
    fail("result %d of the function must be a number or a tensor of one element, not %s", index, describe(value))
  end
  return value:detach():double():reshape {}
end

---@class sharding.AccumulateOptions
---@field sync "last"|"each"? "last" unless given

--- Runs forward and backward for each micro-batch of a step, and returns the mean loss over all ranks. The gradients
--- are those of this mean.
---
---     local loss = sharding.accumulate(model, micro_batches, report.loss_tokens, function(micro_batch)
---       return model(micro_batch, "loss") -- the sum, and the count of tokens
---     end)
---
--- fn returns the sum of a micro-batch's losses, and how many it summed, as sharding.evaluate's does. The mean is the
--- sum over micro-batches and ranks divided by `count`, the number of loss tokens (or samples) over all ranks. If fn's
--- counts do not add up to it, the mean and its gradient would be wrong by a factor: every rank gets an error. Without
--- a count (nil) nothing is compared.
---
--- Further results of fn are sums, too, without gradients: their means are returned after the loss. The means are in
--- float64, and the same on every rank.
---
--- sync = "last" averages gradients over ranks in the backward of the last micro-batch. With sharding.fully_shard this
--- takes the memory of the whole model's gradients on each rank. "each" averages in every backward instead: more
--- communication, less memory.
---
--- An error of fn, or of the comparison, drops the gradients of all parameters of the model.
---
--- Collective: every rank of the model's group calls this with equally many micro-batches and the same count, else
--- every rank gets an error before any of them is learnt from.
---@param model sharding.DataParallel|sharding.FullyShard
---@param micro_batches any[] of this rank
---@param count number over all ranks
---@param fn fun(micro_batch: any): torch.Tensor, number?, ... the sum of losses, a tensor of one element; their count;
---further sums
---@param opts sharding.AccumulateOptions?
---@return torch.Tensor mean loss
---@return torch.Tensor ... means of further sums
local function accumulate(model, micro_batches, count, fn, opts)
  local o = options.read(NAME, opts, { sync = "last" })
  check_arguments(model, micro_batches, count, fn)
  check(o.sync == "last" or o.sync == "each", 'sync must be "last" or "each", not "%s"', o.sync)
  local group = data_parallel.group_of(model) or fully_shard.group_of(model)
  compare(#micro_batches, count, group)
  -- The wrappers average gradients over ranks. The gradient of the mean is the number of ranks times that.
  local scale = (group and group:size() or dist.world_size()) / count
  local totals, counts = {}, setmetatable({ micro_batches = 0, given = 0, sum = 0 }, Counts)

  local function add(loss, own_count, ...)
    if not torch.is_tensor(loss) or loss:numel() ~= 1 then
      fail("the function must return the sum of a micro-batch's losses, a tensor of one element, not %s",
        describe(loss))
    end
    counts:add(own_count)
    local sums = { loss, ... }
    check(#totals == 0 or #sums == #totals,
      "the function returned %d sums for this micro-batch, and %d for the one before", #sums, #totals)
    for i, sum in ipairs(sums) do
      sum = as_double(sum, i == 1 and 1 or i + 1, loss.device)
      totals[i] = totals[i] and totals[i] + sum or sum
    end
    torch.mul(loss, scale):backward()
  end
  local function learn(micro_batch) add(fn(micro_batch)) end

  local function learn_all()
    for i, micro_batch in ipairs(micro_batches) do
      if o.sync == "last" and i < #micro_batches then
        model:no_sync(learn, micro_batch)
      else
        learn(micro_batch)
      end
    end
    counts:compare(count, group)
  end
  local ok, message = pcall(learn_all)
  if not ok then
    model:zero_grad() -- the gradients of this step, also those that no_sync holds
    error(message, 0)
  end
  local sums = dist.all_reduce(torch.stack(totals), "sum", { group = group })
  return unpack(torch.unbind(sums / count))
end

return agreement.counted(accumulate)
