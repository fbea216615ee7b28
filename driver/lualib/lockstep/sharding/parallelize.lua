--- sharding.parallelize: a model on a grid of ranks.

local agreement = require "lockstep.state.agreement"
local context = require "lockstep.sharding.context"
local core = require "lockstep.core"
local data_parallel = require "lockstep.sharding.data_parallel"
local disagreement = require "lockstep.sharding.disagreement"
local expert_parallel = require "lockstep.sharding.expert_parallel"
local few_bits = require "lockstep.nn.few_bits"
local fully_shard = require "lockstep.sharding.fully_shard"
local grids = require "lockstep.sharding.grid"
local members_of = require "lockstep.sharding.members"
local neftune = require "lockstep.nn.neftune"
local nn = require "lockstep.nn"
local options = require "lockstep.options"
local pipeline = require "lockstep.sharding.pipeline"
local plain = require "lockstep.plain"
local schedule = require "lockstep.sharding.pipeline.schedule"
local tensor_parallel = require "lockstep.sharding.tensor_parallel"

local M = {}

local check, fail = plain.checks "sharding.parallelize: "

---@class sharding.ParallelOptions
---@field fully_shard sharding.FullyShardOptions|false|nil along dp x cp; false: replicas. Default: {}
---@field data_parallel sharding.DataParallelOptions? of replicas; find_unused: default true for a model with a vision
--- tower, which text does not run
---@field sequence boolean? with tp: values between the layers are split by tokens, whose number in a micro-batch must
--- be a multiple of grid.token_multiple: batching.prepare has pad_to_multiple_of
---@field plan table<string, string>? with tp: see sharding.tensor_parallel; default: the model's own
---@field cp "ring"|"all_to_all"|nil how attention sees other ranks' tokens; default: all-to-all where the ranks of cp
--- divide the query heads of a tp rank
---@field order "1f1b"|"interleaved"|"all_forwards_first"|""|nil of a pipeline's micro-batches; default, also "":
--- "interleaved" with chunks, else "1f1b"
---@field chunks integer? parts of the model on each stage of a pipeline: 1 unless given
---@field checkpoint checkpoint.Checkpoint|table|nil recomputes layers in backward: see models.CausalLM

--- Options that say something of one axis, and the axis.
local OF_AXIS = { sequence = "tp", plan = "tp", cp = "cp", order = "pp", chunks = "pp" }

--- Returns the options, checked.
---@param grid sharding.Grid
---@param given sharding.ParallelOptions?
---@return sharding.ParallelOptions
local function read_options(grid, given)
  local o = options.read("sharding.parallelize", given, { fully_shard = options.optional,
    data_parallel = options.optional, sequence = false, plan = options.optional, cp = options.optional,
    order = options.optional, chunks = 1, checkpoint = options.optional })
  if o.fully_shard == nil then o.fully_shard = {} end
  check(o.fully_shard == false or type(o.fully_shard) == "table",
    "fully_shard must be a table of options, or false for replicas, not a %s", type(o.fully_shard))
  check(o.data_parallel == nil or not o.fully_shard, "data_parallel is for replicas; give fully_shard = false with it")
  for _, name in ipairs { "group", "replicas" } do
    check(not (o.fully_shard and o.fully_shard[name] ~= nil), "fully_shard.%s comes from the grid; leave it out", name)
    check(not (o.data_parallel and o.data_parallel[name] ~= nil), "data_parallel.%s comes from the grid; leave it out",
      name)
  end
  check(o.fully_shard or grid.replicas == 1, "replicas = %d of the grid is for fully_shard, and all ranks of dp hold "
    .. "replicas with fully_shard = false", grid.replicas)
  check(grid.ep == 1 or o.data_parallel == nil, "data_parallel has no options where ep is %d: fully_shard holds the "
    .. "replicas; leave them out", grid.ep)
  check(grid.pp == 1 or o.data_parallel == nil, "data_parallel has no options where pp is %d: the pipeline averages "
    .. "gradients; leave them out", grid.pp)
  check(o.cp == nil or o.cp == "ring" or o.cp == "all_to_all", 'cp must be "ring" or "all_to_all", not %s',
    plain.shown(o.cp, "string"))
  if o.order == "" then o.order = nil end
  local named = plain.copy(o)
  if o.chunks == 1 then named.chunks = nil end -- the default
  if o.order == nil then o.order = o.chunks == 1 and "1f1b" or "interleaved" end
  schedule.check(o.order, o.chunks)
  for name, axis in pairs(OF_AXIS) do
    local reason = ("where %s is 1"):format(axis)
    if grid[axis] == 1 then options.note_unused("sharding.parallelize", named, { name }, reason) end
  end
  return o
