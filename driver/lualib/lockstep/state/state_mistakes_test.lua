-- Mistakes that a state would keep quiet about, and lose something by: each is one error, before anything is lost.

local files = require "lockstep.core.files"
local fixture = require "state_fixture"
local folder = require "lockstep.state.folder"
local nn = require "lockstep.nn"
local optim = require "lockstep.optim"
local run = require "lockstep.run"
local sharding = require "lockstep.sharding"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local new_folder = fixture.new_folder

local function forever() return true end

-- Registered objects ----------------------------------------------------------------------------------

t.test("AModuleWithinAPlainTableIsRefusedByItsPath", function()
  new_folder()
  local generator = nn.Linear(2, 2)
  local adam = optim.AdamW(generator:parameters())
  for what, nets in pairs {
    ['"nets": value.gen is a module, which'] = { gen = generator },
    ['"nets": value.deep[2] is a module, which'] = { deep = { 1, sharding.data_parallel(nn.Linear(2, 2)) } },
    ['"nets": value[1] is an optimizer, which'] = { adam },
    ['"nets": value.data is an object with a state, which'] = { data = sharding.dataset { size = 4 } },
    ['"nets": value.meter is a table with a metatable, which'] = { meter = setmetatable({}, { __index = {} }) },
  } do
    t.raises("run:state: " .. what, run.state, run, { nets = nets })
    local later = {}
    run:state { nets = later }
    for key, value in pairs(nets) do later[key] = value end
    t.raises("run:save: " .. what, run.save, run, { step = 1 })
  end
  t.raises("register it by its own name, as in run:state { gen = ... }", run.state, run, { n = { gen = generator } })

  local meters = { state_dict = function() return { gen = generator } end, load_state_dict = function() end }
  run:state { meters = meters }
  t.raises('run:save: "meters": value.gen is a module', run.save, run, { step = 1 })
  local knot = { plain = { 1 } }
  knot.knot, knot.again = knot, knot
  run:state { knot = knot }
  t.raises("nested more than 64 deep, or contain themselves", run.save, run, { step = 1 })
  t.equal(files.list(run.dir .. "/state"), {})
end)

-- Loops -----------------------------------------------------------------------------------------------

