-- Collectives. Every rank runs every test; the file holds for any number of ranks from two. One rank
-- alone: distributed_alone_test.lua.

local dist = require "lockstep.distributed"
local nn = require "lockstep.nn"
local run = require "lockstep.run"
local sharding = require "lockstep.sharding"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local rank, world = dist.rank(), dist.world_size()
local SUM = world * (world + 1) / 2 -- of rank + 1 over the ranks

local REDUCIBLE = { "float32", "float64", "float16", "bfloat16", "uint8", "int8", "int32", "int64" }
local MOVABLE = { "bool", "int16", "uint16", "complex64", "float8_e4m3fn", unpack(REDUCIBLE) }

--- {of, of, ...}, a tensor of the dtype with the value that a rank starts from.
local function values(of, dtype)
  return torch.full({ 3 }, of, { dtype = torch.float32 }):to(torch[dtype or "float32"])
end

-- Rank ---------------------------------------------------------------------------------------------------

t.test("EveryRankKnowsItselfAndTheOthers", function()
  local everyone = dist.all_gather_object { rank = dist.rank(), local_rank = dist.local_rank() }

  t.equal(#everyone, world)
  for i, one in ipairs(everyone) do t.equal(one, { rank = i - 1, local_rank = i - 1 }) end
  t.equal(dist.backend(), dist.device() == "cpu" and "gloo" or "nccl")
end)

-- Reductions --------------------------------------------------------------------------------------------

t.test("AllReduceReducesInPlaceForEveryOperationAndDtype", function()
  local expected = { sum = SUM, min = 1, max = world, avg = SUM / world }
  for _, dtype in ipairs(REDUCIBLE) do
    -- Not pairs: its order may differ from rank to rank.
    for _, op in ipairs { "sum", "min", "max", "avg" } do
      local value = expected[op]
      if op ~= "avg" or dtype:find("float") then
        local x = values(rank + 1, dtype)
        t.truthy(rawequal(dist.all_reduce(x, op), x))
        t.near(x:double(), values(value, "float64"), 1e-2, dtype .. " " .. op)
        t.equal(x.dtype, torch[dtype])
      end
    end
  end
end)

t.test("AllReduceSumsUnlessToldOtherwise", function()
  t.equal(dist.all_reduce(values(rank + 1)), values(SUM))
end)

t.test("AllReduceTakesAnyShapeAndLayout", function()
  local base = torch.zeros({ 3, 4 })
  dist.all_reduce(base:t():add_(rank + 1))
  t.equal(base, torch.full({ 3, 4 }, SUM))

  local column = torch.zeros({ 3, 4 })
  dist.all_reduce(column[{ {}, { 1, 2 } }]:add_(rank + 1))
  t.equal(column:sum({ 0 }), torch.tensor { 0, 3 * SUM, 0, 0 })

  t.equal(dist.all_reduce(torch.tensor(rank + 1.5)):item(), SUM + world / 2)
  t.equal(dist.all_reduce(torch.zeros({ 0, 2 })).shape, { 0, 2 })
end)

t.test("InPlaceCollectivesRefuseWhatRequiresAGradient", function()
  local w = values(0.5):requires_grad_(true)
  local y = (w * (rank + 1)):exp()
  local peer = (rank + 1) % world

  for _, x in ipairs { w, y } do
    t.raises("dist.all_reduce: x requires a gradient, and a change in place would make it wrong; use "
      .. "dist.functional.all_reduce, which returns a new tensor, or x:detach()", dist.all_reduce, x)
    t.raises("use dist.functional.broadcast", dist.broadcast, x, 0)
    t.raises("dist.recv: x requires a gradient", dist.recv, x, peer)
  end

  dist.all_reduce(w:detach(), "max")
  torch.no_grad(dist.broadcast, w, 0)
  t.equal(w:detach(), values(0.5))
  t.truthy(w.is_leaf and w.requires_grad)
end)

t.test("BackwardFindsOutThatACollectiveHasChangedWhatItSaved", function()
  local layouts = { values(2), torch.full({ 3, 2 }, 2)[{ {}, 1 }] }
  for _, x in ipairs(layouts) do
    for _, change in ipairs { dist.all_reduce, function(y) dist.broadcast(y, 0) end } do
      local w = values(1):requires_grad_(true)
      local loss = (w * x):sum()
      change(x)
      t.raises("modified by an inplace operation", loss.backward, loss)
    end
  end
end)

t.test("ReduceScatterGivesEachRankItsPart", function()
  for _, case in ipairs { { "sum", SUM }, { "avg", SUM / world } } do
    local parts = {}
    for i = 1, world do parts[i] = values((rank + 1) * i) end

    t.near(dist.reduce_scatter(parts, case[1]), values(case[2] * (rank + 1)), 1e-5, case[1])

    t.equal(parts[1], values(rank + 1), "the parts stay as they are")
  end
end)

-- Moves -------------------------------------------------------------------------------------------------

t.test("BroadcastFillsEveryRankFromItsSourceInEveryDtype", function()
  for source = 0, world - 1 do
    for _, dtype in ipairs(MOVABLE) do
      local x = values(rank == source and 1 or 0, dtype)
      t.truthy(rawequal(dist.broadcast(x, source), x))
      t.equal(x, values(1, dtype), dtype)
    end
  end
end)

t.test("AllGatherReturnsEachRanksTensorInOrderInEveryDtype", function()
  for _, dtype in ipairs(MOVABLE) do
    local gathered = dist.all_gather(values(rank, dtype))
    t.equal(#gathered, world)
    for i, x in ipairs(gathered) do t.equal(x, values(i - 1, dtype), dtype) end
  end
  t.equal(dist.all_gather(torch.tensor(rank + 0.5))[world]:item(), world - 0.5)
  t.equal(dist.all_gather(torch.arange(6):view(2, 3):t())[1], torch.arange(6):view(2, 3):t())
end)

t.test("SendAndRecvPassATensorRoundTheRing", function()
  local following, preceding = (rank + 1) % world, (rank - 1) % world
  for _, dtype in ipairs(MOVABLE) do
    local x = values(rank, dtype)
    local received = torch.empty({ 3 }, { dtype = torch[dtype] })
    if rank == 0 then
      dist.send(x, following)
      dist.recv(received, preceding)
    else
      t.truthy(rawequal(dist.recv(received, preceding), received))
      dist.send(x, following)
    end
    t.equal(received, values(preceding, dtype), dtype)
  end
end)

t.test("TagsTellMessagesApart", function()
  if rank == 0 then
    dist.send(values(5), 1, { tag = 5 })
    dist.send(values(6), 1, { tag = 6 })
  elseif rank == 1 then
    local five, six = values(0), values(0)
    dist.recv(five, 0, { tag = 5 })
    dist.recv(six, 0, { tag = 6 })
    t.equal({ five[0]:item(), six[0]:item() }, { 5, 6 })
  end
  dist.barrier()
end)

t.test("RecvIntoATensorOfAnotherDtypeOrShapeIsAnErrorAndTheConnectionLives", function()
  local cases = {
    { values(1), values(1, "float16"), "float32 {3} on cpu", "float16 {3}" }, -- ended the process
    { values(1, "float16"), values(1), "float16 {3} on cpu", "float32 {3}" }, -- left a part as it was
    { values(1), values(1, "int32"), "float32 {3} on cpu", "int32 {3}" },
    { torch.zeros { 2, 3 }, torch.zeros { 3, 2 }, "float32 {2, 3} on cpu", "float32 {3, 2}" },
    { torch.zeros { 70000 }, torch.zeros { 0 }, "float32 {70000} on cpu", "float32 {0}" },
  }
  for i, case in ipairs(cases) do
    if rank == 0 then
      dist.send(case[1], 1)
      dist.send(values(i), 1)
    elseif rank == 1 then
      t.raises("dist.recv: rank 0 sends " .. case[3] .. " (", dist.recv, case[2], 0)
      t.equal(dist.recv(values(0), 0), values(i))
    end
  end
  if rank == 1 then
    dist.send(values(2), 0)
  elseif rank == 0 then
    t.raises("), but x is float64 {3} on cpu; receive into a tensor of the same dtype", dist.recv,
      values(0, "float64"), 1)
  end
  dist.barrier()
end)

t.test("RecvFillsAViewOfALargerTensor", function()
  if rank == 0 then
    dist.send(values(7), 1)
  elseif rank == 1 then
    local table_of = torch.zeros({ 3, 2 })
    dist.recv(table_of[{ {}, 1 }], 0)
    t.equal(table_of, torch.tensor { { 0, 7 }, { 0, 7 }, { 0, 7 } })
  end
  dist.barrier()
end)

-- Lua values --------------------------------------------------------------------------------------------

t.test("AllGatherObjectCarriesPlainLuaValuesOfAnySizePerRank", function()
  local function value_of(r)
    return {
      name = "rank\0" .. r, ratio = r / 3, flags = { true, false }, [7] = "seven", [true] = "yes",
      nested = { { deep = { { r } } }, {} }, text = string.rep("x", 100000 * r), tiny = -0.1e-300, inf = math.huge,
    }
  end

  local everyone = dist.all_gather_object(value_of(rank))

  for i = 1, world do t.equal(everyone[i], value_of(i - 1)) end
end)

t.test("AllGatherObjectCarriesScalarsAndNil", function()
  t.equal(dist.all_gather_object(rank)[world], world - 1)
  t.equal(dist.all_gather_object("r" .. rank)[2], "r1")
  t.equal(dist.all_gather_object(rank == 0)[1], true)
  t.equal(dist.all_gather_object(nil), {})
  t.equal(dist.all_gather_object(rank == 1 and "only" or nil)[2], "only")
end)

t.test("AValueThatCannotBeSentIsNamedByItsPath", function()
  local loop = {}
  loop.loop = loop
  t.raises("all_gather_object: value is a function; only nil, booleans, numbers, strings and tables of them travel",
    dist.all_gather_object, print)
  t.raises("all_gather_object: value.a[2].f is a function", dist.all_gather_object, { a = { 1, { f = print } } })
  t.raises("value.x is a tensor; ", dist.all_gather_object, { x = values(1) })
  t.raises("nested more than 64 deep, or contain themselves", dist.all_gather_object, loop)
end)

-- Groups ------------------------------------------------------------------------------------------------

t.test("AGroupOfAllRanksInAnotherOrderKeepsThatOrder", function()
  local reversed = {}
  for i = 1, world do reversed[i] = world - i end
  local group = dist.group { ranks = reversed }

  t.equal({ group:rank(), group:size() }, { world - 1 - rank, world })
  t.equal(group:ranks(), reversed)
  for i, x in ipairs(dist.all_gather(values(rank), { group = group })) do t.equal(x, values(reversed[i])) end
  t.equal(dist.all_gather_object(rank, { group = group }), reversed)
end)

t.test("AGroupOfSomeRanksLeavesTheOthersAlone", function()
  if rank == 0 then
    t.raises("dist.group: rank 0 is not one of {1}; only the members of a group make it", dist.group, { ranks = { 1 } })
  elseif rank == 1 then
    local alone = dist.group { ranks = { 1 } }
    t.equal(dist.all_reduce(values(4), "sum", { group = alone }), values(4))
    dist.barrier { group = alone }
  end
  local last = world - 1
  if rank == 0 or rank == last then
    local ends = dist.group { ranks = { 0, last } }
    t.equal(dist.all_reduce(values(rank + 1), "sum", { group = ends }), values(1 + world))
    t.equal(dist.broadcast(values(rank), last, { group = ends }), values(last))
    t.equal(dist.reduce_scatter({ values(1), values(2) }, "sum", { group = ends }), values(rank == 0 and 2 or 4))
    if rank == 0 then
      dist.send(values(9), last, { group = ends })
    else
      t.equal(dist.recv(values(0), 0, { group = ends }), values(9))
    end
  end
  dist.barrier()
end)

local function group_of_all()
  local ranks = {}
  for i = 1, world do ranks[i] = i - 1 end
  return dist.group { ranks = ranks }
end

t.test("TheSameListOfRanksMakesAGroupOfItsOwnEachTime", function()
  local first, second = group_of_all(), group_of_all()

  t.equal(dist.all_reduce(values(1), "sum", { group = second }), values(world))
  t.equal(dist.all_reduce(values(2), "sum", { group = first }), values(2 * world))
end)

--- Counts what this process waits with for events of sockets. Each of Gloo's devices has one, and a thread that polls
--- it all the time.
local function event_polls()
  local files = assert(io.popen "ls -l /proc/$PPID/fd")
  local _, count = files:read("*a"):gsub("eventpoll", "")
  files:close()
  return count
end

t.test("GroupsShareTheDeviceOfGloo", function()
  local before, groups = event_polls(), {}
  for i = 1, 5 do groups[i] = group_of_all() end

  t.truthy(before > 0)
  t.equal({ event_polls(), #groups }, { before, 5 })
end)

-- Each rank waited for a position that no rank had, and the report showed both lists as "world".
t.test("RanksThatListAGroupsMembersDifferentlyAreNamed", function()
  if rank < 2 then
    local message = t.raises("the ranks of a group list its members differently:\n  rank 0: {0, 1} (", dist.group,
      { ranks = rank == 0 and { 0, 1 } or { 1, 0 } })
    t.truthy(message:find("\n  rank 1: {1, 0} (", 1, true), message)
    t.truthy(message:find("Every member gives the same ranks in the same order", 1, true), message)
    local again = dist.group { ranks = { 1, 0 } }
    t.equal(dist.all_gather_object(rank, { group = again }), { 1, 0 })
  end
  dist.barrier()
end)

t.test("GroupsThatCannotBeAreRefused", function()
  t.raises("dist.group: ranks is missing: dist.group { ranks = {0, 1} }", dist.group)
  t.raises("dist.group: the ranks are an option, as in dist.group { ranks = {0, 1} }", dist.group, { 0, 1 })
  t.raises("dist.group: ranks is empty", dist.group, { ranks = {} })
  t.raises(string.format("dist.group: rank %d is not one of the ranks 0 to %d", world, world - 1), dist.group,
    { ranks = { 0, world } })
  t.raises("rank -1 is not one of the ranks", dist.group, { ranks = { -1 } })
  t.raises("rank 4294967296 is not one of the ranks", dist.group, { ranks = { 2 ^ 32 } })
  t.raises("dist.group: rank 0 is named twice", dist.group, { ranks = { 0, 0 } })
  t.raises("dist.group: ranks[1] must be a whole number, not the number 0.5", dist.group, { ranks = { 0.5 } })
  t.raises('dist.group: unknown option "rank"; did you mean "ranks"?', dist.group, { rank = { 0 } })
end)

-- Mistakes ----------------------------------------------------------------------------------------------

t.test("WrongArgumentsAreRefusedBeforeAnyRankWaits", function()
  local x, far = values(1), string.format("must be one of the group's ranks {%s}, not 9",
    table.concat(dist.all_gather_object(rank), ", "))
  local cases = {
    { dist.all_reduce, { 3 }, "dist.all_reduce: x must be a tensor, not the number 3" },
    { dist.all_reduce, { x, "mean" }, 'dist.all_reduce: op must be "sum", "avg", "min" or "max", not "mean"' },
    { dist.all_reduce, { x, "sum", { gruop = 1 } }, 'dist.all_reduce: unknown option "gruop"; did you mean "group"?' },
    { dist.all_reduce, { x, "sum", { group = { 0 } } }, "group must be a group, not a table" },
    { dist.all_reduce, { values(1, "int64"), "avg" }, 'dist.all_reduce: "avg" of int64 {3} would be rounded' },
    { dist.all_reduce, { values(1, "bool") }, "dist.all_reduce: bool {3} cannot be reduced over ranks" },
    { dist.all_reduce, { values(1, "int16") }, "dist.all_reduce: int16 {3} cannot be reduced over ranks" },
    { dist.broadcast, { x }, "dist.broadcast: src must be a number, not nothing" },
    { dist.broadcast, { x, 9 }, "dist.broadcast: src " .. far },
    { dist.all_gather, { { x } }, "dist.all_gather: x must be a tensor, not a table" },
    { dist.reduce_scatter, { { x } }, string.format("one tensor for each rank of the group, %d in all, not 1", world) },
    { dist.reduce_scatter, { x }, "dist.reduce_scatter: parts must be a table, not a tensor" },
    { dist.send, { x, rank }, string.format("dist.send: dst is rank %d itself", rank) },
    { dist.recv, { x, rank }, string.format("dist.recv: src is rank %d itself", rank) },
    { dist.send, { x, 9 }, "dist.send: dst " .. far },
    { dist.recv, { x, 0.5 }, "dist.recv: src must be a whole number, not the number 0.5" },
    { dist.barrier, { { timeout = 3 } }, 'dist.barrier: unknown option "timeout"' },
  }
  for _, case in ipairs(cases) do t.raises(case[3], case[1], unpack(case[2])) end
  local parts = {}
  for i = 1, world do parts[i] = torch.zeros({ i }) end
  t.raises("dist.reduce_scatter: parts must be alike, but hold float32 {1} and float32 {2}", dist.reduce_scatter, parts)
end)

t.test("AfterMistakesCollectivesGoOn", function()
  dist.barrier()

  t.equal(dist.all_reduce(values(1)), values(world))
end)

-- The collector calls finalizers, which are C functions, within the C function that allocates.
t.test("TheCollectorWithinACollectiveLosesNoLine", function()
  local pause, step = collectgarbage("setpause", dist.rank() == 0 and 1 or 100), collectgarbage("setstepmul", 1000)
  for _ = 1, 300 do -- a call raises where the ranks' lines differ
    dist.all_gather_object { a = 1, b = { 1, 2, 3 } }
    dist.all_reduce(torch.ones { 2 })
  end
  collectgarbage("setpause", pause)
  collectgarbage("setstepmul", step)
end)

-- The error is caught on one rank, and its next call then met the others' previous one: means of other steps.
t.test("ACallThatOneRankRefusesCountsAsItsCall", function()
  local last, sums = rank == world - 1, {}
  for step = 1, 4 do
    local x = (step == 2 and last) and 3 or values(step)
    local ok, result = pcall(dist.all_reduce, x)
    sums[step] = ok and result[0]:item() or result
  end

  t.equal({ sums[1], sums[3], sums[4] }, { world, 3 * world, 4 * world })
  if last then
    t.equal((sums[2]:gsub("^.*%.lua:%d+: ", "")), "dist.all_reduce: x must be a tensor, not the number 3")
  else
    t.truthy(sums[2]:find("the ranks call different collectives, each as its collective ", 1, true), sums[2])
    t.truthy(sums[2]:find(("\n  rank %d: refused: dist.all_reduce: x must be a tensor, not the number 3 ("):format(
      world - 1), 1, true), sums[2])
  end
end)

t.test("ARefusedCallCountsInItsGroupAlone", function()
  if rank < 2 then
    local group = dist.group { ranks = { 0, 1 } }
    local ok, message = pcall(dist.all_reduce, values(1), rank == 1 and "mean" or "sum", { group = group })
    local expected = rank == 1 and 'not "mean"' or "rank 1: refused: dist.all_reduce: op"
    t.truthy(not ok and message:find(expected, 1, true), message)
    t.equal(dist.all_reduce(values(1), "sum", { group = group }), values(2))
  end
  dist.barrier()
end)

-- A function of the Lua library makes several collectives. Its error before the first counts as one call, too.
t.test("FunctionsOfTheLibraryThatOneRankRefusesCountOnce", function()
  local model = sharding.data_parallel(nn.Linear(1, 1))
  run:state { best = {} }
  local calls = {
    { sharding.weighted_mean, { 1, 1 }, { 1, "one" } },
    { sharding.accumulate, { model, { 1 }, 1, function() return 1 end }, { model, 3 } },
    { run.finite, { run, { loss = 1 } }, { run, { loss = "one" } } },
    { run.state, { run, { best = {} } }, { run, { best = {} }, { evry = 1 } } },
    { run.save, { run, { step = 1 } }, { run, { step = 0.5 } } },
    { run.config, { { steps = 1 } }, { { steps = 1 }, { at_last = {} } } },
  }
  for i, call in ipairs(calls) do
    local fn, good, bad = unpack(call)
    local ok, message = pcall(fn, unpack(rank == 1 and bad or good))
    t.truthy(not ok, "call " .. i)
    if rank ~= 1 then t.truthy(message:find("\n  rank 1: refused: ", 1, true), ("call %d: %s"):format(i, message)) end
    t.equal(sharding.weighted_mean(rank + i, 1), i + (world - 1) / 2, "call " .. i)
  end
end)