end

--- The changes that the axes make to the net, in their order: each sees what the ones before have made. pp comes last.
--- `has_values` is false for a net without memory, on "meta".
---@type {axis: string, apply: fun(net: nn.Module, grid: sharding.Grid, o: table, has_values: boolean)}[]
local STEPS = {
  { axis = "tp", apply = function(net, grid, o, has_values)
    local split = has_values and tensor_parallel.tensor_parallel or tensor_parallel.on_meta
    split(net, { group = grid:group "tp", plan = o.plan, sequence = o.sequence })
  end },
  { axis = "ep", apply = function(net, grid, _, has_values)
    expert_parallel.divide(net, grid:group "ep", has_values)
  end },
  { axis = "cp", apply = function(net, grid, o)
    context.attach("sharding.parallelize", net, members_of("sharding.parallelize", "cp", grid:group "cp"), o.cp)
  end },
}

--- Raises for what a grid does not go with.
local function check_axes(net, grid)
  check(not core.verify_every() or grid.cp * grid.ep * grid.pp == 1, "--verify-every compares replicas that compute "
    .. "the same, and a grid of %s has none; leave it out", tostring(grid))
  check(grid.pp == 1 or select(2, few_bits.layers(net)) == 0, "layers in 4 or 8 bits cannot be divided into stages; "
    .. "load the model with load_in_4bit = false or load_in_8bit = false (scripts: --set read_whole=true), or "
    .. "leave pp out")
  check(grid.pp == 1 or not grid.ranks_of_all or grid.is_of_module, "pp needs a grid of all ranks of the run, and this "
    .. "one has some of them; leave pp out")
  check(grid.cp * grid.pp == 1 or not neftune.is_on(net), "nn.neftune needs whole sequences and the whole model; leave "
    .. "it out, or cp and pp")
end

--- Raises on every rank unless all give the same options: else they would wait for each other later on.
local function compare(o, group)
  local found = disagreement.gather(("fully_shard %s, sequence %s, cp %s, order %s, chunks %d, checkpoint %s"):format(
    o.fully_shard and "{}" or "false", tostring(o.sequence), tostring(o.cp), tostring(o.order), o.chunks,
    o.checkpoint ~= nil and "given" or "nil"), group)
  check(not found, "every rank must give the same options, got %s", found)
end

--- Returns whether some micro-batches leave parts of the net out: text runs no vision tower.
local function has_tower(net)
  local config = net.config
  return type(config) == "table" and config.vision_config ~= nil and config.vision_config ~= core.null
end

--- Checks the arguments, and applies the steps. Returns the options, and those of fully_shard, or nil and those of
--- data_parallel.
local function prepare(net, grid, opts, has_values)
  check(nn.is_module(net), "expected a module, not a %s", type(net))
  if not grids.is_one(grid) then
    fail("expected what sharding.grid returned, not "
      .. (type(grid) == "table" and "a table; write sharding.parallelize(net, sharding.grid { tp = 2 })"
        or "a " .. type(grid)))
  end
  local o = read_options(grid, opts)
  check_axes(net, grid)
  compare(o, grid.ranks_of_all)
  if o.checkpoint ~= nil then net.checkpoint = o.checkpoint end
  if package.loaded["lockstep.dry_run"] then require("lockstep.sharding.planning.ranks").note(net, grid, o) end
  for _, step in ipairs(STEPS) do
    if grid[step.axis] > 1 then step.apply(net, grid, o, has_values) end
  end
  if o.sequence and grid.tp > 1 then grid.token_multiple = grid.tp * grid.cp end
  local group = grid:group "dp_cp"
  if grid.ep > 1 then return o, expert_parallel.shards(net, grid, o.fully_shard) end
  if o.fully_shard then
    return o, plain.copy(o.fully_shard, { group = group, replicas = grid.replicas })
  end
  local replicas = plain.copy({ find_unused = has_tower(net) }, o.data_parallel)
  return o, nil, plain.copy(replicas, { group = group })
