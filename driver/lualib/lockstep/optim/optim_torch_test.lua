-- Every optimizer over 20 steps against PyTorch's: tests/torch/make_numbers.py writes the numbers.

local data = require "lockstep.data"
local optim = require "lockstep.optim"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local numbers = data.safetensors("tests/torch/numbers.safetensors")

local function muon(precision)
  return function(p) return optim.Muon(p, { lr = 0.02, precision = precision }) end
end

local function muon_rms(precision)
  return function(p)
    return optim.Muon(p, { lr = 0.01, weight_decay = 0.3, momentum = 0.8, nesterov = false,
      adjust_lr = "match_rms_adamw", iterations = 3, precision = precision })
  end
end

-- bfloat16 products may be summed in another order by another processor, where each is one rounding of 0.4 % away.
local CASES = {
  sgd = { 1e-6, function(p) return optim.SGD(p, { lr = 0.1 }) end },
  sgd_momentum = { 1e-6, function(p) return optim.SGD(p, { lr = 0.05, momentum = 0.9, weight_decay = 0.1 }) end },
  sgd_nesterov = { 1e-6, function(p) return optim.SGD(p, { lr = 0.05, momentum = 0.8, nesterov = true }) end },
  adamw = { 1e-6, function(p) return optim.AdamW(p, { lr = 0.01, weight_decay = 0.1 }) end },
  adafactor = { 1e-6, function(p) return optim.Adafactor(p, { lr = 0.05 }) end },
  adafactor_decay = { 1e-6, function(p)
    return optim.Adafactor(p, { lr = 0.1, beta2_decay = -0.5, d = 1.5, weight_decay = 0.1, eps = { 1e-6, 1e-2 } })
  end },
  ["muon.float32"] = { 1e-6, muon "float32" },
  ["muon.bfloat16"] = { 5e-3, muon "bfloat16" },
  ["muon_rms.float32"] = { 1e-6, muon_rms "float32" },
  ["muon_rms.bfloat16"] = { 5e-3, muon_rms "bfloat16" },
}

local function start(name, dtype) return numbers["optim.start." .. name]:to(dtype):clone():requires_grad_(true) end

--- Trains both matrices for 20 steps as the script does.
local function train(make, dtype)
  local params = { tall = start("tall", dtype), wide = start("wide", dtype) }
  local optimizer = make { params.tall, params.wide }
  for step = 0, 19 do
    for name, p in pairs(params) do p.grad = numbers["optim.grads." .. name][step]:to(dtype) end
    optimizer:step(1 - step / 40)
  end
  return params, optimizer
end

for case, c in pairs(CASES) do
  t.test("TwentyStepsOf_" .. case:gsub("%.", "_") .. "_AreThoseOfPyTorch", function()
    for name, p in pairs(train(c[2], torch.float32)) do
      t.near(p:detach(), numbers[("optim.end.%s.%s"):format(case, name)], c[1], name)
      -- Something was learned: a test that compares what never moved proves nothing.
      t.truthy((p:detach() - numbers["optim.start." .. name]):abs():max():item() > 10 * c[1], name)
    end
  end)
end

t.test("Bfloat16ParametersFollowTheirFloat32Masters", function()
  for _, case in ipairs { "sgd_momentum", "adafactor", "muon.float32" } do
    local params, optimizer = train(CASES[case][2], torch.bfloat16)
    for name, p in pairs(params) do
      local master = optimizer.state[p].master
      t.near(master, numbers[("optim.end.%s.%s"):format(case, name)], 2e-2, case)
      t.equal(p:detach(), master:bfloat16(), case)
    end
  end
end)

t.test("AStateGoesOnInAnotherOptimizer", function()
  for _, case in ipairs { "sgd_momentum", "adafactor", "muon.float32" } do
    local params, optimizer = train(CASES[case][2], torch.float32)
    local copy = params.tall:detach():clone():requires_grad_(true)
    local other_wide = params.wide:detach():clone():requires_grad_(true)
    local other = CASES[case][2] { copy, other_wide }

    other:load_state_dict(optimizer:state_dict())
    for _, pair in ipairs { { params.tall, optimizer }, { copy, other } } do
      pair[1].grad = numbers["optim.grads.tall"][3]:clone()
    end
    params.wide.grad = nil
    optimizer:step()
    other:step()

    t.equal(copy:detach(), params.tall:detach(), case)
  end
end)

