-- optim.groups: what decays.

local nn = require "lockstep.nn"
local optim = require "lockstep.optim"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

t.test("MatricesDecayAndVectorsDoNot", function()
  local net = nn.Sequential { nn.Embedding(5, 4), nn.Conv1d(4, 4, 3), nn.LayerNorm(4), nn.Linear(4, 2) }

  local groups = optim.groups(net, { weight_decay = 0.3 })

  t.equal({ groups[1].weight_decay, groups[2].weight_decay }, { 0.3, 0 })
  t.equal({ #groups[1].params, #groups[2].params }, { 3, 4 })
  for _, p in ipairs(groups[1].params) do t.truthy(p:dim() >= 2) end
  for _, p in ipairs(groups[2].params) do t.equal(p:dim(), 1) end
  t.equal(optim.groups(net)[1].weight_decay, 0.1)
end)

t.test("ADecayingMatrixShrinksWhereAVectorStays", function()
  local net = nn.Linear(2, 2)
  local before = { net.weight:detach():clone(), net.bias:detach():clone() }
  local optimizer = optim.AdamW(optim.groups(net, { weight_decay = 0.5 }), { lr = 0.1 })
  for _, p in ipairs(net:parameters()) do p.grad = torch.zeros_like(p) end

  optimizer:step()

  t.near(net.weight:detach(), before[1] * 0.95, 1e-7)
  t.equal(net.bias:detach(), before[2])
end)

t.test("FrozenParametersAreInNoGroupAndAnOptimizerTakesAnEmptyOne", function()
  local net = nn.Sequential { nn.Linear(3, 3), nn.Linear(3, 3, { bias = false }) }
  net[1]:requires_grad_(false)

  local groups = optim.groups(net)

  t.equal({ #groups[1].params, #groups[2].params }, { 1, 0 })
  net[2].weight.grad = torch.ones({ 3, 3 })
  for _, make in ipairs { optim.AdamW, optim.SGD, optim.Muon } do make(optim.groups(net)):step() end
end)

t.test("ShardsDecayAsTheParametersThatTheyAreOf", function()
  local net = nn.Sequential { nn.Linear(3, 3), nn.LayerNorm(3) }
  local Shards = {}
  Shards.__index = Shards
  function Shards.named_modules() return net:named_modules() end
  function Shards.named_parameters()
    local next_parameter = net:named_parameters()
    return function()
      local name, p = next_parameter()
      return name, p and p:detach():view(-1):requires_grad_(true)
    end
  end

  local groups = optim.groups(setmetatable({}, Shards))

  t.equal({ #groups[1].params, #groups[2].params }, { 1, 3 })
  t.equal(groups[1].params[1].shape, { 9 })
end)

t.test("AFrozenParameterHasNoState", function()
  local net = nn.Linear(2, 2)
  net.weight:requires_grad_(false)
  local optimizer = optim.AdamW(net:parameters())
  net.bias.grad = torch.ones({ 2 })
  optimizer:step()

  t.equal(next(optimizer:state_dict().states[1]), nil)
  optimizer:load_state_dict(optimizer:state_dict())
  t.equal(optimizer:state_dict().states[2].step:item(), 1)
end)

t.test("GroupsRefuseWhatIsNoModelAndNothingToTrain", function()
  t.raises("optim.groups: expected a module, not a number", optim.groups, 3)
  t.raises("optim.groups: expected a module, not a table", optim.groups, { torch.ones({ 2 }) })
  t.raises("weight_decay must be a number of at least 0, not -1", optim.groups, nn.Linear(1, 1), { weight_decay = -1 })
  t.raises("no parameter of the model requires a gradient", optim.groups, nn.Linear(1, 1):requires_grad_(false))
end)
