--- lockstep.tiled_mlp on one rank: functions, modules, the built-in MLP, the loss; gradients against the untiled.

local nn = require "lockstep.nn"
local t = require "lockstep.testing"
local tiled_mlp = require "lockstep.tiled_mlp"
local torch = require "lockstep.torch"

torch.set_default_dtype(torch.float64)
torch.set_num_threads(1) -- small tensors

local Mlp = nn.Module:subclass("Mlp")

function Mlp:init(hidden, wide)
  self.gate, self.up = nn.Linear(hidden, wide, { bias = false }), nn.Linear(hidden, wide)
  self.down = nn.Linear(wide, hidden)
end

function Mlp:forward(x) return self.down(torch.silu(self.gate(x)) * self.up(x)) end

local function mlp_module()
  torch.manual_seed(1)
  return Mlp(6, 10)
end

local function input(...)
  torch.manual_seed(2)
  return torch.randn({ ... }):requires_grad_(true)
end

local function loss_of(y) return (y * torch.sin(torch.arange(y:numel()):view(y.shape))):sum() end

--- Gradients by name, of x under "x".
local function gradients(module, x, forward)
  module:zero_grad()
  x.grad = nil
  loss_of(forward(x)):backward()
  local found = { x = x.grad }
  for name, p in module:named_parameters() do found[name] = p.grad end
  return found
end

local function expect_same(actual, expected)
  for name, gradient in pairs(expected) do t.near(actual[name], gradient, 1e-12, name) end
  for name in pairs(actual) do t.truthy(expected[name], name .. " has a gradient") end
end

-- Forms ---------------------------------------------------------------------------------------------

t.test("AModulesGradientsAreThoseOfTheUntiled", function()
  local module, x = mlp_module(), input(3, 33, 6)
  local expected = gradients(module, x, module)
  for _, tiles in ipairs { 1, 2, 3, 7, 16, 200 } do
    local mlp = tiled_mlp.new { tiles = tiles }
    expect_same(gradients(module, x, function(v) return mlp(module, v) end), expected)
    t.equal(mlp:stats().tiles, math.min(tiles, 99))
    t.equal(mlp:stats().backward_tiles, math.min(tiles, 99))
  end
end)

t.test("AFunctionTakesItsWeightsAsArguments", function()
  local x, up, down = input(20, 6), input(10, 6), input(6, 10)
  local function f(tile, w1, w2) return torch.linear(torch.gelu(torch.linear(tile, w1)), w2) end
  local expected = torch.grad(loss_of(f(x, up, down)), { x, up, down })

  local y = tiled_mlp.new { tiles = 3 }(f, x, { up, down })

  for i, g in ipairs(torch.grad(loss_of(y), { x, up, down })) do t.near(g, expected[i], 1e-12) end
end)

t.test("SeveralResultsKeepTheirGradients", function()
  local x, w = input(2, 11, 6), input(4, 6)
  local function f(tile, router)
    local logits = torch.linear(tile, router)
    return torch.tanh(tile), logits, torch.argmax(logits, -1)
  end
  local function loss(y, logits) return loss_of(y) + torch.logsumexp(logits, { -1 }):square():sum() end
  local expected = torch.grad(loss(f(x, w)), { x, w })

  local y, logits, choice = tiled_mlp.new { tiles = 5 }(f, x, { w })

  t.equal({ logits:size(0), logits:size(1), logits:size(2) }, { 2, 11, 4 })
  t.equal(choice, (select(3, f(x, w))))
  for i, g in ipairs(torch.grad(loss(y, logits), { x, w })) do t.near(g, expected[i], 1e-12) end
end)

t.test("TheBuiltInMlpIsTheModule", function()
  local module, x = mlp_module(), input(3, 33, 6)
  local expected = gradients(module, x, module)
  local mlp = tiled_mlp.new { tiles = 4 }

  expect_same(gradients(module, x, function(v)
    return mlp:dense { x = v, gate = module.gate.weight, up = module.up.weight, up_bias = module.up.bias,
      down = module.down.weight, down_bias = module.down.bias }
  end), expected)
end)

