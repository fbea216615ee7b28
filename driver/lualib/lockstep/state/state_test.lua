-- run:save and run:resume on one rank: objects are restored bit for bit, and a mismatch is reported once.

local core = require "lockstep.core"
local core_state = require "lockstep.core.state"
local data = require "lockstep.data"
local files = require "lockstep.core.files"
local fixture = require "state_fixture"
local folder = require "lockstep.state.folder"
local nn = require "lockstep.nn"
local optim = require "lockstep.optim"
local run = require "lockstep.run"
local sharding = require "lockstep.sharding"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local Net, listening, new_folder, new_objects = fixture.Net, t.listening, fixture.new_folder, fixture.new_objects
local read_file, save_at, state_of, train = t.read_file, fixture.save_at, fixture.state_of, fixture.train
local write_file = fixture.write_file

-- There and back --------------------------------------------------------------------------------------

t.test("AResumedRunContinuesAsIfItHadNeverStopped", function()
  for _, make in ipairs { optim.AdamW, optim.SGD, optim.Lion, optim.Adafactor } do
    new_folder()
    torch.manual_seed(1)
    math.randomseed(1)
    local objects = new_objects(4, make)
    run:state(objects)
    train(objects, 3)
    objects.best.loss = 0.25
    run:save { step = 3 }
    local expected = { train(objects, 4), state_of(objects), torch.randn({ 3 }), math.random() }

    torch.manual_seed(99)
    math.randomseed(99)
    local others = new_objects(4, make)
    train(others, 1)
    run:state(others)
    t.equal(run:resume(), 3)
    t.equal(others.best, { loss = 0.25 })

    t.equal({ train(others, 4), state_of(others), torch.randn({ 3 }), math.random() }, expected)
  end
end)

t.test("TheGroupsOfAnOptimizerComeBackAndWhatChangesIsSaid", function()
  new_folder()
  local objects = new_objects()
  objects.optimizer.groups[2].lr = 0.005
  run:state(objects)
  run:save { step = 1 }

  local others = new_objects()
  run:state(others)
  local _, heard = listening(run.resume, run)

  t.equal(others.optimizer.groups[2].lr, 0.005)
  t.equal(others.optimizer.groups[1].lr, 0.1)
  t.equal(heard, "lockstep: run:resume: optimizer.groups[2].lr is 0.005, as saved, not 0.01\n")
end)

t.test("PlainValuesComeBackWhateverTheyAre", function()
  new_folder()
  local values = { text = "a\0\255b", tiny = 5e-324, third = 1 / 3, huge = -math.huge, [7] = "seven", [true] = "yes",
    nested = { { {} }, flag = false }, tensor = torch.randn({ 2, 3 }), half = torch.ones({ 2 }):half() }
  run:state { values = values }
  run:save { step = 1 }
  local expected = {}
  for key, value in pairs(values) do expected[key] = value end
  for key in pairs(values) do values[key] = nil end
  values.other = 1

  run:resume()

  t.equal(values, expected)
  t.truthy(1 / core_state.decode(core_state.encode(-0.0, "x"), {}, "x") == -math.huge, "minus zero has lost its sign")
  local nan = core_state.decode(core_state.encode(0 / 0, "x"), {}, "x")
  t.truthy(nan ~= nan)
end)

t.test("ObjectsOfTheScriptsOwnAreSavedByStateDictAndPositionsInPacksToo", function()
  new_folder()
  local average = { value = torch.ones({ 2 }) }
  setmetatable(average, { __index = {
    state_dict = function(self) return { value = self.value } end,
    load_state_dict = function(self, state) self.value = state.value end,
  } })
  run:state { average = average }
  run:save { step = 1 }
  average.value = torch.zeros({ 2 })

  run:resume()

  t.equal(average.value, torch.ones({ 2 }))
end)

