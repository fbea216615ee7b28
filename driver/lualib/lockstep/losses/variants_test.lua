-- The preference losses against TRL's formulas, written out with numbers, and their gradients.

local gradients = require "lockstep.losses.gradients_fixture"
local losses = require "lockstep.losses"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local F64 = { dtype = torch.float64 }
local PAIRS = 7
local INPUTS = { "chosen", "rejected", "reference_chosen", "reference_rejected", "mean_chosen" }

--- Returns random log-probabilities below 0. The first pair's answers have equal ones.
local function draw(seed)
  torch.manual_seed(seed)
  local drawn = {}
  for _, name in ipairs(INPUTS) do drawn[name] = -torch.rand({ PAIRS }, F64) * 6 - 0.05 end
  drawn.rejected[0], drawn.reference_rejected[0] = drawn.chosen[0]:item(), drawn.reference_chosen[0]:item()
  return drawn
end

local function log_sigmoid(x) return -math.log(1 + math.exp(-x)) end

--- Each loss of one pair, from c, r: the policy's log-probabilities; h: their difference less the reference's.
local FORMULAS = {
  sigmoid = function(h, o) return -log_sigmoid(o.beta * h) * (1 - o.e) - log_sigmoid(-o.beta * h) * o.e end,
  robust = function(h, o)
    return (-log_sigmoid(o.beta * h) * (1 - o.e) + log_sigmoid(-o.beta * h) * o.e) / (1 - 2 * o.e)
  end,
  hinge = function(h, o) return math.max(0, 1 - o.beta * h) end,
  ipo = function(h, o) return (h - 1 / (2 * o.beta)) ^ 2 end,
  simpo = function(h, o)
    local logits = h - o.gamma / o.beta
    return -log_sigmoid(o.beta * logits) * (1 - o.e) - log_sigmoid(-o.beta * logits) * o.e
  end,
}

--- Compares a loss with the sum of `of_pair` over the pairs, and its gradient by each input with finite differences.
local function check(call, opts, inputs, trained, of_pair)
  local expected, correct = 0, 0
  for i = 0, PAIRS - 1 do
    local loss, h = of_pair(function(name) return inputs[name][i]:item() end)
    expected, correct = expected + loss, correct + (h > 0 and 1 or 0)
  end
  local function loss_with(changed, x)
    local o = { [changed or 0] = x }
    for name, value in pairs(opts) do o[name] = value end
    for name, value in pairs(inputs) do o[name] = name == changed and x or value end
    o[0] = nil
    return call(o)
  end
  local sum, count, stats = loss_with()
  t.near(sum:item(), expected, 1e-10)
  t.equal({ count, stats.correct:item() }, { PAIRS, correct })
  for _, name in ipairs(trained) do gradients.check(function(x) return (loss_with(name, x)) end, inputs[name]) end
end

for _, case in ipairs { { "sigmoid", 0.3, 0.1, 0 }, { "robust", 0.3, 0, 0 }, { "robust", 0.5, 0.2, 0.7 },
  { "hinge", 0.4, 0, 0 }, { "hinge", 0.1, 0, 1 }, { "ipo", 0.3, 0, 0.5 } } do
  local variant, beta, e, alpha = unpack(case)
  t.test(("Dpo_%s_%g_%g_WithRpo_%g_IsTheFormula"):format(variant, beta, e, alpha), function()
    for seed = 1, 3 do
      check(losses.dpo, { variant = variant, beta = beta, label_smoothing = e, rpo_alpha = alpha }, draw(seed),
        seed == 1 and { "chosen", "rejected", alpha > 0 and "mean_chosen" or nil } or {}, function(of)
          local h = of "chosen" - of "rejected" - of "reference_chosen" + of "reference_rejected"
          return FORMULAS[variant](h, { beta = beta, e = e }) - alpha * of "mean_chosen", h
        end)
    end
  end)
end

local function without_reference(seed)
  local drawn = draw(seed)
  drawn.reference_chosen, drawn.reference_rejected = nil, nil
  return drawn
end

for _, case in ipairs { { "sigmoid", 0.3, 0.1, 1 }, { "hinge", 0.4, 0, 0.5 }, { "ipo", 0.3, 0, 0 },
  { "simpo", 2, 0, 0 }, { "simpo", 2.5, 0.1, 0.5, 1.5 } } do
  local variant, beta, e, alpha, gamma = unpack(case)
  t.test(("Cpo_%s_%g_%g_%g_IsTheFormula"):format(variant, beta, e, alpha), function()
    for seed = 1, 3 do
      check(losses.cpo, { variant = variant, beta = beta, label_smoothing = e, cpo_alpha = alpha, simpo_gamma = gamma },
        without_reference(seed), seed == 1 and { "chosen", "rejected", alpha > 0 and "mean_chosen" or nil } or {},
        function(of)
          local h = of "chosen" - of "rejected"
          return FORMULAS[variant](h, { beta = beta, e = e, gamma = gamma or 0.5 }) - alpha * of "mean_chosen", h
        end)
    end
  end)
