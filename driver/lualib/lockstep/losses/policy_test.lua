-- losses.grpo, losses.kl, losses.advantages and losses.per_sequence against sums over numbers, one token at a time.

local core = require "lockstep.core"
local gradients = require "lockstep.losses.gradients_fixture"
local losses = require "lockstep.losses"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local F64 = { dtype = torch.float64 }
local LENGTHS = { 4, 1, 3 }
-- Ratios on both sides of both bounds, for advantages of either sign.
local NEW = { -1.0, -0.3, -2.0, -0.7, -1.1, -0.2, -0.9, -3.0 }
local OLD = { -1.05, -1.2, -1.4, -0.7, -0.4, -1.0, -1.0, -2.5 }
local REFERENCE = { -0.8, -0.5, -2.5, -0.6, -1.0, -0.3, -0.2, -2.9 }
local ADVANTAGES = { 1.5, 1.5, 1.5, 1.5, -0.5, -0.75, -0.75, -0.75 }
local MASK = { 0, 1, 1, 1, 1, 1, 0, 1 }

local function tensors()
  return { log_probs = torch.tensor(NEW, F64):requires_grad_(true), old_log_probs = torch.tensor(OLD, F64),
    advantages = torch.tensor(ADVANTAGES, F64), loss_mask = torch.tensor(MASK), seq_lens = LENGTHS }
end

--- The loss as the papers write it, token by token.
local function by_hand(variant, o)
  local total, tokens, answers, at = 0, 0, 0, 0
  for _, length in ipairs(LENGTHS) do
    local sum, counted = 0, 0
    for i = at + 1, at + length do
      if MASK[i] == 1 then
        local ratio, a = math.exp(NEW[i] - OLD[i]), ADVANTAGES[i]
        local loss
        if variant == "prime_rl" then
          local change = math.exp(NEW[i]) - math.exp(OLD[i])
          local is_out = a > 0 and change > o.high or a <= 0 and change < -o.low
          loss = (is_out and 0 or -ratio * a) + o.kl_tau * (NEW[i] - OLD[i]) ^ 2
        else
          loss = -math.min(ratio * a, math.max(1 - o.low, math.min(1 + o.high, ratio)) * a)
        end
        local r = math.exp(REFERENCE[i] - NEW[i])
        sum, counted = sum + loss + (o.beta or 0) * (r - 1 - math.log(r)), counted + 1
      end
    end
    at, tokens, answers = at + length, tokens + counted, answers + 1
    if variant == "grpo" then sum = sum / counted end
    if variant == "dr_grpo" then sum = sum / o.max_tokens end
    total = total + sum
  end
  return total, (variant == "grpo" or variant == "dr_grpo") and answers or tokens
end

local CASES = {
  { variant = "grpo", low = 0.2, high = 0.2 },
  { variant = "grpo", low = 0.1, high = 0.5, given = true, beta = 0.3 },
  { variant = "dapo", low = 0.2, high = 0.28 },
  { variant = "dapo", low = 0.2, high = 0.28, beta = 0.04 },
  { variant = "dr_grpo", low = 0.2, high = 0.2, max_tokens = 16 },
  { variant = "prime_rl", low = 0.2, high = 0.2, kl_tau = 1e-3 },
  { variant = "prime_rl", low = 0.05, high = 0.1, given = true, kl_tau = 0.5, beta = 0.1 },
}

for number, case in ipairs(CASES) do
  t.test(("Case%dOf_%s_IsTheFormulaInValueAndGradient"):format(number, case.variant), function()
    local o = tensors()
    o.variant, o.max_tokens, o.beta = case.variant, case.max_tokens, case.beta
    if case.given then o.clip_low, o.clip_high = case.low, case.high end
    if case.variant == "prime_rl" and case.given then o.kl_tau = case.kl_tau end
    if case.beta then o.reference = torch.tensor(REFERENCE, F64) end
    local expected, expected_count = by_hand(case.variant, case)

    local sum, count = losses.grpo(o)

    t.near(sum:item(), expected, 1e-12)
    t.equal(count, expected_count)
    gradients.check(function(x)
      o.log_probs = x
      return (losses.grpo(o))
    end, torch.tensor(NEW, F64))
  end)
