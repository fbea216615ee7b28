-- AdamW on bfloat16 and float16 parameters: masters, stochastic rounding, moments in bfloat16.

local core = require "lockstep.core"
local nn = require "lockstep.nn"
local optim = require "lockstep.optim"
local precision = require "lockstep.optim.precision"
local run = require "lockstep.run"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

torch.set_num_threads(1)

local BF16 = torch.bfloat16

local function full(shape, value, dtype)
  return torch.full(shape, value, { dtype = dtype or BF16 }):requires_grad_(true)
end

--- Makes `steps` steps of AdamW on `p` with the gradient `grad`.
local function advance(p, optimizer, steps, grad)
  for _ = 1, steps do
    p.grad = torch.full_like(p:detach(), grad or 1)
    optimizer:step()
  end
end

local function mean(x) return x:detach():float():mean():item() end

local function adam(p, master, opts)
  local o = { lr = 1e-3, weight_decay = 0, master = master }
  for key, value in pairs(opts or {}) do o[key] = value end
  return optim.AdamW({ p }, o)
end

--- Adds a test that runs with the kernel for all dtypes, and another one with ATen's.
local function test(name, fn)
  t.test(name, fn)
  t.test(name .. "ByAten", function()
    local before = nn.use_fused(false)
    local ok, problem = pcall(fn)
    nn.use_fused(before)
    if not ok then error(problem, 0) end
  end)
end

-- Against float32 -------------------------------------------------------------------------------------

--- Trains a small model for 1,000 steps of 1e-4; returns its loss and its parameters.
local function train_model(dtype, opts)
  torch.manual_seed(1)
  local x, w = torch.randn { 32, 8 }, torch.randn { 8, 4 }
  local y = torch.tanh(torch.matmul(x, w))
  local model = nn.Sequential { nn.Linear(8, 16), nn.Linear(16, 4) }
  model:to { dtype = BF16 }
  model:to { dtype = dtype }
  local o = { lr = 1e-4, weight_decay = 0.01 }
  for key, value in pairs(opts or {}) do o[key] = value end
  local optimizer = optim.AdamW(model:parameters(), o)
  local loss
  for _ = 1, 1000 do
    loss = torch.mse_loss(model(x:to(dtype)):float(), y)
    loss:backward()
    optimizer:step()
    optimizer:zero_grad()
  end
  return loss:item(), model:parameters()
end

test("AThousandStepsOfAModelFollowFloat32", function()
  local expected, expected_parameters = train_model(torch.float32)
  local cases = {
    { BF16, {}, 0.01, 1 / 256 },
    { BF16, { states = BF16 }, 0.01, 1 / 64 },
    { BF16, { master = "stochastic" }, 0.02 },
    { BF16, { master = "stochastic", states = BF16 }, 0.02 },
    { torch.float16, {}, 0.01, 1 / 1024 },
  }
  for i, case in ipairs(cases) do
    local loss, parameters = train_model(case[1], case[2])
    t.near(loss / expected, 1, case[3], "loss of case " .. i)
    for j, p in ipairs(case[4] and parameters or {}) do
      t.near(p:detach():float(), expected_parameters[j]:detach(), case[4], ("case %d, parameter %d"):format(i, j))
    end
  end
  -- Without any of it the same model hardly trains.
  t.truthy(train_model(BF16, { master = "none" }) > 2 * expected)
end)

test("AMasterIsBitForBitTheWeightThatFloat32WouldTrain", function()
  torch.manual_seed(1)
  for _, dtype in ipairs { BF16, torch.float16 } do
    local low = torch.randn({ 64 }):to(dtype):requires_grad_(true)
    local high = low:detach():float():requires_grad_(true)
    local a, b = optim.AdamW({ low }, { weight_decay = 0.1 }), optim.AdamW({ high }, { weight_decay = 0.1 })
    for _ = 1, 100 do
      low.grad = torch.randn({ 64 }):to(dtype)
      high.grad = low.grad:float()
      a:step()
      b:step()
    end

    t.equal(a:state_dict().states[1].master, high:detach())
    t.equal(low:detach(), high:detach():to(dtype))
    t.equal(a:state_dict().states[1].exp_avg_sq, b:state_dict().states[1].exp_avg_sq)
  end
end)

