--- mimo.separate: a model of pictures and text whose vision tower has ranks of its own.
---
--- The first ranks run the tower, the others the language model. The tower's tokens cross a bridge, and their gradients
--- come back. While the language model learns from a micro-batch, the tower computes the next one.

local across = require "lockstep.sharding.across"
local agreement = require "lockstep.state.agreement"
local clipping = require "lockstep.optim.clipping"
local core = require "lockstep.core"
local cut = require "lockstep.sharding.pipeline.cut"
local disagreement = require "lockstep.sharding.disagreement"
local dist = require "lockstep.distributed"
local fully_shard = require "lockstep.sharding.fully_shard"
local grids = require "lockstep.sharding.grid"
local lora_files = require "lockstep.lora.files"
local nn = require "lockstep.nn"
local options = require "lockstep.options"
local parallelize = require("lockstep.sharding.parallelize").parallelize
local parts = require "lockstep.mimo.parts"
local pipeline = require "lockstep.sharding.pipeline"
local pipelined = require "lockstep.mimo.pipelined"
local plain = require "lockstep.plain"
local torch = require "lockstep.torch"
local visual_deal = require "lockstep.mimo.visual_deal"
local visual_needs = require "lockstep.mimo.visual_needs"

local function fail(message, ...) core.raise("mimo.separate: " .. message:format(...)) end
local function check(holds, message, ...) if not holds then fail(message, ...) end end

---@class mimo.Separate
---@field module models.VisionLanguage this rank's part of the model
---@field topology mimo.Topology
---@field ranks integer that have micro-batches of their own: the ranks of the language model, or its grid's dp
---@field what string
---@field is_counted boolean
---@field part integer 1: the tower, 2: the language model, or its first stage; then the other stages
---@field tied torch.Tensor? this rank's copy of a tied embedding, on the first and on the last stage
---@field holders table<string, integer> the first rank of each part
---@field adapter_config table? of adapters that the model had before it was divided, for lora.save
---@field private grid sharding.Grid? of the language model's ranks
---@field private name "vision"|"language" what this rank runs
---@field private callee any the part, plain or sharded
---@field private order string
---@field private stages {ranks: integer, chunks: integer}? of a language model with pp
---@field pipeline sharding.Pipeline? the part, if it has stages
---@field private sizes mimo.SeparateGrid? of the grid, if a rank holds some of its row's tokens
---@field private steps table<integer|string, any> by the number of micro-batches: mimo.Step, or lists of the tower
---@field private pass table? what runs at present
---@operator call: any
local Separate = { what = "a model whose tower has ranks of its own" }
Separate.__index = Separate
across.add(Separate)

for _, name in ipairs { "parameters", "named_parameters", "zero_grad", "named_buffers", "named_modules",
  "num_parameters", "state_dict", "load_state_dict" } do
  Separate[name] = function(self, ...) return self.callee[name](self.callee, ...) end
end

--- Returns this rank's part, or what shards it. Private to the library.
---@return any
function Separate:callable() return self.pipeline and self.pipeline:callable() or self.callee end

---@param training boolean? default true
---@return mimo.Separate
function Separate:train(training)
  self.callee:train(training)
  return self
end

--- Turns training mode off.
---@return mimo.Separate
function Separate:eval() return self:train(false) end

function Separate:__tostring() return ("%s of %s, on ranks of its own"):format(self.name, tostring(self.module)) end

--- Calls fn(...): sharding.accumulate averages gradients once, after the last micro-batch.
---@param fn function
---@param ... any
---@return any ...
function Separate:no_sync(fn, ...) return fn(...) end -- luacheck: no self

--- Scales gradients so that the norm of all of them, over both parts, is at most `max_norm`. Returns the norm before.
--- Collective.
---@param max_norm number
---@param opts {p: number?}? the norm's exponent: 2 unless given, 1 or math.huge
---@return torch.Tensor
function Separate:clip_grad_norm(max_norm, opts)
  local o = options.read("clip_grad_norm", opts, { p = 2 })
  return clipping.clip("clip_grad_norm", self:parameters(), max_norm, o.p)
end

--- Raises: a text is made by a whole model.
function Separate.generate()
  core.raise("models.generate: the vision tower has ranks of its own, and no rank holds the whole model; save it, and "
    .. "generate without mimo.separate")
