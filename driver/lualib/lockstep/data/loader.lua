--- data.loader: samples in an order that all ranks know, prepared ahead by threads.
---
--- The positions of a run count from 0 through all its epochs. Rank r takes the positions start + r, start + r + world
--- and so on; which sample a position is, says a permutation of its epoch. So a seed and a position are all the state.

local agreement = require "lockstep.state.agreement"
local core = require "lockstep.core"
local core_data = require "lockstep.core.data"
local core_sharding = require "lockstep.core.sharding"
local core_state = require "lockstep.core.state"
local dist = require "lockstep.distributed"
local mapping = require "lockstep.data.mapping"
local options = require "lockstep.options"
local plain = require "lockstep.plain"
local shapes = require "lockstep.data.shapes"
local sources = require "lockstep.data.source"
local uploads = require "lockstep.data.uploads"

---@class data.Loader
---@field length number samples that this rank gets, from where the loader started or resumed; math.huge without epochs
---@field taken integer of these, handed out or skipped so far
---@field skipped integer samples that this rank has skipped, also before it resumed
---@field dropped integer samples at the end that no rank gets, by drop_last
---@field padded integer samples at the end that this rank gets again, by pad
---@field epoch integer of the next sample, from 0
---@field reader string? names an object that reads it ahead of the training, and keeps its state
---@operator call: any
local Loader = {}

--- The most threads of a rank, and the most samples ahead of each. Every thread has a Lua state of its own.
local MAX_WORKERS, MAX_PREFETCH = 1024, 65536

--- Messages of skipped samples that are printed one by one; later ones when their number has doubled.
local PRINTED_SKIPS = 10

-- The order -------------------------------------------------------------------------------------------

