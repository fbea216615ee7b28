--- lockstep.torch: ATen's operators by name, called by schema. The same calls in PyTorch print the same text. Wrong
--- calls: torch_errors_test.lua.

local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local function integers(values) return torch.tensor(values, { dtype = torch.int64 }) end

--- Names that expressions in tables of cases may use.
local scope = {
  torch = torch,
  x = torch.tensor { { 1, 2, 3 }, { 4, 5, 6 } },
  y = torch.tensor { { 6, 5, 4 }, { 3, 2, 1 } },
  i = integers { { 0, 1, 2 }, { 3, 4, 5 } },
  mask = torch.tensor { { true, false, true }, { false, true, false } },
  huge = math.huge,
}

local function text(value)
  if type(value) ~= "table" then return tostring(value) end
  if getmetatable(value) then return tostring(value) end
  local parts = {}
  for k, v in ipairs(value) do parts[k] = text(v) end
  return "{" .. table.concat(parts, ", ") .. "}"
end

--- Evaluates `expression` and joins its results, as text on one line, with "; ".
local function evaluate(expression)
  local chunk = setfenv(assert(loadstring("return " .. expression, "=" .. expression)), scope)
  local parts = {}
  local function collect(...)
    for k = 1, select("#", ...) do parts[k] = text((select(k, ...))):gsub("\n%s*", " ") end
  end
  collect(chunk())
  return table.concat(parts, "; ")
end

--- Each case is {expression, what it gives}.
local function check(cases)
  for _, case in ipairs(cases) do t.equal(evaluate(case[1]), case[2], case[1]) end
end

-- Arguments -------------------------------------------------------------------------------------------

t.test("ArgumentsArePositionalThenATableOfKeywords", function()
  check {
    { "torch.sum(x)", "tensor(21.)" },
    { "torch.sum(x, 1)", "tensor([ 6., 15.])" },
    { "torch.sum(x, {0, 1})", "tensor(21.)" },
    { "torch.sum(x, 1, true)", "tensor([[ 6.], [15.]])" },
    { "torch.sum(x, {dim = {1}, keepdim = true})", "tensor([[ 6.], [15.]])" },
    { "torch.sum(x, {dim = -1})", "tensor([ 6., 15.])" },
    { "torch.sum(x, {-1}, nil, {dtype = torch.float64})", "tensor([ 6., 15.], dtype=torch.float64)" },
    { "torch.mean(x, {1, 0})", "tensor(3.5000)" },
    { "torch.sum(x, 1, {dtype = torch.float64})", "tensor([ 6., 15.], dtype=torch.float64)" },
    { "torch.add(x, y, {alpha = 2})", "tensor([[13., 12., 11.], [10.,  9.,  8.]])" },
    { "torch.softmax(x, 1)", "tensor([[0.0900, 0.2447, 0.6652], [0.0900, 0.2447, 0.6652]])" },
    { "torch.linspace(0, 1, 5)", "tensor([0.0000, 0.2500, 0.5000, 0.7500, 1.0000])" },
    { "torch.einsum('ij,kj->ik', {x, y})", "tensor([[28., 10.], [73., 28.]])" },
    { "torch.div(x, 4, {rounding_mode = 'floor'})", "tensor([[0., 0., 0.], [1., 1., 1.]])" },
  }
end)

t.test("AMethodIsTheOperatorWithTheTensorFirst", function()
  check {
    { "x:sum(1)", "tensor([ 6., 15.])" },
    { "x:sum({dim = 0})", "tensor([5., 7., 9.])" },
    { "x:clamp(2, 5)", "tensor([[2., 2., 3.], [4., 5., 5.]])" },
    { "x:t():mm(y)", "tensor([[18., 13.,  8.], [27., 20., 13.], [36., 27., 18.]])" },
    { "x:softmax(-1, torch.float64)[0]", "tensor([0.0900, 0.2447, 0.6652], dtype=torch.float64)" },
  }
end)

