-- Fine-tunes a Hugging Face model on conversations, and writes what transformers, PEFT and vLLM load.
--
--     ./run scripts/finetune.lua --set model=qwen --set data=chats.jsonl               # LoRA: writes an adapter
--     ./run scripts/finetune.lua --set model=qwen --set data=chats.jsonl --set lora.r=0    # all weights
--
-- Each line of the file is {"messages": [{"role": "user", "content": "..."}, {"role": "assistant", ...}]}. The model
-- learns what the assistant says. All ranks read the same conversations, and each trains on its part of them.

local batching = require "lockstep.batching"
local data = require "lockstep.data"
local dist = require "lockstep.distributed"
local log = require "lockstep.log"
local lora = require "lockstep.lora"
local models = require "lockstep.models"
local optim = require "lockstep.optim"
local run = require "lockstep.run"
local sharding = require "lockstep.sharding"
local text = require "lockstep.text"
local torch = require "lockstep.torch"

local config = run.config {
  model = "", -- a folder with config.json, weights, tokenizer.json and a chat template
  data = "",
  seed = 1,
  steps = 200,
  samples_per_step = 16, -- over all ranks
  seq_len = 2048, -- tokens of a micro-batch, at most
  lr = 2e-4,
  weight_decay = 0.0,
  warmup_steps = 10,
  max_norm = 1.0,
  save_every = 100,
  lora = { r = 16, alpha = 32, targets = "all-linear" },
  parallel = "data_parallel", -- or "fully_shard"
}
if config.model == "" or config.data == "" then error("give --set model=FOLDER and --set data=FILE.jsonl", 0) end
torch.manual_seed(config.seed)

-- Data: conversations as ids, in an order of the seed. The loader's place is saved with the model.
local chat = text.chat(config.model)
local loader = data.loader {
  source = data.source(config.data), seed = config.seed, rank = 0, world = 1,
  map = function(sample) return chat:encode(sample.messages) end,
}
local stream = batching.stream { source = loader, buffer = config.samples_per_step, seq_len = config.seq_len }

-- Model and optimizer.
local net = models.load(config.model, { device = dist.device() })
if config.lora.r > 0 then
  log.print(("%d layers have an adapter"):format(lora.apply(net, config.lora)))
end
local model = config.parallel == "fully_shard" and sharding.fully_shard(net) or sharding.data_parallel(net)
local optimizer = optim.AdamW(model:parameters(), { lr = config.lr, weight_decay = config.weight_decay })
local schedule = optim.schedule.warmup_cosine {
  warmup_steps = math.min(config.warmup_steps, config.steps), total_steps = config.steps,
}
run:state({ model = model, optimizer = optimizer, stream = stream }, { every = config.save_every, keep = 2 })
run:resume()

-- Shows what the model answers to the first conversation of the file.
local first = data.source(config.data)[1].messages
local function answer()
  local question = {}
  for i, message in ipairs(first) do
    if message.role == "assistant" then break end
    question[i] = message
  end
  local prompt = chat:encode(question, { generation_prompt = true }).input_ids
  local tokenizer = text.tokenizer(config.model)
  return tokenizer:decode(models.generate(net, { prompt }, { max_new_tokens = 40 })[1], { skip_special = true })
end
local function show(when)
  net:eval()
  local reply = model:full(answer)
  net:train()
  log.print(when .. ": " .. reply)
end
show "before"

-- Training. A step is a few micro-batches, then one update; gradients are averaged over ranks in the last one.
for step, micro_batches, report in run:steps(stream, config.steps) do
  local loss = sharding.accumulate(model, micro_batches, report.loss_tokens, function(micro_batch)
    return model(micro_batch, "loss")
  end)
  local grad_norm = optim.clip_grad_norm(model:parameters(), config.max_norm)
  optimizer:step(schedule(step))
  optimizer:zero_grad()
  log.step { loss = loss, grad_norm = grad_norm, lr = config.lr * schedule(step), tokens = report.tokens }
end
show "after"

local folder = run.dir .. (config.lora.r > 0 and "/adapter" or "/model")
if config.lora.r > 0 then lora.save(model, folder) else models.save(model, folder, { like = config.model }) end
log.print("wrote " .. folder)
