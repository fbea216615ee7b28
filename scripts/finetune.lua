-- Fine-tunes a model of Hugging Face on conversations, and writes what transformers, PEFT and vLLM load.
--
--     ./run scripts/finetune.lua --set model=Qwen/Qwen3-0.6B --set data=chats.jsonl      # LoRA: writes an adapter
--     ./run scripts/finetune.lua --set model=qwen --set data=chats.jsonl --set lora.r=0     # trains all weights
--     ./run scripts/finetune.lua --set model=qwen --set data=chats.jsonl --set load_in_4bit=true     # QLoRA
--     ./run scripts/finetune.lua --set lora.r=0 --set lr=1e-3   # teaches the newest model of pretrain.lua instructions
--     ./run scripts/finetune.lua --set model=qwen --set checkpoint.offload=host --set tiles=4     # in less memory
--     ./run --nproc 4 scripts/finetune.lua --set model=qwen --set parallel.tp=2 --set parallel.fully_shard=true
--     ./run --nproc 4 scripts/finetune.lua --set model=qwen_vl --set vision_ranks=1     # the tower on its own rank
--
-- A line of the file is {"messages": [{"role": "user", "content": "..."}, {"role": "assistant", ...}], "tools": [...]};
-- ShareGPT, Alpaca, {"prompt": ..., "completion": ...} and {"text": ...} are read, too: see docs/chat.md. `data` may be
-- the name of a data set in the Hub's cache. The model learns what the assistant says. A picture in a content is
-- {"type": "image", "path": "cat.png"}, or is in a column `images` or `image`. Before step 0 the run lists samples that
-- seq_len cuts or that teach nothing; a cut is an error unless --set on_cut allows it. Held-out conversations show
-- their loss, and the share of exact answers.

local batching = require "lockstep.batching"
local data = require "lockstep.data"
local dist = require "lockstep.distributed"
local images = require "lockstep.images"
local log = require "lockstep.log"
local lora = require "lockstep.lora"
local mimo = require "lockstep.mimo"
local models = require "lockstep.models"
local nn = require "lockstep.nn"
local optim = require "lockstep.optim"
local run = require "lockstep.run"
local sharding = require "lockstep.sharding"
local text = require "lockstep.text"
local torch = require "lockstep.torch"
local instructions = require "instructions"

local config = run.config({
  model = "", -- a folder with config.json, weights, tokenizer.json and a chat template, or a name in the Hub's cache
  ignore = "", -- keys of config.json to pass over, split by commas
  data = "", split = "", -- conversations; default: instructions.lua. A split of a data set of the Hub, default "train"
  held_out = 0.1, -- the share of conversations, or their number
  seed = 1, samples_per_step = 16, -- over all ranks
  steps = 200, epochs = 0.0, -- epochs above 0 are the length, not steps
  renderer = "", -- "auto" for a template that drops the reasoning of earlier turns, as Qwen3's: see docs/chat.md
  roles = "", -- of messages that the template knows, besides user, assistant, tool and other common ones
  seq_len = 2048, -- tokens of a micro-batch, at most
  on_cut = "error", -- of conversations longer than that; "drop" leaves them out, "cut" shortens them
  lr = 0.0, weight_decay = 0.0, -- lr = 0: 2e-4 for an adapter, 2e-5 for all weights
  schedule = "cosine", warmup_steps = 10, -- or "linear", "constant", "stable_decay"
  neftune = 0.0, -- above 0: the size of noise on embeddings in training, as 5 (NEFTune)
  label_smoothing = 0.0, -- of the loss in training, from 0 to 1
  max_norm = 1.0, save_every = 100, eval_every = 100,
  keep_best = false, -- writes the weights of the evaluation with the least loss, not those of the last step
  eval_samples = 1000, -- held-out conversations whose loss is computed in an evaluation, at most
  answers = 64, -- of these, whose last answer the model writes, at most; none with pp
  max_new_tokens = 64, -- of an answer
  lora = { r = 16, alpha = 32, dropout = 0.0, targets = "all-linear", dora = false, rslora = false }, -- r = 0: all
  load_in_4bit = false, -- keeps the model's linear layers in 4 bits (NF4); a folder of bitsandbytes has them so
  load_in_8bit = false, -- the same in 8 bits (LLM.int8)
  read_whole = false, -- whole weights of a folder in 4 or 8 bits, which parallel.tp and parallel.pp need
  optimizer = "AdamW", -- or "AdamW8bit", whose moments have 8 bits, "ScheduleFreeAdamW", "Lion"
  merge = false, -- also writes the model with the adapter in its weights
  parallel = { tp = 1, cp = 1, ep = 1, pp = 1, fully_shard = false, -- the grid of ranks: docs/parallelism.md
    sequence = false, chunks = 1, order = "" }, -- with tp, and with pp; order = "": by the number of chunks
  vision_ranks = 0, -- above 0: so many ranks run the vision tower, and the others the language model; no answers then
  precision = "auto", -- "bf16" on GPUs, "float32" on CPUs
  checkpoint = { offload = "none" }, -- "device": layers run again in backward; "host": their inputs wait on the host
  tiles = 0, -- above 0: the MLPs run over so many tiles of the tokens
}, { at_least = { seed = 0, steps = 1, samples_per_step = 1, seq_len = 1, warmup_steps = 0,
  save_every = 1, eval_every = 1, eval_samples = 1, answers = 0, max_new_tokens = 1, ["lora.r"] = 0, tiles = 0,
  vision_ranks = 0 }, presets = sharding.presets })