t.test("NumbersInARowStandForTheListThatComesLast", function()
  check {
    { "torch.zeros(2, 2)", "tensor([[0., 0.], [0., 0.]])" },
    { "torch.zeros(2, 2, {dtype = torch.int64})", "tensor([[0, 0], [0, 0]])" },
    { "torch.zeros({2, 2})", "tensor([[0., 0.], [0., 0.]])" },
    { "torch.zeros({})", "tensor(0.)" },
    { "x:view(-1)", "tensor([1., 2., 3., 4., 5., 6.])" },
    { "x:view(3, -1)", "tensor([[1., 2.], [3., 4.], [5., 6.]])" },
    { "x:permute(1, 0).shape", "{3, 2}" },
    { "x:view(torch.int32).dtype", "torch.int32" },
    { "x:reshape({3, 2})", "tensor([[1., 2.], [3., 4.], [5., 6.]])" },
    { "x[0][0]:view({})", "tensor(1.)" },
  }
end)

t.test("ANumberFillsAListOfKnownLength", function()
  check {
    { "torch.max_pool2d(torch.ones(1, 1, 4, 4), 2).shape", "{1, 1, 2, 2}" },
    { "torch.adaptive_avg_pool2d(torch.ones(1, 1, 4, 4), 2).shape", "{1, 1, 2, 2}" },
    { "torch.im2col(torch.ones(1, 1, 4, 4), 2, 1, 0, 2).shape", "{1, 4, 4}" },
    { "torch.roll(x, 1)", "tensor([[6., 1., 2.], [3., 4., 5.]])" },
  }
end)

t.test("AReductionHasTheNamesOfPyTorch", function()
  check {
    { 'torch.mse_loss(x, y, {reduction = "none"})', "tensor([[25.,  9.,  1.], [ 1.,  9., 25.]])" },
    { 'torch.mse_loss(x, y, "sum")', "tensor(70.)" },
    { 'torch.mse_loss(x, y, {reduction = "mean"})', "tensor(11.6667)" },
    { "torch.mse_loss(x, y, {reduction = 2})", "tensor(70.)" },
    { 'torch.nll_loss(-x, i[{0, {1, 3}}], {reduction = "sum"})', "tensor(8.)" },
  }
end)

t.test("TheOverloadIsTheOneThatTheArgumentsFit", function()
  check {
    { "torch.max(x)", "tensor(6.)" },
    { "torch.max(x, y)", "tensor([[6., 5., 4.], [4., 5., 6.]])" },
    { "torch.std(x, 1)", "tensor([1., 1.])" },
    { "torch.std(x, {correction = 0})", "tensor(1.7078)" },
    { "torch.norm(x)", "tensor(9.5394)" },
    { "torch.norm(x, 1, 0)", "tensor([5., 7., 9.])" },
    { "torch.where(mask, x, 0)", "tensor([[1., 0., 3.], [0., 5., 0.]])" },
    { "torch.where(mask, 1, y)", "tensor([[1., 5., 1.], [3., 1., 1.]])" },
    { "torch.clamp(x, y)", "tensor([[6., 5., 4.], [4., 5., 6.]])" },
    { "torch.normal(0, 1, {3}).shape", "{3}" },
    { "x:squeeze(0).shape", "{2, 3}" },
    { "x:any()", "tensor(True)" },
  }
end)

t.test("NilIsAnArgumentThatIsNotGiven", function()
  check {
    { "torch.clamp(x, nil, 3)", "tensor([[1., 2., 3.], [3., 3., 3.]])" },
    { "torch.clamp(x, {min = 3, max = nil})", "tensor([[3., 3., 3.], [4., 5., 6.]])" },
    { "torch.sum(x, nil, true)", "tensor([[21.]])" },
    { "torch.layer_norm(x, {3}, nil, nil, 1e-5)[0]", "tensor([-1.2247,  0.0000,  1.2247])" },
    { "torch.exp(x[0], nil)", "tensor([ 2.7183,  7.3891, 20.0855])" },
  }
end)

