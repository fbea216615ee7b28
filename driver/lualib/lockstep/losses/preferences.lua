--- Losses of preferences: DPO, CPO, SimPO, ORPO, KTO and reward models, with the formulas of TRL. Required by
--- lockstep.losses.

local checks = require "lockstep.losses.checks"
local options = require "lockstep.options"
local torch = require "lockstep.torch"

local M = {}

--- Returns a function that sets an input to 0 where the mask is 0, in the dtype of the first; where the mask is 0; and
--- how many pairs count. 0 times infinity is NaN, in backward too, so inputs are masked before any arithmetic.
local function reader(caller, o, first, others)
  checks.tensor(caller, first, o[first])
  for _, name in ipairs(others) do
    if o[name] ~= nil then checks.tensor(caller, name, o[name], o[first]) end
  end
  local left_out, count = checks.read_mask(caller, "mask", o.mask, o[first])
  local like = { dtype = o[first].dtype, device = o[first].device }
  return function(x) return x:to(like):masked_fill(left_out, 0) end, left_out, count
end

local function check_positive(caller, name, value)
  checks.number(caller, name, value, type(value) == "number" and value > 0, "above 0")
end

local function check_weight(caller, name, value)
  checks.number(caller, name, value, type(value) == "number" and value >= 0 and value < math.huge, "at least 0")
end

local SMOOTHED = { sigmoid = true, robust = true, simpo = true }

local function check_smoothing(caller, variant, e)
  checks.number(caller, "label_smoothing", e, type(e) == "number" and e >= 0 and e < 0.5, "from 0 to below 0.5")
  checks.number(caller, "label_smoothing", e, e == 0 or SMOOTHED[variant] ~= nil, ('0 for variant = "%s"')
    :format(variant))
end

--- Returns the loss of each margin h between the chosen and the rejected answer.
local function of_margins(variant, h, beta, e)
  if variant == "ipo" then return (h - 1 / (2 * beta)):square() end
  if variant == "hinge" then return torch.relu(1 - beta * h) end
  local right, wrong = torch.log_sigmoid(beta * h), torch.log_sigmoid(-beta * h)
  if variant == "robust" then return (right * (e - 1) + wrong * e) / (1 - 2 * e) end
  return right * (e - 1) - wrong * e
end

local function result(loss, left_out, count, h, scaled)
  return loss:masked_fill(left_out, 0):sum(), count,
    { correct = h:detach():gt(0):sum(), margin = scaled:detach():sum() }
end

---@class losses.DpoOptions
---@field chosen torch.Tensor [N] float32 or float64: the log-probability of each chosen answer
---@field rejected torch.Tensor [N]
---@field reference_chosen torch.Tensor [N], under the reference
---@field reference_rejected torch.Tensor [N]
---@field beta number? default 0.1
---@field variant ("sigmoid"|"hinge"|"ipo"|"robust")? default "sigmoid"
---@field label_smoothing number? the probability that a preference is the wrong way round; default 0
---@field rpo_alpha number? weight of the chosen answer's negative log-likelihood; default 0
---@field mean_chosen torch.Tensor? [N], the mean over a chosen answer's tokens; for rpo_alpha
---@field mask torch.Tensor? [N]; default: every pair counts

