-- Preference training (DPO): a model learns to give chosen answers, and not the rejected ones.
--
--     ./run scripts/dpo.lua                                          # a small model learns to write words backwards
--     ./run scripts/dpo.lua --set model=qwen --set data=pairs.jsonl  # LoRA: writes an adapter
--
-- Each line of the file is {"prompt": [{"role": "user", "content": "..."}], "chosen": [{"role": "assistant", "content":
-- "..."}], "rejected": [...]}, and may have "tools"; strings, pairs without a prompt and ShareGPT's are read, too: see
-- docs/chat.md. `data` may also be the name of a data set in the Hub's cache. A prompt may have pictures: {"type":
-- "image", "path": "cat.png"}, or columns `images` or `image` as TRL has them. Every message of the assistant behind
-- the prompt is scored. Pairs without a difference are skipped and listed. Pairs longer than seq_len are an error, or
-- skipped, too, with --set on_cut=drop. Log-probabilities under the model as it began are computed once, and kept in
-- the run's folder; orpo, cpo and simpo need none.

local data = require "lockstep.data"
local dist = require "lockstep.distributed"
local files = require "lockstep.files"
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
  pairs_per_step = 32, held_out = 256, -- pairs over all ranks
  renderer = "", roles = "", -- as in finetune.lua
  seq_len = 1024, -- tokens of a micro-batch, at most; both conversations of a pair must fit
  on_cut = "error", -- or "drop", which skips pairs that do not
  -- variant: or "hinge", "ipo", "robust"; without a reference "orpo", "cpo", "simpo" (with beta = 2)
  loss = { variant = "sigmoid", beta = 0.1, label_smoothing = 0.0, rpo_alpha = 0.0, simpo_gamma = 0.5 },
  lr = 0.0, -- 0: 1e-5 for an adapter, 1e-6 for all weights, 2e-3 for the small model
  schedule = "linear", warmup_steps = 10, -- or "cosine", "constant", "stable_decay"
  lora = { r = 8, alpha = 16, dropout = 0.0, targets = "all-linear" }, -- r = 0: all weights
  read_whole = false, -- whole weights of a folder in 4 or 8 bits, which parallel.tp and parallel.pp need
  neftune = 0.0, -- above 0: the size of noise on embeddings in training (NEFTune)
  max_norm = 1.0, save_every = 40,
  parallel = { tp = 1, cp = 1, ep = 1, pp = 1, fully_shard = false, -- the grid of ranks: docs/parallelism.md
    sequence = false, chunks = 1, order = "" }, -- with tp, and with pp; order = "": by the number of chunks
  precision = "auto", -- "bf16" on GPUs, "float32" on CPUs
}, { at_least = { seed = 0, steps = 1, pairs_per_step = 1, seq_len = 1, warmup_steps = 0, save_every = 1,
  ["lora.r"] = 0 }, presets = sharding.presets })
torch.manual_seed(config.seed)
assert(config.on_cut == "error" or config.on_cut == "drop", "--set on_cut takes error or drop: a pair cannot be cut")
local dir, path = config.model, config.data
if dir == "" then
  dir = run.dir .. "/start"
  require("reverse_words").write_model(dir, { steps = 100 })
end
if path == "" then path = require("reverse_words").write_preferences(run.dir .. "/preferences.jsonl", 4000) end

local packed = nil -- layers in 4 or 8 bits stay so, but where all weights are trained or read_whole says so
if config.lora.r == 0 or config.read_whole then packed = false end
local net = models.load(dir, { device = dist.device(), dtype = run.dtype(config.precision), ignore = config.ignore,
  load_in_4bit = packed, load_in_8bit = packed })
local process = net.visual and images.processor(dir) or nil -- of models with pictures

-- Pairs as samples for batching: the chosen conversation, then the rejected one. Lists those that are skipped.
local source = data.conversations(path, { kind = "preference", roles = config.roles, split = config.split })
local samples, found = losses.pairs.read(source, text.chat(dir), { tokenizer = text.tokenizer(dir),
  seq_len = config.seq_len, renderer = config.renderer, on_cut = config.on_cut, processor = process })
if #samples == 0 then error(path .. " has no pair to learn from", 0) end
local train, held_out = data.split(samples, { held_out = config.held_out, seed = config.seed })