t.test("KeywordArgumentsMayBeNilOrAnEmptyTable", function()
  check {
    { "torch.zeros({2}, nil)", "tensor([0., 0.])" },
    { "torch.zeros({2}, {})", "tensor([0., 0.])" },
    { "torch.zeros(2, {})", "tensor([0., 0.])" },
    { "x:sum(1, false, {})", "tensor([ 6., 15.])" },
    { "torch.full({2}, 3, {})", "tensor([3., 3.])" },
    { "torch.full({2}, 3, nil)", "tensor([3., 3.])" },
    { "x:argmax({dim = nil})", "tensor(5)" },
    { "torch.softmax(x * 0, 1, {})[0]", "tensor([0.3333, 0.3333, 0.3333])" },
    { "torch.layer_norm(x, {3}, {})[0]", "tensor([-1.2247,  0.0000,  1.2247])" },
    { "torch.cat({x, y}, {}).shape", "{4, 3}" },
    { "torch.topk(x[0], 2, {})", "tensor([3., 2.]); tensor([2, 1])" },
  }
end)

t.test("AnEmptyTableIsAListWhereAListFits", function()
  check {
    { "torch.zeros({})", "tensor(0.)" },
    { "x:view(1, 2, 3):squeeze({}).shape", "{1, 2, 3}" },
    { "x:view(1, 2, 3):squeeze().shape", "{2, 3}" },
  }
end)

t.test("MinusZeroIsAWholeNumber", function()
  local shift = 0

  t.equal(torch.roll(scope.x, -shift, 1), scope.x)
  t.equal(tostring(scope.x:view(3, 2):select(-shift, -shift)), "tensor([1., 2.])")
  t.equal(tostring(torch.full({ 1 }, -shift)), "tensor([-0.])")
end)

-- Results ---------------------------------------------------------------------------------------------

t.test("SeveralResultsAreSeveralValues", function()
  check {
    { "torch.max(x, 1)", "tensor([3., 6.]); tensor([2, 2])" },
    { "torch.topk(x, 1)", "tensor([[3.], [6.]]); tensor([[2], [2]])" },
    { "torch.sort(y, {descending = false})", "tensor([[4., 5., 6.], [1., 2., 3.]]); tensor([[2, 1, 0], [2, 1, 0]])" },
    { "torch.var_mean(x, {dim = 1})", "tensor([1., 1.]); tensor([2., 5.])" },
    { "select('#', torch._foreach_add_({x:clone()}, 1))", "0" },
  }
end)

scope.select = select

t.test("AListOfTensorsIsAnArray", function()
  check {
    { "torch.split(x, 2, 1)", "{tensor([[1., 2.], [4., 5.]]), tensor([[3.], [6.]])}" },
    { "torch.split(x, {1, 1})", "{tensor([[1., 2., 3.]]), tensor([[4., 5., 6.]])}" },
    { "x:unbind()", "{tensor([1., 2., 3.]), tensor([4., 5., 6.])}" },
    { "torch.cat({x, y}, 1)", "tensor([[1., 2., 3., 6., 5., 4.], [4., 5., 6., 3., 2., 1.]])" },
    { "torch.cat(x:unbind())", "tensor([1., 2., 3., 4., 5., 6.])" },
    { "torch.stack({x[0], y[0]})", "tensor([[1., 2., 3.], [6., 5., 4.]])" },
    { "torch._foreach_mul({x[0], y[0]}, 2)", "{tensor([2., 4., 6.]), tensor([12., 10.,  8.])}" },
    { "torch.index(x, {false, torch.tensor({2, 0}, {dtype = torch.int64})})", "tensor([[3., 1.], [6., 4.]])" },
  }
end)

t.test("ResultsThatAreNoTensorsAreLuaValues", function()
  check {
    { "torch.equal(x, x), torch.allclose(x, y)", "true; false" },
    { "x:is_floating_point(), i:is_floating_point()", "true; false" },
    { "torch.result_type(i, 0.5), torch.promote_types(torch.int32, torch.int64)", "torch.float32; torch.int64" },
  }
end)

t.test("OutOfPlaceOperatorsLeaveTheirArguments", function()
  local x = torch.ones { 2 }

  local y = x:add(1)

  t.equal(x, torch.ones { 2 })
  t.equal(y, torch.full({ 2 }, 2))
end)