end

t.test("OnItsOwnSamplesTheGradientIsThatOfReinforce", function()
  local o = tensors()
  o.old_log_probs = nil

  local sum, _, stats = losses.grpo(o)
  sum:backward()

  t.near(o.log_probs.grad, -o.advantages * o.loss_mask, 1e-15)
  t.equal({ stats.clipped:item(), stats.kl:item() }, { 0, 0 })
end)

t.test("StatsCountTokensWithoutPolicyGradient", function()
  local o = tensors()

  local sum, _, stats = losses.grpo(o)
  sum:backward()

  local silent = 0
  for i, g in ipairs(o.log_probs.grad:totable()) do
    if MASK[i] == 1 and g == 0 then silent = silent + 1 end
  end
  t.equal(stats.clipped:item(), silent)
  t.equal(silent, 3)
  t.truthy(not stats.kl.requires_grad)
end)

t.test("MaskedTokensTakeNoPartEvenAsNaN", function()
  for _, variant in ipairs { "grpo", "dapo", "dr_grpo", "prime_rl" } do
    local o = tensors()
    o.variant, o.max_tokens = variant, variant == "dr_grpo" and 16 or nil
    o.beta, o.reference = 0.1, torch.tensor(REFERENCE, F64)
    local expected = losses.grpo(o)
    local holes = torch.tensor(MASK):eq(0)
    for _, name in ipairs { "log_probs", "old_log_probs", "advantages", "reference" } do
      o[name] = o[name]:detach():masked_fill(holes, name == "advantages" and math.huge or 0 / 0)
    end
    o.log_probs:requires_grad_(true)

    local sum = losses.grpo(o)
    sum:backward()

    t.equal(sum:item(), expected:item(), variant)
    t.equal(o.log_probs.grad:masked_select(holes), torch.zeros({ 2 }, F64))
    t.truthy(o.log_probs.grad:isfinite():all():item())
  end
end)

t.test("AnEmptyMaskGivesZerosAndNothingToDivideBy", function()
  for _, variant in ipairs { "grpo", "dapo", "dr_grpo", "prime_rl" } do
    local o = tensors()
    o.variant, o.max_tokens = variant, variant == "dr_grpo" and 16 or nil
    o.loss_mask = torch.zeros({ 8 })

    local sum, count = losses.grpo(o)
    sum:backward()

    t.equal({ sum:item(), count }, { 0, 0 }, variant)
    t.equal(o.log_probs.grad, torch.zeros({ 8 }, F64))
  end
end)

t.test("MicroBatchesAddUpToTheWhole", function()
  for _, variant in ipairs { "grpo", "dapo", "dr_grpo", "prime_rl" } do
    local o = tensors()
    o.variant, o.max_tokens = variant, variant == "dr_grpo" and 16 or nil
    local whole, whole_count = losses.grpo(o)
    local sum, count = 0, 0
    for _, part in ipairs { { 0, 4, { 4 } }, { 4, 8, { 1, 3 } } } do
      local p = { variant = variant, max_tokens = o.max_tokens, seq_lens = part[3] }
      for _, name in ipairs { "log_probs", "old_log_probs", "advantages", "loss_mask" } do
        p[name] = o[name][{ { part[1], part[2] } }]
      end
      local s, n = losses.grpo(p)
      sum, count = sum + s:item(), count + n
    end
    t.near(sum, whole:item(), 1e-12)
    t.equal(count, whole_count)
    t.equal(losses.grpo_divisor(variant, { tokens = 6, sequences = 3 }), whole_count)
  end
end)