t.test("ASecondLoopWhoseStepsAreSavedAlreadyIsRefused", function()
  for _, steps in ipairs { 4, 8 } do
    new_folder()
    run.progress.resumed = nil
    local info = { phase = 1 }
    run:state({ info = info }, { every = 4 })
    for _ in run:steps(forever, 4) do info.phase = 1 end
    t.raises("this loop counts its steps from 0, and a loop before it has saved the state after 4", function()
      for _ in run:steps(forever, steps) do info.phase = 2 end
    end)
    t.equal(#folder.list(run.dir .. "/state"), 1)

    t.equal(run:resume(), 4)
    t.equal(info.phase, 1)
    local seen = {}
    for step in run:steps(forever, 6) do seen[#seen + 1] = step end
    t.equal(seen, { 4, 5 })
  end
end)

t.test("ALoopAfterTheTrainingsIsNoMistakeWhereNothingIsSavedByItself", function()
  new_folder()
  run.progress.resumed = nil
  run:state { best = {} }
  for phase = 1, 2 do
    for _ in run:steps(forever, 3) do phase = phase + 0 end
    run:save { step = 3 * phase }
  end
  t.equal(run:resume(), 6)
  run.progress.resumed = nil
  local steps = 0
  for _ in run:steps(forever, 3) do steps = steps + 1 end
  t.equal(steps, 3)
end)

t.test("ResumeWithinALoopIsRefusedAndAfterABreakItIsNot", function()
  new_folder()
  run.progress.resumed = nil
  local info = { trained = 0 }
  run:state({ info = info }, { every = 2 })
  for step in run:steps(forever, 8) do
    info.trained = info.trained + 1
    if step == 4 then
      t.raises("run:resume: within a loop of run:steps, which would go on at its own step", run.resume, run)
      break
    end
  end
  t.equal(info.trained, 5)

  t.equal(run:resume(), 4)
  for _ in run:steps(forever, 8) do info.trained = info.trained + 1 end

  t.equal(info.trained, 8)
end)

t.test("AfterALoopSaveWantsToBeToldTheStepHoweverItWasLeft", function()
  new_folder()
  run.progress.resumed = nil
  run:state { best = {} }
  local outside = "run:save: outside of a loop of run:steps say how many steps are done"
  for step in run:steps(forever, 10) do
    if step == 3 then break end
  end
  t.raises(outside, run.save, run)
  pcall(function()
    for _ in run:steps(forever, 10) do error("lost") end
  end)
  t.raises(outside, run.save, run)
  for _ in run:steps(forever, 2) do
    torch.no_grad(function() run:save() end)
    coroutine.wrap(function() run:save() end)() -- the same step: the loop is seen from there, too
  end
  t.raises(outside, run.save, run)
  local function saving_loader()
    t.raises(outside, run.save, run)
    return nil
  end
  for _ in run:steps(saving_loader) do error("there is no step") end
  t.equal(#folder.list(run.dir .. "/state"), 2)
end)

-- Resumed objects -------------------------------------------------------------------------------------

t.test("AnUnregisteredObjectOfTheStateIsNamedUnlessLeftOut", function()
  new_folder()
  local model = nn.Linear(2, 2)
  run:state { model = model, critic = nn.Linear(2, 2), optimizer = optim.AdamW(model:parameters()), best = { 1 },
    data = sharding.dataset { size = 4 } }
  run:save { step = 3 }
  run:state { model = model, best = { 2 } }

  local message = t.raises('does not fit: it has "critic", "data", "optimizer", which the script does not register now',
    run.resume, run)
  t.truthy(message:find('run:resume { without = { "critic", "data", "optimizer" } }', 1, true), message)
  t.raises('it has "data", which', run.resume, run, { without = { "optimizer", "critic" } })
  t.raises('without names "date", which is not registered, and not in it', run.resume, run, { without = { "date" } })
  -- The same command goes on from the states that have none of it, too.
  for step = 4, 6 do
    t.equal(run:resume { without = { "critic", "optimizer", "data" } }, step - 1)
    run:save { step = step }
    run:state { model = model, best = { 2 } }
  end
  t.equal(run:resume(), 6)

  new_folder()
  run:state { model = model }
  t.raises('without names "critic", which is not registered, and there is no state', run.resume, run,
    { without = { "critic" } })
end)

t.test("AFailedResumeIsUndoneEvenIfAnObjectRefusesThat", function()
  new_folder()
  local function stateful(name, value)
    local object = { value = value }
    function object.state_dict() return { value = object.value } end
    function object.load_state_dict(_, state)
      if object.refuses then error(name .. " refuses") end
      object.value = state.value
    end
    return object
  end
  local a, b, best = stateful("a", 42), stateful("b", 1), { loss = 1 }
  run:state { a = a, b = b, best = best }
  run:save { step = 3 }
  a.value, b.refuses, best.loss = 7, true, 2

  local message = t.raises("run:resume: " .. run.dir .. "/state/step-00000003: b refuses", run.resume, run)

  t.truthy(message:find('; "b" on rank 0 could not be restored: b refuses', 1, true), message)
  t.equal({ a.value, b.value, best.loss }, { 7, 1, 2 })
end)

t.test("AnExpandedTensorIsRefusedBeforeAnythingIsSavedOrRestored", function()
  new_folder()
  local function new_model(buffer)
    local model = nn.Linear(2, 2)
    model.buffer = buffer
    return model
  end
  local expanded = torch.zeros({ 1 }):expand({ 3 })
  run:state { model = new_model(expanded) }
  t.raises('run:save: "buffer" is expanded: several of its elements are one number', run.save, run, { step = 1 })
  t.equal(files.list(run.dir .. "/state"), {})

  run:state { model = new_model(expanded:clone()) }
  run:save { step = 1 }
  t.equal(run:resume(), 1)
  local model, best = new_model(expanded), { 2 }
  local before = model.weight:detach():clone()
  run:state { model = model, best = best }
  t.raises('does not fit: "buffer" is expanded', run.resume, run)
  t.equal(model.weight:detach(), before)
  -- In a plain table it is kept: its tensors are not copied into.
  local plain = { mean = torch.ones({ 1 }):expand({ 2 }), single = torch.ones({ 1 }):expand({ 1 }) }
  run:state { plain = plain }
  run:save { step = 2 }
  plain.mean = nil
  run:resume()
  t.equal(plain.mean, torch.ones({ 2 }))
end)
