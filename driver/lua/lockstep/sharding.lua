--- Ranks that stay together: the library `sharding` for scripts.

local core = require "lockstep.core"
local core_sharding = require "lockstep.core.sharding"
local dist = require "lockstep.distributed"
local nn = require "lockstep.nn"
local options = require "lockstep.options"
local torch = require "lockstep.torch"

local M = {}

local function is_callable(value)
  return type(value) == "function" or (getmetatable(value) or {}).__call ~= nil
end

-- lockstep ------------------------------------------------------------------------------------------

---@class sharding.Lockstep
---@field steps integer steps taken so far
---@field filled integer of these, with a filler on this rank
---@field dropped integer batches of this rank that no step took; reading it reads what is left
---@operator call: any, boolean
local Lockstep = {}

function Lockstep:__call() return self.loop:next() end

function Lockstep:__index(key)
  if key == "steps" or key == "filled" or key == "dropped" then return self.loop[key](self.loop) end
  return Lockstep[key]
end

--- Ends the loop on every rank, after the batch that is agreed on already. Use it in place of `break`,
--- which would leave the other ranks waiting.
function Lockstep:stop() self.loop:stop() end

--- Iterates so that every rank leaves the loop at the same step.
---
---     local it = sharding.lockstep(loader, { policy = "until_last" })
---     for batch, real in it do ... end       -- give fillers (not real) no weight
---
--- "until_first" stops when any rank runs out; "until_last" when all have: a rank that ran out gets
--- filler(last_batch), or its last batch again, with `real` false. An error in one rank's iterator ends the
--- loop on every rank with that error. The iterator is read one batch ahead.
---
--- Collective: every rank of `group` calls this, and runs the loop.
---@param iterator fun(): any returns the next batch, or nil when there is none
---@param opts {policy: "until_first"|"until_last"?, group: dist.Group?, filler: (fun(last: any?): any)?}?
---@return sharding.Lockstep
function M.lockstep(iterator, opts)
  if not is_callable(iterator) then
    core.raise("sharding.lockstep: the iterator must be a function that returns the next batch, not a " .. type(iterator))
  end
  local o = options.read("sharding.lockstep", opts,
    { policy = "until_first", group = options.optional, filler = options.optional })
  return setmetatable({ loop = core_sharding.lockstep(iterator, o) }, Lockstep)
end

-- data_parallel -------------------------------------------------------------------------------------

--- Collects the tensors of nested tables, or puts `replacements` in their place.
local function each_tensor(value, visit)
  if torch.is_tensor(value) then return visit(value) end
  if type(value) == "table" and getmetatable(value) == nil then
    local copy = {}
    for k, v in pairs(value) do copy[k] = each_tensor(v, visit) end
    return copy
  end
  return value
end

---@class sharding.DataParallel
---@field module nn.Module
---@operator call: any
local DataParallel = {}
DataParallel.__index = DataParallel

--- The module's forward pass. The backward that follows averages gradients over the ranks.
function DataParallel:forward(...)
  self.replicas:before_forward()
  local count = 0
  local function finish(...)
    count = select("#", ...)
    local results = { ... }
    if not self.needs_outputs then
      self.replicas:after_forward({})
      return results
    end
    local outputs = {}
    for i = 1, count do
      each_tensor(results[i], function(t)
        if t.requires_grad then outputs[#outputs + 1] = t end
        return t
      end)
    end
    outputs = self.replicas:after_forward(outputs)
    local next_output = 0
    for i = 1, count do
      results[i] = each_tensor(results[i], function(t)
        if not t.requires_grad then return t end
        next_output = next_output + 1
        return outputs[next_output]
      end)
    end
    return results
  end
  local results = finish(self.module(...))
  return unpack(results, 1, count)
end

DataParallel.__call = DataParallel.forward

--- Calls fn(...) without averaging: the gradients of backward passes inside add up on each rank, and are
--- averaged by the next one outside. Every rank alike.
---@param fn function
---@param ... any
---@return any ...
function DataParallel:no_sync(fn, ...) return self.replicas:no_sync(fn, ...) end

--- The module's own.
for _, name in ipairs { "parameters", "named_parameters", "named_buffers", "named_modules", "num_parameters", "state_dict",
  "load_state_dict", "zero_grad" } do
  DataParallel[name] = function(self, ...) return self.module[name](self.module, ...) end
end

---@param training boolean? default true
function DataParallel:train(training)
  self.module:train(training)
  return self
end

function DataParallel:eval() return self:train(false) end

function DataParallel:__tostring() return "data_parallel(" .. tostring(self.module) .. ")" end

--- Replicates the module over the ranks of `group` through c10d's Reducer, the engine of PyTorch's
--- DistributedDataParallel: parameters and buffers become rank 0's, gradients are averaged while backward
--- runs. Freeze parameters and move the module to its device before.
---
--- bucket_mb: gradients are reduced in groups of this size. find_unused: parameters may take no part in a
--- forward pass. static_graph: every iteration uses the same parameters equally often; allows parameters used
--- several times in one.
---
--- Collective: every rank of `group` calls this with the same module, and takes equally many forward passes.
---@param module nn.Module
---@param opts {bucket_mb: number?, find_unused: boolean?, static_graph: boolean?, group: dist.Group?}?
---@return sharding.DataParallel
function M.data_parallel(module, opts)
  if not nn.is_module(module) then core.raise("sharding.data_parallel: expected a module, not a " .. type(module)) end
  local o = options.read("sharding.data_parallel", opts,
    { bucket_mb = 25, find_unused = false, static_graph = false, group = options.optional })
  local parameters, buffers = {}, {}
  for name, p in module:named_parameters() do parameters[#parameters + 1] = { name, p } end
  for name, b in module:named_buffers() do buffers[#buffers + 1] = { name, b } end
  return setmetatable({
    module = module,
    replicas = core_sharding.data_parallel(parameters, buffers, o),
    needs_outputs = o.find_unused or o.static_graph,
  }, DataParallel)
end

-- Means ---------------------------------------------------------------------------------------------

--- The sum over all ranks divided by the count over all ranks: never a mean of means. Summed in float64.
--- Collective.
---@generic T: number|torch.Tensor
---@param sum T
---@param count T how many things `sum` is the sum of, on this rank; 0 is fine where another has some
---@param opts {group: dist.Group?}?
---@return T
function M.weighted_mean(sum, count, opts)
  local o = options.read("sharding.weighted_mean", opts, { group = options.optional })
  local is_tensor = torch.is_tensor(sum)
  if is_tensor ~= torch.is_tensor(count) or not (is_tensor or type(sum) == "number" and type(count) == "number") then
    core.raise("sharding.weighted_mean: sum and count must both be numbers, or both tensors")
  end
  if not is_tensor then sum, count = torch.tensor(sum, { dtype = torch.float64 }), torch.tensor(count, { dtype = torch.float64 }) end
  local both = torch.stack({ sum:detach():double(), count:detach():double() })
  dist.all_reduce(both, "sum", { group = o.group })
  if both[1]:eq(0):any():item() then core.raise("sharding.weighted_mean: the count over all ranks is 0") end
  local mean = both[0] / both[1]
  return is_tensor and mean:to(sum.dtype) or mean:item()
end

return M
