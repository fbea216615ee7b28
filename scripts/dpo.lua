-- Preference training (DPO): a model learns to give chosen answers, and not the rejected ones.
--
--     ./run scripts/dpo.lua                                          # a small model learns to write words backwards
--     ./run scripts/dpo.lua --set model=qwen --set data=pairs.jsonl  # LoRA: writes an adapter
--
-- Each line of the file is {"prompt": [{"role": "user", "content": "..."}], "chosen": [{"role": "assistant",
-- "content": "..."}], "rejected": [...]}. Log-probabilities under the model as it began are computed once, and kept in
-- the run's folder. A step is two forward passes, one of chosen and one of rejected answers, and one backward pass.

local batching = require "lockstep.batching"
local data = require "lockstep.data"
local dist = require "lockstep.distributed"
local files = require "lockstep.core.files"
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
  data = "", -- empty: words, written backwards and wrongly
  seed = 1, steps = 240, pairs_per_step = 32, -- pairs over all ranks
  held_out = 256, -- pairs
  seq_len = 1024, -- tokens of a micro-batch, at most
  loss = { variant = "sigmoid", beta = 0.1, label_smoothing = 0.0 }, -- or "ipo"
  lr = 2e-3, max_norm = 1.0,
  lora = { r = 8, alpha = 16, targets = "all-linear" }, -- r = 0: all weights
  parallel = "data_parallel", -- or "fully_shard"
  save_every = 40,
}, { at_least = { seed = 0, steps = 1, pairs_per_step = 1, seq_len = 1, save_every = 1, ["lora.r"] = 0 } })
torch.manual_seed(config.seed)
local dir, path = config.model, config.data
if dir == "" then
  dir = run.dir .. "/start"
  require("reverse_words").write_model(dir, { steps = 100 })
end
if path == "" then path = require("reverse_words").write_preferences(run.dir .. "/preferences.jsonl", 4000) end