t.test("InPlaceOperatorsReturnTheTensorItself", function()
  local x = torch.ones { 2 }

  local same = x:add_(1):mul_(3)

  t.truthy(rawequal(same, x))
  t.equal(x, torch.full({ 2 }, 6))
end)

t.test("OutNamesTheTensorThatIsWrittenAndReturned", function()
  local out, values, indices = torch.empty { 2 }, torch.empty { 2 }, torch.empty({ 2 }, { dtype = torch.int64 })

  local same = torch.sum(scope.x, { dim = 1, out = out })
  local full = torch.full({ 2 }, 1, { out = integers { 0, 0 } })
  local first, second = torch.max(scope.x, 1, { max = values, max_values = indices })

  t.truthy(rawequal(same, out))
  t.truthy(rawequal(first, values) and rawequal(second, indices))
  t.equal(out, torch.tensor { 6, 15 })
  t.equal(full, integers { 1, 1 })
  t.equal(values, torch.tensor { 3, 6 })
  t.equal(indices, integers { 2, 2 })
end)

t.test("ACallGivesTheSameTheHundredthTime", function()
  -- Choices are remembered by the kinds of the arguments: those of one call must not answer another.
  local x = scope.x
  for _ = 1, 100 do
    t.equal(torch.max(x):item(), 6)
    t.equal((torch.max(x, 1)), torch.tensor { 3, 6 })
    t.equal(torch.max(x, x), x)
    t.equal(torch.add(x, x):sum():item(), 42)
    t.equal(torch.add(x, 0.5):sum():item(), 24)
    t.near(torch.dist(x, scope.y):item(), math.sqrt(70), 1e-5)
    t.equal(torch.sum(x, { dim = 1, keepdim = true }).shape, torch.zeros(2, 1).shape)
    t.equal(torch.sum(x, { dim = { 0, 1 } }):item(), 21)
    t.equal(torch.clamp(x, { min = 5 }):min():item(), 5)
    t.equal(torch.clamp(x, { max = 5 }):min():item(), 1)
  end
end)

-- Arithmetic ------------------------------------------------------------------------------------------

t.test("ArithmeticWorksBetweenTensorsAndNumbersBothWays", function()
  check {
    { "x + y", "tensor([[7., 7., 7.], [7., 7., 7.]])" },
    { "x[0] + 1", "tensor([2., 3., 4.])" },
    { "1 + x[0]", "tensor([2., 3., 4.])" },
    { "x[0] - 1", "tensor([0., 1., 2.])" },
    { "1 - x[0]", "tensor([ 0., -1., -2.])" },
    { "x[0] * 2", "tensor([2., 4., 6.])" },
    { "2 * x[0]", "tensor([2., 4., 6.])" },
    { "x[0] / 2", "tensor([0.5000, 1.0000, 1.5000])" },
    { "6 / x[0]", "tensor([6., 3., 2.])" },
    { "x[0] % 2", "tensor([1., 0., 1.])" },
    { "-x[0] % 2.5", "tensor([1.5000, 0.5000, 2.0000])" },
    { "5 % x[0]", "tensor([0., 1., 2.])" },
    { "x[0] ^ 2", "tensor([1., 4., 9.])" },
    { "2 ^ x[0]", "tensor([2., 4., 8.])" },
    { "x[0] ^ y[0]", "tensor([ 1., 32., 81.])" },
    { "-x[0]", "tensor([-1., -2., -3.])" },
    { "-(1 - x[0]) * 2 + y[0] / 2", "tensor([3.0000, 4.5000, 6.0000])" },
  }
end)

t.test("ANumberBesideATensorTakesItsDtype", function()
  check {
    { "i[0] * 2", "tensor([0, 2, 4])" },
    { "2 ^ i[0]", "tensor([1, 2, 4])" },
    { "i[0] * 2.5", "tensor([0.0000, 2.5000, 5.0000])" },
    { "i[0] / 2", "tensor([0.0000, 0.5000, 1.0000])" },
    { "(x:to(torch.bfloat16) * 2.5).dtype", "torch.bfloat16" },
    { "(1 - x:to(torch.float64)).dtype", "torch.float64" },
    { "torch.maximum(i[0], 1)", "tensor([1, 1, 2])" },
    { "mask[0] * 3", "tensor([3, 0, 3])" },
  }
end)

