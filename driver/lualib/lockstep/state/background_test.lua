-- Saves that go on while the ranks train: run:state(objects, { every = n, async = true }). On one rank and on several.

local background = require "lockstep.state.background"
local core = require "lockstep.core"
local core_state = require "lockstep.core.state"
local dist = require "lockstep.distributed"
local files = require "lockstep.core.files"
local fixture = require "state_fixture"
local lockstep = require "lockstep"
local log = require "lockstep.log"
local nn = require "lockstep.nn"
local optim = require "lockstep.optim"
local run = require "lockstep.run"
local saving = require "lockstep.state.saving"
local sharding = require "lockstep.sharding"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local new_folder, read_file = fixture.new_folder, t.read_file
local rank, world = dist.rank(), dist.world_size()
local start = files.start

--- Calls fn while this rank's threads begin their work only when somebody waits for it, as on the slowest disk.
local function on_a_slow_disk(fn)
  files.start = function(steps) -- luacheck: ignore 122
    return { is_done = function() return false end, wait = function() return start(steps):wait() end }
  end
  local ok, message = pcall(fn)
  files.start = start -- luacheck: ignore 122
  if not ok then error(message, 0) end
end

local function forever() return true end

--- A model of some kind, an optimizer under two names, values of each rank, and a step of training.
local function new_objects(kind)
  torch.manual_seed(7)
  math.randomseed(7)
  local net = nn.Sequential { nn.Linear(6, 9), nn.Linear(9, 3) }
  local model = kind == "plain" and net or sharding[kind](net)
  local optimizer = optim.AdamW(model:parameters(), { lr = 0.1 })
  local objects = { model = model, optimizer = optimizer, again = optimizer,
    own = { rank = rank, drawn = torch.full({ 2 }, rank) }, seen = { bits = torch.tensor { true, false }, steps = 0 } }
  return objects, function()
    model(torch.randn({ 4, 6 })):square():mean():backward()
    objects.optimizer:step(math.random())
    objects.optimizer:zero_grad()
    objects.own.drawn:add_(1)
    objects.seen.steps = objects.seen.steps + 1
  end
end

--- Trains in a loop and returns the content of all files of all states by their paths.
local function files_of_a_run(kind, opts, steps)
  local root, found = new_folder(), {}
  local objects, train = new_objects(kind)
  run.progress.resumed = nil
  run:state(objects, opts)
  for _ in run:steps(forever, steps) do train() end
  dist.barrier()
  for _, state in ipairs(files.list(root)) do
    for _, name in ipairs(files.list(root .. "/" .. state)) do
      found[state .. "/" .. name] = read_file(root .. "/" .. state .. "/" .. name)
    end
  end
  return found
end

