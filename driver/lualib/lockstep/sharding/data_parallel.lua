--- sharding.data_parallel: replicas of a module that average their gradients.

local core = require "lockstep.core"
local core_sharding = require "lockstep.core.sharding"
local dist = require "lockstep.distributed"
local nn = require "lockstep.nn"
local options = require "lockstep.options"
local plain = require "lockstep.plain"
local splits = require "lockstep.nn.splits"
local torch = require "lockstep.torch"
local verification = require "lockstep.sharding.verification"

local M = {}

--- Returns the value with visit(x) in place of each tensor x, also in plain tables, which are copied.
---@param value any
---@param visit fun(x: torch.Tensor): torch.Tensor
---@return any
function M.each_tensor(value, visit)
  if torch.is_tensor(value) then return visit(value) end
  if type(value) ~= "table" or getmetatable(value) ~= nil then return value end
  local copy = {}
  for k, v in pairs(value) do copy[k] = M.each_tensor(v, visit) end
  return copy
end

--- The reason why no pass that needs a gradient may run now, or nil. In an order of several forwards before a backward,
--- mimo.step sets it. Modules on other ranks then get the error at once, not after the second backward.
---@type string?
M.refusal = nil

--- The replicas of each module, as long as they are alive.
local replicas_of = setmetatable({}, { __mode = "kv" })
--- Those of each parameter.
local replicas_with = setmetatable({}, { __mode = "kv" })
--- The buckets of modules that are not replicated yet.
local saved_buckets = setmetatable({}, { __mode = "k" })