end

--- Divides the net's layers over pp. `wrap` gives each stage its values or shards, and returns the shards if there are
--- any.
local function divide(net, grid, o, has_values, wrap)
  return pipeline.pipeline(net, { group = grid:group "pp", data = grid:group "dp_cp",
    experts = grid:group "expert_dp", same = grid:group "tp_cp_pp", chunks = o.chunks, order = o.order, wrap = wrap,
    has_values = has_values, dtype = o.fully_shard and o.fully_shard.param_dtype or nil })
end

--- Puts a model on a grid of ranks: splits its layers over tp, and divides them into stages over pp. Shares the parts
--- out along dp x cp with sharding.fully_shard, or replicates them. Use the result in place of the net from here on.
---
---     local grid = sharding.grid { tp = 2 }
---     local model = sharding.parallelize(net, grid, { sequence = true })
---     local optimizer = optim.AdamW(model:parameters())
---     local loss = sharding.accumulate(model, micro_batches, count, function(b) return model(b, "loss") end)
---     optim.clip_grad_norm(model:parameters(), 1.0)
---
--- sharding.accumulate, sharding.evaluate, optim.clip_grad_norm, models.generate, models.save and run:state work as on
--- one rank. Micro-batches, and the batches of evaluate, are those of the rank's dp row, grid:rank "dp" of grid.dp:
--- ranks that differ on other axes alone are given the same ones. Models of models.load compare them. Saved weights and
--- optimizer states are whole, and go on in any other grid.
---
--- Ranks of a cp group are given whole micro-batches, and the model cuts them: each rank holds a chunk of the tokens,
--- of equal work. `loss` returns the sum and the count of the chunk. Other results are those of the whole batch.
---
--- Options for one axis have no effect where the grid has one rank on it, so a script can give them always.
---
--- Collective: every rank of the grid calls this with the same net and options.
---@param net nn.Module
---@param grid sharding.Grid
---@param opts sharding.ParallelOptions?
---@return sharding.FullyShard|sharding.DataParallel|sharding.Pipeline
function M.parallelize(net, grid, opts)
  local o, shards, replicas = prepare(net, grid, opts, true)
  local model
  if grid.pp > 1 then
    model = divide(net, grid, o, true, function() return shards and fully_shard.fully_shard(net, shards) end)
  else
    model = shards and fully_shard.fully_shard(net, shards) or data_parallel.data_parallel(net, replicas)
  end
  grids.note(model, grid)
  return model
end

M.parallelize = agreement.counted(M.parallelize)

--- Does the same to a net that nn.parameter.on_meta built. `fill(shards)` gives it values, and returns the model of
--- fully_shard with the options `shards`, or nothing where they are nil.
---@param net nn.Module
---@param grid sharding.Grid
---@param opts sharding.ParallelOptions?
---@param fill fun(shards: sharding.FullyShardOptions?): sharding.FullyShard?
---@return sharding.FullyShard|sharding.DataParallel|sharding.Pipeline
function M.on_meta(net, grid, opts, fill)
  local o, shards, replicas = prepare(net, grid, opts, false)
  local model
  if grid.pp > 1 then
    model = divide(net, grid, o, false, function() return fill(shards) end)
  else
    model = fill(shards) or data_parallel.data_parallel(net, replicas)
  end
  grids.note(model, grid)
  return model
end

return M