t.test("SgdWithoutMomentumKeepsNoBuffer", function()
  local p = start("tall", torch.float32)
  local optimizer = optim.SGD({ p }, { lr = 0.1 })
  p.grad = torch.ones_like(p)
  optimizer:step()

  t.equal(optimizer.state[p].momentum_buffer, nil)

  optimizer.groups[1].momentum = 0.9
  optimizer:step()
  t.equal(optimizer.state[p].momentum_buffer, torch.ones_like(p:detach()))
end)

t.test("MuonMakesAnUpdateWhoseSingularValuesAreNearOne", function()
  local p = torch.zeros({ 8, 5 }):requires_grad_(true)
  torch.manual_seed(2)
  p.grad = torch.randn({ 8, 5 })
  optim.Muon({ p }, { lr = 1, momentum = 0, nesterov = false, weight_decay = 0, precision = "float32" }):step()

  local values = torch.linalg_svdvals(p:detach()) / math.sqrt(8 / 5)
  t.truthy(values:min():item() > 0.5 and values:max():item() < 1.3, tostring(values))
end)

t.test("AGradientOfZeroMovesNothingInMuon", function()
  local p = torch.ones({ 2, 3 }):requires_grad_(true)
  p.grad = torch.zeros({ 2, 3 })
  optim.Muon({ p }, { weight_decay = 0 }):step()

  t.equal(p:detach(), torch.ones({ 2, 3 }))
end)

--- Returns a weight and its momentum after a step by the formulas of arXiv 2302.06675.
local function lion_by_hand(w, m, g, lr, o)
  local update = o.betas[1] * m + (1 - o.betas[1]) * g
  local sign = update > 0 and 1 or update < 0 and -1 or 0
  return w - lr * (sign + o.weight_decay * w), o.betas[2] * m + (1 - o.betas[2]) * g
end

t.test("LionIsThePapersInRandomCases", function()
  for seed = 1, 20 do
    math.randomseed(seed)
    torch.manual_seed(seed)
    local o = { lr = 0.1 * math.random(), betas = { math.random(), math.random() },
      weight_decay = seed % 2 * math.random() }
    local p = torch.randn({ 3, math.random(5) }, { dtype = torch.float64 }):requires_grad_(true)
    local w, m = p:detach():flatten():totable(), {}
    local optimizer = optim.Lion({ p }, o)
    for i in ipairs(w) do m[i] = 0 end
    for step = 0, 6 do
      local grad = torch.randn(p.shape, { dtype = torch.float64 })
      for i, g in ipairs(grad:flatten():totable()) do
        w[i], m[i] = lion_by_hand(w[i], m[i], g, o.lr * (1 - step / 9), o)
      end
      p.grad = grad
      optimizer:step(1 - step / 9)
    end
    t.near(p:detach():flatten(), torch.tensor(w, { dtype = torch.float64 }), 1e-12, "case " .. seed)
    t.near(optimizer.state[p].exp_avg:flatten(), torch.tensor(m, { dtype = torch.float64 }), 1e-12, "case " .. seed)
  end
end)

t.test("AGradientOfNanShowsInTheWeights", function()
  for _, make in ipairs { optim.AdamW, optim.SGD, optim.Lion, optim.Adafactor } do
    local p = torch.ones({ 3, 2 }):requires_grad_(true)
    local optimizer = make { p }
    p.grad = torch.ones_like(p)
    p.grad[1][1]:fill_(0 / 0)
    optimizer:step()
    t.truthy(p[1][1]:item() ~= p[1][1]:item())
  end
end)

