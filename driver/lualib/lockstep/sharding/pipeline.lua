--- A model whose layers are divided into stages, one after the other on different ranks.
---
--- This rank's stage takes hidden states from the rank before, and sends its own to the rank after. A step's
--- micro-batches go through the stages in an order that was proven before (pipeline/schedule.lua).

local plain = require "lockstep.plain"
local across = require "lockstep.sharding.across"
local clipping = require "lockstep.optim.clipping"
local core = require "lockstep.core"
local context = require "lockstep.sharding.context"
local core_sharding = require "lockstep.core.sharding"
local cut = require "lockstep.sharding.pipeline.cut"
local disagreement = require "lockstep.sharding.disagreement"
local dist = require "lockstep.distributed"
local fields = require "lockstep.models.fields"
local fully_shard = require "lockstep.sharding.fully_shard"
local options = require "lockstep.options"
local parameters = require "lockstep.sharding.pipeline.parameters"
local runner = require "lockstep.sharding.pipeline.runner"
local same_batch = require "lockstep.models.same_batch"
local schedule = require "lockstep.sharding.pipeline.schedule"
local splits = require "lockstep.nn.splits"
local spread = require "lockstep.nn.spread"
local torch = require "lockstep.torch"

local M = {}

local check = plain.checks "sharding.parallelize: "

---@class sharding.Pipeline
---@field module models.CausalLM the layers of this rank's stages
---@field config table of the whole model
---@field group dist.Group the ranks of one pipeline
---@field order string
---@field chunks integer stages of each rank
---@field checks_operations boolean compares each operation with the schedule's: LOCKSTEP_CHECK_PIPELINE=1
---@field stages pipeline.Stage[] all of them
---@field is_counted boolean whether this rank's loss counts in sums over all ranks
---@field adapter_config table? of adapters that the model had before it was divided, for lora.save
---@field private callee models.CausalLM|sharding.FullyShard
---@field private data dist.Group over which gradients are averaged
---@field private same dist.Group the ranks with the same micro-batches
---@field part integer this rank's place along pp, from 1
---@field tied torch.Tensor? this rank's copy of a tied embedding
---@field private tied_group dist.Group? the first and the last stage
---@field private runner pipeline.Runner
---@field private schedules table<string, pipeline.Schedule>
---@field learns_input boolean? the first stage has a backward even if it is frozen: mimo.separate trains what it takes
---@operator call: any
local Pipeline = { what = "a model with pp" }
Pipeline.__index = Pipeline
across.add(Pipeline)

--- Returns whether this is a model with stages.
---@param value any
---@return boolean
function M.is_one(value) return type(value) == "table" and getmetatable(value) == Pipeline end

--- The model's call within sharding.accumulate, sharding.evaluate and sharding.infer: model(batch, "loss"),
--- model(batch, "log_probs", options), or the scores of a model with a head for labels. Returns the model's results on
--- the last stage. On the others it returns zeros of the same shapes: the results of the script's function are not used
--- there.
---@param batch models.Batch
---@param what ("loss"|"log_probs"|"scores")?
---@param ... any options of log_probs
---@return torch.Tensor
---@return integer|torch.Tensor|nil
function Pipeline:forward(batch, what, ...)
  if self.module.num_labels then
    check(what == nil or what == "logits" or what == "scores", 'with pp a %s computes scores alone, not "%s"',
      self.module.class_name, tostring(what))
    return self.runner:call(batch, "scores")
  end
  check(what == "loss" or what == "log_probs",
    'with pp a model computes model(batch, "loss") or "log_probs" alone, not "%s"', tostring(what or "logits"))
  return self.runner:call(batch, what, ...)
end

Pipeline.__call = Pipeline.forward

--- Returns what model(batch, "loss") does.
---@param batch models.Batch
---@return torch.Tensor sum
---@return integer count
function Pipeline:loss(batch) return self:forward(batch, "loss") end

-- Raise: only the last stage has these results.
for _, name in ipairs { "hidden", "log_probs" } do
  Pipeline[name] = function(self, batch) return self:forward(batch, name) end
