--- The roofline of lockstep.profile: exact bytes and FLOPs, and the table. Times are made up where they are compared.

local nn = require "lockstep.nn"
local optim = require "lockstep.optim"
local roofline = require "lockstep.watching.roofline"
local run = require "lockstep.run"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"
local watching = require "lockstep.core.watching"

--- Returns the cells before the time of the row that begins with `name`.
local function cells(text, name)
  local line = ("\n" .. text):match("\n" .. name:gsub("%p", "%%%0") .. "  +([^\n]*)")
  return line and (line:match("^(.-) +[%d.]+ ms"):gsub("  +", " | ")) or ("no row of " .. name .. " in:\n" .. text)
end

local REPORT = {
  seconds = 0.5, device = "cpu", bytes_per_s = 12e9, flops_per_s = { float32 = 98.1e9, bfloat16 = 410e9 },
  operators = {
    { name = "aten::mm", group = "matrix products", calls = 24, bytes = 3e9, flops = 20e9, seconds = 0.25,
      bound_s = 0.2 },
    { name = "aten::mul", group = "pointwise", calls = 6, bytes = 0.6e9, flops = 0, seconds = 0.1, bound_s = 0.06 },
    { name = "aten::addmm", group = "matrix products", calls = 2, bytes = 10, flops = 1e9, seconds = 0.02,
      bound_s = 0.01 },
    { name = "aten::add", group = "pointwise", calls = 2, bytes = 0.36e9, flops = 0, seconds = 0.02, bound_s = 0.03 },
    { name = "c10d::allreduce_", group = "communication", calls = 1, bytes = 4e6, flops = 0, seconds = 0.01,
      bound_s = 0 },
  },
}

t.test("TheTableShowsGroupsAndTheOperatorsWithTheMostToGain", function()
  t.equal(roofline.text(REPORT), [[
roofline of 500.00 ms on cpu
peaks here: copy 12.00 GB/s, bfloat16 products 410.00 GFLOP/s, float32 products 98.10 GFLOP/s

group                 calls      bytes    FLOPs       time  share  of peak
matrix products          26    3.00 GB  21.00 G  270.00 ms    54%      78%
pointwise                 8  960.00 MB           120.00 ms    24%      75%
communication             1    4.00 MB            10.00 ms     2%
outside of operators                             100.00 ms    20%

most time to gain  calls      bytes    FLOPs       time  share  of peak
aten::mm              24    3.00 GB  20.00 G  250.00 ms    50%      80%
aten::mul              6  600.00 MB           100.00 ms    20%      60%
aten::addmm            2       10 B   1.00 G   20.00 ms     4%      50%]])
end)

t.test("TheNumbersOfStepsAreMeans", function()
  local text = roofline.text(REPORT, 4)

  t.truthy(text:find("roofline of a step of 125.00 ms, the mean of 4 on cpu\n", 1, true), text)
  t.equal(cells(text, "matrix products"), "6.5 | 750.00 MB | 5.25 G")
  t.truthy(text:find("67.50 ms    54%      78%", 1, true), text)
end)

t.test("AReportWithoutOperatorsHasTheTimeAlone", function()
  local text = roofline.text { seconds = 0, device = "cpu", bytes_per_s = 1e9, flops_per_s = {}, operators = {} }

  t.truthy(text:find("\noutside of operators +0.00 ms$"), text)
end)

t.test("ATracedCallPrintsItsBytesAndFlops", function()
  local x, y = torch.ones { 100, 50 }, torch.ones { 100, 50 }
  local text, path, a, b = t.printed(lockstep.profile, { path = "call.json", roofline = true }, function(...)
    x:mm(y:t())
    local _ = x + y
    y:copy_(x)
    return ...
  end, 1, "b")

  t.equal({ path, a, b }, { run.dir .. "/call-rank0.json", 1, "b" })
  t.truthy(io.open(path), "the trace must be there")
  t.equal(cells(text, "matrix products"), "1 | 80.00 kB | 1.00 M") -- 5,000 + 5,000 + 10,000 numbers
  t.equal(cells(text, "pointwise"), "1 | 60.00 kB")
  t.equal(cells(text, "copies"), "1 | 40.00 kB")
  t.truthy(text:find("roofline of [%d.]+ ms on cpu\npeaks here: copy [%d.]+ .B/s, float32 products [%d.]+ .FLOP/s\n"),
    text)
end)

t.test("TracedStepsPrintTheirMeanWhenTheLastIsOver", function()
  local x = torch.ones { 100, 50 }
  local n, texts = 0, {}
  lockstep.profile { steps = { 1, 2 }, path = "steps.json", roofline = true }
  local loop = run:steps(function()
    n = n + 1
    return n <= 5 and x or nil
  end)
  while true do
    local text, step, batch = t.printed(loop)
    if step == nil then break end
    texts[step] = text
    for _ = 1, step do batch:mm(x:t()) end
  end

  for step = 0, 4 do t.equal(texts[step]:find("roofline") ~= nil, step == 3, "step " .. step) end
  t.truthy(texts[3]:find("the mean of 2 on cpu\n", 1, true), texts[3])
  t.equal(cells(texts[3], "matrix products"), "1.5 | 120.00 kB | 1.50 M")
end)

t.test("WithoutTheOptionATracePrintsNothing", function()
  t.equal((t.printed(lockstep.profile, { path = "quiet.json" }, function() end)), "")
end)

t.test("AfterAnErrorTheNextCallIsMeasured", function()
  t.raises("inside", lockstep.profile, { path = "failed.json", roofline = true }, function() error("inside", 0) end)

  local x = torch.ones { 10, 10 }
  local text = t.printed(lockstep.profile, { path = "next.json", roofline = true }, function() x:mm(x) end)
  t.equal(cells(text, "matrix products"), "1 | 1.20 kB | 2.00 k")
end)

--- The bytes and the calls of `fn`'s operators, by group.
local function costs_of(fn)
  local costs, groups = watching.costs_of("cpu", fn), {}
  for _, op in ipairs(costs:report().operators) do
    local group = groups[op.group] or { bytes = 0, calls = 0 }
    group.bytes, group.calls = group.bytes + op.bytes, group.calls + op.calls
    groups[op.group] = group
  end
  return groups
end

t.test("OurKernelsAreInTheGroupsOfTheirKinds", function()
  local x = torch.ones { 6, 64 }
  local norm = nn.RMSNorm(64)
  local parameter = torch.ones({ 10 }, { requires_grad = true })
  local optimizer = optim.AdamW({ parameter }, { lr = 0.1 })
  parameter:sum():backward()
  optimizer:step() -- makes its state

  local numbers = 6 * 64
  t.equal(torch.no_grad(costs_of, function() norm(x) end).normalisation, { bytes = 4 * (2 * numbers + 64), calls = 1 })
  t.equal(costs_of(function() torch.ops.lockstep.swiglu(x, x) end).pointwise, { bytes = 4 * 3 * numbers, calls = 1 })
  -- The parameter and both moments are read and written, as the count of steps is; the gradient is read.
  t.equal(costs_of(function() optimizer:step() end).optimizer, { bytes = 4 * (7 * 10 + 2), calls = 1 })
end)
