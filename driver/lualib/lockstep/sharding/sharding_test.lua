--- sharding.lockstep and weighted_mean on several ranks.

local dist = require "lockstep.distributed"
local sharding = require "lockstep.sharding"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local RANK, WORLD = dist.rank(), dist.world_size()

--- An iterator of `count` batches: 1, 2, ...; counts up the calls in `calls`, if given.
local function batches(count, calls)
  local i = 0
  return function()
    i = i + 1
    if calls then calls.n = (calls.n or 0) + 1 end
    if i <= count then return i end
  end
end

--- Runs the loop with a collective in its body, as training has: returns the batches and which were real.
local function run_loop(it, body)
  local seen, reals = {}, {}
  for batch, real in it do
    seen[#seen + 1], reals[#reals + 1] = batch, real
    t.equal(dist.all_gather_object(#seen), dist.all_gather_object(#seen)) -- hangs unless all ranks are here
    if body then body(batch, #seen) end
  end
  return seen, reals
end

t.test("UntilFirstEveryRankLeavesAtTheShortest", function()
  local it = sharding.lockstep(batches(4 + RANK))

  local seen = run_loop(it)

  t.equal(seen, { 1, 2, 3, 4 })
  t.equal(it.steps, 4)
  t.equal(it.dropped, RANK)
  t.equal(it.filled, 0)
end)

t.test("UntilLastFillsWithTheLastBatch", function()
  local it = sharding.lockstep(batches(1 + RANK), { policy = "until_last" })

  local seen, reals = run_loop(it)

  for step = 1, WORLD do
    t.equal(seen[step], math.min(step, 1 + RANK))
    t.equal(reals[step], step <= 1 + RANK)
  end
  t.equal(it.steps, WORLD)
  t.equal(it.filled, WORLD - 1 - RANK)
  t.equal(it.dropped, 0)
end)

t.test("TheFillerMakesWhatARankLacks", function()
  local function filler(last) return "after " .. tostring(last) end
  local it = sharding.lockstep(batches(RANK), { policy = "until_last", filler = filler })

  local seen = run_loop(it)

  t.equal(seen[WORLD - 1], RANK == WORLD - 1 and RANK or "after " .. (RANK == 0 and "nil" or tostring(RANK)))
end)

t.test("ARankWithNothingToRepeatIsNamed", function()
  -- Nothing to repeat: until_last cannot go on for rank 0, and says so.
  local it = sharding.lockstep(batches(RANK), { policy = "until_last" })
  local message = t.raises("filler", function() run_loop(it) end)
  t.truthy(message:find("ranks {0} have no batch", 1, true), message)
end)

t.test("NoBatchesAtAll", function()
  for _, policy in ipairs { "until_first", "until_last" } do
    local it = sharding.lockstep(batches(0), { policy = policy })
    t.equal(run_loop(it), {})
    t.equal(it.steps, 0)
  end
end)

t.test("AnErrorInOneIteratorEndsAllRanksWithThatError", function()
  local source = batches(10)
  local it = sharding.lockstep(function()
    local i = source()
    if RANK == 1 and i == 3 then error("the file is torn") end
    return i
  end)
  local seen = 0

  local message = t.raises("the file is torn", function()
    for _ in it do seen = seen + 1 end
  end)

  t.truthy(message:find("rank 1", 1, true), message)
  t.equal(seen, 2)
end)

t.test("StopEndsAllRanksAfterTheBatchThatIsAgreedOn", function()
  local it = sharding.lockstep(batches(10))

  local seen = run_loop(it, function(_, step)
    if RANK == WORLD - 1 and step == 3 then it:stop() end
  end)

  t.equal(#dist.all_gather_object(#seen), WORLD)
  for _, steps in ipairs(dist.all_gather_object(#seen)) do t.equal(steps, #seen) end
  t.truthy(#seen >= 3 and #seen <= 4, "left after " .. #seen)
end)

t.test("DifferentPoliciesAreNamedOnEveryRank", function()
  local it = sharding.lockstep(batches(2 + RANK), { policy = RANK == 1 and "until_last" or "until_first" })

  local message = t.raises("different policies", function() run_loop(it) end)

  t.truthy(message:find("until_last on ranks {1}", 1, true), message)
end)

t.test("ALoopOfAGroupNamesTheRanksOfTheWorld", function()
  if RANK == 0 then return end
  local group = dist.group { ranks = { 1, 2 } }
  local it = sharding.lockstep(function()
    if RANK == 2 then error("the file is torn") end
    return 1
  end, { group = group })

  t.raises("rank 2 failed at step 0", function() for _ in it do end end)
end)

t.test("WithoutReadAheadABatchMayDependOnTheStepBefore", function()
  local trained = 0
  local it = sharding.lockstep(function() if trained < 3 + RANK then return trained end end, { read_ahead = 0 })

  for batch in it do
    t.equal(batch, trained)
    trained = trained + 1
  end

  t.equal(it.steps, 3)
end)

t.test("AnEndlessSourceIsNotReadToItsEnd", function()
  local it = sharding.lockstep(RANK == 0 and batches(2) or function() return 1 end)
  run_loop(it)

  t.equal(it.steps, 2)
  t.equal(it.dropped, RANK == 0 and 0 or math.huge)
end)

t.test("LoopsNestAndRepeat", function()
  local outer = sharding.lockstep(batches(3 + RANK))
  local inner_steps = 0

  run_loop(outer, function()
    for _ in sharding.lockstep(batches(2 + (RANK + 1) % WORLD)) do
      dist.all_reduce(torch.ones({ 1 }))
      inner_steps = inner_steps + 1
    end
  end)

  t.equal(inner_steps, 6)
end)

t.test("ALoopOfAGroupLeavesTheOthersAlone", function()
  if RANK > 1 then return end
  local pair = dist.group { ranks = { 0, 1 } }
  local it = sharding.lockstep(batches(2 + RANK), { group = pair })
  local steps = 0
  for _ in it do
    dist.all_reduce(torch.ones({ 1 }), "sum", { group = pair })
    steps = steps + 1
  end
  t.equal(steps, 2)
end)

t.test("TheIteratorIsReadOneBatchAhead", function()
  local calls = {}
  local it = sharding.lockstep(batches(5, calls))
  it()
  t.equal(calls.n, 2)
  run_loop(it)
end)

t.test("RandomSchedulesEndTogether", function()
  math.randomseed(20261121) -- alike on every rank
  for _ = 1, 100 do
    local lengths, policy = {}, math.random(2) == 1 and "until_first" or "until_last"
    for rank = 0, WORLD - 1 do lengths[rank] = math.random(0, 6) end
    local fails_on, fails_at = math.random(0, 4 * WORLD), math.random(1, 6)
    local source = batches(lengths[RANK])
    local it = sharding.lockstep(function()
      local i = source()
      if RANK == fails_on and i == fails_at then error("failed on purpose") end
      return i
    end, { policy = policy, filler = function() return 0 end })

    local ok, message = pcall(run_loop, it)

    local ends = dist.all_gather_object { steps = it.steps, ok = ok }
    for _, other in ipairs(ends) do t.equal(other, ends[1]) end
    if not ok then t.truthy(tostring(message):find("failed on purpose", 1, true), message) end
  end
end)

t.test("WrongUseIsRefused", function()
  t.raises("must be a function", sharding.lockstep, 5)
  t.raises('"until_first" or "until_last", not "forever"', sharding.lockstep, batches(1), { policy = "forever" })
  t.raises('did you mean "policy"?', sharding.lockstep, batches(1), { polcy = "until_last" })
end)

-- guard ---------------------------------------------------------------------------------------------

t.test("RanksThatAgreePassTheGuard", function()
  local guard = sharding.guard()
  for step = 1, 20 do
    guard:check("step " .. step, { kind = "image", samples = { 3, 9 }, x = torch.zeros({ 2, step }), real = true })
  end
end)

for what, value_of in pairs {
  ["the kind of batch"] = function(rank) return { kind = rank == 1 and "image" or "text" } end,
  ["a shape"] = function(rank) return { x = torch.zeros({ 2, rank == 1 and 3 or 4 }) } end,
  ["a dtype"] = function(rank) return torch.zeros({ 2 }, { dtype = rank == 1 and torch.int64 or torch.float32 }) end,
  ["the samples"] = function(rank) return { samples = { 1, rank == 1 and 5 or 2 } } end,
  ["a key"] = function(rank) return { [rank == 1 and "a" or "b"] = 1 } end,
  ["the step"] = function(rank) return rank == 1 and 7 or 8 end,
  ["a number's last bit"] = function(rank) return rank == 1 and 0.1 or 0.1 + 2 ^ -56 end,
  ["nothing against something"] = function(rank) return rank == 1 and {} or { false } end,
  ["a string against a number"] = function(rank) return { rank == 1 and "1" or 1 } end,
} do
  t.test("TheGuardShows:" .. what, function()
    local guard = sharding.guard()
    local message = t.raises('the ranks disagree at "batch"', guard.check, guard, "batch", value_of(RANK))
    for _, other in ipairs(dist.all_gather_object(message)) do t.equal(other, message) end
    for rank = 0, WORLD - 1 do t.truthy(message:find("rank " .. rank .. ": ", 1, true), message) end
    t.truthy(message:find("sharding_test.lua:", 1, true), message)
    guard:check("after it", "the same")
  end)
end

t.test("TheGuardNamesWhoStaysAway", function()
  local guard = sharding.guard { timeout_s = 0.5 }
  guard:check("step 0", {})
  local message
  if RANK ~= 1 then message = t.raises('not all ranks came to "step 1"', guard.check, guard, "step 1", {}) end
  for rank, text in pairs(dist.all_gather_object(message or "stayed away")) do
    if rank ~= 2 then
      local place = "driver/lualib/lockstep/sharding/sharding_test.lua:"
      t.truthy(text:find('rank 1 last passed "step 0" (' .. place, 1, true), text)
    end
  end
end)

t.test("ExtraAndSkippedChecksAreSeen", function()
  local guard = sharding.guard()
  if RANK == 0 then t.raises("different checks", guard.check, guard, "train", {}) end
  if RANK > 0 then t.raises("different checks", guard.check, guard, "validate", {}) end
end)

t.test("AFingerprintMustBeText", function()
  local guard = sharding.guard()
  t.raises("cannot hold a function", guard.check, guard, "label", { print })
  local loop = {}
  loop[1] = loop
  t.raises("contains itself", guard.check, guard, "label", loop)
  for _, timeout_s in ipairs { 0, -1, 1e300, 0 / 0 } do
    t.raises("timeout_s must be from 0.001 to 604800", sharding.guard, { timeout_s = timeout_s })
  end
end)

-- Means ---------------------------------------------------------------------------------------------

t.test("WeightedMeanIsOfAllTokensNotOfMeans", function()
  -- Rank r has r values of 10^r.
  local sum, count = 0, 0
  for rank = 0, WORLD - 1 do sum, count = sum + rank * 10 ^ rank, count + rank end
  t.near(sharding.weighted_mean(RANK * 10 ^ RANK, RANK), sum / count, 1e-12 * sum)
end)

t.test("WeightedMeanOfTensorsIsElementByElement", function()
  local mean = sharding.weighted_mean(torch.full({ 2 }, RANK), torch.tensor({ 1, 2 }))
  local sum = WORLD * (WORLD - 1) / 2
  t.near(mean, torch.tensor({ sum / WORLD, sum / (2 * WORLD) }), 1e-6)
end)

t.test("WeightedMeanOfNothingIsAnError", function()
  t.raises("count over all ranks is 0", sharding.weighted_mean, 0, 0)
end)

t.test("WeightedMeanOfIntegersIsNotTruncated", function()
  -- One of two on rank 0, all two on the others, as in predicted:eq(labels):sum().
  local correct = torch.tensor(RANK == 0 and 1 or 2, { dtype = torch.int64 })
  local want = (2 * WORLD - 1) / (2 * WORLD)
  for _, total in ipairs { 2, torch.tensor(2, { dtype = torch.int64 }), torch.tensor { 2 } } do
    local mean = sharding.weighted_mean(correct, total)
    t.equal(mean.dtype, torch.float32)
    t.near(mean:sum():item(), want, 1e-6)
  end
  t.near(sharding.weighted_mean(correct:item(), torch.tensor(2)):item(), want, 1e-6)
end)

t.test("WeightedMeanSharesOneCountAmongManySums", function()
  local mean = sharding.weighted_mean(torch.tensor({ 1 + RANK, 4 }, { dtype = torch.float64 }), 2)
  t.near(mean, torch.tensor({ (WORLD + 1) / 4, 2 }, { dtype = torch.float64 }), 1e-12)
  t.raises("sum has shape {2} and count {3}", sharding.weighted_mean, torch.ones { 2 }, torch.ones { 3 })
  t.raises("count must be a number or a tensor, not nil", sharding.weighted_mean, 1)
  t.raises("sum must be a number or a tensor, not a string", sharding.weighted_mean, "1", 1)
end)

-- Datasets ------------------------------------------------------------------------------------------------

-- With another seed on one rank, some samples were trained on twice, and others never.
t.test("RanksWithOtherDatasetsAreNamed", function()
  local last = RANK == WORLD - 1
  local function raises(text, options)
    t.raises("sharding.dataset: ranks do not agree: " .. text, sharding.dataset, options)
  end

  raises(("seed is 2 on rank 0, and 3 on rank %d; all ranks share the samples, so each needs the same order; one that "
    .. "is for a single rank has rank = 0, world = 1"):format(WORLD - 1), { size = 8, seed = last and 3 or 2 })
  raises("size is 8 on rank 0, and 9 on rank", { size = last and 9 or 8 })
  raises("shuffle is true on rank 0, and false on rank", { size = 8, shuffle = not last })
  raises("epoch is 0 on rank 0, and 1 on rank", { size = 8, epoch = last and 1 or 0 })
  raises("pad is false on rank 0, and true on rank", { size = 8, pad = last })
  local state = sharding.dataset({ size = 8, seed = 1 }):state(last and 2 or 1)
  raises("start is ", { state = state })
end)

t.test("ADatasetOfFewerRanksIsNotCompared", function()
  t.equal(sharding.dataset({ size = 8, seed = RANK, rank = 0, world = 1 }).length, 8)
  if RANK == 0 then sharding.dataset { size = 8, rank = 0, world = 1 } end
  t.equal(sharding.weighted_mean(RANK, 1), (WORLD - 1) / 2)
end)
