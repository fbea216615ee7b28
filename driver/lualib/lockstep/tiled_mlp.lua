--- MLPs in tiles of a sequence, and a loss that never holds the logits: the library `tiled_mlp` for scripts.
---
---     local mlp = tiled_mlp.new { tile_tokens = 8192 }
---     local y = mlp(self.mlp, x)                       -- in place of self.mlp(x)
---     model.tiled_mlp = { tiles = 4 }                  -- of lockstep.models: all its MLPs
---     tiled_mlp.apply(net, { tiles = 4, modules = { "blocks.*.mlp" } })  -- of any other module
---     local loss, n = tiled_mlp.cross_entropy { hidden = h, weight = self.head.weight, labels = labels }

local budget = require "lockstep.tiled_mlp.budget"
local checkpoint = require "lockstep.checkpoint"
local core = require "lockstep.core"
local core_tiled_mlp = require "lockstep.core.tiled_mlp"
local data_parallel = require "lockstep.sharding.data_parallel"
local dist = require "lockstep.distributed"
local fully_shard = require "lockstep.sharding.fully_shard"
local modules = require "lockstep.tiled_mlp.modules"
local nn = require "lockstep.nn"
local options = require "lockstep.options"
local plain = require "lockstep.plain"
local splits = require "lockstep.nn.splits"
local torch = require "lockstep.torch"

local M = {}

---@class tiled_mlp.Stats
---@field calls integer
---@field untiled integer of these, below break-even and so not tiled
---@field tiles integer run forward
---@field backward_tiles integer run again in backward
---@field skipped_tiles integer left out of backward, where no gradient came
---@field tile_tokens integer rows of the largest tile of the last call

---@class tiled_mlp.Options
---@field tile_tokens integer?
---@field tiles integer?
---@field memory_gib number? GiB for the activations of one tile. Give only one of this, tiles and tile_tokens
---@field preserve_rng boolean? default true
---@field accumulate_fp32 boolean? default false
---@field skip_zero_gradients boolean? default: on a CPU

---@class tiled_mlp.ApplyOptions: tiled_mlp.Options
---@field modules string[]? default { "mlp" }

---@class tiled_mlp.Dense
---@field x torch.Tensor [..., tokens, hidden]
---@field gate torch.Tensor? [intermediate, hidden]; absent: a plain MLP
---@field up torch.Tensor [intermediate, hidden]
---@field down torch.Tensor [out, intermediate]
---@field gate_bias torch.Tensor?
---@field up_bias torch.Tensor?
---@field down_bias torch.Tensor?
---@field activation ("silu"|"gelu"|"gelu_tanh")? default "silu"

---@class tiled_mlp.CrossEntropy
---@field hidden torch.Tensor [..., hidden]
---@field weight torch.Tensor [vocabulary, hidden]
---@field labels torch.Tensor int64 [...]
---@field bias torch.Tensor? [vocabulary]
---@field ignore_index integer? default -100
---@field reduction ("mean"|"sum"|"none")?
---@field tile_tokens integer? tokens whose logits are held at a time; default 1,024
---@field label_smoothing number?
---@field z_loss number? times the square of each token's logsumexp
---@field softcap number? logits become softcap * tanh(logits / softcap)
---@field accumulate_fp32 boolean? the gradient of a bfloat16 weight is added up in float32
---@field divisor number? above 0, in place of the count
---@field over_ranks boolean?
---@field group dist.Group?
---@field count integer? of the labels that count, where the caller knows it: then nothing waits for a GPU to count them

---@class tiled_mlp.TiledMlp
---@field private options table<string, any> of the core, without a size where memory_bytes is given
---@field private memory_bytes number?
---@field private budgets table<any, number> the bytes of a tile, by the ranks that agreed
---@field private tiles lockstep.core.tiled_mlp.Tiles
---@field private of_count table<integer, lockstep.core.tiled_mlp.Tiles> where the budget decides
---@field private undo fun()? of apply
---@operator call: torch.Tensor
local TiledMlp = {}
TiledMlp.__index = TiledMlp

