--- A mixture whose experts lie on several ranks, against one that holds all of them: any numbers of tokens, and none.

local calls = require "calls_fixture"
local dist = require "lockstep.distributed"
local experts = require "lockstep.models.experts"
local expert_parallel = require "lockstep.sharding.expert_parallel"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local RANK, WORLD = dist.rank(), dist.world_size()
local group = dist.group { ranks = (function()
  local ranks = {}
  for r = 1, WORLD do ranks[r] = r - 1 end
  return ranks
end)() }

--- Returns the same mixture on every rank. `favourite`: every token's first choice.
local function mixture(seed, o)
  torch.manual_seed(seed)
  local net = experts.Mixture { hidden = 8, intermediate = 16, experts = o.experts, per_token = o.per_token,
    normalize = true }
  net:to(o.dtype)
  if o.favourite then torch.no_grad(function() net.gate.weight[o.favourite]:fill_(50) end) end
  return net
end

--- Returns every rank's tokens, by rank. They are positive, for the favourite expert.
local function tokens_of(seed, o)
  torch.manual_seed(1000 + seed)
  local all = {}
  for r = 1, WORLD do all[r] = torch.rand({ o.tokens[r], 8 }, { dtype = torch.float64 }):to(o.dtype) end
  return all
end

local function learn(net, x)
  x = x:detach():clone():requires_grad_()
  local y, logits = net(x)
  -- Each element weighs something else, the same where the tokens lie on one rank or on several.
  torch.add((y * y * y:detach():cos()):sum(), logits:sin():sum()):backward()
  return y:detach(), x.grad
end

local function check(seed, o, tolerance)
  local whole, net, tokens = mixture(seed, o), mixture(seed, o), tokens_of(seed, o)
  local y, x_grad = learn(whole, torch.cat(tokens))
  local start = 0
  for r = 1, RANK do start = start + o.tokens[r] end
  expert_parallel.divide(net, group)

  local own_y, own_x_grad = learn(net, tokens[RANK + 1])

  local about = ("seed %d, rank %d"):format(seed, RANK)
  t.near(own_y, y:narrow(0, start, o.tokens[RANK + 1]), tolerance, about)
  t.near(own_x_grad, x_grad:narrow(0, start, o.tokens[RANK + 1]), tolerance, about .. ", x")
  t.near(dist.all_reduce(net.gate.weight.grad:clone()), whole.gate.weight.grad, 4 * tolerance, about .. ", router")
  local count = o.experts / WORLD
  for _, name in ipairs { "gate_up_proj", "down_proj" } do
    t.near(net.experts[name].grad * WORLD, whole.experts[name].grad:narrow(0, RANK * count, count), 4 * tolerance,
      about .. ", " .. name)
  end
end

t.test("RandomTokensOfRanksAreThoseOfOneRank", function()
  for seed = 1, 12 do
    math.randomseed(seed)
    local tokens = {}
    for r = 1, WORLD do tokens[r] = math.random(1, seed % 3 == 0 and 2 or 20) end
    check(seed, { experts = WORLD * math.random(1, 3), per_token = math.random(1, WORLD), tokens = tokens,
      dtype = torch.float64 }, 1e-10)
  end
end)

t.test("GroupedProductsOfRanksAreThoseOfOneRank", function()
  for seed = 1, 4 do
    local tokens = {}
    for r = 1, WORLD do tokens[r] = 3 * r + seed end
    check(seed, { experts = 2 * WORLD, per_token = 2, tokens = tokens, dtype = torch.float32 }, 1e-4)
  end
end)

-- All tokens go to one expert, so that no row arrives at the other ranks. They take part all the same.
t.test("RanksWhoseExpertsGetNoTokenTakePart", function()
  for _, dtype in ipairs { torch.float64, torch.float32 } do
    for favourite = 0, 2 * WORLD - 1, 3 do
      local tokens = {}
      for r = 1, WORLD do tokens[r] = r end
      check(favourite, { experts = 2 * WORLD, per_token = 1, tokens = tokens, favourite = favourite, dtype = dtype },
        dtype == torch.float64 and 1e-10 or 1e-3)
    end
  end
end)

t.test("ALayerWaitsOnceForCounts", function()
  for _, dtype in ipairs { torch.float64, torch.float32 } do
    local net = mixture(1, { experts = 2 * WORLD, per_token = 2, dtype = dtype })
    expert_parallel.divide(net, group)
    local x = torch.rand({ 9, 8 }):to(dtype)
    net(x)
    local counted = calls.of(function() net(x) end)
    t.equal(calls.sum(counted, { "aten::bincount", "aten::nonzero", "aten::_unique2", "item", "totable" }), 1)
  end
end)

t.test("ResultsAreTheSameBitsAgain", function()
  local o = { experts = 2 * WORLD, per_token = 2, tokens = {}, dtype = torch.float32 }
  for r = 1, WORLD do o.tokens[r] = 30 end
  local net, x = mixture(1, o), tokens_of(1, o)[RANK + 1]
  expert_parallel.divide(net, group)
  local y, x_grad = learn(net, x)
  local grad = net.experts.down_proj.grad:clone()
  for _ = 1, 3 do
    net:zero_grad()
    local again, x_grad_again = learn(net, x)
    t.equal({ torch.equal(again, y), torch.equal(x_grad_again, x_grad),
      torch.equal(net.experts.down_proj.grad, grad) }, { true, true, true })
  end
end)

t.test("ExpertsThatCannotBeDividedAreNamed", function()
  if WORLD == 1 then return end
  local net = mixture(1, { experts = WORLD + 1, per_token = 1, dtype = torch.float32 })
  t.raises(('sharding.parallelize: "experts": %d experts cannot be divided by ep %d'):format(WORLD + 1, WORLD),
    expert_parallel.divide, net, group)
  t.raises(("ep is %d, but Linear has no mixture of experts"):format(WORLD), expert_parallel.divide, net.gate, group)
end)
