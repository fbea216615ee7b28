-- Fused functions against the same functions unfused, and the functions that fuse refuses.

local checkpoint = require "lockstep.checkpoint"
local nn = require "lockstep.nn"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local fuse = lockstep.fuse

local function swiglu(x, y) return torch.silu(x) * y end

--- Returns fn's results, and the gradients of the tensors among its arguments.
local function results_and_gradients(fn, ...)
  local leaves = {}
  for i, argument in ipairs { ... } do
    leaves[i] = torch.is_tensor(argument) and argument:clone():requires_grad_(argument.dtype ~= torch.bool) or argument
  end
  local all = { fn(unpack(leaves)) }
  local loss = torch.zeros {}
  for i, result in ipairs(all) do loss = loss + (result:float() * (i + 0.5)):pow(2):sum() end
  loss:backward()
  for _, leaf in ipairs(leaves) do
    if torch.is_tensor(leaf) and leaf.dtype ~= torch.bool then all[#all + 1] = leaf.grad end
  end
  return all
end

local function expect_same(fn, tolerance, ...)
  local fused, plain = results_and_gradients(fuse(fn), ...), results_and_gradients(fn, ...)
  t.equal(#fused, #plain)
  for i = 1, #fused do
    t.equal(fused[i].shape, plain[i].shape)
    t.equal(fused[i].dtype, plain[i].dtype)
    local scale = plain[i]:float():abs():max() + 1e-6
    t.near(fused[i]:float() / scale, plain[i]:float() / scale, tolerance)
  end
end

t.test("ResultsAndGradientsAreThoseOfTheFunction", function()
  torch.manual_seed(1)
  local x, y = torch.randn { 5, 7 }, torch.randn { 5, 7 }
  local scale, mask = torch.randn { 7 }, torch.randn({ 5, 7 }):gt(0)

  expect_same(swiglu, 1e-6, x, y)
  expect_same(function(a, b, s) return torch.tanh(a * s + 1) / (b:abs() + 0.5) end, 1e-6, x, y, scale)
  expect_same(function(a, b) return a + b, 2 - a * b end, 1e-6, x, y)
  expect_same(function(a, s) return a * s, s ^ 2 end, 1e-6, x, scale) -- two shapes
  expect_same(function(a, m) return torch.where(m, a, -3 * a) end, 1e-6, x, mask)
  expect_same(function(a, n) return torch.sigmoid(a * n) ^ 2 end, 1e-6, x, 1.7)
  expect_same(function(a) return torch.gelu(a, { approximate = "tanh" }):clamp(-0.1, 0.8) end, 1e-5, x)
  expect_same(swiglu, 2e-2, x:bfloat16(), y:bfloat16())
end)

t.test("TheLastDimensionMayBeReduced", function()
  torch.manual_seed(2)
  local x, mask, weight = torch.randn { 5, 7 }, torch.randn { 7 }, torch.randn { 7 }
  local function softmax(v, m)
    local z = v * 0.5 + m
    local e = torch.exp(z - z:amax(-1, true))
    return e / e:sum(-1, true)
  end
  local function rms_norm(v, w) return v * torch.rsqrt((v * v):mean(-1, true) + 1e-6) * w end
  local function log_sum_exp(v) return torch.log(torch.exp(v - v:amax(-1, true)):sum(-1)) + v:amax(-1) end

  expect_same(softmax, 1e-6, x, mask)
  expect_same(rms_norm, 1e-6, x, weight)
  expect_same(log_sum_exp, 1e-6, x)
  expect_same(function(v) return v:sum(-1, true), v - v:mean(-1, true), v:amin(-1) end, 1e-6, x)
  expect_same(rms_norm, 3e-2, x:bfloat16(), weight:bfloat16())
  expect_same(softmax, 1e-6, torch.randn { 2, 3, 600 }, torch.randn { 3, 600 })
  t.near(fuse(softmax)(x, mask):sum(-1), torch.ones { 5 }, 1e-6)
end)

t.test("AFunctionIsRecordedOnceForItsDtypesAndForAllShapes", function()
  local calls = 0
  local double = fuse(function(x)
    calls = calls + 1
    return x * 2
  end)

  for size = 0, 4 do t.equal(double(torch.ones { size }), torch.ones({ size }) * 2) end
  t.equal(double(torch.ones { 2, 1, 3 }), torch.ones({ 2, 1, 3 }) * 2)

  t.equal(calls, 2) -- with proxies of two shapes
  double(torch.ones({ 2 }):bfloat16())
  t.equal(calls, 4)
end)

t.test("ANumberMayBeAnArgumentAndChange", function()
  local scaled = fuse(function(x, s) return x * s end)
  local x = torch.randn({ 4 }):bfloat16()

  for _, s in ipairs { 2, 0.5, -1 } do t.equal(scaled(x, s), x * s) end
  t.equal(scaled(x, 2).dtype, torch.bfloat16)
end)

t.test("FunctionsThatItCallsAreRecordedToo", function()
  local x, y = torch.randn { 6 }, torch.randn { 6 }
  local function half(v) return v / 2 end

  t.near(fuse(function(a, b) return half(nn.swiglu(a, b)) end)(x, y), half(swiglu(x, y)), 1e-6)
end)

t.test("NoGradKeepsNothing", function()
  local x = torch.randn({ 3 }, { requires_grad = true })
  local fused = fuse(swiglu)

  t.equal(torch.no_grad(function() return fused(x, x) end).requires_grad, false)
  t.equal(fused(x, x).requires_grad, true)
  t.equal(fused(x:detach(), x:detach()).requires_grad, false)
end)

t.test("ACheckpointedRegionMayHoldOne", function()
  local fused = fuse(swiglu)
  local x, y = torch.randn { 4, 3 }, torch.randn { 4, 3 }
  local function region(a, b) return fused(a * 2, b) end

  local plain = results_and_gradients(region, x, y)
  local ckpt = checkpoint.new()
  local again = results_and_gradients(function(a, b) return ckpt(region, a, b) end, x, y)

  for i = 1, #plain do t.equal(again[i], plain[i]) end
end)

t.test("AutocastDoesNotChangeIt", function()
  local fused = fuse(swiglu)
  local x = torch.randn { 4 }

  local y = torch.autocast({ device = "cpu", dtype = torch.bfloat16 }, function() return fused(x, x) end)

  t.equal(y.dtype, torch.float32)
  t.equal(y, fused(x, x))
end)

t.test("AGraphRecordsIt", function()
  local fused = fuse(function(x, w) return torch.silu(x * w) end)
  local function trained(wrap)
    local weight = torch.full({ 3 }, 0.5):requires_grad_(true)
    local step = wrap(function(x)
      local loss = fused(x, weight):sum()
      loss:backward()
      torch.no_grad(function()
        weight:sub_(weight.grad * 0.1)
        weight.grad:zero_()
      end)
      return loss
    end)
    for i = 1, 8 do step(torch.full({ 2, 3 }, i / 8)) end
    return weight:detach()
  end

  local graph
  local graphed = trained(function(step)
    graph = lockstep.graph(step)
    return graph
  end)

  t.equal(graphed, trained(function(step) return step end))
  t.truthy(graph.hits > 0, "repeated steps")
end)

t.test("MetaTensorsGiveShapes", function()
  local y = fuse(swiglu)(torch.empty({ 3, 1 }, { device = "meta" }), torch.empty({ 4 }, { device = "meta" }))

  t.equal(y.device, "meta")
  t.equal(y.shape, { 3, 4 })
end)

t.test("GradientsOfGradientsWork", function()
  local x = torch.randn({ 5 }, { dtype = torch.float64, requires_grad = true })
  local function second(fn)
    local first = torch.grad(fn(x, x):sum(), { x }, { create_graph = true })[1]
    return torch.grad(first:pow(2):sum(), { x })[1]
  end

  t.near(second(fuse(swiglu)), second(swiglu), 1e-12)
end)

t.test("AChangedArgumentIsAnErrorInBackward", function()
  local x = torch.randn({ 3 }, { requires_grad = true })
  local changed = x * 1
  local y = fuse(swiglu)(changed, changed)
  torch.no_grad(function() changed:mul_(2) end)

  t.raises("modified by an inplace operation", function() y:sum():backward() end)
end)

t.test("WhatIsNotPointwiseIsRefusedByName", function()
  local x, outside = torch.ones { 2, 3 }, torch.ones { 3 }
  local function refused(message, fn, ...)
    t.raises(message, fuse(fn), ...)
    t.raises("lockstep.fuse: ", fuse(fn), ...)
  end

  refused("torch.cumsum is not pointwise", function(a) return a:cumsum(-1) end, x)
  refused("A fused function may use + - * /", function(a) return a:cumsum(-1) end, x)
  refused("torch.sum over all dimensions cannot be fused", function(a) return a - a:sum() end, x)
  refused("torch.mean over dimension 0 cannot be fused", function(a) return a - a:mean(0, true) end, x)
  refused("without its last dimension and of one that has it", function(a) return a - a:sum(-1) end, x)
  refused("torch.argmax is not pointwise", function(a) return a * a:argmax(-1, true) end, x)
  refused("torch.max over dimensions is not pointwise", function(a) return a * (a:max(-1)) end, x)
  refused("is not pointwise", function(a) return a[0] end, x)
  refused("torch.add_ changes an argument", function(a) return a:add_(1) end, x)
  refused("torch.mul reads a tensor that is not an argument", function(a) return a * outside end, x)
  refused("could not be recorded", function(a) return a:item() > 0 and a or -a end, x)
  refused("could not be recorded", function(a) if a > 0 then return a end return -a end, x)
  refused("could not be recorded", function(a) if a > a then return a end return -a end, x)
  refused("result 1 of the function must be a tensor", function() return 1 end, x)
  refused("the function returns nothing", function() end, x)
  refused("result 1 of the function is not computed from its tensors", function() return outside end, x)
  refused("result 2 of the function is not computed from its tensors", function(a, n) return a, n * 2 end, x, 3)
  refused("another shape", function(a) return a * a:size(0) end, x)
  refused("another shape", function(a) return a / a:numel() end, x)
  refused("or at random", function(a) return a * math.random() end, x)
  refused("torch.detach is not pointwise", function(a) return a:totable()[1] > 0 and a or -a end, x:view(-1))
  refused("torch.mul gives Long", function(a) return a:gt(0) * 2 end, x)
  refused("torch.div with a rounding mode", function(a) return torch.div(a, 2, { rounding_mode = "floor" }) end, x)
end)

t.test("TheMessageHasTheFunctionsLine", function()
  t.raises("fuse_test.lua:", fuse(function(x) return x:cumsum(0) end), torch.ones { 2 })
end)

t.test("AFunctionMayBeCalledAgainAfterAnError", function()
  local fails = true
  local fused = fuse(function(x) return fails and x:cumsum(0) or x + 1 end)
  t.raises("is not pointwise", fused, torch.ones { 2 })

  fails = false

  t.equal(fused(torch.ones { 2 }), torch.full({ 2 }, 2))
end)

t.test("ArgumentsAreTensorsAndNumbers", function()
  local fused = fuse(function(x) return x + 1 end)

  t.raises("lockstep.fuse: argument 1 must be a tensor or a number, not a table", fused, {})
  t.raises("lockstep.fuse: argument 1 has dtype Long", fused, torch.ones({ 2 }, { dtype = torch.int64 }))
  t.raises("at least one argument must be a tensor", fused, 1)
  t.raises("lockstep.fuse: the argument must be a function, not a number", fuse, 1)
end)

t.test("ShapesThatDoNotFitAreNamed", function()
  t.raises("lockstep.fuse: ", fuse(swiglu), torch.ones { 2 }, torch.ones { 3 })
end)
