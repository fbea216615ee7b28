--- mimo.step with losses of several modules and with an edge that skips a module, for several steps of AdamW with
--- clipping, against one rank in float64.

local dist = require "lockstep.distributed"
local mimo = require "lockstep.mimo"
local nn = require "lockstep.nn"
local stages = require "stages_fixture"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

torch.set_num_threads(1)
local world = dist.world_size()

local function edge(from, to) return { from = from, to = to } end

--- Vision feeds an adapter and the language model, which the adapter feeds, too.
local function with_short_cut(vision, adapter, language)
  return stages.case { modules = { { name = "vision", dp = vision },
    { name = "adapter", dp = adapter, first_rank = vision },
    { name = "language", dp = language, first_rank = vision + adapter } },
    edges = { edge("vision", "adapter"), edge("vision", "language"), edge("adapter", "language") },
    own_loss = { vision = true, adapter = true, language = true } }
end

for _, order in ipairs { "1f1b", "all_forwards_first", "sequential" } do
  for _, sizes in ipairs { { 1, 1, 1 }, { 2, 1, 1 }, { 1, 1, 2 } } do
    if sizes[1] + sizes[2] + sizes[3] == world and (order == "1f1b" or world == 3) then
      t.test(("LossesOfAllModulesAndAShortCut_%s_%d_%d_%d"):format(order, unpack(sizes)), function()
        stages.check(with_short_cut(unpack(sizes)), order, 1e-10)
      end)
    end
  end
end

t.test("ATowerOnTheSameRanksHasALossOfItsOwn", function()
  if world == 3 then return end
  stages.check(stages.case { modules = { { name = "vision", dp = world }, { name = "language", dp = world / 2,
    tp = 2 } }, edges = { edge("vision", "language") }, own_loss = { vision = true } }, "all_forwards_first", 1e-10)
end)

--- Two modules: vision on all ranks but the last, and language on that.
local function tower_and_language(functions, order)
  local topology = mimo.topology { modules = { { name = "vision", dp = world - 1 },
    { name = "language", first_rank = world - 1 } } }
  local name = topology:module()
  local step = mimo.step { topology = topology, order = order, micro_batches = 2,
    bridges = mimo.bridge { topology = topology, from = "vision", to = "language" },
    modules = { [name] = functions[name] } }
  return step, topology, name
end

local function source() return { x = torch.ones { world - 1, 1 } } end

local Holder = nn.Module:subclass("Holder")

-- Means over replicas of different modules: each divides by its own number of replicas.
t.test("MeansAreDividedAsGradientsAre", function()
  local w = torch.full({}, 3):requires_grad_(true)
  local step, topology, name = tower_and_language { vision = function(part)
    return part.x * w, w * (dist.rank() + 1) / (world - 1)
  end, language = function(_, x) return x:mean() * w end }
  local module = Holder()
  module.w = w

  t.raises("mean_losses: no step has run before", step.mean_losses, step)
  step(source)
  t.raises("call mimo.reduce_gradients after the step, and then this; or give a divisor above 0, not nil",
    step.mean_losses, step)
  mimo.reduce_gradients { topology = topology, modules = { [name] = module }, loss = "mean", micro_batches = 2 }

  local means = step:mean_losses()
  t.near(means.language, 3 * 3, 1e-6)
  t.near(means.vision, 3 * world / 2, 1e-6)
  t.equal(step:mean_losses(4).language, means.language / 2) -- two micro-batches
  -- Language trains on x times w, and vision on its rows and on its own loss.
  t.near(w.grad:item(), name == "language" and 3 or 3 + world / 2, 1e-5)
end)

t.test("ModulesWithoutALossAreNotReported", function()
  local step = tower_and_language { vision = function(part) return part.x end,
    language = function(_, x) return x:sum() end }

  step(source)

  t.equal(step:mean_losses(1), { language = 2 * (world - 1) })
end)

local NoParameters = nn.Module:subclass("NoParameters")
function NoParameters.forward(_, part) return part.x, part.x:mean() end

t.test("ALossThatTrainsNothingIsAnError", function()
  local step, _, name = tower_and_language { vision = NoParameters(), language = function(_, x) return x:sum() end }

  local message = t.raises('"vision" returns a loss without a graph, and has no parameters', step, source)

  t.truthy(name == "vision" or message:find("rank 0 (vision) failed", 1, true), message)
  step = tower_and_language { vision = NoParameters(), language = function(_, x) return x:sum() end }
  torch.no_grad(step, source) -- an evaluation reports it
end)

t.test("CirclesAndShapesThatChangeAreErrors", function()
  t.raises("edges make a cycle: vision -> language -> vision; leave one of them out", mimo.topology, { modules = {
    { name = "vision", dp = world - 1 },
    { name = "language", first_rank = world - 1 } }, edges = { edge("vision", "language"),
    edge("language", "vision") } })
  local width = 0
  local step = tower_and_language { vision = function(part)
    width = width + 1
    return part.x:expand { world - 1, width }
  end, language = function(_, x) return x:sum() end }
  t.raises("x is Float [rows, 2], but was Float [rows, 1] in earlier calls", step, source)
end)
