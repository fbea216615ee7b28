--- Gradients and their norm where modules have pipeline stages, context-parallel ranks, or shards of
--- sharding.fully_shard, and what goes wrong there. On four ranks.

local dist = require "lockstep.distributed"
local fixture = require "mimo_fixture"
local mimo = require "lockstep.mimo"
local nn = require "lockstep.nn"
local sharding = require "lockstep.sharding"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local RANK = dist.rank()

--- Vision on rank 0; language on the others, with the sizes given.
local function with_language(language)
  language.name, language.first_rank = "language", language.first_rank or 1
  return mimo.topology { modules = { { name = "vision", dp = language.first_rank }, language } }
end

--- A module of one weight on this rank, and its gradient.
local function weight_of(topology, gradient)
  local module = nn.Linear(2, 1, { bias = false })
  module.weight.grad = torch.full({ 1, 2 }, gradient)
  return { [topology:module()] = module }, module.weight
end

-- Tokens --------------------------------------------------------------------------------------------

t.test("TokensAreThoseOfTheLastStage", function()
  local topology = with_language { pp = 3 }
  local modules, weight = weight_of(topology, 12)

  -- The loss is on rank 3. The other stages leave `tokens` out, or give an irrelevant number.
  local tokens = mimo.reduce_gradients { topology = topology, modules = modules, loss = "sum",
    tokens = ({ [0] = nil, 0, nil, 12 })[RANK] }

  t.equal(tokens, 12)
  t.equal(weight.grad, torch.ones { 1, 2 })
end)

t.test("EachContextParallelAndDataParallelRankCountsItsOwn", function()
  local topology = mimo.topology { modules = { { name = "vision", dp = 4 }, { name = "language", cp = 2, dp = 2 } } }
  local vision, weight = nn.Linear(2, 1, { bias = false }), nn.Linear(2, 1, { bias = false })
  vision.weight.grad, weight.weight.grad = torch.full({ 1, 2 }, 1), torch.full({ 1, 2 }, 1)

  local tokens = mimo.reduce_gradients { topology = topology, modules = { vision = vision, language = weight },
    loss = "sum", tokens = 1 + RANK }

  t.equal(tokens, 10)
  t.near(weight.weight.grad, torch.full({ 1, 2 }, 0.4), 1e-7)
end)

t.test("TheLastStageMustSayItsTokens", function()
  local topology = with_language { pp = 3 }
  local modules = weight_of(topology, 1)
  if RANK < 3 then return end -- the others would wait for the count

  for _, wrong in ipairs { false, "twelve", -1, 0 / 0, math.huge } do
    t.raises("ranks of the last stage of \"language\" must give `tokens`", mimo.reduce_gradients,
      { topology = topology, modules = modules, loss = "sum", tokens = wrong or nil })
  end
end)

t.test("AStepOfNoTokenIsAnErrorOnEveryRank", function()
  local topology = with_language { pp = 3 }
  local modules, weight = weight_of(topology, 5)

  t.raises("no token of this step has a loss", mimo.reduce_gradients,
    { topology = topology, modules = modules, loss = "sum", tokens = 0 })

  t.equal(weight.grad, torch.full({ 1, 2 }, 5)) -- nothing was reduced
end)

-- Calls that differ or come twice ----------------------------------------------------------------------

-- The failure: another topology does not know of the first call, and scales again.
t.test("WithoutAMemoryASecondReductionScalesTwice", function()
  local topology = with_language { pp = 3 }
  local modules, weight = weight_of(topology, 12)
  for _ = 1, 2 do
    mimo.reduce_gradients { topology = with_language { pp = 3 }, modules = modules, loss = "sum", tokens = 4 }
  end

  t.near(weight.grad, torch.full({ 1, 2 }, 12 / 4 / 4), 1e-6)
end)

t.test("ASecondReductionIsNoticedAfterThatOfOtherModules", function()
  local topology = with_language { pp = 3 }
  local first, first_weight = weight_of(topology, 12)
  local second, second_weight = weight_of(topology, 8)
  local function reduce(modules)
    return mimo.reduce_gradients { topology = topology, modules = modules, loss = "sum", tokens = 4 }
  end

  reduce(first)
  reduce(second)
  t.raises("a second call would scale them twice", reduce, first)
  mimo.clip_grad_norm { topology = topology, modules = second, max_norm = 1e9 }
  t.raises("a second call would scale them twice", reduce, second)

  t.near(first_weight.grad, torch.full({ 1, 2 }, 3), 1e-6)
  t.near(second_weight.grad, torch.full({ 1, 2 }, 2), 1e-6)
end)

