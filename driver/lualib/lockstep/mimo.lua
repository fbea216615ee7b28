--- Modules of one model on separate ranks: the library `mimo` for scripts.

local core = require "lockstep.core"
local core_mimo = require "lockstep.core.mimo"
local dist = require "lockstep.distributed"
local options = require "lockstep.options"
local own_modules = require "lockstep.mimo.own_modules"
local plain = require "lockstep.plain"
local shared_weights = require "lockstep.mimo.shared_weights"
local splits = require "lockstep.nn.splits"
local topologies = require "lockstep.mimo.topology"
local torch = require "lockstep.torch"

local M = { loader = require "lockstep.mimo.loader", state = require("lockstep.mimo.state").state,
  ownership = require "lockstep.mimo.ownership", reorder = require "lockstep.mimo.reorder",
  separate = require "lockstep.mimo.separate", step = require "lockstep.mimo.step", topology = topologies.topology }

--- Draws the topology: grids with their ranks, the samples of each replica, the edges.
---@param topology mimo.Topology
---@param opts {format: "text"|"svg"?, micro_batch_size: integer?, max_replicas: integer?, max_ranks: integer?}?
---@return string
function M.draw(topology, opts) return topologies.check("mimo.draw", topology).core:draw(opts or {}) end

-- slice ---------------------------------------------------------------------------------------------

---@alias mimo.OwnedRows mimo.Ownership|string|{[1]: mimo.Ownership|string, [2]: mimo.RowsOf}

---@class mimo.SliceOptions
---@field ownership table<string, mimo.OwnedRows>? whose the rows are: mimo.ownership's tables
---@field rows_per_sample table<string, integer[]|torch.Tensor>?
---@field batch_dims table<string, integer|false>?
---@field batch_size integer? samples of the batch; else the number of "seq_lens", the rows of "input_ids", or of the
--- first tensor
---@field uneven boolean? replicas may differ by a sample

--- Returns this rank's part of a micro-batch that every rank has read whole. Tensors are views. Every tensor has one
--- row for each sample on dim 0 ("position_ids" of shape [3, batch, ...]: dim 1), unless one of these options declares
--- it, by key or by path ("modality_inputs.clip.pixel_values"). A key that the batch does not have is an error, unless
--- the samples have 0 rows of it.
---
--- A packed batch has `seq_lens`, the tokens of each sample. It is cut between the samples: tensors and arrays with a
--- row for each token by these lengths ("position_ids" on the last dim, a row [1, tokens] on dim 1).
---
--- `ownership`: the owners of rows, by a table of mimo.ownership. `pixel_values = images` if each row is a token (or
--- patch), `crops = { images, "items" }` if each row is an item. "images" names a table in the batch, which is cut with
--- it.
---
--- `rows_per_sample`: how many rows each sample has. Next to image_grid_thw (grid_thw, video_grid_thw) pixel_values
--- have t * h * w rows for each image; declare the grid by one of these two.
---
--- `batch_dims`: the batch dim, or false to pass a value on whole. Arrays of batch length are cut too; numbers and text
--- are passed on.
---
---     local mine = mimo.slice(batch, dp_rank, dp_size, { rows_per_sample = { image_grid_thw = { 1, 0, 2, 1 } } })
---@param batch table
---@param dp_rank integer
---@param dp_size integer with 1, the batch itself is returned, and what is declared of it checked
---@param opts mimo.SliceOptions?
---@return table
function M.slice(batch, dp_rank, dp_size, opts)
  local part = core_mimo.slice(batch, dp_rank, dp_size, opts)
  return dp_size == 1 and batch or part
end

