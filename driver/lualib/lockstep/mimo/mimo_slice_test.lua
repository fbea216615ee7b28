--- mimo.topology and mimo.slice, on one rank: what every rank computes without the others.

local mimo = require "lockstep.mimo"
local nn = require "lockstep.nn"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local function grids(modules, world_size) return mimo.topology { world_size = world_size or 4, modules = modules } end

local function vision_3_language_1()
  return grids { { name = "vision", first_rank = 0, dp = 3 }, { name = "language", first_rank = 3 } }
end

-- Topology ------------------------------------------------------------------------------------------

t.test("HeaderExample", function()
  local topo = vision_3_language_1()

  t.equal(topo:module(1), "vision")
  t.equal(topo:module(4), nil)
  t.equal({ topo:dp_info(1) }, { 1, 3 })
  t.equal({ topo:dp_info(3) }, { 0, 1 })
  t.equal({ topo:sampling_info(1) }, { 0, 1, true })
  t.equal(topo:coordinates(2), { dp = 2, pp = 0, cp = 0, tp = 0 })
  t.equal(topo:modules()[1].ranks, { 0, 1, 2 })
end)

t.test("WithoutARankItIsThisOne", function()
  local topo = vision_3_language_1()

  t.equal(topo:module(), "vision")
  t.equal({ topo:dp_info() }, { 0, 3 })
end)

t.test("ColocatedModulesAreAskedForByName", function()
  local topo = grids({ { name = "vision", dp = 4 }, { name = "language", dp = 2, tp = 2 } })

  t.equal({ topo:dp_info(3) }, { 0, 1 })
  t.equal({ topo:dp_info(3, "vision") }, { 3, 4 })
  t.equal({ topo:dp_info(3, "language") }, { 1, 2 })
  t.equal(topo:coordinates(3, "language"), { dp = 1, pp = 0, cp = 0, tp = 1 })
  t.equal(topo:peers("language", "tp", 3), { 2, 3 })
  t.equal(topo:peers("language", "dp", 3), { 1, 3 })
end)

t.test("RanksMayBeListed", function()
  local topo = grids { { name = "vision", ranks = { 3, 1 }, dp = 2 }, { name = "language", ranks = { 0, 2 }, tp = 2 } }

  t.equal({ topo:dp_info(3) }, { 0, 2 })
  t.equal({ topo:dp_info(1) }, { 1, 2 })
  t.equal(topo:coordinates(2), { dp = 0, pp = 0, cp = 0, tp = 1 })
end)

t.test("MistakesAreNamed", function()
  t.raises('did you mean "modules"', mimo.topology, { module = {} })
  t.raises('did you mean "first_rank"', grids, { { name = "language", frist_rank = 0 } })
  t.raises("language", grids, { { name = "vision", dp = 4 } })
  local overlap = { { name = "vision", dp = 2 }, { name = "language", first_rank = 1, dp = 9 } }
  local message = t.raises("world", grids, overlap)
  t.truthy(message:find("vision", 1, true) and message:find("language", 1, true), message)
  local topo = vision_3_language_1()
  t.raises('did you mean "vision"', topo.peers, topo, "vison", "dp")
  t.raises("topology must come from mimo.topology", mimo.bridge, { topology = {}, from = "a", to = "b" })
  t.raises('no edge from "language" to "vision"', mimo.bridge, { topology = topo, from = "language", to = "vision" })
end)

t.test("ModulesAreAList", function()
  t.raises('modules must be a list, as in modules = {{name = "vision", dp = 3}, {name = "language", first_rank = 3}}, '
    .. 'but has the key "vision"', grids, { vision = { dp = 3 } })
  t.raises('edges must be a list, as in edges = {{from = "vision", to = "language"}}, but has the key "vision"',
    mimo.topology, { world_size = 1, modules = { { name = "language" } }, edges = { vision = "language" } })
end)

t.test("RanksOutsideTheTopologyAreRefused", function()
  local topo = vision_3_language_1()

  for _, rank in ipairs { -1, 4, 99 } do
    for _, name in ipairs { "dp_info", "sampling_info", "coordinates" } do
      t.raises(("topology:%s: rank %d is not of the topology, whose ranks are 0 to 3"):format(name, rank), topo[name],
        topo, rank)
    end
    t.raises("0 to 3", topo.dp_info, topo, rank, "vision")
    t.equal(topo:module(rank), nil)
  end
end)