t.test("ASecondReductionOfTheSameGradientsIsAnErrorOnEveryRank", function()
  local topology = with_language { pp = 3 }
  local modules, weight = weight_of(topology, 12)
  local module = modules[topology:module()]
  local opts = { topology = topology, modules = modules, loss = "sum", tokens = 4 }
  local message = 'no rank reduces, since the gradients of "vision" on rank 0 are those that the last call has '
    .. "reduced, and a second call would scale them twice"
  local function expect(gradient) t.near(weight.grad, torch.full({ 1, 2 }, gradient), 1e-6) end

  mimo.reduce_gradients(opts)
  t.raises(message, mimo.reduce_gradients, opts)
  t.raises(message, mimo.reduce_gradients, opts)
  expect(3)

  mimo.clip_grad_norm { topology = topology, modules = modules, max_norm = 0.5 }
  t.raises(message, mimo.reduce_gradients, opts)

  -- A backward pass adds to the gradients, or makes new ones. Rank 1 has no gradient in one of the steps.
  for step = 1, 3 do
    if step == 2 and weight.grad then weight.grad:zero_() else module:zero_grad() end
    if RANK ~= 1 or step ~= 1 then module(torch.full({ 1, 2 }, 4 * step)):sum():backward() end
    mimo.reduce_gradients(opts)
    if RANK ~= 1 or step ~= 1 then expect(step) end
  end
  module(torch.full({ 1, 2 }, 4)):sum():backward()
  mimo.reduce_gradients(opts)
  expect((3 + 4) / 4)
end)

t.test("AModuleThatIsFrozenMayKeepItsGradients", function()
  local topology = with_language { pp = 3 }
  local modules, weight = weight_of(topology, 12)
  local opts = { topology = topology, modules = modules, loss = "sum", tokens = 4 }
  mimo.reduce_gradients(opts)

  if RANK == 0 then
    modules.vision:requires_grad_(false)
  else
    weight.grad = torch.full({ 1, 2 }, 8)
  end
  mimo.reduce_gradients(opts)
  if RANK > 0 then t.near(weight.grad, torch.full({ 1, 2 }, 2), 1e-6) end
end)

t.test("RanksClipToOneMaxNorm", function()
  local topology = with_language { pp = 3 }
  local modules, weight = weight_of(topology, 12)
  local opts = { topology = topology, modules = modules, max_norm = 1 }
  mimo.clip_grad_norm(opts)
  weight.grad:fill_(12)

  opts.max_norm = RANK == 2 and 0.5 or 1
  t.raises("max_norm must be the same on every rank, but rank 0 has 1, rank 1 has 1, rank 2 has 0.5, rank 3 has 1; "
    .. "no rank has clipped", mimo.clip_grad_norm, opts)
  t.equal(weight.grad, torch.full({ 1, 2 }, 12))

  opts.max_norm = 0.1
  t.near(mimo.clip_grad_norm(opts):item(), 12 * math.sqrt(8), 1e-9)
  t.near(weight.grad, torch.full({ 1, 2 }, 0.1 / math.sqrt(8)), 1e-6)
end)

-- Means over context-parallel ranks -------------------------------------------------------------------

t.test("OverWhoseTokensAMeanIsMustBeSaidWithContextParallelRanks", function()
  local topology = with_language { cp = 3 }
  local modules = weight_of(topology, 1)
  local opts = { topology = topology, modules = modules, loss = "mean" }

  t.raises('with loss = "mean" and cp 3 of "language", say over whose tokens', mimo.reduce_gradients, opts)
  opts.mean_over = "tokens"
  t.raises('mean_over must be "replica" or "rank", not tokens', mimo.reduce_gradients, opts)
end)

t.test("MeansOverTheRanksOwnTokensAreAveraged", function()
  -- Each cp rank of language has the mean over its own tokens: a gradient of 6 each, where one rank has 6.
  for _, case in ipairs { { "rank", 1 }, { "replica", 3 } } do
    local topology = with_language { cp = 3 }
    local modules, weight = weight_of(topology, 6)

    mimo.reduce_gradients { topology = topology, modules = modules, loss = "mean", mean_over = case[1] }

    t.near(weight.grad, torch.full({ 1, 2 }, RANK == 0 and 6 / (3 / case[2]) or 6 * case[2]), 1e-6)
  end
end)

-- Replicas of data_parallel ---------------------------------------------------------------------------