test("AWeightOfOneMovesByAHundredSmallSteps", function()
  for master, expected in pairs { float32 = 0.9, stochastic = 0.9, none = 1 } do
    local p = full({ 64, 64 }, 1)

    advance(p, adam(p, master), 100)

    t.near(mean(p), expected, 2e-3, master)
  end
end)

-- Masters ---------------------------------------------------------------------------------------------

test("WritesToAParameterReachItsMaster", function()
  local p = full({ 3 }, 1)
  local optimizer = adam(p)
  advance(p, optimizer, 10)
  local master = optimizer:state_dict().states[1].master
  local before = master[0]:item()

  torch.no_grad(function() p[1]:fill_(5) end)
  advance(p, optimizer, 1)

  t.near(p[1]:item(), 5, 0.02)
  t.near(master[1]:item(), 5 - 1e-3, 1e-5)
  t.near(master[0]:item(), before - 1e-3, 1e-6, "an element that was not written lost its master")
end)

t.test("AMasterOfAnotherParameterDoesNotOverwriteTheWeights", function()
  local p, other = full({ 3 }, 1), full({ 3 }, 7)
  local optimizer, saved = adam(p), adam(other)
  advance(p, optimizer, 1)
  advance(other, saved, 1)

  optimizer:load_state_dict(saved:state_dict())
  advance(p, optimizer, 1)

  t.near(mean(p), 1, 0.01)
end)

t.test("ARunsStateKeepsTheMasters", function()
  local function begin()
    torch.manual_seed(3)
    local model = nn.Linear(4, 4):to { dtype = BF16 }
    local objects = { model = model, optimizer = optim.AdamW(model:parameters(), { lr = 1e-3, states = BF16 }) }
    run:state(objects)
    return objects
  end
  local function train(objects, steps)
    for _ = 1, steps do
      objects.model(torch.randn({ 2, 4 }):to(BF16)):sum():backward()
      objects.optimizer:step()
      objects.optimizer:zero_grad()
    end
    return { objects.model:state_dict(), objects.optimizer:state_dict() }
  end
  run.dir = run.dir .. "/masters"
  core.make_folder(run.dir)
  local objects = begin()
  train(objects, 5)
  run:save { step = 5 }
  local expected = train(objects, 5)

  local others = begin()
  run:resume()

  t.equal(train(others, 5), expected)
end)

t.test("AStateWithoutMastersIsRefused", function()
  local p = full({ 2 }, 1)
  local saved = adam(p, "stochastic"):state_dict()

  t.raises("master of parameter 1 must have shape {2}, not nil", function() adam(p):load_state_dict(saved) end)
end)

t.test("ParametersAreUpdatedInPartsWhereCopiesWouldBeLarge", function()
  local whole, parts = {}, {}
  for i = 1, 5 do whole[i], parts[i] = full({ 4 }, i), full({ 4 }, i) end
  local optimizers = { optim.AdamW(whole), optim.AdamW(parts) }
  local limit, before = precision.MAX_COPIED, nn.use_fused(false)
  for i, params in ipairs { whole, parts } do
    for j, p in ipairs(params) do p.grad = torch.full_like(p:detach(), j) end
    precision.MAX_COPIED = i == 1 and limit or 7
    optimizers[i]:step()
  end
  precision.MAX_COPIED = limit
  nn.use_fused(before)

  t.equal(optimizers[2]:state_dict(), optimizers[1]:state_dict())
end)

test("LayoutsOfLowPrecisionDoNotMatter", function()
  local start = torch.arange(6, { dtype = torch.float32 }):view(2, 3)
  local grad = torch.tensor { { 1, -2, 3 }, { -4, 5, 6 } }
  for _, master in ipairs { "float32", "stochastic" } do
    for _, states in ipairs { torch.float32, BF16 } do
      local results = {}
      for i, p in ipairs { start:to(BF16), start:t():contiguous():to(BF16):t() } do
        p:requires_grad_(true)
        local optimizer = adam(p, master, { states = states })
        for _ = 1, 3 do
          p.grad = grad:to(BF16)
          optimizer:step()
        end
        results[i] = p:detach():contiguous()
      end
      t.equal(results[2], results[1])
    end
  end
end)