end

--- Methods of the module, for this rank's stages. Names are those of the whole model.
for _, name in ipairs { "parameters", "named_parameters", "zero_grad", "named_buffers",
  "named_modules", "num_parameters", "state_dict", "load_state_dict" } do
  Pipeline[name] = function(self, ...) return self.callee[name](self.callee, ...) end
end

--- Returns the module, or what shards it. Private to the library.
---@return models.CausalLM|sharding.FullyShard
function Pipeline:callable() return self.callee end

---@param training boolean? default true
---@return sharding.Pipeline
function Pipeline:train(training)
  self.callee:train(training)
  return self
end

--- Turns training mode off.
---@return sharding.Pipeline
function Pipeline:eval() return self:train(false) end

function Pipeline:__tostring()
  return ("pipeline of %d stages (%s)"):format(#self.stages, tostring(self.module))
end

--- Calls fn(...): sharding.accumulate averages gradients once, after the last micro-batch.
---@param fn function
---@param ... any
---@return any ...
function Pipeline:no_sync(fn, ...) return fn(...) end -- luacheck: no self

--- Scales gradients so that the norm of all of them, over all stages, is at most `max_norm`. Returns the norm before.
--- Collective.
---@param max_norm number
---@param opts {p: number?}? the norm's exponent: 2 unless given, 1 or math.huge
---@return torch.Tensor
function Pipeline:clip_grad_norm(max_norm, opts)
  local o = options.read("clip_grad_norm", opts, { p = 2 })
  return clipping.clip("clip_grad_norm", self:parameters(), max_norm, o.p)
end

--- Raises: a text is made by a whole model.
function Pipeline.generate()
  core.raise("models.generate: the model's layers are divided into stages (pp), which cannot generate; save the model, "
    .. "and generate with pp = 1")
end

-- A step ---------------------------------------------------------------------------------------------------

--- Returns the rows of hidden states of a micro-batch on this rank.
local function rows_of(self, batch, index)
  local ids = type(batch) == "table" and batch.input_ids
  check(torch.is_tensor(ids) and ids:dim() == 1, "micro-batch %d must be a table with input_ids, a tensor of shape "
    .. "[T]: its length is known to all stages before it runs; got %s", index, torch.is_tensor(ids)
    and "input_ids of shape " .. tostring(ids.shape) or "a " .. type(batch))
  local owner = splits.owner_of(self.module)
  local size, tokens = owner and owner.sequence and owner.size or 1, context.tokens(self.module, batch)
  check(tokens % size == 0, "micro-batch %d has %d tokens on this rank, and sequence = true needs a multiple of "
    .. "tp = %d", index, tokens, size)
  return tokens / size
end

--- Returns the first of this rank's stages with a parameter that is trained; nil if all are frozen.
---@return integer?
function Pipeline:first_trained()
  local first
  for name, p in self:named_parameters() do
    local stage = p.requires_grad and self.stage_of(name) or nil
    first = stage and math.min(stage, first or stage) or first
  end
  return first
end

--- Returns the runner of this rank's stages. Private to the library.
---@return pipeline.Runner
function Pipeline:stages_here() return self.runner end

--- Compares the micro-batches of all ranks that must have the same. Returns their rows, and the first stage that
--- learns, or the number of stages + 1. Collective.
local function compare(self, micro_batches)
  local own = { trained = {}, texts = {} }
  local rows = {}
  for i, batch in ipairs(micro_batches) do
    rows[i] = rows_of(self, batch, i)
    own.texts[i] = ("micro-batch %d with %s"):format(i, same_batch.text_of(batch, fields.READ))
  end
  own.trained[1] = self:first_trained()
  local all, ranks = dist.all_gather_object(own, { group = self.same }), self.same:ranks()
  local first_trained = self.learns_input and 1 or #self.stages + 1
  for _, one in ipairs(all) do
    check(#one.texts == #all[1].texts, "the ranks of one row of dp are given different numbers of micro-batches")
    for _, stage in ipairs(one.trained) do first_trained = math.min(first_trained, stage) end
  end
  for i = 1, #micro_batches do
    local texts = {}
    for k, one in ipairs(all) do texts[k] = one.texts[i] end
    local found = disagreement.find(texts, ranks)
    check(not found, "the ranks of one row of dp need the same micro-batches, got %s", found)
  end
  return rows, first_trained
end

--- Returns the schedule of a step: made and proven once for each number of micro-batches.
local function schedule_of(self, micro_batches, first_trained, is_forward_only)
  local key = ("%d %d %s"):format(micro_batches, first_trained, tostring(is_forward_only))
  local function make()
    return schedule.make { ranks = self.group:size(), chunks = self.chunks, micro_batches = micro_batches,
      order = self.order, first_trained = first_trained, forward_only = is_forward_only }
  end
  self.schedules[key] = self.schedules[key] or make()
  -- The debug mode compares with lists of its own, so that a change of the first ones is found.
  return self.schedules[key], self.checks_operations and make() or nil
end

local function run(self, micro_batches, fn, take_results, o)
  local rows, first_trained = compare(self, micro_batches)
  check(o.is_forward_only or first_trained <= #self.stages, "no parameter of any stage is trained")
  local made, again = schedule_of(self, #micro_batches, first_trained, o.is_forward_only)
  local position = self.group:rank() + 1
  self.runner:run { list = made.lists[position], expected = again and again.lists[position],
    micro_batches = micro_batches, rows = rows, fn = fn, take_results = take_results, first_trained = first_trained,
    scale = o.scale, is_forward_only = o.is_forward_only }
end

--- Averages gradients over a group, in buckets. A parameter that has a gradient on some ranks gets one of zeros on the
--- others. One without a gradient on all ranks stays so: optimizers leave it as it is, as on one rank.
local function average(params, group)
  local trained, own = {}, {}
  for _, p in ipairs(params) do
    if p.requires_grad then trained[#trained + 1], own[#own + 1] = p, p.grad and "1" or "0" end
  end
  local all = dist.all_gather_object(table.concat(own), { group = group })
  local function has_gradient(i)
    for _, flags in ipairs(all) do
      if flags:sub(i, i) == "1" then return true end
    end
    return false
  end
  local BUCKET, size = 2 ^ 22, group:size()
  local bucket, elements = {}, 0
  local function flush()
    if #bucket == 0 then return end
    local flat = {}
    for i, grad in ipairs(bucket) do flat[i] = grad:reshape({ -1 }) end
    local sum, from = torch.cat(flat), 0
    dist.all_reduce(sum, "sum", { group = group })
    sum:div_(size)
    for _, grad in ipairs(bucket) do
      grad:copy_(sum:narrow(0, from, grad:numel()):view(grad.shape))
      from = from + grad:numel()
    end
    bucket, elements = {}, 0
  end
  for i, p in ipairs(trained) do
    if has_gradient(i) then
      if not p.grad then p.grad = torch.zeros_like(p) end
      if bucket[1] and (bucket[1].dtype ~= p.grad.dtype or elements + p:numel() > BUCKET) then flush() end
      bucket[#bucket + 1], elements = p.grad, elements + p:numel()
    end
  end
  flush()
end

--- Sums the gradients of the copies of a tied embedding. The stages shard other units, so their ranks hold other parts
--- of it. These are put together and divided again.
local function sum_copies(tied, group)
  if not tied.grad then tied.grad = torch.zeros_like(tied) end
  local place = fully_shard.place_of(tied)
  if not place then return dist.all_reduce(tied.grad, "sum", { group = group }) end
  local pieces = {}
  for i, one in ipairs(place.unit_parameters()) do pieces[i] = one.shard.grad or torch.zeros_like(one.shard) end
  local whole = place.gather(pieces)[place.name]
  dist.all_reduce(whole, "sum", { group = group })
  place.load(whole, tied.grad)
end

--- Runs forward and backward of all micro-batches. Leaves the gradients of the mean: the sum of all losses divided by
--- `count`. Calls take with fn's results after each forward; those of the last stage count. For sharding.accumulate.
--- Collective over the grid.
---@param micro_batches models.Batch[]
---@param count number over all ranks
---@param fn fun(micro_batch: any): torch.Tensor, ...
---@param take fun(index: integer, is_last: boolean, loss: torch.Tensor, ...)
function Pipeline:learn(micro_batches, count, fn, take)
  local tied = self.tied and self.tied.requires_grad and self.tied or nil
  local before = tied and tied.grad
  if before then tied.grad = nil end
  local size = self.data:size()
  run(self, micro_batches, fn, function(op, stage, loss, ...)
    take(op.micro_batch, stage.is_last, loss, ...)
    if stage.is_last then self.runner:keep_loss(op, loss) end
  end, { scale = size / count })
  torch.no_grad(function()
    if size > 1 and not fully_shard.is_one(self.callee) then average(self:parameters(), self.data) end
    if not tied then return end
    sum_copies(tied, self.tied_group)
    if before then tied.grad:add_(before) end
  end)
end

--- Runs the forward passes of one micro-batch, and returns fn's sum and count. Stages before the last return zeros. For
--- sharding.evaluate. Collective over the pipeline.
---@param micro_batch models.Batch
---@param fn fun(micro_batch: any): any, any
---@return any sum
---@return any count
function Pipeline:measure(micro_batch, fn)
  local sum, count
  run(self, { micro_batch }, fn, function(_, stage, own_sum, own_count)
    sum, count = own_sum, own_count
    if not stage.is_last then sum, count = torch.is_tensor(sum) and torch.zeros_like(sum) or 0, 0 end
  end, { is_forward_only = true })
  return sum, count
end

--- Returns fn(batch) of each micro-batch, a tensor of the last stage, on every stage. For sharding.infer. Collective
--- over the pipeline.
---@param micro_batches models.Batch[]
---@param fn fun(micro_batch: any): torch.Tensor
---@return torch.Tensor[]
function Pipeline:infer(micro_batches, fn)
  local results = {}
  if #micro_batches == 0 then return results end
  run(self, micro_batches, fn, function(op, stage, x)
    if stage.is_last or not results[op.micro_batch] then results[op.micro_batch] = x:contiguous() end
  end, { is_forward_only = true })
  local ranks = self.group:ranks()
  for _, x in ipairs(results) do dist.broadcast(x, ranks[#ranks], { group = self.group }) end
  return results
end

-- Making one -----------------------------------------------------------------------------------------------

--- Stands for a neighbour that a dry run does not start: what it sends is zeros.
local NO_ONE = {
  start = function(_, _, receives)
    for _, x in ipairs(receives) do x:zero_() end
    return { wait = function() end }
  end,
}

--- Connects this rank with its neighbours: a group of two ranks for each pair, which NCCL gives a communicator. The
--- ranks of a pipeline make theirs in one order. Each connects now: a connection that is made in the midst of other
--- messages can stall.
local function connect(group, chunks)
  local ranks, links, own = group:ranks(), {}, group:rank() + 1
  for i = 1, #ranks do
    local j = i % #ranks + 1
    local is_needed = i < j or chunks > 1 and #ranks > 2
    if is_needed and (own == i or own == j) then
      local pair = dist.group { ranks = { ranks[i], ranks[j] } }
      dist.barrier { group = pair }
      links[own == i and j or i] = package.loaded["lockstep.dry_run"] and NO_ONE or core_sharding.link(pair)
    end
  end
  return links
end

--- Gives all ranks of a group the values of its first rank. `of_experts`: the group for experts that ranks share.
local function share_values(net, group, of_experts)
  local function share(x, from) dist.broadcast(x, from:ranks()[1], { group = from }) end
  for _, p in ipairs(net:parameters()) do
    local split = splits.of(p)
    share(p:detach(), split and split.kind == "experts" and of_experts or group)
  end
  for _, buffer in net:named_buffers() do share(buffer, group) end
end

--- Returns a function from a parameter's name to the first of this rank's stages that has it.
local function stage_finder(net, own)
  local of_layer = {}
  for _, stage in ipairs(own) do
    for i = stage.first, stage.last do of_layer[i] = stage.index end
  end
  local body_names = {}
  for name, module in net:named_modules() do
    for i, layer in ipairs(net:decoder().layers) do
      if rawequal(module, layer) then body_names[#body_names + 1] = { name .. ".", of_layer[i] } end
    end
  end
  return function(name)
    for _, one in ipairs(body_names) do
      if name:sub(1, #one[1]) == one[1] then return one[2] end
    end
    local is_input = name:find "embed_tokens" or name:find "^model%.visual%."
    return own[1].is_first and is_input and 1 or own[#own].index
  end
end

---@class sharding.PipelineOptions
---@field group dist.Group the ranks of one pipeline, the first stage first
---@field order "1f1b"|"interleaved"|"all_forwards_first"
---@field chunks integer
---@field data dist.Group ranks with the same stage and other tokens: dp x cp
---@field experts dist.Group those of them with the same experts
---@field same dist.Group ranks with the same micro-batches: tp x cp x pp
---@field wrap fun(): sharding.FullyShard? gives the stage its values, or shards it along `data`; nothing: replicas
---@field has_values boolean whether the net has values, which are made those of the first rank
---@field dtype torch.dtype? of hidden states; default: the parameters'

--- Returns this rank's copy of a tied embedding, on the first and on the last stage.
local function find_tied(callee)
  for name, p in callee:named_parameters() do
    if name:find "embed_tokens%.weight$" then return p end
  end
end

--- Divides a model's layers into stages, and leaves this rank its own. tensor_parallel comes before. Collective over
--- the grid.
---@param net models.CausalLM
---@param o sharding.PipelineOptions
---@return sharding.Pipeline
function M.pipeline(net, o)
  local num_ranks, position = o.group:size(), o.group:rank() + 1
  local stages = cut.plan(net, num_ranks * o.chunks)
  local own = {}
  for chunk = 1, o.chunks do own[chunk] = stages[(chunk - 1) * num_ranks + position] end
  if o.has_values then
    share_values(net, o.data, o.experts)
    share_values(net, o.group)
  end
  local is_tied = cut.is_tied(net)
  local adapter_config = require("lockstep.lora.files").config_before(net) -- which requires parts of sharding
  cut.keep(net, own)
  local has_first, has_last, owner = own[1].is_first, own[#own].is_last, splits.owner_of(net)
  local links = connect(o.group, o.chunks)
  local callee = o.wrap() or net
  local _, first = callee:named_parameters()()
  net.stage_device = first.device
  local self = setmetatable({ module = net, config = net.config, callee = callee, group = o.group, order = o.order,
    chunks = o.chunks, stages = stages, part = position, data = o.data, same = o.same, schedules = {},
    stage_of = stage_finder(net, own), checks_operations = os.getenv "LOCKSTEP_CHECK_PIPELINE" == "1",
    adapter_config = adapter_config, is_counted = has_last and (not owner or owner.rank == 0) }, Pipeline)
  if is_tied and (has_first or has_last) then
    local ranks = o.group:ranks()
    self.tied = find_tied(callee)
    self.tied_group = #ranks == 2 and o.group or dist.group { ranks = { ranks[1], ranks[#ranks] } }
    if #ranks > 2 then dist.barrier { group = self.tied_group } end
  end
  for _, p in ipairs(callee:parameters()) do
    local is_tied_one = rawequal(p, self.tied)
    parameters.note(p, { group = o.group, is_copy = has_last and is_tied_one })
    spread.note_stage(p, o.group, is_tied_one and 2 or 1)
  end
  self.runner = runner.new { net = net, callee = callee, stages = stages, links = links,
    dtype = o.dtype or first.dtype }
  return self
end

return M
