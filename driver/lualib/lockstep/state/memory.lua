--- Snapshots of the state in memory: run:state(objects, { memory_every = n }).
---
--- Each rank writes its share of the state into shared memory without a name, and hands that to the keeper of its
--- machine: a small process that outlives the ranks. With several machines it also sends the share to a rank of the
--- next one, which hands it to the keeper there. A keeper has a share as a whole or not at all, and the last two of
--- each rank, so that one is whole while the other is written. The program's side is driver/keep/.

local agreement = require "lockstep.state.agreement"
local core = require "lockstep.core"
local core_keep = require "lockstep.core.keep"
local core_safetensors = require "lockstep.core.safetensors"
local dist = require "lockstep.distributed"
local files = require "lockstep.core.files"
local host_memory = require "lockstep.host_memory"
local plain = require "lockstep.plain"
local routes = require "lockstep.state.routes"
local run = require "lockstep.run"
local torch = require "lockstep.torch"

local M = {}

local CALLER = "run:state: memory_every"
--- The name of the entry of a share's metadata that describes the state.
local MARKER = "lockstep"
local GIB = 2 ^ 30
--- Bytes of one message to another machine.
local PIECE = 64 * 2 ^ 20

local keeper ---@type lockstep.core.keep.Keeper?
local name ---@type string? of the keepers; nil: there are no snapshots
local limit_gib ---@type number?
local start ---@type integer of the run, counted by its keepers
local resumed ---@type integer the step that this process has resumed from
--- The snapshots that this process has handed over, by owner: the last one first. The one that it has resumed from
--- has no slab.
local held = {} ---@type table<integer, {step: integer, slab: lockstep.core.keep.Slab?}[]>

local function say(text) io.stderr:write("lockstep: ", text, "\n") end

local function connect()
  local reason
  keeper, reason = core_keep.connect(name, true)
  if not keeper then error(reason, 0) end
  return keeper:newest_start()
end

--- Calls fn(keeper). If the keeper is gone, says so and calls fn with a new one, which holds nothing.
local function ask(fn)
  local ok, result = pcall(fn, keeper)
  if ok then return result end
  if not tostring(result):find("the keeper is gone", 1, true) then error(result, 0) end
  say(("rank %d: the keeper of this machine's snapshots in memory is gone, and they with it; another is started")
    :format(dist.rank()))
  held = {}
  local known = connect()
  if known > 0 and known ~= start then
    error(("rank %d is of start %d of the run, and start %d uses the new keeper; end this process"):format(dist.rank(),
      start, known), 0)
  end
  keeper:begin(start)
  return fn(keeper)
end

--- Numbers this start of the run, by one more than any that a keeper of its machines knows. Collective.
---
--- A rank may outlive its start: one that was stopped, or whose agent of torchrun was killed. A keeper that knows of a
--- newer start refuses what such a rank hands over or drops. On a machine that the newer start does not use, the rank
--- can still hand over its share; that is never taken as part of a newer start's snapshot. Our own launcher starts
--- ranks only when all those before have ended. run.restarts would not do as this number: agents of torchrun that
--- joined later count from 0, and a command that is given again does, too.
local function number_start(newest)
  start = 0
  for _, known in ipairs(agreement.values(newest)) do start = math.max(start, known + 1) end
  agreement.together(CALLER, function() ask(function(k) k:begin(start) end) end)
end

--- Begins to take snapshots, or ends it if there is no `opts`. Collective.
---@param opts {limit_gib: number?}?
function M.begin(opts)
  M.finish()
  name = nil
  if not opts or package.loaded["lockstep.dry_run"] then return end
  local own = agreement.together(CALLER, function()
    if dist.rank() ~= 0 then return "" end
    local found = core_keep.name(run.dir)
    plain.check(found, "cannot read or write %s/keep.id", run.dir)
    return found
  end)
  -- A test's ranks act as several machines.
  name = agreement.values(own)[1] .. (os.getenv "LOCKSTEP_KEEPER" or "")
  limit_gib, resumed = opts.limit_gib, 0
  number_start(agreement.together(CALLER, connect))
end

--- Returns whether snapshots are taken.
---@return boolean
function M.is_on() return name ~= nil end

--- Frees what this rank has handed over, at the end of the run.
function M.finish()
  if keeper then
    for owner, found in pairs(held) do
      for _, one in ipairs(found) do pcall(keeper.drop, keeper, owner, one.step) end
    end
  end
  keeper, name, held = nil, nil, {}
  collectgarbage() -- closes the connection