t.test("AveragesOverOtherRanksThanTheModulesReplicasAreRefused", function()
  local topology = with_language { first_rank = 2, dp = 2 }
  local replicas = sharding.data_parallel(nn.Linear(2, 1)) -- over all four ranks
  replicas(torch.ones { 1, 2 }):sum():backward()

  local message = t.raises("averages", mimo.reduce_gradients,
    { topology = topology, modules = { [topology:module()] = replicas }, loss = "mean" })

  t.truthy(message:find(("on rank %d sharding.data_parallel averages \"%s\" over ranks 0, 1, 2, 3, but its replicas "
    .. "(dp and cp) are ranks %s"):format(RANK, topology:module(), RANK < 2 and "0, 1" or "2, 3"), 1, true), message)
end)

t.test("AveragesOverTheModulesReplicasAreScaled", function()
  local topology = with_language { first_rank = 2, dp = 2 }
  torch.manual_seed(1)
  local replicas = sharding.data_parallel(nn.Linear(2, 1), { group = topology:group(topology:module(), "dp-cp") })
  replicas(torch.full({ 1, 2 }, 1 + RANK)):sum():backward()
  local mean = RANK < 2 and 1.5 or 3.5
  t.equal(replicas.module.weight.grad, torch.full({ 1, 2 }, mean))

  mimo.reduce_gradients { topology = topology, modules = { [topology:module()] = replicas }, loss = "sum", tokens = 5 }

  t.near(replicas.module.weight.grad, torch.full({ 1, 2 }, 2 * mean / 10), 1e-6)
end)

-- Weights that stages share ---------------------------------------------------------------------------

local Stage = nn.Module:subclass("Stage")
function Stage:init(name, value)
  self[name] = nn.Linear(2, 1, { bias = false })
  torch.no_grad(function() self[name].weight:fill_(value or 0.5) end)
  self[name].weight.grad = torch.full({ 1, 2 }, RANK)
end

local function tied(value)
  local topology = with_language { pp = 3, shared = { { first = "embed.weight", last = "head.weight" } } }
  local name = ({ [0] = "fc", "embed", "fc", "head" })[RANK]
  local module = Stage(name, value)
  return topology, { [topology:module()] = module }, module[name].weight
end

t.test("WithoutSharedTiedWeightsDriftApartAndCountTwice", function()
  local topology = with_language { pp = 3 }
  local module = Stage("fc")
  local modules = { [topology:module()] = module }

  mimo.reduce_gradients { topology = topology, modules = modules, loss = "sum", tokens = RANK == 3 and 1 or nil }
  local norm = mimo.clip_grad_norm { topology = topology, modules = modules, max_norm = 1e9 }

  t.equal(module.fc.weight.grad, torch.full({ 1, 2 }, RANK)) -- the first stage has 1, the last 3: together 4
  t.near(norm:item(), math.sqrt(2 * (1 + 4 + 9)), 1e-12)
end)

t.test("TiedWeightsGetTheGradientOfBothStagesAndCountOnce", function()
  local topology, modules, weight = tied()

  for _ = 1, 2 do
    weight.grad = torch.full({ 1, 2 }, RANK)
    mimo.reduce_gradients { topology = topology, modules = modules, loss = "sum", tokens = RANK == 3 and 1 or nil }
    local norm = mimo.clip_grad_norm { topology = topology, modules = modules, max_norm = 1e9 }

    t.equal(weight.grad, torch.full({ 1, 2 }, ({ [0] = 0, 4, 2, 4 })[RANK]))
    t.near(norm:item(), math.sqrt(2 * (16 + 4)), 1e-12)
  end
end)

t.test("TiedWeightsMustStartAlike", function()
  local topology, modules = tied(RANK)
  if RANK ~= 1 and RANK ~= 3 then return end

  t.raises('"language" shares', mimo.clip_grad_norm, { topology = topology, modules = modules, max_norm = 1 })
end)

t.test("SharedWeightsAreNamed", function()
  local message = t.raises("with pp > 1", with_language, { cp = 3, shared = { { first = "a", last = "b" } } })
  t.truthy(message:find('shared of "language"', 1, true), message)
  t.raises('{first = "embed.weight", last = "head.weight"}', with_language, { pp = 3, shared = { "embed.weight" } })
  local topology = with_language { pp = 3, shared = { { first = "embed.weigth", last = "head.weigth" } } }
  if RANK ~= 1 then return end
  t.raises('which its first stage on rank 1 does not have; did you mean "embed.weight"?', mimo.clip_grad_norm,
    { topology = topology, modules = { language = Stage("embed") }, max_norm = 1 })
end)

-- Parameters of two modules ---------------------------------------------------------------------------

local function on_the_same_ranks(vision, language)
  vision.name, language.name = "vision", "language"
  return mimo.topology { modules = { vision, language } }
end