t.test("EqualityIsOfTheTensorNotOfItsElements", function()
  local x = torch.ones { 2 }

  t.truthy(x == x)
  t.truthy(x ~= x:clone())
  t.equal(x:eq(x:clone()), torch.tensor { true, true })
end)

-- Fields and values -----------------------------------------------------------------------------------

t.test("ATensorTellsItsShapeDtypeAndDevice", function()
  check {
    { "x:size(), x.shape", "{2, 3}; {2, 3}" },
    { "x:size(0), x:size(-1), x.shape[1], #x.shape", "2; 3; 2; 2" },
    { "x:dim(), x.ndim, x:numel(), #x", "2; 2; 6; 2" },
    { "x.dtype, i.dtype, mask.dtype", "torch.float32; torch.int64; torch.bool" },
    { "x.device, torch.zeros({2}, {device = 'meta'}).device", "cpu; meta" },
    { "x:stride(), x:stride(0), x:t():is_contiguous()", "{3, 1}; 3; false" },
    { "x.T", "tensor([[1., 4.], [2., 5.], [3., 6.]])" },
    { "torch.tensor(5).shape, torch.tensor(5):dim()", "{}; 0" },
    { "x.shape == y.shape, x.shape == x.T.shape", "true; false" },
  }
end)

t.test("DtypeAndDeviceAreArguments", function()
  check {
    { "torch.zeros({2}, {dtype = torch.float64})", "tensor([0., 0.], dtype=torch.float64)" },
    { "torch.ones({2}, {dtype = torch.bool, device = 'cpu'})", "tensor([True, True])" },
    { "torch.arange(3), torch.arange(3, {dtype = torch.float32})", "tensor([0, 1, 2]); tensor([0., 1., 2.])" },
    { "torch.zeros_like(i, {dtype = torch.float16})[0]", "tensor([0., 0., 0.], dtype=torch.float16)" },
    { "torch.ones({2}, {requires_grad = true})", "tensor([1., 1.], requires_grad=True)" },
    { "x:to(torch.int32)[0], x:to('cpu') == x", "tensor([1, 2, 3], dtype=torch.int32); true" },
    { "x:to({dtype = torch.float64, device = 'cpu'}).dtype, x:to(i).dtype", "torch.float64; torch.int64" },
    { "x:to(torch.float32) == x, x:to({copy = true}) == x", "true; false" },
    { "x:double().dtype, x:long().dtype, x:byte().dtype, x:bool().dtype",
      "torch.float64; torch.int64; torch.uint8; torch.bool" },
    { "torch.float == torch.float32, torch.long == torch.int64", "true; true" },
    { "torch.full({2}, 1), torch.full({2}, 1, {dtype = torch.int64}), torch.full({1}, true)",
      "tensor([1., 1.]); tensor([1, 1]); tensor([True])" },
  }
end)

t.test("TensorSpellsNestedTables", function()
  check {
    { "torch.tensor({1, 2})", "tensor([1., 2.])" },
    { "torch.tensor({1, 2}, {dtype = torch.int64})", "tensor([1, 2])" },
    { "torch.tensor({{1.5, 2}, {3, 4}}).shape", "{2, 2}" },
    { "torch.tensor({{{1}, {2}}}).shape", "{1, 2, 1}" },
    { "torch.tensor({true, false})", "tensor([ True, False])" },
    { "torch.tensor({true, false}, {dtype = torch.float32})", "tensor([1., 0.])" },
    { "torch.tensor(3), torch.tensor(true)", "tensor(3.); tensor(True)" },
    { "torch.tensor({})", "tensor([])" },
    { "torch.tensor({{}, {}})", "tensor([], size=(2, 0))" },
    { "torch.tensor({huge, -huge, 0 / 0})", "tensor([inf, -inf, nan])" },
    { "torch.tensor({255, 0}, {dtype = torch.uint8})", "tensor([255,   0], dtype=torch.uint8)" },
    { "torch.tensor({1, 2}, {requires_grad = true})", "tensor([1., 2.], requires_grad=True)" },
    { "torch.tensor({1}, {device = 'cpu', dtype = torch.float16})", "tensor([1.], dtype=torch.float16)" },
  }
end)

