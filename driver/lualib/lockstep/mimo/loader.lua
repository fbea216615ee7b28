--- mimo.loader: micro-batches that are the same on every rank that reads them, or an error that says where not.

local core = require "lockstep.core"
local dist = require "lockstep.distributed"
local options = require "lockstep.options"
local ownership = require "lockstep.mimo.ownership"
local plain = require "lockstep.plain"
local sharding = require "lockstep.sharding"
local topologies = require "lockstep.mimo.topology"
local torch = require "lockstep.torch"

--- The ranks that load, and "vision on ranks 0, 1; language on rank 2".
local function readers_of(topology, every_stage)
  local ranks, places, seen = {}, {}, {}
  for _, module in ipairs(topology:modules()) do
    places[#places + 1] = string.format("%s on rank%s %s", module.name, #module.ranks > 1 and "s" or "",
      table.concat(module.ranks, ", "))
    for _, rank in ipairs(module.ranks) do
      local _, _, needs_data = topology:sampling_info(rank)
      if (needs_data or every_stage) and not seen[rank] then
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

--- A field of a micro-batch, or what a function of it returns.
local function get(field, batch)
  if type(field) == "function" then return field(batch) end
  return type(batch) == "table" and batch[field] or nil
end

local function ids_of(self, batch)
  local ids = get(self.samples, batch)
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
    plain.check(type(id) == "number" or type(id) == "string",
      "mimo.loader: the id of a sample must be a number or a string, not a %s", type(id))
    texts[i] = (type(id) == "number" and "%.17g" or "%q"):format(id)
  end
  return table.concat(texts, ", ")
end

--- Returns the owners of a micro-batch's rows, by name: tables, or counts of each sample's rows.
local function tables_of(self, batch)
  if self.ownership == nil then return {} end
  local given = get(self.ownership, batch)
  local first = type(given) == "table" and select(2, next(given))
  local named = first and type(first) ~= "number" and given or { given } -- several have names
  local tables = {}
  for name, each in pairs(named) do
    local is_counts = type(each) == "table" or torch.is_tensor(each)
    tables[name] = is_counts and ownership { rows_per_sample = each } or type(each) == "userdata" and each or nil
  end
  if next(tables) == nil then
    core.raise(string.format("mimo.loader: there is no table of ownership %s; it is what mimo.ownership made, or how "
      .. "many rows each sample has, or several of these by name", type(self.ownership) == "string"
      and string.format('in "%s" of the batch', self.ownership) or "that the function `ownership` returns"))
  end
  return tables, named == given
end

--- A micro-batch's samples as other ranks hear of them.
local function describe(self, batch)
  local wants_ids = self.audit or self.is_alone and get(self.samples, batch) ~= nil
  local said = { ids = wants_ids and ids_of(self, batch) or nil, tables = {} }
  local tables, are_named = tables_of(self, batch)
  said.are_named, said.num_samples = are_named, said.ids and #said.ids
  for name, each in pairs(tables) do
    said.tables[name] = { items = each:rows_per_sample("items"), tokens = each:tokens_per_item() }
    local num_samples = #said.tables[name].items
    said.num_samples = said.num_samples or num_samples
    if num_samples ~= said.num_samples then
      core.raise(string.format("mimo.loader: a table of ownership is of %d samples, but the micro-batch has %s %d",
        num_samples, said.ids and "the ids of" or "another of", said.num_samples))
    end
  end
  return said
end

