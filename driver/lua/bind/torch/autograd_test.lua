--- Gradients from Lua: backward, torch.grad, no_grad, hooks.

local t = require "lockstep.testing"
local torch = require "lockstep.torch"

--- A leaf: a tensor that requires grad and that no operator made.
local function leaf(values) return torch.tensor(values, { requires_grad = true }) end

local function dot(x, y) return (x * y):sum() end

local function square(x) return dot(x, x) end

-- backward --------------------------------------------------------------------------------------------

t.test("BackwardFillsTheGradientsOfLeaves", function()
  local w, frozen = leaf { 1, 2 }, torch.tensor { 3, 4 }

  t.equal(w.grad, nil)
  local result = dot(w * w, frozen):backward()

  t.equal(result, nil)
  t.equal(w.grad, torch.tensor { 6, 16 })
  t.equal(frozen.grad, nil)
end)

t.test("BackwardTakesOneTableOfOptions", function()
  local w = leaf { 1, 2 }

  t.raises("backward: the options are the last argument", square(w).backward, square(w), {}, { retain_graph = true })
end)

t.test("GradientsAddUpUntilTheyAreDropped", function()
  local w = leaf { 1, 2 }

  square(w):backward()
  square(w):backward()
  t.equal(w.grad, torch.tensor { 4, 8 })

  w.grad = nil
  t.equal(w.grad, nil)
  square(w):backward()
  t.equal(w.grad, torch.tensor { 2, 4 })
end)

t.test("ATensorUsedTwiceGetsBothGradients", function()
  local w = leaf { 1, 2 }
  local y = w * 3

  dot(y, y + 1):backward()

  t.equal(w.grad, torch.tensor { 21, 39 })
end)

t.test("RequiresGradIsSetInPlaceAndByField", function()
  local x = torch.ones { 2 }

  local same = x:requires_grad_(true)
  t.truthy(rawequal(same, x) and x.requires_grad)
  t.equal(x:requires_grad_(false).requires_grad, false)
  t.equal(x:requires_grad_().requires_grad, true)
  x.requires_grad = false
  t.equal((x * 2).requires_grad, false)
end)

t.test("LeavesAreTensorsThatNoOperatorMade", function()
  local w = leaf { 1 }

  t.equal(w.is_leaf, true)
  t.equal((w * 2).is_leaf, false)
  t.equal((w * 2).requires_grad, true)
  t.equal(torch.ones(1).is_leaf, true)
end)

t.test("ATensorOfManyElementsNeedsAGradientToStartFrom", function()
  local gradient = torch.tensor { 1, 10 }
  for _, backward in ipairs {
    function(y) y:backward(gradient) end,
    function(y) y:backward { gradient = gradient } end,
    function(y) y:backward(gradient, {}) end,
  } do
    local w = leaf { 1, 2 }
    backward(w * w)
    t.equal(w.grad, torch.tensor { 2, 40 })
  end
  local y = leaf { 1, 2 } * 2
  t.raises("backward: grad can be implicitly created only for scalar outputs", y.backward, y)
end)

t.test("AGraphIsFreedUnlessItIsRetained", function()
  for _, retain in ipairs {
    function(y) y:backward { retain_graph = true } end,
    function(y) y:backward(nil, { retain_graph = true }) end,
    function(y) y:backward(torch.tensor(1), { retain_graph = true }) end,
  } do
    local w = leaf { 1, 2 }
    local loss = square(w)
    retain(loss)
    loss:backward()
    t.equal(w.grad, torch.tensor { 4, 8 })
    t.raises("backward: Trying to backward through the graph a second time", function() loss:backward() end)
  end
end)

t.test("InputsLimitsWhereGradientsGo", function()
  local w, v = leaf { 1, 2 }, leaf { 3, 4 }

  dot(w, v):backward { inputs = { w } }

  t.equal(w.grad, torch.tensor { 3, 4 })
  t.equal(v.grad, nil)
end)