t.test("ValidateRefusesWhatIsMissingAndWhatIsUnreasonable", function()
  local topo = vision_3_language_1()

  t.raises("micro_batch_size is not given", topo.validate, topo, {})
  t.raises("micro_batch_size is not given", topo.validate, topo)
  t.raises("micro_batch_size is 0; it must be positive", topo.validate, topo, { micro_batch_size = 0 })
  t.raises("global_batch_size is 0; it must be positive", topo.validate, topo,
    { micro_batch_size = 6, global_batch_size = 0 })
  t.raises("micro_batch_size is 1099511627776; it must be positive, and at most 1048576 samples", topo.validate, topo,
    { micro_batch_size = 2 ^ 40 })
  t.raises("at most 1048576 samples", topo.check_schedule, topo, { micro_batch_size = 3 * 2 ^ 40 })
  t.raises("4 ranks are simulated for at most 1048576", topo.check_schedule, topo,
    { micro_batch_size = 6, micro_batches = 2 ^ 40 })
  topo:validate { micro_batch_size = 3 * 2 ^ 18, global_batch_size = 3 * 2 ^ 40 }
end)

t.test("ValidateGivesTheNearestSizesThatWork", function()
  local topo = vision_3_language_1()

  topo:validate { micro_batch_size = 6, global_batch_size = 24 }

  local message = t.raises("vision", topo.validate, topo, { micro_batch_size = 7, global_batch_size = 24 })
  t.truthy(message:find("6", 1, true) and message:find("9", 1, true), message)
  t.raises('did you mean "micro_batch_size"', topo.validate, topo, { micro_batchsize = 6 })
end)

t.test("TheScheduleOfAStepEndsOnPaper", function()
  local topo = vision_3_language_1()

  local operations, transfers = topo:check_schedule { micro_batches = 2, micro_batch_size = 6 }

  t.truthy(operations > 0)
  t.equal(transfers, 2 * 2 * 3) -- forward and back, from or to each rank of vision
end)

t.test("DrawsTextAndSvg", function()
  local topo = vision_3_language_1()

  t.truthy(mimo.draw(topo, { micro_batch_size = 6 }):find("vision", 1, true))
  t.truthy(mimo.draw(topo, { format = "svg" }):find("<svg", 1, true))
  t.raises("format must be", mimo.draw, topo, { format = "png" })
end)

t.test("ReadsAreCutFromOneOrder", function()
  local topo = grids { { name = "vision", dp = 2 }, { name = "language", dp = 1, first_rank = 2, tp = 2 } }

  t.equal({ topo:reads({ micro_batch_size = 4, num_samples = 9 }, 1, 1, 2) }, { 7, 8, 2 })
  t.equal({ topo:reads({ micro_batch_size = 4, num_samples = 9 }, 1, 0, 1) }, { 5, 8, 2 })
end)

t.test("BalancedOrderDealsCostsToGroups", function()
  t.equal(mimo.balanced_order({ 4, 16, 9, 25 }, 2), { 4, 1, 2, 3 })
end)

-- Slice ---------------------------------------------------------------------------------------------

local function batch_of_four()
  return {
    input_ids = torch.arange(8):view(4, 2),
    position_ids = torch.arange(24):view(3, 4, 2),
    names = { "a", "b", "c", "d" },
    step = 7,
    modality_inputs = { clip = {
      image_grid_thw = torch.tensor({ { 1, 2, 2 }, { 1, 2, 2 }, { 1, 4, 2 } }, { dtype = torch.int64 }),
      pixel_values = torch.arange(32):view(16, 2),
    } },
  }
end

local IMAGES = { rows_per_sample = { image_grid_thw = { 1, 0, 2, 0 } } }

