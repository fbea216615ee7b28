-- optim.GradScaler on one rank or more: scaled losses, skipped steps, growth, state.

local dist = require "lockstep.distributed"
local nn = require "lockstep.nn"
local optim = require "lockstep.optim"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local function parameter() return torch.tensor({ 1, 2 }, { requires_grad = true }) end

--- A scaler that starts at 8 and grows after two good steps.
local function scaler_of(more)
  local o = { init_scale = 8, growth_interval = 2 }
  for key, value in pairs(more or {}) do o[key] = value end
  return optim.GradScaler(o)
end

local function set_grad(p, values) p.grad = torch.tensor(values) end

t.test("AScaledStepIsThePlainStep", function()
  local p, plain = parameter(), parameter()
  local scaler, optimizer = scaler_of(), optim.SGD({ p }, { lr = 0.5 })
  local other = optim.SGD({ plain }, { lr = 0.5 })
  for step = 1, 3 do
    local loss = (p * p):sum()
    t.near(scaler:scale(loss):item(), loss:item() * scaler:get_scale(), 0)
    scaler:scale(loss):backward()
    torch.sum(plain * plain):backward()

    t.equal(scaler:step(optimizer, 1 / step), true)
    scaler:update()
    other:step(1 / step)

    t.equal(p:detach(), plain:detach())
    optimizer:zero_grad()
    other:zero_grad()
  end
end)

t.test("UnscaledGradientsAreThoseOfTheLossAndClippedOnes", function()
  local p = parameter()
  local scaler, optimizer = scaler_of(), optim.SGD({ p }, { lr = 1 })
  scaler:scale((p * torch.tensor { 3, 4 }):sum()):backward()
  t.equal(p.grad, torch.tensor { 24, 32 })

  scaler:unscale_(optimizer)
  t.equal(p.grad, torch.tensor { 3, 4 })
  t.near(optim.clip_grad_norm({ p }, 1):item(), 5, 1e-6)
  scaler:step(optimizer)

  t.near(p:detach(), torch.tensor { 1 - 0.6, 2 - 0.8 }, 1e-5)
end)

t.test("AStepWithInfOrNanIsSkippedAndTheScaleHalved", function()
  for i, bad in ipairs { math.huge, -math.huge, 0 / 0 } do
    local p = parameter()
    local scaler, optimizer = scaler_of(), optim.AdamW({ p }, { lr = 1 })
    set_grad(p, { 1, bad })

    t.equal(scaler:step(optimizer), false, "case " .. i)
    scaler:update()

    t.equal(p:detach(), torch.tensor { 1, 2 })
    t.equal({ scaler:get_scale(), scaler.skipped }, { 4, 1 })
    t.equal(next(optimizer.state), nil)
  end
end)

t.test("OneRanksInfSkipsTheStepOfAll", function()
  local p = parameter()
  local scaler, optimizer = scaler_of(), optim.SGD({ p }, { lr = 1 })
  set_grad(p, { 1, dist.rank() == dist.world_size() - 1 and math.huge or 1 })

  t.equal(scaler:step(optimizer), false)
  scaler:update()

  t.equal(p:detach(), torch.tensor { 1, 2 })
  t.equal(scaler:get_scale(), 4)
  set_grad(p, { 4, 4 })
  t.equal(scaler:step(optimizer), true)
  t.equal(p:detach(), torch.tensor { 0, 1 })
end)

t.test("ARankWithoutGradientsTakesPart", function()
  local p = parameter()
  local scaler, optimizer = scaler_of(), optim.SGD({ p }, { lr = 1 })
  if dist.rank() == 0 then set_grad(p, { 8, 16 }) end

  t.equal(scaler:step(optimizer), true)
  scaler:update()

  t.equal(p:detach(), dist.rank() == 0 and torch.tensor { 0, 0 } or torch.tensor { 1, 2 })
end)

t.test("TheScaleGrowsAfterGoodStepsAndCountsAgainAfterABadOne", function()
  local p = parameter()
  local scaler, optimizer = scaler_of(), optim.SGD({ p }, { lr = 0 })
  local scales = {}
  for i, bad in ipairs { false, true, false, false, false, false } do
    set_grad(p, { 1, bad and math.huge or 1 })
    scaler:step(optimizer)
    scaler:update()
    scales[i] = scaler:get_scale()
  end

  t.equal(scales, { 8, 4, 4, 8, 8, 16 })
  t.equal(scaler.skipped, 1)
end)

t.test("SeveralOptimizersSkipByThemselvesAndTheScaleKnowsOfBoth", function()
  local a, b = parameter(), parameter()
  local scaler, first, second = scaler_of(), optim.SGD({ a }, { lr = 1 }), optim.SGD({ b }, { lr = 1 })
  set_grad(a, { 8, 8 })
  set_grad(b, { 8, math.huge })

  t.equal({ scaler:step(first), scaler:step(second) }, { true, false })
  scaler:update()

  t.equal(a:detach(), torch.tensor { 0, 1 })
  t.equal({ scaler:get_scale(), scaler.skipped }, { 4, 1 })
end)

