-- Mistakes of one rank that a state would keep quiet about.

local core = require "lockstep.core"
local dist = require "lockstep.distributed"
local files = require "lockstep.core.files"
local run = require "lockstep.run"
local t = require "lockstep.testing"

t.test("AConfigurationOfOneRankOnlyIsAnErrorAndNoState", function()
  local root = run.dir .. "/state"
  for lacks = 0, 1 do
    run.progress.config = nil
    if dist.rank() ~= lacks then run.progress.config = run.merge({ batch = 4 }, {}) end
    run:state { best = {} }
    t.raises(('run:save: rank %d has no "run.config", which rank %d has; call run.config on every rank'):format(lacks,
      1 - lacks), run.save, run, { step = 1 })
    t.equal(files.list(root), {})
  end

  run.progress.config = run.merge({ batch = 4 + dist.rank() }, {})
  run:save { step = 1 }
  t.equal(run:resume(), 1)
end)

t.test("AnObjectThatCannotBeRestoredIsNamedAndTheOthersAreRestored", function()
  run.dir = run.dir .. "/taken_back"
  core.make_folder(run.dir)
  dist.barrier()
  local object = { value = 1 }
  function object.state_dict() return { value = object.value } end
  function object.load_state_dict(_, state)
    if object.refuses then error("it refuses") end
    object.value = state.value
  end
  run:state { object = object }
  run:save { step = 1 }
  object.value, object.refuses = 2, dist.rank() == 1

  local message = t.raises("step-00000001: rank 1: it refuses", run.resume, run)

  t.equal(object.value, 2)
  t.truthy(message:find('; "object" on rank 1 could not be restored: it refuses', 1, true), message)
  t.truthy(not message:find("on rank 0 could not be restored", 1, true), message)
end)
