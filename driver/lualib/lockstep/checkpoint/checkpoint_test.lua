--- The library `checkpoint` from Lua.

local checkpoint = require "lockstep.checkpoint"
local nn = require "lockstep.nn"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

torch.set_default_dtype(torch.float64)
torch.set_num_threads(1) -- small tensors

local Block = nn.Module:subclass("Block")

function Block:init(size) self.up, self.down = nn.Linear(size, 2 * size), nn.Linear(2 * size, size) end

function Block:forward(x) return x + self.down(torch.tanh(self.up(x))) end

local function blocks(count, size)
  torch.manual_seed(1)
  local list = {}
  for i = 1, count do list[i] = Block(size or 8) end
  return list
end

local function gradients_of(y, inputs, options)
  return torch.grad((y * y):sum(), inputs, options)
end

local function expect_same(actual, expected)
  t.equal(#actual, #expected)
  for i, g in ipairs(expected) do t.equal(actual[i], g, "gradient " .. i) end
end

local function run(list, x, call)
  for _, block in ipairs(list) do x = call(block, x) end
  return x
end

local function plainly(fn, ...) return fn(...) end

for name, options in pairs {
  ["the defaults"] = {}, ["offload"] = { offload = "host", min_bytes = 1 }, ["no early stop"] = { early_stop = false },
  ["no check"] = { determinism = "none" },
  ["all"] = { offload = "host", min_bytes = 1, keep_last = 0, prefetch = 2, early_stop = false },
} do
  t.test("GradientsAreTheSameBits(" .. name .. ")", function()
    local list, x = blocks(4), torch.randn({ 3, 8 }):requires_grad_(true)
    local inputs = { x, list[1].up.weight, list[4].down.weight }
    local expected = gradients_of(run(list, x, plainly), inputs)
    local ckpt = checkpoint.new(options)

    expect_same(gradients_of(run(list, x, ckpt), inputs), expected)

    t.equal(ckpt:stats().regions, 4)
    t.equal(ckpt:stats().recomputes, 4)
    t.equal(ckpt:stats().offloaded_bytes > 0, options.offload ~= nil)
    t.truthy(tostring(ckpt):find("^checkpoint%(4 regions, 4 recomputed, %d+ bytes offloaded%)$"), tostring(ckpt))
  end)
end

t.test("ResultsAndArgumentsOfAllKindsPassThrough", function()
  local ckpt = checkpoint.new()
  local x, mask = torch.randn({ 4 }):requires_grad_(true), torch.tensor({ true, false, true, true })
  local seen = {}
  local function fn(scale, input, none, options, flag)
    seen[#seen + 1] = { scale, none, options.deep.mask, options.name, flag }
    return torch.tanh(input * scale):masked_fill(options.deep.mask, 0), nil, "aux", { input }
  end

  local y, none, text, inputs = ckpt(fn, 3, x, nil, { deep = { mask = mask }, name = "n" }, false)
  y:sum():backward()

  t.equal(none, nil)
  t.equal(text, "aux")
  t.equal(inputs[1], x)
  t.equal(#seen, 2, "calls")
  for _, call in ipairs(seen) do
    t.equal(call[1], 3)
    t.equal(call[2], nil)
    t.equal(call[3], mask)
    t.equal(call[4], "n")
    t.equal(call[5], false)
  end
end)

t.test("TensorsInTablesGetGradients", function()
  local ckpt = checkpoint.new()
  local a, b = torch.randn({ 4 }):requires_grad_(true), torch.randn({ 4 }):requires_grad_(true)
  local y = ckpt(function(pair) return torch.tanh(pair[1] * pair.second) end, { a, second = b })

  expect_same(gradients_of(y, { a, b }), gradients_of(torch.tanh(a * b), { a, b }))
  t.raises("a table that contains itself", function()
    local loop = {}
    loop.loop = loop
    ckpt(plainly, loop)
  end)
end)

t.test("ATableThatTheFunctionWritesIntoIsTheCallers", function()
  local ckpt, x, notes = checkpoint.new(), torch.randn({ 4 }):requires_grad_(true), {}

  local y = ckpt(function(input, out)
    out[#out + 1] = "was here"
    return torch.tanh(input)
  end, x, notes)
  y:sum():backward()

  t.equal(notes, { "was here" })
end)

t.test("DropoutDrawsTheSameMasks", function()
  local x = torch.randn({ 100 }):requires_grad_(true)
  local function fn(input) return torch.tanh(torch.dropout(input, 0.5, true)) end
  torch.manual_seed(5)
  local expected = gradients_of(fn(x), { x })
  local next_draw = torch.rand({ 3 })

  torch.manual_seed(5)
  local got = gradients_of(checkpoint.new()(fn, x), { x })

  expect_same(got, expected)
  t.equal(torch.rand({ 3 }), next_draw)
end)

t.test("RegionsNestAndBackwardRunsAgain", function()
  local list, x = blocks(3), torch.randn({ 2, 8 }):requires_grad_(true)
  local ckpt = checkpoint.new { offload = "host", min_bytes = 1 }
  local expected = gradients_of(run(list, x, plainly), { x })

  local y = ckpt(function(input) return run(list, input, ckpt) end, x)

  for _ = 1, 3 do expect_same(gradients_of(y, { x }, { retain_graph = true }), expected) end
end)

t.test("WithGradientsOffTheFunctionIsJustCalled", function()
  local ckpt, calls = checkpoint.new(), 0
  torch.no_grad(function()
    ckpt(function(x)
      calls = calls + 1
      return x
    end, torch.ones({ 2 }))
  end)
  t.equal(calls, 1)
  t.equal(ckpt:stats().regions, 0)
end)

t.test("AnErrorInForwardKeepsItsLine", function()
  local message = t.raises("no such layer", function()
    checkpoint.new()(function() error("no such layer") end, torch.ones({ 2 }))
  end)
  t.truthy(message:find("^[^\n]*checkpoint_test.lua:%d+: no such layer$"), message)
end)

t.test("AnErrorInTheRecomputationIsOneErrorWithItsLine", function()
  local ckpt, now = checkpoint.new { offload = "host", min_bytes = 1 }, {}
  local x = torch.randn({ 4 }):requires_grad_(true)
  local function fn(input)
    local y = torch.tanh(input)
    if now.fails then error("disk on fire") end -- the line that is blamed
    return torch.sigmoid(y)
  end
  local y = ckpt(fn, x)
  now.fails = true
  local message = t.raises("disk on fire", function() y:sum():backward({ retain_graph = true }) end)
  local line = debug.getinfo(fn, "S").linedefined + 2
  t.truthy(message:find("^[^\n]*checkpoint_test.lua:" .. line .. ": [^\n]*$"), message)

  now.fails = false
  expect_same(gradients_of(y, { x }), gradients_of(fn(x), { x }))
end)

t.test("AnOperatorsErrorInTheRecomputationNamesTheLineToo", function()
  local ckpt, now = checkpoint.new(), {}
  local x = torch.randn({ 4 }):requires_grad_(true)
  local function fn(input)
    local y = torch.tanh(input)
    return torch.sigmoid(now.fails and y:view({ 3, 3 }) or y)
  end
  local y = ckpt(fn, x)
  now.fails = true
  local message = t.raises("view", function() y:sum():backward() end)
  t.truthy(message:find("^[^\n]*checkpoint_test.lua:" .. debug.getinfo(fn, "S").linedefined + 2 .. ": "), message)
end)

t.test("AFunctionThatDoesOtherwiseIsAnErrorThatNamesTheRegion", function()
  local ckpt, now = checkpoint.new(), {}
  local x = torch.randn({ 4 }):requires_grad_(true)
  local y = ckpt(function(input) return torch.tanh(now.wide and torch.cat { input, input } or input) end, x)
  local line = debug.getinfo(1, "l").currentline - 1
  now.wide = true

  local message = t.raises("saved tensor 0 is Double {8} on cpu, and was Double {4} on cpu in forward",
    function() y:sum():backward() end)

  t.truthy(message:find("region [^\n]*checkpoint_test.lua:" .. line .. ": ", 1), message)
end)

t.test("APcallWithinTheFunctionIsFineAroundAPart", function()
  local x = torch.randn({ 4 }):requires_grad_(true)
  local function fn(input)
    local ok, y = pcall(function() return torch.tanh(input) end)
    return torch.sigmoid(ok and y or input)
  end

  expect_same(gradients_of(checkpoint.new()(fn, x), { x }), gradients_of(fn(x), { x }))
end)

t.test("ARegionMayRunInACoroutine", function()
  local list, x = blocks(2), torch.randn({ 2, 8 }):requires_grad_(true)
  local expected = gradients_of(run(list, x, plainly), { x })
  local y
  local thread = coroutine.create(function() y = run(list, x, checkpoint.new()) end)
  t.truthy(coroutine.resume(thread))

  expect_same(gradients_of(y, { x }), expected)
end)

t.test("ACoroutineThatIsGoneIsNotNeededForBackward", function()
  local x = torch.randn({ 4 }):requires_grad_(true)
  local y
  do
    local thread = coroutine.create(function() y = checkpoint.new()(torch.tanh, x) end)
    t.truthy(coroutine.resume(thread))
  end
  collectgarbage()
  collectgarbage()

  expect_same(gradients_of(y, { x }), gradients_of(torch.tanh(x), { x }))
end)

t.test("SelectedResultsAreKept", function()
  local list, x = blocks(2), torch.randn({ 3, 8 }):requires_grad_(true)
  local expected = gradients_of(run(list, x, plainly), { x })
  local policy = checkpoint.selective { save = { "aten::addmm", "aten::mm" } }
  t.equal(policy:operators()[1], "aten::addmm")
  local ckpt = checkpoint.new { policy = policy }

  expect_same(gradients_of(run(list, x, ckpt), { x }), expected)

  t.raises('there is no operator "aten::madmul"', checkpoint.selective, { save = { "aten::madmul" } })
end)

t.test("AKeptProductThatIsModifiedInPlaceIsComputedAgain", function()
  local layer, x = nn.Linear(4, 4), torch.randn({ 2, 3, 4 }):requires_grad_(true)
  local function fn(v) return torch.tanh(layer(v:transpose(0, 1))) end -- adds the bias in place
  local ckpt = checkpoint.new { policy = checkpoint.selective { save = { "aten::mm", "aten::bmm" } } }

  expect_same(gradients_of(ckpt(fn, x), { x }), gradients_of(fn(x), { x }))

  t.equal(ckpt:stats().modified_results, 1)
end)

t.test("SaveOnHostGivesTheSameBitsAndCounts", function()
  local list, x = blocks(3, 32), torch.randn({ 16, 32 }):requires_grad_(true)
  local expected = gradients_of(run(list, x, plainly), { x })
  local before = checkpoint.stats().offloaded_bytes

  local y = checkpoint.save_on_host(function(input) return run(list, input, plainly) end, x)

  expect_same(gradients_of(y, { x }), expected)
  t.truthy(checkpoint.stats().offloaded_bytes > before)
end)

t.test("OnceWarmHostMemoryIsNotAllocatedAgain", function()
  local list, x = blocks(6, 64), torch.randn({ 32, 64 }):requires_grad_(true)
  local ckpt = checkpoint.new { offload = "host" }
  local function step()
    run(list, x, ckpt):sum():backward()
    collectgarbage()
  end
  step()
  local warm = ckpt:stats()

  for _ = 1, 20 do step() end

  t.equal(ckpt:stats().pool_allocations, warm.pool_allocations)
  t.equal(ckpt:stats().peak_host_bytes, warm.peak_host_bytes)
  t.truthy(warm.peak_host_bytes <= 1.02 * 6 * 32 * 64 * 8, "host bytes")
end)

t.test("MemoryIsFlatOverManySteps", function()
  local list, x = blocks(3, 16), torch.randn({ 8, 16 }):requires_grad_(true)
  local ckpt = checkpoint.new { offload = "host" }
  t.memory_is_flat(function()
    local y = ckpt(function(input, options) return run(list, input, options.call) end, x, { call = ckpt })
    ckpt(plainly, torch.tanh, y) -- a branch that backward never reaches
    y:sum():backward()
  end)
end)

t.test("FrozenWeightsAmongTheArgumentsAreCopiedOnce", function()
  local ckpt = checkpoint.new { offload = "host", keep_last = 0 }
  local frozen, weight = torch.randn({ 64, 64 }), torch.randn({ 64, 64 }):requires_grad_(true)
  local function layer(x, w, table) return torch.tanh(x:matmul(w):matmul(weight)) + table.bias end
  local options = { bias = torch.randn { 32, 64 } }
  local function step()
    local x = torch.randn({ 32, 64 })
    ckpt(layer, ckpt(layer, x, frozen, options), frozen, options):sum():backward()
    return ckpt:stats().offloaded_bytes
  end
  local activations = 2 * 32 * 64 * 8
  t.equal(step(), activations + (64 + 32) * 64 * 8)
  collectgarbage()

  for _ = 1, 3 do
    local before = ckpt:stats().offloaded_bytes
    t.equal(step() - before, activations)
    collectgarbage()
  end
end)

t.test("FrozenWeightsThatAreNamedAreNeverCopied", function()
  local frozen = torch.randn({ 64, 64 })
  local ckpt = checkpoint.new { offload = "host", keep_last = 0, frozen = { frozen } }
  local weight, x = torch.randn({ 64, 64 }):requires_grad_(true), torch.randn({ 32, 64 })

  ckpt(function(h, w) return torch.tanh(h:matmul(w:t()):matmul(weight)) end, x, frozen:t()):sum():backward()

  t.equal(ckpt:stats().offloaded_bytes, 32 * 64 * 8)
  t.raises("checkpoint.new: frozen", checkpoint.new, { offload = "host", frozen = { 1 } })
end)

t.test("BeyondMaxHostBytesTensorsStayAndAreCounted", function()
  local list, x = blocks(4, 64), torch.randn({ 32, 64 }):requires_grad_(true)
  local bytes = 32 * 64 * 8
  local expected = gradients_of(run(list, x, plainly), { x })
  local ckpt = checkpoint.new { offload = "host", max_host_bytes = 2 * bytes }

  expect_same(gradients_of(run(list, x, ckpt), { x }), expected)

  t.equal(ckpt:stats().peak_host_bytes, 2 * bytes)
  t.equal(ckpt:stats().refused_bytes, bytes) -- x is a leaf, which stays anyway
  t.raises("max_host_bytes must not be below 0", checkpoint.new, { offload = "host", max_host_bytes = -1 })
end)

t.test("AWeightThatChangesBeforeBackwardIsNamed", function()
  local weight = torch.randn({ 4, 4 }):requires_grad_(true)
  local y = checkpoint.new()(function(x) return torch.linear(torch.tanh(x), weight) end,
    torch.randn({ 3, 4 }):requires_grad_(true))
  torch.no_grad(function() weight:mul_(2) end)
  t.raises("a parameter at version", function() y:sum():backward() end)
end)

t.test("OptionsOfOffloadNeedIt", function()
  for name, value in pairs { keep_last = 1, prefetch = 2, min_bytes = 1, max_host_bytes = 1e6,
    frozen = { torch.ones { 2 } } } do
    local function heard(offload)
      return select(2, t.listening(checkpoint.new, { [name] = value, offload = offload }))
    end
    t.equal(heard(nil), "lockstep: checkpoint.new: " .. name .. " has no effect without offload = \"host\"; "
      .. "offload = false turns it off without this line\n")
    t.equal(heard(nil), "") -- once, and not for each layer
    t.equal(heard(false), "")
    t.equal(heard "host", "")
  end
end)

t.test("WrongOptionsAreNamed", function()
  t.raises('unknown option "ofload"; did you mean "offload"?', checkpoint.new, { ofload = "host" })
  t.raises('offload must be "host", false or absent, not disk', checkpoint.new, { offload = "disk" })
  t.raises('determinism must be "metadata" or "none", not "bits"', checkpoint.new, { determinism = "bits" })
  t.raises("must not be below 0", checkpoint.new, { offload = "host", keep_last = -1 })
  t.raises("prefetch must not be below 0, but is -2", checkpoint.new, { offload = false, prefetch = -2 })
  t.raises("policy must be a selection of operators", checkpoint.new, { policy = { "aten::mm" } })
  t.raises('option "save" is missing', checkpoint.selective, {})
  t.raises("must be a function", checkpoint.new(), 3)
end)
