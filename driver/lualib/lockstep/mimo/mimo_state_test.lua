-- mimo.state: a run goes on on other ranks of each module, with the same bits. On 1 and on 4 ranks.

local core = require "lockstep.core"
local dist = require "lockstep.distributed"
local fixture = require "mimo_fixture"
local mimo = require "lockstep.mimo"
local nn = require "lockstep.nn"
local optim = require "lockstep.optim"
local run = require "lockstep.run"
local sharding = require "lockstep.sharding"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local WORLD = dist.world_size()
local BASE = dist.all_gather_object(run.dir)[1]
torch.set_default_dtype(torch.float64)

--- Each grid, and which of its modules are sharded.
local GRIDS = WORLD == 1 and { { name = "one", topology = function() return fixture.together(1, 1) end } } or {
  { name = "1 + 3", topology = function() return fixture.apart(1, 3) end },
  { name = "3 + 1", topology = function() return fixture.apart(3, 1) end, shards = { vision = true } },
  { name = "2 + 2", topology = function() return fixture.apart(2, 2) end, shards = { vision = true, language = true } },
  { name = "4 on the ranks of 4", topology = function() return fixture.together(4, 4) end },
}

--- Makes this rank's modules, with other values for each seed.
local function make(grid, seed)
  local topology = grid.topology()
  local whole, modules, all = fixture.modules(), {}, {}
  torch.manual_seed(seed)
  for _, name in ipairs { "vision", "language" } do
    for _, p in ipairs(whole[name]:parameters()) do
      torch.no_grad(function() p:copy_(torch.randn(p.shape)) end)
    end
    if topology:peers(name, "dp") then modules[name] = whole[name] end
  end
  for _, name in ipairs { "vision", "language" } do
    local group = modules[name] and topology:group(name, "dp-cp")
    if group and grid.shards and grid.shards[name] then
      modules[name] = sharding.fully_shard(modules[name], { group = group })
    end
    for _, p in ipairs(modules[name] and modules[name]:parameters() or {}) do all[#all + 1] = p end
  end
  return { modules = modules, optimizer = optim.AdamW(all, { lr = 0.01 }), parameters = all,
    state = mimo.state { topology = topology, modules = modules } }
end

--- A step whose gradients are a function of each weight alone, and so the same on every grid.
local function step(made)
  for _, p in ipairs(made.parameters) do p.grad = torch.sin(p:detach() * 3) end
  made.optimizer:step()
  made.optimizer:zero_grad()
end

--- The whole weights of all modules by name, on every rank.
local function weights_of(made)
  local own, all = {}, {}
  for name, module in pairs(made.modules) do
    for key, value in pairs(module:state_dict()) do own[name .. "." .. key] = value:totable() end
  end
  for _, theirs in ipairs(dist.all_gather_object(own)) do
    for name, value in pairs(theirs) do all[name] = all[name] or torch.tensor(value) end
  end
  return all
end

local function compare(actual, expected)
  local count = 0
  for name, value in pairs(expected) do
    t.equal(actual[name], value, name)
    count = count + 1
  end
  t.equal(count, 9)
end

local function new_folder(name)
  run.dir = BASE .. "/" .. name
  core.make_folder(run.dir)
  dist.barrier()
end

for i, from in ipairs(GRIDS) do
  t.test("ARunGoesOnFrom_" .. from.name, function()
    new_folder("from" .. i)
    local first = make(from, 1)
    step(first)
    step(first)
    run:state { model = first.state, optimizer = first.optimizer }
    run:save { step = 2 }
    step(first)
    local expected = weights_of(first)

    for _, to in ipairs(GRIDS) do
      local second = make(to, 2)
      run:state { model = second.state, optimizer = second.optimizer }
      t.equal(run:resume(), 2)
      step(second)
      compare(weights_of(second), expected)
    end
  end)
end

t.test("TheNormIsOverAllModules", function()
  for _, grid in ipairs(GRIDS) do
    local made = make(grid, 3)
    local squares = 0
    for _, value in pairs(weights_of(made)) do squares = squares + torch.sin(value * 3):square():sum():item() end
    for _, p in ipairs(made.parameters) do p.grad = torch.sin(p:detach() * 3) end

    local norm = optim.clip_grad_norm(made.state:parameters(), 1):item()

    t.truthy(math.abs(norm / math.sqrt(squares) - 1) < 1e-12, ("%s: norm %.17g, not %.17g"):format(grid.name, norm,
      math.sqrt(squares)))
  end
end)

t.test("AParameterOfTwoModulesIsSavedOnce", function()
  local topology = fixture.together(WORLD, WORLD)
  local vision = nn.Linear(3, 4)
  local language = nn.Sequential { vision, nn.Linear(4, 2) }
  local names = {}
  for name in mimo.state({ topology = topology, modules = { vision = vision, language = language } })
    :named_parameters() do
    names[#names + 1] = name
  end
  t.equal(table.concat(names, " "), "vision.weight vision.bias language.1.weight language.1.bias")
end)

t.test("MistakesAreErrors", function()
  local grid = GRIDS[1]
  t.raises('mimo.state: the option "topology" is missing', mimo.state, { modules = {} })
  t.raises("mimo.state: topology must come from mimo.topology, not a table", mimo.state,
    { topology = {}, modules = {} })
  t.raises("give it in modules", mimo.state, { topology = grid.topology(), modules = {} })
end)

t.test("TheNormIsTheSameHoweverOftenAStateIsMade", function()
  local topology = WORLD == 1 and fixture.together(1, 1) or fixture.together(4, 4)
  local vision, language = nn.Linear(4, 4, { bias = false }), nn.Linear(4, 4, { bias = false })
  language.weight = vision.weight -- one weight in two modules
  vision.weight.grad = torch.ones_like(vision.weight)

  for _ = 1, 2 do
    local state = mimo.state { topology = topology, modules = { vision = vision, language = language } }

    t.near(optim.clip_grad_norm(state:parameters(), 1e9):item(), 4, 1e-10)
  end
end)
