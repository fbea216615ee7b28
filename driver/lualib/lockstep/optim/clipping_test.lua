-- optimizer:step with max_grad_norm, against optim.clip_grad_norm before optimizer:step.

local nn = require "lockstep.nn"
local optim = require "lockstep.optim"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local BF16 = torch.bfloat16

--- Returns parameters of some sizes, the same in each call.
local function parameters(dtype)
  local params = {}
  for i, size in ipairs { 5, 1000, 37 } do
    torch.manual_seed(i)
    params[i] = torch.randn({ size }):to(dtype):requires_grad_(true)
  end
  return params
end

--- Gives each parameter a gradient, the same for each list in the same step.
local function fill(params, step)
  for i, p in ipairs(params) do
    torch.manual_seed(100 * step + i)
    p.grad = torch.randn(p.shape):to(p.dtype)
  end
end

--- Takes steps in both ways. Returns both lists of parameters.
local function both_ways(make, dtype, max_norm, steps)
  local clipped, folded = parameters(dtype), parameters(dtype)
  local before, within = make(clipped), make(folded)
  for step = 1, steps or 4 do
    fill(clipped, step)
    fill(folded, step)

    local expected = optim.clip_grad_norm(clipped, max_norm)
    t.equal(before:step(0.7), nil)
    local norm = within:step(0.7, { max_grad_norm = max_norm })

    t.equal(norm, expected)
    t.equal(norm.dtype, expected.dtype)
  end
  return clipped, folded
end

local function adamw(opts)
  return function(params) return optim.AdamW(params, opts) end
end

local function groups(params)
  return optim.AdamW { { params = { params[1], params[2] }, lr = 0.1 }, { params = { params[3] }, weight_decay = 0 } }
end

t.test("StepsHaveTheBitsOfClippingBefore", function()
  for _, dtype in ipairs { torch.float32, torch.float64 } do
    for name, make in pairs { adamw = adamw(), groups = groups, small_states = adamw { states = BF16 },
      sgd = function(params) return optim.SGD(params, { momentum = 0.9 }) end } do
      for _, max_norm in ipairs { 1, 1e6 } do
        local clipped, folded = both_ways(make, dtype, max_norm)

        for i = 1, #folded do t.equal(folded[i], clipped[i], name) end
      end
    end
  end
end)

t.test("AtensKernelHasTheSameBits", function()
  local before = nn.use_fused(false)
  local clipped, folded = both_ways(adamw(), torch.float32, 1)
  nn.use_fused(before)

  for i = 1, #folded do t.equal(folded[i], clipped[i]) end
end)

t.test("GradientsOfLowPrecisionAreNotRoundedAgain", function()
  for _, make in ipairs { adamw(), adamw { master = "none" }, groups } do
    local params = parameters(BF16)
    local optimizer = make(params)
    fill(params, 1)

    local norm = optimizer:step(nil, { max_grad_norm = 1 })

    t.truthy(norm:item() > 30)
    for i, p in ipairs(params) do
      local expected = 0.1 * (p.grad:float() / (norm + 1e-6))
      t.near(optimizer.state[p].exp_avg, expected, 1e-8, "parameter " .. i)
      t.truthy((expected - 0.1 * (p.grad / norm):float()):abs():max():item() > 1e-6) -- rounded again
    end
  end
end)

t.test("MastersFollowClippedGradients", function()
  local clipped, folded = both_ways(adamw { lr = 1e-2 }, BF16, 1, 20)

  for i = 1, #folded do t.near(folded[i]:float(), clipped[i]:float(), 0.02) end
end)

t.test("AdamWLeavesGradientsAsTheyAre", function()
  for _, is_fused in ipairs { true, false } do
    for _, dtype in ipairs { torch.float32, BF16 } do
      local before = nn.use_fused(is_fused)
      local params, expected = parameters(dtype), parameters(dtype)
      fill(params, 1)
      fill(expected, 1)

      optim.AdamW(params):step(1, { max_grad_norm = 0.5 })

      nn.use_fused(before)
      for i, p in ipairs(params) do t.equal(p.grad, expected[i].grad) end
    end
  end
end)

