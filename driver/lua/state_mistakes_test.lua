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

-- What is registered ----------------------------------------------------------------------------------

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
