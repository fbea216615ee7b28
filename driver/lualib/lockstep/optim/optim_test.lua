-- AdamW and gradient clipping against their formulas. Schedules are in schedule_test.lua.

local nn = require "lockstep.nn"
local optim = require "lockstep.optim"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local function parameter(values, dtype)
  return torch.tensor(values, { dtype = dtype or torch.float64, requires_grad = true })
end

--- A reference: AdamW on one tensor as arXiv 1711.05101 writes it, algorithm 2.
local function reference(start, o)
  local p, m, v = start:detach():clone(), torch.zeros_like(start), torch.zeros_like(start)
  local step = 0
  return function(grad, factor)
    step = step + 1
    local lr = o.lr * (factor or 1)
    p = p * (1 - lr * o.weight_decay)
    m = m * o.betas[1] + grad * (1 - o.betas[1])
    v = v * o.betas[2] + grad * grad * (1 - o.betas[2])
    local unbiased_m, unbiased_v = m / (1 - o.betas[1] ^ step), v / (1 - o.betas[2] ^ step)
    p = p - unbiased_m / (torch.sqrt(unbiased_v) + o.eps) * lr
    return p
  end
end

local OPTIONS = {
  { lr = 1e-3, betas = { 0.9, 0.999 }, eps = 1e-8, weight_decay = 1e-2 },
  { lr = 0.1, betas = { 0.5, 0.7 }, eps = 1e-3, weight_decay = 0 },
  { lr = 0.02, betas = { 0, 0.9 }, eps = 0.5, weight_decay = 0.3 },
}

-- AdamW -------------------------------------------------------------------------------------------------

t.test("AdamWFollowsItsFormulaOverManySteps", function()
  torch.manual_seed(1)
  for case, o in ipairs(OPTIONS) do
    local p = parameter { { 1, -2, 3 }, { 0.5, 0, -4 } }
    local expected = reference(p, o)
    local optimizer = optim.AdamW({ p }, o)
    for step = 1, 20 do
      local grad = torch.randn({ 2, 3 }, { dtype = torch.float64 })
      p.grad = grad

      optimizer:step()

      t.near(p:detach(), expected(grad), 1e-12, string.format("options %d, step %d", case, step))
    end
  end
end)

t.test("AdamWsDefaultsAreThoseOfPyTorch", function()
  local p = parameter { 1, 2 }
  local expected = reference(p, { lr = 1e-3, betas = { 0.9, 0.999 }, eps = 1e-8, weight_decay = 1e-2 })
  local optimizer = optim.AdamW { p }
  p.grad = parameter({ 3, -4 }):detach()

  optimizer:step()

  t.near(p:detach(), expected(p.grad), 1e-12)
end)

t.test("TheFactorScalesTheLearningRateOfOneStep", function()
  local o = OPTIONS[1]
  local p = parameter { 1, 2 }
  local expected = reference(p, o)
  local optimizer = optim.AdamW({ p }, o)
  for _, factor in ipairs { 0.25, 1, 0, 3 } do
    p.grad = parameter({ 3, -4 }):detach()
    optimizer:step(factor)
    t.near(p:detach(), expected(p.grad, factor), 1e-12, "factor " .. factor)
  end
  t.raises("the factor must be a number, as a schedule returns, or a tensor of one element, not a table",
    function() optimizer:step({}) end)
end)

-- The optimizer keeps what it can from one step to the next.
t.test("AStepFollowsWhatChangedSinceTheLast", function()
  torch.manual_seed(2)
  local o = OPTIONS[1]
  local a, b = parameter { { 1, -2, 3 }, { 0.5, 0, -4 } }, parameter { { 2, 1 }, { 0, -1 } }
  local next_a, next_b = reference(a, o), reference(b, o)
  local group = { params = { a } }
  local optimizer = optim.AdamW({ group }, o)
  local function random(shape) return torch.randn(shape, { dtype = torch.float64 }) end
  local function step(what, grad_a, grad_b)
    a.grad, b.grad = grad_a, grad_b

    optimizer:step()

    if grad_a then t.near(a:detach(), next_a(grad_a), 1e-12, what .. ", a") end
    if grad_b then t.near(b:detach(), next_b(grad_b), 1e-12, what .. ", b") end
  end
  for i = 1, 2 do step("one parameter, " .. i, random { 2, 3 }) end
  table.insert(optimizer.groups[1].params, b)
  for i = 1, 2 do step("two parameters, " .. i, random { 2, 3 }, random { 2, 2 }) end
  step("b without a gradient", random { 2, 3 })
  step("b with a gradient again", random { 2, 3 }, random { 2, 2 })
  step("a gradient with other strides", random({ 3, 2 }):t(), random { 2, 2 })
  step("a without a gradient", nil, random { 2, 2 })
  step("gradients with the usual strides", random { 2, 3 }, random { 2, 2 })
  nn.use_fused(false)
  step("ATen's kernel", random { 2, 3 }, random { 2, 2 })
  nn.use_fused(true)
  step("our kernel", random { 2, 3 }, random { 2, 2 })
  optimizer:load_state_dict(optimizer:state_dict())
  step("a loaded state", random { 2, 3 }, random { 2, 2 })
  t.equal(optimizer.state[a].step:item(), 11)
  t.equal(optimizer.state[b].step:item(), 9)
  table.remove(optimizer.groups[1].params)
  step("a alone", random { 2, 3 })
  optimizer.state[a], next_a = nil, reference(a, o)
  step("a new state", random { 2, 3 })
end)