torch.manual_seed(config.seed)
local offload, known = config.checkpoint.offload, { none = true, device = true, host = true }
assert(known[offload], "--set checkpoint.offload takes none, device or host, not " .. offload)
local base = config.model ~= "" and config.model or instructions.newest_model()
assert(({ AdamW = 1, AdamW8bit = 1, ScheduleFreeAdamW = 1, Lion = 1 })[config.optimizer],
  "--set optimizer takes AdamW, AdamW8bit, ScheduleFreeAdamW (with --set schedule=constant) or Lion, not "
    .. config.optimizer)
local in_4_bits, in_8_bits = config.load_in_4bit or nil, config.load_in_8bit or nil -- nil: as the folder is
assert(config.lora.r ~= 0 or not (in_4_bits or in_8_bits), ("--set load_in_%dbit=true trains an adapter: lora.r must "
  .. "not be 0"):format(in_4_bits and 4 or 8))
assert(not config.read_whole or not (in_4_bits or in_8_bits), "--set read_whole=true takes whole weights: leave "
  .. "load_in_4bit and load_in_8bit out")
if config.lora.r == 0 or config.read_whole then in_4_bits, in_8_bits = false, false end

-- Model and optimizer.
local net = models.load(base, { device = dist.device(), dtype = run.dtype(config.precision), ignore = config.ignore,
  load_in_4bit = in_4_bits, load_in_8bit = in_8_bits })
local chat, tokenizer = text.chat(base), text.tokenizer(base)
local process = net.visual and images.processor(base) or nil -- of models with pictures
if config.lora.r ~= 0 then log.print(("%d layers have an adapter"):format(lora.apply(net, config.lora))) end
if offload ~= "none" then net.checkpoint = { offload = offload ~= "device" and offload or nil } end
if config.neftune ~= 0 then nn.neftune(net, net:decoder().embed_tokens, { alpha = config.neftune }) end
if config.label_smoothing ~= 0 then net.label_smoothing = config.label_smoothing end
if config.tiles > 0 then net.tiled_mlp = { tiles = config.tiles } end
-- A step without pictures leaves the vision tower out, on every rank alike.
local is_separate, axes = config.vision_ranks > 0, config.parallel
local model, grid
if is_separate then
  model = mimo.separate(net, { vision_ranks = config.vision_ranks, order = axes.order, parallel = { tp = axes.tp,
    cp = axes.cp, ep = axes.ep, pp = axes.pp, chunks = axes.chunks, sequence = axes.sequence,
    fully_shard = axes.fully_shard } })
else
  model, grid = sharding.parallel(net, axes, { data_parallel = { find_unused = process ~= nil } })
end
-- The rows of dp have micro-batches of their own. With a separate tower each rank is given those of all rows.
local row, num_rows = grid and grid:rank "dp", grid and grid.dp or model.ranks
local multiple = axes.sequence and axes.tp > 1 and axes.tp * axes.cp or 1 -- of the tokens of a micro-batch
local lr = config.lr ~= 0 and config.lr or (config.lora.r ~= 0 and 2e-4 or 2e-5)
local optimizer = optim[config.optimizer](model:parameters(), { lr = lr, weight_decay = config.weight_decay })

-- Data: conversations as ids, in an order of the seed. The loader's place is saved with the model.
local source = data.conversations(config.data == "" and instructions.conversations() or config.data,
  { kind = "conversation", roles = config.roles, split = config.split })