end
Separate.full = Separate.generate

--- The model's call within sharding.accumulate and sharding.evaluate: model(micro_batch, "loss"). Returns the sum of
--- the losses of this rank's batch and their count. Ranks of the tower return 0 and 0, which are not used.
---@param micro_batch models.Batch[] of all language ranks
---@param what "loss"
---@param ... any nothing: an error
---@return torch.Tensor sum
---@return integer count
function Separate:forward(micro_batch, what, ...)
  local pass = self.pass
  check(pass, "the tower and the language model are on different ranks: call the model within sharding.accumulate or "
    .. "sharding.evaluate")
  check(what == "loss" and select("#", ...) == 0, 'the model computes model(batch, "loss") alone, not "%s"',
    tostring(what or "logits"))
  check(not pass.has_run, "the function must call the model once for each micro-batch, and has called it again")
  pass.has_run = true
  if self.name == "vision" then
    pass.carried = self:see(pass.deal)
    return torch.zeros({}, { device = dist.device() }), 0
  end
  local own = micro_batch[self.topology:dp_info() + 1]
  local has_tokens = pass.deal.counts[self.topology:dp_info() + 1] > 0 -- this rank's row, of which it may need none
  return self.callee(plain.copy(own, { [self.sizes and "own_visual" or "visual"] = has_tokens and pass.seen or nil }),
    "loss")
end

Separate.__call = Separate.forward

--- Returns the tokens of the pictures that were dealt to this rank of the tower, [N, columns].
---@private
---@param deal mimo.VisualDeal
---@return torch.Tensor
function Separate:see(deal)
  if not deal.first then -- a micro-batch of text: no rank runs the tower, whose parameters then get no gradient
    return torch.zeros({ 0, self.module.visual_columns }, { device = dist.device() })
  end
  local batch = visual_deal.batch_of(deal, self.topology:dp_info())
  if batch then return self.callee(batch) end
  return self.callee(visual_deal.filler_of(deal)):narrow(0, 0, 0)
end

-- A step ---------------------------------------------------------------------------------------------------

--- Raises unless a micro-batch has a batch for each language rank.
local function check_rows(self, micro_batch, index)
  local rows = type(micro_batch) == "table" and #micro_batch or 0
  check(rows == self.ranks and type(micro_batch[1]) == "table", "micro-batch %d must be an array of %d batches, one "
    .. "for each rank of the language model; give batching.stream and batching.prepare ranks = %d and together = true, "
    .. "got %s", index, self.ranks, self.ranks, type(micro_batch) ~= "table" and "a " .. type(micro_batch)
    or micro_batch.input_ids and "one batch" or ("a table of %d"):format(rows))
end

--- Returns the function that runs this rank's part of a micro-batch, for mimo.step.
local function part_function(self)
  return function(mine, seen)
    local now = self.now
    self.pass = { deal = mine.deal, seen = seen }
    local function take(...)
      check(self.pass.has_run, "the function did not call the model, which other ranks wait for")
      now.take(mine.index, self.name == "language", ...)
      return self.pass.carried or now.scale and torch.mul((...), now.scale) or torch.zeros {}
    end
    return take(now.fn(mine.micro_batch))
  end
end

--- Returns what runs a step of so many micro-batches. Collective the first time.
local function step_of(self, micro_batches)
  local mimo = require "lockstep.mimo" -- which needs this module
  self.steps[micro_batches] = self.steps[micro_batches] or mimo.step { topology = self.topology,
    modules = { [self.name] = part_function(self) }, bridges = { self.bridge }, order = self.order, slice = false,
    micro_batches = micro_batches, micro_batch_size = self.ranks * (self.topology:modules()[1].dp) }
  return self.steps[micro_batches]
end

