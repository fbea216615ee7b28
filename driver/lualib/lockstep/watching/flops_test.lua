--- Tests FLOPs by operator. FlopCounterMode of torch.utils.flop_counter in PyTorch 2.11 counted the numbers of the
--- tables for the same calls in Python. Comments mark the exceptions.

local core = require "lockstep.core"
local data = require "lockstep.data"
local log = require "lockstep.log"
local nn = require "lockstep.nn"
local peaks = require "lockstep.watching.peaks"
local run = require "lockstep.run"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local function random(...) return torch.randn({ ... }, { requires_grad = true }) end

--- FLOPs of `fn`'s forward and of the backward of its sum, by operator.
local function count(fn)
  local counts = lockstep.flops(function() fn():sum():backward() end)
  local by_name = {}
  for _, op in ipairs(counts) do by_name[op.name:match("^aten::(.*)$")] = op.flops end
  return counts.total, by_name
end

local function attention(q, k, v)
  return torch.scaled_dot_product_attention(q, k, v, { is_causal = true })
end

local CASES = {
  mm = { function() return torch.mm(random(3, 4), random(4, 5)) end, { mm = 360 } },
  linear = { function() return torch.linear(random(2, 3, 4), random(5, 4), random(5)) end, { addmm = 240, mm = 480 } },
  linear_without_bias = { function() return torch.linear(random(2, 3, 4), random(5, 4)) end, { mm = 720 } },
  matmul = { function() return torch.matmul(random(2, 3, 4, 5), random(2, 3, 5, 6)) end, { bmm = 4320 } },
  baddbmm = { function() return torch.baddbmm(random(2, 3, 5), random(2, 3, 4), random(2, 4, 5)) end,
    { baddbmm = 240, bmm = 480 } },
  einsum = { function() return torch.einsum("bij,bjk->bik", { random(2, 3, 4), random(2, 4, 5) }) end, { bmm = 720 } },
  conv2d = {
    function()
      return torch.conv2d(random(2, 3, 9, 8), random(4, 3, 3, 2), random(4), { stride = { 2, 2 }, padding = { 1, 1 } })
    end, { convolution = 7200, convolution_backward = 14400 } },
  dilated_conv1d = {
    function() return torch.conv1d(random(2, 3, 20), random(4, 3, 3), { padding = { 2 }, dilation = { 2 } }) end,
    { convolution = 2880, convolution_backward = 5760 } },
  conv3d = { function() return torch.conv3d(random(1, 2, 5, 6, 7), random(3, 2, 2, 2, 2)) end,
    { convolution = 11520, convolution_backward = 23040 } },
  conv_transpose2d = {
    function() return torch.conv_transpose2d(random(2, 3, 5, 5), random(3, 4, 3, 3), { stride = { 2, 2 } }) end,
    { convolution = 10800, convolution_backward = 21600 } },
  -- Python says 27648 of the backward: it multiplies the groups in again.
  grouped_conv2d = { function() return torch.conv2d(random(2, 4, 6, 6), random(8, 2, 3, 3), { groups = 2 }) end,
    { convolution = 9216, convolution_backward = 2 * 9216 } },
  -- Python counts nothing of the CPU's attention; this is its formula for a GPU's.
  attention = { function() return attention(random(2, 3, 16, 8), random(2, 3, 16, 8), random(2, 3, 16, 8)) end,
    { _scaled_dot_product_flash_attention_for_cpu = 49152,
      _scaled_dot_product_flash_attention_for_cpu_backward = 122880 } },
}

for name, case in pairs(CASES) do
  t.test("FlopsAreThoseOfPyTorchsCounter/" .. name, function()
    local total, by_name = count(case[1])

    local expected = 0
    for _, flops in pairs(case[2]) do expected = expected + flops end
    t.equal(by_name, case[2])
    t.equal(total, expected)
  end)
end

t.test("AWeightThatIsFrozenHasNoBackwardOfItsOwn", function()
  local total = count(function() return torch.conv2d(random(2, 3, 9, 8), torch.randn { 4, 3, 3, 2 }) end)

  t.equal(total, 2 * (2 * 2 * (7 * 7) * (4 * 3 * 3 * 2)))  -- forward and the input's gradient
end)