end

t.test("OrpoIsTheFormula", function()
  for seed = 1, 3 do
    local inputs = without_reference(seed)
    inputs.mean_chosen = nil
    check(losses.orpo, { beta = 0.25 }, inputs, { "chosen", "rejected" }, function(of)
      local c, r = of "chosen", of "rejected"
      local log_odds = c - r - (math.log(1 - math.exp(c)) - math.log(1 - math.exp(r)))
      return -c - 0.25 * log_sigmoid(log_odds), c - r
    end)
  end
end)

t.test("OrpoIsFiniteForCertainAndForEmptyAnswers", function()
  for _, dtype in ipairs { torch.float32, torch.float64 } do
    local chosen = torch.tensor({ 0, -1, 0, -800, -1e-9 }, { dtype = dtype }):requires_grad_(true)
    local rejected = torch.tensor({ -1, 0, 0, -900, -1e-9 }, { dtype = dtype }):requires_grad_(true)
    local sum = losses.orpo { chosen = chosen, rejected = rejected }
    sum:backward()
    t.truthy(sum:isfinite():item(), "loss")
    t.truthy(chosen.grad:isfinite():all():item() and rejected.grad:isfinite():all():item(), "gradients")
    t.near(losses.orpo({ chosen = chosen[{ { 0, 1 } }], rejected = rejected[{ { 0, 1 } }] }):item(), 0, 1e-7)
  end
end)

t.test("KtoIsTheFormula", function()
  torch.manual_seed(4)
  local policy, reference = -torch.rand({ 6 }, F64) * 5, -torch.rand({ 6 }, F64) * 5
  local desirable = { 1, 0, 0, 1, 1, 0 }
  for _, kl in ipairs { -0.4, 0, 0.7 } do
    local expected, correct = 0, 0
    for i = 1, 6 do
      local h, z = (policy[i - 1] - reference[i - 1]):item(), math.max(kl, 0)
      local gain = desirable[i] == 1 and h - z or z - h
      expected = expected + (desirable[i] == 1 and 1.5 or 0.5) * (1 - 1 / (1 + math.exp(-0.2 * gain)))
      correct = correct + ((h > 0) == (desirable[i] == 1) and 1 or 0)
    end
    local function loss(x)
      return losses.kto { log_probs = x, reference = reference, desirable = torch.tensor(desirable), beta = 0.2,
        kl = torch.tensor(kl, F64), desirable_weight = 1.5, undesirable_weight = 0.5 }
    end
    local sum, count, stats = loss(policy)
    t.near(sum:item(), expected, 1e-12)
    t.equal({ count, stats.correct:item() }, { 6, correct })
    gradients.check(function(x) return (loss(x)) end, policy)
  end
end)

for _, case in ipairs { { 0, false }, { 0.3, false }, { 0, true }, { 0.02, true } } do
  local center, has_margin = unpack(case)
  t.test(("Reward_%g_%s_IsTheFormula"):format(center, has_margin and "WithMargins" or "Without"), function()
    local drawn = draw(5)
    local inputs = { chosen = drawn.chosen, rejected = drawn.rejected,
      margin = has_margin and drawn.mean_chosen:abs() or nil }
    check(losses.reward, { center = center }, inputs, { "chosen", "rejected" }, function(of)
      local h = of "chosen" - of "rejected"
      return -log_sigmoid(h - (has_margin and of "margin" or 0)) + center * (of "chosen" + of "rejected") ^ 2, h
    end)
    t.raises("losses.reward: center must be at least 0, got -1", losses.reward,
      { chosen = drawn.chosen, rejected = drawn.rejected, center = -1 })
  end)
end

t.test("MaskedPairsTakeNoPartEvenAsNaN", function()
  for _, case in ipairs { { losses.dpo, { variant = "hinge" }, draw(1) }, { losses.dpo, { variant = "robust",
    label_smoothing = 0.1, rpo_alpha = 1 }, draw(1) }, { losses.cpo, { variant = "simpo" }, without_reference(1) },
    { losses.cpo, {}, without_reference(1) }, { losses.orpo, {}, without_reference(1) },
    { losses.reward, { center = 0.1 }, without_reference(1) } } do
    local call, o, inputs = unpack(case)
    if call == losses.orpo or call == losses.reward then inputs.mean_chosen = nil end
    local kept = torch.tensor({ 0, 2, 3, 4, 5, 6 }, { dtype = torch.int64 })
    local alone = {}
    for name, value in pairs(o) do alone[name] = value end
    for name, value in pairs(inputs) do
      alone[name], o[name] = value:index_select(0, kept), value:clone()
      o[name][1] = 0 / 0
    end
    o.mask = torch.tensor { 1, 0, 1, 1, 1, 1, 1 }
    o.chosen:requires_grad_(true)
    local sum, count = call(o)
    sum:backward()
    t.near(sum:item(), call(alone):item(), 1e-12)
    t.equal({ count, o.chosen.grad[1]:item() }, { 6, 0 })
    t.truthy(o.chosen.grad:isfinite():all():item())
  end
end)