t.test("ADatasetAndWhatIsPackedFromItGoOnTogether", function()
  new_folder()
  local function new_pack()
    local dataset = sharding.dataset { size = 40, seed = 2 }
    local pack = sharding.pack { seq_len = 7, source = function()
      local index = dataset()
      return index and { input_ids = torch.full({ 1 + index % 5 }, index, { dtype = torch.int64 }) }
    end }
    return dataset, pack
  end
  local dataset, pack = new_pack()
  run:state { data = dataset, pack = pack }
  for _ = 1, 5 do pack() end
  run:save { step = 5 }
  local expected = {}
  for chunk in pack do expected[#expected + 1] = chunk.input_ids end

  local others, other_pack = new_pack()
  run:state { data = others, pack = other_pack }
  run:resume()

  for i, ids in ipairs(expected) do t.equal(other_pack().input_ids, ids, "chunk " .. i) end
  t.equal(other_pack(), nil)
end)

t.test("APackOverALoaderIsRegisteredAlone", function()
  new_folder()
  local samples = {}
  for i = 1, 40 do samples[i] = { input_ids = torch.full({ 1 + i % 5 }, i, { dtype = torch.int64 }) } end
  local function new_pack()
    local loader = data.loader { source = samples, seed = 2, epochs = 1 }
    return sharding.pack { seq_len = 7, source = loader }, loader
  end
  local pack, loader = new_pack()
  run:state { pack = pack }
  for _ = 1, 5 do pack() end
  run:save { step = 5 }
  run:state { pack = pack, loader = loader }
  t.raises("register it alone, as in run:state { pack = pack }", run.save, run, { step = 6 })
  local expected = {}
  for chunk in pack do expected[#expected + 1] = chunk.input_ids end

  local other = new_pack()
  run:state { pack = other }
  run:resume()
  for i, ids in ipairs(expected) do t.equal(other().input_ids, ids, "chunk " .. i) end
  t.equal(other(), nil)
end)

t.test("WithoutAStateThereIsNothingToResume", function()
  new_folder()
  run:state { best = {} }
  t.equal(run:resume(), nil)
end)

t.test("StepsGoOnWhereTheStateWas", function()
  new_folder()
  local seen = { steps = {} }
  run:state({ seen = seen }, { every = 2 })
  for step in run:steps(function() return true end, 5) do table.insert(seen.steps, step) end
  t.equal(#folder.list(run.dir .. "/state"), 3)
  fixture.remove_folder(run.dir .. "/state/step-00000005")

  seen.steps = { "lost" }
  t.equal(run:resume(), 4)
  for step in run:steps(function() return true end, 8) do table.insert(seen.steps, step) end

  t.equal(seen.steps, { 0, 1, 2, 3, 4, 5, 6, 7 })
  t.equal(run:resume(), 8)
  for _ in run:steps(function() return true end, 8) do error("there is no step left") end
end)

t.test("WithinALoopTheStepUnderWayCountsAsDone", function()
  new_folder()
  run:state { best = {} }
  for step in run:steps(function() return true end, 3) do
    if step == 1 then t.equal(run:save(), run.dir .. "/state/step-00000002") end
  end
end)

t.test("AStateSavedBeforeAStepsEndIsReplacedIfThatStepsStateIsDue", function()
  new_folder()
  local seen = {}
  run.progress.resumed = nil
  run:state({ seen = seen }, { every = 2 })
  for step in run:steps(function() return true end, 3) do
    if step == 1 then run:save() end -- at the top: the step has done nothing yet
    seen[#seen + 1] = step
  end
  fixture.remove_folder(run.dir .. "/state/step-00000003")

  t.equal(run:resume(), 2)

  t.equal(seen, { 0, 1 })
end)

t.test("ALoopWithinALoopIsRefusedAndOneAfterABreakIsNot", function()
  new_folder()
  run.progress.resumed = nil
  run:state({ best = {} }, { every = 1 })
  local function forever() return true end
  local message
  for step in run:steps(forever, 3) do
    if step == 1 then message = t.raises("another loop of run:steps is under way", run.steps, run, forever) end
  end
  t.truthy(message:find("for batch in loader do", 1, true), message)
  t.equal(#folder.list(run.dir .. "/state"), 3)

  new_folder()
  run:state { best = {} }
  for step in run:steps(forever) do
    if step == 1 then break end
  end
  pcall(function()
    for _ in run:steps(forever) do error("lost") end
  end)
  local steps = 0
  local next_step = run:steps(forever, 2) -- called by hand it is no loop that can be seen
  while next_step() do steps = steps + 1 end
  for _ in run:steps(forever, 2) do steps = steps + 1 end
  t.equal(steps, 4)
end)

t.test("ALoopInACoroutineWithinALoopIsRefusedAndTheOuterOneGoesOn", function()
  new_folder()
  run.progress.resumed = nil
  run:state({ best = {} }, { every = 1 })
  local function forever() return true end
  local function loop()
    for _ in run:steps(forever, 2) do coroutine.yield() end
  end
  local made_before = run:steps(forever, 2)
  local seen = {}
  for step in run:steps(forever, 3) do
    t.raises("another loop of run:steps is under way", coroutine.wrap(loop))
    t.raises("another loop of run:steps is under way", coroutine.wrap(made_before))
    seen[#seen + 1] = run.progress.step
    t.equal(run.progress.step, step)
  end
  t.equal(seen, { 0, 1, 2 })

  new_folder()
  run:state { best = {} }
  local suspended = coroutine.wrap(loop)
  suspended()
  t.raises("another loop of run:steps is under way", run.steps, run, forever) -- it may go on
  suspended()
  suspended()
  local broken = coroutine.wrap(function()
    for _ in run:steps(forever) do error("lost") end
  end)
  t.raises("lost", broken)
  local steps = 0
  for _ in run:steps(forever, 2) do steps = steps + 1 end
  t.equal(steps, 2)
end)

-- Files -----------------------------------------------------------------------------------------------

t.test("TheFolderReadsAsOneOfHuggingFace", function()
  local root = new_folder()
  local objects = save_at { 7 }
  local path = root .. "/step-00000007"

  local tensors, metadata = data.safetensors(path .. "/model-00001-of-00001.safetensors")
  local index = core.json_decode(read_file(path .. "/model.safetensors.index.json"))
  local sharding_info = core.json_decode(metadata.DCP_SHARDING_INFO)

  local names = {}
  for _, iterate in ipairs { objects.model.named_parameters, objects.model.named_buffers } do
    for name, tensor in iterate(objects.model) do
      names[name] = true
      t.equal(tensors[name], tensor:detach(), name)
      t.equal(index.weight_map[name], "model-00001-of-00001.safetensors")
      t.equal(#sharding_info[name].saved_offsets, tensor:dim())
    end
  end
  for name in pairs(tensors) do t.truthy(names[name], name .. " is a second name of a tensor") end
  t.equal(metadata.format, "pt")
  t.equal(index.metadata.total_size, 4 * (20 + 20 + 5 + 4))
  local state = data.safetensors(path .. "/state-00001-of-00001.safetensors")
  t.equal(state["optimizer.state.fc.bias.exp_avg"].shape, objects.model.fc.bias.shape)
end)

t.test("TheLastAreKeptAndWhatKilledRunsLeftGoes", function()
  local root = new_folder()
  core.make_folder(root .. "/step-00000002.lockstep-part")
  core.make_folder(root .. "/step-00000009.lockstep-part")
  run:state({ best = {} }, { keep = 2 })
  for _, step in ipairs { 1, 2, 3 } do run:save { step = step } end

  t.equal(files.list(root), { "step-00000002", "step-00000003" })
end)

t.test("AStateReplacesAnotherOfTheSameStep", function()
  new_folder()
  local best = { loss = 1 }
  run:state { best = best }
  run:save { step = 1 }
  best.loss = 2
  run:save { step = 1 }
  best.loss = 3

  run:resume()

  t.equal(best.loss, 2)
  t.equal(files.list(run.dir .. "/state"), { "step-00000001" })
end)

t.test("AtAnyMomentOfDeathAWholeStateIsFound", function()
  local root = new_folder()
  local best = { loss = 1 }
  run:state { best = best }
  run:save { step = 1 }
  local one = root .. "/step-00000001"

  -- Between the marker and the rename; between the two renames where a state is replaced.
  files.rename(one, one .. ".lockstep-part")
  t.equal(run:resume(), 1)
  files.rename(one, one .. ".lockstep-old")
  core.make_folder(root .. "/step-00000001.lockstep-part")
  t.equal(run:resume(), 1)
  t.equal(files.list(root), { "step-00000001", "step-00000001.lockstep-part" })
  -- Before the marker: no state, and no complaint.
  files.remove(one .. "/complete.json")
  files.remove(root .. "/step-00000001.lockstep-part")
  files.rename(one, root .. "/step-00000003.lockstep-part")
  local step, heard = listening(run.resume, run)
  t.equal({ step, heard }, { nil, "" })
end)

t.test("AnotherRunsStateIsWhereThisOneBegins", function()
  new_folder()
  local objects = save_at { 5 }
  local expected, from = objects.model:state_dict(), run.dir
  new_folder()
  local others = new_objects()
  run:state(others)

  t.equal(run:resume { from = from }, 5)
  t.equal(others.model:state_dict(), expected)
  t.equal(run:resume { from = from .. "/state" }, 5)
  t.equal(run:resume { from = from .. "/state/step-00000005" }, 5)
  t.raises("run:resume: there is no state in " .. from .. "/nowhere", run.resume, run, { from = from .. "/nowhere" })
  run:save { step = 8 }
  t.equal(run:resume { from = from }, 8)
end)

t.test("MetricsOfStepsThatWereLostAreLeftOut", function()
  new_folder()
  local restart = '{"event":"restart","restarts":1,"exit_code":137,"step":2,"cause":"killed"}\n' -- it has happened
  write_file(run.dir .. "/metrics.jsonl",
    '{"loss":3,"step":0}\n{"loss":2,"step":1}\n{"loss":1,"step":2}\n' .. restart .. '{"lo')
  run:state { best = {} }
  run:save { step = 2 }

  run:resume()

  t.equal(read_file(run.dir .. "/metrics.jsonl"), '{"loss":3,"step":0}\n{"loss":2,"step":1}\n' .. restart)
end)

-- Mismatches ------------------------------------------------------------------------------------------

t.test("AStateOfAnotherModelIsAnErrorThatNamesTheTensorAndChangesNothing", function()
  new_folder()
  save_at { 1 }
  local others = new_objects(6)
  local before = others.model:state_dict()
  for name, tensor in pairs(before) do before[name] = tensor:clone() end
  run:state(others)

  local message = t.raises('"fc.weight" is torch.float32 {5, 4} in it, and torch.float32 {5, 6} in the script now',
    run.resume, run)

  t.truthy(message:find("config.json", 1, true), message)
  t.equal(others.model:state_dict(), before)
end)

t.test("AModelThatLacksATensorOfTheStateIsAnError", function()
  new_folder()
  local two = nn.Sequential { nn.Linear(2, 2), nn.Linear(2, 2) }
  run:state { model = two }
  run:save { step = 1 }
  run:state { model = nn.Sequential { nn.Linear(2, 2) } }

  t.raises('it has a tensor "1.', run.resume, run)
end)

t.test("AnEarlierStepIsNotSavedBesideALaterState", function()
  new_folder()
  save_at { 10 }

  t.raises("step-00000010 is of a later step than 2: it would be kept and resumed from", run.save, run, { step = 2 })
end)

t.test("MissingAndLeftOutObjectsAreNamed", function()
  new_folder()
  local objects = save_at { 1 }
  objects.more = { 1 }
  run:state(objects)
  t.raises('it has no "more", which the script has now', run.resume, run)
  t.equal(run:resume { without = { "more" } }, 1)
  t.raises('without names "mode", which is not registered', run.resume, run, { without = { "mode" } })
  objects.more = nil
  objects.optimizer = optim.AdamW(objects.model:parameters())
  t.raises('"optimizer" has 2 groups of 1, 2 parameters in it, and 1 groups of 3 parameters in the script now',
    run.resume, run)
  objects.data = sharding.dataset { size = 51 }
  t.raises("the state is of a dataset of 50 samples, this one has 51", run.resume, run, { without = { "optimizer" } })
end)

t.test("DifferentOptionsOfADatasetAreReported", function()
  new_folder()
  run:state { data = sharding.dataset { size = 50, seed = 3, drop_last = true } }
  run:save { step = 1 }
  local data_now = sharding.dataset { size = 50, seed = 4 }
  run:state { data = data_now }

  local _, heard = listening(run.resume, run)

  t.equal(heard, "lockstep: run:resume: data.drop_last is true, as saved, not false\n"
    .. "lockstep: run:resume: data.seed is 3, as saved, not 4\n")
  t.equal(data_now:state().seed, 3)
end)

t.test("AConfigurationThatIsAnotherIsSaid", function()
  new_folder()
  local printed, stdout = {}, io.stdout
  run.progress.config = run.merge({ batch = 4, lr = 0.5, betas = { 0.5, 0.9 }, text = { hidden = 8 } }, {})
  run:state { best = {} }
  run:save { step = 1 }
  run.progress.config = run.merge({ batch = 8, lr = 0.5, betas = { 0.5, 0.7 }, text = { hidden = 8, deep = true } }, {})

  io.stdout = { write = function(_, ...) printed[#printed + 1] = table.concat { ... } end, -- luacheck: ignore 122
    flush = function() end }
  local ok, message = pcall(run.resume, run)
  io.stdout = stdout -- luacheck: ignore 122
  run.progress.config = nil

  t.truthy(ok, message)
  t.equal(printed, { "resumed from " .. run.dir .. "/state/step-00000001, after 1 steps; the configuration differs: "
    .. "batch 8 (was 4), betas [0.5,0.7] (was [0.5,0.9]), text.deep true (was not set)\n" })
end)

t.test("ALateErrorLeavesAllObjectsUnchanged", function()
  new_folder()
  local refuses = false
  local average = { value = torch.ones({ 2 }) }
  setmetatable(average, { __index = {
    state_dict = function(self) return { value = self.value } end,
    load_state_dict = function(self, state)
      if refuses and state.value[0]:item() == 1 then error("no such average") end
      self.value = state.value
    end,
  } })
  local function register()
    local objects = new_objects()
    objects.zz_average = average -- after the others
    run:state(objects)
    return objects
  end
  register()
  run:save { step = 1 }
  local objects = register()
  train(objects, 2)
  average.value, refuses = torch.full({ 2 }, 2), true
  torch.manual_seed(7)
  local function all() return { state_of(objects), average.value, torch.get_rng_state() } end
  local before = core_state.decode(core_state.encode({ objects.data:state(), objects.best }, "x"), {}, "x")
  local tensors = {}
  for name, tensor in pairs(objects.model:state_dict()) do tensors[name] = tensor:clone() end
  local random = all()[3]

  t.raises("no such average", run.resume, run)

  t.equal({ objects.data:state(), objects.best }, before)
  t.equal(objects.model:state_dict(), tensors)
  t.equal({ average.value, all()[3] }, { torch.full({ 2 }, 2), random })
  -- A dataset of another size, too.
  refuses, objects.data = false, sharding.dataset { size = 51 }
  run:state(objects)
  t.raises("the state is of a dataset of 50 samples, this one has 51", run.resume, run)
  t.equal(objects.model:state_dict(), tensors)
end)

t.test("MistakesOfAScriptAreNamed", function()
  new_folder()
  t.raises("run:state: the objects come in a table by name", run.state, run)
  t.raises("run:state: the objects come in a table by name", run.state, run, nn.Linear(2, 2))
  t.raises('run:state: "step" is a number; it can be a module', run.state, run, { step = 3 })
  t.raises('run:state: "w" is a tensor; it can be', run.state, run, { w = torch.ones({ 1 }) })
  t.raises('run:state: "a.b" is not a valid name', run.state, run, { ["a.b"] = {} })
  t.raises('unknown option "keeps"; did you mean "keep"?', run.state, run, { a = {} }, { keeps = 3 })
  t.raises("keep must be a whole number of at least 1, not 0", run.state, run, { a = {} }, { keep = 0 })
  run:state { a = {} }
  for _, step in ipairs { 1e300, 0 / 0, -1, 1.5, math.huge } do
    t.raises("run:save: step must be a whole number of steps that are done, from 0 to 2^53, not " .. tostring(step),
      run.save, run, { step = step })
  end
  t.raises("from 0 to 2^53, not a string", run.save, run, { step = "3" })
  t.equal(files.list(run.dir .. "/state"), {})
  run:state { a = { f = print } }
  t.raises('run:save: "a": value.f is a function; only nil, booleans', run.save, run, { step = 1 })
  run:state { a = Net(2), b = { Net = 1 } }
  t.raises("run:save is called with a colon", run.save)
  run:state { model = Net(2), fc = nn.Linear(2, 2) }
  t.raises('run:save: two objects have a tensor "fc.bias"; register one', run.save, run, { step = 1 })
  t.raises("reads one batch ahead", run.steps, run, sharding.lockstep(function() end))
end)
