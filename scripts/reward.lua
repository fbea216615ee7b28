-- A reward model: a language model with a new head learns to score chosen answers above rejected ones.
--
--     ./run scripts/reward.lua                                          # words written backwards, and wrongly
--     ./run scripts/reward.lua --set model=qwen --set data=pairs.jsonl  # all weights, and the head
--
-- The file is one of scripts/dpo.lua, with or without pictures. Each conversation is scored after its last token. The
-- result is the folder of a ...ForSequenceClassification, which models.load opens, and transformers where it has such a
-- class. docs/scripts.md shows it as a reward of grpo.

local data = require "lockstep.data"
local dist = require "lockstep.distributed"
local images = require "lockstep.images"
local log = require "lockstep.log"
local lora = require "lockstep.lora"
local losses = require "lockstep.losses"
local models = require "lockstep.models"
local optim = require "lockstep.optim"
local run = require "lockstep.run"
local sharding = require "lockstep.sharding"
local text = require "lockstep.text"
local torch = require "lockstep.torch"

local config = run.config({
  model = "", -- a folder of Hugging Face, or a name in its local cache; empty: a small model
  ignore = "", -- keys of config.json to pass over, split by commas
  data = "", split = "", -- empty: words, written backwards and wrongly; a split of the Hub, default "train"
  seed = 1, steps = 120, epochs = 0.0, -- epochs above 0 are the length, not steps
  pairs_per_step = 32, held_out = 256, -- pairs over all ranks
  renderer = "", roles = "", -- as in finetune.lua
  seq_len = 1024, -- tokens of a micro-batch, at most; both conversations of a pair must fit
  on_cut = "error", -- or "drop", which skips pairs that do not
  center = 0.01, -- weight of (chosen + rejected)^2
  lr = 0.0, -- 0: 1e-4 for an adapter, 1e-5 for all weights, 2e-3 for the small model
  schedule = "linear", warmup_steps = 10, -- or "cosine", "constant", "stable_decay"
  lora = { r = 0, alpha = 16, dropout = 0.0, targets = "all-linear" }, -- r > 0: adapters, merged at the end
  read_whole = false, -- whole weights of a folder in 4 or 8 bits, which parallel.tp and parallel.pp need
  max_norm = 1.0, save_every = 40,
  parallel = { tp = 1, cp = 1, ep = 1, pp = 1, fully_shard = false, -- the grid of ranks: docs/parallelism.md
    sequence = false, chunks = 1, order = "" }, -- with tp, and with pp; order = "": by the number of chunks
  precision = "auto", -- "bf16" on GPUs, "float32" on CPUs
}, { at_least = { seed = 0, steps = 1, pairs_per_step = 1, seq_len = 1, warmup_steps = 0, save_every = 1,
  ["lora.r"] = 0 }, presets = sharding.presets })
if config.lora.r > 0 and config.parallel.pp > 1 then
  error("adapters are merged at the end, which parallel.pp does not allow: --set lora.r=0, or leave pp out", 0)
end
torch.manual_seed(config.seed)
local dir, path = config.model, config.data
if dir == "" then
  dir = run.dir .. "/start"
  require("reverse_words").write_model(dir, { steps = 100 })
end
if path == "" then path = require("reverse_words").write_preferences(run.dir .. "/preferences.jsonl", 4000) end

local packed = nil -- layers in 4 or 8 bits stay so, but where all weights are trained or read_whole says so
if config.lora.r == 0 or config.read_whole then packed = false end
local net = models.load(dir, { device = dist.device(), dtype = run.dtype(config.precision), ignore = config.ignore,
  load_in_4bit = packed, load_in_8bit = packed,
  num_labels = 1 })
local process = net.visual and images.processor(dir) or nil -- of models with pictures
local source = data.conversations(path, { kind = "preference", roles = config.roles, split = config.split })
local samples, found = losses.pairs.read(source, text.chat(dir), { tokenizer = text.tokenizer(dir),
  seq_len = config.seq_len, renderer = config.renderer, on_cut = config.on_cut, processor = process })
if #samples == 0 then error(path .. " has no pair to learn from", 0) end
local train, held_out = data.split(samples, { held_out = config.held_out, seed = config.seed })

if config.lora.r ~= 0 then
  config.lora.modules_to_save = { "score" }
  log.print(("%d layers have an adapter"):format(lora.apply(net, config.lora)))
end
-- A step without pictures leaves the vision tower out, on every rank alike.
local model, grid = sharding.parallel(net, config.parallel, { data_parallel = { find_unused = process ~= nil } })
local dealing = { seq_len = config.seq_len, grid = grid }
local lr = config.lr ~= 0 and config.lr or (config.model == "" and 2e-3 or config.lora.r ~= 0 and 1e-4 or 1e-5)
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
  local scores = model(losses.pairs.batch(batch)):narrow(0, 0, 2 * #batch.lengths):view(-1, 2) -- without padding
  local sum, count, stats = losses.reward { chosen = scores:select(1, 0):to(torch.float32),
    rejected = scores:select(1, 1):to(torch.float32), center = config.center,
    mask = torch.full({ #batch.lengths }, batch.padding and 0 or 1) }
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
log.curve("loss.svg", { "loss", "accuracy" }, { title = "reward" })

-- The share of held-out pairs whose chosen answer has the higher score.
if #held_out > 0 then
  local batches = losses.each(held_out, config.pairs_per_step, dealing)
  log.record("held out", { accuracy = sharding.evaluate(model, batches, function(b)
    local _, count, right = loss_of(b)
    return right, count
  end) })
end
if config.lora.r > 0 then lora.merge((config.parallel.fully_shard or grid.ep > 1) and model or net) end
models.save(model, run.dir .. "/result", { like = dir })
log.print("wrote " .. run.dir .. "/result")