t.test("WithoutAGateItIsAPlainMlp", function()
  local x, up, down = input(20, 6), input(10, 6), input(6, 10)
  local plain = torch.linear(torch.gelu(torch.linear(x, up), { approximate = "tanh" }), down)

  local y = tiled_mlp.new { tiles = 4 }:dense { x = x, up = up, down = down, activation = "gelu_tanh" }

  t.near(y, plain, 1e-12)
end)

-- Modules as they come ------------------------------------------------------------------------------

t.test("FrozenParametersStayFrozen", function()
  local module, x = mlp_module(), input(20, 6)
  module.gate.weight:requires_grad_(false)
  local expected = gradients(module, x, module)
  local mlp = tiled_mlp.new { tiles = 3 }

  expect_same(gradients(module, x, function(v) return mlp(module, v) end), expected)
  t.equal(module.gate.weight.grad, nil)
end)

t.test("AFrozenInputLeavesTheWeightsTheirGradients", function()
  local module, x = mlp_module(), input(20, 6):detach()
  loss_of(module(x)):backward()
  local expected = module.up.weight.grad:clone()
  module:zero_grad()

  loss_of(tiled_mlp.new { tiles = 3 }(module, x)):backward()

  t.near(module.up.weight.grad, expected, 1e-12)
end)

t.test("TiedParametersAreOneWeight", function()
  local module, x = mlp_module(), input(20, 6)
  module.up.weight = module.gate.weight
  local expected = gradients(module, x, module)
  local fired = 0
  module.gate.weight:register_hook(function() fired = fired + 1 end)

  local mlp = tiled_mlp.new { tiles = 3 }
  expect_same(gradients(module, x, function(v) return mlp(module, v) end), expected)
  t.equal(fired, 1)
end)

t.test("LoraAdaptersAreTrainedAlone", function()
  local Lora = nn.Module:subclass("Lora")
  function Lora:init(base)
    self.base = base
    self.a, self.b = input(2, 6), input(6, 2)
    base:requires_grad_(false)
  end
  function Lora:forward(x) return self.base(x) + torch.linear(torch.linear(x, self.a), self.b) end
  local module, x = Lora(mlp_module()), input(20, 6):detach()
  loss_of(module(x)):backward()
  local expected = module.a.grad:clone()
  module:zero_grad()

  loss_of(tiled_mlp.new { tiles = 3 }(module, x)):backward()

  t.near(module.a.grad, expected, 1e-12)
  t.equal(module.base.up.weight.grad, nil)
end)

t.test("ItsParametersAreItsOwnAgainAfterwards", function()
  local module, x = mlp_module(), input(20, 6)
  local before = module.gate.weight
  local mlp = tiled_mlp.new { tiles = 3 }

  loss_of(mlp(module, x)):backward()
  t.truthy(rawequal(module.gate.weight, before))
  function module.down.forward() error("on purpose") end
  t.raises("on purpose", mlp, module, x)

  t.truthy(rawequal(module.gate.weight, before))
end)

t.test("DropoutDropsTheSameInBackward", function()
  local x = torch.ones({ 100, 6 }):requires_grad_(true)

  local y = tiled_mlp.new { tiles = 7 }(nn.Dropout(0.5), x)
  torch.rand({ 3 })
  y:sum():backward()

  t.equal(x.grad, y)
end)

t.test("AModeThatChangesBeforeBackwardIsAnError", function()
  local Dropping = nn.Module:subclass "Dropping"
  function Dropping:init() self.up, self.drop, self.down = nn.Linear(8, 16), nn.Dropout(0.5), nn.Linear(16, 8) end
  function Dropping:forward(x) return self.down(self.drop(self.up(x))) end
  local mlp, x = Dropping(), torch.ones { 64, 8 }
  local y = tiled_mlp.new { tiles = 4 }(mlp, x)

  mlp.drop:eval()

  t.raises('"drop" was in training mode in forward and is not in backward', function() y:sum():backward() end)
  mlp.drop:train()
  tiled_mlp.new { tiles = 4 }(mlp, x):sum():backward()
  t.truthy(mlp.up.weight.grad)
end)