t.test("TensorOfATensorIsACopy", function()
  local x = torch.ones({ 2 }, { requires_grad = true })

  local copy = torch.tensor(x, { dtype = torch.float64 })
  torch.no_grad(function() x:zero_() end)

  t.equal(copy, torch.ones({ 2 }, { dtype = torch.float64 }))
  t.equal(copy.requires_grad, false)
end)

t.test("TablesComeBackAsTheyWere", function()
  for _, case in ipairs {
    { { 1, 2.5, -3 } },
    { { { 1, 2 }, { 3, 4 } } },
    { { { { true }, { false } } } },
    { {} },
    { { {}, {} } },
    { 7 },
    { false },
    { { 1, 2 ^ 53, -2 ^ 53 }, torch.int64 },
    { { 0, 65535 }, torch.uint16 },
    { { 0.5, -2 }, torch.bfloat16 },
  } do
    t.equal(torch.tensor(case[1], { dtype = case[2] }):totable(), case[1])
  end
end)

t.test("TotableFollowsViewsAndGradients", function()
  local x = torch.tensor({ { 1, 2 }, { 3, 4 } }, { requires_grad = true })

  t.equal(x.T:totable(), { { 1, 3 }, { 2, 4 } })
  t.equal((x * 2)[1]:totable(), { 6, 8 })
end)

t.test("ItemIsALuaValue", function()
  check {
    { "x:sum():item(), i:sum():item(), torch.equal(x, y)", "21; 15; false" },
    { "torch.tensor({{true}}):item(), torch.tensor({2.5}):item()", "true; 2.5" },
    { "torch.tensor(0 / 0):item() ~= torch.tensor(0 / 0):item()", "true" },
  }
end)

t.test("IntegersAreExactTo2To53", function()
  local greatest = integers { 2 ^ 53 - 1, 2 ^ 53, -2 ^ 53 }

  t.equal(greatest:totable(), { 9007199254740991, 9007199254740992, -9007199254740992 })
  t.equal((greatest[0] + 1):item(), 2 ^ 53)
  t.equal((greatest[1] + 1 - 2):item(), 2 ^ 53 - 1)  -- in between, in int64, it is 2^53 + 1
  t.equal(torch.full({ 1 }, 2 ^ 53 - 1, { dtype = torch.int64 }):item(), 2 ^ 53 - 1)
end)

-- State -----------------------------------------------------------------------------------------------

t.test("TheSameSeedDrawsTheSameNumbers", function()
  torch.manual_seed(7)
  local first, second = torch.rand { 3 }, torch.rand { 3 }
  torch.manual_seed(7)

  t.equal(torch.rand { 3 }, first)
  t.equal(torch.rand { 3 }, second)
  t.truthy(not torch.equal(first, second))
end)

t.test("TheGeneratorsStateCanBeKeptAndPutBack", function()
  local state = torch.get_rng_state()
  local first = torch.randn { 3 }
  torch.set_rng_state(state)

  t.equal(torch.randn { 3 }, first)
end)

t.test("TheDefaultDtypeIsWhatFactoriesMake", function()
  torch.set_default_dtype(torch.float64)
  local made = { torch.zeros { 1 }, torch.tensor { 1 }, torch.full({ 1 }, 1), torch.rand(1), torch.tensor { true } }
  torch.set_default_dtype(torch.float32)

  for k = 1, 4 do t.equal(made[k].dtype, torch.float64) end
  t.equal(made[5].dtype, torch.bool)
  t.equal(torch.get_default_dtype(), torch.float32)
  t.equal(torch.zeros { 1 }.dtype, torch.float32)
end)

t.test("IsTensorTellsTensorsFromOtherValues", function()
  for _, value in ipairs { 1, "x", {}, print, true, torch.float32, io.stdout } do
    t.equal(torch.is_tensor(value), false)
  end
  t.equal(torch.is_tensor(nil), false)
  t.equal(torch.is_tensor(torch.ones(1)), true)
end)
