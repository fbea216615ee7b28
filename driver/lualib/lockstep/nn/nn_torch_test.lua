-- Initialisers, convolutions and activations against PyTorch's: tests/torch/make_numbers.py writes the numbers.

local data = require "lockstep.data"
local nn = require "lockstep.nn"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local numbers = data.safetensors("tests/torch/numbers.safetensors")

-- Initialisers ------------------------------------------------------------------------------------------

local INITIALISERS = {
  normal = function(x) return nn.init.normal_(x, { mean = 0.5, std = 0.02 }) end,
  uniform = function(x) return nn.init.uniform_(x, { a = -2, b = 3 }) end,
  trunc_normal = function(x) return nn.init.trunc_normal_(x, { mean = 0.1, std = 0.5, a = -0.6, b = 0.9 }) end,
  xavier_uniform = function(x) return nn.init.xavier_uniform_(x, { gain = 1.5 }) end,
  xavier_normal = function(x) return nn.init.xavier_normal_(x) end,
  kaiming_uniform = function(x) return nn.init.kaiming_uniform_(x, { a = math.sqrt(5) }) end,
  kaiming_normal = function(x) return nn.init.kaiming_normal_(x, { mode = "fan_out", nonlinearity = "relu" }) end,
  orthogonal = function(x) return nn.init.orthogonal_(x, { gain = 2 }) end,
}

local SHAPES = { matrix = { 6, 4 }, kernel = { 3, 2, 3, 3 } }

t.test("InitialisersDrawTheNumbersOfPyTorch", function()
  for name, fill in pairs(INITIALISERS) do
    for shape_name, shape in pairs(SHAPES) do
      local x = torch.empty(shape):requires_grad_(true)
      torch.manual_seed(3)

      t.equal(fill(x) == x, true)

      t.near(x:detach(), numbers[("init.%s.%s"):format(name, shape_name)], 2e-6, name .. " " .. shape_name)
      t.truthy(x.requires_grad and x.is_leaf, name)
    end
  end
end)

t.test("LowPrecisionTensorsGetRoundedFloat32Numbers", function()
  for name, fill in pairs(INITIALISERS) do
    torch.manual_seed(3)
    local low = fill(torch.empty(SHAPES.matrix, { dtype = torch.bfloat16 }))

    t.near(low:float(), numbers[("init.%s.matrix"):format(name)], 2e-2, name)
    torch.manual_seed(3)
    t.equal(low, fill(torch.empty(SHAPES.matrix)):bfloat16(), name)
  end
end)

t.test("ConstantsFill", function()
  t.equal(nn.init.zeros_(torch.empty({ 2 })), torch.zeros({ 2 }))
  t.equal(nn.init.ones_(torch.empty({ 2 }, { dtype = torch.float64 })), torch.ones({ 2 }, { dtype = torch.float64 }))
  t.equal(nn.init.constant_(torch.empty({ 2 }), -1.5), torch.tensor { -1.5, -1.5 })
  t.equal(nn.init.trunc_normal_(torch.empty({ 2 }), { std = 0, mean = 1 }), torch.ones({ 2 }))
end)

t.test("InitialisersRefuseWhatTheyCannotFill", function()
  local matrix, vector = torch.empty({ 2, 3 }), torch.empty({ 3 })
  for _, case in ipairs {
    { "normal_", 3, nil, "nn.init.normal_: expected a tensor, not a number" },
    { "zeros_", torch.zeros({ 2 }, { dtype = torch.int64 }), nil, "expected a tensor of floating-point numbers, not" },
    { "normal_", matrix, { std = -1 }, "nn.init.normal_: std must be a number of at least 0, not -1" },
    { "normal_", matrix, { sdt = 1 }, 'nn.init.normal_: unknown option "sdt"; did you mean "std"?' },
    { "uniform_", matrix, { a = 2 }, "nn.init.uniform_: b must be a number of at least 2, not 1" },
    { "constant_", matrix, nil, "nn.init.constant_: the value must be a number, not a nil" },
    { "trunc_normal_", matrix, { mean = 9 }, "the mean 9 is more than 2 std (1) outside of the interval from -2 to 2" },
    { "xavier_normal_", vector, nil, "nn.init.xavier_normal_: expected a weight of at least two dimensions" },
    { "kaiming_uniform_", vector, nil, "[out, in, ...], not shape {3}" },
    { "orthogonal_", vector, nil, "nn.init.orthogonal_: expected a weight of at least two dimensions" },
    { "kaiming_normal_", matrix, { mode = "fan" }, 'mode must be "fan_in" or "fan_out", not "fan"' },
    { "kaiming_normal_", matrix, { nonlinearity = "gelu" }, 'not "gelu"' },
  } do
    t.raises(case[4], nn.init[case[1]], case[2], case[3])
  end
end)

