--- mimo.step with modules of a user's own layers in stages (pp), for several steps of AdamW with clipping, against one
--- rank in float64.

local core = require "lockstep.core"
local dist = require "lockstep.distributed"
local mimo = require "lockstep.mimo"
local stages = require "stages_fixture"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

torch.set_num_threads(1)
local world = dist.world_size()

local function edge(from, to) return { from = from, to = to } end

--- The cases that run in every order; the others run in the first that they allow.
local IN_EVERY_ORDER = { TwoStages = true, ATowerBesideTwoStages = true, StagesOnTheRanksOfATower = true }

--- Name, number of ranks, modules, edges and more of a case.
local CASES = {
  { "TwoStages", 2, { { name = "language", pp = 2 } }, {} },
  { "ThreeStages", 3, { { name = "language", pp = 3 } }, {} },
  { "ATowerBesideTwoStages", 3, { { name = "vision" }, { name = "language", pp = 2, first_rank = 1 } },
    { edge("vision", "language") } },
  { "ATowerInStages", 3, { { name = "vision", pp = 2 }, { name = "language", first_rank = 2 } },
    { edge("vision", "language") }, { uses_loader = true } },
  { "BothInStages", 4, { { name = "vision", pp = 2 }, { name = "language", pp = 2, first_rank = 2 } },
    { edge("vision", "language") } },
  { "ReplicasOfATowerBesideStages", 4, { { name = "vision", dp = 2 }, { name = "language", pp = 2, first_rank = 2 } },
    { edge("vision", "language") } },
  { "AShortCutOverStages", 4, { { name = "vision" }, { name = "adapter", pp = 2, first_rank = 1 },
    { name = "language", first_rank = 3 } },
    { edge("vision", "adapter"), edge("vision", "language"), edge("adapter", "language") } },
  { "ShardedStages", 4, { { name = "language", pp = 2, dp = 2 } }, {}, { shard = true } },
  { "StagesInAnotherOrderOfRanks", 4, { { name = "language", pp = 2, dp = 2, order = "pp-dp-cp-tp" } }, {} },
  { "ChunksOfSequencesInStages", 4, { { name = "language", pp = 2, cp = 2 } }, {} },
  { "LayersInPartsInStages", 4, { { name = "language", pp = 2, tp = 2 } }, {} },
  { "WeightsThatStagesShare", 3, { { name = "language", pp = 3,
    shared = { { first = "up.weight", last = "up.weight" } } } }, {} },
  { "StagesOnTheRanksOfATower", 2, { { name = "vision", dp = 2 }, { name = "language", pp = 2 } },
    { edge("vision", "language") } },
  { "TowersWithLayersInPartsOnTheRanksOfStages", 2, { { name = "vision", tp = 2 }, { name = "audio", tp = 2 },
    { name = "language", pp = 2 } }, { edge("vision", "language"), edge("audio", "language") },
    { own_loss = { audio = true } } },
  { "TowersOnTheRanksOfThreeStages", 3, { { name = "vision", dp = 3 }, { name = "audio", dp = 3 },
    { name = "language", pp = 3 } }, { edge("vision", "language"), edge("audio", "language") },
    { own_loss = { audio = true, language = true } } },
  { "TowersOnTheRanksOfReplicasOfStages", 4, { { name = "vision", dp = 4 }, { name = "language", pp = 2, dp = 2 } },
    { edge("vision", "language") } },
  { "TowersOnTheRanksOfFourStages", 4, { { name = "vision", dp = 4 }, { name = "language", pp = 4 } },
    { edge("vision", "language") } },
  { "ShardedTowersOnTheRanksOfStages", 4, { { name = "vision", dp = 4 }, { name = "language", pp = 2, cp = 2 } },
    { edge("vision", "language") }, { shard = true } },
  { "FrozenTowersOnTheRanksOfStages", 4, { { name = "vision", dp = 4 }, { name = "language", pp = 2, tp = 2 } },
    { edge("vision", "language") }, { frozen = { ["vision 1"] = true }, own_loss = {} } },
  { "TwoModulesInStagesOnTheSameRanks", 3, { { name = "vision", pp = 3 }, { name = "language", pp = 3 } },
    { edge("vision", "language") }, { are_together = true } },
  { "AFrozenTowerAndStage", 3, { { name = "vision" }, { name = "language", pp = 2, first_rank = 1 } },
    { edge("vision", "language") }, { frozen = { ["vision 1"] = true, ["language 1"] = true }, own_loss = {} } },
  { "AFrozenLastStage", 3, { { name = "vision" }, { name = "language", pp = 2, first_rank = 1 } },
    { edge("vision", "language") }, { frozen = { ["language 2"] = true } } },
}

