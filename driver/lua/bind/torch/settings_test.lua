--- Settings of the whole process: the precision of float32 products, deterministic operators.

local t = require "lockstep.testing"
local torch = require "lockstep.torch"

--- Calls fn with deterministic operators on, and off again after it.
local function with_deterministic(opts, fn)
  torch.use_deterministic_algorithms(true, opts)
  local ok, message = pcall(fn)
  torch.use_deterministic_algorithms(false)
  return ok, tostring(message)
end

--- `put_` without `accumulate` has no deterministic kernel: of several values for one place any may win.
local function put()
  local x = torch.zeros { 3 }
  x:put_(torch.tensor({ 1 }, { dtype = torch.int64 }), torch.tensor { 5 })
  return x
end

t.test("PrecisionsOfProductsRoundTrip", function()
  t.equal(torch.get_float32_matmul_precision(), "highest")
  for _, name in ipairs { "medium", "high", "highest" } do
    torch.set_float32_matmul_precision(name)
    t.equal(torch.get_float32_matmul_precision(), name)
  end
end)

t.test("AnUnknownPrecisionIsAnErrorThatListsThem", function()
  local ok, message = pcall(torch.set_float32_matmul_precision, "tf32")

  t.truthy(not ok and tostring(message):find('must be "highest", "high" or "medium", not "tf32"', 1, true), message)
  t.equal(torch.get_float32_matmul_precision(), "highest")
end)

t.test("DeterministicAlgorithmsAreOffUntilTheyAreAskedFor", function()
  t.equal(torch.are_deterministic_algorithms_enabled(), false)
  local ok = with_deterministic(nil, function() assert(torch.are_deterministic_algorithms_enabled()) end)
  t.equal(ok, true)
  t.equal(torch.are_deterministic_algorithms_enabled(), false)
end)

t.test("WithoutTheSwitchAnOperatorThatDoesNotRepeatItsBitsRuns", function()
  t.equal(put():totable(), { 0, 5, 0 })
end)

t.test("AnOperatorWithoutADeterministicKernelIsAnError", function()
  local ok, message = with_deterministic(nil, put)

  t.truthy(not ok and message:find("put_ does not have a deterministic implementation", 1, true), message)
end)

t.test("WithWarnOnlyItRuns", function()
  local ok, message = with_deterministic({ warn_only = true }, put)

  t.truthy(ok, message)
end)

t.test("WrongArgumentsAreErrors", function()
  local ok, message = pcall(torch.use_deterministic_algorithms, 1)
  t.truthy(not ok and tostring(message):find("torch.use_deterministic_algorithms: mode", 1, true), message)
  ok, message = pcall(torch.use_deterministic_algorithms, true, { warn = true })
  t.truthy(not ok and tostring(message):find('unknown option "warn" (known: warn_only)', 1, true), message)
  t.equal(torch.are_deterministic_algorithms_enabled(), false)
end)