t.test("ALinearLayerOfFewRowsCountsOnce", function()
  local layer, x = nn.Linear(64, 3), torch.randn { 2, 64 }

  local counts = torch.no_grad(lockstep.flops, function() layer(x) end)

  t.equal(counts.total, 2 * 2 * 64 * 3)
  t.equal(#counts, 1)
end)

t.test("AttentionOfARowCountsThePairsOfEachSequence", function()
  local pairs_of_all, opts = (3 ^ 2 + 5 ^ 2) * 6, { seq_lens = { 3, 5 } }

  local counts = lockstep.flops(function()
    nn.attention(random(8, 6, 4), random(8, 2, 4), random(8, 2, 4), opts):sum():backward()
  end)

  local by_name = {}
  for _, op in ipairs(counts) do by_name[op.name] = op.flops end
  t.equal(by_name, { ["lockstep::packed_attention"] = pairs_of_all * 2 * (4 + 4),
    ["lockstep::packed_attention_backward"] = pairs_of_all * 2 * (3 * 4 + 2 * 4) })
end)

t.test("AModelOfLinearLayersCostsSixTimesItsWeightsPerToken", function()
  local model = nn.Sequential { nn.Linear(16, 64), nn.Linear(64, 16) }
  local tokens = 10

  local total = count(function() return model(random(tokens, 16)) end)

  t.equal(total, 6 * tokens * 2 * 16 * 64)
end)

t.test("ElementwiseOperatorsAndSumsCountNothing", function()
  t.equal(count(function() return torch.relu(random(4, 4)) * 2 + 1 end), 0)
end)

t.test("ResultsFollowTheCounts", function()
  local counts, a, b, c = lockstep.flops(function(...) return ... end, 1, nil, "c")

  t.equal({ counts.total, #counts, a, b == nil, c }, { 0, 0, 1, true, "c" })
end)

t.test("CountsPrintAsATable", function()
  local x = torch.ones { 1000, 500 }
  local text = tostring((lockstep.flops(function()
    x:mm(x:t())
    x:t():mm(x)
    torch.addmm(x, torch.ones { 1000, 1 }, torch.ones { 1, 500 })
  end)))

  t.equal(text, [[
operator      FLOPs  share  calls
aten::mm     1.50 G   100%      2
aten::addmm  1.00 M     0%      1
total        1.50 G]])
end)

t.test("CountersNestAndAnErrorEndsTheInner", function()
  local x = torch.ones { 2, 2 }
  local outer = lockstep.flops(function()
    local ok = pcall(lockstep.flops, function()
      x:mm(x)
      error("inner")
    end)
    t.truthy(not ok)
    x:mm(x)
  end)

  t.equal(outer.total, 32)
end)

t.test("OnlyAFunctionIsCounted", function()
  t.raises("lockstep.flops: the argument must be a function, not a number", lockstep.flops, 3)
end)

-- In the log ------------------------------------------------------------------------------------------

local function quietly(fn, ...)
  local text, stdout = {}, io.stdout
  io.stdout = { -- luacheck: ignore 122
    write = function(_, ...) text[#text + 1] = table.concat { ... } end,
    flush = function() end,
  }
  local ok, message = pcall(fn, ...)
  io.stdout = stdout -- luacheck: ignore 122
  if not ok then error(message, 0) end
  return table.concat(text)
end

local function last_object()
  local last
  for object in data.jsonl(run.dir .. "/metrics.jsonl") do last = object end
  return last
end

--- Logs a step that takes two seconds of a clock that stands still otherwise, and multiplies matrices meanwhile.
local function logged_step()
  local now, x = core.now, torch.ones { 100, 100 }
  local clock = now()
  core.now = function() return clock end
  local line = quietly(function()
    log.step {}
    x:mm(x)
    clock = clock + 2
    log.step {}
  end)
  core.now = now
  return line, last_object()
end

t.test("AStepTellsNoFlopsUnlessAsked", function()
  local line, object = logged_step()

  t.truthy(not line:find("FLOP") and object.tflops == nil and object.mfu == nil, line)
end)

t.test("AStepTellsItsFlopsPerSecondAndTheirShareOfThePeak", function()
  log.count_flops {}
  local line, object = logged_step()
  t.truthy(line:find("  1.0M FLOP/s  %d+ MiB"), line)
  t.near(object.tflops, 1e-6, 1e-12)
  t.equal(object.mfu, nil)

  log.count_flops { peak = 4e6 }
  line, object = logged_step()
  t.truthy(line:find("  1.0M FLOP/s  mfu 25%%  "), line)
  t.near(object.mfu, 0.25, 1e-9)

  log.count_flops { peak = "H100 SXM" }
  t.near(select(2, logged_step()).mfu, 1e6 / 989e12, 1e-12)
end)

t.test("AValidationDoesNotCountAsAStepsFlops", function()
  log.count_flops { peak = 4e6 }
  local x = torch.ones { 100, 100 }
  quietly(function()
    log.step {}
    x:mm(x)
    log.record("validation", { loss = 1 })
    log.step {}
  end)

  t.equal(last_object().tflops, 0)
end)

t.test("AGpuIsFoundByItsNameAndByItsDriversName", function()
  t.equal(peaks.of("A100"), 312e12)
  t.raises('peaks.of: the argument must be a GPU\'s name, as "H100 SXM", not a nil', peaks.of)
  t.raises("peaks.of_model: the argument must be a GPU's name", peaks.of_model, 4090)
  for model, flops in pairs {
    ["NVIDIA H100 80GB HBM3"] = 989e12, ["NVIDIA H100 PCIe"] = 756e12, ["NVIDIA A100-SXM4-80GB"] = 312e12,
    ["NVIDIA L4"] = 121e12, ["NVIDIA L40S"] = 362e12, ["NVIDIA GeForce RTX 4090"] = 165e12,
  } do
    t.equal(peaks.of_model(model), flops, model)
  end
  for _, model in ipairs { "NVIDIA L40", "NVIDIA H100", "NVIDIA GeForce RTX 4090D" } do
    t.equal(peaks.of_model(model), nil, model)
  end
end)

t.test("AnInvalidPeakIsAnError", function()
  t.raises('no peak is known of "H100 SMX"; did you mean "H100 SXM"? (known: A100, ', log.count_flops,
    { peak = "H100 SMX" })
  t.raises('no peak is known of "H100"; did you mean "H100 PCIe" or "H100 NVL" or "H100 SXM"?', log.count_flops,
    { peak = "H100" })
  t.raises('log.count_flops: peak must be FLOP/s above 0 or a name as "H100 SXM", not -1', log.count_flops,
    { peak = -1 })
  t.raises('unknown option "peek"; did you mean "peak"?', log.count_flops, { peek = 1 })
end)
