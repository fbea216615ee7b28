--- sharding.propose: which grid trains a model on so many GPUs, from a model of time and memory.

local config = require "lockstep.models.config"
local cost = require "lockstep.sharding.planning.cost"
local cut = require "lockstep.sharding.pipeline.cut"
local folder = require "lockstep.models.folder"
local options = require "lockstep.options"
local plain = require "lockstep.plain"
local shapes = require "lockstep.sharding.planning.shape"
local tables = require "lockstep.log.tables"

local CALLER = "sharding.propose"
local MEMORY_SHARE = 0.8 -- of memory_gib: 454 runs below it never ran out (arXiv 2411.06465)
local SHOWN = 8          -- rows of a printed table
local MOST_SEQUENCES, MOST_CHUNKS = 16, 8

local check, fail = plain.checks(CALLER .. ": ")

--- An NVIDIA H100 SXM in nodes of 8. flops and memory_bandwidth: its data sheet, dense bfloat16. link_gb_s: NVLink 4,
--- 900 GB/s in both directions. network_gb_s: one 400 Gb/s network card for each GPU, as in a DGX H100. efficiency and
--- latency_us: assumed.
local H100 = { flops = 989e12, efficiency = 0.6, memory_bandwidth = 3.35e12, link_gb_s = 450, network_gb_s = 50,
  gpus_per_node = 8, latency_us = 10 }

---@class sharding.Proposal
---@field grid {tp: integer, cp: integer, ep: integer, pp: integer, dp: integer, replicas: integer}
---@field step_s number predicted seconds of a step
---@field memory_gib number predicted peak of the rank that needs the most
---@field why string where the time goes
---@field micro_batches integer of a dp row in a step
---@field sequences integer of seq_len tokens in a micro-batch
---@field order "1f1b"|"interleaved"|nil with pp
---@field chunks integer of layers on each stage
---@field checkpoint boolean whether each layer is computed again in backward
---@field fully_shard {reshard_after_forward: boolean}
---@field sync "last"|"each" for sharding.accumulate
---@field tokens_per_s number of one GPU
---@field mfu number FLOPs that the model needs, by the GPU's peak
---@field shares table<string, number> seconds of the step by what takes them

---@class sharding.ProposeOptions
---@field config table|string
---@field gpus integer
---@field memory_gib number
---@field seq_len integer
---@field tokens_per_step integer
---@field grid {tp: integer?, cp: integer?, ep: integer?, pp: integer?, dp: integer?}?
---@field measured table?
---@field flops number?
---@field efficiency number?
---@field memory_bandwidth number?
---@field link_gb_s number?
---@field network_gb_s number?
---@field gpus_per_node integer?
---@field latency_us number?

---@class sharding.Loser
---@field grid table<string, integer> the axes that decide it
---@field why string

local AXES = { "tp", "cp", "ep", "pp", "dp" }

