--- Ranks that stay together: the library `sharding` for scripts.

local agreement = require "lockstep.state.agreement"
local core = require "lockstep.core"
local core_sharding = require "lockstep.core.sharding"
local disagreement = require "lockstep.sharding.disagreement"
local dist = require "lockstep.distributed"
local options = require "lockstep.options"
local plain = require "lockstep.plain"
local torch = require "lockstep.torch"

local M = {
  accumulate = require "lockstep.sharding.accumulate",
  context_parallel = require("lockstep.sharding.context_parallel").context_parallel,
  data_parallel = require("lockstep.sharding.data_parallel").data_parallel,
  dataset = require "lockstep.sharding.dataset",
  fully_shard = require("lockstep.sharding.fully_shard").fully_shard,
  pack = require "lockstep.sharding.pack",
  tensor_parallel = require("lockstep.sharding.tensor_parallel").tensor_parallel,
}

--- Returns sharding.data_parallel(net, opts.data_parallel) or sharding.fully_shard(net, opts.fully_shard), as `kind`
--- says: for scripts that leave the choice to the command line. Collective: every rank of the options' group gives the
--- same kind.
---
---     local model = sharding.parallel(net, config.parallel, { data_parallel = { find_unused = true } })
---@param net nn.Module
---@param kind string "data_parallel" or "fully_shard"
---@param opts {data_parallel: sharding.DataParallelOptions?, fully_shard: sharding.FullyShardOptions?}?
---@return sharding.DataParallel|sharding.FullyShard
function M.parallel(net, kind, opts)
  local o = options.read("sharding.parallel", opts, { data_parallel = {}, fully_shard = {} })
  local found = disagreement.gather(tostring(kind), (o[kind] or {}).group)
  if found then core.raise("sharding.parallel: every rank must give the same kind, got " .. found) end
  plain.check(kind == "data_parallel" or kind == "fully_shard",
    'sharding.parallel: expected "data_parallel" or "fully_shard", not "%s"', kind)
  return M[kind](net, o[kind])
end

-- lockstep ------------------------------------------------------------------------------------------

---@class sharding.Lockstep
---@field steps integer steps taken so far
---@field filled integer of these, with a filler on this rank
---@field dropped number batches of this rank that no step took. Reading it reads what is left of the iterator;
---    math.huge where that is more than 10,000 batches.
---@field reads_ahead boolean
---@operator call: any, boolean
local Lockstep = {}

function Lockstep:__call() return self.loop:next() end

function Lockstep:__index(key)
  if key == "steps" or key == "filled" then return self.loop[key](self.loop) end
  if key == "dropped" then return self.loop:dropped() or math.huge end
  return Lockstep[key]
end

--- Ends the loop on every rank, after the batch that is agreed on already. Use it instead of `break`, which would leave
--- the other ranks waiting.
function Lockstep:stop() self.loop:stop() end

---@class sharding.LockstepOptions
---@field policy "until_first"|"until_last"?
---@field group dist.Group?
---@field filler (fun(last: any?): any)?
---@field read_ahead 0|1? 1 unless given

--- Iterates so that every rank leaves the loop at the same step.
---
---     local it = sharding.lockstep(loader, { policy = "until_last" })
---     for batch, real in it do ... end       -- give fillers (not real) no weight
---
--- "until_first" stops when any rank runs out of batches, "until_last" when all have. A rank that ran out gets
--- filler(last_batch), or its last batch again, with `real` false. An error in one rank's iterator ends the loop on
--- every rank with that error. The iterator is read one batch ahead, so that ranks agree while they train. Use
--- `read_ahead = 0` for an iterator that depends on the present step: each batch is then read when it is needed.
---
--- Collective: every rank of `group` calls this, and runs the loop.
---@param iterator fun(): any returns the next batch, or nil when there is none
---@param opts sharding.LockstepOptions?
---@return sharding.Lockstep
function M.lockstep(iterator, opts)
  plain.check(plain.is_callable(iterator),
    "sharding.lockstep: the iterator must be a function that returns the next batch, not a %s", type(iterator))
  local o = options.read("sharding.lockstep", opts,
    { policy = "until_first", group = options.optional, filler = options.optional, read_ahead = 1 })
  return setmetatable({ loop = core_sharding.lockstep(iterator, o), reads_ahead = o.read_ahead ~= 0 }, Lockstep)
