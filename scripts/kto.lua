-- Preference training without pairs (KTO): a model learns from answers that are labelled good or bad.
--
--     ./run scripts/kto.lua                                            # a small model learns to write words backwards
--     ./run scripts/kto.lua --set model=qwen --set data=answers.jsonl  # LoRA: writes an adapter
--
-- Each line of the file is {"prompt": [{"role": "user", "content": "..."}], "completion": [{"role": "assistant",
-- "content": "..."}], "label": true}; strings, messages with a label, and the pairs of dpo.lua are read, too: see
-- docs/scripts.md. Prompts may have pictures, as for dpo.lua. The reference is the model without its adapter, or with
-- lora.r=0 a second copy of the model. Answers that are longer than seq_len with their prompt are an error, or skipped
-- and listed with --set on_cut=drop.

local data = require "lockstep.data"
local dist = require "lockstep.distributed"
local images = require "lockstep.images"
local log = require "lockstep.log"
local lora = require "lockstep.lora"
local losses = require "lockstep.losses"
local models = require "lockstep.models"
local nn = require "lockstep.nn"
local optim = require "lockstep.optim"
local run = require "lockstep.run"
local sharding = require "lockstep.sharding"
local text = require "lockstep.text"
local torch = require "lockstep.torch"

local config = run.config({
  model = "", -- a folder of Hugging Face, or a name in its local cache; empty: a small model
  ignore = "", -- keys of config.json to pass over, split by commas
  data = "", split = "", -- empty: words, written backwards and wrongly; a split of the Hub, default "train"
  seed = 1, steps = 240, epochs = 0.0, -- epochs above 0 are the length, not steps
  answers_per_step = 64, held_out = 256, -- answers over all ranks
  renderer = "", roles = "", -- as in finetune.lua
  seq_len = 1024, -- tokens of a micro-batch, at most; a prompt with its answer must fit
  on_cut = "error", -- or "drop", which skips answers that do not
  loss = { beta = 0.1, desirable_weight = 1.0, undesirable_weight = 1.0 },
  lr = 0.0, -- 0: 1e-5 for an adapter, 1e-6 for all weights, 2e-3 for the small model
  schedule = "linear", warmup_steps = 10, -- or "cosine", "constant", "stable_decay"
  lora = { r = 8, alpha = 16, dropout = 0.0, targets = "all-linear" }, -- r = 0: all weights
  read_whole = false, -- whole weights of a folder in 4 or 8 bits, which parallel.tp and parallel.pp need
  neftune = 0.0, -- above 0: the size of noise on embeddings in training (NEFTune)
  max_norm = 1.0, save_every = 40,
  parallel = { tp = 1, cp = 1, ep = 1, pp = 1, fully_shard = false, -- the grid of ranks: docs/parallelism.md
    sequence = false, chunks = 1, order = "" }, -- with tp, and with pp; order = "": by the number of chunks
  precision = "auto", -- "bf16" on GPUs, "float32" on CPUs
}, { at_least = { seed = 0, steps = 1, answers_per_step = 2, seq_len = 1, warmup_steps = 0, save_every = 1,
  ["lora.r"] = 0 }, presets = sharding.presets })
torch.manual_seed(config.seed)
local dir, path = config.model, config.data
if dir == "" then
  dir = run.dir .. "/start"
  require("reverse_words").write_model(dir, { steps = 100 })
end
if path == "" then path = require("reverse_words").write_preferences(run.dir .. "/preferences.jsonl", 4000) end

local loading = { device = dist.device(), dtype = run.dtype(config.precision), ignore = config.ignore }
if config.lora.r == 0 or config.read_whole then -- else layers in 4 or 8 bits stay so
  loading.load_in_4bit, loading.load_in_8bit = false, false
end
local net, frozen = models.load(dir, loading), nil
local process = net.visual and images.processor(dir) or nil -- of models with pictures
local source = data.conversations(path, { roles = config.roles, split = config.split })
local samples, found = losses.unpaired.read(source, text.chat(dir), { tokenizer = text.tokenizer(dir),
  seq_len = config.seq_len, renderer = config.renderer, on_cut = config.on_cut, processor = process,
  desirable_weight = config.loss.desirable_weight, undesirable_weight = config.loss.undesirable_weight })
if #samples == 0 then error(path .. " has no answer to learn from", 0) end
local train, held_out = data.split(samples, { held_out = config.held_out, seed = config.seed,
  groups = found.rows }) -- both answers of a pair on the same side