if config.lora.r ~= 0 then log.print(("%d layers have an adapter"):format(lora.apply(net, config.lora))) end
if config.neftune ~= 0 then nn.neftune(net, net:decoder().embed_tokens, { alpha = config.neftune }) end
-- A step without pictures leaves the vision tower out, on every rank alike.
local model, grid = sharding.parallel(net, config.parallel, { data_parallel = { find_unused = process ~= nil } })
local dealing = { seq_len = config.seq_len, grid = grid }

local function score(batch) return losses.pairs.score(model, batch, config.loss.variant) end

-- Returns both log-probabilities of each pair. Called before run:resume, it takes the weights as they began.
local function reference_of_all()
  local file = run.dir .. "/reference.safetensors"
  local note = { made_from = table.concat({ dir, config.loss.variant, found.tokens, found.loss_tokens,
    files.checksum_of(found.ids) }, " ") }
  local ok, kept, of = pcall(data.safetensors, file)
  if dist.all_gather_object(ok and of.made_from == note.made_from)[1] then return kept.log_probs end
  local log_probs = torch.zeros { #samples, 2 }
  for batch, before in losses.each(samples, config.pairs_per_step, dealing) do
    local rows, scores = torch.tensor(batch.samples, { dtype = torch.int64 }) + (before - 1),
      sharding.infer(model, { batch }, score)[1]
    if not batch.padding then log_probs:index_copy_(0, rows, scores:to("cpu", torch.float32)) end
  end
  dist.all_reduce(log_probs, "sum", { group = grid:group "dp" })
  if dist.rank() == 0 then data.save_safetensors(file, { log_probs = log_probs }, { metadata = note }) end
  dist.barrier()
  return log_probs
end
if losses.pairs.needs_reference(config.loss.variant) then
  for i, log_probs in ipairs(reference_of_all():split(1)) do samples[i].reference = log_probs end
end

local lr = config.lr ~= 0 and config.lr or (config.model == "" and 2e-3 or config.lora.r ~= 0 and 1e-5 or 1e-6)
local optimizer = optim.AdamW(model:parameters(), { lr = lr, weight_decay = 0 })
local steps = optim.schedule.steps { steps = config.steps, epochs = config.epochs, samples = #train,
  samples_per_step = config.pairs_per_step }
local schedule = optim.schedule.named(config.schedule, { warmup_steps = config.warmup_steps, total_steps = steps })
local loader = data.loader { source = train, seed = config.seed, rank = 0, world = 1 }
run:state({ model = model, optimizer = optimizer, loader = loader }, { every = config.save_every, keep = 2 })
run:resume()

local function draw()
  local drawn = {}
  for i = 1, config.pairs_per_step do drawn[i] = loader() end
  return losses.deal(drawn, dealing)
end
local function loss_of(batch)
  local scores, means = score(batch)
  local o = { scores = scores, means = means, reference = batch.reference,
    mask = torch.full({ #batch.lengths }, batch.padding and 0 or 1) }
  for name, value in pairs(config.loss) do o[name] = value end
  local sum, count, stats = losses.pairs.loss(o)
  return sum, count, stats.correct, stats.margin
end

for step, micro_batches in run:steps(draw, steps) do
  local loss, accuracy, margin = sharding.accumulate(model, micro_batches, config.pairs_per_step, loss_of,
    { whole = true })
  local grad_norm = optimizer:step(schedule(step), { max_grad_norm = config.max_norm })
  optimizer:zero_grad()
  log.step { loss = loss, accuracy = accuracy, margin = margin, grad_norm = grad_norm,
    lr = optimizer.groups[1].lr * schedule(step), counts = { skipped = found.skipped } }
end
log.curve("loss.svg", { "loss", "accuracy" }, { title = "dpo" })

-- The share of held-out pairs whose chosen answer has gained on the rejected one.
if #held_out > 0 then
  local batches = losses.each(held_out, config.pairs_per_step, dealing)
  log.record("held out", { accuracy = sharding.evaluate(model, batches, function(b)
    local _, count, right = loss_of(b)
    return right, count
  end) })
end
if config.lora.r > 0 then lora.save(model, run.dir .. "/result")
else models.save(model, run.dir .. "/result", { like = dir }) end
log.print("wrote " .. run.dir .. "/result")