t.test("EstimatesOfTheDivergenceHaveTheirMeanAndSign", function()
  -- The expectation under p over all tokens of a small vocabulary.
  local p, q = torch.tensor({ 0.5, 0.3, 0.2 }, F64), torch.tensor({ 0.2, 0.3, 0.5 }, F64)
  local exact = (p * (p:log() - q:log())):sum():item()
  for _, estimator in ipairs { "k1", "k3" } do
    t.near((p * losses.kl(p:log(), q:log(), { estimator = estimator })):sum():item(), exact, 1e-12, estimator)
  end
  t.truthy(losses.kl(p:log(), q:log()):ge(0):all():item())
  t.equal(losses.kl(p:log(), p:log()), torch.zeros({ 3 }, F64))
  t.near(losses.kl(p:log(), q:log(), { estimator = "k2" })[0]:item(), math.log(0.4) ^ 2 / 2, 1e-12)
  for _, estimator in ipairs { "k1", "k2", "k3" } do
    gradients.check(function(x) return losses.kl(x, q:log(), { estimator = estimator }):sum() end, p:log())
  end
end)

t.test("AdvantagesAreOfTheGroup", function()
  local advantages = losses.advantages({ 1, 0, 0, 1, 0.3, 0.3, 0.3, 0.3 }, { group_size = 4 })

  local each = 0.5 / (math.sqrt(1 / 3) + 1e-4)
  t.near(advantages, torch.tensor({ each, -each, -each, each, 0, 0, 0, 0 }, F64), 1e-12)
  t.near(losses.advantages({ 1, 0, 3, 1 }, { group_size = 2, scale = "none" }),
    torch.tensor({ 0.5, -0.5, 1, -1 }, F64), 0)
  -- Three equal thirds have a mean that is rounded.
  t.equal(losses.advantages({ 0.1, 0.1, 0.1 }, { group_size = 3 }), torch.zeros({ 3 }, F64))
end)

t.test("SumsAndMeansAreOfEachSequence", function()
  local values, mask = torch.arange(6, F64), torch.tensor { 1, 1, 0, 0, 1, 1 }
  local o = { seq_lens = { 3, 1, 2 }, loss_mask = mask }

  t.equal(losses.per_sequence(values, o), torch.tensor({ 1, 0, 9 }, F64))
  o.mean = true
  t.equal(losses.per_sequence(values, o), torch.tensor({ 0.5, 0, 4.5 }, F64))
  gradients.check(function(x) return losses.per_sequence(x, o):square():sum() end, values)
end)

t.test("WhatCannotBeRightIsAnError", function()
  local function raises(text, change)
    local o = tensors()
    for name, value in pairs(change) do o[name] = value end
    t.raises("losses.grpo: " .. text, losses.grpo, o)
  end
  raises("advantages must have shape {8}, got {7}", { advantages = torch.zeros({ 7 }) })
  raises("loss_mask must have shape {8}, got float32 {2, 4}", { loss_mask = torch.ones({ 2, 4 }) })
  raises("log_probs must be float32 or float64, got bfloat16 {8}",
    { log_probs = torch.zeros({ 8 }, { dtype = torch.bfloat16 }) })
  raises("log_probs must be a tensor of floating-point numbers, got int64 {8}", { log_probs = torch.arange(8) })
  raises("log_probs must have one dimension, got {2, 4}", { log_probs = torch.zeros({ 2, 4 }) })
  raises("seq_lens add up to 9 tokens, but the tensors hold 8", { seq_lens = { 4, 5 }, variant = "grpo" })
  for given, got in pairs { [-1] = "-1", [0.5] = "0.5", [math.huge] = "inf", ["2"] = "2" } do
    raises("seq_lens[2] must be a whole number of at least 0, got " .. got, { seq_lens = { 4, given, 4 },
      variant = "grpo" })
  end
  raises('variant must be one of dapo, dr_grpo, grpo, prime_rl, got "gpro"; did you mean "grpo"?', { variant = "gpro" })
  raises("beta is 0.1, but there is no reference", { beta = 0.1 })
  raises('max_tokens must be a number above 0 for variant = "dr_grpo", and absent otherwise, got nil',
    { variant = "dr_grpo" })
  raises('kl_tau must be a number, and is for variant = "prime_rl", got 0.1', { kl_tau = 0.1 })
  raises("clip_low must be a number from 0 to 1, got 1.2", { clip_low = 1.2 })
  t.raises("5 rewards are not groups of 2", losses.advantages, { 1, 2, 3, 4, 5 }, { group_size = 2 })
  t.raises("group_size must be a whole number of at least 2", losses.advantages, { 1, 2 }, { group_size = 1 })
  t.raises("reward 1 is not finite", losses.advantages, { 1, 0 / 0 }, { group_size = 2 })
  t.raises("losses.kl: reference must have shape {2}, got {3}", losses.kl, torch.zeros { 2 }, torch.zeros { 3 })
end)

