--- Wrong calls of lockstep.torch: each message names the operator, what it takes, what was given and the script's
--- line.

local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local x = torch.ones { 2, 3 }
local i = torch.tensor({ 0, 1 }, { dtype = torch.int64 })

--- Each case is {what is wrong, a call, a part of the message, and more parts}.
local function check(cases)
  for _, case in ipairs(cases) do
    local what, call = case[1], case[2]
    local ok, message = pcall(call)
    if ok then error(what .. ": there was no error", 2) end
    for k = 3, #case do
      if not message:find(case[k], 1, true) then
        error(string.format("%s: expected %q in the message, which is %q", what, case[k], message), 2)
      end
    end
  end
end

-- No overload fits ------------------------------------------------------------------------------------

t.test("AWrongCallNamesTheOperatorItsSchemasAndWhatWasGiven", function()
  local message = t.raises("torch.add cannot be called with", function() return (torch.add(x, "1")) end)

  t.equal(message:match("torch%.add cannot.*"), [[
torch.add cannot be called with (tensor float32 {2, 3}, "1"); it takes:
  torch.add(Tensor self, Scalar other, Scalar alpha=1) -> Tensor
    "other" must be a number, not "1"
  torch.add(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor
    "other" must be a tensor, not "1"]])
end)

t.test("EachKindOfArgumentSaysWhatItMustBe", function()
  check {
    { "tensor", function() torch.mm(x, true) end, '"mat2" must be a tensor, not true' },
    { "tensor missing", function() torch.mm(x) end, '"mat2" is missing: a tensor' },
    { "nil for a tensor", function() torch.mm(x, nil) end, '"mat2" must be a tensor, not nil' },
    { "a number alone", function() torch.exp(2) end, '"self" must be a tensor, not a number' },
    { "list of tensors", function() torch.cat(x, x) end, '"tensors" must be an array of tensors, not tensor float32' },
    { "list of both", function() torch.cat { x, 1 } end, "not {tensor float32 {2, 3}, 1}" },
    { "integer", function() torch.cat({ x }, 0.5) end, '"dim" must be a whole number, not 0.5' },
    { "integer beyond", function() torch.cat({ x }, 2 ^ 60) end,
      '"dim" must be a whole number, not 1.1529215046068e+18' },
    { "integers", function() x:view({ 2, 1.5 }) end, '"size" must be an array of whole numbers, not {2, 1.5}' },
    { "integers in a row", function() x:view(2, 1.5) end, '"size" must be whole numbers, not 1.5' },
    { "one or more", function() x:sum("0") end, '"dim" must be a whole number or an array of them, not "0"' },
    { "number", function() torch.dropout(x, "0.5", true) end, '"p" must be a number, not "0.5"' },
    { "boolean", function() torch.dropout(x, 0.5, 1) end, '"train" must be true or false, not 1' },
    { "dtype", function() torch.zeros({ 2 }, { dtype = "float32" }) end, '"dtype" must be a dtype, as torch.float32' },
    { "device", function() torch.zeros({ 2 }, { device = 0 }) end, '"device" must be a device, as "cuda:0", not 0' },
    { "string", function() torch.einsum(1, { x }) end, '"equation" must be a string, not 1' },
    { "generator", function() torch.rand({ 2 }, { generator = 1 }) end, '"generator" cannot be given from Lua' },
    { "function", function() torch.exp(print) end, '"self" must be a tensor, not a function' },
    { "long string", function() torch.exp(("x"):rep(99)) end, '"' .. ("x"):rep(40) .. '..."' },
    { "long list", function() torch.exp { 1, 2, 3, 4, 5, 6 } end, "{1, 2, 3, 4, ... 6 in all}" },
    { "big number", function() torch.exp(123456789) end, "(123456789)" },
  }
end)

t.test("TooManyArgumentsAreRefused", function()
  check {
    { "one more", function() torch.exp(x, 1) end, "torch.exp cannot", "takes at most 1 positional argument" },
    { "no keywords", function() torch.softmax(x, {}) end, '"dim" must be a whole number, not {}' },
    { "several", function() torch.sum(x, 0, true, 1, 2) end, "takes at most 3 positional arguments" },
    { "keywords twice", function() torch.sum(x, 0, { dim = 1 }) end, '"dim" is given twice' },
    { "a dtype in a size's place", function() torch.zeros({ 2 }, torch.int64) end, "({2}, torch.int64)",
      "takes at most 1 positional argument" },
  }
end)

t.test("KeywordsThatAreUnknownAreRefused", function()
  check {
    { "near", function() torch.sum(x, { dims = 1 }) end, 'has no parameter "dims"; did you mean "dim"?' },
    { "far", function() torch.sum(x, { colour = 1 }) end, 'has no parameter "colour"\n' },
    { "of an array", function() torch.zeros { 2, 3, dtype = torch.int64 } end,
      '"size" must be an array of whole numbers, not {2, 3, dtype = torch.int64}; '
        .. "keyword arguments go in a table of their own" },
    { "requires_grad", function() torch.zeros({ 2 }, { requires_grad = 1 }) end,
      "torch.zeros: requires_grad must be true or false" },
    { "requires_grad of no factory", function() torch.exp(x, { requires_grad = true }) end,
      'has no parameter "requires_grad"' },
  }
end)

t.test("AReductionIsNoneMeanOrSum", function()
  check {
    { "batchmean", function() torch.kl_div(x, x, { reduction = "batchmean" }) end,
      'torch.kl_div: "reduction" must be "none", "mean" or "sum", not "batchmean"' },
    { "boolean", function() torch.mse_loss(x, x, { reduction = true }) end,
      '"reduction" must be "none", "mean" or "sum", not true' },
  }
end)

t.test("AnArrayWithAHoleIsNoArray", function()
  check {
    { "list", function() torch.zeros { 1, [3] = 3 } end, '"size" must be an array of whole numbers, not {1, [3] = 3}' },
    { "tensor", function() torch.tensor { 1, [3] = 3 } end, "torch.tensor: at the top: ", "the array has a hole" },
  }
end)

-- Names -----------------------------------------------------------------------------------------------

t.test("AMisspeltNameBringsTheNearest", function()
  check {
    { "operator", function() return torch.matmull end, 'torch has no operator "matmull"; did you mean "matmul"?' },
    { "swapped", function() return torch.slef_attention, torch.sofmtax end, "torch has no operator" },
    { "function", function() return torch.manual_sede end, 'did you mean "manual_seed"?' },
    { "dtype", function() return torch.bfloat61 end, 'did you mean "bfloat16"?' },
    { "method", function() return x:totabel() end,
      'a tensor has no field or operator "totabel"; did you mean "totable"?' },
    { "field", function() return x.shpae end, 'did you mean "shape"?' },
    { "a module of PyTorch", function() return torch.linalg.inv(x) end,
      'torch has no operator "linalg"; torch.linalg.inv is torch.linalg_inv here' },
    { "nn", function() return torch.nn.Linear end, 'layers are in require "lockstep.nn"' },
    { "another name", function() return torch.cross_entropy(x) end, "use torch.cross_entropy_loss, or nn.cross" },
    { "another method", function() return x:tolist() end, 'no field or operator "tolist"; use x:totable()' },
  }
  local far = t.raises("torch has no operator", function() return torch.quite_another_thing end)
  t.equal(far:find("did you mean", 1, true), nil)
end)

t.test("FieldsOfATensorCannotBeMadeUp", function()
  check {
    { "new", function() x.label = 1 end, 'the field "label" of a tensor cannot be set; only grad and requires_grad' },
    { "shape", function() x.shape = { 6 } end, 'the field "shape"' },
  }
end)

-- Errors of ATen --------------------------------------------------------------------------------------

t.test("AWrongDtypeSaysHowToGetTheRightOne", function()
  local to_int64 = "make the tensor with { dtype = torch.int64 }, or convert it with x:to(torch.int64)"
  check {
    { "labels", function() torch.cross_entropy_loss(x, torch.tensor { 1, 2 }) end,
      "expected ", " Long", to_int64 }, -- torch 2.11 and 2.15 word it differently
    { "ids", function() torch.embedding(x, torch.tensor { 1, 0 }) end, to_int64 },
    { "positions", function() x:gather(1, torch.tensor { { 1 }, { 0 } }) end, to_int64 },
  }
end)

t.test("AnIndexOrATargetOutOfRangeIsNamedWithItsPosition", function()
  local function int64(values) return torch.tensor(values, { dtype = torch.int64 }) end
  local images = torch.randn { 2, 5, 3 }
  check {
    { "target", function() torch.cross_entropy_loss(x, int64 { 1, 3 }) end,
      "torch.cross_entropy_loss: target 3 at position 1 is out of bounds: the input, float32 {2, 3}, has 3 classes, "
        .. "0 to 2" },
    { "negative target", function() torch.cross_entropy_loss(x, int64 { -2, 0 }) end, "target -2 at position 0",
      "a target that does not count is ignore_index, -100 by default" },
    { "target of an image", function() torch.cross_entropy_loss(images, int64 { { 1, 2, 1 }, { 0, 7, 1 } }) end,
      "target 7 at position {1, 1}", "has 5 classes" },
    { "embedding", function() torch.embedding(x, int64 { { 1, 2 } }) end,
      "index 2 at position {0, 1} is out of range: dimension 0 of float32 {2, 3} has size 2, so indices are 0 to 1" },
    { "negative index", function() torch.embedding(x, int64 { 1, -1 }) end, "index -1 at position 1" },
    { "index_select", function() x:index_select(-1, int64 { 0, 3 }) end,
      "index 3 at position 1 is out of range: dimension 1 of float32 {2, 3} has size 3" },
    { "gather", function() x:gather(1, int64 { { 9 }, { 0 } }) end, "index 9 is out of bounds for dimension 1" },
    { "one_hot", function() torch.one_hot(int64 { 0, 7 }, 3) end, "class 7 at position 1 is out of range",
      "num_classes is 3" },
  }
end)

t.test("AnErrorOfTheKernelNamesTheOperator", function()
  check {
    { "shapes", function() torch.mm(x, x) end, "torch.mm: mat1 and mat2 shapes cannot be multiplied (2x3 and 2x3)" },
    { "the direct way", function() for _ = 1, 3 do torch.add(x, torch.ones(5)) end end,
      "torch.add: The size of tensor a (3) must match the size of tensor b (5)" },
    { "operator", function() return x + torch.ones(5) end, "torch.add: The size of tensor a (3)" },
    { "dim", function() torch.sum(x, 2) end, "torch.sum: Dimension out of range" },
    { "view", function() x:view(4) end, "torch.view: shape '[4]' is invalid for input of size 6" },
    { "no memory", function() torch.ones({ 1, 1 }):expand(1, 2 ^ 44):sum({ 0 }, true) end,
      "torch.sum: out of memory, also after freeing what Lua no longer uses (" },
    { "size", function() return x:size(2) end, "size: Dimension out of range" },
    { "dtype", function() torch.zeros({ 2 }, { dtype = torch.int64, requires_grad = true }) end,
      "torch.zeros: Only Tensors of floating point" },
  }
end)

t.test("AMissingDeviceIsNamed", function()
  check {
    { "no such", function() torch.zeros({ 2 }, { device = "gpu" }) end, 'torch.zeros: "device" must be "cpu", "cuda"',
      'not "gpu"' },
    { "to", function() x:to("gpu") end, 'to: device must be "cpu"' },
    { "tensor", function() torch.tensor({ 1 }, { device = "gpu" }) end, 'torch.tensor: device must be "cpu"' },
    { "absent", function() torch.zeros({ 2 }, { device = "cuda:99" }) end,
      '"device" is "cuda:99", but this machine has' },
    { "to absent", function() x:to { device = "cuda:99" } end, 'to: device is "cuda:99", but this machine has' },
  }
end)

t.test("ABackendThatLacksAnOperatorIsNamedInOneLine", function()
  local sparse = torch.eye(2):to_sparse()

  local message = t.raises("Could not run 'aten::", function() torch.tril(sparse) end)

  t.truthy(#message < 300, message)
end)

-- Values ----------------------------------------------------------------------------------------------

t.test("TensorRefusesWhatIsNoArrayOfNumbers", function()
  check {
    { "nothing", function() torch.tensor() end, "torch.tensor: at the top: expected a number, a boolean or an array" },
    { "string", function() torch.tensor("a") end, "not the string \"a\"" },
    { "string inside", function() torch.tensor { { 1, "a" } } end, "torch.tensor: at [1][2]: expected a number" },
    { "ragged", function() torch.tensor { { 1, 2 }, { 3 } } end, "at [2]: this row has 1 elements, the first one 2" },
    { "ragged, empty", function() torch.tensor { { 1 }, {} } end, "at [2]: this row has 0 elements, the first one 1" },
    { "deeper", function() torch.tensor { 1, { 2 } } end, "at [2]: elements and arrays are mixed" },
    { "shallower", function() torch.tensor { { 2 }, 1 } end, "at [2]: elements and arrays are mixed" },
    { "after an empty row", function() torch.tensor { {}, 1 } end, "at [2]: elements and arrays are mixed" },
    { "mixed", function() torch.tensor { 1, true } end, "at [2]: numbers and booleans are mixed" },
    { "tensors", function() torch.tensor { x, x } end, "at [1]: a tensor is no element; torch.stack(array)" },
    { "options inside", function() torch.tensor { 1, dtype = torch.int64 } end, "it holds the key dtype",
      "options go in a table of their own" },
    { "options unknown", function() torch.tensor({ 1 }, { dtyp = 1 }) end,
      'unknown option "dtyp"; did you mean "dtype"?' },
    { "dtype", function() torch.tensor({ 1 }, { dtype = 1 }) end, "torch.tensor: dtype must be a dtype" },
  }
end)

t.test("TensorRefusesWhatAnIntegerDtypeCannotHold", function()
  local cases = {
    { torch.uint8, 256, "256 is beyond the whole numbers that uint8 can hold here, 0 to 255" },
    { torch.uint8, -1, "-1 is beyond" },
    { torch.int8, 128, "-128 to 127" },
    { torch.int32, 2 ^ 31, "2147483648 is beyond the whole numbers that int32 can hold here" },
    { torch.uint32, 2 ^ 32, "4294967296 is beyond" },
    { torch.int64, 2 ^ 53 + 2, "-9007199254740992 to 9007199254740992" },
    { torch.uint64, -1, "0 to 9007199254740992" },
    { torch.int64, 1.5, "1.5 is not one of the whole numbers" },
    { torch.int64, 0 / 0, "nan is not one of the whole numbers" },
    { torch.int16, math.huge, "inf is beyond" },
  }
  for _, case in ipairs(cases) do
    t.raises(case[3], torch.tensor, { case[2] }, { dtype = case[1] })
  end
end)

t.test("IntegersBeyond2To53StayInTheirTensor", function()
  local beyond = torch.tensor({ 2 ^ 53 }, { dtype = torch.int64 }) + 1
  local unsigned = torch.tensor({ -1 }, { dtype = torch.int64 }):view(torch.uint64)

  check {
    { "item", function() return beyond:item() end,
      "the integer 9007199254740993 is beyond 2^53", "keep it in a tensor" },
    { "totable", function() return beyond:totable() end, "the integer 9007199254740993 is beyond 2^53" },
    { "uint64", function() return unsigned:item() end, "is beyond 2^53" },
  }
  t.equal((beyond - 2):item(), 2 ^ 53 - 1)
end)

t.test("ItemWantsOneElement", function()
  t.raises("item: x must have one element, not 6 (float32 {2, 3})", function() return x:item() end)
  t.raises("item: x must have one element, not 0", function() return torch.tensor({}):item() end)
end)

t.test("FunctionsOfTheModuleSayWhatTheyTake", function()
  check {
    { "seed", function() torch.manual_seed("1") end, 'torch.manual_seed: seed must be a number, not the string "1"' },
    { "seed", function() torch.manual_seed(0.5) end, "torch.manual_seed: seed must be a whole number" },
    { "threads", function() torch.set_num_threads(0) end, "torch.set_num_threads: n must be at least 1, not 0" },
    { "default", function() torch.set_default_dtype("float64") end, "torch.set_default_dtype: dtype must be a dtype" },
    { "default", function() torch.set_default_dtype(torch.int64) end, "must be a floating-point one" },
    { "to", function() x:to(5) end, "to: the argument must be a device, a dtype, a tensor or a table" },
    { "to", function() x:to { dtyp = torch.int64 } end, 'unknown option "dtyp"; did you mean "dtype"?' },
    { "compare", function() return x < x end, "tensors are compared element by element: use a:lt(b)" },
    { "length", function() return #torch.tensor(1) end, "#x: the tensor has no dimensions" },
    { "grad", function() x.requires_grad = 1 end, "x.requires_grad must be true or false" },
    { "grad", function() i.requires_grad = true end, "x.requires_grad: Only Tensors of floating point" },
  }
end)

-- The line --------------------------------------------------------------------------------------------

t.test("AnErrorBlamesTheLineOfTheScript", function()
  local file = debug.getinfo(1, "S").short_src
  local line = debug.getinfo(1, "l").currentline

  local calls = {
    function() local _ = torch.mm(x, x) end,   -- line + 3
    function() local _ = torch.mm(x, "x") end,
    function() local _ = x:mm(1) end,
    function() local _ = x + "x" end,
    function() local _ = torch.no_such_operator end,
    function() local _ = x[9] end,
    function() x[9] = 1 end,
    function() x:backward() end,
  }

  for k, call in ipairs(calls) do
    local _, message = pcall(call)
    local expected = file .. ":" .. line + 2 + k .. ": "
    t.equal(message:sub(1, #expected), expected)
  end
end)

t.test("AnErrorInTheLibraryBlamesTheScriptsLine", function()
  local nn = require "lockstep.nn"
  local linear = nn.Linear(2, 2)

  local line = debug.getinfo(1, "l").currentline + 1
  local _, message = pcall(function() local _ = linear(torch.ones { 1, 3 }) end)

  t.truthy(message:find("torch_errors_test.lua:" .. line .. ": torch.ops.lockstep.linear: ", 1, true), message)
end)
