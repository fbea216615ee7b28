--- Reads that scale: each rank reads its replica's part of every micro-batch alone, and trains as where all read all.

local dist = require "lockstep.distributed"
local fixture = require "mimo_fixture"
local mimo = require "lockstep.mimo"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local WORLD = dist.world_size()
local STEPS, MICRO_BATCH = 10, 12

torch.set_default_dtype(torch.float64)

--- Micro-batches of what this rank reads: all of each, or its replica's part.
local function source_of(topology, set, scalable_reads)
  local dp_rank, dp_size = topology:sampling_info(nil, scalable_reads)
  local micro_batch, micro_batches = -1, math.huge
  return function()
    micro_batch = micro_batch + 1
    if micro_batch == micro_batches then return nil end
    local first, last
    first, last, micro_batches = topology:reads({ micro_batch_size = MICRO_BATCH, num_samples = set.num_samples },
      micro_batch, dp_rank, dp_size)
    local samples = {}
    for position = first, last do samples[#samples + 1] = set.read(position) end
    return fixture.collate(samples)
  end
end

--- Trains; returns the steps and how many samples this rank has read.
local function train(topology, scalable_reads, micro_batches, audit)
  local set = fixture.dataset(STEPS * micro_batches * MICRO_BATCH + 5) -- the last 5 make up no micro-batch
  local reader = mimo.loader { topology = topology, source = source_of(topology, set, scalable_reads),
    scalable_reads = scalable_reads, ownership = "images", micro_batches = micro_batches, audit = audit }
  return fixture.train(topology, reader, { micro_batches = micro_batches }), set.reads
end

local grids = {
  [3] = { ["2 + 1"] = { "apart", 2, 1 }, ["1 + 2"] = { "apart", 1, 2 }, ["3 colocated"] = { "together", 3, 3 } },
  [4] = { ["3 + 1"] = { "apart", 3, 1 }, ["1 + 3"] = { "apart", 1, 3 }, ["2 + 2"] = { "apart", 2, 2 },
    ["4 colocated with 2"] = { "together", 4, 2 } },
  [5] = { ["2 + 3"] = { "apart", 2, 3 }, ["3 + 2"] = { "apart", 3, 2 } },
}

local function topology_of(name)
  local how, vision, language = unpack(grids[WORLD][name])
  return fixture[how](vision, language)
end

local names = {}
for name in pairs(grids[WORLD]) do names[#names + 1] = name end
table.sort(names)

for i, name in ipairs(names) do
  local topology = topology_of(name)
  t.test(("TrainsAsWithFullReads(%s)"):format(name), function()
    local micro_batches = 1 + i % 2
    local all = STEPS * micro_batches * MICRO_BATCH
    local expected, full = train(topology, false, micro_batches)

    local steps, read = train(topology, true, micro_batches)

    -- Each rank has read its part and no more; a module's replicas together each sample once.
    local _, dp_size = topology:sampling_info(nil, true)
    t.equal(full, all)
    t.equal(read, all / dp_size)
    t.equal(#steps, STEPS)
    fixture.compare(steps, expected, 1e-10)
    for step, actual in ipairs(steps) do -- ranks keep the same samples
      for id in pairs(actual.samples) do t.truthy(expected[step].samples[id], id) end
    end
  end)
end

local topology = topology_of(names[#names])
local dp_rank, dp_size = topology:sampling_info(nil, true)

t.test("BesideAPartComesWhatIsKnownOfTheWhole", function()
  local set = fixture.dataset(2 * MICRO_BATCH)
  for _, micro_batches in ipairs { 1, 2 } do
    for _, audit in ipairs { true, false } do
      local reader = mimo.loader { topology = topology, source = source_of(topology, set, true), ownership = "images",
        scalable_reads = true, micro_batches = micro_batches, audit = audit }
      local first = 1
      for part, whole in reader do
        local samples = {}
        for i = 1, MICRO_BATCH do samples[i] = set.read(first + i - 1) end
        local expected = fixture.collate(samples)
        t.truthy(whole.ownership == expected.images)
        t.truthy(part.images == expected.images:slice(dp_rank, dp_size))
        t.equal(whole.samples, audit and expected.samples or nil)
        local name = topology:module()
        t.equal({ reader:dp_info(name) }, dp_size == 1 and { topology:dp_info(nil, name) } or { 0, 1 })
        first = first + MICRO_BATCH
      end
      t.equal(first, 2 * MICRO_BATCH + 1)
    end
  end
end)

t.test("SeveralTablesHaveNames", function()
  local source = source_of(topology, fixture.dataset(MICRO_BATCH), true)
  local part, whole = mimo.loader { topology = topology, source = source, scalable_reads = true,
    ownership = function(batch)
      return { images = batch.images, sounds = batch.images:rows_per_sample "items" }
    end }()

  t.truthy(part.images == whole.ownership.images:slice(dp_rank, dp_size))
  t.equal(whole.ownership.sounds:rows_per_sample(), whole.ownership.images:rows_per_sample "items")
end)

t.test("APartMayLackAKindThatOthersHave", function()
  local apart = fixture.apart(WORLD - 1, 1)
  local replica, replicas = apart:sampling_info(nil, true)
  local part = { samples = {}, items = {} }
  for i = 1, 2 * (WORLD - 1) / replicas do
    part.samples[i] = 2 * replica + i
    part.items[i] = part.samples[i] == 3 and 2 or 0 -- of the second replica's first sample
  end
  local _, whole = mimo.loader { topology = apart, scalable_reads = true, source = function() return part end,
    ownership = function(batch)
      local has_sounds = replica == 1 or replicas == 1
      return { images = batch.samples, sounds = has_sounds and mimo.ownership { items = batch.items } or nil }
    end }()

  local items = {}
  for i = 1, 2 * (WORLD - 1) do items[i] = i == 3 and 2 or 0 end
  t.truthy(whole.ownership.sounds == mimo.ownership { items = items })
  t.equal(whole.ownership.images:rows_per_sample(), whole.samples)
  t.raises("a table of ownership is of 1 samples, but the micro-batch has the ids of " .. #part.samples, mimo.loader {
    topology = apart, source = function() return part end, ownership = function() return { 4 } end })
end)

t.test("FullReadsWithOtherRowsAreNamed", function()
  local source = function() return { samples = { 1, 2 }, rows = { 3, dist.rank() == 1 and 5 or 4 } } end

  local message = t.raises("the ranks disagree", mimo.loader { topology = topology, source = source,
    ownership = "rows" })

  t.truthy(message:find("tokens of items {3, 5}", 1, true), message)
end)

t.test("FullReadsHaveTheWholeThemselves", function()
  local source = source_of(topology, fixture.dataset(MICRO_BATCH), false)
  local reader = mimo.loader { topology = topology, source = source, ownership = "images" }
  local batch, whole = reader()

  t.truthy(whole.ownership == batch.images)
  t.equal(whole.samples, batch.samples)
  t.equal({ reader:dp_info(topology:module()) }, { topology:dp_info(nil, topology:module()) })
  t.equal(reader(), nil)
end)

-- The failure without it: ranks know only the rows of their own part.
t.test("WithoutTheGatheredTableTheBridgeRefuses", function()
  local bridge = mimo.bridge { topology = fixture.apart(WORLD - 1, 1), from = "vision", to = "language" }
  local own = mimo.ownership { rows_per_sample = dist.rank() == WORLD - 1 and { 2, 1, 3 } or { 2 } }
  local x = dist.rank() < WORLD - 1 and torch.zeros({ 2, 3 }):requires_grad_(true) or nil

  t.raises("mimo: bridge vision -> language", function() torch.sum(bridge(x, { ownership = own })):backward() end)
end)

-- All replicas of a module read part 0: modules agree, and each sample would count as often as there are replicas.
t.test("ReplicasThatReadTheSamePartAreNamed", function()
  local apart = fixture.apart(WORLD - 1, 1)
  local _, replicas = apart:sampling_info(nil, true)
  local ids = {}
  for i = 1, (WORLD - 1) / replicas do ids[i] = "sample " .. i end
  if replicas == 1 then
    for i = 1, WORLD - 1 do ids[i] = "sample 1" end
  end
  local source = function() return { samples = ids } end

  local message = t.raises("mimo: replicas read the same samples (", mimo.loader { topology = apart, source = source,
    scalable_reads = true })

  local twice = 'rank 0 (vision, part 0 of %d) and rank 1 (part 1) both have the sample "sample 1"'
  t.truthy(message:find(twice:format(WORLD - 1), 1, true), message)
end)

t.test("ModulesThatDisagreeAboutRowsAreNamed", function()
  local apart = fixture.apart(WORLD - 1, 1)
  local replica, replicas = apart:sampling_info(nil, true)
  local source = function()
    local part = { samples = {}, rows = {} }
    for i = 1, 2 * (WORLD - 1) / replicas do
      part.samples[i], part.rows[i] = 2 * replica + i, dist.rank() == 1 and i == 2 and 5 or 3
    end
    return part
  end

  local message = t.raises("modules do not see the same rows of the same samples", mimo.loader { topology = apart,
    source = source, scalable_reads = true, ownership = "rows" })

  local line = "rank 1 (vision, part 1 of %d): {3, 4; items of samples {1, 1}, tokens of items {3, 5}}"
  t.truthy(message:find(line:format(WORLD - 1), 1, true), message)
  t.raises('there is no table of ownership in "images" of the batch', mimo.loader { topology = apart, source = source,
    scalable_reads = true, ownership = "images" })
end)
