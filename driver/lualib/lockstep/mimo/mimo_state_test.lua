-- mimo.state: the modules of a rank and their optimizer, saved and loaded.

local mimo = require "lockstep.mimo"
local nn = require "lockstep.nn"
local optim = require "lockstep.optim"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

--- Modules, their optimizer, and a step of training.
local function make(seed)
  torch.manual_seed(seed)
  local modules = { vision = nn.Linear(3, 4), language = nn.Linear(4, 2) }
  local parameters = {}
  for _, name in ipairs { "language", "vision" } do
    for _, p in ipairs(modules[name]:parameters()) do parameters[#parameters + 1] = p end
  end
  local optimizer = optim.AdamW(parameters, { lr = 0.1 })
  local function step()
    modules.language(modules.vision(torch.ones { 2, 3 })):square():sum():backward()
    optimizer:step()
    optimizer:zero_grad()
    return modules.language.weight:detach():clone()
  end
  return mimo.state { modules = modules, optimizer = optimizer }, step, modules
end

t.test("AStateHasAllModulesAndTheOptimizer", function()
  local first, step = make(1)
  step()
  local second, other_step = make(2)
  second:load_state_dict(first:state_dict())

  for _ = 1, 3 do t.equal(other_step(), step()) end
end)

t.test("MistakesAreErrors", function()
  local state, _, modules = make(1)
  local saved = state:state_dict()
  saved.vision = nil
  t.raises('mimo.state: the state has no module "vision"; each rank must have the modules that it had',
    state.load_state_dict, state, saved)
  t.raises('mimo.state: a module cannot have the name "optimizer"', mimo.state,
    { modules = { optimizer = modules.vision }, optimizer = {} })
  t.raises('mimo.state: the option "optimizer" is missing', mimo.state, { modules = modules })
end)