--- Runs fn on all micro-batches. count: of the losses that are trained on; nil: forward only. Returns the sum and the
--- count of one that a pipeline has measured.
local function run(self, micro_batches, fn, take, count)
  local layout, position, mines = self.module.visual_layout, 0, {}
  for i, micro_batch in ipairs(micro_batches) do
    check_rows(self, micro_batch, i)
    mines[i] = { index = i, micro_batch = micro_batch,
      deal = visual_deal.deal(micro_batch, self.topology:modules()[1].dp, layout.merge) }
  end
  local function call_of(mine)
    local needs = self.sizes and visual_needs.of(mine.micro_batch, layout, self.sizes, mine.deal.counts)
    return { rows_per_sample = mine.deal.rows, needs = needs or nil }
  end
  if self.stages then
    return pipelined.run(self, { mines = mines, fn = fn, take = take, count = count, is_forward_only = not count,
      call_of = call_of })
  end
  self.now = { fn = fn, take = take, scale = count and 1 / count }
  plain.finally(function() self.now, self.pass = nil, nil end, step_of(self, #micro_batches), function()
    position = position + 1
    local mine = mines[position]
    mines[position] = nil
    if not mine then return nil end
    return mine, call_of(mine)
  end)
end

--- Runs forward and backward of all micro-batches. Leaves the gradients of the mean: the sum of all losses divided by
--- `count`. Calls take with fn's results after each forward; those of language ranks count. For sharding.accumulate.
--- Collective.
---@param micro_batches models.Batch[][]
---@param count number over all ranks
---@param fn fun(micro_batch: any): torch.Tensor, ...
---@param take fun(index: integer, is_last: boolean, loss: torch.Tensor, ...)
function Separate:learn(micro_batches, count, fn, take)
  local mimo, before = require "lockstep.mimo", {}
  for _, p in ipairs(self:parameters()) do
    if p.grad and p.requires_grad then before[p], p.grad = p.grad, nil end
  end
  run(self, micro_batches, fn, take, count)
  -- Losses are divided by the count already, and a pipeline has averaged its gradients over the ranks that have tokens.
  local counts_one = self.stages ~= nil or dist.rank() == self.holders.language
  mimo.reduce_gradients { topology = self.topology, modules = { [self.name] = self.callee }, loss = "sum",
    tokens = counts_one and 1 or 0 }
  torch.no_grad(function()
    for p, grad in pairs(before) do p.grad = p.grad and p.grad:add_(grad) or grad end
  end)
end

--- Runs the forward passes of one micro-batch, and returns fn's sum and count. Ranks of the tower return zeros. For
--- sharding.evaluate. Collective.
---@param micro_batch models.Batch[]
---@param fn fun(micro_batch: any): any, any
---@return any sum
---@return any count
function Separate:measure(micro_batch, fn)
  local sum, count
  local staged_sum, staged_count = run(self, { micro_batch }, fn, function(_, is_last, own_sum, own_count)
    sum, count = own_sum, own_count
    if not is_last then sum, count = torch.is_tensor(sum) and torch.zeros_like(sum) or 0, 0 end
  end)
  return staged_sum or sum, staged_count or count
end

-- Making one -----------------------------------------------------------------------------------------------

--- Sets the order, and raises unless it goes with the grid.
local function check_order(o, sizes)
  if o.order == nil then o.order = sizes.chunks > 1 and "interleaved" or "1f1b" end
  if sizes.pp > 1 then
    local has_one = o.order == "1f1b" and sizes.chunks == 1 or o.order == "interleaved"
    return check(has_one or o.order == "all_forwards_first", 'order must be "1f1b", "interleaved" or '
      .. '"all_forwards_first" where pp is %d%s, not %s', sizes.pp,
      sizes.chunks > 1 and (' ("1f1b" has 1 chunk for each rank, not %d)'):format(sizes.chunks) or "",
      tostring(o.order))
  end
  check(sizes.chunks == 1, "parallel.chunks is for stages, and pp is 1; leave it out")
  check(o.order == "1f1b" or o.order == "all_forwards_first" or o.order == "sequential",
    'order must be "1f1b", "all_forwards_first" or "sequential", not %s', tostring(o.order))
  check(o.order ~= "all_forwards_first" or o.parallel == "fully_shard" or sizes.tp * sizes.cp == 1,
    'order = "all_forwards_first" is not for replicas on a grid of tp and cp, which average in each backward; take '
    .. '"1f1b", or fully_shard')
end

local function read_options(net, opts)
  local o = options.read("mimo.separate", opts, { vision_ranks = options.required,
    parallel = options.optional, fully_shard = {}, order = options.optional })
  if o.parallel == nil then o.parallel = "data_parallel" end
  if o.order == "" then o.order = nil end -- a setting of a script
  local ranks = dist.world_size()
  check(ranks > 1, "the tower and the language model have ranks of their own, which takes at least 2 ranks, got 1; "
    .. "train the whole model without it")
  check(plain.is_whole(o.vision_ranks, 1) and o.vision_ranks < ranks, "vision_ranks must be a whole number from 1 to "
    .. "%d: of %d ranks, at least one runs the tower and one the language model; got %s", ranks - 1, ranks,
    tostring(o.vision_ranks))
  if type(o.parallel) == "table" then
    o.sizes = options.read("mimo.separate: parallel", o.parallel, { tp = 1, cp = 1, ep = 1, pp = 1, chunks = 1,
      fully_shard = false, sequence = false })
    o.parallel = o.sizes.fully_shard and "fully_shard" or "data_parallel"
  end
  check(o.parallel == "data_parallel" or o.parallel == "fully_shard", 'parallel must be "data_parallel", "fully_shard" '
    .. "or a table of tp, cp, ep, pp, chunks, sequence and fully_shard, not %s", type(o.parallel) == "string"
    and '"' .. o.parallel .. '"' or "a " .. type(o.parallel))
  check(nn.is_module(net) and type(net.take_part) == "function" and #(net.parts or {}) > 0,
    "expected a model of pictures of models.load, not %s", nn.is_module(net) and (net.class_name or "another module")
    or "a " .. type(net))
  check(not net.part, 'expected a whole model, not its part "%s"', tostring(net.part))
  o.sizes = o.sizes or { tp = 1, cp = 1, ep = 1, pp = 1, chunks = 1 }
  local sizes = o.sizes
  for _, axis in ipairs { "tp", "cp", "ep", "pp", "chunks" } do
    check(plain.is_whole(sizes[axis], 1), "parallel.%s must be a whole number from 1 on, not %s", axis,
      tostring(sizes[axis]))
  end
  check_order(o, sizes)
  if sizes.tp == 1 then options.note_unused("mimo.separate: parallel", sizes, { "sequence" }, "where tp is 1") end
  local found = disagreement.gather(("vision_ranks = %d, parallel = %s, tp = %d, cp = %d, ep = %d, pp = %d, "
    .. "chunks = %d, sequence = %s, order = %s"):format(o.vision_ranks, o.parallel, sizes.tp, sizes.cp, sizes.ep,
    sizes.pp, sizes.chunks, tostring(sizes.sequence), tostring(o.order)))
  check(not found, "every rank must give the same options, got %s", found)
  local rows = (ranks - o.vision_ranks) / (sizes.tp * sizes.cp * sizes.pp)
  check((ranks - o.vision_ranks) % (sizes.tp * sizes.cp * sizes.pp) == 0, "tp %d x cp %d x pp %d does not divide the "
    .. "%d ranks of the language model", sizes.tp, sizes.cp, sizes.pp, ranks - o.vision_ranks)
  check(rows * sizes.cp % sizes.ep == 0, "ep %d does not divide the language model's dp %d x cp %d", sizes.ep, rows,
    sizes.cp)
  if sizes.pp > 1 then cut.check(net, sizes.pp * sizes.chunks) end -- here, so that ranks of the tower raise it, too
  return o
end

--- Puts the language model on a grid of its ranks.
local function on_grid(net, topology, o)
  local ranks, sizes = topology:modules()[2].ranks, o.sizes
  local grid = grids.grid({ tp = sizes.tp, cp = sizes.cp, ep = sizes.ep, pp = sizes.pp }, dist.group { ranks = ranks })
  grid.is_of_module = true
  local has_stages = sizes.pp > 1
  return parallelize(net, grid, { sequence = sizes.tp > 1 and sizes.sequence or nil,
    fully_shard = sizes.fully_shard and o.fully_shard or false, order = has_stages and o.order or nil,
    chunks = has_stages and sizes.chunks or nil }), grid
end

---@class mimo.SeparateGrid of the language model; the tower is sharded, too, if `fully_shard`
---@field tp integer?
---@field cp integer?
---@field ep integer? ranks that share the experts
---@field pp integer? stages
---@field chunks integer? parts of the model on each stage: 1 unless given
---@field sequence boolean?
---@field fully_shard boolean?

---@class mimo.SeparateOptions
---@field vision_ranks integer
---@field parallel "data_parallel"|"fully_shard"|mimo.SeparateGrid|nil default: "data_parallel"
---@field fully_shard sharding.FullyShardOptions?
---@field order "1f1b"|"interleaved"|"all_forwards_first"|"sequential"|""|nil default, also "": "1f1b", or "interleaved"
--- with chunks

--- Divides a model of pictures of models.load: the first `vision_ranks` ranks keep its tower, the others its language
--- model. Use the result in place of the model from here on.
---
---     local model = mimo.separate(net, { vision_ranks = 2, parallel = "fully_shard" })
---     local stream = batching.stream { source = loader, ranks = model.ranks, together = true, ... }
---     for _, micro_batches, report in run:steps(stream, 100) do
---       sharding.accumulate(model, micro_batches, report.loss_tokens, function(b) return model(b, "loss") end)
---       optimizer:step(1, { max_grad_norm = 1 })
---       optimizer:zero_grad()
---     end
---     models.save(model, run.dir .. "/model", { like = base })
---
--- A micro-batch has the batches of all language ranks, and every rank is given the same. The pictures of all of them
--- are dealt to the ranks of the tower by their tokens. sharding.accumulate, sharding.evaluate, optim.clip_grad_norm,
--- models.save, lora.save and run:state work as on one rank. A saved state goes on on any number of ranks, and in the
--- whole model.
---
--- Call lora.apply before. `parallel`: each part is replicated over its ranks, or sharded with the options
--- `fully_shard`. A table of tp, cp, ep, pp, `chunks` and `sequence` divides the language model over the ranks of a
--- grid, as sharding.parallelize does. `model.ranks` is then the grid's dp. `order`: of mimo.step, or of the pipeline
--- with pp. The first stage then takes the tower's tokens, and the tower computes those of the next micro-batch.
---
--- Collective: every rank of the run.
---@param net models.CausalLM
---@param opts mimo.SeparateOptions
---@return mimo.Separate
local function separate(net, opts)
  local o = read_options(net, opts)
  local mimo = require "lockstep.mimo" -- which needs this module
  local sizes, has_stages = o.sizes, o.sizes.pp > 1
  local ranks = (dist.world_size() - o.vision_ranks) / (sizes.tp * sizes.cp * sizes.pp)
  local topology = mimo.topology { modules = { { name = "vision", dp = o.vision_ranks },
    { name = "language", dp = ranks, tp = sizes.tp, cp = sizes.cp, pp = sizes.pp, first_rank = o.vision_ranks } } }
  local name = topology:module()
  local adapter_config = lora_files.config_before(net)
  local is_sequence = sizes.sequence and sizes.tp > 1
  local divides = is_sequence or sizes.cp > 1 -- a rank holds some of its row's tokens
  net:take_part(name == "vision" and "visual" or "language")
  collectgarbage() -- the other part
  local group = topology:group(name, "dp")
  local callee, grid = net, nil
  if name == "language" and sizes.tp * sizes.cp * sizes.ep * sizes.pp > 1 then
    callee, grid = on_grid(net, topology, o)
  elseif o.parallel == "fully_shard" and group then
    callee = fully_shard.fully_shard(net, plain.copy(o.fully_shard, { group = group }))
  elseif group then
    for _, p in ipairs(net:parameters()) do dist.broadcast(p:detach(), group:ranks()[1], { group = group }) end
  end
  local stages = pipeline.is_one(callee) and callee or nil
  parts.note(callee, name == "vision" and o.vision_ranks or ranks * sizes.tp * sizes.cp, stages and stages.tied)
  local is_counted = name == "language" and (not grid or grid:rank "tp" == 0)
  if stages then is_counted = stages.is_counted end
  return setmetatable({ module = net, callee = callee, topology = topology, ranks = ranks, name = name,
    part = name == "vision" and 1 or 1 + (stages and stages.part or 1), tied = stages and stages.tied,
    pipeline = stages, stages = has_stages and { ranks = sizes.pp, chunks = sizes.chunks } or nil, order = o.order,
    steps = {}, grid = grid, is_counted = is_counted, adapter_config = adapter_config,
    holders = { visual = 0, language = o.vision_ranks },
    sizes = divides and sizes or nil, bridge = mimo.bridge { topology = topology, from = "vision", to = "language",
      needs = divides and (is_sequence and "tp-cp" or "cp") or nil } }, Separate)
end

return agreement.counted(separate)
