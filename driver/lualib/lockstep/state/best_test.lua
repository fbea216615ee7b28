-- run:keep_best and run:load_best: which state is kept, on one rank and on several, and after a kill.

local core = require "lockstep.core"
local dist = require "lockstep.distributed"
local files = require "lockstep.core.files"
local nn = require "lockstep.nn"
local optim = require "lockstep.optim"
local run = require "lockstep.run"
local sharding = require "lockstep.sharding"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local fixture = require "state_fixture"

local rank, world = dist.rank(), dist.world_size()

local net, model -- of the run that was begun last

--- Registers a small model, in parts where there are several ranks.
local function new_run(opts)
  net = nn.Linear(3, 2)
  model = world > 1 and sharding.fully_shard(net) or net
  local optimizer = optim.AdamW(model:parameters(), { lr = 1 })
  run:state({ model = model, optimizer = optimizer }, opts)
end

local function fill(value)
  torch.no_grad(function()
    for _, p in ipairs(model:parameters()) do p:fill_(value) end
  end)
end

--- Returns a weight, which is the number of steps done.
local function read_weight()
  local function read() return net.weight[{ 0, 0 }]:item() end
  return world > 1 and model:full(read) or read()
end

--- Runs the steps to `total` with these metrics, by the number of steps done. Returns the steps that were the best.
local function train(metrics, total, opts)
  local kept = {}
  for step in run:steps(function() return true end, total) do
    fill(step + 1)
    if metrics[step + 1] and run:keep_best("loss", metrics[step + 1], opts) then kept[#kept + 1] = step + 1 end
  end
  return kept
end

--- Takes a state away, as if the run had been killed before it.
local function lose(step)
  dist.barrier()
  if rank == 0 then fixture.remove_folder(("%s/state/step-%08d"):format(run.dir, step)) end
  dist.barrier()
end

local function states() return files.list(run.dir .. "/best") end

t.test("TheStateWithTheLowestLossIsKeptAndItsWeightsComeBack", function()
  fixture.new_folder()
  new_run()

  t.equal(train({ [2] = 0.5, [4] = 0.25, [6] = 0.75, [8] = 0.25 }, 8), { 2, 4 })

  t.equal(states(), { "step-00000004" })
  t.equal({ run:load_best() }, { 0.25, 4 })
  t.equal(read_weight(), 4)
end)

t.test("TheHighestIsKeptInModeMax", function()
  fixture.new_folder()
  new_run()
  t.equal(train({ 0.5, 0.75, 0.25, torch.tensor(0.875) }, 4, { mode = "max" }), { 1, 2, 4 })
  t.equal({ run:load_best() }, { 0.875, 4 })
end)

t.test("NotANumberAndInfinityAreNeverTheBest", function()
  fixture.new_folder()
  new_run()
  t.equal(train({ 0 / 0, -math.huge, 3, 0 / 0, 2 }, 5), { 3, 5 })
end)

t.test("WithoutABestNothingIsLoaded", function()
  fixture.new_folder()
  new_run()
  fill(7)
  t.equal({ run:load_best() }, {})
  t.equal(read_weight(), 7)
end)

t.test("AResumedRunDecidesAsIfItHadNeverStopped", function()
  fixture.new_folder()
  local metrics = { [1] = 4, [3] = 3, [5] = 1, [7] = 2 }
  new_run { every = 4 }
  train(metrics, 6)
  lose(6)
  new_run { every = 4 }

  t.equal(run:resume(), 4)
  t.equal(train(metrics, 8), { 5 })

  t.equal(states(), { "step-00000005" })
  t.equal({ run:load_best() }, { 1, 5 })
end)

t.test("ABestThatAKilledRunLeftIsReplacedByAnEarlierStepOfTheResumedRun", function()
  fixture.new_folder()
  new_run { every = 2 }
  train({ [1] = 4, [4] = 1 }, 4)
  lose(4)
  new_run { every = 2 }

  t.equal(run:resume(), 2)
  t.equal(train({ [3] = 2, [4] = 3 }, 4), { 3 })

  t.equal(states(), { "step-00000003" })
  t.equal({ run:load_best() }, { 2, 3 })
  t.equal(read_weight(), 3)
end)

t.test("AnotherRunStartsFromTheBestAndHasABestOfItsOwn", function()
  fixture.new_folder()
  new_run()
  train({ 1, 2 }, 2)
  local first = run.dir
  fixture.new_folder()
  new_run()

  t.equal(run:resume { from = first .. "/best" }, 1)
  t.equal(read_weight(), 1)

  t.equal(train({ [2] = 9 }, 3), { 2 })
  t.equal({ run:load_best() }, { 9, 2 })
end)

t.test("AValueThatCouldNotBeSavedIsNotTheBest", function()
  fixture.new_folder()
  new_run()
  local in_the_way = run.dir .. "/best"
  if rank == 0 then core.write_file(in_the_way, { "a file" }) end

  t.raises("run:save: ", run.keep_best, run, "loss", 3, { step = 1 })

  dist.barrier()
  if rank == 0 then files.remove(in_the_way) end
  dist.barrier()
  t.equal(run:keep_best("loss", 4, { step = 2 }), true)
  t.equal({ run:load_best() }, { 4, 2 })
end)

t.test("ABestThatIsGoneIsAnError", function()
  fixture.new_folder()
  new_run()
  train({ 1, 2 }, 2)
  dist.barrier()
  if rank == 0 then fixture.remove_folder(run.dir .. "/best") end
  dist.barrier()

  t.raises("the best state, of a loss of 1 after 1 steps, is gone from " .. run.dir .. "/best; restore it from a copy",
    run.load_best, run)
  t.equal(read_weight(), 2)
end)

t.test("ADamagedBestIsAnErrorAndChangesNothing", function()
  fixture.new_folder()
  new_run()
  train({ 1, 2 }, 2)
  dist.barrier()
  if rank == 0 then
    local file = assert(io.open(run.dir .. "/best/step-00000001/model.safetensors.index.json", "ab"))
    file:write("x")
    file:close()
  end
  dist.barrier()

  t.raises("complete.json says", run.load_best, run)
  t.equal(read_weight(), 2)
end)

t.test("RanksThatDoNotAgreeAreNamed", function()
  if world == 1 then return end
  fixture.new_folder()
  new_run()
  t.raises("run:keep_best: ranks do not agree: the loss is 0.5 on rank 0, and 0.75 on rank 1; give every rank the "
    .. "same, a value of all ranks from sharding.evaluate", run.keep_best, run, "loss", 0.5 + rank / 4, { step = 1 })
  t.raises("the mode is max on rank 0, and min on rank 1", run.keep_best, run, "x", 1,
    { step = 1, mode = rank == 0 and "max" or "min" })
  t.raises("the step is 1 on rank 0, and 2 on rank 1", run.keep_best, run, "loss", 1, { step = 1 + rank })
  t.equal(states(), {})
end)

t.test("MistakesAreNamed", function()
  fixture.new_folder()
  new_run()
  t.raises('is the highest "accuracy" the best, or the lowest? write run:keep_best("accuracy", value, { mode = '
    .. '"max" })', run.keep_best, run, "accuracy", 1, { step = 1 })
  t.raises('{ mode = "min" }, not most', run.keep_best, run, "loss", 1, { step = 1, mode = "most" })
  t.raises("the first argument is the metric's name", run.keep_best, run, 0.5, nil, { step = 1 })
  t.raises("loss must be a number or a tensor of one element, not a nil", run.keep_best, run, "loss", nil, { step = 1 })
  t.raises("outside of a loop of run:steps say how many steps are done", run.keep_best, run, "loss", 1)
  t.raises("run:keep_best is called with a colon", run.keep_best, "loss", 1)
  run:keep_best("loss", 1, { step = 1 })
  t.raises('keeps the best "loss", and a run keeps one; it was called with "val_loss"', run.keep_best, run, "val_loss",
    1, { step = 2 })
  t.raises('the best "loss" was that of mode "min" before, and of mode "max" now', run.keep_best, run, "loss", 2,
    { step = 2, mode = "max" })
  t.raises("must be a number or a tensor of one element, not one of shape {2}", run.keep_best, run, "loss",
    torch.ones { 2 }, { step = 2 })
  for _ in run:steps(function() return true end, 1) do
    t.raises("run:load_best: within a loop of run:steps", run.load_best, run)
  end
end)

t.test("ABestThatTheStateDoesNotKnowIsLoadedOnlyInPlaceOfOneThatIsGone", function()
  fixture.new_folder()
  new_run { every = 2 }
  train({ [1] = 4, [4] = 1 }, 4)
  lose(4)
  new_run { every = 2 } -- the state after 2 steps knows of the best after 1, which is gone
  run:resume()
  t.equal({ run:load_best() }, { 1, 4 })
  t.equal(read_weight(), 4)

  lose(2)
  new_run()
  t.equal(run:resume(), nil)
  fill(7)
  t.equal({ run:load_best() }, {}) -- of another training in this folder
  t.equal(read_weight(), 7)
end)