end

--- Returns the bytes that the snapshots of this machine may take.
local function limit()
  return limit_gib and limit_gib * GIB or host_memory.total() / 2
end

-- Taking a snapshot -----------------------------------------------------------------------------------

--- Raises, on every rank, if the snapshots of a machine are larger than the limit.
local function check_limit(ranks, to)
  local bytes, num = {}, {}
  local function add(machine, size)
    bytes[machine], num[machine] = (bytes[machine] or 0) + 2 * size, (num[machine] or 0) + 1
  end
  for rank, one in ipairs(ranks) do
    add(one.keeper, one.bytes)
    if to[rank - 1] then add(ranks[to[rank - 1] + 1].keeper, one.bytes) end
  end
  for rank, one in ipairs(ranks) do
    if bytes[one.keeper] > one.limit then
      core.raise(("%s: the machine of rank %d needs %.3g GiB of memory for two snapshots of each of %d shares, and the "
        .. "limit is %.3g GiB; allow more with memory_limit_gib, share the state out with sharding.fully_shard, or "
        .. "leave memory_every out"):format(CALLER, rank - 1, bytes[one.keeper] / GIB, num[one.keeper],
        one.limit / GIB))
    end
  end
end

--- Returns shared memory of so many bytes for the owner's next snapshot: that of the one before the last, if it fits.
local function slab_for(owner, bytes)
  local found = held[owner]
  if not found then -- what a process before this one left: all but what this one has resumed from
    found = {}
    held[owner] = found
    for _, one in ipairs(ask(function(k) return k:list() end)) do
      if one.owner == owner and one.step == resumed then
        found[1] = { step = one.step }
      elseif one.owner == owner then
        ask(function(k) k:drop(owner, one.step) end)
      end
    end
  end
  if #found == 2 then
    local oldest = table.remove(found)
    ask(function(k) k:drop(owner, oldest.step) end)
    if oldest.slab and oldest.slab:bytes() == bytes then return oldest.slab end
  end
  return core_keep.slab(bytes)
end

--- Forgets what the owner has handed over of this step and of later ones, which the keeper has no longer.
local function forget_from(owner, step)
  local found = held[owner] or {}
  while found[1] and found[1].step >= step do table.remove(found, 1) end
end

--- Drops what this machine has of this step and of later ones: it is of a past before the run was resumed. All ranks do
--- so before one hands over its share of the step, so that shares of two pasts never count as one snapshot: one start
--- of the run may resume more than once. The step that was resumed is of the same past, and stays until it is replaced.
local function drop_from(step)
  if step == resumed then step = step + 1 end
  for _, one in ipairs(ask(function(k) return k:list() end)) do
    if one.step >= step then ask(function(k) k:drop(one.owner, one.step) end) end
  end
  for owner in pairs(held) do forget_from(owner, step) end
end

local function hand_over(slab, owner, step, crc32)
  ask(function(k) k:put(slab, owner, step, dist.world_size(), crc32, start) end)
  held[owner] = held[owner] or {} -- of a new keeper
  forget_from(owner, step)
  table.insert(held[owner], 1, { step = step, slab = slab })
end

--- Sends a share to another machine, piece by piece, or receives it.
local function pass_on(route, ranks, own)
  local bytes, is_from = ranks[route.from + 1].bytes, route.from == dist.rank()
  local slab = is_from and own or slab_for(route.from, bytes)
  local content = slab:tensor()
  for at = 0, bytes - 1, PIECE do
    local part = content:narrow(0, at, math.min(PIECE, bytes - at))
    if is_from then
      dist.send(part:to(dist.device()), route.to)
    else
      part:copy_(dist.recv(torch.empty(part.shape, { dtype = torch.uint8, device = dist.device() }), route.from))
    end
  end
  return slab
end

