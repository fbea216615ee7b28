--- mimo.loader: micro-batches that are the same on every rank that reads them, or an error that says where not.

local core = require "lockstep.core"
local dist = require "lockstep.distributed"
local options = require "lockstep.options"
local sharding = require "lockstep.sharding"
local torch = require "lockstep.torch"

--- The ranks that load, and "vision on ranks 0, 1; language on rank 2".
local function readers_of(topology)
  local ranks, places, seen = {}, {}, {}
  for _, module in ipairs(topology:modules()) do
    places[#places + 1] = string.format("%s on rank%s %s", module.name, #module.ranks > 1 and "s" or "",
      table.concat(module.ranks, ", "))
    for _, rank in ipairs(module.ranks) do
      local _, _, needs_data = topology:sampling_info(rank)
      if needs_data and not seen[rank] then
        ranks[#ranks + 1], seen[rank] = rank, true
      end
    end
  end
  table.sort(ranks)
  return ranks, seen, table.concat(places, "; ")
end

---@class mimo.Loader
---@operator call: any
local Loader = {}
Loader.__index = Loader

local function ids_of(self, batch)
  local ids = self.samples
  if type(ids) == "function" then ids = ids(batch) else ids = type(batch) == "table" and batch[ids] or nil end
  if torch.is_tensor(ids) then ids = ids:totable() end
  if type(ids) ~= "table" then
    core.raise(string.format("mimo.loader: the audit compares the ids of each micro-batch's samples, but there is no "
      .. "array %s; say where they are (samples = a field's name, or a function of the batch), or that you do without "
      .. "(audit = false)", type(self.samples) == "string" and '"' .. self.samples .. '" in the batch' or "of them"))
  end
  return ids
end

--- Reads the micro-batches of a step, and compares them with the other ranks'.
local function read_ahead(self)
  self.ahead, self.next = {}, 1
  for i = 1, self.micro_batches do
    local batch = self.source()
    if batch == nil then break end
    self.ahead[i] = batch
  end
  if not self.guard then return end
  local ids = {}
  for i, batch in ipairs(self.ahead) do ids[i] = ids_of(self, batch) end
  local first = self.count + 1
  local label = self.micro_batches == 1 and "micro-batch " .. first
    or string.format("micro-batches %d to %d", first, first + self.micro_batches - 1)
  self.count = self.count + #ids
  local ok, message = pcall(self.guard.check, self.guard, label,
    #ids == 0 and "no more data" or { samples = self.micro_batches == 1 and ids[1] or ids })
  if ok then return end
  error(string.format("mimo: modules do not see the same samples (%s). Every rank that loads must read the same micro-"
    .. "batch, as topology:sampling_info says, and keep its part with mimo.slice.\n%s", self.places, message), 0)
end

--- The next micro-batch, or nil.
---@return any?
function Loader:__call()
  if self.next > #self.ahead then
    if self.ended then return nil end
    read_ahead(self)
    self.ended = #self.ahead < self.micro_batches
  end
  local batch = self.ahead[self.next]
  self.next = self.next + 1
  return batch
end

---@class mimo.LoaderOptions
---@field topology mimo.Topology
---@field source fun(): any
---@field samples string|(fun(batch: any): any[])? default "samples"
---@field micro_batches integer? default 1
---@field audit boolean? default true
---@field timeout_s number? how long the audit waits for other ranks

--- Iterates over whole micro-batches, which every rank reads alike, and audits that it does: before a step's
--- micro-batches are handed out, ranks compare the ids of their samples. A mismatch is an error on every rank that
--- names modules, ranks and ids, at the first step.
---
---     for batch in mimo.loader { topology = topo, source = reader } do
---       local mine = mimo.slice(batch, topo:dp_info())
---
--- source: an iterator. samples: where a micro-batch has its samples' ids, strings or numbers in order: a field's name,
--- or a function of it. micro_batches: of a step, which are read ahead and compared at once, so that a module may run
--- ahead of another within a step. audit = false compares nothing.
---
--- Collective: every rank that loads makes one, and takes equally many.
---@param opts mimo.LoaderOptions
---@return mimo.Loader
local function loader(opts)
  local o = options.read("mimo.loader", opts, { topology = options.required, source = options.required,
    samples = options.optional, micro_batches = 1, audit = true, timeout_s = options.optional })
  local ranks, reads, places = readers_of(o.topology)
  if not reads[dist.rank()] then
    core.raise(string.format("mimo.loader: rank %d needs no data (topology:sampling_info); only the ranks %s load",
      dist.rank(), table.concat(ranks, ", ")))
  end
  local self = { source = o.source, samples = o.samples or "samples", micro_batches = o.micro_batches, places = places,
    count = 0, ahead = {}, next = 1, ended = false }
  if o.audit and #ranks > 1 then
    local group = #ranks < dist.world_size() and dist.group { ranks = ranks } or nil
    self.guard = sharding.guard { group = group, timeout_s = o.timeout_s }
  end
  return setmetatable(self, Loader)
end

return loader
