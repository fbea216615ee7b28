--- mimo.reorder: another order of a micro-batch's samples evens out the replicas' load, and changes nothing that is
--- learned.

local dist = require "lockstep.distributed"
local fixture = require "mimo_fixture"
local mimo = require "lockstep.mimo"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local WORLD = dist.world_size()
local STEPS, MICRO_BATCH = 10, 12

torch.set_default_dtype(torch.float64)

--- Positions [first, last] of a data set as a batch.
local function read(set, first, last)
  local samples = {}
  for position = first, last do samples[#samples + 1] = set.read(position) end
  return fixture.collate(samples)
end

-- Moving ---------------------------------------------------------------------------------------------

t.test("TensorsListsAndTablesMoveAlike", function()
  local set = fixture.dataset(MICRO_BATCH)
  local batch = read(set, 1, MICRO_BATCH)
  batch.inner = { crops = torch.arange(3 * batch.images:num_rows "items"):view(3, -1), note = "as it is",
    scale = torch.tensor(3), position_ids = torch.arange(3 * MICRO_BATCH * 2):view(3, MICRO_BATCH, 2) }
  local opts = { costs = batch.images, num_groups = 3, batch_dims = { ["inner.crops"] = 1 }, ownership = {
    image_grid_thw = { "images", "items" }, pixel_values = batch.images, ["inner.crops"] = { batch.images, "items" } } }

  local moved, order = mimo.reorder(batch, opts)

  t.equal(order, mimo.balanced_order(batch.images:rows_per_sample(), 3))
  t.truthy(moved.images == batch.images:reordered(order))
  t.equal(batch.samples[1], "sample1") -- the batch itself stays
  t.equal(moved.inner.note, "as it is")
  t.equal(moved.inner.scale, batch.inner.scale)
  -- Sample by sample: what slices of one sample hold.
  local declared = { ownership = opts.ownership, batch_dims = opts.batch_dims }
  local moved_opts = { batch_dims = opts.batch_dims, ownership = { image_grid_thw = { "images", "items" },
    pixel_values = moved.images, ["inner.crops"] = { moved.images, "items" } } }
  for position, sample in ipairs(order) do
    local actual = mimo.slice(moved, position - 1, MICRO_BATCH, moved_opts)
    local expected = mimo.slice(batch, sample - 1, MICRO_BATCH, declared)
    t.equal(actual.samples, expected.samples)
    t.truthy(actual.images == expected.images)
    for _, key in ipairs { "input_ids", "labels", "image_grid_thw", "pixel_values" } do
      t.equal(actual[key], expected[key], key)
    end
    t.equal(actual.inner.crops, expected.inner.crops)
    t.equal(actual.inner.position_ids, expected.inner.position_ids)
  end
end)

t.test("DeclarationsInNumbersMoveRowsTheSame", function()
  local batch = read(fixture.dataset(MICRO_BATCH), 1, MICRO_BATCH)
  local images = batch.images
  local with_table, order = mimo.reorder(batch, { costs = images:costs(), num_groups = 2,
    ownership = fixture.OWNERSHIP })

  local with_counts = mimo.reorder(batch, { order = order,
    rows_per_sample = { image_grid_thw = images:rows_per_sample "items" } }) -- pixel_values follow t * h * w

  t.equal(with_counts.pixel_values, with_table.pixel_values)
  t.equal(with_counts.image_grid_thw, with_table.image_grid_thw)
  t.equal(with_counts.samples, with_table.samples)
  t.truthy(with_counts.images == with_table.images)
end)

t.test("TheTopologyTellsTheGroups", function()
  local topology = mimo.topology { world_size = 5, modules = { { name = "vision", dp = 2 },
    { name = "language", first_rank = 2, dp = 3 } } }
  local batch = { costs = { 9, 1, 1, 8, 1, 7, 1, 6, 1, 5, 1, 4 } }

  local _, order = mimo.reorder(batch, { costs = batch.costs, topology = topology })

  t.equal(order, mimo.balanced_order(batch.costs, 6)) -- whole groups for replicas of 2 and of 3
  t.equal(mimo.group_costs(batch.costs, order, 6), { 10, 9, 8, 7, 6, 5 })
end)

t.test("MistakesAreNamed", function()
  local batch = { input_ids = torch.zeros { 4, 2 }, patches = torch.zeros { 9, 2 } }
  local topology = mimo.topology { world_size = 1, modules = { { name = "language" } } }
  for _, case in ipairs {
    { { costs = { 1, 2, 3, 4 } }, "give the costs of the samples with either topology or num_groups" },
    { { costs = { 1, 2, 3, 4 }, num_groups = 2, topology = topology }, "either topology or num_groups" },
    { { num_groups = 2 }, "give the costs of the samples" },
    { { order = { 1, 2, 3, 4 }, num_groups = 2 }, "give either an order, or costs" },
    { { order = { 1, 2, 2, 4 } }, "must hold each of the samples 1 to 4 once" },
    { { order = { 0, 1, 2, 3 } }, "must hold each of the samples 1 to 4 once" },
    { { order = { 2, 1, 3 } }, "rows on dim 0, but the batch has 3 samples (in the order)" },
    { { order = { 2, 1, 4, 3 } }, '"patches" [9, 2] has 9 rows on dim 0, but the batch has 4 samples' },
    { { costs = { 1, 2, 3, 4 }, num_groups = 3 }, "4 samples cannot be dealt equally to 3 groups; use 3 or 6" },
    { { costs = { 1, -2, 3, 4 }, num_groups = 2 }, "costs -2; a cost is finite and not negative" },
    { { order = { 2, 1, 4, 3 }, rows_per_sample = { patches = { 1, 2, 3, 4 } } }, "adds up to 10, but there are 9" },
    { { cost = { 1 } }, 'did you mean "costs"' },
  } do
    t.raises(case[2], mimo.reorder, batch, case[1])
  end
end)

-- The load -------------------------------------------------------------------------------------------

t.test("TheHeaviestReplicaIsLighterOnSkewedCosts", function()
  torch.manual_seed(1)
  local before, after = 0, 0
  for _ = 1, 50 do
    local costs, as_is = (torch.randn { 32 } * 1.2):exp():totable(), {} -- log-normal
    for i = 1, 32 do as_is[i] = i end
    local function spread(order)
      local heaviest, sum = 0, 0
      for _, cost in ipairs(mimo.group_costs(costs, order, 4)) do
        heaviest, sum = math.max(heaviest, cost), sum + cost
      end
      return heaviest / (sum / 4)
    end
    local was, is = spread(as_is), spread(mimo.balanced_order(costs, 4))
    t.truthy(is <= was + 1e-12)
    before, after = before + was / 50, after + is / 50
  end
  t.truthy(before > 1.4 and after < 1.1, ("heaviest to mean: %.3f, reordered %.3f"):format(before, after))
end)

-- Learning -------------------------------------------------------------------------------------------

for _, grid in ipairs { { "apart", WORLD - 1, 1 }, { "apart", 1, WORLD - 1 }, { "together", WORLD, WORLD } } do
  local how, vision, language = unpack(grid)
  t.test(("LossesAndGradientsOfEverySampleAreTheSame(%s, %d, %d)"):format(how, vision, language), function()
    local topology, replicas = fixture[how](vision, language), math.max(vision, language)
    local heaviest = { as_is = 0, reordered = 0 }
    local moved = 0
    local function train(change)
      local set, micro_batch = fixture.dataset(STEPS * MICRO_BATCH), -1
      local reader = mimo.loader { topology = topology, ownership = "images", source = function()
        micro_batch = micro_batch + 1
        if micro_batch == STEPS then return nil end
        return read(set, micro_batch * MICRO_BATCH + 1, (micro_batch + 1) * MICRO_BATCH)
      end }
      return fixture.train(topology, reader, { change = change })
    end
    local expected = train()

    local steps = train(function(batch)
      local result, order = mimo.reorder(batch, { costs = batch.images, topology = topology,
        ownership = fixture.OWNERSHIP })
      local as_is = {}
      for i, sample in ipairs(order) do as_is[i], moved = i, moved + (sample ~= i and 1 or 0) end
      local costs = batch.images:costs()
      heaviest.as_is = heaviest.as_is + math.max(unpack(mimo.group_costs(costs, as_is, replicas)))
      heaviest.reordered = heaviest.reordered + math.max(unpack(mimo.group_costs(costs, order, replicas)))
      return result, { samples = result.samples, ownership = result.images }
    end)

    t.equal(#steps, STEPS)
    fixture.compare(steps, expected, 1e-10)
    t.truthy(moved > STEPS * MICRO_BATCH / 2, "the order hardly changes")
    if replicas == 1 then return end
    t.truthy(heaviest.reordered < heaviest.as_is, ("the heaviest replica costs %d, reordered %d"):format(heaviest.as_is,
      heaviest.reordered))
  end)
end

-- Where every rank knows the costs from an index, each can put the positions in order and read its part of them.
t.test("PartsOfReorderedPositionsAreRead", function()
  local topology = fixture.apart(WORLD - 1, 1)
  local index, costs = fixture.dataset(STEPS * MICRO_BATCH), {}
  for position = 1, index.num_samples do costs[position] = index.read(position).tokens end
  local function train(scalable_reads)
    local set, micro_batch = fixture.dataset(index.num_samples), -1
    local dp_rank, dp_size = topology:sampling_info(nil, scalable_reads)
    local reader = mimo.loader { topology = topology, ownership = "images", scalable_reads = scalable_reads,
      source = function()
        micro_batch = micro_batch + 1
        if micro_batch == STEPS then return nil end
        local before = micro_batch * MICRO_BATCH
        local order = mimo.balanced_order({ unpack(costs, before + 1, before + MICRO_BATCH) }, WORLD - 1)
        local first, last = topology:reads({ micro_batch_size = MICRO_BATCH, num_samples = set.num_samples },
          micro_batch, dp_rank, dp_size)
        local samples = {}
        for position = first, last do
          samples[#samples + 1] = set.read(before + (scalable_reads and order[position - before] or position - before))
        end
        return fixture.collate(samples)
      end }
    local steps = fixture.train(topology, reader)
    t.equal(set.reads, index.num_samples / dp_size)
    return steps
  end

  fixture.compare(train(true), train(false), 1e-10)
end)