for _, one in ipairs(CASES) do
  local name, num_ranks, modules, edges, more = unpack(one)
  for i, order in ipairs { "1f1b", "all_forwards_first", "sequential" } do
    if num_ranks == world and (IN_EVERY_ORDER[name] or i == (more and more.are_together and 2 or 1)) then
      t.test(name .. "_" .. order, function()
        local case = { modules = modules, edges = edges, own_loss = { vision = true, language = true } }
        for key, value in pairs(more or {}) do case[key] = value end
        stages.check(stages.case(case), order, 1e-10)
      end)
    end
  end
end

--- Returns a step of one module with a stage on each rank, and this rank's stage.
local function language_in_stages(fn, order, micro_batches)
  local topology = mimo.topology { modules = { { name = "language", pp = world } } }
  local place = topology:coordinates().pp + 1
  local step = mimo.step { topology = topology, bridges = {}, order = order, micro_batches = micro_batches,
    modules = { language = function(part, x) return fn(place, part, x) end } }
  return step, place
end

local function source() return { x = torch.ones { 2, 3 } } end

-- A stage holds as many micro-batches as there are stages after it, and one.
t.test("EachOrderRunsAsItSays", function()
  if world ~= 3 then return end
  for _, case in ipairs { { "1f1b", { "FFFBFBFBBB", "FFBFBFBFBB", "FBFBFBFBFB" } },
    { "all_forwards_first", { "FFFFFBBBBB", "FFFFFBBBBB", "FFFFFBBBBB" } },
    { "sequential", { "FBFBFBFBFB", "FBFBFBFBFB", "FBFBFBFBFB" } } } do
    local order, traces = unpack(case)
    local trace, w = {}, torch.ones({ 3 }):requires_grad_(true)
    local step, place = language_in_stages(function(stage, part, x)
      local y = (x or part.x) * w
      trace[#trace + 1] = "F"
      y:register_hook(function() trace[#trace + 1] = "B" end)
      return stage == world and y:sum() or y
    end, order, 5)

    step(source)

    t.equal(table.concat(trace), traces[place], order)
  end
end)

t.test("AnEvaluationRunsForwardOnly", function()
  local w = torch.full({ 3 }, 2):requires_grad_(true)
  local step, place = language_in_stages(function(stage, part, x)
    local y = (x or part.x) * w
    return stage == world and y:sum() or y
  end, "1f1b", 4)

  local losses = torch.no_grad(step, source)

  t.equal(#losses, place == world and 4 or 0)
  t.near(step:mean_losses(4 * 2 * 3).language, 2 ^ world, 1e-9)
  t.equal(w.grad, nil)
end)

t.test("MistakesOfAStageAreNamed", function()
  local w = torch.ones({ 3 }):requires_grad_(true)
  local function raises(message, fn)
    local step = language_in_stages(function(stage, part, x) return fn(stage, x or part.x * w) end, "1f1b", 2)
    local said = t.raises("mimo", step, source)
    t.truthy(said:find(message, 1, true), said)
  end
  local function is_last(stage) return stage == world end
  raises('"language" must return a tensor for "language stage 1", not a nil', function(stage, x)
    if stage > 1 then return is_last(stage) and x:sum() or x end
  end)
  raises('"language" must return the loss of the micro-batch, a tensor of one number, not a tensor of 6',
    function(_, x) return x end)
  local width = 3
  raises("x is Float [rows, 2], but was Float [rows, 3] in earlier calls; every call must have the same dtypes and "
    .. "dims", function(stage, x)
    if is_last(stage) then return x:sum() end
    width = width - 1
    return stage == 1 and x:narrow(1, 0, width + 1) or x
  end)
  raises("this stage broke", function(stage, x)
    if is_last(stage) then core.raise "mimo: this stage broke" end
    return x
  end)
end)