--- Takes a snapshot. Collective.
---@param step integer steps that are done
---@param parts table<string, table<string, torch.Tensor>> this rank's tensors by "model" or "state", and by name
---@param kinds table<string, string> see state.Save
function M.take(step, parts, kinds)
  local rank, world = dist.rank(), dist.world_size()
  local packed = agreement.together(CALLER, function()
    local tensors = {}
    for kind, part in pairs(parts) do
      for own, tensor in pairs(part) do tensors[kind .. "/" .. own] = tensor end
    end
    drop_from(step)
    return core_keep.pack(CALLER, tensors,
      { [MARKER] = core.json_encode { step = step, world_size = world, values = kinds } })
  end)
  local ranks = agreement.values { bytes = packed:bytes(), keeper = keeper:number(), limit = limit() }
  local order, to = routes.between(ranks)
  check_limit(ranks, to)
  local slab, crc32
  slab = agreement.together(CALLER, function()
    local found = slab_for(rank, packed:bytes())
    crc32 = packed:write(found)
    hand_over(found, rank, step, crc32)
    return found
  end)
  if #order == 0 then return end
  local checksums = agreement.texts(crc32)
  for _, route in ipairs(order) do
    if route.from == rank then pass_on(route, ranks, slab) end
    if route.to == rank then hand_over(pass_on(route, ranks), route.from, step, checksums[route.from + 1]) end
  end
end

-- Resuming --------------------------------------------------------------------------------------------

---@class state.Snapshot
---@field step integer
---@field world integer
---@field start integer of the run, which took it
---@field holders table<integer, integer[]> ranks whose machine has the owner's share, by owner
---@field bytes table<integer, integer> of a share, by owner
---@field crc32 table<integer, string> by owner
---@field is_mixed boolean? whether machines have different shares of one owner
---@field ranks {keeper: integer, limit: number, list: table[]}[] by rank: what its machine has

--- Returns the newest snapshot that the machines have whole, or nil: the last one of the last start that left one.
--- Collective.
---@return state.Snapshot?
function M.newest()
  if not name then return nil end
  local own = agreement.together(CALLER, function()
    local list = ask(function(k) return k:list() end)
    return { list = list, keeper = keeper:number(), limit = limit() }
  end)
  local ranks = agreement.values(own)
  local by_key, found = {}, nil
  for rank, machine in ipairs(ranks) do
    for _, one in ipairs(machine.list) do
      local key = ("%d %d %d"):format(one.step, one.world, one.start)
      by_key[key] = by_key[key] or { step = one.step, world = one.world, start = one.start, holders = {}, bytes = {},
        crc32 = {}, ranks = ranks }
      local snapshot = by_key[key]
      if not snapshot.holders[one.owner] then
        snapshot.holders[one.owner], snapshot.bytes[one.owner] = {}, one.bytes
        snapshot.crc32[one.owner] = one.crc32
      end
      -- Starts on other machines may have had the same number: their shares are not one state.
      snapshot.is_mixed = snapshot.is_mixed or snapshot.crc32[one.owner] ~= one.crc32
      table.insert(snapshot.holders[one.owner], rank - 1)
    end
  end
  for _, key in ipairs(plain.keys(by_key)) do
    local snapshot = by_key[key]
    local is_whole = not snapshot.is_mixed
    for owner = 0, snapshot.world - 1 do is_whole = is_whole and snapshot.holders[owner] ~= nil end
    local is_newer = not found or snapshot.start > found.start
      or snapshot.start == found.start and snapshot.step > found.step
    if is_whole and is_newer then found = snapshot end
  end
  return found
end

--- Returns the shares that this machine has, by owner. Raises an error if one is damaged, which the keeper then drops.
--- The ranks of a machine check a part of them each.
local function take_from_keeper(snapshot)
  local shares, damaged = {}, nil
  for owner = 0, snapshot.world - 1 do
    local holders, place = snapshot.holders[owner], nil
    for i, rank in ipairs(holders) do place = rank == dist.rank() and i or place end
    if place then
      shares[owner] = keeper:get(owner, snapshot.step)
      if owner % #holders == place - 1 then
        local crc32 = select(2, files.checksum(shares[owner]:path()))
        for _, one in ipairs(keeper:list()) do
          if one.owner == owner and one.step == snapshot.step and one.crc32 ~= crc32 then
            keeper:drop(owner, snapshot.step)
            damaged = ("rank %d's share has the checksum %s, but %s was noted"):format(owner, crc32, one.crc32)
          end
        end
      end
    end
  end
  if damaged then error(damaged, 0) end
  return shares
end

