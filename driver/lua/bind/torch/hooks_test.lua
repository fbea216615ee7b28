-- x:register_hook: handles that remove a hook, and hooks that are collected with their tensors.

local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local function leaf(values) return torch.tensor(values, { requires_grad = true }) end

--- Runs the collector until nothing more is freed: one cycle unroots a hook, the next frees its tensor, and only then
--- is a tensor unrooted whose graph that one kept.
local function collect()
  for _ = 1, 10 do collectgarbage() end
end

--- Returns a table that holds the tensor as long as anything else does.
local function watch(tensor) return setmetatable({ tensor }, { __mode = "v" }) end

-- Handles ---------------------------------------------------------------------------------------------

t.test("ARemovedHookIsNotCalled", function()
  local w = leaf { 1, 2 }
  local y = w * 1
  local order = {}
  local handles = {}
  for i = 1, 3 do
    handles[i] = y:register_hook(function(gradient)
      order[#order + 1] = i
      return gradient * 10
    end)
  end

  handles[2]:remove()
  handles[2]:remove()
  y:sum():backward()

  t.equal(order, { 1, 3 })
  t.equal(w.grad, torch.tensor { 100, 100 })
end)

t.test("ALeafsHookIsRemovedBetweenSteps", function()
  local w, calls = leaf { 1 }, 0
  local handle = w:register_hook(function() calls = calls + 1 end)
  w:sum():backward()

  handle:remove()
  w:sum():backward()

  t.equal(calls, 1)
  w:register_hook(function() calls = calls + 10 end)
  w:sum():backward()
  t.equal(calls, 11)
end)

t.test("AHookMayRemoveItselfAndAddAnother", function()
  local w, order = leaf { 1 }, {}
  local handle
  handle = w:register_hook(function()
    order[#order + 1] = "first"
    handle:remove()
    w:register_hook(function() order[#order + 1] = "second" end)
  end)
  w:register_hook(function() order[#order + 1] = "other" end)

  w:sum():backward()
  w:sum():backward()

  t.equal(order, { "first", "other", "other", "second" })
end)

t.test("AHandleOutlivesItsTensor", function()
  local handle = leaf({ 1 }):register_hook(print)
  collect()

  handle:remove()
  t.raises("remove: the handle must be a hook handle, not nothing", handle.remove)
end)

t.test("HooksBeforeAndAfterAnInPlaceOperatorSeeTheirOwnGradients", function()
  local w, seen = leaf { 3 }, {}
  local y = w * 1
  y:register_hook(function(gradient) seen.before = gradient:item() end)
  y:mul_(5)
  y:register_hook(function(gradient) seen.after = gradient:item() end)

  y:sum():backward()

  t.equal(seen, { before = 5, after = 1 })
end)

-- Collection ------------------------------------------------------------------------------------------

t.test("AHookThatCapturesItsOwnTensorIsCollectedWithIt", function()
  local makers = {
    leaf = function() return leaf { 1, 2 } end,
    result = function() return leaf { 1, 2 } * 2 end,
  }
  for name, make in pairs(makers) do
    local function run()
      local x = make()
      x:register_hook(function(gradient) return gradient + x:detach() end)
      x:register_hook(function() return x.grad end)
      return watch(x)
    end
    local kept = run()

    collect()

    t.equal(kept[1], nil, name)
  end
end)

t.test("SoItIsAfterItsGraphHasRun", function()
  local function run()
    local w = leaf { 1, 2 }
    local y = w * 3
    local calls = 0
    w:register_hook(function(gradient) calls = calls + 1; return gradient + w:detach() end)
    y:register_hook(function(gradient) calls = calls + 1; return gradient * y:detach() end)
    collect()
    y:sum():backward()
    return watch(w), watch(y), w.grad, calls
  end
  local w, y, grad, calls = run()

  collect()

  t.equal(calls, 2)
  t.equal(grad, torch.tensor { 3 * 3 + 1, 6 * 3 + 2 })
  t.equal({ w[1], y[1] }, {})
end)

t.test("AHookLivesAsLongAsAGraphLeadsToItsTensor", function()
  local w, seen = leaf { 1, 2 }, {}
  local function forward()
    local y = w * 3
    y:register_hook(function(gradient)
      seen[#seen + 1] = y:totable()
      return gradient * 10
    end)
    collect()
    return (y * y):sum()
  end
  local loss = forward()
  collect()

  loss:backward()

  t.equal(seen, { { 3, 6 } })
  t.equal(w.grad, torch.tensor { 10 * 2 * 3 * 3, 10 * 2 * 6 * 3 })
end)

t.test("AHookOfATensorThatIsUsedAgainAfterCollectionsIsCalled", function()
  local w, calls = leaf { 1 }, 0
  w:register_hook(function() calls = calls + 1 end)
  for _ = 1, 3 do
    collect()
    local loss = (w * 2):sum()
    collect()
    loss:backward()
  end

  t.equal(calls, 3)
  t.equal(w.grad, torch.tensor { 6 })
end)

t.test("AHookThatIsRemovedBetweenCollectionsIsCollected", function()
  local w = leaf { 1 }
  local function run()
    local captured = { "captured" }
    local handle = w:register_hook(function() return captured[2] end)
    collect()
    handle:remove()
    return watch(captured)
  end
  local kept = run()

  collect()

  t.equal(kept[1], nil)
end)

t.test("AThousandStepsWithAHookThatCapturesKeepNothing", function()
  local w = torch.ones({ 64, 1024 }, { requires_grad = true })
  collect()
  local before = lockstep.memory().tensors
  for _ = 1, 1000 do
    local y = w * 2
    y:register_hook(function(gradient) return gradient * y:detach() end)
    y:sum():backward()
    w.grad = nil
  end
  collect()

  t.truthy(lockstep.memory().tensors - before < 2 ^ 20, lockstep.memory().tensors - before)
end)