t.test("GradientsAreNotKeptAfterTheStep", function()
  local p = parameter { 1, 2 }
  local optimizer = optim.AdamW({ p }, OPTIONS[1])
  p.grad = parameter({ 3, -4 }):detach()

  optimizer:step()

  local buckets = optimizer.last[optimizer.groups[1]].buckets
  t.equal(#buckets, 1)
  t.equal(buckets[1].grads, {})
end)

t.test("ADimensionOfSizeOneMayHaveAnyStride", function()
  local o = OPTIONS[1]
  local p = parameter { { 1 }, { -2 }, { 3 } }
  local expected = reference(p, o)
  local optimizer = optim.AdamW({ p }, o)
  local grad = torch.tensor({ 0.5, -1, 2 }, { dtype = torch.float64 }):as_strided({ 3, 1 }, { 1, 7 })
  for step = 1, 2 do
    p.grad = grad

    optimizer:step()

    t.near(p:detach(), expected(grad), 1e-12, "step " .. step)
  end
end)

t.test("StepsAreCountedInFloat32WhateverTheDefaultDtype", function()
  local default = torch.get_default_dtype()
  torch.set_default_dtype(torch.float64)

  local states = optim.AdamW({ parameter { 1 } }):state_dict().states

  torch.set_default_dtype(default)
  t.equal(states[1].step.dtype, torch.float32)
end)

t.test("AParameterWithoutGradientIsLeftAloneWithItsState", function()
  local trained, idle = parameter { 1 }, parameter { 1 }
  local optimizer = optim.AdamW({ trained, idle }, { weight_decay = 0.5, lr = 0.1 })
  trained.grad = torch.ones_like(trained)

  optimizer:step()

  t.equal(idle:detach(), parameter({ 1 }):detach())
  t.equal(optimizer:state_dict().states[2].step:item(), 0)
  t.truthy(trained:item() < 1)
end)

t.test("AParameterThatStartsLateCountsItsOwnSteps", function()
  local o = OPTIONS[1]
  local early, late = parameter { 1 }, parameter { 1 }
  local optimizer = optim.AdamW({ early, late }, o)
  early.grad = parameter({ 2 }):detach()
  optimizer:step()
  late.grad = parameter({ 2 }):detach()

  optimizer:step()

  t.near(late:detach(), reference(parameter { 1 }, o)(late.grad), 1e-12)
end)

t.test("GroupsHaveOptionsOfTheirOwnAndInheritTheRest", function()
  local a, b = parameter { 1, 2 }, parameter { 3 }
  local shared = { lr = 0.1, betas = { 0.5, 0.7 }, eps = 1e-3, weight_decay = 0.2 }
  local optimizer = optim.AdamW({ { params = { a } }, { params = { b }, lr = 0.01, weight_decay = 0 } }, shared)
  local expected_a = reference(a, shared)
  local expected_b = reference(b, { lr = 0.01, betas = shared.betas, eps = shared.eps, weight_decay = 0 })
  a.grad, b.grad = parameter({ 1, -1 }):detach(), parameter({ 2 }):detach()

  optimizer:step()

  t.near(a:detach(), expected_a(a.grad), 1e-12)
  t.near(b:detach(), expected_b(b.grad), 1e-12)
end)

t.test("ParametersOfSeveralDtypesShareAGroup", function()
  local single, double = parameter({ 1 }, torch.float32), parameter { 1 }
  local optimizer = optim.AdamW({ single, double }, { lr = 0.1 })
  single.grad, double.grad = torch.ones_like(single), torch.ones_like(double)

  optimizer:step()

  t.near(single:double(), double, 1e-6)
  t.truthy(double:item() < 0.91)
end)

t.test("LayoutsOfParametersAndGradientsDoNotMatter", function()
  local o = { lr = 0.1, betas = { 0.5, 0.7 }, eps = 1e-3, weight_decay = 0.2 }
  local start = torch.arange(6, { dtype = torch.float64 }):view(2, 3)
  local grad = torch.tensor({ { 1, -2 }, { 3, -4 }, { 5, 6 } }, { dtype = torch.float64 }):t()
  local layouts = { rows = start:clone(), columns = start:t():contiguous():t() }
  for name, p in pairs(layouts) do
    p:requires_grad_(true)
    local expected = reference(p, o)
    local optimizer = optim.AdamW({ p }, o)
    for _ = 1, 2 do
      p.grad = grad
      optimizer:step()
      t.near(p:detach(), expected(grad), 1e-12, name)
    end
  end
end)

t.test("ASliceOfALargerTensorIsRefusedAsAParameter", function()
  local p = torch.zeros({ 2, 6 })[{ {}, { 0, 3 } }]:requires_grad_(true)
  local optimizer = optim.AdamW { p }
  p.grad = torch.ones({ 2, 3 })

  t.raises("a parameter of shape {2, 3} is a slice of a larger tensor", function() optimizer:step() end)
end)

t.test("ZeroGradForgetsGradientsOfEveryGroup", function()
  local a, b = parameter { 1 }, parameter { 1 }
  local optimizer = optim.AdamW { { params = { a } }, { params = { b } } }
  a.grad, b.grad = torch.ones_like(a), torch.ones_like(b)

  optimizer:zero_grad()

  t.equal(a.grad, nil)
  t.equal(b.grad, nil)
end)

t.test("ALoadedStateGoesOnAsTheSavedOneWould", function()
  local function begin()
    local p = parameter { 1, -2 }
    return p, optim.AdamW({ p }, OPTIONS[1])
  end
  local function advance(p, optimizer, steps)
    for step = steps[1], steps[2] do
      p.grad = parameter({ math.sin(step), math.cos(step) }):detach()
      optimizer:step()
    end
  end
  local p, optimizer = begin()
  advance(p, optimizer, { 1, 3 })
  local resumed, other = begin()
  torch.no_grad(function() resumed:copy_(p) end)

  other:load_state_dict(optimizer:state_dict())
  advance(p, optimizer, { 4, 6 })
  advance(resumed, other, { 4, 6 })

  t.equal(resumed:detach(), p:detach())
end)

t.test("AStateThatDoesNotFitIsRefusedBeforeAnythingIsCopied", function()
  local optimizer = optim.AdamW { parameter { 1, 2 }, parameter { 3 } }
  local one = optim.AdamW({ parameter { 1, 2 } }):state_dict()
  local swapped = optim.AdamW({ parameter { 3 }, parameter { 1, 2 } }):state_dict()

  t.raises("there are 2 parameters, but the state holds 1", function() optimizer:load_state_dict(one) end)
  t.raises("but the state holds none", function() optimizer:load_state_dict({}) end)
  t.raises("the state of parameter 1 must be a table of tensors, not a number",
    function() optimizer:load_state_dict { states = { 1, 2 } } end)
  t.raises("of parameter 1 must have shape {2}, not {1}", function() optimizer:load_state_dict(swapped) end)
end)

t.test("WrongOptionsAreRefusedByName", function()
  local p = parameter { 1 }
  local cases = {
    { { p }, { learning_rate = 1 }, 'optim.AdamW: unknown option "learning_rate"' },
    { { p }, { weight_deacy = 0 }, 'did you mean "weight_decay"?' },
    { { p }, { lr = "fast" }, 'optim.AdamW: lr must be a number, not "fast"' },
    { { p }, { lr = -1 }, "optim.AdamW: lr must be a number of at least 0, not -1" },
    { { p }, { lr = 0 / 0 }, "lr must be a number of at least 0, not" },
    { { p }, { betas = { 0.9 } }, "betas must be two numbers, as in {0.9, 0.999}, not an array of 1" },
    { { p }, { betas = { 0.9, 1 } }, "betas must be numbers from 0 to below 1, not 1" },
    { {}, nil, "a group must have parameters, not an empty array" },
    { { p, p }, nil, "a parameter appears twice" },
    { { p, 3 }, nil, "parameter 2 must be a tensor, not a number" },
    { { p * 2 }, nil, "parameter 1 must be a tensor of its own, not the result of a computation" },
    { p, nil, "params must be an array, not a userdata" },
    { { params = { p } }, nil, "groups come in an array: {{params = ...}, ...}" },
    { { { params = { p }, betta = 1 } }, nil, 'unknown option "betta"' },
    { { { lr = 1 } }, nil, 'the option "params" is missing' },
  }
  for _, case in ipairs(cases) do t.raises(case[3], optim.AdamW, case[1], case[2]) end
end)

t.test("AModuleInPlaceOfItsParametersSaysWhatToPass", function()
  local model = nn.Linear(2, 2)

  t.raises("optim.AdamW: params is a module; pass model:parameters()", optim.AdamW, model)
  t.raises("optim.clip_grad_norm: params is a module; pass model:parameters()", optim.clip_grad_norm, model, 1)
end)

t.test("AGroupOfTheRunsConfigurationServesAsOptions", function()
  local config = require("lockstep.run").merge({ optimizer = { lr = 0.1 } }, {})
  local p = parameter { 1 }

  t.equal(optim.AdamW({ p }, config.optimizer).groups[1].lr, 0.1)
end)

t.test("AnOptionSetOutsideTheGroupsIsAnError", function()
  local p = parameter { 1 }
  local optimizer = optim.AdamW({ p }, { lr = 0.5, weight_decay = 0 })
  t.raises("optim.AdamW: lr is an option of each group, and would change nothing here; write optimizer.groups[1].lr",
    function() optimizer.lr = 0 end)
  t.raises("momentum is an option of each group", function() optim.SGD({ p }).momentum = 0.9 end)
  optimizer.label = "mine"
  t.equal(optimizer.label, "mine")
  optimizer.groups[1].lr, p.grad = 0.25, parameter({ 2 }):detach()
  optimizer:step()
  t.near(p:item(), 0.75, 1e-6)
end)

-- clip_grad_norm ----------------------------------------------------------------------------------------

local function with_grads(...)
  local params = {}
  for i, values in ipairs { ... } do
    params[i] = parameter(values)
    params[i].grad = parameter(values):detach()
  end
  return params
end

t.test("ClippingReturnsTheJointNormAndScalesDownToTheMaximum", function()
  local params = with_grads({ 3 }, { { 0, 4 } }, { 12 })

  local norm = optim.clip_grad_norm(params, 6.5)

  t.near(norm:item(), 13, 1e-12)
  t.equal(norm.shape, {})
  t.near(params[1].grad:item(), 3 * 6.5 / (13 + 1e-6), 1e-12)
  t.near(params[2].grad[0][1]:item(), 4 * 6.5 / (13 + 1e-6), 1e-12)
  t.near(optim.clip_grad_norm(params, 6.5):item(), 6.5, 1e-5)
end)

t.test("ClippingByAnotherNorm", function()
  local params = with_grads({ 3, -2 }, { { 0, 4 } })

  t.near(optim.clip_grad_norm(params, 100, { p = 1 }):item(), 9, 1e-12)
  t.near(optim.clip_grad_norm(params, 2, { p = math.huge }):item(), 4, 1e-12)

  t.near(params[1].grad, torch.tensor({ 1.5, -1 }, { dtype = torch.float64 }), 1e-5)
  t.raises('unknown option "norm_type" (known: p)', optim.clip_grad_norm, params, 1, { norm_type = 1 })
  t.raises("p must be a number above 0, not 0", optim.clip_grad_norm, params, 1, { p = 0 })
end)

t.test("GradientsBelowTheMaximumStayAsTheyAre", function()
  for _, max_norm in ipairs { 13.1, math.huge } do
    local params = with_grads({ 5 }, { 12 })

    t.near(optim.clip_grad_norm(params, max_norm):item(), 13, 1e-12)

    t.equal(params[1].grad:item(), 5)
    t.equal(params[2].grad:item(), 12)
  end
end)

t.test("ParametersWithoutGradientsDoNotCount", function()
  local params = with_grads({ 3 }, { 4 })
  params[3] = parameter { 100 }

  t.near(optim.clip_grad_norm(params, 1):item(), 5, 1e-12)
  t.equal(params[3].grad, nil)
  t.equal(optim.clip_grad_norm({ parameter { 1 } }, 1):item(), 0)
  t.equal(optim.clip_grad_norm({}, 1):item(), 0)
end)

t.test("AnInfiniteGradientShowsInTheNorm", function()
  local params = with_grads({ math.huge }, { 4 })

  t.equal(optim.clip_grad_norm(params, 1):item(), math.huge)

  t.equal(params[2].grad:item(), 0)
end)

t.test("ClippingRefusesWhatIsNoNormOrNoParameters", function()
  for _, max_norm in ipairs { 0, -1, "1" } do
    t.raises("max_norm must be a number above 0, not " .. max_norm, optim.clip_grad_norm, {}, max_norm)
  end
  t.raises("params must be an array, not a userdata", optim.clip_grad_norm, parameter { 1 }, 1)
  t.raises("parameter 1 is a table, not a tensor", optim.clip_grad_norm, { {} }, 1)
end)