t.test("MathRandomDrawsTheSameInBackward", function()
  local x = torch.ones({ 100, 6 }):requires_grad_(true)

  local y = tiled_mlp.new { tiles = 7 }(function(tile) return tile * math.random() end, x)
  local following = math.random()
  y:sum():backward()

  t.equal(x.grad, y)
  t.truthy(math.random() ~= following)
end)

t.test("BelowBreakEvenItRunsUntiledAndReportsIt", function()
  local mlp = tiled_mlp.new {}

  mlp(mlp_module(), input(1000, 6))
  mlp(mlp_module(), input(1100, 6))

  local stats = mlp:stats()
  t.equal({ stats.calls, stats.untiled, stats.tiles, stats.tile_tokens }, { 2, 1, 2, 550 })
end)

t.test("TilesWithoutGradientAreLeftOut", function()
  local mlp, x = tiled_mlp.new { tiles = 10 }, input(100, 6)

  mlp(mlp_module(), x):narrow(0, 0, 10):sum():backward()

  t.equal(mlp:stats().skipped_tiles, 9)
end)

-- Errors --------------------------------------------------------------------------------------------

t.test("AnErrorInTheFunctionKeepsItsLine", function()
  local line = debug.getinfo(1, "l").currentline
  t.raises("tiled_mlp_test.lua:" .. line + 2 .. ": a tensor has no field", function()
    tiled_mlp.new { tiles = 2 }(function(tile) return tile.nothing.more end, input(4, 6)) -- line + 2
  end)
end)

t.test("AnErrorInBackwardKeepsItsLine", function()
  local now, line = {}, debug.getinfo(1, "l").currentline
  local y = tiled_mlp.new { tiles = 2 }(function(tile)
    if now.in_backward then error("on purpose") end -- line + 2
    return torch.tanh(tile)
  end, input(4, 6))
  now.in_backward = true

  t.raises("tiled_mlp_test.lua:" .. line + 2 .. ": on purpose", function() y:sum():backward() end)
end)

t.test("AVariableThatIsAssignedAgainIsAnErrorThatNamesIt", function()
  local x, w, scale = input(6, 6), input(6, 6), 2
  local function f(tile, weight) return torch.linear(tile, weight) * scale end
  local line = debug.getinfo(f, "S").linedefined
  for _, tiles in ipairs { 1, 3 } do
    scale = 2
    local y = tiled_mlp.new { tiles = tiles }(f, x, { w })
    scale = 3
    local change = '"scale" was assigned again (it was the number 2, and is the number 3) since forward'
    local message = t.raises(change, function() y:sum():backward() end)
    t.truthy(message:find("The function at [^\n]*tiled_mlp_test.lua:" .. line .. " captures this variable"), message)
  end
end)

t.test("AnErrorOfAnOperatorKeepsItsLineToo", function()
  local now, line = {}, debug.getinfo(1, "l").currentline
  local y = tiled_mlp.new { tiles = 2 }(function(tile)
    local y_tile = torch.linear(tile, torch.ones({ 6, now.in_backward and 5 or 6 })) -- line + 2
    return y_tile
  end, input(4, 6))
  now.in_backward = true

  t.raises("tiled_mlp_test.lua:" .. line + 2, function() y:sum():backward() end)
end)

t.test("AWeightFromElsewhereIsAnError", function()
  local module, x = mlp_module(), input(20, 6)
  local y = tiled_mlp.new { tiles = 2 }(function(tile) return module(tile) end, x)

  t.raises("none of the weights given", function() y:sum():backward() end)
  t.raises("none of the weights given", function()
    tiled_mlp.new { tiles = 2 }(function(tile) return module(tile) end, x:detach())
  end)
  t.raises("none of the weights given", function()
    tiled_mlp.new {}(function(tile) return module(tile) end, x) -- too short to be tiled
  end)
end)

t.test("TheOutputMayBeAddedToInPlace", function()
  local module, x = mlp_module(), input(2, 9, 6)
  local truth = torch.grad(loss_of(module(x) + x), { x })[1]

  local y = tiled_mlp.new { tiles = 4 }(module, x)
  y:add_(x)

  t.near(torch.grad(loss_of(y), { x })[1], truth, 1e-12)
end)