t.test("AMaskHoldsOnlyZerosAndOnes", function()
  local mask = torch.tensor { 1, 1, 0, 0, 1, 1 }
  local function sums(loss_mask)
    return losses.per_sequence(torch.arange(6, F64), { seq_lens = { 3, 3 }, loss_mask = loss_mask })
  end
  for _, dtype in ipairs { torch.bool, torch.uint8, torch.int64, torch.bfloat16, torch.float64 } do
    t.equal(sums(mask:to(dtype)), torch.tensor({ 1, 9 }, F64))
  end
  for message, value in pairs { ["holds 0.5 at"] = 0.5, ["holds nan at"] = 0 / 0, ["holds -1 at"] = -1,
    ["holds 2 at"] = 2, ["holds inf at"] = math.huge } do
    mask[3] = value
    local o = tensors()
    o.loss_mask = torch.cat { mask, torch.ones { 2 } }
    t.raises("losses.grpo: loss_mask " .. message .. " position 3; each element must be 0, 1, true or false",
      losses.grpo, o)
    t.raises("losses.per_sequence: loss_mask " .. message, sums, mask)
  end
end)

t.test("GroupsOfAnswersAreSamplesWithAdvantages", function()
  local I64 = { dtype = torch.int64 }
  local prompts = { { input_ids = torch.tensor({ 7, 8 }, I64) },
    { input_ids = torch.tensor({ 9 }, I64), pixel_values = torch.ones { 4, 3 },
      image_grid_thw = torch.tensor({ { 1, 2, 2 } }, I64) } }
  local groups = {
    { number = 1, answers = { { ids = { 1, 2 }, reward = 1, log_probs = { -0.5, -0.25 } },
      { ids = { 3, 4, 5 }, reward = 0, log_probs = { -1, -2, -3 } }, { ids = {}, reward = 0.5, log_probs = {} } } },
    { number = 2, answers = { { ids = { 1, 4, 6 }, reward = 0.25, log_probs = { -1, -1, -1 } },
      { ids = { 1, 4, 2 }, reward = 0.25, log_probs = { -1, -1, -1 } } } },
  }
  local function rollouts(more)
    local o = { prompt = function(group) return prompts[group.number] end, seq_len = 4, max_new_tokens = 3,
      stop = { 5, 6 }, scale = "none" }
    for name, value in pairs(more or {}) do o[name] = value end
    return losses.rollouts(groups, o)
  end

  local samples, reward, counts = rollouts { log_probs = true }

  t.equal(reward, 2 / 5)
  -- Answer 2 of the first group is too long with its prompt; only the last answer was not finished.
  t.equal(counts, { skipped_answers = 1, cut_answers = 1, equal_groups = 1 })
  t.equal(#samples, 4)
  t.equal(samples[1].input_ids:totable(), { 7, 8, 1, 2 })
  t.equal(samples[1].loss_mask:totable(), { false, false, true, true })
  t.equal(samples[1].old_log_probs:totable(), { 0, 0, -0.5, -0.25 })
  t.equal({ samples[1].advantages, samples[2].advantages, samples[3].advantages }, { 0.5, 0, 0 })
  t.equal(samples[2].loss_mask:totable(), { false, false })
  t.equal({ samples[1].pixel_values, samples[3].pixel_values:size(0) }, { nil, 4 })
  t.equal(rollouts()[1].old_log_probs, nil)
  local deviation = math.sqrt((0.5 ^ 2 + 0.5 ^ 2) / 2) + 1e-4
  t.near(rollouts({ scale = "group" })[1].advantages, 0.5 / deviation, 1e-9)

  groups[1].answers[2].log_probs = { -1 }
  t.raises("an answer has 3 ids and 1 log_probs; every id needs one", rollouts, { log_probs = true, seq_len = 9 })
  groups[1].answers[2].log_probs = nil
  t.raises("an answer has 3 ids and no log_probs", rollouts, { log_probs = true, seq_len = 9 })
  t.raises("all 5 answers are longer than seq_len = 1 with their prompts, the shortest has 2 tokens", rollouts,
    { seq_len = 1 })
  t.raises("there is no answer in any group", losses.rollouts, {}, { prompt = print, seq_len = 4 })
end)

-- Several reward functions --------------------------------------------------------------------------------

-- TRL: NaN for a function that returns None, nansum of the weighted values, nanmean and a sample's deviation of each.
t.test("WeightedSumsMeansAndDeviationsAreThoseOfTrl", function()
  local names, weights, size = { "correct", "length", "format" }, { 1, -0.25, 3 }, 4
  torch.manual_seed(11)
  local values = torch.randn({ 3 * size, 3 }, F64)
  local holes = torch.rand({ 3 * size, 3 }):lt(0.4)
  holes[5] = true -- an answer that no function scores
  values = values:masked_fill(holes, 0 / 0)
  local rows, list = values:totable(), {}
  for j, name in ipairs(names) do
    list[j] = { name = name, weight = name == "format" and 7 or weights[j], fn = function(problem, ids, answer)
      t.truthy(answer.ids == ids)
      local value = rows[problem.first + ids[1]][j]
      if value == value then return value end
    end }
  end
  local score, groups = losses.reward_functions(list, { weights = "1,-0.25,3" }), {}
  for g = 1, 3 do
    groups[g] = { answers = {} }
    for i = 1, size do
      groups[g].answers[i] = { ids = { i } }
      score(groups[g].answers[i], { first = (g - 1) * size }, "")
    end
  end
  local sums = (values * torch.tensor(weights, F64)):nansum({ 1 })
  local function rollouts(scale)
    return losses.rollouts(groups, { prompt = function() return { input_ids = torch.arange(2) } end, seq_len = 8,
      scale = scale })
  end

  local samples, reward, counts, stats = rollouts()

  local by_group = sums:view(3, size)
  local deviations = by_group:std({ 1 }, { keepdim = true, correction = 1 })
  local expected = ((by_group - by_group:mean({ 1 }, { keepdim = true })) / (deviations + 1e-4)):flatten()
  for i, sample in ipairs(samples) do t.near(sample.advantages, expected[i - 1]:item(), 1e-12) end
  t.near(reward, sums:mean():item(), 1e-12)
  t.near(stats.reward_std, deviations:mean():item(), 1e-12)
  t.equal(counts.unrewarded_answers, holes:all(1):sum():item())
  for j, name in ipairs(names) do
    local column = values:select(1, j - 1)
    local known = column:masked_select(column:isnan():logical_not())
    t.near(stats["rewards/" .. name .. "/mean"], column:nanmean():item(), 1e-12)
    t.near(stats["rewards/" .. name .. "/std"], known:std({ 0 }, { correction = 1 }):item(), 1e-12)
  end
end)

t.test("AFunctionWithoutANameIsTheRewardAlone", function()
  local answer, none = { ids = { 3 } }, { ids = { 4 } }
  local score = losses.reward_functions(function(_, ids) return ids[1] == 3 and 2 or nil end)
  score(answer, {}, "")
  score(none, {}, "")
  t.equal({ answer.reward, answer.rewards }, { 2 })

  local _, reward, counts, stats = losses.rollouts({ { answers = { answer, none } } },
    { prompt = function() return { input_ids = torch.arange(2) } end, seq_len = 8 })

  t.equal({ reward, counts.unrewarded_answers }, { 1, 1 })
  t.equal(stats, { reward_std = math.sqrt(2) })
end)

t.test("AMeanOfOneValueHasNoDeviation", function()
  local function answer(rewards) return { ids = { 1 }, reward = 0, rewards = rewards } end
  local _, _, counts, stats = losses.rollouts({ { answers = { answer { a = 2 }, answer { b = core.null } } } },
    { prompt = function() return { input_ids = torch.arange(2) } end, seq_len = 8 })
  t.equal(stats, { reward_std = 0, ["rewards/a/mean"] = 2 })
  t.equal(counts.unrewarded_answers, 1)
end)

t.test("NullsOfAnotherEnginesLinesAreAbsent", function()
  local o = { prompt = function() return { input_ids = torch.arange(2) } end, seq_len = 8 }
  local answer = { ids = { 1 }, reward = 2, rewards = core.null, loss_mask = core.null }
  local other = { ids = { 1 }, reward = 0 }
  local samples, reward = losses.rollouts({ { answers = { answer, other } } }, o)
  t.equal({ samples[1].loss_mask:totable(), reward }, { { false, false, true }, 1 })
  answer.reward = core.null
  t.raises("answer 1 of a group has no reward", losses.rollouts, { { answers = { answer, other } } }, o)
end)

t.test("WhatAFunctionMustNotReturnIsNamedWithTheAnswer", function()
  local function score(value, place)
    losses.reward_functions { { name = "short", fn = function() return 1 end },
      { name = "correct", fn = function() return value end } }({ ids = {} }, {}, place)
  end
  for got, value in pairs { nan = 0 / 0, inf = math.huge, ["a string"] = "1", ["a boolean"] = true,
    ["a tensor; end it with :item()"] = torch.ones {} } do
    t.raises('losses.reward_functions: "correct" must return a finite number or nil; of answer 2 to problem 7 it '
      .. "returned " .. got, score, value, "answer 2 to problem 7")
  end
  local function f() end
  local two = { { name = "a", fn = f }, { name = "b", fn = f } }
  t.raises("3 weights for 2 functions (a, b); give one for each", losses.reward_functions, two, { weights = "1,2,3" })
  t.raises("1 weights for 2 functions (a, b)", losses.reward_functions, two, { weights = { 1 } })
  t.raises('weights: "x" is not a number, in "1,x"', losses.reward_functions, two, { weights = "1,x" })
  t.raises('two functions have the name "a"', losses.reward_functions, { two[1], two[1] })
  t.raises('"a": fn must be a function, not a number', losses.reward_functions, { { name = "a", fn = 5 } })
  t.raises('"a": the weight must be a number, got inf', losses.reward_functions,
    { { name = "a", fn = f, weight = math.huge } })
  t.raises('unknown option "wieght"; did you mean "weight"?', losses.reward_functions,
    { { name = "a", fn = f, wieght = 1 } })
  t.raises("name of function 1 must be a word, got a b", losses.reward_functions, { { name = "a b", fn = f } })
  t.raises("expected a function, or an array like", losses.reward_functions, { correct = f })
  t.raises("answer 2 of a group has no reward", losses.rollouts, { { answers = { { ids = {}, reward = 1 },
    { ids = {} } } } }, { prompt = function() return { input_ids = torch.arange(2) } end, seq_len = 8 })
end)

t.test("IdsOfToolsAreNotLearntAndTheirCallsAreCounted", function()
  local groups = { { answers = {
    { ids = { 1, 2, 3, 4 }, loss_mask = { 1, 0, 0, 1 }, reward = 1, tool_calls = 2, tool_failures = 1 },
    { ids = { 1, 2 }, loss_mask = { true, false }, reward = 0, is_cut = true, tool_calls = 1 } } } }
  local function rollouts()
    return losses.rollouts(groups, { prompt = function() return { input_ids = torch.arange(2) } end, seq_len = 8 })
  end

  local samples, _, counts = rollouts()

  t.equal(samples[1].loss_mask:totable(), { false, false, true, false, false, true })
  t.equal(samples[2].loss_mask:totable(), { false, false, true, false })
  t.equal(counts, { skipped_answers = 0, cut_answers = 1, equal_groups = 0, tool_calls = 3, tool_failures = 1 })
  groups[1].answers[1].loss_mask[5] = 1
  t.raises("an answer has 4 ids and 5 loss_mask; every id needs one", rollouts)
end)
