-- Trains a tokenizer and a language model of Qwen3's shape on text, for finetune.lua, chat.lua and transformers.
--
--     ./run scripts/pretrain.lua                                        # on Lockstep's own documentation
--     ./run scripts/pretrain.lua --set data=corpus.jsonl --set format= --set steps=100000
--     ./run --nproc 4 scripts/pretrain.lua --set parallel.tp=2 --set parallel.fully_shard=true
--
-- `data` is files and folders, split by commas. With format=text each file is a document; with an empty format their
-- names tell: .jsonl, .parquet (field "text"), .txt (a document a line), .tar. The default: 1.6 minutes on two cores.

local batching = require "lockstep.batching"
local data = require "lockstep.data"
local dist = require "lockstep.distributed"
local log = require "lockstep.log"
local models = require "lockstep.models"
local optim = require "lockstep.optim"
local run = require "lockstep.run"
local sharding = require "lockstep.sharding"
local text = require "lockstep.text"
local torch = require "lockstep.torch"

local here = debug.getinfo(1, "S").source:match "^@(.*)/" or "." -- this script's folder
local config = run.config({
  data = { here .. "/../README.md", here .. "/../docs/*.md" }, format = "text",
  held_out = 0.1, -- share of the documents
  tokenizer_documents = 10000, -- the tokenizer learns from so many
  seed = 1, steps = 300,
  sequences_per_step = 16, -- over all rows of dp
  micro_batch = 8, seq_len = 256, -- sequences, and tokens of each
  optimizer = "muon", -- for the matrices of the layers, with AdamW for the rest; or "adamw" for all
  lr = 3e-3, weight_decay = 0.1,
  warmup_steps = 20, max_norm = 1.0,
  eval_every = 50, sample_every = 100, save_every = 100,
  parallel = { tp = 1, cp = 1, ep = 1, pp = 1, fully_shard = false, -- the grid of ranks: docs/parallelism.md
    sequence = false, chunks = 1, order = "" }, -- with tp, and with pp; order = "": by the number of chunks
  prompt = "A rank", precision = "auto", -- "bf16" on GPUs, "float32" on CPUs
  model = { vocab_size = 2048, hidden_size = 128, num_hidden_layers = 4, num_attention_heads = 4,
    num_key_value_heads = 2, head_dim = 32, intermediate_size = 384 },
}, { at_least = { seed = 0, tokenizer_documents = 1, steps = 1, sequences_per_step = 1, micro_batch = 1,
  seq_len = 2, warmup_steps = 0, eval_every = 1, sample_every = 1, save_every = 1 }, -- no first token is predicted
  presets = sharding.presets })
if config.optimizer ~= "muon" and config.optimizer ~= "adamw" then error('optimizer must be "muon" or "adamw"', 0) end
local dtype, axes = run.dtype(config.precision), config.parallel
local grid = sharding.grid { tp = axes.tp, cp = axes.cp, ep = axes.ep, pp = axes.pp }
torch.manual_seed(config.seed)

