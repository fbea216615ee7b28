-- Trains a small vision-language model from scratch to look at a handwritten digit and write its name.
--
-- Data: 1,797 real digits of 8x8 pixels (a fifth of them held out), mixed with generated text, so that
-- micro-batches really are of two kinds. On 2 ranks of a 2-core machine it takes about a minute and a half, and
-- names at least 95 % of the held-out digits. Every rank reads everything below; who takes part is said where not
-- all do.

local batching = require "lockstep.batching"
local dist = require "lockstep.distributed"
local log = require "lockstep.log"
local optim = require "lockstep.optim"
local run = require "lockstep.run"
local sharding = require "lockstep.sharding"
local torch = require "lockstep.torch"
local digits = require "digits_data"
local model_of = require "digits_model"

local config = run.config({
  seed = 1,
  steps = 1000,
  eval_every = 200, -- steps
  save_every = 200,
  images_per_step = 64, -- over all ranks
  texts_per_step = 32,
  seq_len = 256, -- tokens of a micro-batch, at most
  lr = 1.5e-3,
  weight_decay = 0.05,
  warmup_steps = 40,
  max_norm = 1.0,
  precision = "float64", -- the order in which ranks add up leaves no trace: 1, 2 and 4 ranks draw the same curve
  parallel = "data_parallel", -- or "fully_shard": weights, gradients and moments are shared out over the ranks
  vision = { hidden = 64, heads = 4, depth = 2, patch_dim = 4, patches = 16 },
  text = { hidden = 64, heads = 4, depth = 2, intermediate = 192 },
}, { at_least = { seed = 0, steps = 1, eval_every = 1, save_every = 1, images_per_step = 0, texts_per_step = 0,
  seq_len = 1, warmup_steps = 0 } })

torch.set_default_dtype(run.dtype(config.precision))
torch.manual_seed(config.seed)
math.randomseed(config.seed)

-- Data: each step draws its samples alike on every rank, and each rank packs its own part of the plan.
local train, held_out = digits.load()

local function draw_step()
  local samples = {}
  for i = 1, config.images_per_step do
    samples[i] = digits.image_sample(digits.jitter(train[math.random(#train)], math.random))
  end
  for _ = 1, config.texts_per_step do samples[#samples + 1] = digits.text_sample(math.random) end
  local batches, report = batching.prepare { samples = samples, seq_len = config.seq_len, rank = dist.rank() }
  return { micro_batches = batches[dist.rank() + 1], report = report }
end

-- Held-out digits: each rank packs a shard of its own, and the shards' batches differ in number.
local function held_out_batches()
  local samples = {}
  local share = #held_out / dist.world_size()
  for i, digit in ipairs(held_out) do
    if math.floor((i - 1) / share) == dist.rank() then samples[#samples + 1] = digits.image_sample(digit) end
  end
  local batches = batching.prepare { samples = samples, seq_len = config.seq_len, ranks = 1 }
  local next_batch = 0
  return function()
    next_batch = next_batch + 1
    return batches[1][next_batch]
  end
end

-- Model and optimizer.
local net = model_of.VisionLanguageModel {
  vision = config.vision, text = config.text, vocab_size = digits.vocab_size, image_token = digits.IMAGE,
}
-- A micro-batch of text alone leaves the vision tower out: on every rank alike.
local model = sharding.parallel(net, config.parallel, { data_parallel = { find_unused = true } })
local optimizer = optim.AdamW(model:parameters(), { lr = config.lr, weight_decay = config.weight_decay })
local schedule = optim.schedule.warmup_cosine {
  warmup_steps = math.min(config.warmup_steps, config.steps), total_steps = config.steps,
}
log.print(("%d parameters; %d digits to learn from, %d held out; %d ranks"):format(net:num_parameters(), #train,
  #held_out, dist.world_size()))

-- Saved now and then, and when the run is asked to end: the same command with its --run-dir goes on from there.
run:state({ model = model, optimizer = optimizer }, { every = config.save_every, keep = 2 })
run:resume()

-- Loss per answer token over all held-out digits.
local function evaluate()
  return sharding.evaluate(model, held_out_batches(), function(batch)
    return model_of.loss_sum(model, batch), batch.loss_mask:sum()
  end)
end

-- Shows held-out digits to the model, 32 at a time, and reads what it writes.
local function describe(shown)
  local words = {}
  for first = 1, #shown, 32 do
    local prompts = {}
    for i = first, math.min(first + 31, #shown) do prompts[#prompts + 1] = digits.image_prompt_sample(shown[i]) end
    for _, tokens in ipairs(model_of.generate(net, prompts, 6)) do words[#words + 1] = digits.decode(tokens) end
  end
  return words
end

-- Training. A step is a few micro-batches, then one update; gradients are averaged over ranks in the last one.
for step, batch in run:steps(draw_step, config.steps) do
  local loss = sharding.accumulate(model, batch.micro_batches, batch.report.loss_tokens, function(micro_batch)
    return model_of.loss_sum(model, micro_batch), micro_batch.loss_mask:sum()
  end)
  local grad_norm = optimizer:step(schedule(step), { max_grad_norm = config.max_norm })
  optimizer:zero_grad()
  log.step { loss = loss, grad_norm = grad_norm, lr = config.lr * schedule(step), tokens = batch.report.tokens }
  if run:every(config.eval_every) then log.record("validation", { loss = evaluate() }) end
end

-- Accuracy: each rank reads every world_size-th held-out digit.
local right, seen, shown = 0, 0, {}
for i, digit in ipairs(held_out) do
  if (i - 1) % dist.world_size() == dist.rank() then shown[#shown + 1] = digit end
end
for i, word in ipairs(torch.no_grad(model.full, model, describe, shown)) do
  right, seen = right + (word == digits.word(shown[i].label) and 1 or 0), seen + 1
end
log.record("held-out digits", { accuracy = sharding.weighted_mean(right, seen) })

-- Prints some digits and the model's answers, on rank 0.
local few = {}
for i = 1, 5 do few[i] = held_out[i * 61] end
torch.no_grad(model.full, model, function()
  if dist.rank() == 0 then log.print("\n" .. digits.art(few, describe(few)) .. "\n") end
end)
local curve = log.curve("loss.svg", { "loss", "validation.loss" }, { title = "digits_vlm", log_scale = true })
log.print("metrics, configuration and " .. tostring(curve) .. " are in " .. run.dir)