t.test("AdafactorKeepsRowsAndColumns", function()
  local shapes = {
    { {}, variance = {} },
    { { 5 }, variance = { 5 } },
    { { 3, 0 }, variance = { 3, 0 } },
    { { 6, 4 }, row_var = { 6, 1 }, col_var = { 1, 4 } },
    { { 2, 6, 4 }, row_var = { 2, 6, 1 }, col_var = { 2, 1, 4 } },
  }
  for _, expected in ipairs(shapes) do
    local p = torch.ones(expected[1], { dtype = torch.bfloat16 }):requires_grad_(true)
    local optimizer = optim.Adafactor { p }
    p.grad = torch.ones_like(p)
    optimizer:step(torch.tensor(0.5))
    local state = optimizer.state[p]
    for _, name in ipairs { "variance", "row_var", "col_var" } do
      t.equal(state[name] and state[name]:size(), expected[name], name)
      t.truthy(not state[name] or state[name].dtype == torch.float32)
    end
    t.truthy(p:numel() == 0 or p:detach():min():item() < 1)
  end
end)

t.test("OptimizersRefuseWhatTheyCannotDo", function()
  local p = torch.ones({ 2, 3 }):requires_grad_(true)
  local vector = torch.ones({ 3 }):requires_grad_(true)
  for _, case in ipairs {
    { optim.SGD, { p }, { momentum = -1 }, "optim.SGD: momentum must be a number of at least 0, not -1" },
    { optim.SGD, { p }, { nesterov = true }, "optim.SGD: nesterov = true needs a momentum above 0, not 0" },
    { optim.SGD, { p }, { dampening = 0.1 }, 'optim.SGD: unknown option "dampening"' },
    { optim.SGD, { p }, { lr = -1 }, "optim.SGD: lr must be a number of at least 0, not -1" },
    { optim.SGD, {}, {}, "optim.SGD: a group must have parameters, not an empty array" },
    { optim.Lion, { p }, { betas = { 0.9, 1 } }, "optim.Lion: betas must be numbers from 0 to below 1, not 1" },
    { optim.Lion, { p }, { eps = 1 }, 'optim.Lion: unknown option "eps"' },
    { optim.Adafactor, { p }, { beta2_decay = 1 },
      "optim.Adafactor: beta2_decay must be a number of at most 0, not 1" },
    { optim.Adafactor, { p }, { eps = { 1 } },
      "optim.Adafactor: eps must be two numbers, as in {1e-7, 1e-3}, not an array" },
    { optim.Adafactor, { p }, { d = 0.5 }, "optim.Adafactor: d must be a number of at least 1, not 0.5" },
    { optim.Adafactor, { p }, { states = torch.bfloat16 }, "optim.Adafactor: states must be torch.float32, not" },
    { optim.Muon, { p, vector }, {}, "optim.Muon: parameter 2 has shape {3}, and only matrices can be made orthogonal; "
      .. "give it to optim.AdamW" },
    { optim.Muon, { p }, { momentum = 1 }, "optim.Muon: momentum must be a number from 0 to below 1, not 1" },
    { optim.Muon, { p }, { iterations = 0 }, "optim.Muon: iterations must be a whole number from 1 to 99, not 0" },
    { optim.Muon, { p }, { coefficients = { 1 } }, "coefficients must be three numbers, not an array of 1" },
    { optim.Muon, { p }, { adjust_lr = "rms" }, 'adjust_lr must be "original" or "match_rms_adamw", not "rms"' },
    { optim.Muon, { p }, { precision = "float16" }, 'precision must be "bfloat16" or "float32", not "float16"' },
    { optim.Muon, { p }, { eps = 0 }, "optim.Muon: eps must be a number above 0, not 0" },
  } do
    t.raises(case[4], case[1], case[2], case[3])
  end
  local slice = torch.zeros({ 2, 6 })[{ {}, { 0, 3 } }]:requires_grad_(true)
  slice.grad = torch.ones({ 2, 3 })
  t.raises("optim.SGD: a parameter of shape {2, 3} is a slice of a larger tensor",
    function() optim.SGD({ slice }):step() end)
end)