t.test("AParameterOfTwoModulesIsReducedCountedAndClippedOnce", function()
  local topology = on_the_same_ranks({ dp = 4 }, { dp = 4 })
  local both = nn.Linear(2, 1, { bias = false })
  both.weight.grad = torch.full({ 1, 2 }, 1 + RANK)
  local modules = { vision = both, language = both }

  mimo.reduce_gradients { topology = topology, modules = modules, loss = "sum", tokens = 2 }
  t.near(both.weight.grad, torch.full({ 1, 2 }, 10 / 8), 1e-6)

  local norm = mimo.clip_grad_norm { topology = topology, modules = modules, max_norm = 1 }
  t.near(norm:item(), math.sqrt(2) * 10 / 8, 1e-6)
  t.near(both.weight.grad, torch.full({ 1, 2 }, 1 / math.sqrt(2)), 1e-5)
end)

t.test("ModulesThatShareAParameterMustBeDividedAlike", function()
  local topology = on_the_same_ranks({ dp = 4 }, { dp = 2, tp = 2 })
  local both = nn.Linear(2, 1, { bias = false })
  local modules = { vision = both, language = both }

  local message = t.raises('"vision" and "language" share the parameter "weight"', mimo.reduce_gradients,
    { topology = topology, modules = modules, loss = "sum", tokens = 2 })

  t.truthy(message:find(("over dp-cp this is one of ranks 0, 1, 2, 3 and of ranks %s"):format(
    RANK % 2 == 0 and "0, 2" or "1, 3"), 1, true), message)
end)

t.test("TwoModulesThatShareAParameterMustBothBeAveragedOrNeither", function()
  local topology = on_the_same_ranks({ dp = 4 }, { dp = 4 })
  local both = nn.Linear(2, 1, { bias = false })

  t.raises("sharding.data_parallel averages one of them alone", mimo.reduce_gradients, { topology = topology,
    modules = { vision = sharding.data_parallel(both), language = both }, loss = "sum", tokens = 2 })
end)

-- Norms that are not finite ---------------------------------------------------------------------------

t.test("OneRanksInfinityIsEveryRanksNormAndLeavesGradientsAsTheyAre", function()
  for _, bad in ipairs { math.huge, 0 / 0 } do
    for _, where in ipairs { 0, 3 } do
      local topology = with_language { pp = 3 }
      local modules, weight = weight_of(topology, RANK == where and bad or 2)
      local before = weight:detach():clone()
      local opts = { topology = topology, modules = modules, max_norm = 1 }

      local norm = mimo.clip_grad_norm(opts)
      if norm:isfinite():item() then weight:detach():sub_(weight.grad) end -- the step

      t.equal(norm:isfinite():item(), false)
      t.equal(weight:detach(), before)
      if RANK ~= where then t.equal(weight.grad, torch.full({ 1, 2 }, 2)) end
      opts.error_if_nonfinite = true
      t.raises("the norm of all gradients is", mimo.clip_grad_norm, opts)
    end
  end
end)

t.test("WhereRanksOwnNormsDifferAllSkipOrNone", function()
  local topology = with_language { pp = 3 }
  local function num_finite(norm) return dist.all_reduce(norm:isfinite():to(torch.int64)):item() end
  for _, case in ipairs { { math.huge, 3, 0 }, { 2, 4, 4 } } do
    local modules, weight = weight_of(topology, RANK == 3 and case[1] or 2)
    t.equal(num_finite(weight.grad:norm()), case[2])

    t.equal(num_finite(mimo.clip_grad_norm { topology = topology, modules = modules, max_norm = 1 }), case[3])
  end
end)

t.test("AFiniteNormIsNoError", function()
  local topology = with_language { pp = 3 }
  local modules, weight = weight_of(topology, 2)

  local norm = mimo.clip_grad_norm { topology = topology, modules = modules, max_norm = 1, error_if_nonfinite = true }

  t.near(norm:item(), math.sqrt(32), 1e-12)
  t.near(weight.grad, torch.full({ 1, 2 }, 2 / math.sqrt(32)), 1e-6)
end)

-- Sharded modules ------------------------------------------------------------------------------------

local STEPS, MICRO_BATCHES, MICRO_BATCH = 6, 2, 12