end

-- guard ---------------------------------------------------------------------------------------------

--- Returns a value as text, equal for equal content: tables by sorted keys, tensors by dtype and shape.
local function fingerprint_of(value, inside)
  local kind = type(value)
  if kind == "string" then return string.format("%q", value) end
  if kind == "number" then return string.format("%.17g", value) end
  if kind == "boolean" or kind == "nil" then return tostring(value) end
  if torch.is_tensor(value) then return tostring(value.dtype) .. " " .. tostring(value.shape) end
  if kind ~= "table" then core.raise("guard:check: a fingerprint cannot hold a " .. kind) end
  if inside[value] then core.raise("guard:check: the fingerprint is a table that contains itself") end
  inside[value] = true
  local parts, keys = {}, {}
  for i, element in ipairs(value) do parts[i] = fingerprint_of(element, inside) end
  for key in pairs(value) do
    if not (type(key) == "number" and key >= 1 and key <= #parts and key % 1 == 0) then keys[#keys + 1] = key end
  end
  table.sort(keys, function(a, b) return tostring(a) < tostring(b) end)
  for _, key in ipairs(keys) do
    parts[#parts + 1] = tostring(key) .. " = " .. fingerprint_of(value[key], inside)
  end
  inside[value] = nil
  return "{" .. table.concat(parts, ", ") .. "}"
end

---@class sharding.Guard
local Guard = {}
Guard.__index = Guard

--- Raises an error, the same on every rank, unless all ranks give the same label and fingerprint. The error shows each
--- rank's value and script line. If ranks do not come within timeout_s, the others get an error with these ranks and
--- the last check that each passed.
---
---     guard:check("step " .. step, { kind = batch.kind, samples = batch.samples, input_ids = batch.input_ids })
---
--- Collective. Tensors are compared by dtype and shape; `x:totable()` compares their elements.
---@param label string which check this is
---@param fingerprint any strings, numbers, booleans, tensors, and tables of them
function Guard:check(label, fingerprint)
  self.guard:check(label, type(fingerprint) == "string" and fingerprint or fingerprint_of(fingerprint, {}))
end

--- Makes a guard, which names the rank that disagrees or stays away. It uses its own CPU group, so its checks may come
--- anywhere between other collectives, and no device waits for them.
---
--- Collective: every rank of `group` makes its guards in the same order.
---@param opts {group: dist.Group?, timeout_s: number?}? timeout_s: 30 unless given
---@return sharding.Guard
function M.guard(opts)
  local o = options.read("sharding.guard", opts, { group = options.optional, timeout_s = 30 })
  return setmetatable({ guard = core_sharding.guard(o) }, Guard)
end

-- Means ---------------------------------------------------------------------------------------------

local function mean_of(sum, count, group, empty)
  local both = torch.stack({ sum:detach():double(), count:detach():double() })
  dist.all_reduce(both, "sum", { group = group })
  if both[1]:eq(0):any():item() then core.raise(empty) end
  return both[0] / both[1]
end

-- Returns sum and count as tensors of one shape, on one device.
local function as_tensors(sum, count)
  local device = torch.is_tensor(sum) and sum.device or torch.is_tensor(count) and count.device or "cpu"
  local function to_tensor(value)
    return torch.is_tensor(value) and value:detach():to(device)
      or torch.tensor(value, { dtype = torch.float64, device = device })
  end
  local tensors = { to_tensor(sum), to_tensor(count) }
  local is_ok, same = pcall(torch.broadcast_tensors, tensors)
  plain.check(is_ok, "sharding.weighted_mean: sum has shape %s and count %s; count must have one element, or as many "
    .. "as sum", tensors[1].shape, tensors[2].shape)
  return same[1], same[2]
end

--- Returns the sum over all ranks divided by the count over all ranks, never a mean of means. Sums in float64. The mean
--- is a number, or a tensor if one of the two is one. It has the dtype of `sum`, and float32 where that holds integers.
---
---     local accuracy = sharding.weighted_mean(predicted:eq(labels):sum(), labels:numel())
---
--- Collective. The mean carries no gradient.
---@generic T: number|torch.Tensor
---@param sum T
---@param count number|torch.Tensor of how many things `sum` is the sum, on this rank; 0 is fine where another has some
---@param opts {group: dist.Group?}?
---@return T
function M.weighted_mean(sum, count, opts)
  local o = options.read("sharding.weighted_mean", opts, { group = options.optional })
  for i, value in ipairs { sum or false, count or false } do
    if type(value) ~= "number" and not torch.is_tensor(value) then
      core.raise(("sharding.weighted_mean: %s must be a number or a tensor, not %s"):format(i == 1 and "sum" or "count",
        value and "a " .. type(value) or "nil"))
    end
  end
  local sums, counts = as_tensors(sum, count)
  local mean = mean_of(sums, counts, o.group, "sharding.weighted_mean: the count over all ranks is 0")
  if not torch.is_tensor(sum) and not torch.is_tensor(count) then return mean:item() end
  local like = torch.is_tensor(sum) and sum or count
  return mean:to(like:is_floating_point() and like.dtype or torch.float32)
end

-- Evaluation ----------------------------------------------------------------------------------------

--- Returns the mean of fn over held-out data that is split over the ranks. The mean is the sum over all batches of all
--- ranks divided by the count over them.
---
---     local loss = sharding.evaluate(model, my_batches(), function(batch) return model(batch, "loss") end)
---
--- fn returns a batch's sum and its count, as numbers or tensors. It runs without gradients, and with the model's
--- modules out of training mode. The parts may differ in length: a rank that has no batch left repeats its last one
--- without weight, so that all ranks call a sharded model equally often. `filler` makes another batch in its place; it
--- is needed where a rank may have no batch at all (see sharding.lockstep).
---
--- Collective: every rank of `group` calls this.
---@generic T
---@param model nn.Module|sharding.DataParallel|sharding.FullyShard
---@param batches fun(): T? returns the next batch of this rank, or nil when there is none
---@param fn fun(batch: T): number|torch.Tensor, number|torch.Tensor
---@param opts {filler: (fun(last: T?): T)?, group: dist.Group?}?
---@return number|torch.Tensor # a number where fn's sum has one element, else a tensor in float64
function M.evaluate(model, batches, fn, opts)
  local o = options.read("sharding.evaluate", opts, { filler = options.optional, group = options.optional })
  plain.check(type(fn) == "function",
    "sharding.evaluate: expected a function that returns a batch's sum and count, not a %s", type(fn))
  local modes = {} -- parents first: train() also reaches the modules inside
  for _, module in model:named_modules() do modes[#modes + 1] = { module, module.training } end
  model:eval()
  local sum, count = torch.zeros({}, { dtype = torch.float64 }), torch.zeros({}, { dtype = torch.float64 })
  local has_begun = false
  local function add(total, value, real, which)
    if type(value) == "number" then value = torch.tensor(value, { dtype = torch.float64 }) end
    plain.check(torch.is_tensor(value),
      "sharding.evaluate: the function must return a batch's sum and count; its %s is a %s", which, type(value))
    value = value:double()
    if has_begun and value:numel() ~= total:numel() then
      core.raise(("sharding.evaluate: the %s of this batch has shape %s, and that of the batches before %s"):format(
        which, tostring(value.shape), tostring(total.shape)))
    end
    return total:to(value.device) + (real and value or torch.zeros_like(value))
  end
  local ok, message = pcall(torch.no_grad, function()
    local loop = M.lockstep(batches, { policy = "until_last", filler = o.filler, group = o.group })
    for batch, real in loop do
      local batch_sum, batch_count = fn(batch)
      sum, count = add(sum, batch_sum, real, "sum"), add(count, batch_count, real, "count")
      has_begun = true
    end
  end)
  for _, mode in ipairs(modes) do mode[1]:train(mode[2]) end
  if not ok then error(message, 0) end
  local mean = mean_of(sum, count:to(sum.device):expand_as(sum), o.group, "sharding.evaluate: the count over all ranks "
    .. "is 0; is there a held-out batch, and has it a token with a loss?")
  return mean:numel() == 1 and mean:item() or mean
end

for _, name in ipairs { "parallel", "weighted_mean", "evaluate" } do M[name] = agreement.counted(M[name]) end

return M
