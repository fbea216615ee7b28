--- tostring(x). Every expectation is the text that str(x) gives in Python for the same tensor, with PyTorch 2.11.

local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local INF, NAN = math.huge, 0 / 0

local function integers(values) return torch.tensor(values, { dtype = torch.int64 }) end

--- Each case is {tensor, its text}.
local function check(cases)
  for _, case in ipairs(cases) do t.equal(tostring(case[1]), case[2]) end
end

-- Elements --------------------------------------------------------------------------------------------

t.test("AScalarStandsAlone", function()
  check {
    { torch.tensor(3), "tensor(3.)" },
    { torch.tensor(-2.5), "tensor(-2.5000)" },
    { torch.tensor(3, { dtype = torch.int64 }), "tensor(3)" },
    { torch.tensor(true), "tensor(True)" },
    { torch.tensor(NAN), "tensor(nan)" },
    { torch.tensor(1e-9), "tensor(1.0000e-09)" },
  }
end)

t.test("WholeFloatsEndInADot", function()
  check {
    { torch.tensor { 1, 2, 3 }, "tensor([1., 2., 3.])" },
    { torch.tensor { 0, -0.0 }, "tensor([0., -0.])" },
    { torch.tensor { 1, -20, 300 }, "tensor([  1., -20., 300.])" },
  }
end)

t.test("OtherFloatsHaveFourDecimals", function()
  check {
    { torch.tensor { 0.5, 1 }, "tensor([0.5000, 1.0000])" },
    { torch.tensor { 1.5, -22.25 }, "tensor([  1.5000, -22.2500])" },
    { torch.tensor { 1 / 3, 0 }, "tensor([0.3333, 0.0000])" },
  }
end)

t.test("ARangeTooWideForFourDecimalsIsScientific", function()
  check {
    { torch.tensor { 1, 1000 }, "tensor([   1., 1000.])" },
    { torch.tensor { 1, 1001 }, "tensor([1.0000e+00, 1.0010e+03])" },
    { torch.tensor { 0.5, 1000 }, "tensor([5.0000e-01, 1.0000e+03])" },
    { torch.tensor { 1e8 }, "tensor([100000000.])" },
    { torch.tensor { 2e8, -3e8 }, "tensor([ 2.0000e+08, -3.0000e+08])" },
    { torch.tensor { 1e-4, 2e-4 }, "tensor([1.0000e-04, 2.0000e-04])" },
    { torch.tensor { 0.01, 0.02 }, "tensor([0.0100, 0.0200])" },
  }
end)

t.test("InfinitiesAndNanDoNotWidenColumns", function()
  check {
    { torch.tensor { 1, INF, -INF, NAN }, "tensor([1., inf, -inf, nan])" },
    { torch.tensor { 0.5, INF, NAN }, "tensor([0.5000,    inf,    nan])" },
    { torch.tensor { NAN, NAN }, "tensor([nan, nan])" },
    { torch.tensor { 1e9, INF }, "tensor([1.0000e+09,        inf])" },
  }
end)

t.test("IntegersAlign", function()
  check {
    { integers { 1, -20, 300 }, "tensor([  1, -20, 300])" },
    { integers { 2 ^ 53, 1 }, "tensor([9007199254740992,                1])" },
    { integers({ 2 ^ 53 }) * 1023, "tensor([9214364837600034816])" },
    { integers({ -1 }):view(torch.uint64), "tensor([18446744073709551615], dtype=torch.uint64)" },
  }
end)

t.test("BooleansArePythons", function()
  check {
    { torch.tensor { true, false }, "tensor([ True, False])" },
    { torch.tensor { { true }, { true } }, "tensor([[True],\n        [True]])" },
  }
end)

t.test("ComplexNumbersHaveAFormatForEachPart", function()
  local z = torch.complex(torch.tensor { 1, -2.5 }, torch.tensor { -1, 2 })
  check {
    { z, "tensor([ 1.0000-1.j, -2.5000+2.j])" },
    { z:to(torch.complex128), "tensor([ 1.0000-1.j, -2.5000+2.j], dtype=torch.complex128)" },
  }
end)

-- Dimensions ------------------------------------------------------------------------------------------

t.test("RowsAlignUnderEachOther", function()
  check {
    { torch.tensor { { 1, 2 }, { 3, 40 } }, "tensor([[ 1.,  2.],\n        [ 3., 40.]])" },
    { torch.ones(1, 1, 1), "tensor([[[1.]]])" },
    { torch.arange(8):view(2, 2, 2), [=[
tensor([[[0, 1],
         [2, 3]],

        [[4, 5],
         [6, 7]]])]=] },
    { torch.arange(4):view(2, 1, 1, 2), [=[
tensor([[[[0, 1]]],


        [[[2, 3]]]])]=] },
  }
end)

t.test("LinesBreakBefore80Columns", function()
  check {
    { torch.arange(20) * 1000, [=[
tensor([    0,  1000,  2000,  3000,  4000,  5000,  6000,  7000,  8000,  9000,
        10000, 11000, 12000, 13000, 14000, 15000, 16000, 17000, 18000, 19000])]=] },
    { (torch.arange(22) * 100):view(2, 11) / 8, [=[
tensor([[  0.0000,  12.5000,  25.0000,  37.5000,  50.0000,  62.5000,  75.0000,
          87.5000, 100.0000, 112.5000, 125.0000],
        [137.5000, 150.0000, 162.5000, 175.0000, 187.5000, 200.0000, 212.5000,
         225.0000, 237.5000, 250.0000, 262.5000]])]=] },
    { torch.zeros(30), [=[
tensor([0., 0., 0., 0., 0., 0., 0., 0., 0., 0., 0., 0., 0., 0., 0., 0., 0., 0., 0., 0., 0., 0., 0., 0.,
        0., 0., 0., 0., 0., 0.])]=] },
  }
end)

