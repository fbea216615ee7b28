-- The layers and cross_entropy, each against its formula written out.

local nn = require "lockstep.nn"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local function parameter_shapes(module)
  local shapes = {}
  for name, p in module:named_parameters() do shapes[name] = tostring(p.shape) end
  return shapes
end

-- Linear and Embedding ----------------------------------------------------------------------------------

t.test("LinearMultipliesByItsTransposedWeightAndAddsItsBias", function()
  local linear, x = nn.Linear(3, 2), torch.randn({ 4, 5, 3 })

  local expected = torch.matmul(x, linear.weight:t()) + linear.bias

  t.equal(parameter_shapes(linear), { weight = "{2, 3}", bias = "{2}" })
  t.near(linear(x), expected, 1e-6)
end)

t.test("LinearWithoutBiasHasNone", function()
  local linear, x = nn.Linear(3, 2, { bias = false }), torch.randn({ 4, 3 })

  t.equal(parameter_shapes(linear), { weight = "{2, 3}" })
  t.near(linear(x), torch.matmul(x, linear.weight:t()), 1e-6)
end)

t.test("LinearStartsWithinOneOverTheRootOfItsInputs", function()
  torch.manual_seed(3)
  local linear = nn.Linear(64, 200)

  for name, p in linear:named_parameters() do
    local largest = p:abs():max():item()
    t.truthy(largest <= 1 / 8 and largest > 0.98 / 8, name .. " reaches " .. largest)
    t.truthy(math.abs(p:mean():item()) < 0.02, name .. " is centred")
  end
end)

t.test("LinearStartsAsPyTorchsDoesFromTheSameSeed", function()
  torch.manual_seed(0)
  local linear = nn.Linear(2, 2)

  -- torch.manual_seed(0); torch.nn.Linear(2, 2)
  t.near(linear.weight:detach(), torch.tensor { { -0.0052940, 0.3793229 }, { -0.5819808, -0.5203875 } }, 1e-6)
  t.near(linear.bias:detach(), torch.tensor { -0.2723452, 0.1896159 }, 1e-6)
end)

t.test("EmbeddingLooksUpRows", function()
  local embedding = nn.Embedding(4, 3)
  local indices = torch.tensor({ { 3, 0 }, { 3, 1 } }, { dtype = torch.int64 })

  local y = embedding(indices)

  t.equal(parameter_shapes(embedding), { weight = "{4, 3}" })
  t.equal(y.shape, { 2, 2, 3 })
  t.equal(y[0][0]:detach(), embedding.weight[3]:detach())
  t.equal(y[1][1]:detach(), embedding.weight[1]:detach())
end)

t.test("EmbeddingRefusesAnIndexBeyondItsTable", function()
  t.raises("index 4 at position 0 is out of range", function()
    nn.Embedding(4, 3)(torch.tensor({ 4 }, { dtype = torch.int64 }))
  end)
end)

-- Norms -------------------------------------------------------------------------------------------------

t.test("LayerNormNormalisesTheLastDimension", function()
  local norm, x = nn.LayerNorm(5, { eps = 1e-3 }), torch.randn({ 2, 3, 5 }) * 3 + 1
  torch.no_grad(function()
    norm.weight:normal_()
    norm.bias:normal_()
  end)

  local mean = torch.mean(x, { -1 }, true)
  local variance = torch.mean((x - mean):pow(2), { -1 }, true)
  local expected = (x - mean) / torch.sqrt(variance + 1e-3) * norm.weight + norm.bias

  t.near(norm(x), expected, 1e-5)
end)

t.test("LayerNormCanBeWithoutBias", function()
  t.equal(parameter_shapes(nn.LayerNorm(5, { bias = false })), { weight = "{5}" })
  t.equal(parameter_shapes(nn.LayerNorm(5)), { weight = "{5}", bias = "{5}" })
end)

t.test("RMSNormDividesByTheRootMeanSquare", function()
  local norm, x = nn.RMSNorm(5, { eps = 1e-2 }), torch.randn({ 2, 3, 5 }) * 3
  torch.no_grad(function() norm.weight:normal_() end)

  local expected = x / torch.sqrt(torch.mean(x:pow(2), { -1 }, true) + 1e-2) * norm.weight

  t.equal(parameter_shapes(norm), { weight = "{5}" })
  t.near(norm(x), expected, 1e-5)
end)

