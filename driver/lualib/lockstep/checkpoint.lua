--- Activation checkpointing: the library `checkpoint` for scripts.
---
---     local ckpt = checkpoint.new { offload = "host" }
---     for _, layer in ipairs(self.layers) do h = ckpt(layer, h, mask) end
---     ckpt:stats().recomputes

local chunks = require "lockstep.nn.chunks"
local core = require "lockstep.core"
local core_checkpoint = require "lockstep.core.checkpoint"
local options = require "lockstep.options"
local plain = require "lockstep.plain"
local torch = require "lockstep.torch"

local M = {}

---@class checkpoint.HostStats
---@field offloaded_bytes integer copied to the host
---@field restored_bytes integer copied back
---@field host_bytes integer host memory held now
---@field peak_host_bytes integer the most so far
---@field pool_allocations integer of host memory; stands still once warm
---@field refused_bytes integer stayed on their device, since max_host_bytes was reached
---@field failed_prefetches integer prefetches for which the device had no memory

---@class checkpoint.Stats: checkpoint.HostStats
---@field regions integer forward passes of regions, with gradients on
---@field recomputes integer runs of a region's function within backward
---@field modified_results integer results of `policy` that were computed again, since they were modified in place

---@class checkpoint.Options
---@field offload ("host"|false)? false or absent: inputs stay on the device
---@field preserve_rng boolean?
---@field early_stop boolean?
---@field determinism "metadata"|"none"?
---@field keep_last integer? regions
---@field prefetch integer? regions
---@field min_bytes integer? of a tensor
---@field max_host_bytes integer? of host memory; tensors beyond it stay on their device
---@field frozen torch.Tensor[]? tensors that are never copied, and their views
---@field policy checkpoint.Policy?

---@class checkpoint.Checkpoint
---@operator call: any
local Checkpoint = {}
Checkpoint.__index = Checkpoint

-- Tensors in tables ---------------------------------------------------------------------------------

--- Marks the place of a tensor in a copy of nested tables.
local Slot = {}

local function is_plain_table(value) return type(value) == "table" and getmetatable(value) == nil end

