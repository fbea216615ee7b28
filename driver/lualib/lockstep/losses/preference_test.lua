-- losses.dpo, losses.distillation and losses.z_loss against their formulas.

local gradients = require "lockstep.losses.gradients_fixture"
local losses = require "lockstep.losses"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local F64 = { dtype = torch.float64 }
local CHOSEN, REJECTED = { -3.0, -5.0, -2.0 }, { -4.0, -4.5, -2.5 }
local REF_CHOSEN, REF_REJECTED = { -3.5, -4.0, -2.2 }, { -3.9, -4.6, -2.0 }

local function pairs_of(chosen)
  return { chosen = chosen or torch.tensor(CHOSEN, F64), rejected = torch.tensor(REJECTED, F64),
    reference_chosen = torch.tensor(REF_CHOSEN, F64), reference_rejected = torch.tensor(REF_REJECTED, F64) }
end

local function sigmoid(x) return 1 / (1 + math.exp(-x)) end

for _, case in ipairs { { "sigmoid", 0.1, 0 }, { "sigmoid", 0.5, 0.2 }, { "ipo", 0.1, 0 }, { "ipo", 0.7, 0 } } do
  local variant, beta, e = unpack(case)
  t.test(("Dpo_%s_%g_%g_IsTheFormulaInValueAndGradient"):format(variant, beta, e), function()
    local expected, correct, margin = 0, 0, 0
    for i = 1, 3 do
      local h = CHOSEN[i] - REF_CHOSEN[i] - (REJECTED[i] - REF_REJECTED[i])
      expected = expected + (variant == "ipo" and (h - 1 / (2 * beta)) ^ 2
        or -(1 - e) * math.log(sigmoid(beta * h)) - e * math.log(sigmoid(-beta * h)))
      correct, margin = correct + (h > 0 and 1 or 0), margin + beta * h
    end
    local function loss_of(name, x)
      local o = pairs_of()
      o[name], o.variant, o.beta, o.label_smoothing = x, variant, beta, e
      return losses.dpo(o)
    end

    local sum, count, stats = loss_of("chosen", torch.tensor(CHOSEN, F64))

    t.near(sum:item(), expected, 1e-12)
    t.equal({ count, stats.correct:item() }, { 3, correct })
    t.near(stats.margin:item(), margin, 1e-12)
    gradients.check(function(x) return (loss_of("chosen", x)) end, torch.tensor(CHOSEN, F64))
    gradients.check(function(x) return (loss_of("rejected", x)) end, torch.tensor(REJECTED, F64))
  end)
end

t.test("DpoOfTheReferenceItselfIsLogTwoAPair", function()
  local o = pairs_of()
  o.reference_chosen, o.reference_rejected = o.chosen, o.rejected
  local sum, _, stats = losses.dpo(o)
  t.near(sum:item(), 3 * math.log(2), 1e-12)
  t.equal(stats.correct:item(), 0)
end)

t.test("DpoLeavesMaskedPairsOutEvenAsNaN", function()
  for _, variant in ipairs { "sigmoid", "ipo" } do
    local chosen = torch.tensor({ -3.0, 0 / 0, -2.0 }, F64):requires_grad_(true)
    local o = pairs_of(chosen)
    o.variant, o.mask = variant, torch.tensor { 1, 0, 1 }
    local sum, count = losses.dpo(o)
    sum:backward()
    local alone = pairs_of()
    alone.variant = variant
    for _, name in ipairs { "chosen", "rejected", "reference_chosen", "reference_rejected" } do
      alone[name] = alone[name]:index_select(0, torch.tensor({ 0, 2 }, { dtype = torch.int64 }))
    end
    t.near(sum:item(), losses.dpo(alone):item(), 1e-12)
    t.equal(count, 2)
    t.equal(chosen.grad[1]:item(), 0)
    o.mask = torch.zeros { 3 }
    local nothing, none = losses.dpo(o)
    t.equal({ nothing:item(), none }, { 0, 0 })
  end
end)

t.test("DpoStaysFiniteWhereTheSigmoidSaturates", function()
  local o = pairs_of(torch.tensor({ -1e4, 1e4, 0 }, F64):requires_grad_(true))
  local sum = losses.dpo(o)
  sum:backward()
  t.truthy(sum:isfinite():item() and o.chosen.grad:isfinite():all():item())
end)

-- Distillation ----------------------------------------------------------------------------------------------

local function heads()
  torch.manual_seed(5)
  return torch.randn({ 5, 3 }, F64), torch.randn({ 4, 3 }, F64), torch.randn({ 5, 2 }, F64), torch.randn({ 4, 2 }, F64)
end

local function divergence(student, teacher, temperature, direction, mask)
  local sum = 0
  for i = 0, student:size(0) - 1 do
    local p = (teacher[i] / temperature):softmax(-1)
    local q = (student[i] / temperature):softmax(-1)
    if direction == "reverse" then p, q = q, p end
    if mask[i]:item() == 1 then sum = sum + (p * (p / q):log()):sum():item() end
  end
  return sum * temperature ^ 2
end

