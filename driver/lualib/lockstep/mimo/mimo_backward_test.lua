--- A gradient that a bridge's call should have had is missed before the optimizer steps without it. On two ranks.

local dist = require "lockstep.distributed"
local mimo = require "lockstep.mimo"
local nn = require "lockstep.nn"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local RANK = dist.rank()
local topology = mimo.topology { modules = { { name = "vision" }, { name = "language", first_rank = 1 } } }
local name = RANK == 0 and "vision" or "language"

--- A module, its bridge, and y of a call with the loss of this rank.
local function forward()
  torch.manual_seed(1)
  local model = nn.Linear(3, 3)
  local bridge = mimo.bridge { topology = topology, from = "vision", to = "language" }
  local y = bridge(RANK == 0 and model(torch.ones { 2, 3 }) or nil)
  return model, bridge, y, RANK == 0 and torch.sum(y) or torch.sum(model(y))
end

local function reduce(model)
  return mimo.reduce_gradients { topology = topology, modules = { [name] = model }, loss = "sum", tokens = 2 }
end

t.test("WithoutTheCheckATowerIsNotTrainedWithNoError", function()
  local model, _, _, loss = forward()

  if RANK == 1 then loss:backward() end -- vision's is forgotten: no rank waits, and the step would go on
  dist.barrier()

  t.equal(RANK == 0 and model.weight.grad or nil, nil)
  if RANK == 0 then loss:backward() end -- takes what was sent
end)

t.test("ARankThatForgetsBackwardThroughYGetsAnErrorBeforeTheStep", function()
  local model, _, _, loss = forward()
  if RANK == 1 then
    loss:backward()
  else
    t.raises("on rank 0 (vision) backward has not run through y of call 0, so that x has no gradient: call "
      .. "torch.sum(y):backward() there, too", reduce, model)
    loss:backward()
  end
  t.equal(reduce(model), 2)
end)

t.test("ALossWithoutYIsAnErrorOnItsOwnRank", function()
  local model, _, _, loss = forward()
  if RANK == 1 then
    local other = torch.sum(model(torch.ones { 2, 3 }))
    other:backward()
    t.raises("on rank 1 (language) backward has not run through y of call 0: vision waits for its gradient; did "
      .. "the loss use y", reduce, model)
  end
  loss:backward()
  t.equal(reduce(model), 2)
end)

t.test("CallsUnderNoGradAndFrozenTowersOweNothing", function()
  local model, bridge, _, loss = forward()
  loss:backward()
  torch.no_grad(function() bridge(RANK == 0 and model(torch.ones { 2, 3 }) or nil) end)
  bridge(RANK == 0 and torch.ones { 2, 3 } or nil)
  t.equal(reduce(model), 2)
end)

t.test("NoGradOnTheTakersSideAloneIsAnErrorOnBoth", function()
  torch.manual_seed(1)
  local bridge = mimo.bridge { topology = topology, from = "vision", to = "language" }
  if RANK == 0 then
    local y = bridge(torch.ones({ 2, 3 }, { requires_grad = true }))
    t.raises("rank 1 (language) failed: x requires grad, but rank 1 (language) takes y of call 0 under no_grad",
      function() torch.sum(y):backward() end)
  else
    t.raises("x requires grad, but rank 1 (language) takes y of call 0 under no_grad", torch.no_grad, bridge)
  end
end)

t.test("AValueThatIsNotFiniteOnAReplicaThatDoesNotCountIsSeenByAll", function()
  local divided = mimo.topology { modules = { { name = "language", tp = 2 } }, edges = {} }
  for _, value in ipairs { 0 / 0, math.huge } do
    torch.manual_seed(1)
    local model = nn.Linear(3, 2)
    torch.sum(model(torch.ones { 1, 3 })):backward()
    if RANK == 1 then model.weight.grad:fill_(value) end
    local clip = { topology = divided, modules = { language = model }, max_norm = 1,
      tp_sharded = function() return false end }
    t.equal(mimo.clip_grad_norm(clip):isfinite():item(), false)
  end
end)