local function grid_text(grid)
  local texts = {}
  for _, axis in ipairs(AXES) do
    if grid[axis] and (grid[axis] > 1 or axis == "dp") then texts[#texts + 1] = axis .. " " .. grid[axis] end
  end
  return table.concat(texts, " x ")
end

-- Input -----------------------------------------------------------------------------------------------

local function check_whole(name, value)
  check(plain.is_whole(value, 1) and value ~= math.huge, "%s must be a whole number of at least 1, not %s", name,
    plain.shown(value, "number"))
end

local function check_positive(name, value, most)
  check(type(value) == "number" and value > 0 and value <= (most or math.huge) and value < math.huge,
    "%s must be a number above 0%s, not %s", name, most and " and at most " .. most or "", plain.shown(value, "number"))
end

local function check_work(prefix, o)
  for _, name in ipairs { "gpus", "seq_len", "tokens_per_step" } do check_whole(prefix .. name, o[name]) end
  check(o.tokens_per_step % o.seq_len == 0, "%stokens_per_step %d is not a multiple of seq_len %d; give %d", prefix,
    o.tokens_per_step, o.seq_len, math.max(1, math.floor(o.tokens_per_step / o.seq_len + 0.5)) * o.seq_len)
end

local function read_options(opts)
  local o = options.read(CALLER, opts, plain.copy(H100, { config = options.required, gpus = options.required,
    memory_gib = options.required, seq_len = options.required, tokens_per_step = options.required,
    grid = options.optional, measured = options.optional }))
  check_work("", o)
  check_positive("memory_gib", o.memory_gib)
  check_whole("gpus_per_node", o.gpus_per_node)
  check_positive("efficiency", o.efficiency, 1)
  for _, name in ipairs { "flops", "memory_bandwidth", "link_gb_s", "network_gb_s", "latency_us" } do
    check_positive(name, o[name])
  end
  o.grid = options.read(CALLER .. ": grid", o.grid, { tp = options.optional, cp = options.optional,
    ep = options.optional, pp = options.optional, dp = options.optional, replicas = options.optional })
  for name, size in pairs(o.grid) do check_whole("grid." .. name, size) end
  check((o.grid.replicas or 1) == 1, "grid.replicas is %d; the model of memory knows replicas = 1 alone",
    o.grid.replicas)
  if type(o.config) == "string" then o.config = config.read(folder.find(o.config, CALLER)) end
  check(type(o.config) == "table", "config must be a table as config.json has it, or a folder, not a %s",
    type(o.config))
  return o
end

-- The search --------------------------------------------------------------------------------------------

local function gib(bytes) return bytes / 2 ^ 30 end

--- Calls fn with the ways in which a step can run on a grid: sequences in a micro-batch, chunks, and whether
--- fully_shard frees weights after each unit. With pp the weights stay gathered.
local function each_way(search, grid, fn)
  local per_row, sequences = search.num_sequences / grid.dp, 1
  local most_parts = #search.shape.layers - cut.joined_layers(search.shape.model) + 1
  while sequences <= MOST_SEQUENCES and per_row % sequences == 0 do
    local micro_batches, chunks = per_row / sequences, 1
    while chunks == 1 or chunks <= MOST_CHUNKS and grid.pp > 1 and grid.pp * chunks <= most_parts
      and micro_batches % grid.pp == 0 do
      for reshard = 0, grid.pp == 1 and grid.dp * grid.cp > 1 and 1 or 0 do
        fn { tp = grid.tp, cp = grid.cp, ep = grid.ep, pp = grid.pp, dp = grid.dp, sequences = sequences,
          micro_batches = micro_batches, chunks = chunks, reshard = reshard == 1, checkpoint = false }
      end
      chunks = chunks * 2
    end
    sequences = sequences * 2
  end
end

local function stages_of(search, pp, chunks)
  local key = pp * 64 + chunks
  search.stages[key] = search.stages[key] or shapes.stages(search.shape, pp, chunks)
  return search.stages[key]
end

--- Tries the ways to run a grid. Returns the best that fits, or nil, and the least bytes that any way takes. Layers are
--- computed again only where the memory does not suffice: that is never faster.
local function try(search, grid)
  local best, least = nil, math.huge
  each_way(search, grid, function(c)
    search.num_candidates = search.num_candidates + 1
    local stages = stages_of(search, c.pp, c.chunks)
    local bytes = cost.memory(search.shape, search.seq_len, c, stages)
    if bytes > search.most_bytes then
      c.checkpoint = true
      bytes = cost.memory(search.shape, search.seq_len, c, stages)
    end
    least = math.min(least, bytes)
    if bytes > search.most_bytes then return end
    local step_s, shares = cost.time(search.shape, search.device, search.seq_len, c, stages)
    if not best or step_s < best.step_s or step_s == best.step_s and bytes < best.memory_bytes then
      best = { candidate = c, step_s = step_s, shares = shares, memory_bytes = bytes }
    end
  end)
  return best, least
end

local SHARES = { "compute", "bubble", "tp", "cp", "ep", "pp", "dp", "optimizer" }

local function explain(found)
  local texts = {}
  for _, name in ipairs(SHARES) do
    local share = (found.shares[name] or 0) / found.step_s
    if share >= 0.005 then texts[#texts + 1] = ("%s %.0f %%"):format(name, 100 * share) end
  end
  return table.concat(texts, ", ")
end

local function proposal_of(search, found)
  local candidate = found.candidate
  local tokens = search.num_sequences * search.seq_len
  local per_gpu = tokens / found.step_s / search.gpus
  local grid = { replicas = 1 }
  for _, axis in ipairs(AXES) do grid[axis] = candidate[axis] end
  return { grid = grid, step_s = found.step_s, memory_gib = gib(found.memory_bytes), why = explain(found),
    micro_batches = candidate.micro_batches, sequences = candidate.sequences, chunks = candidate.chunks,
    order = candidate.pp > 1 and (candidate.chunks > 1 and "interleaved" or "1f1b") or nil,
    checkpoint = candidate.checkpoint, fully_shard = { reshard_after_forward = candidate.reshard },
    sync = candidate.reshard and "each" or "last", tokens_per_s = per_gpu,
    mfu = per_gpu * cost.flops_per_token(search.shape, search.seq_len) / search.device.flops, shares = found.shares }
end

--- Returns why no grid with this size of an axis can run, or nil.
local function axis_problem(search, axis, size)
  if search.wanted[axis] and search.wanted[axis] ~= size then return false end
  if axis == "tp" then
    if size > search.device.gpus_per_node then
      return ("tp %d would span nodes of %d GPUs"):format(size, search.device.gpus_per_node)
    end
    if search.device.gpus_per_node % size ~= 0 then
      return ("tp %d does not divide the %d GPUs of a node"):format(size, search.device.gpus_per_node)
    end
    return search.shape.check_tp(size)
  elseif axis == "pp" and size > 1 then
    if size > #search.shape.layers then
      return ("pp %d is more than the %d layers"):format(size, #search.shape.layers)
    end
    local can, problem = pcall(cut.check, search.shape.model, size)
    return not can and tostring(problem):match "sharding%.parallelize: (.*)" or nil
  end
end

--- Returns the sizes of an axis that can run. Those that cannot are losers.
local function sizes_of(search, axis)
  local sizes = {}
  for _, size in ipairs(shapes.divisors(search.gpus)) do
    local problem = axis_problem(search, axis, size)
    if problem then
      search.losers[#search.losers + 1] = { grid = { [axis] = size }, why = problem }
    elseif problem == nil then
      sizes[#sizes + 1] = size
    end
  end
  return sizes
end

--- The number of ranks that may share the experts: it divides the experts and cp x dp.
local function expert_sizes(search, shared)
  local sizes = {}
  for _, size in ipairs(search.shape.num_experts > 0 and shapes.divisors(search.shape.num_experts) or { 1 }) do
    local is_wanted = not search.wanted.ep or search.wanted.ep == size
    if shared % size == 0 and is_wanted then sizes[#sizes + 1] = size end
  end
  return sizes
end

local function try_grid(search, grid, found)
  local best, least = try(search, grid)
  if best then
    found[#found + 1] = proposal_of(search, best)
    return
  end
  search.losers[#search.losers + 1] = { grid = grid, least_gib = gib(least), why = ("needs %.4g GiB of %.4g (%d %% "
    .. "of %.4g)"):format(gib(least), gib(search.most_bytes), 100 * MEMORY_SHARE,
    gib(search.most_bytes) / MEMORY_SHARE) }
end

local function search_of(o, shape)
  return { shape = shape, device = plain.copy(o), seq_len = o.seq_len, num_sequences = o.tokens_per_step / o.seq_len,
    gpus = o.gpus, most_bytes = MEMORY_SHARE * o.memory_gib * 2 ^ 30, wanted = o.grid, losers = {},
    num_candidates = 0, stages = {} }
end

--- Tries every ep of a grid.
local function try_experts(search, tp, cp, pp, found)
  local dp, shape = search.gpus / (tp * cp * pp), search.shape
  if dp % 1 ~= 0 or (search.wanted.dp or dp) ~= dp then return end
  if cp > 1 and shape.model.has_states then
    search.losers[#search.losers + 1] = { grid = { tp = tp, cp = cp, pp = pp, dp = dp },
      why = ("layers of %s pass a state along the sequence, which chunks do not hand on"):format(
        shape.model.class_name) }
    return
  end
  if cp > 1 and shape.model.needs_whole_sequences and shape.heads / tp % cp ~= 0 then
    search.losers[#search.losers + 1] = { grid = { tp = tp, cp = cp, pp = pp, dp = dp },
      why = ("the attention of %s needs whole sequences, and tp %d x cp %d does not divide its %d query heads"):format(
        shape.model.class_name, tp, cp, shape.heads) }
    return
  end
  if search.num_sequences % dp ~= 0 then
    search.losers[#search.losers + 1] = { grid = { tp = tp, cp = cp, pp = pp, dp = dp },
      why = ("dp %d does not divide the %d sequences of a step"):format(dp, search.num_sequences) }
    return
  end
  for _, ep in ipairs(expert_sizes(search, dp * cp)) do
    try_grid(search, { tp = tp, cp = cp, ep = ep, pp = pp, dp = dp }, found)
  end
end

--- Sorts proposals: the fastest first. Among equal times, to four digits, a grid comes first that divides the model
--- among fewer ranks, then one that takes less memory.
local function sort(found)
  local keys = {}
  for _, proposal in ipairs(found) do
    local grid = proposal.grid
    keys[proposal] = { tonumber(("%.4g"):format(proposal.step_s)), grid.tp * grid.cp * grid.pp, grid.ep,
      proposal.memory_gib, grid.tp, grid.cp }
  end
  table.sort(found, function(a, b)
    local x, y = keys[a], keys[b]
    for i = 1, #x do
      if x[i] ~= y[i] then return x[i] < y[i] end
    end
    return false
  end)
end

--- Notes the given sizes that no grid has: those that do not divide the GPUs, or the experts.
local function note_impossible(search)
  local wanted, product = search.wanted, 1
  local function lose(grid, why, ...) search.losers[#search.losers + 1] = { grid = grid, why = why:format(...) } end
  local given, divides = {}, true
  for _, axis in ipairs { "tp", "cp", "pp", "dp" } do
    local size = wanted[axis] or 1
    given[axis], product = wanted[axis], product * size
    if search.gpus % size ~= 0 then
      divides = false
      lose({ [axis] = size }, "%s %d does not divide the %d GPUs", axis, size, search.gpus)
    end
  end
  if divides and search.gpus % product ~= 0 then
    lose(given, "together these are %d ranks, which do not divide the %d GPUs", product, search.gpus)
  end
  if not wanted.ep or wanted.ep == 1 then return end
  if search.shape.num_experts == 0 then
    lose({ ep = wanted.ep }, "%s has no mixture of experts", search.shape.model.class_name)
  elseif search.shape.num_experts % wanted.ep ~= 0 then
    lose({ ep = wanted.ep }, "ep %d does not divide the %d experts", wanted.ep, search.shape.num_experts)
  elseif search.gpus % wanted.ep ~= 0 then
    lose({ ep = wanted.ep }, "ep %d does not divide the %d GPUs, as it must divide dp x cp", wanted.ep, search.gpus)
  end
end

local function find(search)
  local found = {}
  note_impossible(search)
  local tps, cps, pps = sizes_of(search, "tp"), sizes_of(search, "cp"), sizes_of(search, "pp")
  for _, tp in ipairs(tps) do
    for _, cp in ipairs(cps) do
      for _, pp in ipairs(pps) do try_experts(search, tp, cp, pp, found) end
    end
  end
  sort(found)
  return found
end

-- Measured steps ------------------------------------------------------------------------------------------

--- Returns the efficiency with which the model of time gives the measured seconds. Time falls as efficiency rises.
local function efficiency_of(o, shape)
  local m = options.read(CALLER .. ": measured", o.measured, { step_s = options.required, grid = {}, gpus = o.gpus,
    seq_len = o.seq_len, tokens_per_step = o.tokens_per_step, sequences = 1, chunks = 1, checkpoint = false,
    reshard_after_forward = true })
  check_work("measured.", m)
  check_positive("measured.step_s", m.step_s)
  local grid = { tp = 1, cp = 1, ep = 1, pp = 1 }
  for axis, size in pairs(m.grid) do grid[axis] = size end
  grid.dp = m.gpus / (grid.tp * grid.cp * grid.pp)
  local micro_batches = m.tokens_per_step / m.seq_len / grid.dp / m.sequences
  check(grid.dp % 1 == 0 and micro_batches % 1 == 0 and micro_batches ~= 0,
    "measured: %d sequences on %d GPUs are no whole number of micro-batches of %d sequences on %s",
    m.tokens_per_step / m.seq_len, m.gpus, m.sequences, grid_text(grid))
  local candidate = plain.copy(grid, { sequences = m.sequences, micro_batches = micro_batches, chunks = m.chunks,
    checkpoint = m.checkpoint, reshard = m.reshard_after_forward and grid.pp == 1 })
  local stages = shapes.stages(shape, grid.pp, m.chunks)
  local function time(efficiency)
    return (cost.time(shape, plain.copy(o, { efficiency = efficiency }), m.seq_len, candidate, stages))
  end
  local low, high = 1e-6, 1
  if m.step_s < time(high) or m.step_s > time(low) then
    fail("measured: %.4g s a step is %s; the device's figures (flops, memory_bandwidth, link_gb_s, network_gb_s) allow "
      .. "at least %.4g s", m.step_s, m.step_s < time(high) and "too fast" or "too slow to be this device", time(high))
  end
  for _ = 1, 60 do
    local middle = (low + high) / 2
    if time(middle) > m.step_s then low = middle else high = middle end
  end
  return high
end

-- Printing ------------------------------------------------------------------------------------------------

local Proposals = {}
Proposals.__index = Proposals

local function row_of(proposal)
  local how = {}
  if proposal.chunks > 1 then how[#how + 1] = proposal.chunks .. " chunks" end
  if proposal.checkpoint then how[#how + 1] = "checkpoint" end
  if proposal.fully_shard.reshard_after_forward then how[#how + 1] = "reshard" end
  return { grid_text(proposal.grid), ("%.3f"):format(proposal.step_s), ("%.1f"):format(proposal.memory_gib),
    ("%.0f"):format(proposal.tokens_per_s), ("%.1f %%"):format(100 * proposal.mfu),
    ("%d x %d"):format(proposal.micro_batches, proposal.sequences), table.concat(how, ", "), proposal.why }
end

--- Returns the losers that say the most: of each axis and each number of dp rows the first, then the grids that need
--- the least memory.
local function telling(losers)
  local first, rest, seen = {}, {}, {}
  for _, loser in ipairs(losers) do
    local text = grid_text(loser.grid)
    local key = loser.least_gib and text or loser.grid.dp and "dp" or text:match "^%a*"
    if loser.least_gib then
      rest[#rest + 1] = loser
    elseif not seen[key] then
      first[#first + 1] = loser
    end
    seen[key] = true
  end
  table.sort(rest, function(a, b)
    if a.least_gib ~= b.least_gib then return a.least_gib < b.least_gib end
    return grid_text(a.grid) < grid_text(b.grid)
  end)
  for _, loser in ipairs(rest) do first[#first + 1] = loser end
  return first
end

function Proposals:__tostring()
  local rows = { { "grid", "step s", "GiB", "tokens/s", "MFU", "batches", "how", "why" } }
  for i = 1, math.min(SHOWN, #self) do rows[i + 1] = row_of(self[i]) end
  local text = #self > 0 and tables.columns(rows) or "no grid fits"
  if #self > SHOWN then text = text .. ("\nand %d more grids that fit"):format(#self - SHOWN) end
  for i, loser in ipairs(telling(self.losers)) do
    if i <= SHOWN then text = text .. ("\nnot %s: %s"):format(grid_text(loser.grid), loser.why) end
  end
  if #self.losers > SHOWN then text = text .. ("\n%d grids or sizes do not fit"):format(#self.losers) end
  return text
end

--- Proposes grids for training a model, best first, from a model of time and memory: nothing runs, and no rank
--- communicates. `print(proposals)` shows a table.
---
---     local proposals = sharding.propose { config = "Qwen/Qwen3-32B", gpus = 64, memory_gib = 80, seq_len = 8192,
---       tokens_per_step = 4e6 }
---     local grid = sharding.grid(proposals[1].grid)
---
--- `config`: a table as config.json has it, a folder, or OWNER/MODEL in Hugging Face's local cache. `memory_gib`: of
--- one GPU; a proposal takes at most 80 % of it. `tokens_per_step`: of all ranks, a multiple of seq_len. `grid`: sizes
--- that are given, so that only grids with them are looked at.
---
--- Each proposal has the grid, and the best way to run it: micro-batches, chunks, checkpoint and what fully_shard
--- frees. Weights are bfloat16, masters and AdamW float32. The work of images is not counted. The result's `losers` say
--- why other grids lose. Its `candidates` counts the ways that were computed, and `parameters` those of the model.
---
--- The device defaults to an H100 in nodes of 8. These override it: `flops` (989e12), `memory_bandwidth` (3.35e12
--- bytes/s), `link_gb_s` (450), `network_gb_s` (50), `gpus_per_node` (8), `latency_us` (10), and `efficiency` (0.6),
--- which is the share of `flops` that matrix products reach.
---
--- `measured` computes efficiency from a timed step, and the result has it as `efficiency`. It has step_s, and how that
--- step ran where this differs: grid, gpus, seq_len, tokens_per_step, sequences (1), chunks (1), checkpoint (false),
--- reshard_after_forward (true).
---
---     measured = { step_s = 4.2, grid = { tp = 2 }, gpus = 8, tokens_per_step = 2 ^ 20 }
---@param opts sharding.ProposeOptions
---@return sharding.Proposal[] # with losers: sharding.Loser[], candidates, parameters, efficiency
local function propose(opts)
  local o = read_options(opts)
  local shape = shapes.of(o.config)
  if o.measured then o.efficiency = efficiency_of(o, shape) end
  local search = search_of(o, shape)
  local found = find(search)
  found.losers, found.candidates = search.losers, search.num_candidates
  found.parameters, found.efficiency = shape.parameters, o.efficiency
  return setmetatable(found, Proposals)
end

return propose
