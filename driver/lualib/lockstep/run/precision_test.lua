--- run.dtype: the precision of a script's model.

local nn = require "lockstep.nn"
local optim = require "lockstep.optim"
local precision = require "lockstep.run.precision"
local run = require "lockstep.run"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

t.test("APrecisionIsADtypeAndIsPrinted", function()
  for name, dtype in pairs { bf16 = torch.bfloat16, float32 = torch.float32, float64 = torch.float64 } do
    local result
    local text = t.printed(function() result = run.dtype(name) end)
    t.equal(result, dtype)
    t.equal(text, "precision: " .. name .. (name == "bf16" and ", with float32 masters" or "") .. "\n")
  end
end)

t.test("AutoIsFloat32OnCpusAndBf16OnGpus", function()
  t.equal({ precision.default "cpu", precision.default("cuda:0", 8), precision.default("cuda:7", 12) },
    { "float32", "bf16", "bf16" })
  t.equal(precision.default("cuda:0", 7), "float32") -- a T4
  t.equal(t.printed(run.dtype, "auto"), "precision: float32 (the default on CPUs)\n")
end)

t.test("AnUnknownPrecisionIsAnErrorThatListsThem", function()
  for given, shown in pairs { fp16 = '"fp16"', [16] = "a number" } do
    local ok, message = pcall(run.dtype, given)
    t.truthy(not ok and tostring(message):find('run.dtype: precision must be "auto", "bf16", "float32", "float64", not '
      .. shown, 1, true), message)
  end
end)

--- Returns the loss after training a line y = 3 x in small steps.
local function train(dtype, master)
  torch.manual_seed(1)
  local model = nn.Linear(1, 1, { bias = false }):to(dtype)
  torch.no_grad(function() model.weight:fill_(2) end)
  local optimizer = optim.SGD(model:parameters(), { lr = 3e-3, master = master })
  local x, loss = torch.ones({ 4, 1 }, { dtype = dtype }), nil
  for _ = 1, 600 do
    loss = (model(x) - 3 * x):square():mean()
    loss:backward()
    optimizer:step()
    optimizer:zero_grad()
  end
  return loss:item(), optimizer
end

-- Each step is smaller than half of the distance between two bfloat16 numbers.
t.test("WithoutMastersBf16LosesSmallSteps", function()
  t.truthy(train(torch.bfloat16, "none") > 0.5)
end)

t.test("Bf16TrainsWithFloat32Masters", function()
  local loss, optimizer = train(run.dtype "bf16")

  t.truthy(loss < 1e-2, loss)
  local masters = 0
  for _, state in pairs(optimizer.state) do
    t.equal(state.master.dtype, torch.float32)
    masters = masters + 1
  end
  t.equal(masters, 1)
end)