--- Returns the loss of preferring chosen answers to rejected ones. Let h = (chosen - reference_chosen) - (rejected -
--- reference_rejected), and e the label smoothing. The variants have TRL's names:
---
---   - "sigmoid": -(1 - e) log sigmoid(beta h) - e log sigmoid(-beta h).
---   - "robust": (-(1 - e) log sigmoid(beta h) + e log sigmoid(-beta h)) / (1 - 2 e), unbiased where a share e of the
---     preferences is the wrong way round.
---   - "hinge": max(0, 1 - beta h).
---   - "ipo": (h - 1 / (2 beta))^2. Give means over an answer's tokens, for the others sums.
---
--- With rpo_alpha each pair's loss has rpo_alpha * -mean_chosen in addition. (TRL divides this term by the tokens of
--- the micro-batch, the paper by the answer's, as here.)
---
---     local chosen = losses.per_sequence(model(batch, "log_probs"), { seq_lens = batch.seq_lens, loss_mask = mask })
---     local sum, count, stats = losses.dpo { chosen = chosen, rejected = rejected,
---       reference_chosen = batch.reference_chosen, reference_rejected = batch.reference_rejected }
---
--- Source: DPO, arXiv 2305.18290; smoothing, E. Mitchell's note on conservative DPO, 2023; robust, arXiv 2403.00409;
--- hinge, SLiC, arXiv 2305.10425; IPO, arXiv 2310.12036; RPO, arXiv 2404.19733.
---@param opts losses.DpoOptions
---@return torch.Tensor sum of one element, over the counted pairs
---@return integer count of pairs
---@return {correct: torch.Tensor, margin: torch.Tensor} stats sums over pairs, without gradient: h > 0; beta h
function M.dpo(opts)
  local o = options.read("losses.dpo", opts, { chosen = options.required, rejected = options.required,
    reference_chosen = options.required, reference_rejected = options.required, beta = 0.1, variant = "sigmoid",
    label_smoothing = 0, rpo_alpha = 0, mean_chosen = options.optional, mask = options.optional })
  checks.choice("dpo", "variant", o.variant, { "hinge", "ipo", "robust", "sigmoid" })
  check_positive("dpo", "beta", o.beta)
  check_smoothing("dpo", o.variant, o.label_smoothing)
  check_weight("dpo", "rpo_alpha", o.rpo_alpha)
  if o.rpo_alpha > 0 and o.mean_chosen == nil then
    checks.fail("dpo", "rpo_alpha is %g, but there is no mean_chosen", o.rpo_alpha)
  end
  local counted, left_out, count = reader("dpo", o, "chosen",
    { "rejected", "reference_chosen", "reference_rejected", "mean_chosen" })

  local h = counted(o.chosen) - counted(o.reference_chosen:detach()) - counted(o.rejected)
    + counted(o.reference_rejected:detach())
  local loss = of_margins(o.variant, h, o.beta, o.label_smoothing)
  if o.rpo_alpha > 0 then loss = loss - o.rpo_alpha * counted(o.mean_chosen) end
  return result(loss, left_out, count, h, o.beta * h)
end

---@class losses.CpoOptions
---@field chosen torch.Tensor [N] float32 or float64: the log-probability of each chosen answer
---@field rejected torch.Tensor [N]
---@field beta number? default 0.1; the paper of SimPO has 2 to 2.5
---@field variant ("sigmoid"|"hinge"|"ipo"|"simpo")? default "sigmoid"
---@field label_smoothing number? of "sigmoid" and "simpo"; default 0
---@field simpo_gamma number? the margin that "simpo" asks for; default 0.5
---@field cpo_alpha number? weight of the chosen answer's negative log-likelihood; default 1, for "simpo" 0
---@field mean_chosen torch.Tensor? [N], the mean over a chosen answer's tokens; for cpo_alpha
---@field mask torch.Tensor? [N]; default: every pair counts