--- Begins at a position, less those of `done` (sorted, not before `start`), which were taken already.
local function begin(self, start, done)
  self.start, self.done, self.taken, self.submitted = start, done, 0, 0
  self.pending, self.arrived, self.ended, self.failed, self.skips_in_a_row = {}, {}, false, nil, 0
  self.remaining = math.max(0, self.total - start - #done)
  local rest = self.remaining == math.huge and 0 or self.remaining % self.world
  self.length = (self.remaining - rest) / self.world
  self.dropped, self.padded = 0, 0
  if rest > 0 and self.drop_last then
    self.dropped = rest
  elseif rest > 0 and (self.rank < rest or self.pad) then
    self.length = self.length + 1
    if self.rank >= rest then self.padded = 1 end
  end
end

--- The k-th position, from 0, that was not taken before this loader began.
local function position_of(self, k)
  local position = self.start + k
  for _, taken in ipairs(self.done) do
    if taken > position then break end
    position = position + 1
  end
  return position
end

--- Returns where this rank's sample number `t`, from 0, lies, and its position.
local function locate(self, t)
  local k = self.rank + self.world * t
  -- Padding begins the last epoch again.
  local position = k < self.remaining and position_of(self, k)
    or self.total - self.size + (k - self.remaining) % self.size
  local epoch, index = math.floor(position / self.size), position % self.size + 1
  if self.shuffle then index = core_sharding.permute(self.size, self.seed, epoch, index - 1) end
  local leaf, of_leaf = sources.resolve(self.source, index, epoch, self.shuffle and self.seed or nil)
  return leaf, of_leaf, position
end

-- Work ------------------------------------------------------------------------------------------------

--- Gives the next sample to the workers, or keeps it for this thread.
local function submit(self)
  local t = self.submitted
  local leaf, index, position = locate(self, t)
  local job = { index, self.seed % 2 ^ 20 * 2 ^ 33 + position % 2 ^ 33 }
  local pending = { leaf = leaf, index = index, job = job, source = leaf }
  if type(leaf) == "table" or not core_data.is_source(leaf) then
    local ok, sample = pcall(function() return leaf[index] end)
    if ok then
      job[3], pending.source = sample, nil
    else
      pending.failed = tostring(sample)
    end
  end
  if self.workers > 0 and not pending.failed then
    job[4] = shapes.of(job[3])
    self.pool:submit(job, pending.source)
  end
  self.pending[t], self.submitted = pending, t + 1
end

--- Waits for the workers. Reports a sample for which it waits long.
local function next_of_pool(self, pending)
  local waited, patience = 0, self.report_after_s
  while true do
    local ok, result = self.pool:next(patience)
    if ok ~= nil then return ok, result end
    waited = waited + patience
    io.stderr:write(("lockstep: data.loader: rank %d has waited %g s for a worker that reads or maps %s\n"):format(
      dist.rank(), waited, sources.place(pending.leaf, pending.index)))
    patience = waited
  end
end

--- Returns true and sample number `t`, the oldest that was submitted and not taken from the workers, or false and what
--- is wrong with it. Returns nil if `now` and no worker has finished it.
local function finish(self, t, now)
  local pending = self.pending[t]
  local ok, result
  if pending.failed then
    ok, result = true, { failed = pending.failed }
  elseif self.workers > 0 and now then
    ok, result = self.pool:next(0)
    if ok == nil then return nil end
  elseif self.workers > 0 then
    ok, result = next_of_pool(self, pending)
  else
    local random = self.map and core_state.math_random_state()
    ok, result = core_data.attempt(mapping.apply, self.map, self.options, pending.job, pending.source)
    if random then core_state.set_math_random_state(random) end
  end
  self.pending[t] = nil
  if ok and not result.failed then
    shapes.restore(result.sample, result.shapes)
    if self.uploads then return true, self.uploads:send(result.sample) end
    return true, result.sample
  end
  return false, ok and result.failed or sources.place(pending.leaf, pending.index) .. ": " .. result
end

--- Returns sample number self.taken, as finish does. Begins the copies to the device of those after it that the
--- workers have finished.
local function next_sample(self)
  local t = self.taken
  local arrived = self.arrived[t] or { finish(self, t) }
  self.arrived[t] = nil
  if not self.uploads then return unpack(arrived) end
  if self.workers > 0 then
    for later = t + 1, self.submitted - 1 do
      if not self.arrived[later] then
        local ok, sample = finish(self, later, true)
        if ok == nil then break end
        self.arrived[later] = { ok, sample }
      end
    end
  end
  if arrived[1] then return true, self.uploads:receive(arrived[2]) end
  return unpack(arrived)
end

--- Counts and reports a sample that cannot be prepared.
local function skip(self, message)
  self.skipped, self.skips_in_a_row = self.skipped + 1, self.skips_in_a_row + 1
  plain.check(self.skips_in_a_row <= self.size, "data.loader: no sample of a whole epoch can be prepared; the last: %s",
    message)
  -- After a resume the first one is reported too.
  if self.skipped <= PRINTED_SKIPS or self.skipped >= (self.next_report or 0) then
    self.next_report = math.max(self.skipped, PRINTED_SKIPS) * 2
    local who = dist.world_size() > 1 and (" on rank %d"):format(dist.rank()) or ""
    io.stderr:write(("lockstep: data.loader: skipped%s, %d so far: %s\n"):format(who, self.skipped, message))
  end
end

--- The next sample of this rank; nil at the end.
---@return any
function Loader:__call()
  if self.failed then core.raise(self.failed) end
  if self.ended then return nil end
  if self.workers > 0 and not self.pool then
    local start = { map = self.map, options = self.options, pin = self.pin }
    self.pool = core_data.workers(self.workers, "lockstep.data.worker", start)
  end
  local ahead = math.max(1, self.workers * self.prefetch)
  while true do
    while self.submitted < self.length and self.submitted < self.taken + ahead do submit(self) end
    if self.taken >= self.length then
      self.ended = true
      self:close()
      return nil
    end
    local ok, sample = next_sample(self)
    if ok then
      self.taken, self.skips_in_a_row = self.taken + 1, 0
      return sample
    end
    if self.on_error == "error" then
      self.failed = "data.loader: " .. sample
      core.raise(self.failed)
    end
    self.taken = self.taken + 1
    skip(self, sample)
  end
end

--- Goes on after a sample whose error was raised, for batching.survey, which lists all of them.
---@private
function Loader:pass_over()
  self.failed, self.taken = nil, self.taken + 1
end

--- Ends the workers, after the samples that they are at. The loader may be called on: it starts new ones. Without it
--- the collector ends them.
function Loader:close()
  if self.pool then self.pool:stop() end
  self.pool, self.pending, self.arrived, self.submitted = nil, {}, {}, self.taken
end

function Loader:__index(key)
  if key == "epoch" then return math.floor(position_of(self, self.rank + self.world * self.taken) / self.size) end
  return Loader[key]
end

-- State -----------------------------------------------------------------------------------------------

--- Returns what each rank of the loader gives, by rank. Collective, unless the loader is alone. In a grid several ranks
--- of the run have the same rank of the loader, and give the same.
---@param value any
---@return any[]
function Loader:of_ranks(value)
  if self.world == 1 then return { value } end
  plain.check(dist.world_size() % self.world == 0, "loader:state_dict: the ranks may have taken different numbers of "
    .. "samples, and only the %d ranks of the run can tell each other; this loader has %d", dist.world_size(),
    self.world)
  local values = {}
  for _, theirs in ipairs(dist.all_gather_object { rank = self.rank, value = value }) do
    values[theirs.rank + 1] = theirs.value
  end
  for rank = 0, self.world - 1 do
    plain.check(values[rank + 1] ~= nil, "loader:state_dict: this loader has %d ranks, and no rank of the run has its "
      .. "rank %d", self.world, rank)
  end
  return values
end

--- Returns the number of samples that each rank has taken. With on_error = "skip" they differ, and the ranks tell
--- each other. Then also returns how many each has skipped.
local function taken_by_rank(self)
  local taken, skipped = {}, {}
  if self.on_error == "error" then
    for rank = 1, self.world do taken[rank] = self.taken end
    return taken
  end
  for rank, counts in ipairs(self:of_ranks { self.taken, self.skipped }) do
    taken[rank], skipped[rank] = unpack(counts)
  end
  return taken, skipped
end

--- Returns the position of the sample that was handed out last; from `total` on for one that `pad` gives again.
---@return integer
function Loader:last_position()
  local k = self.rank + self.world * (self.taken - 1)
  return k < self.remaining and position_of(self, k) or self.total + k - self.remaining
end

--- Names the sample that was handed out last, for messages: "train.jsonl, line 12".
---@return string
function Loader:place()
  local leaf, index = locate(self, self.taken - 1)
  return sources.place(leaf, index)
end

--- Returns the state in which rank r has taken counts[r + 1] samples and skipped skipped[r + 1].
---@private
---@param counts integer[]
---@param skipped integer[]? nil with on_error = "error"
---@return table
function Loader:state_after(counts, skipped)
  local fewest, most = math.min(unpack(counts)), math.max(unpack(counts))
  local first = math.min(fewest * self.world, self.remaining)
  local position, done = position_of(self, first), {}
  for rank, count in ipairs(counts) do
    for t = fewest, count - 1 do
      local k = rank - 1 + self.world * t
      if k < self.remaining then done[#done + 1] = position_of(self, k) end
    end
  end
  for _, before in ipairs(self.done) do
    if before >= position then done[#done + 1] = before end
  end
  table.sort(done)
  local state = { size = self.size, seed = self.seed, shuffle = self.shuffle, position = position, done = done,
    skipped = skipped }
  -- As many ranks go on where each of them was.
  if most > fewest then state.ranks = { start = self.start, done = self.done, taken = counts } end
  return state
end

--- Returns a state for load_state_dict, on any number of ranks. It is the same on each rank once every rank was handed
--- equally many samples. Samples that were prepared ahead are not in it: they are prepared again.
---
--- Collective with on_error = "skip" on several ranks.
---@return {size: integer, seed: integer, shuffle: boolean, position: integer, done: integer[], ranks: table?,
--- skipped: integer[]?}
function Loader:state_dict()
  plain.check(not self.reader,
    "loader:state_dict: %s reads this loader ahead of the training, and its state has the loader's; register it "
    .. "alone, as in run:state { pack = pack }", self.reader)
  local state = self:state_after(taken_by_rank(self))
  -- At an uneven end one rank has taken more than another, and every rank all that it gets.
  if self.ended and self.on_error == "error" then state.position, state.done = self.total, {} end
  return state
end

local function is_position(value)
  return plain.is_whole(value, 0) and value < 2 ^ 53
end

--- Raises unless the values of a state are of the kinds that state_dict returns.
local function check_state(state)
  local function refuse(key, expected, value)
    core.raise(("loader:load_state_dict: %s of the state must be %s, not %s"):format(key, expected,
      plain.shown(value, "number")))
  end
  for _, key in ipairs { "size", "seed", "position" } do
    if not is_position(state[key]) then refuse(key, "a whole number of at least 0", state[key]) end
  end
  if type(state.shuffle) ~= "boolean" then refuse("shuffle", "true or false", state.shuffle) end
  if type(state.done) ~= "table" then refuse("done", "an array of positions", state.done) end
  -- States of earlier versions have no `skipped`.
  if state.skipped ~= nil and type(state.skipped) ~= "table" then
    refuse("skipped", "an array of counts", state.skipped)
  end
  for _, key in ipairs { "done", "skipped" } do
    for i, number in ipairs(state[key] or {}) do
      if not is_position(number) then refuse(("%s[%d]"):format(key, i), "a whole number of at least 0", number) end
    end
  end
end

--- Returns the samples that this rank skipped before a state, by the state's counts. Among another number of ranks,
--- rank 0 goes on with the sum.
local function skipped_before(self, counts)
  if #counts == self.world then return counts[self.rank + 1] end
  local sum = 0
  for _, count in ipairs(self.rank == 0 and counts or {}) do sum = sum + count end
  return sum
end

--- Goes on from what state_dict returned: with rank and world of now, in the order that was saved.
---@param state table
function Loader:load_state_dict(state)
  for _, key in ipairs { "size", "seed", "shuffle", "position", "done" } do
    plain.check(type(state) == "table" and state[key] ~= nil,
      "loader:load_state_dict: this is no state of a loader: it lacks %s", key)
  end
  check_state(state)
  plain.check(state.size == self.size,
    "loader:load_state_dict: the state is of a source of %d samples, this one has %d", state.size, self.size)
  for _, key in ipairs { "seed", "shuffle" } do
    if state[key] ~= self[key] and dist.rank() == 0 then
      io.stderr:write(("lockstep: data.loader: %s is %s, as saved, not %s\n"):format(key, tostring(state[key]),
        tostring(self[key])))
    end
  end
  self:close()
  self.seed, self.shuffle = state.seed, state.shuffle
  self.skipped, self.next_report = skipped_before(self, state.skipped or {}), nil
  local ranks = state.ranks
  if ranks and #ranks.taken == self.world then
    begin(self, ranks.start, plain.copy(ranks.done))
    self.taken = ranks.taken[self.rank + 1]
    self.submitted = self.taken
  else
    begin(self, state.position, plain.copy(state.done))
  end
end

-- Making one ------------------------------------------------------------------------------------------

--- Raises unless a value is a whole number of at least `least`, and at most `most` if that is given.
local function check_whole(name, value, least, most)
  if not plain.is_whole(value, least) or value > (most or 2 ^ 53) then
    local range = most and ("from %d to %d"):format(least, most) or ("of at least %d"):format(least)
    core.raise(("data.loader: %s must be a whole number %s, not %s"):format(name, range, plain.shown(value, "number")))
  end
end

local function check(o)
  sources.check(o.source, "data.loader: source")
  check_whole("workers", o.workers, 0, MAX_WORKERS)
  check_whole("prefetch", o.prefetch, 1, MAX_PREFETCH)
  check_whole("seed", o.seed, 0)
  -- NaN is not above 0.
  plain.check(type(o.report_after_s) == "number" and o.report_after_s > 0 and o.report_after_s <= 1e9,
    "data.loader: report_after_s must be a number of seconds above 0, not %s", o.report_after_s)
  if o.epochs ~= nil then check_whole("epochs", o.epochs, 1) end
  check_whole("world", o.world, 1)
  check_whole("rank", o.rank, 0)
  plain.check(o.rank < o.world, "data.loader: rank must be from 0 to world - 1 = %d, not %d", o.world - 1, o.rank)
  plain.check(o.on_error == "error" or o.on_error == "skip",
    'data.loader: on_error must be "error" or "skip", not "%s"', o.on_error)
  plain.check(o.device == nil or o.device == "cpu" or tostring(o.device):find "^cuda:?%d*$",
    'data.loader: device must be "cuda", "cuda:" and a number, or "cpu", as dist.device() returns it, not %s',
    plain.shown(o.device, "string"))
  if o.drop_last and o.pad then core.raise("data.loader: drop_last and pad exclude each other") end
  if #o.source == 0 then core.raise("data.loader: the source has no samples") end
  local is_function = type(o.map) == "function"
  plain.check(o.map == nil or type(o.map) == "string" or is_function,
    "data.loader: map must be the name of a module that returns function(sample), not a %s", type(o.map))
  if is_function and o.workers > 0 then
    core.raise("data.loader: map is a function, which cannot leave the script's Lua state; with workers give the name "
      .. 'of a module beside the script that returns it, as in map = "my_map"')
  end
end

---@class data.LoaderOptions
---@field source data.Source|table[]
---@field map string|(fun(sample: table, options: any): any)|nil
---@field options any? the map's second argument
---@field workers integer? default 0
---@field prefetch integer? default 4
---@field shuffle boolean? default true
---@field seed integer? default 0
---@field epochs integer? default: without end
---@field on_error "error"|"skip"? default "error"
---@field report_after_s number? default 30
---@field drop_last boolean? default false
---@field pad boolean? default false
---@field device string? default: tensors stay where the map made them
---@field rank integer? default: this rank
---@field world integer? default: the run's ranks

--- See data.loader.
---@param opts data.LoaderOptions
---@return data.Loader
return function(opts)
  local o = options.read("data.loader", opts, {
    source = options.required, map = options.optional, options = options.optional, workers = 0, prefetch = 4,
    shuffle = true, seed = 0, epochs = options.optional, on_error = "error", drop_last = false, pad = false,
    report_after_s = 30, device = options.optional, rank = options.optional, world = options.optional,
  })
  o.rank, o.world = o.rank or dist.rank(), o.world or dist.world_size()
  check(o)
  local self = setmetatable(o, Loader)
  if o.workers == 0 and type(o.map) == "string" then self.map = mapping.load(o.map) end
  self.pin = o.device ~= nil and o.device ~= "cpu"
  if self.pin then self.uploads = uploads.new(o.device) end
  self.size, self.skipped = #o.source, 0
  self.total = o.epochs and o.epochs * self.size or math.huge
  begin(self, 0, {})
  agreement.same_order("data.loader", o.world, { source = sources.outline(o.source), seed = o.seed,
    shuffle = o.shuffle, epochs = o.epochs or "without end", drop_last = o.drop_last, pad = o.pad })
  return self
end