if config.lora.r ~= 0 then
  log.print(("%d layers have an adapter"):format(lora.apply(net, config.lora)))
else
  frozen = sharding.parallel(models.load(dir, loading), config.parallel)
end
if config.neftune ~= 0 then nn.neftune(net, net:decoder().embed_tokens, { alpha = config.neftune }) end
-- A step without pictures leaves the vision tower out, on every rank alike.
local model, grid = sharding.parallel(net, config.parallel, { data_parallel = { find_unused = process ~= nil } })
local dealing = { seq_len = config.seq_len, grid = grid }
local lr = config.lr ~= 0 and config.lr or (config.model == "" and 2e-3 or config.lora.r ~= 0 and 1e-5 or 1e-6)
local optimizer = optim.AdamW(model:parameters(), { lr = lr, weight_decay = 0 })
local steps = optim.schedule.steps { steps = config.steps, epochs = config.epochs, samples = #train,
  samples_per_step = config.answers_per_step }
local schedule = optim.schedule.named(config.schedule, { warmup_steps = config.warmup_steps, total_steps = steps })
local loader = data.loader { source = train, seed = config.seed, rank = 0, world = 1 }
run:state({ model = model, optimizer = optimizer, loader = loader }, { every = config.save_every, keep = 2 })
run:resume()

local function score(scorer, batch)
  return losses.per_sequence(scorer(batch, "log_probs"), { seq_lens = batch.seq_lens, loss_mask = batch.loss_mask })
end

-- Gives batches the log-probabilities under the reference: without the adapter, its dropout and noise.
local function add_references(batches)
  local function infer(scorer)
    return sharding.infer(scorer, batches, function(batch) return score(scorer, batch) end)
  end
  local references = frozen and infer(frozen) or lora.disabled(model, infer, model)
  for i, batch in ipairs(batches) do batch.reference = references[i] end
  return batches
end

local function draw()
  local drawn = {}
  for i = 1, config.answers_per_step do drawn[i] = loader() end
  local others = losses.unpaired.mismatched(drawn, { seq_len = config.seq_len })
  return (losses.deal(drawn, dealing)), #others > 0 and losses.deal(others, dealing) or {}, #others
end

-- Returns the mean log-ratio over batches of all ranks, without a gradient.
local function divergence(batches)
  if #batches == 0 then return 0 end -- on every rank
  local i = 0
  add_references(batches)
  return (sharding.evaluate(model, function() i = i + 1 return batches[i] end, function(batch)
    return (score(model, batch) - batch.reference):sum(), batch.padding and 0 or #batch.seq_lens
  end))
end

local function loss_of(batch, kl)
  local o = { log_probs = score(model, batch), reference = batch.reference, desirable = batch.desirable, kl = kl,
    mask = torch.full({ #batch.seq_lens }, batch.padding and 0 or 1) }
  for name, value in pairs(config.loss) do o[name] = value end
  local sum, count, stats = losses.kto(o)
  return sum, count, stats.correct, stats.margin
end

for step, micro_batches, mismatched, num_mismatched in run:steps(draw, steps) do
  local kl = divergence(mismatched)
  add_references(micro_batches)
  local loss, accuracy, margin = sharding.accumulate(model, micro_batches, config.answers_per_step, function(batch)
    return loss_of(batch, kl)
  end, { whole = true })
  local grad_norm = optimizer:step(schedule(step), { max_grad_norm = config.max_norm })
  optimizer:zero_grad()
  log.step { loss = loss, kl = math.max(kl, 0), accuracy = accuracy, margin = margin, grad_norm = grad_norm,
    lr = optimizer.groups[1].lr * schedule(step),
    counts = { skipped = found.skipped, not_in_kl = config.answers_per_step - num_mismatched } }
end
log.curve("loss.svg", { "loss", "accuracy" }, { title = "kto" })

-- The share of held-out answers that became more probable if they are wanted, and less probable if not.
if #held_out > 0 then
  local batches = losses.each(held_out, config.answers_per_step, dealing)
  local function next_batch()
    local batch = batches()
    return batch and add_references({ batch })[1]
  end
  log.record("held out", { accuracy = sharding.evaluate(model, next_batch, function(b)
    local _, count, right = loss_of(b, 0)
    return right, count
  end) })
end
if config.lora.r > 0 then lora.save(model, run.dir .. "/result")
else models.save(model, run.dir .. "/result", { like = dir }) end
log.print("wrote " .. run.dir .. "/result")
