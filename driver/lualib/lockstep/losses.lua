--- Losses of reinforcement learning, preferences and distillation. All of them return a sum and a count.
---
---     local log_probs = model(batch, "log_probs")
---     local sum, count, stats = losses.grpo { log_probs = log_probs, old_log_probs = batch.old_log_probs,
---       advantages = batch.advantages, loss_mask = batch.loss_mask }
---     torch.mul(sum, dist.world_size() / tokens_of_all_ranks):backward()
---
--- Divide by the count of all ranks and micro-batches: a mean of means is not the mean. Without a counted token, as in
--- a padding micro-batch, sum and count are 0, and backward gives gradients of 0. Values where the mask is 0 take no
--- part, NaN included. Computes in the dtype and on the device of its first input, float32 or float64.

local checkpoint = require "lockstep.checkpoint"
local checks = require "lockstep.losses.checks"
local dealing = require "lockstep.losses.dealing"
local options = require "lockstep.options"
local parts = require "lockstep.losses.parts"
local splits = require "lockstep.nn.splits"
local torch = require "lockstep.torch"

local check, check_choice, check_number = checks.tensor, checks.choice, checks.number
local fail, read_mask, describe = checks.fail, checks.read_mask, checks.describe
local preferences = require "lockstep.losses.preferences"

local M = { rollouts = require "lockstep.losses.rollouts", pairs = require "lockstep.losses.pairs",
  unpaired = require "lockstep.losses.unpaired", reward_functions = require "lockstep.losses.reward_functions",
  dpo = preferences.dpo, cpo = preferences.cpo, orpo = preferences.orpo, kto = preferences.kto,
  reward = preferences.reward, deal = dealing.deal, each = dealing.each }

-- Sequences -----------------------------------------------------------------------------------------------