t.test("RMSNormRoundsToBfloat16BeforeItScales", function()
  local norm, x = nn.RMSNorm(64):to(torch.bfloat16), (torch.randn({ 50, 64 }) * 3):bfloat16()
  torch.no_grad(function() norm.weight:normal_() end)

  local wide = x:float()
  local normalised = wide * torch.rsqrt(torch.mean(wide:pow(2), { -1 }, true) + 1e-6)

  t.equal(norm(x), norm.weight * normalised:bfloat16())
  t.truthy((norm(x) - torch.rms_norm(x, { 64 }, norm.weight, 1e-6)):abs():max():item() > 0, "the order matters")
end)

t.test("NormsStartAsTheIdentityOfNormalisedInput", function()
  local x = torch.tensor { { 1, -1, 1, -1 } }

  t.near(nn.LayerNorm(4)(x), x, 1e-4)
  t.near(nn.RMSNorm(4)(x), x, 1e-4)
end)

-- Dropout -----------------------------------------------------------------------------------------------

t.test("DropoutZeroesAndScalesWhileTrainingAndDoesNothingAfterwards", function()
  torch.manual_seed(1)
  local dropout, x = nn.Dropout(0.25), torch.ones({ 100, 100 })

  local y = dropout(x)
  local kept = y:ne(0)

  t.near(kept:float():mean():item(), 0.75, 0.02)
  t.near(y:masked_select(kept), torch.full({ kept:sum():item() }, 4 / 3), 1e-6)
  t.equal(dropout:eval()(x), x)
end)

t.test("DropoutOfNothingAndOfEverything", function()
  local x = torch.ones({ 10 })

  t.equal(nn.Dropout(0)(x), x)
  t.equal(nn.Dropout().p, 0.5)
  t.equal(nn.Dropout(1)(x), torch.zeros({ 10 }))
end)

-- Lists -------------------------------------------------------------------------------------------------