--- Returns, for each owner, the ranks that receive the share: one of each machine that lacks it. The machine's other
--- ranks get it from the keeper. Returns nil and the reason if a machine has no room for the shares that it lacks.
local function plan_receivers(snapshot)
  local ranks, lacked, receivers = snapshot.ranks, {}, {}
  for owner = 0, snapshot.world - 1 do
    local receiver_of = {}
    for _, rank in ipairs(snapshot.holders[owner]) do receiver_of[ranks[rank + 1].keeper] = -1 end
    receivers[owner] = {}
    for rank, one in ipairs(ranks) do
      if not receiver_of[one.keeper] then
        receiver_of[one.keeper] = rank - 1
        table.insert(receivers[owner], rank - 1)
        lacked[one.keeper] = (lacked[one.keeper] or 0) + snapshot.bytes[owner]
      end
    end
  end
  for rank, one in ipairs(ranks) do
    local bytes = lacked[one.keeper] or 0
    for _, kept in ipairs(bytes > 0 and one.list or {}) do bytes = bytes + kept.bytes end
    if bytes > one.limit then
      return nil, ("the machine of rank %d needs %.3g GiB of memory for its snapshots and the shares that it lacks, "
        .. "and the limit is %.3g GiB; allow more with memory_limit_gib"):format(rank - 1, bytes / GIB, one.limit / GIB)
    end
  end
  return receivers
end

--- Sends the share of one owner to the ranks that receive it. Collective.
local function broadcast_share(from, bytes, slab)
  local content = slab and slab:tensor()
  for at = 0, bytes - 1, PIECE do
    local size = math.min(PIECE, bytes - at)
    local part = content and content:narrow(0, at, size)
    local passed = part and dist.rank() == from and part:to(dist.device())
      or torch.empty({ size }, { dtype = torch.uint8, device = dist.device() })
    passed = dist.broadcast(passed, from)
    if part and dist.rank() ~= from then part:copy_(passed) end
  end
end

--- Gives each machine the shares that it lacks: one rank receives a share and hands it to the keeper, from which the
--- others get it. So a machine has each share once. Returns the reason if that fails. Collective.
local function gather(snapshot, shares, receivers)
  for owner = 0, snapshot.world - 1 do
    local from, bytes = snapshot.holders[owner][1], snapshot.bytes[owner]
    local receives = false
    for _, rank in ipairs(receivers[owner]) do receives = receives or rank == dist.rank() end
    if #receivers[owner] > 0 then
      local slab, problem = agreement.try(function()
        return receives and core_keep.slab(bytes) or dist.rank() == from and shares[owner]
      end)
      if problem then return problem end
      broadcast_share(from, bytes, slab)
      for _, step in ipairs {
        function()
          if receives then
            keeper:put(slab, owner, snapshot.step, snapshot.world, snapshot.crc32[owner], snapshot.start)
          end
        end,
        function() shares[owner] = shares[owner] or keeper:get(owner, snapshot.step) end,
        function()
          if receives then keeper:drop(owner, snapshot.step) end -- the ranks hold it while they need it
        end,
      } do
        problem = select(2, agreement.try(step))
        if problem then return problem end
      end
    end
  end
end

local function read_shares(snapshot, shares)
  local state = { tensors = {}, owners = {} }
  for owner = 0, snapshot.world - 1 do
    local tensors, metadata = core_safetensors.read(shares[owner]:path(), CALLER)
    state.marker = core.json_decode(metadata[MARKER], CALLER)
    for full, tensor in pairs(tensors) do
      local kind, own = full:match "^(%a+)/(.*)$"
      state.tensors[own], state.owners[own] = tensor, kind == "model" and "model" or own:match "^([%w_]+)%."
    end
  end
  return state
end

--- Reads a snapshot, as resuming reads the files of a state. Returns nil if it is damaged; M.newest then finds another.
--- Returns nil and true if there is no memory to read it. Collective.
---@param snapshot state.Snapshot
---@return table?
---@return boolean? is_too_large
function M.read(snapshot)
  local receivers, too_large = plan_receivers(snapshot)
  local shares, problem, state = nil, too_large, nil
  if not problem then shares, problem = agreement.try(take_from_keeper, snapshot) end
  if not problem then problem = gather(snapshot, shares, receivers) end
  if not problem then state, problem = agreement.try(read_shares, snapshot, shares) end
  if not problem then
    resumed = snapshot.step
    return state
  end
  if dist.rank() == 0 then
    say(("run:resume: the snapshot in memory after %d steps cannot be used: %s; %s is used"):format(snapshot.step,
      problem, too_large and "the disk" or "what is next newest"))
  end
  return nil, too_large ~= nil
end

return M