--- Returns CPO's loss of preferring chosen answers, without a reference. With h = chosen - rejected the variants are
--- those of losses.dpo, and "simpo" is "sigmoid" of h - simpo_gamma / beta. For "simpo" and "ipo" give means over an
--- answer's tokens, for the others sums. Each pair's loss has cpo_alpha * -mean_chosen in addition.
---
---     local sum, count, stats = losses.cpo { chosen = means[1], rejected = means[2], variant = "simpo", beta = 2 }
---
--- Source: CPO, arXiv 2401.08417; SimPO, arXiv 2405.14734.
---@param opts losses.CpoOptions
---@return torch.Tensor sum of one element, over the counted pairs
---@return integer count of pairs
---@return {correct: torch.Tensor, margin: torch.Tensor} stats sums over pairs, without gradient: h > 0; beta h
function M.cpo(opts)
  local o = options.read("losses.cpo", opts, { chosen = options.required, rejected = options.required, beta = 0.1,
    variant = "sigmoid", label_smoothing = 0, simpo_gamma = options.optional, cpo_alpha = options.optional,
    mean_chosen = options.optional, mask = options.optional })
  checks.choice("cpo", "variant", o.variant, { "hinge", "ipo", "sigmoid", "simpo" })
  check_positive("cpo", "beta", o.beta)
  check_smoothing("cpo", o.variant, o.label_smoothing)
  checks.number("cpo", "simpo_gamma", o.simpo_gamma, o.simpo_gamma == nil or o.variant == "simpo",
    'absent unless variant = "simpo"')
  local gamma, alpha = o.simpo_gamma or 0.5, o.cpo_alpha or o.variant == "simpo" and 0 or 1
  check_weight("cpo", "simpo_gamma", gamma)
  check_weight("cpo", "cpo_alpha", alpha)
  if alpha > 0 and o.mean_chosen == nil then
    checks.fail("cpo", "cpo_alpha is %g, but there is no mean_chosen", alpha)
  end
  local counted, left_out, count = reader("cpo", o, "chosen", { "rejected", "mean_chosen" })

  local h = counted(o.chosen) - counted(o.rejected)
  local loss = of_margins(o.variant, o.variant == "simpo" and h - gamma / o.beta or h, o.beta, o.label_smoothing)
  if alpha > 0 then loss = loss - alpha * counted(o.mean_chosen) end
  return result(loss, left_out, count, h, o.beta * h)
end