-- Layers ------------------------------------------------------------------------------------------------

local LAYERS = {
  conv1d = function() return nn.Conv1d(4, 6, 3, { stride = 2, padding = 1, groups = 2 }) end,
  conv2d = function()
    return nn.Conv2d(4, 6, { 3, 2 }, { stride = { 2, 1 }, padding = { 1, 0 }, dilation = { 1, 2 } })
  end,
  conv2d_same = function() return nn.Conv2d(4, 2, { 4, 3 }, { padding = "same", bias = false }) end,
  conv2d_reflect = function() return nn.Conv2d(4, 2, 3, { padding = { 2, 1 }, padding_mode = "reflect" }) end,
  conv2d_circular = function() return nn.Conv2d(4, 2, { 4, 3 }, { padding = "same", padding_mode = "circular" }) end,
  conv3d = function() return nn.Conv3d(3, 5, { 2, 3, 3 }, { stride = { 2, 1, 1 }, bias = false }) end,
  group_norm = function() return nn.GroupNorm(2, 4, { eps = 1e-3 }) end,
  group_norm_plain = function() return nn.GroupNorm(3, 3, { affine = false }) end,
  LeakyReLU = function() return nn.LeakyReLU { negative_slope = 0.2 } end,
  ELU = function() return nn.ELU { alpha = 0.5 } end,
  CELU = function() return nn.CELU { alpha = 0.5 } end,
  GELU_tanh = function() return nn.GELU { approximate = "tanh" } end,
  Softplus = function() return nn.Softplus { beta = 2, threshold = 5 } end,
  Softshrink = function() return nn.Softshrink { lambd = 0.7 } end,
  Hardshrink = function() return nn.Hardshrink { lambd = 0.7 } end,
  Hardtanh = function() return nn.Hardtanh { min_val = -2, max_val = 3 } end,
  GLU = function() return nn.GLU { dim = 1 } end,
  Softmax = function() return nn.Softmax { dim = 0 } end,
  PReLU = function() return nn.PReLU { num_parameters = 6 } end,
}
for _, name in ipairs { "ReLU", "ReLU6", "SELU", "GELU", "SiLU", "Mish", "Sigmoid", "LogSigmoid", "Tanh", "Tanhshrink",
  "Softsign", "Hardsigmoid", "Hardswish", "LogSoftmax" } do
  LAYERS[name] = nn[name]
end

t.test("OutputsAndGradientsOfLayersAreThoseOfPyTorch", function()
  local count = 0
  for name, make in pairs(LAYERS) do
    local function number(key) return numbers[("layer.%s.%s"):format(name, key)] end
    local layer, parameters = make(), {}
    for key, p in layer:named_parameters() do
      parameters[key] = p
      torch.no_grad(function() p:copy_(number(key)) end)
    end
    local x = number("x"):clone():requires_grad_(true)

    local y = layer(x)
    local weights = torch.arange(y:numel(), { dtype = torch.float32 }):reshape(y.shape):cos()
    torch.sum(y * weights):backward()

    t.near(y:detach(), number "y", 2e-5, name)
    t.near(x.grad, number "x_grad", 2e-5, name .. " x")
    for key, p in pairs(parameters) do t.near(p.grad, number(key .. "_grad"), 1e-4, name .. " " .. key) end
    for key in pairs(numbers) do
      local own = key:match("^layer%." .. name .. "%.([%w_]+)_grad$")
      t.truthy(not own or own == "x" or parameters[own], name .. " has no parameter " .. tostring(own))
    end
    count = count + 1
  end
  t.equal(count, 33)
end)