-- Pairs -----------------------------------------------------------------------------------------------------

--- A model whose log-probabilities are its only parameter.
local function model_of(log_probs)
  return function() return log_probs end
end

t.test("PairsAreScoredBySumsOrMeans", function()
  local log_probs = torch.tensor({ 9, -1, -2, 9, -4, 9, 9, -6 }, F64) -- 9: not counted
  local batch = { input_ids = torch.arange(8), lengths = torch.tensor({ { 3, 2 }, { 1, 2 } }, { dtype = torch.int64 }),
    loss_mask = torch.tensor { 0, 1, 1, 0, 1, 0, 0, 1 } }
  local sums, means = losses.pairs.score(model_of(log_probs), batch, "sigmoid")
  t.equal(sums:totable(), { { -3, -4 }, { 0, -6 } }) -- the second chosen answer is empty
  t.equal(means:totable(), { { -1.5, -4 }, { 0, -6 } })
  t.equal(losses.pairs.score(model_of(log_probs), batch, "simpo"):totable(), means:totable())
end)

t.test("APairLossIsTheLossItNames", function()
  local drawn = draw(9)
  local scores = torch.stack({ drawn.chosen, drawn.rejected }, 1)
  local means = torch.stack({ drawn.mean_chosen, drawn.rejected }, 1)
  local reference = torch.stack({ drawn.reference_chosen, drawn.reference_rejected }, 1)
  local function pair_loss(variant, more)
    local o = { scores = scores, means = means, reference = reference, variant = variant }
    for name, value in pairs(more or {}) do o[name] = value end
    return losses.pairs.loss(o):item()
  end
  local both = { chosen = drawn.chosen, rejected = drawn.rejected }
  local function with(o, more)
    local all = {}
    for _, part in ipairs { o, more } do
      for name, value in pairs(part) do all[name] = value end
    end
    return all
  end
  for _, variant in ipairs { "sigmoid", "hinge", "ipo", "robust" } do
    t.truthy(losses.pairs.needs_reference(variant))
    t.equal(pair_loss(variant, { rpo_alpha = 0.5 }),
      losses.dpo(with(drawn, { variant = variant, rpo_alpha = 0.5 })):item(), variant)
  end
  t.equal(pair_loss("orpo"), losses.orpo(both):item())
  t.equal(pair_loss("cpo", { label_smoothing = 0.1 }),
    losses.cpo(with(both, { label_smoothing = 0.1, mean_chosen = drawn.mean_chosen })):item())
  t.equal(pair_loss("simpo", { simpo_gamma = 1 }),
    losses.cpo(with(both, { variant = "simpo", simpo_gamma = 1 })):item())
  t.equal(losses.pairs.needs_reference("simpo"), false)
  t.raises('variant must be one of cpo, hinge, ipo, orpo, robust, sigmoid, simpo, got "sigmo"', pair_loss, "sigmo")
  t.raises('"ipo" needs a reference', losses.pairs.loss, { scores = scores, means = means, variant = "ipo" })
  t.raises('rpo_alpha must be 0 for variant = "orpo", got 1', pair_loss, "orpo", { rpo_alpha = 1 })
  t.raises('label_smoothing must be 0 for variant = "hinge", got 0.1', pair_loss, "hinge", { label_smoothing = 0.1 })
end)

t.test("WhatCannotBeRightIsAnError", function()
  local o = draw(1)
  o.mean_chosen = nil
  o.rpo_alpha = 1
  t.raises("losses.dpo: rpo_alpha is 1, but there is no mean_chosen", losses.dpo, o)
  o.rpo_alpha = -1
  t.raises("losses.dpo: rpo_alpha must be at least 0, got -1", losses.dpo, o)
  local both = { chosen = o.chosen, rejected = o.rejected }
  t.raises("losses.cpo: cpo_alpha is 1, but there is no mean_chosen", losses.cpo, both)
  both.simpo_gamma = 1
  t.raises('losses.cpo: simpo_gamma must be absent unless variant = "simpo", got 1', losses.cpo, both)
  t.raises("losses.orpo: rejected must have shape {7}, got {2}", losses.orpo,
    { chosen = o.chosen, rejected = torch.zeros { 2 } })
  t.raises("losses.kto: beta must be above 0, got 0", losses.kto,
    { log_probs = o.chosen, reference = o.rejected, desirable = torch.ones { 7 }, beta = 0 })
end)
