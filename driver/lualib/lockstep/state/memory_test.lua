-- Snapshots in memory: run:state(objects, { memory_every = n }). On one rank and on several, which also act as two
-- machines. Ranks that are killed are in //tests:memory_test.

local background = require "lockstep.state.background"
local core_keep = require "lockstep.core.keep"
local dist = require "lockstep.distributed"
local ffi = require "ffi"
local files = require "lockstep.core.files"
local fixture = require "state_fixture"
local host_memory = require "lockstep.host_memory"
local memory = require "lockstep.state.memory"
local nn = require "lockstep.nn"
local optim = require "lockstep.optim"
local routes = require "lockstep.state.routes"
local run = require "lockstep.run"
local sharding = require "lockstep.sharding"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

ffi.cdef "int setenv(const char*, const char*, int); int kill(int, int);"

local new_folder = fixture.new_folder
local rank, world = dist.rank(), dist.world_size()

local function forever() return true end

--- A model, an optimizer, values of each rank, and a step of training.
local function new_objects(kind)
  torch.manual_seed(7)
  math.randomseed(7)
  local net = nn.Sequential { nn.Linear(6, 9), nn.Linear(9, 3) }
  local model = kind == "plain" and net or sharding[kind](net)
  local objects = { model = model, optimizer = optim.AdamW(model:parameters(), { lr = 0.1 }),
    own = { rank = rank, drawn = torch.full({ 2 }, rank) }, seen = { bits = torch.tensor { true, false }, steps = 0 } }
  return objects, function()
    model(torch.randn({ 4, 6 })):square():mean():backward()
    objects.optimizer:step(math.random())
    objects.optimizer:zero_grad()
    objects.own.drawn:add_(1)
    objects.seen.steps = objects.seen.steps + 1
  end
end