for _, direction in ipairs { "forward", "reverse" } do
  for _, temperature in ipairs { 1, 2.5 } do
    t.test(("Distillation_%s_%g_IsTheFormulaForAnyTile"):format(direction, temperature), function()
      local h, w, th, tw = heads()
      local mask = torch.tensor { 1, 0, 1, 1, 1 }
      local expected = divergence(h:matmul(w:t()), th:matmul(tw:t()), temperature, direction, mask)
      for _, tile in ipairs { 1, 2, 1024 } do
        local function loss(hidden, weight)
          return losses.distillation { hidden = hidden, weight = weight, teacher_hidden = th, teacher_weight = tw,
            loss_mask = mask, direction = direction, temperature = temperature, tile_tokens = tile }
        end
        local sum, count = loss(h, w)
        t.near(sum:item(), expected, 1e-12)
        t.equal(count, 4)
        if tile == 2 then
          gradients.check(function(x) return (loss(x, w)) end, h)
          gradients.check(function(x) return (loss(h, x)) end, w)
        end
      end
      local sum = losses.distillation { hidden = h:matmul(w:t()), teacher_hidden = th:matmul(tw:t()), loss_mask = mask,
        direction = direction, temperature = temperature }
      t.near(sum:item(), expected, 1e-12)
    end)
  end
end

t.test("ATeacherGetsNoGradientAndIsItsOwnBestStudent", function()
  local h, w, th, tw = heads()
  th:requires_grad_(true)
  h:requires_grad_(true)
  losses.distillation({ hidden = h, weight = w, teacher_hidden = th, teacher_weight = tw }):backward()
  t.equal(th.grad, nil)
  t.truthy(h.grad:abs():sum():item() > 0)
  local logits = torch.randn({ 3, 7 })
  t.near(losses.distillation({ hidden = logits, teacher_hidden = logits }):item(), 0, 1e-6)
  t.equal(losses.distillation({ hidden = logits:bfloat16(), teacher_hidden = logits }).dtype, torch.float32)
end)

t.test("ZLossIsTheSquareOfTheLogsumexp", function()
  local h, w = heads()
  local mask = torch.tensor { 1, 1, 0, 1, 0 }
  local expected = 0
  for i = 0, 4 do
    if mask[i]:item() == 1 then expected = expected + math.log((h[i]:matmul(w:t())):exp():sum():item()) ^ 2 end
  end
  for _, tile in ipairs { 2, 1024 } do
    local function loss(hidden, weight)
      return losses.z_loss { hidden = hidden, weight = weight, loss_mask = mask, tile_tokens = tile }
    end
    local sum, count = loss(h, w)
    t.near(sum:item(), expected, 1e-12)
    t.equal(count, 3)
    gradients.check(function(x) return (loss(x, w)) end, h)
    gradients.check(function(x) return (loss(h, x)) end, w)
  end
end)

t.test("OverTheVocabularyMaskedAndMissingTokensGiveZeros", function()
  local h, w, th, tw = heads()
  local function loss_of(name, hidden, mask)
    local o = { hidden = hidden, weight = w, loss_mask = mask }
    if name == "distillation" then o.teacher_hidden, o.teacher_weight = th[{ { 0, hidden:size(0) } }], tw end
    return losses[name](o)
  end
  for _, name in ipairs { "distillation", "z_loss" } do
    local broken = h:clone()
    broken[1] = 0 / 0
    broken:requires_grad_(true)
    local mask = torch.tensor { 1, 0, 1, 1, 1 }
    local sum = loss_of(name, broken, mask)
    sum:backward()
    t.equal(sum:item(), loss_of(name, h, mask):item(), name)
    t.equal(broken.grad[1], torch.zeros({ 3 }, F64))
    t.truthy(broken.grad:isfinite():all():item())
    for _, tokens in ipairs { 0, 5 } do
      local hidden = h[{ { 0, tokens } }]:clone():requires_grad_(true)
      local zero, count = loss_of(name, hidden, torch.zeros { tokens })
      zero:backward()
      t.equal({ zero:item(), count }, { 0, 0 })
      t.equal(hidden.grad, torch.zeros_like(hidden))
    end
  end
end)

t.test("WhatCannotBeRightIsAnError", function()
  local function raises(text, change)
    local o = pairs_of()
    for name, value in pairs(change) do o[name] = value end
    t.raises("losses.dpo: " .. text, losses.dpo, o)
  end
  raises("rejected must have shape {3}, got {2}", { rejected = torch.zeros { 2 } })
  raises("beta must be above 0, got 0", { beta = 0 })
  raises("label_smoothing must be from 0 to below 0.5, got 0.5", { label_smoothing = 0.5 })
  raises('label_smoothing must be 0 for variant = "ipo", got 0.1', { label_smoothing = 0.1, variant = "ipo" })
  raises('variant must be one of hinge, ipo, robust, sigmoid, got "sigmiod"; did you mean "sigmoid"?',
    { variant = "sigmiod" })
  t.raises('the option "reference_chosen" is missing', losses.dpo,
    { chosen = torch.zeros { 1 }, rejected = torch.zeros { 1 }, reference_rejected = torch.zeros { 1 } })
  local h, w, th, tw = heads()
  t.raises("the student's vocabulary has 4 tokens, the teacher's 3", losses.distillation,
    { hidden = h, weight = w, teacher_hidden = th, teacher_weight = tw[{ { 0, 3 } }] })
  t.raises("teacher_hidden must have shape [5, hidden], got float64 {4, 2}", losses.distillation,
    { hidden = h, weight = w, teacher_hidden = th[{ { 0, 4 } }], teacher_weight = tw })
  t.raises("weight must have shape [vocabulary, 3], got float64 {4, 2}", losses.z_loss, { hidden = h, weight = tw })
  t.raises("temperature must be above 0, got 0", losses.distillation,
    { hidden = h, weight = w, teacher_hidden = th, teacher_weight = tw, temperature = 0 })
end)
