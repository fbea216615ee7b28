-- The fused kernels from Lua: nn's functions with them and without, on the same numbers.

local fused_functions = require "lockstep.nn.fused"
local models = require "lockstep.models.decoder"
local nn = require "lockstep.nn"
local t = require "lockstep.testing"
local tiled_mlp = require "lockstep.tiled_mlp"
local torch = require "lockstep.torch"

local kernels = torch.ops.lockstep
local cached_attention, turns_of = fused_functions.cached_attention, fused_functions.turns_of

--- Returns the results of fn with the kernels, and with ATen's operators.
local function both_ways(fn)
  local before = nn.use_fused(true)
  local fused = { fn() }
  nn.use_fused(false)
  local plain = { fn() }
  nn.use_fused(before)
  return fused, plain
end

local function expect_near(fused, plain, tolerance)
  t.equal(#fused, #plain)
  for i = 1, #fused do t.near(fused[i], plain[i], tolerance) end
end

t.test("TheKernelsAreTheDefault", function()
  t.truthy(nn.use_fused(true), "the setting before")
end)

t.test("OperatorsOfOurLibrariesAreFoundByName", function()
  local x, weight = torch.randn { 3, 4 }, torch.randn { 4 }

  t.near(kernels.rms_norm(x, weight, 1e-6), torch.rms_norm(x, { 4 }, weight, 1e-6), 1e-6)
  t.near(kernels.rms_norm(x, { weight = weight, eps = 1e-6 }), torch.rms_norm(x, { 4 }, weight, 1e-6), 1e-6)
  t.raises('torch has no operator "ops.lockstep.rms_norms"', function() return kernels.rms_norms end)
  t.raises('torch has no operator "ops.nowhere.rms_norm"', function() return torch.ops.nowhere.rms_norm end)
  t.raises("torch.ops.lockstep.rms_norm", kernels.rms_norm, x, "weight", 1e-6)
end)

t.test("EachFunctionGivesTheSameBothWays", function()
  local x, y, weight = torch.randn { 5, 3, 8 }, torch.randn { 5, 3, 8 }, torch.randn { 8 }
  local cos, sin = nn.rotary { dim = 8 }(torch.arange(5))
  local norm, matrix = nn.RMSNorm(8), torch.randn { 3, 120 } / 120
  torch.no_grad(function() norm.weight:copy_(weight) end)

  for name, call in pairs {
    swiglu = function() return nn.swiglu(x, y) end,
    rms_norm = function() return norm(x) end,
    add_rms_norm = function() return norm(x, y) end,
    rotate = function() return nn.rotate(x, cos, sin) end,
    linear = function() return nn.linear(x:view(-1), matrix, matrix:select(1, 0)) end,
    wide_angles = function() return nn.rotate(x:bfloat16(), cos, sin) end,
  } do
    local fused, plain = both_ways(call)

    t.equal(#fused, name == "add_rms_norm" and 2 or 1, name)
    expect_near(fused, plain, name == "wide_angles" and 0.04 or 1e-6)
  end
end)

t.test("CrossEntropyGivesTheSameBothWays", function()
  torch.manual_seed(2)
  local x = torch.randn({ 2, 3, 70 }, { dtype = torch.float64 }) * 3
  local labels = torch.randint(70, { 2, 3 })
  labels[1][2] = -100
  local function check(dtype, opts, tolerance, call)
    local fused, plain = both_ways(function()
      local logits = x:to(dtype):clone():requires_grad_(true)
      local loss = call(nn.cross_entropy, logits, labels, opts)
      loss:sum():backward()
      return loss:detach(), logits.grad
    end)
    t.equal(fused[1].dtype, plain[1].dtype)
    t.equal(fused[1].shape, plain[1].shape)
    expect_near(fused, plain, tolerance)
  end
  local function alone(fn, ...) return fn(...) end
  for _, reduction in ipairs { "mean", "sum", "none" } do
    for _, smoothing in ipairs { 0, 0.1, 1 } do
      local opts = { reduction = reduction, label_smoothing = smoothing }
      check(torch.float64, opts, 1e-12, alone)
      check(torch.float32, opts, 1e-5, alone)
      check(torch.bfloat16, opts, 0.25, alone)
    end
  end
  check(torch.bfloat16, nil, 0.02, function(...) return torch.autocast({ dtype = torch.bfloat16 }, ...) end)

  labels[0][1] = 70
  t.raises("cross_entropy: target 70 of row 1 is out of bounds: the logits have 70 classes", nn.cross_entropy, x,
    labels)
  t.raises("torch.cross_entropy_loss", nn.cross_entropy, x, labels:narrow(1, 0, 2))
  t.raises("torch.cross_entropy_loss", nn.cross_entropy, x, labels:to(torch.int32))
end)

t.test("TheTiledLossGivesTheSameBothWays", function()
  torch.manual_seed(3)
  local hidden, weight = torch.randn { 9, 8 }, torch.randn { 50, 8 }
  local labels = torch.randint(50, { 9 })
  labels[4] = -100
  for _, softcap in ipairs { 0, 5 } do
    local fused, plain = both_ways(function()
      local h, w = hidden:clone():requires_grad_(true), weight:clone():requires_grad_(true)
      local loss = tiled_mlp.cross_entropy { hidden = h, weight = w, labels = labels, softcap = softcap,
        tile_tokens = 4, label_smoothing = 0.1, z_loss = 0.01 }
      loss:backward()
      return loss:detach(), h.grad, w.grad
    end)
    expect_near(fused, plain, 1e-5)
  end
end)

t.test("ScoresOfLabelsAreTheirLogProbabilitiesAndEntropies", function()
  torch.manual_seed(4)
  local logits = torch.randn({ 5, 40 }, { dtype = torch.float64 }):requires_grad_(true)
  local labels = torch.randint(40, { 5 })
  local log_probs, entropy = fused_functions.scores_of_labels(logits, labels)

  local all = logits:log_softmax(-1)
  local expected = { all:gather(-1, labels:unsqueeze(-1)):squeeze(-1), -(all:exp() * all):sum({ -1 }) }
  t.near(log_probs, expected[1], 1e-12)
  t.near(entropy, expected[2], 1e-12)
  t.near(torch.grad({ (log_probs * 2 + entropy):sum() }, { logits })[1],
    torch.grad({ (expected[1] * 2 + expected[2]):sum() }, { logits })[1], 1e-12)
end)

t.test("ALayerTrainsTheSameBothWays", function()
  torch.manual_seed(1)
  local config = { hidden_size = 16, num_attention_heads = 2, num_key_value_heads = 1, head_dim = 8,
    rms_norm_eps = 1e-6, qk_norm = true }
  local layer = models.Layer(config, 1, models.Mlp(16, 24))
  local x = torch.randn({ 6, 16 })
  local cos, sin = nn.rotary { dim = 8 }(torch.arange(6))
  local function attend(q, k, v) return nn.attention(q, k, v, { seq_lens = { 6 } }) end

  local fused, plain = both_ways(function()
    local input = x:clone():requires_grad_(true)
    layer:zero_grad()
    layer(input, { cos = cos, sin = sin, attend = attend }):pow(2):sum():backward()
    local results = { input.grad }
    for _, p in ipairs(layer:parameters()) do results[#results + 1] = p.grad end
    return unpack(results)
  end)

  t.equal(#fused, 12)
  for i = 1, #fused do t.near(fused[i] / plain[i]:abs():max(), plain[i] / plain[i]:abs():max(), 1e-5) end
end)

t.test("ALinearLayerRunsTheKernelWhereNothingNeedsAGradient", function()
  local layer, x = nn.Linear(64, 3), torch.randn { 2, 64 }
  local function operators()
    local names = {}
    for _, op in ipairs(lockstep.flops(function() layer(x) end)) do names[#names + 1] = op.name end
    return names
  end

  t.equal(operators(), { "aten::addmm" })
  t.equal(torch.no_grad(operators), { "lockstep::linear_of_few_rows" })
end)

t.test("AttentionToACacheIsTheSameBothWays", function()
  torch.manual_seed(2)
  local q, k, v = torch.randn { 2, 6, 8 }, torch.randn { 2, 3, 8 }, torch.randn { 2, 3, 8 }
  local cache, mask = torch.randn { 2, 2, 3, 10, 8 }, torch.zeros { 2, 10 }
  mask[1]:narrow(0, 0, 2):fill_(-math.huge)

  for _, first in ipairs { 0, 1 } do
    local kernel, plain = both_ways(function()
      local keys, values = unpack(cache:clone():unbind(0))
      return cached_attention(q, k, v, keys, values, 7, first, mask), keys, values
    end)
    for i = 1, 3 do t.near(kernel[i], plain[i], 1e-6) end
    t.equal(kernel[2]:select(2, 7), k)
  end

  -- q k and p v: 2 sequences of 6 heads, 8 columns, 8 numbers, a multiplication and an addition each.
  local operators = lockstep.flops(function()
    torch.no_grad(cached_attention, q, k, v, cache[0], cache[1], 7, 0)
  end)
  t.equal({ operators[1].name, operators[1].flops }, { "lockstep::cached_attention", 2 * 6 * 8 * 8 * 2 * 2 })
end)

t.test("AttentionWithoutAMaskChangesWithTheFlag", function()
  local q, k, v = torch.randn { 2, 4, 37, 16 }, torch.randn { 2, 4, 37, 16 }, torch.randn { 2, 4, 37, 16 }
  local function attend(causal)
    return function() return torch.scaled_dot_product_attention(q, k, v, { is_causal = causal }) end
  end

  for _, causal in ipairs { true, false } do
    local fused, plain = both_ways(attend(causal))

    expect_near(fused, plain, 1e-5)
    t.truthy(not torch.equal(fused[1], plain[1]), "another kernel has other bits")
  end
end)

t.test("CosinesAndSinesHaveTheSameBitsBothWays", function()
  torch.manual_seed(3)
  for _, shape in ipairs { { 1, 1 }, { 7, 3 }, { 3, 2, 5 }, { 0, 4 }, { 200, 64 }, { 37, 40 } } do
    local angles = torch.rand(shape) * 1e4
    for _, dtype in ipairs { torch.float32, torch.float64, torch.bfloat16, torch.float16 } do
      for _, factor in ipairs { 1, 0.7 } do
        local kernel, plain = both_ways(function() return turns_of(angles, factor, dtype) end)
        t.equal({ kernel[1].dtype, kernel[2].dtype }, { dtype, dtype })
        t.equal(kernel, plain)
      end
    end
  end
  local angles = torch.rand({ 2, 3 }):requires_grad_(true)
  t.equal(turns_of(angles, 1, torch.float32).requires_grad, true)
  t.raises("turns_of: angles require a gradient", kernels.turns_of, angles, 1, torch.float32)
  t.raises("turns_of: angles must be float32 of shape [..., size / 2], got Double", kernels.turns_of,
    angles:double(), 1, torch.float32)
end)

t.test("AFloat32WeightOfANormTakesLowPrecisionInput", function()
  local norm, x = nn.RMSNorm(8), torch.randn({ 2, 8 }):bfloat16()

  local fused, plain = both_ways(function() return norm(x) end)

  t.equal(fused[1].dtype, torch.float32)
  t.equal(fused[1], plain[1])
end)

t.test("TheFlagIsTrueOrFalse", function()
  t.raises("nn.use_fused: expected true or false, got aten", nn.use_fused, "aten")
end)

t.test("BadShapesAreNamed", function()
  t.raises("gate and up must have one shape, got [2, 3] and [2, 4]", nn.swiglu, torch.ones { 2, 3 },
    torch.ones { 2, 4 })
end)