t.test("CutsByWhatRowsBelongTo", function()
  local batch = batch_of_four()

  local mine = mimo.slice(batch, 1, 2, IMAGES)

  t.equal(mine.input_ids, torch.tensor({ { 4, 5 }, { 6, 7 } }, { dtype = torch.int64 }))
  t.equal(mine.position_ids.shape, { 3, 2, 2 })
  t.equal(mine.names, { "c", "d" })
  t.equal(mine.step, 7)
  t.equal(mine.modality_inputs.clip.image_grid_thw:size(0), 2)
  t.equal(mine.modality_inputs.clip.pixel_values, batch.modality_inputs.clip.pixel_values[{ { 4, 16 } }])
end)

t.test("RowsMayBeATensor", function()
  local rows = torch.tensor({ 1, 0, 2, 0 }, { dtype = torch.int32 })

  local mine = mimo.slice(batch_of_four(), 0, 2, { rows_per_sample = { image_grid_thw = rows } })

  t.equal(mine.modality_inputs.clip.pixel_values:size(0), 4)
end)

t.test("IsAView", function()
  local batch = batch_of_four()

  mimo.slice(batch, 1, 2, IMAGES).input_ids:fill_(-1)

  t.equal(batch.input_ids[3], torch.tensor({ -1, -1 }, { dtype = torch.int64 }))
  t.equal(batch.input_ids[1], torch.tensor({ 2, 3 }, { dtype = torch.int64 }))
end)

t.test("ASliceOfOneReplicaIsTheBatchItself", function()
  local batch = batch_of_four()

  t.truthy(rawequal(mimo.slice(batch, 0, 1), batch))
end)

t.test("AKeyThatTheBatchLacksIsNamedOnEveryReplica", function()
  local opts = { rows_per_sample = { image_grid_thv = { 1, 0, 2, 0 } } }
  for _, dp_size in ipairs { 1, 2 } do
    t.raises('rows_per_sample declares "image_grid_thv", which the batch does not have; did you mean "image_grid_thw"?',
      mimo.slice, batch_of_four(), 0, dp_size, opts)
    t.raises('did you mean "uneven"', mimo.slice, batch_of_four(), 0, dp_size, { unevn = true })
    t.raises("adds up to 4, but there are 3 rows", mimo.slice, batch_of_four(), 0, dp_size,
      { rows_per_sample = { image_grid_thw = { 1, 0, 2, 1 } } })
  end
end)

t.test("FalseHandsOnWhole", function()
  local whole = mimo.slice({ input_ids = torch.zeros { 2, 3 }, mean = torch.zeros { 2 }, size = { 224, 224 } }, 0, 2,
    { batch_dims = { mean = false, size = false } })

  t.equal(whole.mean:size(0), 2)
  t.equal(whole.size, { 224, 224 })
end)

t.test("ATableThatIsNotOfValuesIsPassedOn", function()
  local object, empty = nn.Linear(2, 2), {}
  local batch = { input_ids = torch.zeros { 2, 3 }, object = object, fn = t.test, empty = empty, nothing = false }

  local mine = mimo.slice(batch, 0, 2)

  t.truthy(rawequal(mine.object, object) and mine.fn == t.test and rawequal(mine.empty, empty))
  t.equal(mine.nothing, false)
end)

t.test("ErrorsNameThePath", function()
  t.raises('batch size 4 of "input_ids" [4, 2] is not divisible by dp_size 3; use 3 or 6', mimo.slice,
    batch_of_four(), 0, 3)
  t.raises('"modality_inputs.clip.image_grid_thw" [3, 3] has one row for each image', mimo.slice, batch_of_four(), 0, 2)
  t.raises("dp_rank 2 is not one of 0 to dp_size - 1 = 1", mimo.slice, batch_of_four(), 2, 2)
  t.raises("dp_rank 1 is not one of", mimo.slice, batch_of_four(), 1, 1)
  t.raises('"a.b" is neither an array nor a table of named values', mimo.slice,
    { input_ids = torch.zeros { 2 }, a = { b = { 1, x = 2 } } }, 0, 2)
  t.raises('did you mean "uneven"', mimo.slice, {}, 0, 2, { unevn = true })
  t.raises("must be an array of whole numbers or a 1-D tensor", mimo.slice, batch_of_four(), 0, 2,
    { rows_per_sample = { image_grid_thw = torch.zeros { 4 } } })
  local loop = {}
  loop.loop = loop
  t.raises("nested too deeply, or in itself", mimo.slice, loop, 0, 2)
end)