t.test("GradientsOfSeveralDtypesAreCheckedTogether", function()
  local a = parameter()
  local b = torch.ones({ 3 }, { dtype = torch.bfloat16 }):requires_grad_(true)
  local c = torch.ones({ 3 }, { dtype = torch.float64 }):requires_grad_(true)
  local scaler, optimizer = scaler_of(), optim.SGD({ a, b, c }, { lr = 1 })
  set_grad(a, { 8, 8 })
  b.grad, c.grad = torch.full_like(b, 8), torch.full_like(c, 8)

  scaler:unscale_(optimizer)

  t.equal({ a.grad[0]:item(), b.grad[0]:item(), c.grad[0]:item() }, { 1, 1, 1 })
  scaler:step(optimizer)
  scaler:update()
  b.grad:fill_(math.huge)
  t.equal(scaler:step(optimizer), false)
end)

t.test("ALowPrecisionLossIsScaledInFloat32", function()
  local loss = torch.tensor(3, { dtype = torch.float16, requires_grad = true })

  local scaled = optim.GradScaler():scale(loss)

  t.equal(scaled.dtype, torch.float32)
  t.equal(scaled:item(), 3 * 65536)
end)

t.test("GradientsTooSmallForFloat16ComeThroughWithTheScale", function()
  torch.manual_seed(1)
  local net, x = nn.Linear(4, 3), torch.randn({ 5, 4 })
  local function loss()
    return torch.autocast({ dtype = torch.float16, device = "cpu" }, net, x):float():sum() * 1e-8
  end
  loss():backward()
  t.equal(net.weight.grad, torch.zeros({ 3, 4 })) -- 1e-8 is 0 in float16

  net:zero_grad()
  local scaler, optimizer = optim.GradScaler(), optim.SGD(net:parameters(), { lr = 1 })
  scaler:scale(loss()):backward()
  scaler:unscale_(optimizer)

  t.near(net.weight.grad * 1e8, x:sum({ 0 }):expand({ 3, 4 }), 0.02)
end)

t.test("ASwitchedOffScalerDoesNothing", function()
  local p = parameter()
  local scaler, optimizer = scaler_of { enabled = false }, optim.SGD({ p }, { lr = 1 })
  local loss = (p * p):sum()
  t.equal(scaler:scale(loss) == loss, true)
  set_grad(p, { 1, 1 })

  scaler:unscale_(optimizer)
  t.equal(scaler:step(optimizer), true)
  scaler:update()

  t.equal(p:detach(), torch.tensor { 0, 1 })
  t.equal(scaler:get_scale(), 1)
end)

t.test("AStateGoesOnWithScaleAndCount", function()
  local p = parameter()
  local scaler, optimizer = scaler_of(), optim.SGD({ p }, { lr = 0 })
  set_grad(p, { 1, math.huge })
  scaler:step(optimizer)
  scaler:update()
  set_grad(p, { 1, 1 })
  scaler:step(optimizer)
  scaler:update()
  local resumed = scaler_of()

  resumed:load_state_dict(scaler:state_dict())
  t.equal({ resumed:get_scale(), resumed.skipped }, { 4, 1 })
  set_grad(p, { 1, 1 })
  resumed:step(optimizer)
  resumed:update()

  t.equal(resumed:get_scale(), 8)
end)

t.test("MisuseIsNamed", function()
  local p = parameter()
  local scaler, optimizer = scaler_of(), optim.SGD({ p }, { lr = 1 })
  t.raises("optim.GradScaler:update: no gradients were checked since the last update", function() scaler:update() end)
  set_grad(p, { 1, 1 })
  scaler:unscale_(optimizer)
  t.raises("divided by the scale already", function() scaler:unscale_(optimizer) end)
  scaler:step(optimizer)
  t.raises("this optimizer has made its step; call update", function() scaler:step(optimizer) end)
  t.raises("GradScaler:step: expected an optimizer, not a nil", function() scaler:step() end)
  t.raises("GradScaler:scale: the loss must be a tensor, not a number", function() scaler:scale(1) end)
  t.raises("load_state_dict: scale must be a number, not nil", function() scaler:load_state_dict {} end)
  local half = torch.ones({ 2 }, { dtype = torch.float16 }):requires_grad_(true)
  half.grad = torch.ones_like(half)
  t.raises("the gradient of parameter 1 is float16, where dividing by the scale gives 0",
    function() scaler_of():step(optim.SGD { half }) end)
  for _, case in ipairs {
    { { init_scale = 0 }, "init_scale must be a number from 2^-14 to 2^127, not 0" },
    { { growth_factor = 1 }, "growth_factor must be a number above 1, not 1" },
    { { backoff_factor = 1 }, "backoff_factor must be a number between 0 and 1, not 1" },
    { { growth_interval = 0.5 }, "growth_interval must be a whole number of at least 1, not 0.5" },
    { { scale = 1 }, 'unknown option "scale"' },
  } do
    t.raises(case[2], optim.GradScaler, case[1])
  end
end)

t.test("GradientsThatAreNeverFiniteEndTheRunWithTheReason", function()
  local p = parameter()
  local scaler, optimizer = scaler_of { init_scale = 2 ^ -13 }, optim.SGD({ p }, { lr = 1 })
  for i = 1, 2 do
    set_grad(p, { 0 / 0, 1 })
    scaler:step(optimizer)
    if i == 1 then scaler:update() end
  end

  t.raises("after 2 skipped steps; the model itself computes inf or NaN", function() scaler:update() end)
end)