--- Returns the module's places, and its weights, each once.
local function weights_of(module)
  local weights, places, index_of = {}, {}, {}
  for i, place in ipairs(nn.parameter_places(module)) do
    if not index_of[place.tensor] then
      weights[#weights + 1] = place.tensor
      index_of[place.tensor] = #weights
    end
    places[i] = { place.fields, place.name, index_of[place.tensor] }
  end
  return weights, places
end

--- Returns the core's tiles for x: so many that one fits into the budget, if there is one.
local function tiles_for(self, x, weights, per_token)
  if not self.memory_bytes or not torch.is_tensor(x) or x:dim() == 0 then return self.tiles end
  local owner = budget.owner_of(weights)
  local key = owner or self
  self.budgets[key] = self.budgets[key] or budget.agreed(self.memory_bytes, x.device, owner)
  local rows = x:numel() / math.max(1, x:size(-1))
  local fit = math.max(1, math.floor(self.budgets[key] / budget.bytes_per_row(x, weights, per_token)))
  local count = math.max(1, math.ceil(rows / fit))
  self.of_count[count] = self.of_count[count] or core_tiled_mlp.new(plain.copy(self.options, { tiles = count }))
  self.tiles = self.of_count[count]
  return self.tiles
end

--- Returns fn with a check that the module and its children are in the modes of this moment. Backward calls fn again;
--- in another mode it would drop nothing, or drop something, and give the gradient of another function.
local function in_same_mode(fn, module)
  local was = {}
  for name, child in module:named_modules() do was[#was + 1] = { name, child, child.training } end
  return function(...)
    for _, one in ipairs(was) do
      local name, child, training = unpack(one)
      if child.training ~= training then
        core.raise(("tiled_mlp: %s%s was in %s mode in forward and is not in backward, which runs the tiles again; "
          .. "call :train() and :eval() after backward"):format(child.class_name,
          name ~= "" and ' "' .. name .. '"' or "", training and "training" or "evaluation"))
      end
    end
    return fn(...)
  end
end

--- Runs a module, or another function in its place, over tiles.
local function run_module(self, fn, module, x)
  if torch.is_grad_enabled() then fn = in_same_mode(fn, module) end
  local found, places = weights_of(module)
  return tiles_for(self, x, self.memory_bytes and module:parameters(), module.per_token):run(fn, x, found, places)
end

--- Runs a module, or fn(tile, w1, w2, ...), over tiles of x's tokens. It gets tiles of shape [rows, hidden], must treat
--- each row independently, and returns one or several tensors with one row for each. The results have x's leading
--- shape. Forward keeps only x, and backward runs it again.
---
---     local y = mlp(self.mlp, x)
---     local function f(tile, up, down) return torch.linear(torch.gelu(torch.linear(tile, up)), down) end
---     local y = mlp(f, x, { up, down })
---
--- Pass all weights of a function: capturing one is an error, even for sequences that are too short to be tiled. Other
--- variables that it has captured must keep their values until backward. A module's weights are found in it, with
--- frozen and shared ones.
---@param fn nn.Module|fun(tile: torch.Tensor, ...: torch.Tensor): torch.Tensor, ...
---@param x torch.Tensor [..., tokens, hidden]
---@param weights torch.Tensor[]? of a function
---@return torch.Tensor ...
function TiledMlp:forward(fn, x, weights)
  if not nn.is_module(fn) then
    for key in pairs(type(weights) == "table" and weights or {}) do
      plain.check(type(key) == "number", 'tiled_mlp: weights must be an array, but has the key "%s"', key)
    end
    return tiles_for(self, x, weights or {}):run(fn, x, weights or {})
  end
  if weights ~= nil then core.raise("tiled_mlp: a module's weights are found in it; give none") end
  return run_module(self, fn, fn, x)
end

TiledMlp.__call = TiledMlp.forward

--- Runs the built-in MLP: faster than the same MLP as a module, and a tile needs no temporary of weight size.
---
---     mlp:dense { x = x, gate = w1, up = w3, down = w2 }     -- (silu(x w1^T) * (x w3^T)) w2^T
---     mlp:dense { x = x, up = w1, up_bias = b1, down = w2, down_bias = b2, activation = "gelu" }
---@param opts tiled_mlp.Dense
---@return torch.Tensor
function TiledMlp:dense(opts)
  for _, value in pairs(type(opts) == "table" and opts or {}) do
    splits.refuse("tiled_mlp.dense", value, "call the module over tiles instead: mlp(layer.mlp, x)")
  end
  local given, weights = type(opts) == "table" and opts or {}, {}
  for _, name in ipairs { "gate", "up", "down" } do weights[#weights + 1] = given[name] end
  return tiles_for(self, given.x, weights):dense(opts)
end

--- Returns counts since this was made.
---@return tiled_mlp.Stats
function TiledMlp:stats()
  local stats = self.tiles:stats()
  for _, tiles in pairs(self.of_count) do
    for name, count in pairs(tiles ~= self.tiles and tiles:stats() or {}) do
      if name ~= "tile_tokens" then stats[name] = stats[name] + count end
    end
  end
  return stats
end

--- Lets the modules of tiled_mlp.apply run as before it. Tiles that were applied before or since stay.
function TiledMlp:remove()
  if self.undo then self.undo() end
  self.undo = nil
end

function TiledMlp:__tostring()
  local s = self:stats()
  return string.format("tiled_mlp(%d calls, %d untiled, %d tiles)", s.calls, s.untiled, s.tiles)
end

--- `tile_tokens`: maximum tokens of a tile; the default is twice the hidden size in multiples of 128, at least 1,024. A
--- sequence too short to gain from tiling runs untiled (stats().untiled). `tiles`: the number of tiles, even then.
--- `memory_gib`: chooses the number of tiles so that the activations of one fit into that memory, forward and backward.
--- If less is free on the device at the first call, that is the limit. Each rank chooses for itself. But ranks that
--- share the parts of the weights (sharding.tensor_parallel) agree on their smallest limit at the first call.
--- `preserve_rng`: backward draws the same dropout as forward. `accumulate_fp32`: gradients of bfloat16 weights are
--- added up in float32. `skip_zero_gradients`: skips tiles that get no gradient; defaults to true on a CPU, where the
--- check is cheap.
---@param opts tiled_mlp.Options?
---@return tiled_mlp.TiledMlp
function M.new(opts)
  local o = options.read("tiled_mlp.new", opts, plain.copy(core_tiled_mlp.defaults, {
    tile_tokens = options.optional, tiles = options.optional, memory_gib = options.optional,
    skip_zero_gradients = options.optional }))
  local gib = o.memory_gib
  o.memory_gib = nil
  if gib ~= nil then
    plain.check(type(gib) == "number" and gib > 0, "tiled_mlp.new: memory_gib must be a number above 0, not %s",
      type(gib) == "string" and ('the string "%s"'):format(gib) or tostring(gib))
    plain.check(o.tiles == nil and o.tile_tokens == nil,
      "tiled_mlp.new: give one of tiles, tile_tokens and memory_gib, not several")
  end
  return setmetatable({ options = o, memory_bytes = gib and gib * 2 ^ 30, budgets = setmetatable({}, { __mode = "k" }),
    of_count = {}, tiles = core_tiled_mlp.new(o) }, TiledMlp)
end

--- Lets MLPs inside a module run over tiles from here on, wherever they are called. `modules`: the ends of their names,
--- "*" for any one part; default: all that are named "mlp". Each must treat each row of its only argument by itself.
--- The other options are those of tiled_mlp.new. Returns an object whose stats count the calls of all of them, and
--- whose remove() ends it.
---
---     local tiles = tiled_mlp.apply(net, { tiles = 4, modules = { "blocks.*.feed_forward" } })
---     print(tiles)                                     -- tiled_mlp(24 calls, 0 untiled, 96 tiles)
---
--- Models of lockstep.models have this as a field: model.tiled_mlp = { tiles = 4 }. Names, parameters and adapters stay
--- what they are. So it goes before or after lora.apply, sharding.data_parallel and sharding.fully_shard; a module
--- that is itself a unit of fully_shard needs it before.
---@param net nn.Module|sharding.DataParallel|sharding.FullyShard
---@param opts tiled_mlp.ApplyOptions?
---@return tiled_mlp.TiledMlp
function M.apply(net, opts)
  if data_parallel.is_one(net) then net = net.module end
  if fully_shard.is_one(net) then net = fully_shard.net_of(net) end
  plain.check(nn.is_module(net), "tiled_mlp.apply: expected a module, not a %s", type(net))
  plain.check(opts == nil or type(opts) == "table", "tiled_mlp.apply: options must be a table, such as { tiles = 4 }, "
    .. "not a %s", type(opts))
  plain.check(getmetatable(opts) ~= TiledMlp, "tiled_mlp.apply: expected options, such as { tiles = 4 }, not tiles "
    .. "that exist already; each model has tiles of its own")
  local rest = plain.copy(opts or {})
  rest.modules = nil
  local tiled = M.new(rest)
  local found = modules.find(net, opts and opts.modules or { "mlp" })
  tiled.undo = modules.replace(found, function(inner, module, x)
    return run_module(tiled, function(tile) return inner(module, tile) end, module, x)
  end)
  return tiled
end

--- Does what cross_entropy does where the weight is in parts on several ranks. Backward scores each tile again.
---@param o table the core's options
---@param known integer? how many labels count
local function over_parts(o, known)
  local split, parts = splits.of(o.weight), require "lockstep.losses.parts"
  plain.check(o.labels.shape == nil or o.labels:numel() * o.hidden:size(-1) == o.hidden:numel(),
    "tiled_mlp.cross_entropy: hidden %s needs a label for each token, got labels %s", tostring(o.hidden.shape),
    tostring(o.labels.shape))
  local hidden, labels = parts.shared(split.owner, o.hidden):reshape(-1, o.hidden:size(-1)), o.labels:reshape(-1)
  local outside = labels:lt(0):logical_or(labels:ge(split.total)):logical_and(labels:ne(o.ignore_index))
  if labels.device == "cpu" and outside:any():item() then -- on a GPU it would wait
    core.raise(("tiled_mlp.cross_entropy: a label is %d, but the vocabulary has %d ids; mask it with ignore_index = %d")
      :format(labels[outside][0]:item(), split.total, o.ignore_index))
  end
  local region, losses = checkpoint.new { preserve_rng = false }, {}
  local tile = o.tile_tokens or 1024
  for from = 0, hidden:size(0) - 1, tile do
    local rows = math.min(tile, hidden:size(0) - from)
    local own = labels:narrow(0, from, rows)
    losses[#losses + 1] = region(function(h, w, bias)
      return parts.token_losses(split, parts.scores(h, w, bias), own, o)
    end, hidden:narrow(0, from, rows), o.weight, o.bias)
  end
  local all = #losses > 0 and torch.cat(losses) or hidden:sum({ -1 })
  local count = known or labels:ne(o.ignore_index):sum():item()
  if o.reduction == "none" then return all:reshape(o.labels.shape), count end
  if o.reduction == "sum" then return all:sum(), count end
  return all:sum() / (o.divisor and o.divisor:item() or math.max(count, 1)), count
end

--- Returns the cross entropy of hidden [..., hidden] through a head's weight [vocabulary, hidden] and labels [...],
--- without the logits. Forward computes gradients of both, a tile of tokens at a time. Also returns the number of
--- labels that count: a tensor of one element while lockstep.graph records.
---
---     local loss, n = tiled_mlp.cross_entropy { hidden = h, weight = head, labels = labels, over_ranks = true }
---
--- reduction: "mean" over the labels that count (0 without any), "sum", or "none": a loss for each token. over_ranks:
--- the mean over the labels of all ranks of `group`. Each rank's loss is its share times the number of ranks. So the
--- mean of these losses is that mean, and data parallel averages to its gradient. Collective then. divisor: the divisor
--- instead of the count, for a mean over several micro-steps.
---@param opts tiled_mlp.CrossEntropy
---@return torch.Tensor loss
---@return integer count
function M.cross_entropy(opts)
  local o = options.read("tiled_mlp.cross_entropy", opts, plain.copy(core_tiled_mlp.cross_entropy_defaults, {
    hidden = options.required, weight = options.required, labels = options.required, bias = options.optional,
    reduction = "mean", tile_tokens = options.optional, divisor = options.optional, over_ranks = false,
    group = options.optional, count = options.optional }))
  local known = o.count
  plain.check(known == nil or plain.is_whole(known, 0),
    "tiled_mlp.cross_entropy: count must be a whole number of labels, not %s", tostring(known))
  if o.label_smoothing and not (o.label_smoothing >= 0 and o.label_smoothing <= 1) then
    core.raise(("tiled_mlp.cross_entropy: label_smoothing must be from 0 to 1, not %g"):format(o.label_smoothing))
  end
  if o.tile_tokens == 0 then core.raise("tiled_mlp.cross_entropy: tile_tokens must be at least 1, not 0") end
  local divisor = o.divisor and torch.tensor(o.divisor, { dtype = torch.float64 })
  if o.over_ranks then
    if divisor or o.reduction ~= "mean" then
      core.raise('tiled_mlp.cross_entropy: over_ranks is for reduction = "mean" without a divisor')
    end
    local total = torch.stack({ o.labels:ne(o.ignore_index):sum(), torch.ones_like(o.labels:sum()) })
    dist.all_reduce(total, "sum", { group = o.group })
    divisor = total[0]:clamp_min(1) / total[1]
  end
  o.over_ranks, o.group, o.divisor, o.count = nil, nil, divisor, nil
  if splits.of(o.weight) then
    return over_parts(o, known)
  end
  local loss, count = core_tiled_mlp.cross_entropy(o)
  return loss, known or torch.cuda.is_current_stream_capturing() and count or count:item()
end

return M
