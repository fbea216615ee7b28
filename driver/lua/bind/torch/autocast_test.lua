-- torch.autocast: which precision, for how long, and in recomputation.

local checkpoint = require "lockstep.checkpoint"
local nn = require "lockstep.nn"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local BF16 = { dtype = torch.bfloat16, device = "cpu" }

--- The dtype in which a product of float32 matrices is computed now.
local function dtype_now() return torch.matmul(torch.ones({ 2, 2 }), torch.ones({ 2, 2 })).dtype end

t.test("ProductsComputeInTheDtypeAndSumsStayInFloat32", function()
  local x = torch.randn({ 3, 3 })
  local product, sum, count = torch.autocast(BF16, function(a)
    return torch.matmul(a, a), a:sum(), 3
  end, x)

  t.equal(product.dtype, torch.bfloat16)
  t.equal(product, torch.matmul(x:bfloat16(), x:bfloat16()))
  t.equal(sum.dtype, torch.float32)
  t.equal(count, 3)
  t.equal(dtype_now(), torch.float32)
end)

t.test("TheDtypeIsTheOneAskedForOrTheDevicesOwn", function()
  t.equal(torch.autocast({ dtype = torch.float16, device = "cpu" }, dtype_now), torch.float16)
  t.equal(torch.autocast({ device = "cpu" }, dtype_now), torch.bfloat16)
end)

t.test("AutocastsNestAndCanBeSwitchedOffInside", function()
  local inner, off, after = torch.autocast(BF16, function()
    local half = torch.autocast({ dtype = torch.float16, device = "cpu" }, dtype_now)
    local none = torch.autocast({ enabled = false, device = "cpu" }, dtype_now)
    return half, none, dtype_now()
  end)

  t.equal({ inner, off, after }, { torch.float16, torch.float32, torch.bfloat16 })
  t.equal(torch.autocast({ enabled = false, device = "cpu" }, dtype_now), torch.float32)
end)

t.test("AnErrorInsideRestoresWhatWasBefore", function()
  t.raises("stop", function() torch.autocast(BF16, function() error("stop") end) end)
  t.equal(dtype_now(), torch.float32)

  torch.autocast(BF16, function()
    t.raises("stop", function()
      torch.autocast({ enabled = false, device = "cpu" }, function() error("stop") end)
    end)
    t.equal(dtype_now(), torch.bfloat16)
  end)
end)

t.test("GradientsReachFloat32ParametersThroughLowPrecision", function()
  torch.manual_seed(1)
  local net, x = nn.Linear(8, 4), torch.randn({ 5, 8 })
  local function loss() return torch.mse_loss(net(x):float(), torch.ones({ 5, 4 })) end
  loss():backward()
  local exact = net.weight.grad:clone()
  net:zero_grad()

  torch.autocast(BF16, loss):backward()

  t.equal(net.weight.grad.dtype, torch.float32)
  t.near(net.weight.grad, exact, 0.05)
  t.truthy(not torch.equal(net.weight.grad, exact))
end)

t.test("ARegionIsRecomputedUnderTheAutocastOfItsForwardPass", function()
  torch.manual_seed(2)
  local net, x = nn.Sequential { nn.Linear(8, 8), nn.SiLU(), nn.Linear(8, 4) }, torch.randn({ 5, 8 })
  local dtypes = {}
  net[1]:register_forward_hook(function(_, _, y) dtypes[#dtypes + 1] = y.dtype end)
  local function gradients(forward)
    net:zero_grad()
    local loss = torch.autocast(BF16, function() return forward():float():pow(2):sum() end)
    loss:backward() -- outside: the recomputation must find the settings by itself
    return { net[1].weight.grad:clone(), net[3].bias.grad:clone() }
  end
  local plain = gradients(function() return net(x) end)
  dtypes = {}

  local recomputed = gradients(function() return checkpoint.new()(net, x) end)

  t.equal(dtypes, { torch.bfloat16, torch.bfloat16 })
  t.equal(recomputed, plain)
  t.equal(dtype_now(), torch.float32)
end)

t.test("AWeightThatChangesBetweenTwoAutocastsIsCastAgain", function()
  local net, x = nn.Linear(4, 4, { bias = false }), torch.ones({ 1, 4 })
  local function run() return torch.autocast(BF16, net, x) end
  local before = run()
  torch.no_grad(function() net.weight:mul_(2) end)

  t.equal(run():detach(), (before * 2):detach())
  t.equal(torch.autocast({ dtype = torch.bfloat16, device = "cpu", cache_enabled = false }, net, x):detach(),
    run():detach())
end)

t.test("WrongOptionsAreNamed", function()
  t.raises("torch.autocast: dtype must be torch.bfloat16 or torch.float16, not torch.float64",
    function() torch.autocast({ dtype = torch.float64, device = "cpu" }, dtype_now) end)
  t.raises('not the string "bfloat16"', function() torch.autocast({ dtype = "bfloat16" }, dtype_now) end)
  t.raises("torch.autocast: device", function() torch.autocast({ device = "tpu" }, dtype_now) end)
  t.raises('must be "cpu" or "cuda", not "meta"', function() torch.autocast({ device = "meta" }, dtype_now) end)
  t.raises("torch.autocast: the function must be a function", function() torch.autocast(BF16) end)
  t.raises('"dtpye"', function() torch.autocast({ dtpye = torch.bfloat16 }, dtype_now) end)
  t.equal(dtype_now(), torch.float32)
end)