t.test("ModuleListIsAnArrayOfItsModules", function()
  local a, b = nn.Linear(2, 2), nn.Linear(2, 2)
  local list = nn.ModuleList { a }
  list:append(b)
  list[3] = a

  local seen = {}
  for i, module in ipairs(list) do seen[i] = module end

  t.equal(#list, 3)
  t.truthy(seen[1] == a and seen[2] == b and seen[3] == a)
end)

t.test("ModuleListTakesModulesAloneAndLeavesNoGap", function()
  local list = nn.ModuleList()

  t.raises("ModuleList.1: only modules can be in the list, not a number", function() list:append(3) end)
  t.raises("ModuleList.3: the next free place is 1", function() list[3] = nn.Linear(1, 1) end)
  t.raises("nn.ModuleList: the modules must be in an array", function() nn.ModuleList(nn.Linear(1, 1)) end)
end)

t.test("SequentialCallsItsModulesInTurn", function()
  local a, b = nn.Linear(2, 3), nn.Linear(3, 1)
  local x = torch.randn({ 4, 2 })

  t.equal(nn.Sequential { a, b }(x):detach(), b(a(x)):detach())
  t.equal(nn.Sequential {}(x), x)
end)

t.test("ImpossibleSizesAreRefusedByName", function()
  local cases = {
    { function() nn.Linear(0, 2) end, "nn.Linear: input_features must be a whole number of at least 1, not 0" },
    { function() nn.Linear(2) end, "nn.Linear: output_features must be a whole number of at least 1, not nil" },
    { function() nn.Linear(2, 2, { bais = false }) end, 'nn.Linear: unknown option "bais"; did you mean "bias"?' },
    { function() nn.Linear(2, 2, false) end, "nn.Linear: options must be a table, not false" },
    { function() nn.Embedding(2.5, 2) end, "nn.Embedding: num_embeddings must be a whole number" },
    { function() nn.Embedding(3, 2, { padding_idx = 0 }) end, 'nn.Embedding: unknown option "padding_idx"' },
    { function() nn.Sequential { fc = nn.ReLU() } end,
      "Sequential.fc: the modules of an array have no names; leave the name out" },
    { function() nn.LayerNorm({ 3 }) end, "nn.LayerNorm: size must be a whole number" },
    { function() nn.RMSNorm(4, { eps = "small" }) end, 'nn.RMSNorm: eps must be a number, not "small"' },
    { function() nn.Dropout(1.5) end, "nn.Dropout: p must be a number from 0 to 1, not 1.5" },
  }
  for _, case in ipairs(cases) do t.raises(case[2], case[1]) end
end)

-- cross_entropy -----------------------------------------------------------------------------------------

local function token_losses(logits, labels)
  local log_probabilities = logits - torch.logsumexp(logits, { -1 }, true)
  return torch.gather(log_probabilities, -1, labels:clamp(0):unsqueeze(-1)):squeeze(-1):neg()
end

t.test("CrossEntropyIsTheMeanNegativeLogProbabilityOfTheLabels", function()
  local logits = torch.randn({ 2, 3, 7 }, { dtype = torch.float64 })
  local labels = torch.randint(7, { 2, 3 })
  local expected = token_losses(logits, labels)

  t.near(nn.cross_entropy(logits, labels), expected:mean(), 1e-12)
  t.near(nn.cross_entropy(logits, labels, { reduction = "sum" }), expected:sum(), 1e-12)
  t.near(nn.cross_entropy(logits, labels, { reduction = "none" }), expected, 1e-12)
end)

t.test("IgnoredLabelsCountNeitherInTheSumNorInTheMean", function()
  local logits = torch.randn({ 4, 7 }, { dtype = torch.float64, requires_grad = true })
  local labels = torch.tensor({ 3, -100, 0, -100 }, { dtype = torch.int64 })
  local losses = token_losses(logits, labels)
  local sum = losses[0] + losses[2]

  t.near(nn.cross_entropy(logits, labels), sum / 2, 1e-12)
  t.near(nn.cross_entropy(logits, labels, { reduction = "sum" }), sum, 1e-12)
  t.equal(nn.cross_entropy(logits, labels, { reduction = "none" })[1]:item(), 0)
  nn.cross_entropy(logits, labels):backward()
  t.equal(logits.grad[1], torch.zeros({ 7 }, { dtype = torch.float64 }))

  local padded = torch.tensor({ 3, 6, 0, 6 }, { dtype = torch.int64 })
  t.near(nn.cross_entropy(logits, padded, { ignore_index = 6 }), sum / 2, 1e-12)
end)

t.test("WithEveryLabelIgnoredTheSumIsZeroAndTheMeanIsNan", function()
  local logits, labels = torch.randn({ 2, 3 }), torch.full({ 2 }, -100, { dtype = torch.int64 })

  t.equal(nn.cross_entropy(logits, labels, { reduction = "sum" }):item(), 0)
  local mean = nn.cross_entropy(logits, labels):item()
  t.truthy(mean ~= mean, "the mean of nothing is not a number, as in PyTorch")
end)

t.test("LabelSmoothingMixesInTheMeanOverClasses", function()
  local logits = torch.randn({ 3, 5 }, { dtype = torch.float64 })
  local labels = torch.tensor({ 0, 4, 2 }, { dtype = torch.int64 })
  local uniform = (torch.logsumexp(logits, { -1 }) - logits:mean({ -1 }))

  t.near(nn.cross_entropy(logits, labels, { label_smoothing = 0.1 }),
    (token_losses(logits, labels) * 0.9 + uniform * 0.1):mean(), 1e-12)
end)

t.test("CrossEntropyRefusesAnUnknownReduction", function()
  local logits, labels = torch.zeros({ 1, 2 }), torch.zeros({ 1 }, { dtype = torch.int64 })

  t.raises('nn.cross_entropy: reduction must be "mean", "sum" or "none", not "avg"',
    function() nn.cross_entropy(logits, labels, { reduction = "avg" }) end)
end)

t.test("CrossEntropySaysWhichArgumentIsWrong", function()
  local labels = torch.zeros({ 1 }, { dtype = torch.int64 })

  for _, is_fused in ipairs { true, false } do
    local before = nn.use_fused(is_fused)
    t.raises("nn.cross_entropy: ignore_index must be a whole number, not 1.5",
      nn.cross_entropy, torch.zeros { 1, 2 }, labels, { ignore_index = 1.5 })
    t.raises("nn.cross_entropy: logits must be [..., classes] with at least one class, got shape {1, 0}",
      nn.cross_entropy, torch.zeros { 1, 0 }, labels)
    t.raises("at least one class, got shape {}", nn.cross_entropy, torch.tensor(1.0), labels)
    nn.use_fused(before)
  end
end)