-- Tokenizer: rank 0 learns it, and writes the folder from which the model starts.
local documents = data.source(config.data, { format = config.format })
local train, held_out = data.split(documents, { held_out = config.held_out, seed = config.seed })
local start = run.dir .. "/start"
if dist.rank() == 0 then
  local texts = {}
  for i = 1, math.min(#train, config.tokenizer_documents) do texts[i] = train[i].text end
  text.train_tokenizer { texts = texts, vocab_size = config.model.vocab_size, dir = start }
end
dist.barrier()
local tokenizer = text.tokenizer(start)
local END = tokenizer:id "<|endoftext|>"

-- Training data: documents one behind the other, each dp row with its own, cut into sequences of seq_len tokens.
local function with_end(document)
  local ids = tokenizer:encode(document.text)
  ids[#ids + 1] = END
  return { input_ids = ids }
end
local row, rows = grid:rank "dp", grid.dp -- ranks of one row are given the same
local loader = data.loader { source = train, seed = config.seed, map = with_end, rank = row, world = rows }
local sequences = sharding.pack { source = loader, seq_len = config.seq_len }
local per_row = config.sequences_per_step / rows
if per_row % config.micro_batch ~= 0 then
  error(("sequences_per_step = %d must be a multiple of micro_batch = %d times the %d rows of dp"):format(
    config.sequences_per_step, config.micro_batch, rows), 0)
end
local function next_step()
  local micro_batches = {}
  for i = 1, per_row / config.micro_batch do
    local ids, lengths = {}, {}
    for j = 1, config.micro_batch do ids[j], lengths[j] = sequences().input_ids, config.seq_len end
    micro_batches[i] = { input_ids = torch.cat(ids), seq_lens = lengths }
  end
  return micro_batches
end

-- Held-out data: pieces of documents behind an END, so that every token is predicted.
local pieces, held_out_tokens, held_out_bytes = {}, 0, 0
for i = 1, #held_out do
  local ids = tokenizer:encode(held_out[i].text)
  for first = 1, #ids, config.seq_len - 1 do
    local piece = { END, unpack(ids, first, math.min(first + config.seq_len - 2, #ids)) }
    pieces[#pieces + 1] = { input_ids = piece, loss_mask = torch.ones({ #piece }):bool() }
  end
  held_out_tokens, held_out_bytes = held_out_tokens + #ids, held_out_bytes + #held_out[i].text
end

-- Model and optimizers.
local shape = { architectures = { "Qwen3ForCausalLM" }, model_type = "qwen3", tie_word_embeddings = true,
  max_position_embeddings = 4096, rope_theta = 10000, eos_token_id = tokenizer:id "<|im_end|>" }
for key, value in pairs(config.model) do shape[key] = value end
if dist.rank() == 0 then data.save_json(start .. "/config.json", shape, { indent = 2 }) end
local net = models.build(shape, { device = dist.device(), dtype = dtype })
log.print(("%d parameters; %d documents to learn from, %d held out"):format(net:num_parameters(), #train, #held_out))
local model = sharding.parallelize(net, grid, { fully_shard = axes.fully_shard and {}, sequence = axes.sequence,
  chunks = axes.chunks, order = axes.order })
local matrices, others = {}, {}
for name, p in model:named_parameters() do
  table.insert(config.optimizer == "muon" and name:find "_proj%.weight$" and matrices or others, p)
end
local adamw = optim.AdamW(others, { lr = config.lr, betas = { 0.9, 0.95 }, weight_decay = config.weight_decay })
local muon = #matrices > 0 and optim.Muon(matrices, -- takes AdamW's learning rates
  { lr = config.lr, adjust_lr = "match_rms_adamw", weight_decay = config.weight_decay }) or nil
local warmup = math.min(config.warmup_steps, config.steps)
local schedule = optim.schedule.warmup_cosine { warmup_steps = warmup, total_steps = config.steps, final_factor = 0.1 }
run:state({ model = model, adamw = adamw, muon = muon, sequences = sequences }, { every = config.save_every, keep = 2 })
run:resume()

local function loss_of(batch) return model(batch, "loss") end

-- Bits of loss for each byte of held-out text, whatever the tokenizer.
local function bits_per_byte()
  local batches = batching.prepare {
    samples = pieces, seq_len = config.seq_len * config.micro_batch, ranks = rows, rank = row,
    pad_to_multiple_of = grid.token_multiple,
  }[row + 1]
  local nats = sharding.evaluate(model, function() return table.remove(batches) end, loss_of)
  return nats * held_out_tokens / held_out_bytes / math.log(2)
end

local function sample()
  local ids = models.generate(net, { tokenizer:encode(config.prompt) },
    { max_new_tokens = 80, temperature = 0.7, seed = 1, stop = { END } })[1]
  return config.prompt .. tokenizer:decode(ids, { skip_special = true })
end

local num_predicted = config.sequences_per_step * (config.seq_len - 1) -- all tokens but each sequence's first
for step, micro_batches in run:steps(next_step, config.steps) do
  local loss = sharding.accumulate(model, micro_batches, num_predicted, loss_of)
  local grad_norm = optim.clip_grad_norm(model:parameters(), config.max_norm)
  for _, optimizer in ipairs { adamw, muon } do
    optimizer:step(schedule(step))
    optimizer:zero_grad()
  end
  log.step { loss = loss, grad_norm = grad_norm, lr = adamw.groups[1].lr * schedule(step), tokens = num_predicted }
  if #pieces > 0 and run:every(config.eval_every) then
    local bits = bits_per_byte()
    log.record("validation", { bits_per_byte = bits })
    run:keep_best("bits_per_byte", bits, { mode = "min" })
  end
  if grid.pp == 1 and run:every(config.sample_every) then log.print(model:full(sample)) end -- stages cannot generate
end

local best, best_step = run:load_best() -- the weights of the best evaluation
if best then log.print(("the best are %.4f bits per byte, after %d steps"):format(best, best_step)) end
models.save(model, run.dir .. "/model", { like = start })
log.curve("loss.svg", { "loss", #pieces > 0 and "validation.bits_per_byte" or nil }, { title = "pretrain" })
log.print("wrote " .. run.dir .. "/model")