--- Returns the number of the sequence that each token belongs to, int64 [T].
local function owners(caller, seq_lens, x)
  if type(seq_lens) ~= "table" then fail(caller, "seq_lens must be an array of lengths, got a %s", type(seq_lens)) end
  local total = 0
  for i, length in ipairs(seq_lens) do
    if type(length) ~= "number" or not (length >= 0 and length % 1 == 0) then
      fail(caller, "seq_lens[%d] must be a whole number of at least 0, got %s", i, tostring(length))
    end
    total = total + length
  end
  if total ~= x:size(0) then
    fail(caller, "seq_lens add up to %d tokens, but the tensors hold %d", total, x:size(0))
  end
  local index = torch.arange(#seq_lens)
  return index:repeat_interleave(torch.tensor(seq_lens, { dtype = torch.int64 })):to(x.device)
end

local function sums_of(x, owner, num_sequences)
  return torch.zeros({ num_sequences }, { dtype = x.dtype, device = x.device }):index_add(0, owner, x)
end

--- Returns the sum over each sequence's counted tokens, or with `mean` their mean. A sequence without counted tokens
--- gets 0. Differentiable.
---
---     local chosen = losses.per_sequence(model(batch, "log_probs"), { seq_lens = batch.seq_lens, loss_mask = mask })
---@param values torch.Tensor [T] float32 or float64
---@param opts {seq_lens: integer[], loss_mask: torch.Tensor?, mean: boolean?}
---@return torch.Tensor # [#seq_lens]
function M.per_sequence(values, opts)
  check("per_sequence", "values", values)
  local o = options.read("losses.per_sequence", opts, { seq_lens = options.required, loss_mask = options.optional,
    mean = false })
  local left_out = read_mask("per_sequence", "loss_mask", o.loss_mask, values)
  local owner = owners("per_sequence", o.seq_lens, values)
  local sums = sums_of(values:masked_fill(left_out, 0), owner, #o.seq_lens)
  if not o.mean then return sums end
  return sums / sums_of(left_out:logical_not():to(values.dtype), owner, #o.seq_lens):clamp_min(1)
end

-- Policy gradients ----------------------------------------------------------------------------------------

--- Returns the estimate of KL(policy || reference) at each token that the policy drew. With r = reference / policy, k1
--- is -log r, k2 is (log r)^2 / 2, and k3 is r - 1 - log r. The estimate k3 is unbiased, never below 0, and less noisy
--- than k1.
---
---     local kl = losses.kl(log_probs, reference)
---
--- Source: J. Schulman, "Approximating KL Divergence", joschu.net/blog/kl-approx.html, 2020.
---@param log_probs torch.Tensor [T] float32 or float64, of the policy
---@param reference torch.Tensor [T]
---@param opts {estimator: ("k1"|"k2"|"k3")?}? default "k3"
---@return torch.Tensor # [T]
function M.kl(log_probs, reference, opts)
  check("kl", "log_probs", log_probs)
  check("kl", "reference", reference, log_probs)
  local estimator = options.read("losses.kl", opts, { estimator = "k3" }).estimator
  check_choice("kl", "estimator", estimator, { "k1", "k2", "k3" })
  local log_ratio = reference:to(log_probs.dtype) - log_probs
  if estimator == "k1" then return -log_ratio end
  if estimator == "k2" then return log_ratio:square() / 2 end
  return log_ratio:expm1() - log_ratio
end

--- Returns each reward less the mean of its group, divided by the group's standard deviation plus 1e-4. The deviation
--- is a sample's, with n - 1. scale = "none" does not divide, as Dr. GRPO and prime-rl do. Equal rewards get 0.
---
---     local advantages = losses.advantages(rewards, { group_size = 8 })
---
--- Source: GRPO, arXiv 2402.03300; Dr. GRPO, arXiv 2503.20783.
---@param rewards torch.Tensor|number[] [N]: group after group
---@param opts {group_size: integer, scale: ("group"|"none")?}
---@return torch.Tensor # [N], float64 for an array
function M.advantages(rewards, opts)
  if type(rewards) == "table" and not torch.is_tensor(rewards) then
    rewards = torch.tensor(rewards, { dtype = torch.float64 })
  end
  check("advantages", "rewards", rewards)
  local o = options.read("losses.advantages", opts, { group_size = options.required, scale = "group" })
  check_choice("advantages", "scale", o.scale, { "group", "none" })
  check_number("advantages", "group_size", o.group_size, type(o.group_size) == "number" and o.group_size % 1 == 0
    and o.group_size >= 2, "a whole number of at least 2: one answer has nothing to be better than")
  if rewards:size(0) == 0 or rewards:size(0) % o.group_size ~= 0 then
    fail("advantages", "%d rewards are not groups of %d", rewards:size(0), o.group_size)
  end
  if not rewards:isfinite():all():item() then
    fail("advantages", "reward %d is not finite", rewards:isfinite():logical_not():nonzero()[{ 0, 0 }]:item())
  end
  local groups = rewards:view(-1, o.group_size)
  local centered = groups - groups:mean({ 1 }, { keepdim = true })
  -- Rounding leaves equal rewards a mean that differs from them.
  centered = centered:masked_fill(groups:amax({ 1 }, { keepdim = true }):eq(groups:amin({ 1 }, { keepdim = true })), 0)
  if o.scale == "group" then centered = centered / (groups:std({ 1 }, { keepdim = true, correction = 1 }) + 1e-4) end
  return centered:reshape(-1)
end

--- The variants and their default bounds.
local VARIANTS = {
  grpo = { clip_low = 0.2, clip_high = 0.2, per_sequence = true },
  dapo = { clip_low = 0.2, clip_high = 0.28 },
  dr_grpo = { clip_low = 0.2, clip_high = 0.2, per_sequence = true },
  prime_rl = { clip_low = 0.2, clip_high = 0.2 },
}

--- Returns what the sum of a variant is divided by: the answers for "grpo" and "dr_grpo", whose losses are means over
--- answers, and else the tokens.
---
---     local divisor = losses.grpo_divisor(config.variant, { tokens = report.loss_tokens, sequences = #samples })
---@param variant "grpo"|"dapo"|"dr_grpo"|"prime_rl"
---@param counts {tokens: integer, sequences: integer} over all ranks and micro-batches of the step
---@return integer
function M.grpo_divisor(variant, counts)
  check_choice("grpo_divisor", "variant", variant, { "dapo", "dr_grpo", "grpo", "prime_rl" })
  local o = options.read("losses.grpo_divisor", counts, { tokens = options.required, sequences = options.required })
  return VARIANTS[variant].per_sequence and o.sequences or o.tokens
end

---@class losses.GrpoOptions
---@field log_probs torch.Tensor [T] float32 or float64: of each token under the policy that learns
---@field advantages torch.Tensor [T]
---@field old_log_probs torch.Tensor? [T], under the policy that drew the tokens; default: log_probs, without gradient
---@field loss_mask torch.Tensor? [T]; default: every token counts
---@field seq_lens integer[]? the answers' lengths, for "grpo" and "dr_grpo"; default: one answer
---@field variant ("dapo"|"grpo"|"dr_grpo"|"prime_rl")? default "dapo"
---@field clip_low number? default 0.2
---@field clip_high number? default 0.2, for "dapo" 0.28
---@field max_tokens integer? of an answer, for "dr_grpo"
---@field reference torch.Tensor? [T], log-probabilities under the reference
---@field beta number? weight of losses.kl(log_probs, reference); default 0
---@field kl_tau number? "prime_rl" only: weight of (log ratio)^2; default 1e-3

--- Returns the policy-gradient loss of answers with advantages. With ratio = exp(log_probs - old_log_probs), a token's
--- loss is -min(ratio * A, clamp(ratio, 1 - clip_low, 1 + clip_high) * A) + beta * KL. Variants differ in the sum:
---
---   - "grpo" (arXiv 2402.03300): the mean over the tokens of each answer, added up; the count is of answers.
---   - "dapo" (arXiv 2503.14476): added up over tokens; the count is of tokens. Its upper bound is wider.
---   - "dr_grpo" (arXiv 2503.20783): tokens added up, divided by the constant max_tokens; the count is of answers.
---     Take advantages with scale = "none".
---   - "prime_rl" (arXiv 2602.04879 and 2602.02276, as prime-rl joins them): not the ratio is bounded but the change of
---     a probability. A token with A > 0 whose probability rose by more than clip_high gives no policy gradient, nor
---     one with A <= 0 whose probability fell by more than clip_low. A token's loss is -ratio * A + kl_tau *
---     (log ratio)^2; the count is of tokens.
---
---     local sum, count, stats = losses.grpo { log_probs = p, old_log_probs = old, advantages = a, loss_mask = mask }
---@param opts losses.GrpoOptions
---@return torch.Tensor sum of one element, in the dtype of log_probs
---@return integer count
---@return {clipped: torch.Tensor, kl: torch.Tensor, reference_kl: torch.Tensor} stats sums over tokens, without
--- gradient: tokens without a policy gradient, KL(old || new) by k3, KL to the reference
function M.grpo(opts)
  local o = options.read("losses.grpo", opts, { log_probs = options.required, advantages = options.required,
    old_log_probs = options.optional, loss_mask = options.optional, seq_lens = options.optional, variant = "dapo",
    clip_low = options.optional, clip_high = options.optional, max_tokens = options.optional,
    reference = options.optional, beta = 0, kl_tau = options.optional })
  check_choice("grpo", "variant", o.variant, { "dapo", "dr_grpo", "grpo", "prime_rl" })
  local variant = VARIANTS[o.variant]
  local low, high = o.clip_low or variant.clip_low, o.clip_high or variant.clip_high
  check_number("grpo", "clip_low", low, type(low) == "number" and low >= 0 and low <= 1, "a number from 0 to 1")
  check_number("grpo", "clip_high", high, type(high) == "number" and high >= 0, "a number of at least 0")
  check_number("grpo", "beta", o.beta, o.beta >= 0, "at least 0")
  check_number("grpo", "max_tokens", o.max_tokens, (o.variant == "dr_grpo") == (o.max_tokens ~= nil)
    and (o.max_tokens == nil or type(o.max_tokens) == "number" and o.max_tokens > 0),
    'a number above 0 for variant = "dr_grpo", and absent otherwise')
  check_number("grpo", "kl_tau", o.kl_tau, o.kl_tau == nil or o.variant == "prime_rl" and type(o.kl_tau) == "number",
    'a number, and is for variant = "prime_rl"')
  if o.beta > 0 and o.reference == nil then fail("grpo", "beta is %g, but there is no reference", o.beta) end
  check("grpo", "log_probs", o.log_probs)
  for _, name in ipairs { "advantages", "old_log_probs", "reference" } do
    if o[name] ~= nil then check("grpo", name, o[name], o.log_probs) end
  end
  local left_out, tokens = read_mask("grpo", "loss_mask", o.loss_mask, o.log_probs)
  -- Before any arithmetic: 0 times infinity is NaN, in backward too.
  local like = { dtype = o.log_probs.dtype, device = o.log_probs.device }
  local function counted(x) return x:to(like):masked_fill(left_out, 0) end

  local log_probs, advantages = counted(o.log_probs), counted(o.advantages)
  local old = counted((o.old_log_probs or o.log_probs):detach())
  local log_ratio = log_probs - old
  local ratio = log_ratio:exp()
  local loss, clipped
  if o.variant == "prime_rl" then
    local change = log_probs:detach():exp() - old:exp()
    clipped = torch.where(advantages:gt(0), change:gt(high), change:lt(-low))
    loss = (-ratio * advantages):masked_fill(clipped, 0) + (o.kl_tau or 1e-3) * log_ratio:square()
  else
    local bounded = ratio:clamp(1 - low, 1 + high) * advantages
    clipped = bounded:lt(ratio * advantages)
    loss = -torch.minimum(ratio * advantages, bounded)
  end
  local stats = { clipped = clipped:sum(), kl = M.kl(old, log_probs:detach()):sum(),
    reference_kl = torch.zeros({}, { dtype = old.dtype, device = old.device }) }
  if o.reference ~= nil then
    local kl = M.kl(log_probs, counted(o.reference:detach()))
    stats.reference_kl = kl:detach():sum()
    loss = loss + o.beta * kl
  end
  if not variant.per_sequence then return loss:sum(), tokens, stats end
  local seq_lens = o.seq_lens or { log_probs:size(0) }
  local owner = owners("grpo", seq_lens, log_probs)
  local lengths = sums_of(left_out:logical_not():to(log_probs.dtype), owner, #seq_lens)
  local sums = sums_of(loss:masked_fill(left_out, 0), owner, #seq_lens)
  return (sums / (o.max_tokens or lengths:clamp_min(1))):sum(), lengths:gt(0):sum():item(), stats
end

-- Losses over the vocabulary ------------------------------------------------------------------------------

--- Adds up fn(hidden_tile, weight, from, to), [rows], over tiles of tokens. Each tile is computed again in backward.
local function add_tiles(hidden, weight, tile_tokens, fn)
  local region = checkpoint.new { preserve_rng = false }
  local dtype = hidden.dtype == torch.float64 and torch.float64 or torch.float32
  local sum = hidden:narrow(0, 0, 0):sum():to(dtype)
  for from = 0, hidden:size(0) - 1, tile_tokens do
    local to = math.min(from + tile_tokens, hidden:size(0))
    sum = sum + region(function(h, w) return fn(h, w, from, to):sum() end, hidden[{ { from, to } }], weight)
  end
  return sum
end

--- Returns the logits of the whole vocabulary.
local function logits_of(hidden, weight)
  if splits.of(weight) then return splits.scores(hidden, weight) end
  local logits = weight == nil and hidden or torch.linear(hidden, weight)
  return logits.dtype == torch.float64 and logits or logits:to(torch.float32)
end

local function check_hidden(caller, prefix, hidden, weight, tokens)
  if not torch.is_tensor(hidden) or hidden:dim() ~= 2 or not hidden:is_floating_point()
      or tokens and hidden:size(0) ~= tokens then
    fail(caller, "%shidden must have shape [%s, hidden], got %s", prefix, tokens and tostring(tokens) or "T",
      describe(hidden))
  end
  if weight ~= nil and (not torch.is_tensor(weight) or weight:dim() ~= 2 or weight:size(1) ~= hidden:size(1)) then
    fail(caller, "%sweight must have shape [vocabulary, %d], got %s", prefix, hidden:size(1), describe(weight))
  end
  local split = weight ~= nil and splits.of(weight)
  return weight == nil and hidden:size(1) or split and split.total or weight:size(0)
end

---@class losses.DistillationOptions
---@field hidden torch.Tensor [T, hidden], of the student; without weight these are its logits, [T, vocabulary]
---@field weight torch.Tensor? [vocabulary, hidden], of the student's head
---@field teacher_hidden torch.Tensor [T, its hidden], or logits; gets no gradient
---@field teacher_weight torch.Tensor? [vocabulary, its hidden]
---@field loss_mask torch.Tensor? [T]; default: every token counts
---@field direction ("forward"|"reverse")? default "forward"
---@field temperature number? divides both logits; default 1
---@field tile_tokens integer? tokens whose logits are held at a time; default 1,024

--- Returns the divergence of a student's distributions from a teacher's, times temperature^2, which keeps the size
--- of gradients. "forward" is KL(teacher || student), which covers all that the teacher does. "reverse" is
--- KL(student || teacher), which avoids what the teacher would not do. With weights, the logits of all tokens are never
--- held. Weights may be parts of a head (sharding.tensor_parallel); then each rank holds scores of its part of the
--- student's vocabulary.
---
---     local sum, count = losses.distillation { hidden = model:hidden(batch), weight = model:head_weight(),
---       teacher_hidden = torch.no_grad(teacher.hidden, teacher, batch), teacher_weight = teacher:head_weight() }
---
--- Source: forward, arXiv 1503.02531; reverse, arXiv 2306.08543; both, arXiv 2306.13649.
---@param opts losses.DistillationOptions
---@return torch.Tensor sum of one element, float32 (float64 for such input)
---@return integer count of tokens
function M.distillation(opts)
  local o = options.read("losses.distillation", opts, { hidden = options.required, weight = options.optional,
    teacher_hidden = options.required, teacher_weight = options.optional, loss_mask = options.optional,
    direction = "forward", temperature = 1, tile_tokens = 1024 })
  check_choice("distillation", "direction", o.direction, { "forward", "reverse" })
  check_number("distillation", "temperature", o.temperature, o.temperature > 0, "above 0")
  check_number("distillation", "tile_tokens", o.tile_tokens, o.tile_tokens >= 1, "at least 1")
  local size = check_hidden("distillation", "", o.hidden, o.weight)
  local of_teacher = check_hidden("distillation", "teacher_", o.teacher_hidden, o.teacher_weight, o.hidden:size(0))
  if size ~= of_teacher then
    fail("distillation", "the student's vocabulary has %d tokens, the teacher's %d", size, of_teacher)
  end
  local left_out, count = read_mask("distillation", "loss_mask", o.loss_mask, o.hidden)
  local rows = left_out:unsqueeze(-1)
  local teacher = o.teacher_hidden:detach():masked_fill(rows, 0)
  local split = o.weight and splits.of(o.weight)
  local hidden = o.hidden:masked_fill(rows, 0)
  if split then hidden = parts.shared(split.owner, hidden) end
  local sum = add_tiles(hidden, o.weight, o.tile_tokens, function(h, w, from, to)
    local student = split and parts.log_softmax(split.owner, parts.scores(h, w) / o.temperature)
      or (logits_of(h, w) / o.temperature):log_softmax(-1)
    local target = torch.no_grad(function()
      local logits = logits_of(teacher[{ { from, to } }], o.teacher_weight) / o.temperature
      local whole = logits:log_softmax(-1)
      return split and parts.own(split, whole, w:size(0)) or whole
    end)
    if o.direction == "reverse" then student, target = target, student end
    local terms = target:exp() * (target - student)
    local divergence = split and parts.sum(split.owner, terms) or terms:sum({ -1 })
    return divergence:masked_fill(left_out[{ { from, to } }], 0)
  end)
  return sum * o.temperature ^ 2, count
end

--- Returns the sum of the squares of logsumexp(logits), which keeps logits near 0. Add it to a loss with a small
--- weight, such as 1e-4; tiled_mlp.cross_entropy has it as an option.
---
---     local sum, count = losses.z_loss { hidden = model:hidden(batch), weight = model:head_weight() }
---
--- Source: PaLM, arXiv 2204.02311, section 5.
---@param opts {hidden: torch.Tensor, weight: torch.Tensor?, loss_mask: torch.Tensor?, tile_tokens: integer?} as for
--- losses.distillation
---@return torch.Tensor sum of one element, float32 (float64 for such input)
---@return integer count of tokens
function M.z_loss(opts)
  local o = options.read("losses.z_loss", opts, { hidden = options.required, weight = options.optional,
    loss_mask = options.optional, tile_tokens = 1024 })
  check_number("z_loss", "tile_tokens", o.tile_tokens, o.tile_tokens >= 1, "at least 1")
  check_hidden("z_loss", "", o.hidden, o.weight)
  local left_out, count = read_mask("z_loss", "loss_mask", o.loss_mask, o.hidden)
  local split = o.weight and splits.of(o.weight)
  local hidden = o.hidden:masked_fill(left_out:unsqueeze(-1), 0)
  if split then hidden = parts.shared(split.owner, hidden) end
  return add_tiles(hidden, o.weight, o.tile_tokens, function(h, w, from, to)
    local total = split and parts.logsumexp(split.owner, parts.scores(h, w)) or logits_of(h, w):logsumexp({ -1 })
    return total:square():masked_fill(left_out[{ { from, to } }], 0)
  end), count
end

return M