--- Copies nested tables, with slots for their tensors, which go into `tensors`.
local function take_out(value, tensors, inside)
  if torch.is_tensor(value) then
    tensors[#tensors + 1] = value
    return setmetatable({ index = #tensors }, Slot)
  end
  if not is_plain_table(value) then return value end
  if inside[value] then core.raise("checkpoint: an argument is a table that contains itself") end
  inside[value] = true
  local copy = {}
  for key, v in pairs(value) do copy[key] = take_out(v, tensors, inside) end
  inside[value] = nil
  return copy
end

--- Returns the same tables with tensors in their slots.
local function put_in(value, tensors)
  if getmetatable(value) == Slot then return tensors[value.index] end
  if not is_plain_table(value) then return value end
  local copy = {}
  for key, v in pairs(value) do copy[key] = put_in(v, tensors) end
  return copy
end

--- Runs a region whose arguments are tables that may hold tensors. `given_fn` is the function that the script gave.
local function run_nested(region, given_fn, fn, ...)
  plain.check(plain.is_callable(given_fn), "checkpoint: fn must be a function or a module, not a %s", type(given_fn))
  local count, given, kept, tensors = select("#", ...), { ... }, {}, {}
  for i = 1, count do kept[i] = take_out(given[i], tensors, {}) end
  return region:run(given_fn, function(...)
    if given then -- forward, which may write into the caller's tables
      local arguments = given
      given = nil
      return fn(unpack(arguments, 1, count))
    end
    local now, arguments = { ... }, {}
    for i = 1, count do arguments[i] = put_in(kept[i], now) end
    return fn(unpack(arguments, 1, count))
  end, unpack(tensors))
end

-- Regions -------------------------------------------------------------------------------------------

--- Returns fn(...) and keeps only the arguments for backward, which calls fn again. Gradients are the same. fn must do
--- the same each time; tables among its arguments may hold tensors. Variables that it has captured must keep their
--- values until backward; else an error names them. With gradients off it is just called. Its recomputation ends with
--- an error that it must let pass: no pcall around all of it.
---
---     local y, aux = ckpt(function(x, mask) return layer(x, mask) end, x, mask)
---@param fn fun(...): ... or a module
---@param ... any
---@return any ...
function Checkpoint:__call(fn, ...)
  local bound = chunks.bind(fn)
  for i = 1, select("#", ...) do
    if is_plain_table((select(i, ...))) then return run_nested(self.region, fn, bound, ...) end
  end
  return self.region:run(fn, bound, ...)
end

function Checkpoint:__tostring()
  local s = self:stats()
  return string.format("checkpoint(%d regions, %d recomputed, %d bytes offloaded)", s.regions, s.recomputes,
    s.offloaded_bytes)
end

--- Returns counts of regions so far: proof that recomputation and offload take place.
---@return checkpoint.Stats
function Checkpoint:stats() return self.region:stats() end

local OFFLOAD = core_checkpoint.offload_defaults

--- Makes regions whose activations are computed again in backward; call it as a function.
---
---     local ckpt = checkpoint.new { offload = "host", keep_last = 1 }
---     local y = ckpt(layer, x)
---
--- offload = "host": inputs of regions wait in host memory, except those of the newest keep_last regions. prefetch:
--- regions that are copied back ahead. Tensors below min_bytes stay on the device, and so do those in `frozen` and all
--- beyond max_host_bytes. Without offload these have no effect, and a line says so. offload = false turns it off
--- without that line.
---
--- preserve_rng = true: dropout draws the same masks, and math.random the same numbers. early_stop = true: a
--- recomputation ends with the last tensor that is needed. determinism: "metadata" compares shapes, dtypes, devices and
--- captured variables, "none" does not. policy, from checkpoint.selective: operators whose results are kept and not
--- computed again.
---@param opts checkpoint.Options?
---@return checkpoint.Checkpoint
function M.new(opts)
  local o = options.read("checkpoint.new", opts, {
    offload = options.optional, preserve_rng = core_checkpoint.defaults.preserve_rng,
    early_stop = core_checkpoint.defaults.early_stop, determinism = "metadata",
    keep_last = OFFLOAD.keep_last, prefetch = OFFLOAD.prefetch, min_bytes = OFFLOAD.min_bytes,
    policy = options.optional, max_host_bytes = options.optional, frozen = options.optional,
  })
  plain.check(not o.offload or o.offload == "host",
    'checkpoint.new: offload must be "host", false or absent, not %s', o.offload)
  plain.check(o.determinism == "metadata" or o.determinism == "none",
    'checkpoint.new: determinism must be "metadata" or "none", not "%s"', o.determinism)
  if o.offload == nil then
    options.note_unused("checkpoint.new", opts, { "keep_last", "prefetch", "min_bytes", "max_host_bytes", "frozen" },
      'without offload = "host"; offload = false turns it off without this line')
  end
  for key in pairs(OFFLOAD) do
    if o[key] < 0 then core.raise(string.format("checkpoint.new: %s must not be below 0, but is %g", key, o[key])) end
  end
  local offload
  if o.offload then
    offload = core_checkpoint.offload { keep_last = o.keep_last, prefetch = o.prefetch, min_bytes = o.min_bytes,
      max_host_bytes = o.max_host_bytes }
    if o.frozen ~= nil then offload:keep_on_device(o.frozen) end
  end
  local region = core_checkpoint.new({
    preserve_rng = o.preserve_rng, early_stop = o.early_stop, check_metadata = o.determinism == "metadata",
  }, offload, o.policy)
  return setmetatable({ region = region }, Checkpoint)
end

--- The result of checkpoint.selective: `policy:operators()` lists the overloads that it keeps.
---@alias checkpoint.Policy lockstep.core.checkpoint.Selection

--- Keeps the results of the named operators, and recomputes everything else. Use the names below autograd: linear and
--- matmul are aten::mm, aten::addmm and aten::bmm there. A result that is modified in place is computed again, and
--- counted in the region's stats. Raises an error for an operator that does not exist, or whose results cannot be kept.
---
---     local ckpt = checkpoint.new { policy = checkpoint.selective { save = { "aten::mm", "aten::bmm" } } }
---@param opts {save: string[]}
---@return checkpoint.Policy
function M.selective(opts)
  return core_checkpoint.selection(options.read("checkpoint.selective", opts, { save = options.required }).save)
end

local all_saved = core_checkpoint.offload(OFFLOAD)

--- Returns fn(...), and keeps every tensor that it saves for backward in host memory. For models without regions. It is
--- slower than offloading the inputs of regions, which are far fewer. checkpoint.stats() counts.
---
---     local loss = checkpoint.save_on_host(model, batch)
---@param fn fun(...): ... or a module
---@param ... any
---@return any ...
function M.save_on_host(fn, ...) return all_saved:save(fn, ...) end

--- Returns the counts of save_on_host so far.
---@return checkpoint.HostStats
function M.stats() return all_saved:stats() end

return M