t.test("MemoryIsFlatOverManySteps", function()
  local module, tiled = mlp_module(), tiled_mlp.new { tiles = 4 }
  local weight, labels = input(37, 6), torch.zeros({ 2, 9 }, { dtype = torch.int64 })
  t.memory_is_flat(function()
    local y = tiled(module, input(2, 9, 6))
    tiled_mlp.cross_entropy { hidden = y, weight = weight, labels = labels, tile_tokens = 5 }:backward()
  end)
end)

t.test("WrongArgumentsAreRefused", function()
  local x = input(4, 6)
  t.raises("not both", tiled_mlp.new, { tiles = 2, tile_tokens = 3 })
  t.raises("tiles must be at least 1, not 0", tiled_mlp.new, { tiles = 0 })
  t.raises('did you mean "tile_tokens"', tiled_mlp.new, { tile_token = 3 })
  t.raises("a module's weights are found in it", tiled_mlp.new {}, mlp_module(), x, { x })
  t.raises('weights must be an array, but has the key "w1"', tiled_mlp.new {}, function(v) return v end, x, { w1 = x })
  t.raises("result 1 of the function", tiled_mlp.new { tiles = 2 }, function() return 5 end, x)
  t.raises("one row for each row of the tile", tiled_mlp.new { tiles = 2 }, function(v) return v:sum() end, x)
  t.raises('activation must be one of "gelu"', function()
    tiled_mlp.new {}:dense { x = x, up = x, down = x, activation = "relu" }
  end)
end)

-- Cross entropy -------------------------------------------------------------------------------------

local function loss_inputs()
  local hidden, weight = input(2, 9, 6), input(37, 6)
  local labels = torch.arange(18, { dtype = torch.int64 }):view({ 2, 9 })
  labels:select(1, 3):fill_(-100)
  return hidden, weight, labels
end

t.test("CrossEntropyIsThatOfTheLogits", function()
  local hidden, weight, labels = loss_inputs()
  for _, reduction in ipairs { "mean", "sum", "none" } do
    local logits = torch.linear(hidden, weight)
    local expected = nn.cross_entropy(logits, labels, { reduction = reduction, label_smoothing = 0.1 })
    local truth = torch.grad(loss_of(expected:reshape(-1) + 1), { hidden, weight })

    local loss, n = tiled_mlp.cross_entropy { hidden = hidden, weight = weight, labels = labels, reduction = reduction,
      label_smoothing = 0.1, tile_tokens = 4 }

    t.near(loss, expected, 1e-12)
    t.equal(n, 16)
    for i, g in ipairs(torch.grad(loss_of(loss:reshape(-1) + 1), { hidden, weight })) do t.near(g, truth[i], 1e-12) end
  end
end)

t.test("TheDivisorIsTaken", function()
  local hidden, weight, labels = loss_inputs()
  local sum = tiled_mlp.cross_entropy { hidden = hidden, weight = weight, labels = labels, reduction = "sum" }

  local loss = tiled_mlp.cross_entropy { hidden = hidden, weight = weight, labels = labels, divisor = 64 }

  t.near(loss * 64, sum, 1e-12)
end)

t.test("CrossEntropyRefusesWhatDoesNotFit", function()
  local hidden, weight, labels = loss_inputs()
  local function with(key, value)
    local opts = { hidden = hidden, weight = weight, labels = labels }
    opts[key] = value
    return function() tiled_mlp.cross_entropy(opts) end
  end
  t.raises("label 99 of token 0 is not in the vocabulary of 37", with("labels", labels + 99))
  t.raises("weight is [37, 5]", with("weight", weight:narrow(1, 0, 5)))
  t.raises('reduction must be one of "mean" "none" "sum", not "max"', with("reduction", "max"))
  t.raises('the option "labels" is missing', tiled_mlp.cross_entropy, { hidden = hidden, weight = weight })
  t.raises("tile_tokens must be at least 1, not 0", with("tile_tokens", 0))
  t.raises("divisor must be above 0, not 0", with("divisor", 0))
  t.raises("softcap must be a finite number of at least 0, not inf", with("softcap", math.huge))
  t.raises("unknown option", with("tiles", 3))
end)
