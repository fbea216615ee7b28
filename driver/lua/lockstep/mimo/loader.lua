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
  if #ids == 0 then
    core.raise(string.format("mimo.loader: the audit compares the ids of each micro-batch's samples, but %s no ids; "
      .. "give each sample one, or say that you do without (audit = false)", type(self.samples) == "string"
      and string.format('"%s" of the batch holds', self.samples) or "the function `samples` returns"))
  end
  return ids
end

--- A micro-batch's ids as a text; other ids have another.
local function text_of(ids)
  local texts = {}
  for i, id in ipairs(ids) do
    if type(id) ~= "number" and type(id) ~= "string" then
      core.raise(("mimo.loader: the id of a sample must be a number or a string, not a %s"):format(type(id)))
    end
    texts[i] = (type(id) == "number" and "%.17g" or "%q"):format(id)
  end
  return table.concat(texts, ", ")
end

--- Where each rank reads only its replica's part: puts the parts of every module together, and returns what is wrong
--- with them, a line for each rank; nil where all modules have the same micro-batches.
local function compare_parts(self, ids)
  local texts = {}
  for i = 1, self.micro_batches do texts[i] = ids[i] and text_of(ids[i]) or "no more data" end
  local said = {} -- by rank
  for i, own in ipairs(dist.all_gather_object({ rank = dist.rank(), texts = texts }, { group = self.group })) do
    if own.rank ~= self.ranks[i] then return nil end -- its mirror image, of --dry-run
    said[own.rank] = own.texts
  end
  local first, agree = nil, true
  for _, module in ipairs(self.topology:modules()) do
    local parts = {} -- of each replica
    for _, rank in ipairs(module.ranks) do
      if said[rank] then
        local dp_rank = self.topology:sampling_info(rank, true)
        local before = parts[dp_rank + 1]
        parts[dp_rank + 1] = said[rank]
        agree = agree and (not before or table.concat(before, "; ") == table.concat(said[rank], "; "))
      end
    end
    local whole = {}
    for i = 1, self.micro_batches do
      local of_replicas = {}
      for replica, part in ipairs(parts) do of_replicas[replica] = part[i] end
      -- All replicas end at once, and so must all modules.
      local ended = true
      for _, part in ipairs(of_replicas) do ended = ended and part == "no more data" end
      whole[i] = ended and "no more data" or table.concat(of_replicas, ", ")
    end
    first = first or whole
    agree = agree and table.concat(first, "; ") == table.concat(whole, "; ")
  end
  if agree then return nil end
  local lines = {}
  for _, rank in ipairs(self.ranks) do
    local dp_rank, dp_size = self.topology:sampling_info(rank, true)
    lines[#lines + 1] = string.format("  rank %d (%s, part %d of %d): {%s}", rank, self.topology:module(rank), dp_rank,
      dp_size, table.concat(said[rank], "; "))
  end
  return table.concat(lines, "\n")
end

--- Reads the micro-batches of a step, and compares them with the other ranks'.
local function read_ahead(self)
  self.ahead, self.next = {}, 1
  for i = 1, self.micro_batches do
    local batch = self.source()
    if batch == nil then break end
    self.ahead[i] = batch
  end
  if not self.audit then return end
  local ids = {}
  for i, batch in ipairs(self.ahead) do ids[i] = ids_of(self, batch) end
  local first = self.count + 1
  local label = self.micro_batches == 1 and "micro-batch " .. first
    or string.format("micro-batches %d to %d", first, first + self.micro_batches - 1)
  self.count = self.count + #ids
  if self.scalable_reads then
    local lines = compare_parts(self, ids)
    if not lines then return end
    error(string.format("mimo: modules do not see the same samples (%s). Every rank that loads must read its replica's "
      .. "part of the same micro-batch, as topology:sampling_info(rank, true) and topology:reads say.\n"
      .. 'read at "%s":\n%s', self.places, label, lines), 0)
  end
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

local function check(o)
  if type(o.topology) ~= "table" or type(rawget(o.topology, "core")) ~= "userdata" then
    core.raise("mimo.loader: topology must be what mimo.topology made, not a " .. type(o.topology))
  end
  o.topology.core:check_world("mimo.loader")
  if type(o.source) ~= "function" and not (getmetatable(o.source) or {}).__call then
    core.raise("mimo.loader: source must be an iterator, a function that returns the next micro-batch or nil, not a "
      .. type(o.source))
  end
  if type(o.samples) ~= "string" and type(o.samples) ~= "function" then
    core.raise("mimo.loader: samples must be a field's name or a function of a micro-batch, not a " .. type(o.samples))
  end
  if o.micro_batches < 1 or o.micro_batches ~= math.floor(o.micro_batches) then
    core.raise("mimo.loader: micro_batches must be a whole number from 1 on, not " .. o.micro_batches)
  end
end

---@class mimo.LoaderOptions
---@field topology mimo.Topology
---@field source fun(): any
---@field samples string|(fun(batch: any): any[])? default "samples"
---@field micro_batches integer? default 1
---@field audit boolean? default true
---@field scalable_reads boolean? each rank reads only its replica's part, as Topology:reads says; default false
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
--- ahead of another within a step. audit = false compares nothing. scalable_reads: what is compared are the
--- micro-batches that the parts of each module's replicas make up.
---
--- Collective: every rank that loads makes one, and takes equally many.
---@param opts mimo.LoaderOptions
---@return mimo.Loader
local function loader(opts)
  local o = options.read("mimo.loader", opts, { topology = options.required, source = options.required,
    samples = options.optional, micro_batches = 1, audit = true, scalable_reads = false, timeout_s = options.optional })
  o.samples = o.samples or "samples"
  check(o)
  local ranks, reads, places = readers_of(o.topology)
  if not reads[dist.rank()] then
    core.raise(string.format("mimo.loader: rank %d needs no data (topology:sampling_info); only the ranks %s load",
      dist.rank(), table.concat(ranks, ", ")))
  end
  local self = { topology = o.topology, source = o.source, samples = o.samples, micro_batches = o.micro_batches,
    scalable_reads = o.scalable_reads, audit = o.audit and #ranks > 1, ranks = ranks, places = places, count = 0,
    ahead = {}, next = 1, ended = false }
  if self.audit then
    -- Parts are compared in a group of their own: other collectives may come before or after on other ranks.
    self.group = (o.scalable_reads or #ranks < dist.world_size()) and dist.group { ranks = ranks } or nil
    self.guard = not o.scalable_reads and sharding.guard { group = self.group, timeout_s = o.timeout_s } or nil
  end
  return setmetatable(self, Loader)
end

return loader