--- The named tensors that an iterator yields, as the program takes them.
---@return table[] named {{name, tensor}, ...}
local function list(iterator, ...)
  local named = {}
  for name, tensor in iterator, ... do named[#named + 1] = { name, tensor } end
  return named
end

--- Notes the parameters that the replicas average now. M.check_backward finds the replicas by them.
local function note_parameters(replicas)
  replicas.num_trained = 0
  for _, p in ipairs(replicas.module:parameters()) do
    replicas_with[p] = replicas
    if p.requires_grad then replicas.num_trained = replicas.num_trained + 1 end
  end
end

--- Lets replicas group gradients as saved: now, or when as many parameters are trained as the groups have.
local function use_buckets(replicas, buckets)
  local num_saved = 0
  for _, bucket in ipairs(buckets) do num_saved = num_saved + #bucket end
  local fits = num_saved == replicas.num_trained
  replicas.saved_buckets = not fits and buckets or nil
  if fits then replicas.replicas:set_buckets(buckets) end
end

---@class sharding.DataParallel
---@field module nn.Module
---@field group dist.Group? over which gradients are averaged; nil: all ranks
---@field private has_run boolean? a forward pass has begun
---@field private num_trained integer parameters whose gradients are averaged
---@field private saved_buckets integer[][]? of a state in which other parameters were trained
---@field config table? of a model of lockstep.models
---@field loss (fun(self: sharding.DataParallel, batch: models.Batch): torch.Tensor, integer)? of such a model: its own
---@field hidden (fun(self: sharding.DataParallel, batch: models.Batch): torch.Tensor)? likewise
---@field log_probs (fun(self: sharding.DataParallel, batch: models.Batch, opts: table?): torch.Tensor)? likewise
---@operator call: any
local DataParallel = {}
DataParallel.__index = DataParallel

--- Says how --verify-every computes a pass: by the module itself, past the Reducer.
local function outline(replicas)
  local leaves = {}
  for name, p in replicas.module:named_parameters() do
    if p.requires_grad then leaves[#leaves + 1] = { name, p } end
  end
  return { group = replicas.group, leaves = leaves, pass = replicas.module,
    buffers = function() return replicas.module:named_buffers() end,
    gradients = function(pass)
      local outputs, sums, tensors = pass(), {}, {}
      for i, output in ipairs(outputs) do sums[i] = output:sum() end
      for i, leaf in ipairs(leaves) do tensors[i] = leaf[2] end
      return #sums > 0 and #tensors > 0 and torch.grad(sums, tensors, { allow_unused = true }) or {}
    end }
end

--- The module's forward pass. The backward that follows averages gradients over the ranks; a second one is an error.
---@param ... any
---@return any ...
function DataParallel:forward(...)
  if M.refusal and torch.is_grad_enabled() then core.raise(M.refusal) end
  self.has_run = true
  verification.before_pass(self, function() return outline(self) end, ...)
  if torch.is_grad_enabled() then
    -- Read in each pass: the module may have other tensors now, or train other ones.
    local buffers = self.broadcasts_buffers and list(self.module:named_buffers()) or {}
    if self.replicas:begin_pass(list(self.module:named_parameters()), buffers) then
      note_parameters(self)
      if self.saved_buckets then use_buckets(self, self.saved_buckets) end
    end
    self.replicas:before_forward(buffers)
  end
  local count = 0
  local function finish(...)
    count = select("#", ...)
    local results, outputs = { ... }, {}
    for i = 1, count do
      M.each_tensor(results[i], function(t)
        if t.requires_grad then outputs[#outputs + 1] = t end
        return t
      end)
    end
    outputs = self.replicas:after_forward(outputs)
    if not self.needs_outputs then return results end
    local next_output = 0
    for i = 1, count do
      results[i] = M.each_tensor(results[i], function(t)
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

--- Scales gradients so that the norm of all of them is at most `max_norm`. Returns the norm before. As
--- optim.clip_grad_norm of the parameters.
---@param max_norm number
---@param opts {p: number?}? the norm's exponent: 2 unless given, 1 or math.huge
---@return torch.Tensor
function DataParallel:clip_grad_norm(max_norm, opts)
  local o = options.read("clip_grad_norm", opts, { p = 2 })
  return require("lockstep.optim.clipping").clip("clip_grad_norm", self:parameters(), max_norm, o.p)
end

--- Calls fn(...): every rank has all values. For scripts that also shard (see sharding.fully_shard).
---@param fn function
---@param ... any
---@return any ...
function DataParallel:full(fn, ...) return fn(...) end -- luacheck: no self

--- Returns the groups in which gradients are averaged, by the names of the replicated modules below `object`, a module
--- or replicas of one: for run:save. Collective, between steps.
---@param object any
---@return table<string, integer[][]>
function M.buckets_below(object)
  local buckets = {}
  for name, module in object:named_modules() do
    local replicas = replicas_of[module]
    if replicas then buckets[name] = replicas.replicas:buckets() end
  end
  return buckets
end

--- Groups them as saved, so that the next step adds up in the same order: now, or when the module is replicated.
--- Collective, between steps.
---@param object any
---@param buckets table<string, integer[][]>
function M.set_buckets_below(object, buckets)
  for name, module in object:named_modules() do
    local replicas = replicas_of[module]
    if buckets[name] and #buckets[name] > 0 then
      if replicas then use_buckets(replicas, buckets[name]) else saved_buckets[module] = buckets[name] end
    end
  end
end

--- The module's own.
for _, name in ipairs { "parameters", "named_parameters", "named_buffers", "named_modules", "num_parameters",
  "state_dict", "load_state_dict", "zero_grad" } do
  DataParallel[name] = function(self, ...) return self.module[name](self.module, ...) end
end

---@param training boolean? default true
---@return sharding.DataParallel
function DataParallel:train(training)
  self.module:train(training)
  return self
end

--- Turns training mode off.
---@return sharding.DataParallel
function DataParallel:eval() return self:train(false) end

function DataParallel:__tostring() return "data_parallel(" .. tostring(self.module) .. ")" end

--- Says what to call in place of a method that the module has and its replicas have not: see help/suggestion.lua. In
--- loss(), for example, a forward pass would go past the Reducer, and its gradients would stay on each rank.
---@param name string
---@param written string the replicas' name in the script
---@return string?
function DataParallel:__missing(name, written)
  if type(self.module[name]) ~= "function" then return nil end
  return ('gradients are averaged only after a forward pass of the replicas: a model of lockstep.models is called as '
    .. '%s(batch, "%s"), another module\'s forward can call its "%s"; %s.module:%s(...) averages nothing'):format(
    written, name, name, written, name)
end

--- Returns whether this is what data_parallel returned.
---@param value any
---@return boolean
function M.is_one(value) return type(value) == "table" and getmetatable(value) == DataParallel end

--- Raises where the last backward of the replicas with these parameters left gradients unaveraged, because a parameter
--- had none, or because the replicas were never called. Optimizers call this before they use gradients.
---@param params torch.Tensor[]
function M.check_backward(params)
  local checked
  for _, p in ipairs(params) do
    local replicas = replicas_with[p]
    if replicas and replicas ~= checked then
      replicas.replicas:check_backward()
      local num_ranks = replicas.group and #replicas.group:ranks() or dist.world_size()
      if not replicas.has_run and p.grad ~= nil and num_ranks > 1 then
        core.raise("sharding.data_parallel: there are gradients, but the replicas were never called: a backward pass "
          .. "after a call of the module itself averages nothing. Call what sharding.data_parallel returned, as in "
          .. "replicas(x) in place of module(x)")
      end
      checked = replicas
    end
  end
end

--- Returns whether data_parallel was called with this module.
---@param module any
---@return boolean
function M.has_replicas(module) return replicas_of[module] ~= nil end

--- Returns whether all ranks of the run hold a replica of this module.
---@param module any
---@return boolean
function M.is_on_all_ranks(module)
  local replicas = replicas_of[module]
  return replicas ~= nil and (replicas.group == nil or #replicas.group:ranks() == dist.world_size())
end

--- The group of replicas; nil: all ranks.
---@param value any
---@return dist.Group?
function M.group_of(value) return M.is_one(value) and value.group or nil end

--- Gives replicas of a model of lockstep.models its config and the methods that its forward calls by name.
local function add_calls(replicas)
  local names = getmetatable(replicas.module).computed_by_forward
  if not names then return end
  replicas.config = replicas.module.config
  for name in pairs(names) do
    replicas[name] = function(self, batch, ...) return self:forward(batch, name, ...) end
  end
end

---@class sharding.DataParallelOptions
---@field bucket_mb number? 25
---@field find_unused boolean? false
---@field static_graph boolean? false
---@field compression "none"|"bf16"|"fp16"?
---@field broadcast_buffers boolean? true
---@field gradient_as_bucket_view boolean? true
---@field compare_every integer? 100
---@field group dist.Group?

--- Replicates the module over the ranks of `group` through c10d's Reducer, the engine of PyTorch's
--- DistributedDataParallel: parameters and buffers become rank 0's, gradients are averaged while backward
--- runs. Move the module to its device before.
---
--- `bucket_mb`: gradients are reduced in groups of this size. `find_unused`: allows a forward pass that does not use
--- all parameters. `static_graph`: every iteration uses the same parameters equally often; allows parameters used
--- several times in one. `compression`: gradients are sent as "bf16" or "fp16", half the bytes of float32, and rounded
--- to it; local sums are not rounded.
---
--- `broadcast_buffers`: every forward pass gives all ranks rank 0's buffers; if false, each rank keeps its own.
--- `gradient_as_bucket_view`: gradients share memory with the buckets that are sent, which saves a copy of all
--- gradients; clone a gradient that is kept during the next backward.
---
--- Each pass that averages begins with a comparison over the ranks: the number of passes, the parameters, and which of
--- them are trained. Parameters may be frozen, unfrozen, added or removed between steps, on every rank alike;
--- new ones get rank 0's values. `compare_every`: the weights themselves are compared in the passes 1, 2, 4, 8, ... and
--- in each multiple of this number. Replicas that have drifted apart are an error that names the first parameter; 0
--- compares none.
---
--- Collective: every rank of `group` calls this with the same module, and runs the same number of forward passes.
---@param module nn.Module
---@param opts sharding.DataParallelOptions?
---@return sharding.DataParallel
function M.data_parallel(module, opts)
  if not nn.is_module(module) then core.raise("sharding.data_parallel: expected a module, not a " .. type(module)) end
  local o = options.read("sharding.data_parallel", opts, plain.copy(core_sharding.data_parallel_defaults,
    { bucket_mb = 25, compression = "none", group = options.optional }))
  splits.check_same_parts("sharding.data_parallel", module, o.group)
  replicas_of[module] = setmetatable({
    module = module,
    replicas = core_sharding.data_parallel(list(module:named_parameters()), list(module:named_buffers()), o),
    broadcasts_buffers = o.broadcast_buffers,
    needs_outputs = o.find_unused or o.static_graph,
    group = o.group,
  }, DataParallel)
  add_calls(replicas_of[module])
  note_parameters(replicas_of[module])
  local buckets = saved_buckets[module]
  saved_buckets[module] = nil
  if buckets then use_buckets(replicas_of[module], buckets) end
  return replicas_of[module]
end

return M