t.test("OtherOptimizersClipGradientsInMemory", function()
  local params = parameters(torch.float32)
  fill(params, 1)

  optim.SGD(params):step(1, { max_grad_norm = 0.5 })

  t.near(optim.clip_grad_norm(params, 1):item(), 0.5, 1e-5)
end)

t.test("WithoutGradientsTheNormIsZero", function()
  local params = parameters(torch.float32)
  local expected = params[1]:detach():clone()

  local norm = optim.AdamW(params):step(1, { max_grad_norm = 1 })

  t.equal(norm:item(), 0)
  t.equal(params[1]:detach(), expected)
end)

t.test("ParametersWithoutAGradientDoNotCount", function()
  local params = parameters(torch.float32)
  params[1].grad = torch.full({ 5 }, 3)

  local norm = optim.AdamW(params):step(1, { max_grad_norm = 1 })

  t.near(norm:item(), 3 * math.sqrt(5), 1e-5)
end)

t.test("InfiniteAndUndefinedNormsActAsInClipping", function()
  for _, bad in ipairs { math.huge, 0 / 0 } do
    local clipped, folded = parameters(torch.float32), parameters(torch.float32)
    fill(clipped, 1)
    fill(folded, 1)
    clipped[2].grad[7], folded[2].grad[7] = bad, bad

    local expected = optim.clip_grad_norm(clipped, 1):item()
    optim.AdamW(clipped):step()
    local norm = optim.AdamW(folded):step(1, { max_grad_norm = 1 }):item()

    t.truthy(norm == expected or norm ~= norm and expected ~= expected)
    for i = 1, #folded do
      t.truthy(torch.allclose(folded[i], clipped[i], { rtol = 0, atol = 0, equal_nan = true }))
    end
  end
end)

t.test("AnInfiniteMaximumOnlyMeasures", function()
  local params, expected = parameters(torch.float32), parameters(torch.float32)
  fill(params, 1)
  fill(expected, 1)

  local norm = optim.AdamW(params):step(1, { max_grad_norm = math.huge })
  optim.AdamW(expected):step()

  t.truthy(norm:item() > 30)
  for i = 1, #params do t.equal(params[i], expected[i]) end
end)

t.test("AGradScalerPassesItOn", function()
  for _, is_enabled in ipairs { true, false } do
    local params, expected = parameters(torch.float32), parameters(torch.float32)
    local scaler = optim.GradScaler { enabled = is_enabled, init_scale = 4 }
    fill(params, 1)
    fill(expected, 1)
    for _, p in ipairs(params) do p.grad:mul_(is_enabled and 4 or 1) end

    local is_done, norm = scaler:step(optim.AdamW(params), 1, { max_grad_norm = 1 })

    t.truthy(is_done)
    t.equal(norm, optim.AdamW(expected):step(1, { max_grad_norm = 1 }))
    for i = 1, #params do t.equal(params[i], expected[i]) end
  end
end)

t.test("MistakesAreNamed", function()
  local optimizer = optim.AdamW(parameters(torch.float32))
  local function fails(message, ...)
    t.raises("optimizer:step: " .. message, optimizer.step, optimizer, ...)
  end

  for _, max_norm in ipairs { 0, -1, "1" } do
    fails("max_grad_norm must be a number above 0, not " .. max_norm, 1, { max_grad_norm = max_norm })
  end
  fails('unknown option "max_norm"', 1, { max_norm = 1 })
  fails("options must be a table, not 1", 1, 1)
  fails("the factor must be a number, as a schedule returns, or a tensor of one element, not a table; options are the "
    .. "second argument", { max_grad_norm = 1 })
end)