-- Stochastic rounding ---------------------------------------------------------------------------------

test("RoundingAtRandomTakesTheNearerNeighborMoreOften", function()
  local below, n = 2 ^ -8, 2 ^ 16 -- from 1 to its neighbor below
  for _, part in ipairs { 0.05, 0.3, 0.5, 0.9 } do
    local p = full({ n }, 1)

    advance(p, adam(p, "stochastic", { lr = part * below }), 1)

    local moved = torch.eq(p:detach(), 1 - below):float():mean():item()
    t.near(moved, part, 0.01)
    t.equal(torch.eq(p:detach(), 1):float():mean():item() + moved, 1)
  end
end)

test("ValuesThatBfloat16CanHoldAreNotRounded", function()
  local p = torch.randn({ 1000 }):to(BF16):requires_grad_(true)
  local before = p:detach():clone()

  advance(p, adam(p, "stochastic", { lr = 0 }), 3)

  t.equal(p:detach(), before)
end)

test("NaNAndInfinityStayWhatTheyAre", function()
  local p = torch.tensor({ 0 / 0, -(0 / 0), math.huge, -math.huge }, { dtype = BF16 }):requires_grad_(true)
  -- The NaN of a GPU has all bits set, and a carry would make it -0.
  torch.no_grad(function() p:view(torch.int16)[0]:fill_(0x7fff) end)

  advance(p, adam(p, "stochastic", { lr = 0 }), 1)

  t.equal(p:detach():isnan():totable(), { true, true, false, false })
  t.equal(p:detach()[{ { 2, 4 } }]:float():totable(), { math.huge, -math.huge })
end)

test("ReplicasRoundAlikeAndParametersAndStepsDoNot", function()
  local function begin()
    local params = { full({ 4096 }, 1), full({ 4096 }, 1) }
    return params, optim.AdamW(params, { lr = 1e-3, weight_decay = 0, master = "stochastic" })
  end
  local function step(params, optimizer)
    for _, p in ipairs(params) do p.grad = torch.ones_like(p:detach()) end
    optimizer:step()
    return params[1]:detach():clone()
  end
  local params, optimizer = begin()
  torch.manual_seed(1)
  local first, second = step(params, optimizer), step(params, optimizer)
  local replica, other = begin()
  torch.manual_seed(2)
  step(replica, other)
  step(replica, other)

  t.equal(replica[1]:detach(), params[1]:detach())
  t.truthy(not torch.equal(params[1], params[2]), "two parameters have the same random bits")
  -- A quarter moves in each step: as often those that moved before as the others.
  local moved_before, moved_now = torch.lt(first, 1), torch.lt(second, first)
  local share = moved_now[moved_before]:float():mean():item()
  t.near(share, moved_now:float():mean():item(), 0.05)
end)

test("MomentsInBfloat16FollowThoseInFloat32", function()
  local p, expected = full({ 1024 }, 1), full({ 1024 }, 1)
  local optimizer, full_optimizer = adam(p, "float32", { states = BF16 }), adam(expected)

  advance(p, optimizer, 1000)
  advance(expected, full_optimizer, 1000)

  for _, name in ipairs { "exp_avg", "exp_avg_sq" } do
    local state = optimizer:state_dict().states[1][name]
    t.equal(state.dtype, BF16)
    t.near(mean(state) / mean(full_optimizer:state_dict().states[1][name]), 1, 5e-3, name)
  end
end)

-- One pass -------------------------------------------------------------------------------------------