local function reader_of(topology)
  local set, first = fixture.dataset(STEPS * MICRO_BATCHES * MICRO_BATCH), 1
  return mimo.loader { topology = topology, ownership = "images", micro_batches = MICRO_BATCHES, source = function()
    if first > set.num_samples then return nil end
    local samples = {}
    for position = first, first + MICRO_BATCH - 1 do samples[#samples + 1] = set.read(position) end
    first = first + MICRO_BATCH
    return fixture.collate(samples)
  end }
end

local function train(topology, wrap)
  return fixture.train(topology, reader_of(topology), { micro_batches = MICRO_BATCHES, wrap = wrap })
end

local UNITS = { vision = { "fc1", "fc2" }, language = { "embed", "mix" } }

--- Each grid with the options of fully_shard by module; a module without options stays plain.
local grids = {
  { "apart", 2, 2, { vision = {}, language = {} } },
  { "apart", 1, 3, { language = { reshard_after_forward = false } } },
  { "apart", 3, 1, { vision = { units = { "fc2" }, ignore = { "fc1" } } } },
  { "together", 4, 4, { vision = {}, language = {} } },
  { "together", 4, 4, { language = { replicas = 2 } } },
}

for i, grid in ipairs(grids) do
  t.test(("ShardedModulesTrainAsPlainOnes(%d)"):format(i), function()
    torch.set_default_dtype(torch.float64)
    local how, vision, language, options = unpack(grid)
    local topology = fixture[how](vision, language)
    local expected = train(topology)

    local steps = train(topology, function(name, module)
      local opts = options[name]
      if not opts then return module end
      opts.group, opts.units = topology:group(name, "dp-cp"), opts.units or UNITS[name]
      return sharding.fully_shard(module, opts)
    end)

    t.equal(#steps, STEPS)
    fixture.compare(steps, expected, 1e-10)
  end)
end

--- Language on all ranks but the first, sharded over them, with gradients of 1 for each of its 6 weights on each rank.
local function sharded_language(reduces)
  local topology = fixture.apart(1, 3)
  local name = topology:module()
  local module = nn.Linear(3, 2, { bias = false })
  local group = topology:group(name, "dp-cp")
  if name == "language" then module = sharding.fully_shard(module, { group = group }) end
  local y = module(torch.ones { 1, 3 })
  y:sum():backward()
  local modules = { [name] = module }
  if reduces then
    mimo.reduce_gradients { topology = topology, modules = modules, loss = "sum",
      tokens = name == "language" and 1 or nil }
  end
  return topology, modules, module
end

t.test("GradientsOfShardsMayBeKeptOverSteps", function()
  local topology, modules, module = sharded_language(true)
  local name = topology:module()
  local first = module:parameters()[1].grad:clone()
  module(torch.ones { 1, 3 }):sum():backward()
  mimo.reduce_gradients { topology = topology, modules = modules, loss = "sum",
    tokens = name == "language" and 1 or nil }

  local gradient = module:parameters()[1].grad
  if name == "language" and gradient:numel() > 0 then t.near(gradient, first * 2, 1e-6) end
end)

t.test("OneNormCountsEachShardOnce", function()
  local topology, modules = sharded_language(true)

  local norm = mimo.clip_grad_norm { topology = topology, modules = modules, max_norm = 1 }

  -- Each of 6 weights of vision has 1 / (dp of language) of the tokens' sum, and so has language.
  local each = 1 / 3
  t.near(norm:item(), math.sqrt(6 * each ^ 2 + 6), 1e-12)
  local whole = fixture.gradients_of(modules[topology:module()]).weight
  t.near(whole, torch.full({ 2, 3 }, (topology:module() == "vision" and each or 1) / norm:item()), 1e-6)
end)

t.test("EachModulesOwnNormIsAnother", function()
  local topology, _, module = sharded_language(false)
  if topology:module() ~= "language" then return end

  local own = module:clip_grad_norm(1)

  t.near(own:item(), math.sqrt(6), 1e-12) -- without vision: the model is clipped less than as a whole
end)

t.test("ShardsOverOtherRanksThanTheReplicasAreRefused", function()
  local topology = fixture.apart(1, 3)
  local name = topology:module()
  local module = sharding.fully_shard(nn.Linear(3, 2)) -- over all ranks
  local text = ('sharding.fully_shard averages "%s" over ranks 0, 1'):format(name)

  t.raises(text, mimo.reduce_gradients, { topology = topology, modules = { [name] = module }, loss = "mean" })
  t.raises(text, mimo.clip_grad_norm, { topology = topology, modules = { [name] = module }, max_norm = 1 })
end)

t.test("TheModuleBeforeItWasShardedIsRefused", function()
  local topology = mimo.topology { modules = { { name = "language", dp = 4 } }, edges = {} }
  local net = nn.Linear(3, 2)
  sharding.fully_shard(net)

  t.raises('of "language" is of the module before it was sharded, and gets no gradient', mimo.reduce_gradients,
    { topology = topology, modules = { language = net }, loss = "mean" })
end)