t.test("MoreThanAThousandElementsAreSummarised", function()
  check {
    { torch.arange(1001), "tensor([   0,    1,    2,  ...,  998,  999, 1000])" },
    { torch.arange(10000):view(100, 100), [=[
tensor([[   0,    1,    2,  ...,   97,   98,   99],
        [ 100,  101,  102,  ...,  197,  198,  199],
        [ 200,  201,  202,  ...,  297,  298,  299],
        ...,
        [9700, 9701, 9702,  ..., 9797, 9798, 9799],
        [9800, 9801, 9802,  ..., 9897, 9898, 9899],
        [9900, 9901, 9902,  ..., 9997, 9998, 9999]])]=] },
    { torch.arange(1500):view(1500, 1), [=[
tensor([[   0],
        [   1],
        [   2],
        ...,
        [1497],
        [1498],
        [1499]])]=] },
    { torch.arange(1200):view(2, 600), [=[
tensor([[   0,    1,    2,  ...,  597,  598,  599],
        [ 600,  601,  602,  ..., 1197, 1198, 1199]])]=] },
  }
  local thousand = tostring(torch.arange(1000))
  t.equal(thousand:find("...", 1, true), nil)
end)

t.test("OnlyWhatIsShownChoosesTheFormat", function()
  local x = torch.zeros(2000)
  x[1000] = 1e20

  t.equal(tostring(x), "tensor([0., 0., 0.,  ..., 0., 0., 0.])")
end)

t.test("ViewsPrintWhatTheySee", function()
  local x = torch.arange(6):view(2, 3)

  t.equal(tostring(x.T), "tensor([[0, 3],\n        [1, 4],\n        [2, 5]])")
  t.equal(tostring(torch.ones(1):expand(3)), "tensor([1., 1., 1.])")
end)

t.test("NoElementsPrintTheirSize", function()
  check {
    { torch.tensor {}, "tensor([])" },
    { torch.zeros(0, 3), "tensor([], size=(0, 3))" },
    { integers {}, "tensor([], dtype=torch.int64)" },
    { torch.zeros({ 2, 0 }, { dtype = torch.bool }), "tensor([], size=(2, 0), dtype=torch.bool)" },
  }
end)

-- Suffixes -------------------------------------------------------------------------------------------

t.test("DtypesThatTheElementsDoNotTellAreNamed", function()
  for _, name in ipairs { "float64", "float16", "bfloat16" } do
    t.equal(tostring(torch.ones({ 1 }, { dtype = torch[name] })), "tensor([1.], dtype=torch." .. name .. ")")
  end
  for _, name in ipairs { "uint8", "int8", "int16", "int32" } do
    t.equal(tostring(torch.ones({ 1 }, { dtype = torch[name] })), "tensor([1], dtype=torch." .. name .. ")")
  end
  t.equal(tostring(torch.ones({ 1 }):to(torch.float8_e4m3fn)), "tensor([1.], dtype=torch.float8_e4m3fn)")
end)

t.test("TheDefaultDtypeIsNotNamed", function()
  torch.set_default_dtype(torch.float64)
  local texts = { tostring(torch.ones(1)), tostring(torch.ones({ 1 }, { dtype = torch.float32 })) }
  torch.set_default_dtype(torch.float32)

  t.equal(texts, { "tensor([1.])", "tensor([1.], dtype=torch.float32)" })
end)

t.test("GradientsAndDevicesAreNamed", function()
  local w = torch.ones({ 2 }, { requires_grad = true })
  check {
    { w, "tensor([1., 1.], requires_grad=True)" },
    { w:exp(), "tensor([2.7183, 2.7183], grad_fn=<ExpBackward0>)" },
    { w:detach(), "tensor([1., 1.])" },
    { torch.zeros({ 3 }, { device = "meta" }), "tensor(..., device='meta', size=(3,))" },
    { torch.zeros({ 2, 3 }, { device = "meta", dtype = torch.int64 }),
      "tensor(..., device='meta', size=(2, 3), dtype=torch.int64)" },
  }
end)

t.test("ASuffixThatDoesNotFitTakesItsOwnLine", function()
  local w = (torch.arange(9):to(torch.float64) / 8):requires_grad_(true)

  t.equal(tostring(w), [=[
tensor([0.0000, 0.1250, 0.2500, 0.3750, 0.5000, 0.6250, 0.7500, 0.8750, 1.0000],
       dtype=torch.float64, requires_grad=True)]=])
end)

t.test("ASparseTensorPrintsWhatItIs", function()
  t.equal(tostring(torch.eye(2):to_sparse()), "tensor(..., size=(2, 2), layout=torch.sparse_coo)")
end)

t.test("DtypesAndShapesPrintTheirNames", function()
  t.equal(tostring(torch.bfloat16), "torch.bfloat16")
  t.equal(tostring(torch.ones(2, 3).shape), "{2, 3}")
  t.equal(tostring(torch.tensor(1):size()), "{}")
end)