local function append(to, values)
  for _, value in ipairs(values) do to[#to + 1] = value end
end

--- Joins the parts of a module's replicas in order; returns nil if all have ended. If a part does not name a kind of
--- item, its samples have none.
local function join(parts)
  local whole, is_any = { tables = {} }, false
  for _, part in ipairs(parts) do
    for name in pairs(part and part.tables or {}) do whole.tables[name] = { items = {}, tokens = {} } end
  end
  for _, part in ipairs(parts) do
    if part then
      is_any, whole.are_named = true, part.are_named
      if part.ids then
        whole.ids = whole.ids or {}
        append(whole.ids, part.ids)
      end
      for name, joined in pairs(whole.tables) do
        local each = part.tables[name]
        for sample = 1, part.num_samples do table.insert(joined.items, each and each.items[sample] or 0) end
        append(joined.tokens, each and each.tokens or {})
      end
    end
  end
  return is_any and whole or nil
end

--- Returns the owners of rows as a text, equal for equal tables.
local function rows_text(whole)
  local texts = {}
  for i, name in ipairs(plain.keys(whole.tables)) do
    local each = whole.tables[name]
    texts[i] = string.format("%sitems of samples {%s}, tokens of items {%s}", whole.are_named and name .. ": " or "",
      table.concat(each.items, ", "), table.concat(each.tokens, ", "))
  end
  return table.concat(texts, "; ")
end

--- The same of ids and rows.
local function all_of(whole)
  if not whole then return "no more data" end
  return (whole.ids and text_of(whole.ids) or "") .. "; " .. rows_text(whole)
end

--- Describes a rank's parts in a line.
local function line_of(self, rank, said, with_rows)
  local texts = {}
  for i = 1, self.micro_batches do
    local part = said[i]
    texts[i] = not part and "no more data" or with_rows and all_of(part) or part.ids and text_of(part.ids) or ""
  end
  local dp_rank, dp_size = self.topology:sampling_info(rank, true)
  return string.format("  rank %d (%s, part %d of %d): {%s}", rank, self.topology:module(rank), dp_rank, dp_size,
    table.concat(texts, "; "))
end

--- An error's text where two replicas of a module have read the same sample of a micro-batch, or nil.
local function read_twice(self, said)
  for _, module in ipairs(self.topology:modules()) do
    for i = 1, self.micro_batches do
      local readers = {} -- by id
      for _, rank in ipairs(module.ranks) do
        local replica, replicas = self.topology:sampling_info(rank, true)
        for _, id in ipairs(said[rank] and said[rank][i] and said[rank][i].ids or {}) do
          local other = readers[id]
          if other and other.replica ~= replica then
            return string.format("rank %d (%s, part %d of %d) and rank %d (part %d) both have the sample %s",
              other.rank, module.name, other.replica, replicas, rank, replica, text_of { id })
          end
          readers[id] = other or { rank = rank, replica = replica }
        end
      end
    end
  end
end

local SOURCE_FAILED = "mimo: no rank has this micro-batch, since the source of another rank failed"

--- Where each rank reads only its replica's part: every rank says what it has read. Returns by micro-batch what all
--- parts of this rank's module make up; and, with the audit, an error's text where modules differ, or replicas do not.
local function gather(self, own, failed)
  local said = {} -- by rank
  local answers = #self.ranks > 1 and dist.all_gather_object({ rank = dist.rank(), said = own, failed = failed },
    { group = self.group }) or { { rank = dist.rank(), said = own } }
  for i, answer in ipairs(answers) do
    if answer.failed and not failed then
      error(("%s: rank %d: %s"):format(SOURCE_FAILED, self.ranks[i], answer.failed), 0)
    end
    -- Under --dry-run all answers are this rank's own: of the size that they would have.
    said[self.ranks[i]] = answer.said
    self.is_mirrored = self.is_mirrored or answer.rank ~= self.ranks[i]
  end
  local first, mine, ids_agree, rows_agree = nil, nil, true, true
  for _, module in ipairs(self.topology:modules()) do
    local parts, has_own = {}, false -- parts: by micro-batch, of each replica
    for i = 1, self.micro_batches do parts[i] = {} end
    for _, rank in ipairs(module.ranks) do
      has_own = has_own or rank == dist.rank()
      for i = 1, said[rank] and self.micro_batches or 0 do
        local replica = self.topology:sampling_info(rank, true) + 1
        local before = parts[i][replica]
        parts[i][replica] = said[rank][i]
        -- Ranks of one replica.
        ids_agree = ids_agree and (before == nil or all_of(before) == all_of(said[rank][i]))
      end
    end
    local whole = {}
    for i = 1, self.micro_batches do
      local ended = 0
      for _, part in ipairs(parts[i]) do ended = ended + (part and 0 or 1) end
      ids_agree = ids_agree and (ended == 0 or ended == #parts[i]) -- all replicas end at once
      whole[i] = join(parts[i]) or false
    end
    mine = mine or has_own and whole
    for i, before in ipairs(first or whole) do
      local a, b = before and before.ids or {}, whole[i] and whole[i].ids or {}
      ids_agree = ids_agree and (before == false) == (whole[i] == false) and text_of(a) == text_of(b)
      rows_agree = rows_agree and all_of(before) == all_of(whole[i])
    end
    first = first or whole
  end
  if not self.audit or self.is_mirrored then return mine end
  local twice = ids_agree and read_twice(self, said)
  if not twice and ids_agree and rows_agree then return mine end
  local lines = {}
  for i, rank in ipairs(self.ranks) do lines[i] = line_of(self, rank, said[rank], ids_agree) end
  return mine, table.concat(lines, "\n"), twice and "replicas read the same samples (%s): " .. twice
    or "modules do not see the same " .. (ids_agree and "rows of the same samples" or "samples") .. " (%s)"
end

--- Returns the ids and tables of a whole micro-batch, for the bridge. Its metatable tells mimo.step who has read it.
local function whole_of(self, said)
  if not said then return nil end
  local whole, tables = setmetatable({ samples = said.ids }, { reader = self }), {}
  for name, each in pairs(said.tables) do tables[name] = ownership { items = each.items, tokens = each.tokens } end
  if next(tables) ~= nil then whole.ownership = said.are_named and tables or tables[1] end
  return whole
end

--- Returns the values that ranks with the same part must agree about.
local function for_guard(self, own)
  if #self.ahead == 0 then return "no more data" end
  local ids, rows = {}, {}
  for i = 1, #self.ahead do ids[i], rows[i] = own[i].ids, rows_text(own[i]) end
  local is_one = self.micro_batches == 1
  return { samples = is_one and ids[1] or ids, rows = self.ownership and (is_one and rows[1] or rows) or nil }
end

--- Takes this rank's part in what the others wait for.
local function tell_failure(self, label, own, text)
  if self.scalable_reads and (self.audit or self.ownership) then
    gather(self, own, text)
  elseif self.guard then
    pcall(self.guard.check, self.guard, label, { source_failed = text })
  end
end

--- Reads the micro-batches of a step, and compares them with the other ranks'.
local function read_ahead(self)
  self.ahead, self.whole, self.next = {}, {}, 1
  local own = {} -- false: no more data
  -- Other ranks wait for this one: an error is theirs, too.
  local ok, failed = pcall(function()
    for i = 1, self.micro_batches do
      local batch = self.source()
      if batch == nil then break end
      self.ahead[i], own[i] = batch, describe(self, batch)
    end
  end)
  for i = 1, self.micro_batches do own[i] = own[i] or false end
  local first = self.count + 1
  local label = self.micro_batches == 1 and "micro-batch " .. first
    or string.format("micro-batches %d to %d", first, first + self.micro_batches - 1)
  self.count = self.count + #self.ahead
  if not ok then
    self.ahead, self.ended = {}, true
    tell_failure(self, label, own, tostring(failed))
    error(failed, 0)
  end
  if self.scalable_reads and (self.audit or self.ownership) then
    local whole, lines, what = gather(self, own)
    if lines then
      error(string.format("mimo: %s. Every rank that loads must read its replica's part of the same micro-batch, as "
        .. 'topology:sampling_info(rank, true) and topology:reads say.\nread at "%s":\n%s',
        what:gsub("%%s", function() return self.places end, 1), label, lines), 0)
    end
    own = whole
  elseif self.guard then
    local same, message = pcall(self.guard.check, self.guard, label, for_guard(self, own))
    if not same and message:find("{source_failed = ", 1, true) then error(SOURCE_FAILED .. ".\n" .. message, 0) end
    if not same then
      error(string.format("mimo: modules do not see the same samples (%s). Every rank that loads must read the same "
        .. "micro-batch, as topology:sampling_info says, and keep its part with mimo.slice.\n%s", self.places, message),
        0)
    end
  end
  for i, said in ipairs(own) do self.whole[i] = whole_of(self, said) end
end

--- The next micro-batch, or nil; and what is known of the whole of it, which the bridge takes as its options.
---@return any?
---@return mimo.Whole?
function Loader:__call()
  if self.next > #self.ahead then
    if self.ended then return nil end
    read_ahead(self)
    self.ended = #self.ahead < self.micro_batches
  end
  local i = self.next
  self.next = i + 1
  return self.ahead[i], self.whole[i]
end

--- Returns the part of a loaded micro-batch that this rank's module keeps, for mimo.slice. With scalable_reads this is
--- all of it, 0 and 1, if the rank has read only its replica's part; otherwise the result of topology:dp_info.
---
---     local mine = mimo.slice(batch, reader:dp_info "vision")
---@param name string? of a module of this rank
---@return integer dp_rank
---@return integer dp_size
function Loader:dp_info(name)
  local _, read_parts = self.topology:sampling_info(nil, self.scalable_reads)
  if read_parts > 1 then return 0, 1 end
  return self.topology:dp_info(nil, name)
end

local function check(o)
  topologies.check("mimo.loader", o.topology)
  o.topology.core:check_world("mimo.loader")
  plain.check(plain.is_callable(o.source), "mimo.loader: source must be an iterator, a function that returns the next "
    .. "micro-batch or nil, not a %s", type(o.source))
  plain.check(type(o.samples) == "string" or type(o.samples) == "function",
    "mimo.loader: samples must be a field's name or a function of a micro-batch, not a %s", type(o.samples))
  if o.micro_batches < 1 or o.micro_batches ~= math.floor(o.micro_batches) then
    core.raise("mimo.loader: micro_batches must be a whole number from 1 on, not " .. o.micro_batches)
  end
end

---@class mimo.Whole
---@field samples any[]? the ids of the whole micro-batch
---@field ownership mimo.Ownership|table<string, mimo.Ownership>|nil of the whole micro-batch

---@class mimo.LoaderOptions
---@field topology mimo.Topology
---@field source fun(): any
---@field samples string|(fun(batch: any): any[])? default "samples"
---@field micro_batches integer? default 1
---@field audit boolean? default true
---@field every_stage boolean? later stages of all modules load, too; default false
---@field scalable_reads boolean? each rank reads only its replica's part, as Topology:reads says; default false
---@field ownership string|(fun(batch: any): any)|nil where the batch has its table of ownership, or rows of each sample
---@field timeout_s number? how long the audit waits for other ranks

--- Iterates over whole micro-batches, which every rank reads alike, and audits that it does: before a step's
--- micro-batches are handed out, ranks compare the ids of their samples. A mismatch is an error on every rank that
--- names modules, ranks and ids, at the first step.
---
---     for batch in mimo.loader { topology = topo, source = reader } do
---       local mine = mimo.slice(batch, topo:dp_info())
---
--- source: an iterator. samples: the name of the field with the samples' ids, strings or numbers in order, or a
--- function that returns them. micro_batches: the number in a step. They are read ahead and compared at once, so that a
--- module may run ahead of another within a step. audit = false compares nothing. every_stage = true: later stages of
--- modules other than "language" load, too. mimo.step needs that.
---
--- scalable_reads: each rank's source gives its replica's part. The loader gathers ids and tables of all parts, and
--- compares the joined parts of each module. ownership: a field's name, or a function of a micro-batch. Its value is a
--- table of mimo.ownership, the number of rows of each sample, or several of these by name. With each micro-batch (or
--- part) comes a description of the whole for the bridge, {samples = ..., ownership = ...}:
---
---     local opts = { topology = topo, source = part_reader, scalable_reads = true, ownership = "rows" }
---     for part, whole in mimo.loader(opts) do
---       local y = bridge(is_vision and tower(part.patches) or nil, whole)
---
--- Collective: every rank that loads makes one, and takes the same number of micro-batches.
---@param opts mimo.LoaderOptions
---@return mimo.Loader
local function loader(opts)
  local o = options.read("mimo.loader", opts, { topology = options.required, source = options.required,
    samples = options.optional, micro_batches = 1, audit = true, every_stage = false, scalable_reads = false,
    ownership = options.optional, timeout_s = options.optional })
  o.samples = o.samples or "samples"
  check(o)
  local ranks, reads, places = readers_of(o.topology, o.every_stage)
  plain.check(reads[dist.rank()], "mimo.loader: rank %d needs no data (topology:sampling_info); only the ranks %s "
    .. "load; for mimo.step give every_stage = true on every rank", dist.rank(), table.concat(ranks, ", "))
  local self = { topology = o.topology, source = o.source, samples = o.samples, micro_batches = o.micro_batches,
    scalable_reads = o.scalable_reads, ownership = o.ownership, audit = o.audit and #ranks > 1,
    is_alone = o.audit and #ranks == 1, ranks = ranks, places = places, count = 0, ahead = {}, next = 1,
    ended = false }
  if #ranks > 1 and (o.audit or o.scalable_reads and o.ownership) then
    -- Parts are compared in a group of their own: other collectives may come before or after on other ranks.
    self.group = (o.scalable_reads or #ranks < dist.world_size()) and dist.group { ranks = ranks } or nil
    if not o.scalable_reads then self.guard = sharding.guard { group = self.group, timeout_s = o.timeout_s } end
  end
  return setmetatable(self, Loader)
end

return loader