t.test("WrongCallsOfBackwardSayWhatIsWrong", function()
  t.raises('backward: unknown option "retain_grad"; did you mean "retain_graph"?', function()
    square(leaf { 1 }):backward { retain_grad = true }
  end)
  t.raises("backward: options must be a table, not the number 1", function() square(leaf { 1 }):backward(1) end)
  t.raises("backward: element 0 of tensors does not require grad", function() torch.ones({}):backward() end)
  t.raises("backward: x must be a tensor", function() leaf({ 1 }).backward() end)
end)

-- grad ------------------------------------------------------------------------------------------------

t.test("GradReturnsGradientsAndLeavesTheFieldsAlone", function()
  local w, v = leaf { 1, 2 }, leaf { 3, 4 }

  local gradients = torch.grad({ dot(w, v) }, { v, w })

  t.equal(gradients, { torch.tensor { 1, 2 }, torch.tensor { 3, 4 } })
  t.truthy(w.grad == nil and v.grad == nil)
end)

t.test("GradAddsOverOutputsAndTakesTheirWeights", function()
  local w = leaf { 1, 2 }

  t.equal(torch.grad({ square(w), w:sum() }, { w }), { torch.tensor { 3, 5 } })
  t.equal(torch.grad({ w * w, w }, { w }, { grad_outputs = { torch.tensor { 1, 10 }, torch.tensor { 5, 5 } } }),
    { torch.tensor { 7, 45 } })
  t.equal(torch.grad(square(w), w), { torch.tensor { 2, 4 } })
end)

t.test("GradOfWhatWasNotUsedIsNilWhereThatIsAllowed", function()
  local w, unused = leaf { 1, 2 }, leaf { 3 }

  local gradients = torch.grad({ square(w) }, { unused, w }, { allow_unused = true })

  t.equal(gradients[1], nil)
  t.equal(gradients[2], torch.tensor { 2, 4 })
  t.raises("torch.grad: ", function() torch.grad({ square(w) }, { unused }) end)
  t.raises("torch.grad: outputs is empty; expected one tensor or more", function() torch.grad({}, { w }) end)
  t.raises("torch.grad: inputs is empty; expected one tensor or more", function() torch.grad({ w:sum() }, {}) end)
  t.raises("torch.grad: inputs[2], float32 {1}, does not take part in the outputs; with {allow_unused = true}",
    function() torch.grad({ square(w) }, { w, unused }) end)
  t.raises("torch.grad: inputs[1], float32 {1}, does not require a gradient",
    function() torch.grad({ square(w) }, { torch.ones { 1 } }) end)
end)

t.test("ACreatedGraphCanBeDifferentiatedAgain", function()
  local w = leaf { 1, 2 }

  local first = torch.grad((w ^ 3):sum(), w, { create_graph = true })[1]
  local second = torch.grad(first:sum(), w, { create_graph = true })[1]
  second:sum():backward()

  t.equal(first:detach(), torch.tensor { 3, 12 })
  t.equal(second:detach(), torch.tensor { 6, 12 })
  t.equal(w.grad, torch.tensor { 6, 6 })
end)

t.test("GradKeepsTheGraphWhereItIsAskedTo", function()
  local w = leaf { 1, 2 }
  local loss = square(w)

  local first = torch.grad(loss, w, { retain_graph = true })
  t.equal(torch.grad(loss, w), first)
  t.raises("torch.grad: Trying to backward through the graph a second time", torch.grad, loss, w)
end)

t.test("WrongCallsOfGradSayWhatIsWrong", function()
  local w = leaf { 1 }
  t.raises("torch.grad: outputs must be a table", torch.grad)
  t.raises("torch.grad: inputs[2] must be a tensor, not the number 1", torch.grad, square(w), { w, 1 })
  t.raises('torch.grad: unknown option "grad_output"; did you mean "grad_outputs"?', torch.grad, square(w), w,
    { grad_output = 1 })
end)

-- no_grad ---------------------------------------------------------------------------------------------