local function fingerprint(objects)
  local all = { objects.own.drawn, tostring(objects.seen.steps), torch.get_rng_state() }
  for _, p in ipairs(objects.model:parameters()) do all[#all + 1] = p:detach() end
  for _, state in ipairs(objects.optimizer:state_dict().states) do
    for _, name in ipairs { "step", "exp_avg", "exp_avg_sq" } do all[#all + 1] = state[name] end
  end
  return select(2, files.checksum_of(all))
end

--- Trains from the step that is resumed on. Returns fingerprints by steps done.
local function train(objects, step_of, steps)
  local prints = {}
  for step in run:steps(forever, steps) do
    step_of()
    prints[step + 1] = fingerprint(objects)
  end
  return prints
end

local KINDS = world == 1 and { "plain" } or { "data_parallel", "fully_shard" }

--- Ranks act as one machine, or as two.
local function as_machines(count)
  ffi.C.setenv("LOCKSTEP_KEEPER", count == 1 and "" or "-machine-" .. rank % count, 1)
end

--- Trains six steps with a snapshot every second one. Forgets the keeper's connection nowhere: the objects go on.
local function prepare(kind, opts)
  new_folder()
  local objects, step_of = new_objects(kind)
  run.progress.resumed = nil
  run:state(objects, opts or { memory_every = 2 })
  return objects, step_of, train(objects, step_of, 7)
end

t.test("ARunGoesOnFromTheNewestSnapshotWithTheSameBits", function()
  for _, kind in ipairs(KINDS) do
    for machines = 1, math.min(world, 2) do
      as_machines(machines)
      local objects, step_of, expected = prepare(kind)

      local done = run:resume()

      t.equal(done, 6)
      t.equal(fingerprint(objects), expected[6])
      t.equal(train(objects, step_of, 7)[7], expected[7])
      t.equal(#files.list(run.dir .. "/state"), 0)
    end
  end
  as_machines(1)
end)

--- Changes a byte of the newest snapshot of rank 0's share, on the machines where `is_there`.
local function corrupt(step, is_there)
  local keeper = core_keep.connect(core_keep.name(run.dir) .. (os.getenv "LOCKSTEP_KEEPER" or ""), false)
  if is_there then
    local bytes = keeper:get(0, step):tensor()
    bytes:narrow(0, bytes:numel() - 1, 1):bitwise_xor_(1)
  end
  dist.barrier()
end

t.test("ADamagedByteIsFoundAndTheSnapshotBeforeIsTaken", function()
  local objects, _, expected = prepare(KINDS[1])
  corrupt(6, rank == 0)

  t.equal(run:resume(), 4)
  t.equal(fingerprint(objects), expected[4])
end)

t.test("SharesOfTwoPastsAreNotOneSnapshot", function()
  if world == 1 then return end
  local objects, step_of, expected = prepare(KINDS[1], { memory_every = 4, every = 3 })
  corrupt(4, rank == 0)
  if rank == 0 then
    for step = 6, 7 do fixture.remove_folder(("%s/state/step-%08d"):format(run.dir, step)) end
  end
  t.equal(run:resume(), 3) -- rank 0's share of step 4 was dropped, and the others' are still there
  local pack = core_keep.pack
  core_keep.pack = function(...) -- luacheck: ignore 122
    local packed = pack(...)
    if rank == 0 then return packed end
    return { bytes = function() return packed:bytes() end, write = function() error "this rank fails" end }
  end

  t.raises("this rank fails", train, objects, step_of, 7) -- rank 0 has handed over its new share of step 4

  core_keep.pack = pack -- luacheck: ignore 122
  t.equal(memory.newest(), nil)
  t.equal(run:resume(), 3)
  t.equal(fingerprint(objects), expected[3])
end)

t.test("ARankOfAnEarlierStartCannotReplaceOrDropWhatANewerOneReliesOn", function()
  local objects, step_of = prepare(KINDS[1])
  t.equal(run:resume(), 6)
  local newer = core_keep.connect(core_keep.name(run.dir), false)
  dist.barrier()
  newer:begin(newer:newest_start() + 1) -- as the next start of the run, whose ranks find 4 and 6
  local before = newer:list()
  dist.barrier()

  t.raises("a newer one uses the keeper", train, objects, step_of, 14)

  t.equal(newer:list(), before)
  t.equal(memory.newest().step, 6)
end)

t.test("AShareOfAnEarlierStartIsNotPartOfANewerOnesSnapshot", function()
  if world == 1 then return end
  local objects, _, expected = prepare(KINDS[1])
  local keeper = core_keep.connect(core_keep.name(run.dir), false)
  local start = keeper:newest_start()
  dist.barrier()
  if rank == 0 then -- as what a lingering rank left on a machine that the newer start did not use
    keeper:begin(start)
    local slab = keeper:get(1, 6)
    for _, one in ipairs(keeper:list()) do
      if one.owner == 1 and one.step == 6 then keeper:put(slab, 1, 6, world, one.crc32, start - 1) end
    end
  end
  dist.barrier()

  t.equal(run:resume(), 4)

  t.equal(fingerprint(objects), expected[4])
end)

t.test("ADamagedByteOnOneMachineIsMendedFromItsPartner", function()
  if world == 1 then return end
  as_machines(2)
  local objects, _, expected = prepare(KINDS[1])
  corrupt(6, rank == 0) -- rank 1's machine has another copy

  t.equal(run:resume(), 6)
  t.equal(fingerprint(objects), expected[6])
  as_machines(1)
end)

-- As where two starts on different machines had the same number, and the machines come together again.
t.test("DifferentSharesOfOneOwnerAreNotOneSnapshot", function()
  if world == 1 then return end
  as_machines(2)
  local objects, _, expected = prepare(KINDS[1])
  local keeper = core_keep.connect(core_keep.name(run.dir) .. os.getenv "LOCKSTEP_KEEPER", false)
  if rank == 0 then
    keeper:begin(keeper:newest_start())
    for _, one in ipairs(keeper:list()) do
      if one.owner == 0 and one.step == 6 then
        keeper:put(keeper:get(0, 6), 0, 6, world, ("%08x"):format(tonumber(one.crc32, 16) == 1 and 2 or 1), one.start)
      end
    end
  end
  dist.barrier()

  t.equal(run:resume(), 4)
  t.equal(fingerprint(objects), expected[4])
  as_machines(1)
end)

t.test("TheDiskIsTakenWhereItIsNewerOrTheOnlyOne", function()
  local objects, _, expected = prepare(KINDS[1], { memory_every = 4, every = 3 })
  t.equal(#files.list(run.dir .. "/state"), 3) -- 3, 6 and 7, the end

  t.equal(run:resume(), 7)
  t.equal(fingerprint(objects), expected[7])
  dist.barrier()
  if rank == 0 then fixture.remove_folder(run.dir .. "/state/step-00000007") end
  t.equal(run:resume(), 6)
  if rank == 0 then fixture.remove_folder(run.dir .. "/state/step-00000006") end
  t.equal(run:resume(), 4)
  t.equal(fingerprint(objects), expected[4])
  corrupt(4, rank == 0)
  t.equal(run:resume(), 3)
  t.equal(fingerprint(objects), expected[3])
end)

t.test("SnapshotsGoOnBesideSavesInTheBackground", function()
  local objects, _, expected = prepare(KINDS[1], { memory_every = 1, every = 2, async = true })

  t.equal(background.is_under_way(), false)
  t.equal(run:resume(), 7) -- the disk's, of the end
  t.equal(fingerprint(objects), expected[7])
end)

--- Kills the keeper of a name.
local function end_process_of(name)
  local list = assert(io.popen "pgrep -x lockstep_keep")
  for pid in list:lines() do
    local arguments = t.read_file("/proc/" .. pid .. "/cmdline")
    if arguments:find("--name=" .. name .. "\0", 1, true) then
      ffi.C.kill(tonumber(pid), 9)
    end
  end
  list:close()
end

--- Kills the keeper of this machine.
local function kill_keeper()
  dist.barrier()
  if rank == 0 then end_process_of(core_keep.name(run.dir)) end
  dist.barrier()
end

t.test("AKeeperThatIsGoneIsStartedAgainAndTheDiskIsTaken", function()
  local objects, step_of, expected = prepare(KINDS[1], { memory_every = 2, every = 3 })
  dist.barrier()
  if rank == 0 then fixture.remove_folder(run.dir .. "/state/step-00000007") end
  kill_keeper()

  t.equal(run:resume(), 6)
  t.equal(train(objects, step_of, 9)[7], expected[7])
  t.equal(memory.newest().step, 8)
end)

t.test("ARankOfAnotherStartLeavesANewKeeperAlone", function()
  local objects, step_of = prepare(KINDS[1])
  local start = core_keep.connect(core_keep.name(run.dir), false):newest_start()
  kill_keeper()
  if rank == 0 then core_keep.connect(core_keep.name(run.dir), true):begin(start + 1) end -- the newer run's
  dist.barrier()

  t.raises("is of start " .. start .. " of the run, and start " .. start + 1 .. " uses the new keeper", train, objects,
    step_of, 14)

  t.equal(core_keep.connect(core_keep.name(run.dir), false):newest_start(), start + 1)
end)

t.test("AKeeperThatIsKilledInTheMiddleOfACopyLosesNoStep", function()
  local objects, step_of, expected = prepare(KINDS[1])
  local new_slab = core_keep.slab
  local name = core_keep.name(run.dir)
  local is_killed = false
  core_keep.slab = function(bytes) -- luacheck: ignore 122
    if rank == 0 and not is_killed then end_process_of(name) end
    is_killed = true
    return new_slab(bytes)
  end
  run:resume()
  memory.begin { limit_gib = 1 } -- as in a new process: its first snapshot takes new memory
  run.progress.resumed = 6
  local ok, prints = pcall(train, objects, step_of, 9)
  core_keep.slab = new_slab -- luacheck: ignore 122

  t.truthy(ok, prints)
  t.truthy(is_killed)
  t.equal(prints[7], expected[7])
  t.equal(memory.newest().step, 8)
end)

t.test("SnapshotsAreFreedAtTheEndAndTheKeeperEnds", function()
  prepare(KINDS[1])
  local name = core_keep.name(run.dir)
  memory.finish()
  collectgarbage()
  collectgarbage()
  dist.barrier()

  while core_keep.connect(name, false) do collectgarbage() end -- it ends by itself
end)

--- Counts the new shared memory of all ranks that a call allocates.
local function num_slabs(fn)
  local new_slab, count = core_keep.slab, 0
  core_keep.slab = function(bytes) -- luacheck: ignore 122
    count = count + 1
    return new_slab(bytes)
  end
  fn()
  core_keep.slab = new_slab -- luacheck: ignore 122
  return dist.all_reduce(torch.tensor { count }):item()
end

t.test("AMachineThatLacksSharesGetsEachOnce", function()
  if world < 3 then return end
  as_machines(2)
  local objects, step_of, expected = prepare(KINDS[1])
  dist.barrier()
  if rank == 0 then end_process_of(core_keep.name(run.dir) .. "-machine-0") end -- that of ranks 0 and 2
  dist.barrier()

  local count = num_slabs(function() t.equal(run:resume(), 6) end)

  t.equal(count, world)
  t.equal(fingerprint(objects), expected[6])
  t.equal(train(objects, step_of, 7)[7], expected[7])
  as_machines(1)
end)

t.test("SharesThatAMachineLacksCountForTheLimit", function()
  if world == 1 then return end
  as_machines(2)
  local objects, _, expected = prepare(KINDS[1], { memory_every = 2, every = 3 })
  dist.barrier()
  if rank == 0 then
    fixture.remove_folder(run.dir .. "/state/step-00000007")
    fixture.remove_folder(run.dir .. "/state/step-00000006")
    end_process_of(core_keep.name(run.dir) .. "-machine-0")
  end
  dist.barrier()
  local snapshot = memory.newest()
  t.equal(snapshot.step, 6)
  for _, one in ipairs(snapshot.ranks) do one.limit = 1000 end
  local newest = memory.newest
  memory.newest = function() return snapshot end

  t.equal(run:resume(), 3)

  memory.newest = newest
  t.equal(fingerprint(objects), expected[3])
  as_machines(1)
end)

t.test("TwoSnapshotsOfAShareAreThereAtMostAfterResuming", function()
  local objects, step_of = prepare(KINDS[1], { memory_every = 4 })
  local keeper = core_keep.connect(core_keep.name(run.dir), false)
  local function of_own()
    local found = {}
    for _, one in ipairs(keeper:list()) do
      if one.owner == rank then found[#found + 1] = one end
    end
    return found
  end
  local before = of_own()[1]
  local slab = keeper:get(rank, before.step)
  run:state(objects, { memory_every = 3 }) -- as in a new process, which finds what the one before has left
  keeper = core_keep.connect(core_keep.name(run.dir), false)
  keeper:begin(keeper:newest_start())
  keeper:put(slab, rank, before.step, world, before.crc32, keeper:newest_start())
  t.equal(run:resume(), 4)
  local new_slab, most = core_keep.slab, 0
  core_keep.slab = function(bytes) -- luacheck: ignore 122
    most = math.max(most, #of_own() + 1)
    return new_slab(bytes)
  end

  train(objects, step_of, 14) -- takes 6, 9 and 12

  core_keep.slab = new_slab -- luacheck: ignore 122
  t.equal(most, 2)
  t.equal(memory.newest().step, 12)
end)

t.test("TheDefaultLimitIsWithinThatOfTheControlGroup", function()
  new_folder()
  local root = ("%s/root-%d"):format(run.dir, rank)
  os.execute(("mkdir -p %s/proc %s/sys/fs/cgroup"):format(root, root))
  local function write(name, text)
    local file = assert(io.open(root .. name, "w"))
    file:write(text)
    file:close()
  end
  write("/proc/meminfo", "MemTotal:       100 kB\nMemFree:  1 kB\nMemAvailable:    80 kB\n")
  t.equal(host_memory.total(root), 102400)
  t.equal(host_memory.free(root), 81920)
  for _, case in ipairs { { "max\n", 102400, 81920 }, { "4096\n", 4096, 3096 }, { "1024000\n", 102400, 81920 } } do
    write("/sys/fs/cgroup/memory.max", case[1])
    write("/sys/fs/cgroup/memory.current", "1000\n")
    t.equal(host_memory.total(root), case[2])
    t.equal(host_memory.free(root), case[3])
  end
end)

t.test("AnotherRunsSnapshotsAreNotSeen", function()
  prepare(KINDS[1])
  local before = core_keep.name(run.dir)
  local objects = new_objects(KINDS[1])
  new_folder()
  run.progress.resumed = nil
  run:state(objects, { memory_every = 2 })

  t.equal(run:resume(), nil)
  t.truthy(core_keep.name(run.dir) ~= before)
end)

t.test("TooLargeSnapshotsAreAnErrorOnEveryRank", function()
  new_folder()
  local objects, step_of = new_objects(KINDS[1])
  run.progress.resumed = nil
  run:state(objects, { memory_every = 1, memory_limit_gib = 1e-6 })

  t.raises(("GiB of memory for two snapshots of each of %d shares, and the limit is 1e-06 GiB; allow more with "
    .. "memory_limit_gib"):format(world), train, objects, step_of, 3)
end)

t.test("MistakesAreNamed", function()
  for _, case in ipairs {
    { { memory_every = 0 }, "memory_every must be a whole number of at least 1, not 0" },
    { { memory_limit_gib = 1 }, "memory_limit_gib is for the snapshots of memory_every = n, which is not given" },
    { { memory_every = 1, memory_limit_gib = 0 }, "memory_limit_gib must be a number above 0, not 0" },
  } do
    t.raises(case[2], run.state, run, { seen = {} }, case[1])
  end
end)

t.test("EveryRankSendsToTheNextMachineAndNobodyWaitsInACircle", function()
  math.randomseed(39)
  for _ = 1, 200 do
    local ranks, machines = {}, math.random(1, 5)
    for i = 1, math.random(machines, 12) do
      ranks[i] = { keeper = i <= machines and i or math.random(machines) }
    end
    local order, to = routes.between(ranks)
    t.equal(#order, machines == 1 and 0 or #ranks)
    for _, route in ipairs(order) do
      t.equal(to[route.from], route.to)
      t.truthy(ranks[route.from + 1].keeper ~= ranks[route.to + 1].keeper)
    end
    -- Each rank does its part of the list in the list's order, and a message needs both of its ranks.
    local at, done = {}, 0
    local function next_of(r)
      for i = (at[r] or 0) + 1, #order do
        if order[i].from == r or order[i].to == r then return i end
      end
    end
    local moved = true
    while moved do
      moved = false
      for i, route in ipairs(order) do
        if next_of(route.from) == i and next_of(route.to) == i then
          at[route.from], at[route.to], done, moved = i, i, done + 1, true
        end
      end
    end
    t.equal(done, #order)
  end
end)