--- Packs the padded samples of a batch into one row of tokens, as in mimo.pack(mimo.slice(batch, dp_rank, dp_size)). A
--- replica slices first, because equal parts of a packed row hold tokens of other replicas' samples. input_ids becomes
--- [T], and seq_lens has the tokens of each sample. `mask` [B, S] is 0 for padding, and is left out. Tensors
--- [B, S, ...], position_ids [..., B, S] and B lists of S values are packed; all else, and `whole`, is passed on.
--- Raises an error if there is no mask, if a tensor does not fit it, if the batch has samples but no token, or if it is
--- packed already. A tensor [B, n] of another width n > 1 must be in `whole`, unless its name is of media
--- (docs/mimo.md). cu_seqlens must hold the running sums of seq_lens.
---@param batch table
---@param opts {mask: string?, whole: string[]?}? mask: default "attention_mask"
---@return table
function M.pack(batch, opts) return core_mimo.pack(batch, opts) end

--- Returns an order of a micro-batch's samples that gives every replica a similar load, the same on every rank: sample
--- i of it is result[i]. Every module must use it: see mimo.reorder. With a per-token loss nothing else changes.
---@param costs number[] of each sample
---@param num_groups integer the least common multiple of all modules' dp; must divide the number of samples
---@return integer[]
function M.balanced_order(costs, num_groups) return core_mimo.balanced_order(costs, num_groups) end

--- Returns the cost of each of num_groups replicas under an order: the sums of its samples' costs.
---@param costs number[] of each sample
---@param order integer[] samples, from 1
---@param num_groups integer
---@return number[]
function M.group_costs(costs, order, num_groups) return core_mimo.group_costs(costs, order, num_groups) end

-- bridge --------------------------------------------------------------------------------------------

---@class mimo.Pending
local Pending = {}
Pending.__index = Pending

--- Returns the result of the bridge's call. On ranks of `to`, blocks until the rows have arrived.
---@return torch.Tensor|torch.Tensor[]
function Pending:wait()
  local results = self.core:wait()
  if self.is_list or #results > 1 then return results end
  return results[1]
end

--- Returns x as a list, rows_per_sample, ownership, and the ids of the samples as a text.
local function read_call(x, opts)
  local o = options.read("bridge", opts, { rows_per_sample = options.optional, ownership = options.optional,
    samples = options.optional, needs = options.optional })
  local ids = torch.is_tensor(o.samples) and o.samples:totable() or o.samples
  plain.check(ids == nil or type(ids) == "table", "bridge: samples must be an array of ids, not a %s", type(ids))
  local texts = {}
  for i, id in ipairs(ids or {}) do
    plain.check(type(id) == "number" or type(id) == "string",
      "bridge: samples[%d] must be a number or a string, not a %s", i, type(id))
    texts[i] = type(id) == "number" and ("%.17g"):format(id) or id
  end
  return { type(x) == "table" and x or { x }, o.rows_per_sample or false, o.ownership or false,
    ids and "{" .. table.concat(texts, ", ") .. "}" or "", o.needs or false }
end

---@class mimo.CallOptions
---@field ownership mimo.OwnedRows? of the rows, for the whole micro-batch
---@field rows_per_sample integer[]|torch.Tensor|nil the same in numbers
---@field samples any[]? ids of the whole micro-batch
---@field needs (integer[]|torch.Tensor)[]? of a bridge that was made with `needs`

---@class mimo.Bridge
---@operator call: torch.Tensor
local Bridge = {}
Bridge.__index = Bridge

--- Starts a call. On ranks of `to` it starts to receive the next micro-batch, before this one is used.
---
---     local next_call = bridge:start(nil, { rows_per_sample = rows })
---     ...
---     local y = next_call:wait()
---@param x torch.Tensor|torch.Tensor[]|nil
---@param opts mimo.CallOptions?
---@return mimo.Pending
function Bridge:start(x, opts)
  local ok, call_of = pcall(read_call, x, opts)
  if not ok then -- the peers wait for this rank's part
    self.core:refuse(call_of)
    error(call_of, 0)
  end
  local call = self.core:start(call_of[1], call_of[2] or nil, call_of[3] or nil, call_of[4],
    call_of[5] or nil)
  return setmetatable({ core = call, is_list = type(x) == "table" }, Pending)
end