--- Returns ORPO's loss, without a reference: -chosen + beta * -log sigmoid(log odds(chosen) - log odds(rejected)), with
--- odds(x) = e^x / (1 - e^x). Give means over an answer's tokens. An answer without tokens has the mean 0, a certainty.
--- (TRL's first term also counts the prompt's tokens; the paper's and this one do not.)
---
---     local sum, count, stats = losses.orpo { chosen = means[1], rejected = means[2], beta = 0.1 }
---
--- Source: ORPO, arXiv 2403.07691.
---@param opts {chosen: torch.Tensor, rejected: torch.Tensor, beta: number?, mask: torch.Tensor?} [N] each; beta: 0.1
---@return torch.Tensor sum of one element, over the counted pairs
---@return integer count of pairs
---@return {correct: torch.Tensor, margin: torch.Tensor} stats sums over pairs, without gradient: chosen > rejected;
--- beta times their difference
function M.orpo(opts)
  local o = options.read("losses.orpo", opts, { chosen = options.required, rejected = options.required, beta = 0.1,
    mask = options.optional })
  check_positive("orpo", "beta", o.beta)
  local counted, left_out, count = reader("orpo", o, "chosen", { "rejected" })
  local chosen, rejected = counted(o.chosen):clamp_max(0), counted(o.rejected)
  local h = chosen - rejected
  -- A rejected answer with probability 1 has infinite odds. The largest finite ones keep the loss finite.
  rejected = rejected:clamp_max(rejected.dtype == torch.float64 and -2 ^ -53 or -2 ^ -24)
  -- -log sigmoid of the log odds' difference is log((a + b) / a), with a and b the odds by cross-multiplication. The
  -- difference itself would be infinity at chosen = 0, and its gradient NaN. Scaling by the larger of the two
  -- probabilities keeps small ones from becoming 0.
  local scale = torch.maximum(chosen, rejected):detach()
  local a = (chosen - scale):exp() * -rejected:expm1()
  local b = (rejected - scale):exp() * -chosen:expm1()
  local odds = (a + b):log() + scale - chosen - (-rejected:expm1()):log()
  return result(-chosen + o.beta * odds, left_out, count, h, o.beta * h)
end

---@class losses.KtoOptions
---@field log_probs torch.Tensor [N] float32 or float64: the log-probability of each answer, summed over its tokens
---@field reference torch.Tensor [N], under the reference
---@field desirable torch.Tensor [N], 1 or true for answers that are wanted, and 0 or false for the others
---@field kl (number|torch.Tensor)? the mean log-ratio of answers to other prompts, over all ranks; default 0
---@field beta number? default 0.1
---@field desirable_weight number? default 1
---@field undesirable_weight number? default 1
---@field mask torch.Tensor? [N]; default: every answer counts

--- Returns KTO's loss of single answers that are wanted or not. With h = log_probs - reference and z = max(kl, 0) it is
--- desirable_weight * (1 - sigmoid(beta (h - z))) for wanted answers, and undesirable_weight * (1 - sigmoid(beta (z -
--- h))) for the others. No gradient flows into kl.
---
---     local sum, count, stats = losses.kto { log_probs = sums, reference = batch.reference,
---       desirable = batch.desirable, kl = kl }
---
--- Source: KTO, arXiv 2402.01306.
---@param opts losses.KtoOptions
---@return torch.Tensor sum of one element, over the counted answers
---@return integer count of answers
---@return {correct: torch.Tensor, margin: torch.Tensor} stats sums, without gradient: answers with h on the right side
--- of 0; beta h, with its sign turned where an answer is not wanted
function M.kto(opts)
  local o = options.read("losses.kto", opts, { log_probs = options.required, reference = options.required,
    desirable = options.required, kl = options.optional, beta = 0.1, desirable_weight = 1, undesirable_weight = 1,
    mask = options.optional })
  check_positive("kto", "beta", o.beta)
  check_weight("kto", "desirable_weight", o.desirable_weight)
  check_weight("kto", "undesirable_weight", o.undesirable_weight)
  local counted, left_out, count = reader("kto", o, "log_probs", { "reference" })
  local undesirable = checks.read_mask("kto", "desirable", o.desirable, o.log_probs)
  local kl = torch.is_tensor(o.kl) and o.kl:detach():item() or o.kl or 0
  checks.number("kto", "kl", kl, type(kl) == "number" and kl == kl, "a number")

  local h = counted(o.log_probs) - counted(o.reference:detach())
  local sign = 1 - 2 * undesirable:to(h.dtype)
  local loss = torch.sigmoid(-o.beta * sign * (h - math.max(kl, 0)))
  loss = torch.where(undesirable, o.undesirable_weight * loss, o.desirable_weight * loss)
  return result(loss, left_out, count, h * sign, o.beta * sign * h)
end

---@class losses.RewardOptions
---@field chosen torch.Tensor [N] float32 or float64: the score of each chosen answer
---@field rejected torch.Tensor [N]
---@field margin torch.Tensor? [N]: how much better the chosen answer is; default 0
---@field center number? weight of (chosen + rejected)^2, which keeps scores around 0; default 0
---@field mask torch.Tensor? [N]; default: every pair counts

--- Returns the loss of a reward model by pairs (Bradley and Terry): -log sigmoid(chosen - rejected - margin), and
--- center * (chosen + rejected)^2 in addition. These are TRL's RewardTrainer's.
---
---     local scores = model(batch):view(-1, 2)
---     local sum, count, stats = losses.reward { chosen = scores:select(1, 0), rejected = scores:select(1, 1) }
---
--- Source: arXiv 2203.02155; margins, Llama 2, arXiv 2307.09288; centering, arXiv 2312.09244.
---@param opts losses.RewardOptions
---@return torch.Tensor sum of one element, over the counted pairs
---@return integer count of pairs
---@return {correct: torch.Tensor, margin: torch.Tensor} stats sums over pairs, without gradient: chosen > rejected;
--- chosen - rejected
function M.reward(opts)
  local o = options.read("losses.reward", opts, { chosen = options.required, rejected = options.required,
    margin = options.optional, center = 0, mask = options.optional })
  check_weight("reward", "center", o.center)
  local counted, left_out, count = reader("reward", o, "chosen", { "rejected", "margin" })

  local chosen, rejected = counted(o.chosen), counted(o.rejected)
  local h = chosen - rejected
  local loss = -torch.log_sigmoid(o.margin and h - counted(o.margin:detach()) or h)
  if o.center > 0 then loss = loss + o.center * (chosen + rejected):square() end
  return result(loss, left_out, count, h, h)
end

return M