t.test("TheFilesAreThoseOfSavesThatTheRanksWaitFor", function()
  for _, kind in ipairs { "plain", "data_parallel", "fully_shard" } do
    if kind == "plain" == (world == 1) then
      for _, every in ipairs { 1, 3 } do
        local what = ("%s, every %d"):format(kind, every)
        local expected = files_of_a_run(kind, { every = every, keep = 100 }, 7)
        t.equal(#files.list(run.dir .. "/state"), every == 1 and 7 or 3, what)

        t.equal(files_of_a_run(kind, { every = every, keep = 100, async = true }, 7), expected, what)
        on_a_slow_disk(function()
          t.equal(files_of_a_run(kind, { every = every, keep = 100, async = true }, 7), expected, what .. ", slow")
        end)
        files_of_a_run(kind, { every = every, keep = 2, async = true }, 7)
        t.equal(#files.list(run.dir .. "/state"), 2, what .. ", the last two")
      end
    end
  end
end)

--- Saves a tensor that changes before the thread writes it; returns what a resume finds.
local function saved_value(begin)
  local root, seen = new_folder(), { value = torch.tensor { 1, 2 } }
  run:state { seen = seen }
  on_a_slow_disk(function()
    begin({ seen = seen }, 1, { root = root, keep = 1, left_out = {} })
    seen.value:fill_(-1)
    background.finish()
  end)
  run:resume()
  return seen.value
end

t.test("WithoutACopyTheNextStepWouldBeInTheState", function()
  t.equal(saved_value(function(objects, step, opts)
    opts.copies = {
      may_wait = function() return false end,
      keep = function(_, _, tensor) return tensor end,
      start = function() return core_state.background_copies {} end,
    }
    local save = saving.begin(objects, step, opts)
    objects.seen.value:fill_(-1)
    saving.finish(save)
  end), torch.tensor { -1, -1 })

  t.equal(saved_value(background.begin), torch.tensor { 1, 2 })
end)

--- Saves a module and at once calls what `prepare(weight, optimizer)` returned, which changes the weight. Returns what
--- a resume finds, and the weight that was saved.
local function saved_weight(prepare)
  local root, net = new_folder(), nn.Linear(4096, 2048, { bias = false })
  torch.no_grad(function() net.weight:copy_(torch.arange(0, 4096, 1, { dtype = torch.float32 })) end)
  local objects = { model = net, optimizer = optim.SGD(net:parameters(), { lr = 1, momentum = 0.5 }) }
  net(torch.ones({ 1, 4096 })):sum():backward()
  objects.optimizer:step()
  run:state(objects)
  local change = prepare(net.weight:detach(), objects.optimizer)
  local before, momentum = net.weight:detach():clone(), objects.optimizer:state_dict().states[1].momentum_buffer:clone()
  background.begin(objects, 1, { root = root, keep = 1, left_out = {} })
  change()
  t.truthy(not net.weight:equal(before), "changed")
  background.finish()
  run:resume()
  t.truthy(objects.optimizer:state_dict().states[1].momentum_buffer:equal(momentum), "momentum")
  return net.weight:detach(), before
end

t.test("WhatWritesToAWeightWaitsUntilItIsCopied", function()
  local changes = {
    function(_, optimizer) return function() optimizer:step() end end,
    function(weight) return function() weight:view(-1)[{ { 1, -1 } }] = 7 end end,
    function(weight) return function() weight:t():zero_() end end,
    function(weight)
      local add = lockstep.graph(function(x) weight:add_(x) return x * 2 end)
      local x = torch.ones({ 1 })
      for _ = 1, 8 do add(x) end
      t.equal(add.hits > 0, world == 1) -- it records on one rank alone
      return function() add(x) end
    end,
    world > 1 and function(weight) return function() dist.all_reduce(weight) end end or nil,
  }
  for i, prepare in ipairs(changes) do
    local found, expected = saved_weight(prepare)
    t.truthy(found:equal(expected), i)
  end
end)

t.test("TheNextSaveUsesTheMemoryAgain", function()
  new_folder()
  local objects = { seen = { value = torch.zeros({ 2 ^ 18 }) } }
  local function save(step) background.begin(objects, step, { root = run.dir .. "/state", keep = 1, left_out = {} }) end
  save(1)
  background.finish()
  collectgarbage()
  collectgarbage()
  local before = core.tensor_bytes()
  for step = 2, 4 do
    save(step)
    background.finish()
  end
  collectgarbage()
  collectgarbage()
  t.equal(core.tensor_bytes(), before)
end)

t.test("WhatAnOptimizerMakesForAStateIsFreedBeforeItIsWritten", function()
  local root, net = new_folder(), nn.Linear(512, 512, { bias = false })
  torch.no_grad(function() net.weight:fill_(1) end)
  local objects = { model = net, optimizer = optim.AdamW8bit(net:parameters()) } -- makes moments of float32
  local function bytes()
    collectgarbage()
    collectgarbage()
    return core.tensor_bytes()
  end
  on_a_slow_disk(function()
    background.begin(objects, 1, { root = root, keep = 1, left_out = {} })
    local meanwhile = bytes()
    background.finish()
    t.truthy(meanwhile - bytes() < 2 ^ 20, "two moments have 2 MiB")
  end)
end)

t.test("ASecondSaveWaitsForTheFirstAndTheStepLineSaysHowLong", function()
  new_folder()
  run.progress.resumed = nil
  run:state({ seen = {} }, { every = 2, async = true })
  on_a_slow_disk(function()
    for step in run:steps(forever, 5) do
      if step == 4 then run.progress.saving_seconds = run.progress.saving_seconds + 3 end -- as if it had been slow
      log.step { loss = step }
    end
  end)
  if rank > 0 then return end
  local waited = {}
  for line in io.lines(run.dir .. "/metrics.jsonl") do
    local record = core.json_decode(line)
    waited[#waited + 1] = record.saving_s and record.step or nil
    if record.step == 4 then t.truthy(record.saving_s >= 3 and record.saving_s < 60, line) end
  end
  t.equal(waited, { 4 }) -- the save after 4 steps, for the one after 2
end)

-- Faults ----------------------------------------------------------------------------------------------

--- Runs a loop whose save after 2 steps fails on the disk, by break_it(root) before the thread works; returns the
--- error, and the steps that ran. `at`: the call that is to wait for the save.
local function fail(break_it, at)
  local root, done = new_folder(), 0
  run.progress.resumed = nil
  run:state({ seen = { 1 } }, { every = 2, async = true })
  local message
  on_a_slow_disk(function()
    message = t.raises("run:save: the state after 2 steps was not saved: rank ", function()
      for step in run:steps(forever, 9) do
        done = step + 1
        if step == 2 then
          if rank == world - 1 then break_it(root) end
          dist.barrier()
          if at then at() end
        end
      end
    end)
  end)
  return message, done, root
end

local function remove_the_folder(root) fixture.remove_folder(root .. "/step-00000002.lockstep-part") end

--- A folder where rank's file should be.
local function stand_in_the_way(root)
  core.make_folder(root .. ("/step-00000002.lockstep-part/state-%05d-of-%05d.safetensors/x"):format(world, world))
end

if world > 1 then
  t.test("AWriteThatFailsOnOneRankIsAnErrorOnAllAtTheNextSave", function()
    for _, break_it in ipairs { remove_the_folder, stand_in_the_way } do
      local message, done = fail(break_it)
      t.equal(done, 4, message) -- the next save is after 4 steps
    end
  end)

  t.test("EveryCallThatReadsOrWritesAStateWaitsForTheOneUnderWay", function()
    local calls = { function() run:save { step = 3 } end, function() run:keep_best("loss", 1) end, background.finish,
      function() run:state { seen = {} } end }
    for _, call in ipairs(calls) do
      local message, done = fail(stand_in_the_way, call)
      t.equal(done, 3, message)
      t.equal(background.is_under_way(), false)
    end
  end)
end

t.test("AfterAFailureTheNextSaveIsWholeAndRemovesWhatIsLeft", function()
  if world == 1 then return end
  local _, _, root = fail(stand_in_the_way)
  dist.barrier()
  if rank == 0 then fixture.remove_folder(root .. "/step-00000002.lockstep-part") end
  dist.barrier()
  run:save { step = 4 }
  t.equal(files.list(root), { "step-00000004" })
end)

t.test("ASaveThatIsUnderWayAtABreakIsWholeWhenSomebodyAsks", function()
  new_folder()
  local seen = { steps = 0 }
  run.progress.resumed = nil
  run:state({ seen = seen }, { every = 2, async = true })
  on_a_slow_disk(function()
    for step in run:steps(forever, 9) do
      seen.steps = step + 1
      if step == 2 then break end
    end
    t.equal({ background.is_under_way(), seen.steps }, { true, 3 })
    t.equal(run:resume(), 2)
  end)
  t.equal({ background.is_under_way(), seen.steps }, { false, 2 })
end)

t.test("ALoopThatEndsRightAfterASaveWaitsForIt", function()
  local root, left = new_folder(), 4
  run.progress.resumed = nil
  run:state({ seen = {} }, { every = 2, async = true })
  on_a_slow_disk(function()
    for _ in run:steps(function()
      left = left - 1
      return left >= 0 or nil
    end) do dist.barrier() end
  end)
  t.equal({ background.is_under_way(), files.list(root) }, { false, { "step-00000002", "step-00000004" } })
end)

t.test("ADriftOfReplicasAndAValueThatCannotBeSavedAreErrorsAtTheSave", function()
  if world == 1 then return end
  local function save_once(objects, message, left)
    local root = new_folder()
    run.progress.resumed = nil
    run:state(objects, { every = 1, async = true })
    t.raises(message, function() for _ in run:steps(forever, 3) do dist.barrier() end end)
    t.equal({ background.is_under_way(), files.list(root) }, { false, left })
  end
  local net = nn.Linear(2, 2)
  torch.no_grad(function() net.bias:fill_(rank) net.weight:fill_(1) end)
  save_once({ model = net },
    'run:save: the state after 1 steps was not saved: "bias" holds other values on rank 1 than on rank 0',
    { "step-00000001.lockstep-part" }) -- the thread wrote its files meanwhile
  save_once({ own = { value = rank == 1 and print or 1 } }, 'run:save: rank 1: "own": value.value is a function', {})
end)

t.test("AsyncIsRefusedWhereItWouldDoNothing", function()
  t.raises("run:state: async is for the saves of every = n, which is not given; run:save waits for its files",
    run.state, run, { seen = {} }, { async = true })
  t.raises("run:state: async must be a boolean, not 1", run.state, run, { seen = {} }, { every = 1, async = 1 })
end)