--- Carries x from the ranks of `from` to those of `to`, and its gradient back.
---
---     local y = bridge(x, { rows_per_sample = tokens_of_each_sample })
---
--- Every rank of both modules calls it, equally often; x is nil on ranks of `to`. There y holds the rows of this
--- replica's samples. On ranks of `from` y has no rows but carries the graph: torch.sum(y):backward() waits for the
--- gradient, and continues into x. If x requires no grad (a frozen tower), no gradient is sent, and backward there
--- returns at once. x may also be an array of tensors with the same rows. Between modules on the same ranks y may be x
--- itself, or a view of its memory. An error inside a region of lockstep.checkpoint, which backward runs again: call
--- the bridge outside, and pass y to the region.
---
--- `ownership`: the owners of the rows (mimo.ownership); or `rows_per_sample`: how many rows each sample has. Both are
--- for the whole micro-batch, the same on every rank. Without them every rank of `from` must give the same number of
--- rows in every call, and each row counts as a sample. `samples`: the ids of the micro-batch's samples, which must be
--- the same on every rank. `needs`: see mimo.bridge.
---@param x torch.Tensor|torch.Tensor[]|nil
---@param opts mimo.CallOptions?
---@return torch.Tensor|torch.Tensor[]
function Bridge:__call(x, opts) return self:start(x, opts):wait() end

---@class mimo.BridgeOptions
---@field topology mimo.Topology
---@field from string
---@field to string
---@field dim integer?
---@field audit boolean?
---@field needs "cp"|"tp-cp"|nil

--- Makes a bridge between two modules' grids, of any sizes. Collective: every rank of both modules makes it, in the
--- same order as its other bridges.
---
--- dim: the dim of the rows, default 0. audit = true (default false): in every backward, the tp ranks of `to` compare
--- their gradients of y. If they differ, every rank gets an error that names two of them. It costs an all-gather.
---
--- needs = "cp" is for ranks of `to` that keep a chunk of each sequence, and would drop the rows of other chunks. Every
--- call then states, in `needs`, the rows that each of them takes: one list for each cp rank of each replica of `to`,
--- the same lists on every rank of both modules. Rows count from 0 in the replica's samples, and ascend. Only these
--- rows are sent, and y has them in this order. Its gradient is added to those of other chunks with the same row.
---
---     local y = bridge(x, { rows_per_sample = { 3, 5 }, needs = { { 0, 1, 6, 7 }, { 2, 3, 4, 5 } } }) -- cp 2
---
--- With "cp" the tp ranks of a cp rank need the same rows, and have the same gradient of y. needs = "tp-cp" takes a
--- list for each rank (tp varies fastest, then cp), and adds up the gradients of all, as sequence parallelism needs it.
---@param opts mimo.BridgeOptions
---@return mimo.Bridge
function M.bridge(opts)
  local o = options.read("mimo.bridge", opts,
    { topology = options.required, from = options.required, to = options.required, dim = 0, audit = false,
      needs = options.optional })
  plain.check(o.needs == nil or o.needs == "cp" or o.needs == "tp-cp", 'mimo.bridge: needs must be "cp" or "tp-cp", '
    .. "not %s", type(o.needs) == "string" and '"' .. o.needs .. '"' or "a " .. type(o.needs))
  plain.check(not (o.audit and o.needs == "tp-cp"), 'mimo.bridge: audit compares tp ranks with the same rows, and with '
    .. 'needs = "tp-cp" each has its own; leave audit out')
  collectgarbage() -- bridges that the script has dropped can be freed now
  local core_bridge = topologies.check("mimo.bridge", o.topology).core:bridge(o.from, o.to, o.dim, o.audit,
    o.needs or "none", false)
  o.topology.bridges[{}] = core_bridge
  return setmetatable({ core = core_bridge, topology = o.topology, from = o.from, to = o.to }, Bridge)
end

-- Gradients -----------------------------------------------------------------------------------------

