--- Memory: the collector sees what tensors hold, so that a training loop runs at flat memory.

local lockstep = require "lockstep"
local optim = require "lockstep.optim"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local MB = 2 ^ 20

torch.set_num_threads(1)  -- the tensors are small, and the machine may run other tests

--- Bytes of the tensors that Lua still reaches.
local function held()
  collectgarbage()
  collectgarbage()
  return lockstep.memory().tensors
end

--- A tensor of n MB.
local function block(n) return torch.zeros { n, MB / 4 } end

-- lockstep.memory -------------------------------------------------------------------------------------

t.test("MemoryTellsTensorsTheLuaHeapAndTheProcess", function()
  local memory = lockstep.memory()

  for _, field in ipairs { "tensors", "lua", "resident" } do
    t.equal(type(memory[field]), "number", field)
    t.equal(memory[field], math.floor(memory[field]), field)
  end
  t.truthy(memory.lua > 0 and memory.lua < 100 * MB)
  t.truthy(memory.resident > 10 * MB and memory.resident < 4096 * MB)
end)

t.test("ATensorCountsWhileSomethingRefersToIt", function()
  local before = held()
  local x = block(4)
  local with = held() - before
  t.equal(x.shape[1], 4)
  x = nil -- luacheck: ignore 311
  local after = held() - before

  t.truthy(with >= 4 * MB and with < 4 * MB + 4096, with)
  t.equal(after, 0)
end)

t.test("AStorageCountsOnceForAllTheTensorsThatShareIt", function()
  local before = held()
  local base = block(4)
  local shared = { base:view(-1), base[0], base:detach(), base.T, base:to(torch.float32) }

  t.equal(#shared, 5)
  t.truthy(held() - before < 4 * MB + 8192)
  local w = block(1):requires_grad_(true)
  w:sum():backward()
  local first, second = w.grad, w.grad
  t.truthy(first ~= nil and second ~= nil and held() - before < 6 * MB + 8192)
end)

t.test("AViewCountsTheBaseThatItKeeps", function()
  local before = held()
  local view = block(4)[0]

  local kept = held() - before
  t.equal(view:sum():item(), 0)
  t.truthy(kept >= 4 * MB and kept < 4 * MB + 8192, kept)
end)

t.test("AStorageThatWasReplacedCountsNoMore", function()
  local before = held()
  local function replace()
    local x = torch.zeros(MB)
    x:set_(torch.zeros(2))
    return x
  end

  local x = replace()
  t.equal(x.shape[1], 2)
  x = nil -- luacheck: ignore 311
  t.equal(held() - before, 0)
end)

t.test("ATensorWithoutElementsInMemoryCountsNone", function()
  local before = held()
  local x = torch.zeros({ 1000, 1000 }, { device = "meta" })

  t.truthy(held() - before < 4096)
  t.equal(x.device, "meta")
end)

t.test("TheLuaHeapGrowsByLuaValuesOnly", function()
  collectgarbage()
  local before = lockstep.memory().lua
  local x = block(16)

  t.truthy(lockstep.memory().lua - before < MB)
  t.equal(x.dtype, torch.float32)
end)

-- Collection ------------------------------------------------------------------------------------------

t.test("GarbageIsCollectedWhileTensorsAreMade", function()
  local before, most = held(), 0

  for _ = 1, 200 do
    block(4)
    most = math.max(most, lockstep.memory().tensors - before)
  end

  -- The budget is 64 MB; one cycle may begin and one may end before a dead tensor is freed.
  t.truthy(most <= 3 * 64 * MB, most / MB)
end)

t.test("AGraphIsFreedWithItsLoss", function()
  local w = torch.ones({ 256, 1024 }, { requires_grad = true })
  local before, resident = held(), lockstep.memory().resident

  local function forward()
    local y = w
    for _ = 1, 20 do y = torch.relu(y) end
    return y:sum()
  end
  for _ = 1, 40 do lockstep.scope(forward) end  -- 20 MB of activations each: 800 MB, if they stayed

  t.equal(held() - before, 0)
  t.truthy(lockstep.memory().resident - resident < 200 * MB)
end)

-- lockstep.scope --------------------------------------------------------------------------------------

t.test("ScopeFreesTemporariesAtOnce", function()
  local before = held()

  local inside
  local sum = lockstep.scope(function()
    local x = block(8) + 1
    inside = lockstep.memory().tensors - before
    return x:sum():item()
  end)

  t.equal(sum, 8 * MB / 4)
  t.truthy(inside >= 16 * MB, inside)
  t.equal(lockstep.memory().tensors - before, 0)
end)

t.test("ScopePassesArgumentsAndReturnsEveryResult", function()
  local kept = torch.ones(2)

  local results = { lockstep.scope(function(...) return select("#", ...), nil, kept, ... end, "a", nil, kept) }

  t.equal(results[1], 3)
  t.equal(results[2], nil)
  t.truthy(rawequal(results[3], kept))
  t.equal(results[4], "a")
  t.equal(results[5], nil)
  t.truthy(rawequal(results[6], kept))
end)

t.test("ScopeKeepsWhatItReturnsAndWhatOthersReach", function()
  local before, outside = held(), {}

  local result = lockstep.scope(function()
    outside[1] = block(2)
    return block(1) + 3
  end)

  t.equal(result:max():item(), 3)
  t.equal(outside[1]:sum():item(), 0)
  local kept = held() - before
  t.truthy(kept >= 3 * MB and kept < 3 * MB + 8192, kept)
end)

t.test("ScopesNest", function()
  local result = lockstep.scope(function()
    local x = block(1)
    return x:sum() + lockstep.scope(function() return x:add(1):sum() end)
  end)

  t.equal(result:item(), MB / 4)
end)

t.test("ScopePassesErrorsOn", function()
  local thrown = {}

  local ok, caught = pcall(lockstep.scope, function() error(thrown) end)

  t.truthy(not ok and caught == thrown)
  t.raises("lockstep.scope: the argument must be a function, not a table", lockstep.scope, {})
end)

-- Training --------------------------------------------------------------------------------------------

t.test("TwoThousandStepsRunAtFlatMemory", function()
  torch.manual_seed(1)
  local w1 = torch.randn({ 32, 256 }):mul_(0.1):requires_grad_(true)
  local w2 = torch.randn({ 256, 8 }):mul_(0.1):requires_grad_(true)
  local parameters = { w1, w2 }
  local optimizer = optim.AdamW(parameters, { lr = 1e-3 })

  local function step()
    local x = torch.randn { 64, 32 }
    local labels = torch.randint(0, 8, { 64 })
    local loss = torch.cross_entropy_loss(torch.relu(x:mm(w1)):mm(w2), labels)
    loss:backward()
    optim.clip_grad_norm(parameters, 1)
    optimizer:step()
    optimizer:zero_grad()
    return loss:item()
  end
  local function run(steps) for _ = 1, steps do step() end end

  run(300)  -- allocators and caches fill up
  local tensors, resident = held(), lockstep.memory().resident
  local most = 0
  for _ = 1, 20 do
    run(100)
    most = math.max(most, lockstep.memory().resident)
  end

  t.equal(held(), tensors)
  t.truthy(most <= 1.05 * resident, string.format("resident: %.1f MB, at most %.1f MB", resident / MB, most / MB))
end)
