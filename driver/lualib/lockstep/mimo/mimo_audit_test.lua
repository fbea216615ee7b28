--- Vision on three ranks, language on one: two samplers that each divide the data by their own module's size, what
--- training makes of it without the audit, and what the audit says.

local dist = require "lockstep.distributed"
local mimo = require "lockstep.mimo"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local RANK = dist.rank()
local MICRO_BATCH, SIZE = 6, 60

local topo = mimo.topology { modules = { { name = "vision", dp = 3 }, { name = "language", first_rank = 3 } } }

--- Shuffled samples, micro-batch after micro-batch, for one of `world` samplers: each permutes its own share, as
--- cyclic samplers do.
local function sampler(rank, world)
  torch.manual_seed(1)
  local share = SIZE / world
  local order = torch.randperm(share):totable()
  local next_place = 0
  return function()
    local samples = {}
    if next_place == share then return nil end
    for i = 1, MICRO_BATCH / world do
      samples[i] = rank * share + order[next_place + i]
    end
    next_place = next_place + #samples
    return { samples = samples, values = torch.tensor(samples):unsqueeze(1) }
  end
end

--- The samplers of the bug: divided by the module's own data-parallel size, and not cut again.
local function own_sampler() return sampler(topo:dp_info()) end
--- The right ones: all ranks read the same.
local function common_sampler()
  local rank, world = topo:sampling_info()
  return sampler(rank, world)
end

--- Trains with the samplers of the bug. Returns how many samples met another's image, on the rank of language, and the
--- error that ended the loop.
local function train(audit)
  local bridge = mimo.bridge { topology = topo, from = "vision", to = "language" }
  local is_vision, mismatches = topo:module() == "vision", 0
  local _, message = pcall(function()
    for batch in mimo.loader { topology = topo, source = own_sampler(), audit = audit } do
      -- Shapes fit, values arrive, gradients flow: nothing here complains.
      local weight = torch.ones { 1 }:requires_grad_(true)
      local y = bridge(is_vision and batch.values * weight or nil)
      torch.sum(y):backward()
      for i, sample in ipairs(is_vision and {} or batch.samples) do
        if y[i - 1]:item() ~= sample then mismatches = mismatches + 1 end
      end
    end
  end)
  return mismatches, message
end

t.test("TheAuditAloneKeepsModulesFromSeeingOtherSamples", function()
  local mismatches, message = train(false)
  t.equal(message, nil)
  if RANK == 3 then t.truthy(mismatches > SIZE / 2, mismatches .. " samples met another's image") end

  mismatches, message = train(true)
  t.equal(mismatches, 0)
  t.truthy(tostring(message):find("modules do not see the same samples", 1, true), tostring(message))
end)

t.test("TheAuditStopsItAtTheFirstStepAndNamesModulesRanksAndIds", function()
  local next_batch = mimo.loader { topology = topo, source = own_sampler() }

  local message = t.raises("mimo: modules do not see the same samples (vision on ranks 0, 1, 2; language on rank 3)",
    next_batch)

  t.truthy(message:find('the ranks disagree at "micro-batch 1"', 1, true), message)
  for rank = 0, 3 do
    local samples = sampler(rank == 3 and 0 or rank, rank == 3 and 1 or 3)().samples
    local line = ("rank %d: {samples = {%s}}"):format(rank, table.concat(samples, ", "))
    t.truthy(message:find(line, 1, true), message)
  end
end)

t.test("RanksThatReadTheSameAndSliceMeetTheirOwnImages", function()
  local bridge = mimo.bridge { topology = topo, from = "vision", to = "language" }
  local steps = 0
  for batch in mimo.loader { topology = topo, source = common_sampler() } do
    local dp_rank, dp_size = topo:dp_info()
    local mine = mimo.slice(batch, dp_rank, dp_size)
    local y = bridge(topo:module() == "vision" and mine.values:float() or nil, { samples = batch.samples })
    if RANK == 3 then t.equal(y, mine.values:float()) end
    steps = steps + 1
  end
  t.equal(steps, SIZE / MICRO_BATCH)
end)

t.test("TheBridgeComparesSamplesToo", function()
  local bridge = mimo.bridge { topology = topo, from = "vision", to = "language" }
  local batch = own_sampler()()
  local is_vision = topo:module() == "vision"

  local message = t.raises("the ranks disagree about the micro-batch", function()
    local y = bridge(is_vision and batch.values:float():requires_grad_(true) or nil, { samples = batch.samples })
    torch.sum(y):backward()
  end)

  local own = "samples {" .. table.concat(batch.samples, ", ") .. "}"
  t.truthy(message:find(own, 1, true) or not is_vision, message)
  t.truthy(message:find("rank 3 (language) has", 1, true), message)
end)

t.test("MicroBatchesOfAStepAreComparedAtOnce", function()
  local count = 0
  local source = function()
    count = count + 1
    return count <= 4 and { ids = { count, RANK == 2 and count == 4 and 99 or 0 } } or nil
  end
  local next_batch = mimo.loader { topology = topo, source = source, samples = "ids", micro_batches = 2 }

  t.equal(next_batch().ids[1], 1)
  t.equal(count, 2)
  t.equal(next_batch().ids[1], 2)
  t.raises("rank 2: {samples = {{3, 0}, {4, 99}}}", next_batch)
end)