--- Returns the parameters of a part that are trained. Frozen ones may keep gradients of an earlier step.
local function trained_of(part)
  local parameters = {}
  for _, p in ipairs(part.parameters) do
    if p.requires_grad then parameters[#parameters + 1] = p end
  end
  return parameters
end

--- Returns whether a part's gradients are those that were reduced last.
local function are_reduced(topology, part)
  local reduced = topology.reduced[part.parameters[1]]
  return reduced and reduced:are_unchanged(trained_of(part))
end

--- Remembers that a part's gradients are reduced. Each part has a memory of its own: calls may take modules in turn.
local function note_reduced(topology, part)
  local first = part.parameters[1]
  if not first then return end
  topology.reduced[first] = topology.reduced[first] or core_mimo.reduced_gradients()
  topology.reduced[first]:remember(trained_of(part))
end

--- Returns why this rank cannot reduce, or nil.
local function problem_of(topology, own)
  for _, bridge in pairs(topology.bridges) do
    local failure = bridge:failure()
    if failure then return "a bridge has failed on rank %d: " .. failure:gsub("%%", "%%%%") end
  end
  -- A replay, which is on one rank alone, changes gradients and not their versions. On a CPU lockstep.graph makes them.
  local may_replay = dist.world_size() == 1 and (dist.device() ~= "cpu" or package.loaded["lockstep.graph"] ~= nil)
  for _, part in ipairs(may_replay and {} or own) do
    if are_reduced(topology, part) then
      return ('the gradients of "%s" on rank %%d are those that the last call has reduced, and a second call would '
        .. "scale them twice: call it once a step, after all backward passes"):format(part.name)
    end
  end
end

--- Returns the number of tokens with a loss over all replicas of "language", on every rank. Its last stage has the loss
--- and gives the number; other ranks' values do not count. If a rank has a problem, raises an error on all: a rank that
--- shares no rows with a failed bridge does not know of it.
local function count_tokens(topology, tokens, wants_tokens, failure)
  local counts = torch.zeros({ 2 }, { dtype = torch.float64, device = dist.device() })
  counts[1]:fill_(failure and 1 or 0)
  local place = topology:peers("language", "dp") and topology:coordinates(nil, "language")
  if wants_tokens and place and place.pp == #topology:peers("language", "pp") - 1 then
    plain.check(type(tokens) == "number" and tokens >= 0 and tokens < math.huge,
      'mimo.reduce_gradients: with loss = "sum" ranks of the last stage of "language" must give `tokens`, '
      .. "how many of theirs have a loss, but rank %d gave %s", dist.rank(), tokens)
    if place.tp == 0 then counts[0]:fill_(tokens) end
  end
  local total, num_failed = unpack(dist.all_reduce(counts):totable())
  if num_failed > 0 then
    for rank, text in ipairs(dist.all_gather_object(failure or false)) do
      if text then
        core.raise("mimo.reduce_gradients: no rank reduces, since " .. text:format(rank - 1))
      end
    end
  end
  if wants_tokens and total == 0 then -- on every rank alike
    core.raise('mimo.reduce_gradients: no token of this step has a loss: the ranks of the last stage of "language" all '
      .. "gave tokens = 0; look at the loss mask, or skip such a step on every rank")
  end
  return wants_tokens and total or nil
end

---@class mimo.ReduceOptions
---@field topology mimo.Topology
---@field modules table<string, nn.Module|sharding.DataParallel|sharding.FullyShard>
---@field loss "sum"|"mean"
---@field tokens integer?
---@field micro_batches integer?
---@field mean_over "replica"|"rank"?

--- Returns the number of means that "language" has in a micro-batch with loss = "mean".
local function count_means(topology, mean_over)
  local language
  for _, module in ipairs(topology:modules()) do
    if module.name == "language" then language = module end
  end
  if mean_over == nil and language.cp > 1 then
    core.raise(('mimo.reduce_gradients: with loss = "mean" and cp %d of "language", say over whose tokens the loss of '
      .. 'a rank is the mean: mean_over = "replica" where it divides by the tokens of all its cp ranks, "rank" where '
      .. "by its own"):format(language.cp))
  elseif mean_over ~= nil and mean_over ~= "replica" and mean_over ~= "rank" then
    core.raise('mimo.reduce_gradients: mean_over must be "replica" or "rank", not ' .. tostring(mean_over))
  end
  return language.dp * (mean_over == "rank" and language.cp or 1)
end

--- Sums the gradients of each module over its replicas, and scales them to those of one rank with all the data,
--- whatever the modules' data-parallel sizes.
---
---     local tokens = mimo.reduce_gradients { topology = topo, modules = { vision = tower }, loss = "sum" }
---
--- loss = "sum": each rank's loss is the sum over its tokens. The last stage of "language" gives their number in the
--- whole step as `tokens`, each cp rank its own. The gradient becomes the gradient of the mean over all tokens. A step
--- without tokens is an error, on every rank, before anything is reduced. loss = "mean": each replica's loss is the
--- mean over its own tokens. The gradient becomes the gradient of the mean over replicas and micro_batches.
---
--- mean_over: required with "mean" if "language" has cp > 1. "replica": a cp rank's loss is the sum over its tokens
--- divided by the tokens of all cp ranks of its replica; the gradient equals one rank's. "rank": it is the mean over
--- its own tokens; the gradient becomes the gradient of the mean over all of these, so a token weighs more on a rank
--- with few tokens.
---
--- modules: this rank's modules, by name: plain modules, or what sharding.data_parallel or sharding.fully_shard
--- returned for the group topology:group(name, "dp-cp"), which have averaged the gradients already. Parameters that the
--- first and last stage share (see mimo.Module) are added up over both. A parameter of two modules is reduced once, and
--- counts once in the norm; both modules must be divided over the ranks alike. Gradients in bfloat16 and float16 are
--- summed and scaled in float32.
---
--- Collective: every rank of the topology, once after the backward passes of a step. Raises an error if a bridge's
--- call has had no backward on this rank, so that a gradient is missing. Raises an error on every rank if a bridge has
--- failed on one of them, or if no gradient of a module has changed since a call that reduced them.
---@param opts mimo.ReduceOptions
---@return integer? tokens of all ranks, with "sum"
function M.reduce_gradients(opts)
  local o = options.read("mimo.reduce_gradients", opts, { topology = options.required, modules = options.required,
    loss = options.required, tokens = options.optional, micro_batches = 1, mean_over = options.optional })
  plain.check(o.loss == "sum" or o.loss == "mean",
    'mimo.reduce_gradients: loss must be "sum" or "mean", not %s', o.loss)
  topologies.check("mimo.reduce_gradients", o.topology)
  local own = own_modules("mimo.reduce_gradients", o.topology, o.modules)
  for _, bridge in pairs(o.topology.bridges) do bridge:check_backward() end
  local means = o.loss == "mean" and count_means(o.topology, o.mean_over) or 1
  local tokens = count_tokens(o.topology, o.tokens, o.loss == "sum", problem_of(o.topology, own))
  for _, part in ipairs(own) do
    local factor = core_mimo.gradient_scale { loss = o.loss, reduction = part.is_averaged and "mean" or "sum",
      reduction_size = part.sizes.dp * part.sizes.cp, language_dp = means, micro_batches = o.micro_batches,
      tokens = tokens }
    local group = not part.is_averaged and o.topology:group(part.name, "dp-cp") or nil
    core_mimo.reduce_gradients(part.parameters, group, factor)
    local shared, stages = shared_weights.find(o.topology, part)
    if stages then core_mimo.reduce_gradients(shared, stages, 1) end
  end
  for _, part in ipairs(own) do note_reduced(o.topology, part) end
  o.topology.loss_divisor = tokens or means * o.micro_batches -- for the losses of mimo.step
  return tokens
end

--- Raises an error on every rank unless all ranks clip to one max_norm. Reading the limits waits for a GPU: there a
--- rank reads them only if its own max_norm is another than in its last call.
local function check_max_norms(topology, max_norm, limits)
  if limits.device ~= "cpu" and topology.max_norm == max_norm then return end
  topology.max_norm = max_norm
  local texts, differ = {}, false
  for i, limit in ipairs(limits:totable()) do
    texts[i] = ("rank %d has %.17g"):format(i - 1, limit)
    differ = differ or limit ~= max_norm
  end
  plain.check(not differ, "mimo.clip_grad_norm: max_norm must be the same on every rank, but %s%s",
    table.concat(texts, ", "), limits.device == "cpu" and "; no rank has clipped" or "")
end

---@class mimo.ClipOptions
---@field topology mimo.Topology
---@field modules table<string, nn.Module|sharding.DataParallel|sharding.FullyShard>
---@field max_norm number
---@field tp_sharded (fun(module: string, parameter: string): boolean)?
---@field error_if_nonfinite boolean?

--- Scales the gradients of all modules so that their joint 2-norm is at most `max_norm`. Returns the norm before, a
--- float64 scalar that is the same on every rank. Replicas count once, and so do weights that the first and last stage
--- share. Each shard of sharding.fully_shard counts. With tp > 1, `tp_sharded(module_name, parameter_name)` returns
--- whether a parameter is divided over tp; the others count once. Default: those that sharding.tensor_parallel has
--- divided.
---
---     local norm = mimo.clip_grad_norm { topology = topo, modules = { vision = tower }, max_norm = 1 }
---     if norm:isfinite():item() then optimizer:step() end -- all ranks skip the step, or none
---     optimizer:zero_grad()
---
--- One infinite or NaN gradient on any rank makes the norm infinite or NaN on every rank, and no gradient is changed.
--- `error_if_nonfinite` makes that an error on every rank; it reads the norm, so it waits for a GPU.
---
--- Collective: every rank of the topology, after mimo.reduce_gradients, with one max_norm. Ranks that have different
--- ones get an error that names each rank's.
---@param opts mimo.ClipOptions
---@return torch.Tensor
function M.clip_grad_norm(opts)
  local o = options.read("mimo.clip_grad_norm", opts, { topology = options.required, modules = options.required,
    max_norm = options.required, tp_sharded = options.optional, error_if_nonfinite = false })
  plain.check(type(o.max_norm) == "number" and o.max_norm > 0,
    "mimo.clip_grad_norm: max_norm must be a number above 0, not %s", o.max_norm)
  topologies.check("mimo.clip_grad_norm", o.topology)
  local own, parts = own_modules("mimo.clip_grad_norm", o.topology, o.modules), {}
  for i, part in ipairs(own) do
    local is_split = {}
    for j, p in ipairs(part.parameters) do is_split[part.names[j]] = splits.of(p) ~= nil end
    local is_divided = o.tp_sharded or function(_, name) return is_split[name] end
    if part.sizes.tp > 1 and not o.tp_sharded and not splits.has_parts(part.parameters) then
      core.raise(string.format('mimo.clip_grad_norm: "%s" has tp %d; say which of its parameters are divided over tp '
        .. "(tp_sharded)", part.name, part.sizes.tp))
    end
    local _, stages, is_last = shared_weights.find(o.topology, part)
    local counted, divided = {}, {}
    for j, name in ipairs(part.names) do
      if not (stages and is_last and part.shared[name]) then
        counted[#counted + 1] = part.parameters[j]
        divided[#divided + 1] = part.sizes.tp > 1 and is_divided(part.name, name) and true or false
      end
    end
    parts[i] = { part.name, counted, divided, part.copy }
  end
  local norm, limits = o.topology.core:gradient_norm(parts, o.max_norm)
  check_max_norms(o.topology, o.max_norm, limits)
  if o.error_if_nonfinite and not norm:isfinite():item() then
    core.raise(("mimo.clip_grad_norm: the norm of all gradients is %g; no rank has clipped, skip this step"):format(
      norm:item()))
  end
  for _, part in ipairs(own) do
    local is_reduced = are_reduced(o.topology, part)
    core_mimo.clip_gradients(part.parameters, norm, o.max_norm)
    if is_reduced then note_reduced(o.topology, part) end
  end
  return norm
end

return M