t.test("ConvolutionsStartAsInPyTorch", function()
  torch.manual_seed(1)
  local conv = nn.Conv2d(4, 64, 3, { groups = 2 })

  t.equal(conv.weight.shape, { 64, 2, 3, 3 })
  local bound = 1 / math.sqrt(2 * 9)
  for _, p in ipairs(conv:parameters()) do
    t.truthy(p:abs():max():item() <= bound and p:abs():max():item() > 0.8 * bound)
  end
  t.equal(nn.Conv1d(2, 3, 1, { bias = false }).bias, nil)
end)

t.test("LayersRefuseWhatTheyCannotBe", function()
  for _, case in ipairs {
    { function() nn.Conv2d(0, 1, 1) end, "nn.Conv2d: in_channels must be a whole number of at least 1, not 0" },
    { function() nn.Conv2d(1, 1) end, "nn.Conv2d: kernel_size must be a whole number of at least 1, or an array of 2" },
    { function() nn.Conv3d(1, 1, { 1, 2 }) end, "an array of 3 of them, not {1, 2}" },
    { function() nn.Conv1d(1, 1, 1, { stride = 0 }) end, "nn.Conv1d: stride must be a whole number of at least 1" },
    { function() nn.Conv1d(1, 1, 1, { padding = "some" }) end, 'unless "same" or "valid", must be a whole number' },
    { function() nn.Conv1d(1, 1, 3, { padding = "same", stride = 2 }) end, 'padding = "same" needs a stride of 1' },
    { function() nn.Conv1d(1, 1, 1, { padding_mode = "wrap" }) end, 'padding_mode must be "zeros", "reflect"' },
    { function() nn.Conv1d(3, 4, 1, { groups = 2 }) end, "3 input and 4 output channels must both be multiples" },
    { function() nn.Conv1d(1, 1, 1, { strid = 2 }) end, 'nn.Conv1d: unknown option "strid"' },
    { function() nn.GroupNorm(2, 3) end, "nn.GroupNorm: num_channels 3 must be a multiple of num_groups 2" },
    { function() nn.GELU { approximate = "fast" } end, 'nn.GELU: approximate must be "none" or "tanh", not "fast"' },
    { function() nn.ReLU { inplace = true } end, 'nn.ReLU: unknown option "inplace"' },
  } do
    t.raises(case[2], case[1])
  end
end)

-- Forward hooks -----------------------------------------------------------------------------------------

t.test("AForwardHookSeesInputsAndResultsAndMayReplaceThem", function()
  local Pair = nn.Module:subclass("Pair")
  function Pair:forward(x, y) return x + 1, y end -- luacheck: ignore self
  local pair, seen = Pair(), nil
  local handle = pair:register_forward_hook(function(module, inputs, x, y) seen = { module, inputs, x, y } end)

  t.equal({ pair(1, nil) }, { 2 })
  t.equal(seen[1] == pair, true)
  t.equal({ seen[2][1], seen[2].n, seen[3] }, { 1, 2, 2 })

  local double = pair:register_forward_hook(function(_, _, x, y) return 2 * x, y end)
  t.equal({ pair(1, 5) }, { 4, 5 })
  t.equal(seen[3], 2)

  handle:remove()
  handle:remove()
  seen = nil
  t.equal({ pair(1, 5) }, { 4, 5 })
  t.equal(seen, nil)
  double:remove()
  t.equal({ pair(1, 5) }, { 2, 5 })
end)

t.test("AHookMayRemoveItselfAndDoesNotCountAsAParameter", function()
  local net, calls = nn.Sequential { nn.Linear(2, 2), nn.ReLU() }, 0
  local handle
  handle = net[1]:register_forward_hook(function()
    calls = calls + 1
    handle:remove()
  end)

  net(torch.ones({ 1, 2 }))
  net(torch.ones({ 1, 2 }))

  t.equal(calls, 1)
  t.equal(#net:parameters(), 2)
  t.raises("Linear:register_forward_hook: the hook must be a function, not a table",
    function() net[1]:register_forward_hook({}) end)
end)