local train, held_out = data.split(source, { held_out = config.held_out, seed = config.seed })
local function encode_sample(sample, is_prompt)
  return chat:encode_sample(sample, { generation_prompt = is_prompt, processor = process, folder = source.folder,
    renderer = config.renderer, roles = config.roles })
end
local reads = source:show { encode = encode_sample, tokenizer = tokenizer }
local num_samples = config.epochs == 0 and #train or batching.samples_kept { source = train, map = encode_sample,
  seq_len = config.seq_len, on_cut = config.on_cut } -- of an epoch
local steps = optim.schedule.steps { steps = config.steps, epochs = config.epochs, samples = num_samples,
  samples_per_step = config.samples_per_step }
local schedule = optim.schedule.named(config.schedule, { warmup_steps = config.warmup_steps, total_steps = steps })
local loader = data.loader { source = train, seed = config.seed, rank = 0, world = 1, map = encode_sample }
local stream = batching.stream { source = loader, buffer = config.samples_per_step, seq_len = config.seq_len,
  on_cut = config.on_cut, rank = row, ranks = num_rows, together = is_separate, pad_to_multiple_of = multiple }

-- Records the loss and the exact answers of held-out conversations, and shows the first three.
local function evaluate(title)
  if #held_out == 0 then return config.keep_best and error("keep_best needs held-out conversations", 0) end
  local rows, samples = {}, {}
  for i = 1, math.min(config.eval_samples, #held_out) do
    rows[i] = held_out[i]
    local ok, sample = pcall(encode_sample, rows[i])
    samples[i] = ok and sample or error(held_out:place(i) .. ": " .. sample, 0)
  end
  local batches, report = batching.prepare { samples = samples, seq_len = config.seq_len, rank = row or dist.rank(),
    ranks = num_rows, together = is_separate, pad_to_multiple_of = multiple }
  local loss = sharding.evaluate(model, function() return table.remove(batches[(row or dist.rank()) + 1]) end,
    function(batch) return model(batch, "loss") end)
  local exact = models.exact_answers(model, net, { rows = rows, encode = encode_sample, tokenizer = tokenizer,
    rank = grid and grid:rank "expert_dp", ranks = grid and grid:size "expert_dp", -- those of ep write the same
    most = (is_separate or grid.pp > 1) and 0 or config.answers, max_new_tokens = config.max_new_tokens,
    title = title })
  log.record("validation", { loss = loss, counts = batching.lost(report), exact = exact })
  if config.keep_best and title ~= "before" then run:keep_best("loss", loss) end
end

run:state({ model = model, optimizer = optimizer, stream = stream }, { every = config.save_every, keep = 2 })
if not run:resume() then
  batching.survey { source = train, map = encode_sample, reads = reads, seed = config.seed, seq_len = config.seq_len,
    on_cut = config.on_cut, samples = (steps + 1) * config.samples_per_step, -- one window is read ahead
    held_out = held_out, held_out_samples = config.eval_samples }
  evaluate "before"
end

-- Training. A step is a few micro-batches, then one update; gradients are averaged over ranks in the last one.
for step, micro_batches, report in run:steps(stream, steps) do
  local loss = sharding.accumulate(model, micro_batches, report.loss_tokens, function(micro_batch)
    return model(micro_batch, "loss")
  end)
  local grad_norm = optimizer:step(schedule(step), { max_grad_norm = config.max_norm })
  optimizer:zero_grad()
  log.step { loss = loss, grad_norm = grad_norm, lr = optimizer.groups[1].lr * schedule(step), tokens = report.tokens,
    samples = report.samples, counts = batching.lost(report) }
  if run:every(config.eval_every) then evaluate(step + 1 < steps and "step " .. step + 1 or "after") end
end
if config.keep_best then log.print("the best loss, and its step:", run:load_best()) end
log.curve("loss.svg", #held_out > 0 and { "loss", "validation.loss" } or { "loss" }, { title = "finetune" })

local adapter, whole = run.dir .. "/adapter", run.dir .. "/model" -- every rank takes part, and rank 0 writes
if config.lora.r == 0 then
  models.save(model, whole, { like = base })
else
  lora.save(model, adapter)
  if config.merge then
    lora.save_merged(adapter, whole, { like = base, ignore = config.ignore, load_in_4bit = in_4_bits,
      load_in_8bit = in_8_bits, dtype = (in_4_bits or in_8_bits) and run.dtype(config.precision) or nil })
  end
end
log.print("wrote " .. (config.lora.r > 0 and not config.merge and adapter or whole))
