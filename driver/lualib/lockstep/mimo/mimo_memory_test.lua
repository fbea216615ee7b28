--- A bridge sends the rows that it was given, even if their memory is reused meanwhile.

local dist = require "lockstep.distributed"
local mimo = require "lockstep.mimo"
local nn = require "lockstep.nn"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

torch.set_num_threads(1)

local ON_VISION = dist.rank() == 0
local topology = mimo.topology { modules = { { name = "vision" }, { name = "language", first_rank = 1 } } }

-- Autograd gives the gradient of y to the parameter that was added as a view, too, and the next micro-batch's is
-- added to it there.
t.test("AGradientThatAParameterSharesIsSentAsItWas", function()
  local rows, hidden = 256, 64
  local bridge = mimo.bridge { topology = topology, from = "vision", to = "language" }
  torch.manual_seed(1)
  local tower, head = nn.Linear(hidden, hidden), nn.Linear(hidden, hidden)
  local position = torch.zeros({ 1, rows, hidden }):requires_grad_(true)
  for _ = 1, 10 do
    local xs, losses = {}, {}
    for i = 1, 4 do
      xs[i] = torch.ones({ rows, hidden }):requires_grad_(true)
      local y = bridge(ON_VISION and tower(xs[i]) * 1 or nil)
      losses[i] = ON_VISION and torch.sum(y) or torch.sum(head(y + position:squeeze(0)))
    end
    for i = 1, 4 do losses[i]:backward() end
    if position.grad then position.grad:mul_(1000) end
    for i = 2, ON_VISION and 4 or 0 do t.equal(xs[i].grad, xs[1].grad, "micro-batch " .. i) end
    position.grad = nil
  end
end)

t.test("AnXThatIsChangedBeforeItWasTakenIsAnError", function()
  local bridge = mimo.bridge { topology = topology, from = "vision", to = "language" }
  local x = torch.ones({ 4, 2 }):requires_grad_(true)
  local h = ON_VISION and x * 1 or nil

  local y = bridge(h)
  if h then h:mul_(100) end
  local ok, message = pcall(function() torch.sum(y):backward() end)

  if ON_VISION then
    t.equal(ok, false)
    t.truthy(tostring(message):find("x was changed in place while it was being sent to rank 1 (language)", 1, true),
      tostring(message))
  end
end)

t.test("ASecondDerivativeIsRefused", function()
  local bridge = mimo.bridge { topology = topology, from = "vision", to = "language" }
  local x = torch.ones({ 4, 2 }):requires_grad_(true)

  local y = bridge(ON_VISION and x * 1 or nil)
  local ok, message = pcall(function() torch.sum(y):backward { create_graph = true } end)

  t.equal(ok, false)
  t.truthy(tostring(message):find("call backward without create_graph", 1, true), tostring(message))
end)

t.test("IdsOfSamplesAreComparedToTheLastDigit", function()
  local bridge = mimo.bridge { topology = topology, from = "vision", to = "language" }

  local ok, message = pcall(function()
    local x = ON_VISION and torch.ones({ 1, 2 }):requires_grad_(true) or nil
    torch.sum(bridge(x, { samples = { 100000000000001 + dist.rank() } })):backward()
  end)

  t.equal(ok, false)
  t.truthy(tostring(message):find("the ranks disagree about the micro-batch", 1, true), tostring(message))
end)

t.test("YMayBeChangedInPlace", function()
  for dim = 0, 1 do
    local bridge = mimo.bridge { topology = topology, from = "vision", to = "language", dim = dim }
    local x = ON_VISION and torch.ones({ 4, 2 }):requires_grad_(true) or nil
    local y = bridge(x)
    y:mul_(3)
    y:add_(1)
    torch.sum(y):backward()
    if x then t.equal(x.grad, torch.full({ 4, 2 }, 3)) else t.equal(y:detach(), torch.full({ 4, 2 }, 4)) end
  end
end)

-- Vision has the whole micro-batch on both ranks, language a half on each: its y is a part of x.
t.test("YThatIsAPartOfXIsRefusedToBeChangedInPlace", function()
  local shared = mimo.topology { modules = { { name = "vision", tp = 2 }, { name = "language", dp = 2 } } }
  local bridge = mimo.bridge { topology = shared, from = "vision", to = "language" }
  local x = torch.ones({ 4, 2 }):requires_grad_(true)

  local y = bridge(x)

  t.raises("being modified inplace", y.mul_, y, 3)
  t.equal(x:detach(), torch.ones { 4, 2 })
  torch.sum(y:clone():mul_(3)):backward()
  t.equal(x.grad, torch.full({ 4, 2 }, 3))
end)