t.test("NoGradPassesArgumentsAndReturnsEveryResult", function()
  local w = leaf { 1, 2 }

  local results = { torch.no_grad(function(a, b, ...) return a * b, select("#", ...), nil, "last" end, w, 3, nil, nil) }

  t.equal(results[1], torch.tensor { 3, 6 })
  t.equal(results[1].requires_grad, false)
  t.equal(results[2], 2)
  t.equal(results[3], nil)
  t.equal(results[4], "last")
  t.equal(torch.is_grad_enabled(), true)
end)

t.test("NoGradEndsWithItsFunction", function()
  t.equal(torch.no_grad(torch.is_grad_enabled), false)
  t.equal(torch.is_grad_enabled(), true)
end)

t.test("NoGradEndsWithAnErrorToo", function()
  local thrown = {}

  t.raises("on purpose", torch.no_grad, function() error("on purpose") end)
  t.equal(torch.is_grad_enabled(), true)
  local ok, caught = pcall(torch.no_grad, function() error(thrown) end)
  t.truthy(not ok and caught == thrown)
  t.equal(torch.is_grad_enabled(), true)
  t.raises("torch.mm: ", torch.no_grad, function() torch.mm(torch.ones(2, 3), torch.ones(2, 3)) end)
  t.equal(torch.is_grad_enabled(), true)
end)