t.test("TheKernelForAllDtypesTrainsAsAtenDoes", function()
  local cases = {
    { BF16, {}, 2 ^ -8 }, { BF16, { states = BF16 }, 2 ^ -5 }, { BF16, { master = "stochastic" }, 2 ^ -6 },
    { BF16, { master = "none" }, 2 ^ -6 }, { torch.float16, {}, 2 ^ -10 }, { torch.float32, {}, 1e-5 },
    { torch.float32, { states = BF16 }, 1e-2 }, { torch.float64, { states = BF16 }, 1e-2 },
    { torch.float64, {}, 1e-13 },
  }
  for i, case in ipairs(cases) do
    local results = {}
    for way, is_fused in ipairs { true, false } do
      local before = nn.use_fused(is_fused)
      torch.manual_seed(5)
      local params, factor = {}, torch.tensor(0.5)
      for j, p in ipairs { torch.randn { 70, 3 }, torch.randn { 4, 5 }:t(), torch.randn { 0 }, torch.randn {} } do
        params[j] = p:to(case[1]):requires_grad_(true)
      end
      local optimizer = optim.AdamW(params, { lr = 0.01, master = case[2].master, states = case[2].states })
      for step = 1, 10 do
        for _, p in ipairs(params) do p.grad = torch.randn(p.shape):to(p.dtype) end
        optimizer:step(step % 2 == 0 and 0.5 or factor)
      end
      nn.use_fused(before)
      results[way] = params
    end
    for j, p in ipairs(results[1]) do
      local actual, expected = p:detach():double(), results[2][j]:detach():double()
      if p:numel() > 0 then t.near(actual, expected, case[3] * 4, ("case %d, parameter %d"):format(i, j)) end
    end
  end
end)

-- Options ---------------------------------------------------------------------------------------------

test("MomentsHaveTheDtypeThatWasAskedForAndFloat64StaysFloat64", function()
  local cases = {
    { torch.float32, {}, torch.float32 }, { torch.float64, {}, torch.float64 }, { BF16, {}, torch.float32 },
    { torch.float16, { master = "none" }, torch.float32 }, { torch.float32, { states = BF16 }, BF16 },
    { BF16, { master = "none", states = BF16 }, BF16 },
  }
  for i, case in ipairs(cases) do
    local p = full({ 2 }, 1, case[1])
    local optimizer = adam(p, case[2].master, { lr = 0.1, states = case[2].states })
    advance(p, optimizer, 1)
    local state = optimizer:state_dict().states[1]
    t.equal({ state.exp_avg.dtype, state.exp_avg_sq.dtype }, { case[3], case[3] }, "case " .. i)
    t.equal(state.master ~= nil, precision.is_low(p) and not case[2].master, "case " .. i)
    t.near(p[0]:item(), 0.9, 2e-3, "case " .. i)
  end
end)

t.test("GroupsHavePoliciesOfTheirOwn", function()
  local a, b = full({ 2 }, 1), full({ 2 }, 1)
  local optimizer = optim.AdamW({ { params = { a } }, { params = { b }, master = "none", states = BF16 } })

  local states = optimizer:state_dict().states

  t.equal({ states[1].master ~= nil, states[2].master ~= nil }, { true, false })
  t.equal({ states[1].exp_avg.dtype, states[2].exp_avg.dtype }, { torch.float32, BF16 })
end)

t.test("WrongPoliciesAreRefused", function()
  local p, half = full({ 1 }, 1), full({ 1 }, 1, torch.float16)
  local cases = {
    { p, { master = "bfloat16" }, 'master must be "float32", "stochastic" or "none", not "bfloat16"' },
    { p, { master = true }, "master must be a string, not true" },
    { p, { states = "bfloat16" }, 'states must be a value such as torch.float32, not "bfloat16"' },
    { p, { states = torch.float16 }, "states must be torch.float32 or torch.bfloat16, not torch.float16" },
    { p, { states = torch.ones { 1 } }, "states must be torch.float32 or torch.bfloat16, not a tensor" },
    { half, { master = "stochastic" }, 'but parameter 1 is float16; use master = "float32" for it' },
  }
  for _, case in ipairs(cases) do t.raises(case[3], optim.AdamW, { case[1] }, case[2]) end
end)

-- clip_grad_norm --------------------------------------------------------------------------------------

t.test("TheNormOfLowPrecisionGradientsIsComputedInFloat32", function()
  local a, b = full({ 2 }, 1, torch.float16), full({ 1 }, 1)
  a.grad, b.grad = torch.full({ 2 }, 60000, { dtype = torch.float16 }), torch.full({ 1 }, 3, { dtype = BF16 })

  local norm = optim.clip_grad_norm({ a, b }, 1)

  t.equal(norm.dtype, torch.float32)
  t.near(norm:item() / math.sqrt(2 * 60000 ^ 2 + 9), 1, 1e-3)
  t.near(a.grad:float(), torch.full({ 2 }, 1 / math.sqrt(2)), 1e-3)
end)