t.test("ARankThatEndsEarlyIsNamed", function()
  local count = 0
  local source = function()
    count = count + 1
    return count <= (RANK == 1 and 1 or 2) and { samples = { count } } or nil
  end
  local next_batch = mimo.loader { topology = topo, source = source }

  next_batch()
  t.raises("rank 1: no more data", next_batch)
end)

t.test("TheAuditWantsIds", function()
  local source = function() return { input_ids = 1 } end
  t.raises('there is no array "samples" in the batch', mimo.loader { topology = topo, source = source })
  t.equal(mimo.loader { topology = topo, source = source, audit = false }().input_ids, 1)
  local function samples(batch) return { batch.input_ids } end
  t.equal(mimo.loader { topology = topo, source = source, samples = samples }().input_ids, 1)
end)

t.test("MistakesInTheLoaderAreNamed", function()
  local source = function() return { samples = {} } end
  for _, case in ipairs {
    { { topology = {}, source = source }, "topology must come from mimo.topology, not a table" },
    { { topology = topo, source = {} }, "source must be an iterator" },
    { { topology = topo, source = source, micro_batches = 0 }, "must be a whole number from 1 on, not 0" },
    { { topology = topo, source = source, micro_batches = 1.5 }, "must be a whole number from 1 on, not 1.5" },
    { { topology = topo, source = source, samples = {} }, "samples must be a field's name or a function" },
  } do
    t.raises(case[2], mimo.loader, case[1])
  end
  t.raises('"samples" of the batch holds no ids', mimo.loader { topology = topo, source = source })
  t.equal(mimo.loader { topology = topo, source = source, audit = false }().samples, {})
end)

-- Reads that scale: each rank reads its part of the order that all ranks share.

--- Parts of vision and language; `shift` moves what this rank reads.
local function scalable_source(topology, shift)
  local micro_batch = -1
  local dp_rank, dp_size = topology:sampling_info(nil, true)
  return function()
    micro_batch = micro_batch + 1
    if micro_batch == 4 then return nil end
    local first, last = topology:reads({ micro_batch_size = 6, num_samples = 24 }, micro_batch, dp_rank, dp_size)
    local samples = {}
    for i = first, last do samples[#samples + 1] = "id" .. i + (micro_batch >= 1 and shift or 0) end
    return { samples = samples }
  end
end

t.test("PartsThatMakeUpTheSameMicroBatchPassTheAudit", function()
  local shared = mimo.topology { modules = { { name = "vision", dp = 2, tp = 2 }, { name = "language", dp = 4 } } }
  for _, micro_batches in ipairs { 1, 2, 3 } do
    local count = 0
    for batch in mimo.loader { topology = topo, source = scalable_source(topo, 0), scalable_reads = true,
      micro_batches = micro_batches } do
      t.equal(#batch.samples, RANK == 3 and 6 or 2)
      count = count + 1
    end
    t.equal(count, 4)
  end
  local source = function() return { samples = { 1, 2 } } end -- colocated and of other sizes: the whole
  t.equal(mimo.loader { topology = shared, source = source, scalable_reads = true }().samples, { 1, 2 })
end)

t.test("PartsOfAnotherMicroBatchAreNamed", function()
  local next_batch = mimo.loader { topology = topo, source = scalable_source(topo, RANK == 1 and 1 or 0),
    scalable_reads = true }

  next_batch()
  local message = t.raises("mimo: modules do not see the same samples (vision on ranks 0, 1, 2; language on rank 3)",
    next_batch)

  t.truthy(message:find('read at "micro-batch 2"', 1, true), message)
  t.truthy(message:find('rank 1 (vision, part 1 of 3): {"id10", "id11"}', 1, true), message)
  local whole = 'rank 3 (language, part 0 of 1): {"id7", "id8", "id9", "id10", "id11", "id12"}'
  t.truthy(message:find(whole, 1, true), message)
end)

t.test("APartThatEndsEarlyIsNamed", function()
  local source, count = scalable_source(topo, 0), 0
  local next_batch = mimo.loader { topology = topo, scalable_reads = true, source = function()
    count = count + 1
    return (RANK ~= 2 or count == 1) and source() or nil
  end }

  next_batch()
  t.raises("rank 2 (vision, part 2 of 3): {no more data}", next_batch)
end)

-- Sources that fail ---------------------------------------------------------------------------------

for _, scalable in ipairs { false, true } do
  t.test(("ASourceThatFailsOnOneRankIsAnErrorOnAll(%s)"):format(scalable and "parts" or "whole"), function()
    local source, count = scalable and scalable_source(topo, 0) or common_sampler(), 0
    local next_batch = mimo.loader { topology = topo, scalable_reads = scalable, source = function()
      count = count + 1
      if RANK == 2 and count == 2 then error("images/7.png: no such file", 0) end
      return source()
    end }
    next_batch()

    local message = t.raises("images/7.png: no such file", next_batch)

    if RANK == 2 then return t.equal(message, "images/7.png: no such file") end
    t.truthy(message:find("the source of another rank failed", 1, true), message)
    t.truthy(message:find("rank 2: ", 1, true), message)
  end)
end