t.test("GradModesNest", function()
  local seen = {}
  local function note() seen[#seen + 1] = torch.is_grad_enabled() end

  torch.no_grad(function()
    note()
    torch.enable_grad(function()
      note()
      pcall(torch.no_grad, error, "on purpose")
      note()
    end)
    note()
  end)

  t.equal(seen, { false, true, true, false })
end)

t.test("GradModesTakeFunctions", function()
  t.raises("torch.no_grad: the argument must be a function, not nothing", torch.no_grad)
  t.raises("torch.enable_grad: the argument must be a function, not a table", torch.enable_grad, {})
  t.raises("torch.inference_mode: the argument must be a function, not nothing", torch.inference_mode)
end)

t.test("InferenceModeMakesTensorsThatTrainingCannotUse", function()
  local w = leaf { 1, 2 }

  local y, count, last = torch.inference_mode(function(a, ...) return a * 2, select("#", ...), "last" end, w, nil, nil)

  t.equal({ y, count, last }, { torch.tensor { 2, 4 }, 2, "last" })
  t.equal({ y:is_inference(), y.requires_grad, (w * 2):is_inference() }, { true, false, false })
  t.raises("Inference tensors cannot be saved for backward", function() return w * y end)
  t.raises("Inplace update to inference tensor outside InferenceMode", function() y:add_(1) end)
  local copy = y:clone():add_(1)
  t.equal(torch.grad((w * copy):sum(), w), { copy })
end)

t.test("InferenceModeEndsWithItsFunctionAndWithAnError", function()
  t.equal(torch.inference_mode(torch.is_grad_enabled), false)
  t.raises("on purpose", torch.inference_mode, function() error("on purpose") end)
  t.equal({ torch.is_grad_enabled(), torch.ones({ 1 }):is_inference() }, { true, false })
end)

-- Graphs ----------------------------------------------------------------------------------------------

t.test("DetachCutsTheGraphAndSharesTheElements", function()
  local w = leaf { 1, 2 }

  local cut = w:detach()
  t.equal(cut.requires_grad, false)
  dot(w, cut):backward()
  t.equal(w.grad, torch.tensor { 1, 2 })

  cut:add_(1)
  t.equal(w:totable(), { 2, 3 })
end)

t.test("LeavesThatRequireGradAreNotWrittenOutsideNoGrad", function()
  local w = leaf { 1, 2 }

  t.raises("torch.add_: a leaf Variable that requires grad is being used in an in-place operation", function()
    w:add_(1)
  end)
  torch.no_grad(function() w:sub_(1) end)

  t.equal(w:totable(), { 0, 1 })
  t.equal(w.requires_grad, true)
end)

t.test("AValueThatBackwardNeedsMustNotHaveChanged", function()
  local w = leaf { 1, 2 }
  local y = w * 1
  local loss = square(y)

  y:add_(1)

  t.raises("backward: one of the variables needed for gradient computation has been modified", function()
    loss:backward()
  end)
end)

t.test("OnlyLeavesMayStopToRequireGrad", function()
  local y = leaf { 1 } * 2

  t.raises("torch.requires_grad_: you can only change requires_grad flags of leaf variables", function()
    y:requires_grad_(false)
  end)
  t.raises("torch.requires_grad_: Only Tensors of floating point", function()
    torch.tensor({ 1 }, { dtype = torch.int64 }):requires_grad_()
  end)
end)

t.test("AnIntermediateKeepsItsGradientWhereItIsAskedTo", function()
  local w = leaf { 1, 2 }
  local y = w * 3
  y:retain_grad()

  square(y):backward()

  t.equal(y.grad, torch.tensor { 6, 12 })
end)

t.test("AGradientThatIsAssignedMustFitItsTensor", function()
  local w = leaf { 1, 2 }
  local given = torch.tensor { 5, 5 }

  w.grad = given
  square(w):backward()

  t.equal(w.grad, torch.tensor { 7, 9 })
  t.raises("x.grad must be as x is, float32 {2}, not float32 {3}", function() w.grad = torch.ones(3) end)
  t.raises("x.grad must be as x is, float32 {2}, not float64 {2}", function() w.grad = torch.ones(2):double() end)
  t.raises("x.grad must be a tensor, not the number 0", function() w.grad = 0 end)
  t.equal(w.grad, torch.tensor { 7, 9 })
end)

-- Hooks -----------------------------------------------------------------------------------------------

t.test("AHookSeesTheGradientOncePerBackward", function()
  local w = leaf { 1, 2 }
  local seen = {}
  w:register_hook(function(gradient) seen[#seen + 1] = gradient:totable() end)

  square(w * 1):backward()
  square(w):backward()

  t.equal(seen, { { 2, 4 }, { 2, 4 } })
  t.equal(w.grad, torch.tensor { 4, 8 })
end)

t.test("AHookMayReturnAnotherGradient", function()
  local w = leaf { 1, 2 }
  local y = w * 1
  y:register_hook(function(gradient) return gradient * 10 end)
  y:register_hook(function(gradient) return gradient + 1 end)

  square(y):backward()

  t.equal(w.grad, torch.tensor { 21, 41 })
end)

t.test("HooksRunFromTheLossBack", function()
  local w = leaf { 1 }
  local y = w * 2
  local order = {}
  for name, x in pairs { w = w, y = y } do x:register_hook(function() order[#order + 1] = name end) end

  y:sum():backward()

  t.equal(order, { "y", "w" })
end)

t.test("AHooksErrorLeavesBackwardAsItWas", function()
  local thrown = {}
  local w = leaf { 1, 2 }
  local fails = true
  w:register_hook(function() if fails then error(thrown) end end)

  local ok, caught = pcall(function() square(w):backward() end)
  t.truthy(not ok and caught == thrown)
  t.equal(w.grad, nil)

  fails = false
  square(w):backward()
  t.equal(w.grad, torch.tensor { 2, 4 })
  t.equal(torch.is_grad_enabled(), true)
end)

t.test("HooksMayCallBackwardThemselves", function()
  local w, inner = leaf { 1, 2 }, leaf { 3 }
  w:register_hook(function(gradient)
    torch.enable_grad(function() dot(inner, gradient:sum()):backward() end)
  end)

  square(w):backward()

  t.equal(w.grad, torch.tensor { 2, 4 })
  t.equal(inner.grad, torch.tensor { 6 })
end)

t.test("WrongHooksSayWhatIsWrong", function()
  local w = leaf { 1 }
  t.raises("register_hook: the hook must be a function, not nil", function() w:register_hook(nil) end)
  t.raises("register_hook: cannot register a hook on a variable that doesn't require gradient", function()
    torch.ones(1):register_hook(print)
  end)
  w:register_hook(function() return 3 end)
  local loss = square(w)
  t.raises("register_hook: what the hook returns must be a tensor, not the number 3", loss.backward, loss)
end)