-- Pairs as samples for batching: the chosen conversation, then the rejected one, and how long they are.
local chat, source, samples = text.chat(dir), data.source(path), {}
for i = 1, #source do
  local line, ids, masks, lengths = source[i], {}, {}, {}
  for half, name in ipairs { "chosen", "rejected" } do
    local messages, answer = { unpack(line.prompt or {}) }, line[name]
    if type(answer) ~= "table" or not answer[1] or answer[#answer].role ~= "assistant" then
      error(('%s: "%s" must be a list of messages that ends with the assistant\'s'):format(source:place(i), name), 0)
    end
    for _, message in ipairs(answer) do messages[#messages + 1] = message end
    local sample = chat:encode(messages, { loss = "last" })
    ids[half], masks[half] = torch.tensor(sample.input_ids, { dtype = torch.int64 }), torch.tensor(sample.loss_mask)
    lengths[half] = #sample.input_ids
  end
  samples[i] = { kind = "pair", input_ids = torch.cat(ids), loss_mask = torch.cat(masks):bool(),
    lengths = torch.tensor({ lengths }, { dtype = torch.int64 }) }
end

-- Returns the log-probability of each chosen answer, or with half = 2 of each rejected one.
local function score(model, batch, half)
  local lengths = batch.lengths:flatten():totable()
  local ids, masks, mine = batch.input_ids:split(lengths), batch.loss_mask:split(lengths), {}
  local part = { input_ids = {}, loss_mask = {} }
  for i = half, #lengths, 2 do
    table.insert(part.input_ids, ids[i])
    table.insert(part.loss_mask, masks[i])
    mine[#mine + 1] = lengths[i]
  end
  local log_probs = model({ input_ids = torch.cat(part.input_ids), seq_lens = mine }, "log_probs")
  return losses.per_sequence(log_probs, { seq_lens = mine, loss_mask = torch.cat(part.loss_mask),
    mean = config.loss.variant == "ipo" })
end

local net = models.load(dir, { device = dist.device() })
if config.lora.r ~= 0 then log.print(("%d layers have an adapter"):format(lora.apply(net, config.lora))) end
local model = sharding.parallel(net, config.parallel)

-- Deals pairs out to the ranks. Every rank gets equally many micro-batches.
local function deal(pairs_of_step)
  local batches, report = batching.prepare { samples = pairs_of_step, seq_len = config.seq_len, rank = dist.rank() }
  if report.truncated_samples > 0 then error("a pair has more tokens than seq_len = " .. config.seq_len, 0) end
  return batches[dist.rank() + 1]
end

-- Returns both log-probabilities of each pair. Called before run:resume, it takes the weights as they began.
local function reference_of_all()
  local file = run.dir .. "/reference.safetensors"
  local made_from = { model = dir, data = table.concat({ files.checksum(path) }, " "), loss = config.loss.variant }
  local ok, kept, of = pcall(data.safetensors, file)
  local is_same = ok and of.model == made_from.model and of.data == made_from.data and of.loss == made_from.loss
  if dist.all_gather_object(is_same)[1] then return kept.log_probs end
  local log_probs = torch.zeros { #samples, 2 }
  torch.no_grad(function()
    for _, batch in ipairs(deal(samples)) do
      local of_both = torch.stack({ score(model, batch, 1), score(model, batch, 2) }, 1)
      local rows = torch.tensor(batch.samples, { dtype = torch.int64 }) - 1
      if not batch.padding then log_probs:index_copy_(0, rows, of_both:to("cpu", torch.float32)) end
    end
  end)
  dist.all_reduce(log_probs)
  if dist.rank() == 0 then data.save_safetensors(file, { log_probs = log_probs }, { metadata = made_from }) end
  dist.barrier()
  return log_probs
end
for i, log_probs in ipairs(reference_of_all():split(1)) do samples[i].reference = log_probs end

local train, held_out = data.split(samples, { held_out = config.held_out, seed = config.seed })
local optimizer = optim.AdamW(model:parameters(), { lr = config.lr, weight_decay = 0 })
local loader = data.loader { source = train, seed = config.seed, rank = 0, world = 1 }
run:state({ model = model, optimizer = optimizer, loader = loader }, { every = config.save_every, keep = 2 })
run:resume()

local function draw()
  local drawn = {}
  for i = 1, config.pairs_per_step do drawn[i] = loader() end
  return deal(drawn)
end
local function loss_of(batch)
  local reference = batch.reference:unbind(1)
  local sum, count, stats = losses.dpo { chosen = score(model, batch, 1), rejected = score(model, batch, 2),
    reference_chosen = reference[1], reference_rejected = reference[2],
    mask = torch.full({ reference[1]:size(0) }, batch.padding and 0 or 1), variant = config.loss.variant,
    beta = config.loss.beta, label_smoothing = config.loss.label_smoothing }
  return sum, count, stats.correct, stats.margin
end

for _, micro_batches in run:steps(draw, config.steps) do
  local loss, accuracy, margin = sharding.accumulate(model, micro_batches, config.pairs_per_step, loss_of)
  local grad_norm = optimizer:step(1, { max_grad_norm = config.max_norm })
  optimizer:zero_grad()
  log.step { loss = loss, accuracy = accuracy, margin = margin, grad_norm = grad_norm }
end
log.curve("loss.svg", { "loss", "accuracy" }, { title = "dpo" })

-- The share of held-out pairs whose chosen answer has gained on the rejected one.
local rest = {}
for i = 1, #held_out do rest[i] = held_out[i] end
rest = #rest > 0 and deal(rest)
local accuracy = rest and sharding.evaluate(model, function() return table.remove(rest) end, function(batch)
  local _, count, right = loss_of(batch)
  return right, count
end)
if rest then log.record("held out", { accuracy = accuracy }) end
if config.lora.r > 0 then lora.save(model, run.dir .. "/result")
else models.save(model, run.dir .. "/result", { like = dir }) end
