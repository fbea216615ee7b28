-- Reinforcement learning with verifiable rewards (GRPO): learns from answers that are better than others to the same.
--
--     ./run scripts/grpo.lua                        # a small model learns to write words backwards, in a minute
--     ./run scripts/grpo.lua --set images=true      # half of the words are pictures
--     ./run scripts/grpo.lua --set model=qwen --set task=my_task --set lora.r=16 --set loss.beta=0.02
--     ./run --nproc 4 scripts/grpo.lua --set model=qwen --set task=my_task --set parallel.tp=2
--
-- A task is a module beside this script; see reverse_words.lua, and questions.lua for questions of a file. It may have
-- several reward functions, and tools that the model calls: see docs/scripts.md. Answers are sampled here, or by a
-- server of vLLM or SGLang with --set server=http://NODE:8000, or by any engine with --set export=DIR --set
-- rollouts=FILE. A step then writes its weights to DIR/step-000012, and reads lines appended to FILE:
-- {"version": 12, "problem": 7, "answers": [{"ids": [...], "log_probs": [...]}, ...]}. The task computes the reward of
-- an answer that has none.

local batching = require "lockstep.batching"
local data = require "lockstep.data"
local dist = require "lockstep.distributed"
local log = require "lockstep.log"
local lora = require "lockstep.lora"
local losses = require "lockstep.losses"
local models = require "lockstep.models"
local nn = require "lockstep.nn"
local optim = require "lockstep.optim"
local run = require "lockstep.run"
local saving = require "lockstep.models.saving"
local sharding = require "lockstep.sharding"
local text = require "lockstep.text"
local torch = require "lockstep.torch"

local config = run.config({
  model = "", -- a folder or a name of the Hub; empty: a small model that has learnt the task a little, in `warm_steps`
  ignore = "", -- keys of config.json to pass over, split by commas
  task = "reverse_words", data = "", split = "", -- questions.lua reads `data`: a file, or a data set in the Hub's cache
  images = false, warm_steps = 60, seed = 1,
  steps = 120, epochs = 0.0, -- epochs above 0 are the length, not steps, for a task with a size
  problems_per_step = 32, group_size = 8, -- problems over all ranks, and answers to each
  max_new_tokens = 10, -- of an answer; with tools of all its turns, and of what tools answer
  max_turns = 4, -- of the model in an answer, for a task with tools
  max_batch_size = 256, -- answers sampled at a time; when one ends, the next one begins
  reward_weights = "", -- of the task's reward functions, split by commas; empty: those that the task gives
  temperature = 1.0, updates = 1, -- of the weights by the answers of a step
  seq_len = 1024, -- tokens of a micro-batch, at most; a longer prompt with its answer is skipped
  advantage_scale = "group", -- or "none", for dr_grpo and prime_rl
  loss = { variant = "dapo", clip_low = 0.2, clip_high = 0.28, beta = 0.0 }, -- beta: KL to the model without adapter
  lora = { r = 0, alpha = 32, dropout = 0.0, targets = "all-linear" }, -- r = 0: all weights
  read_whole = false, -- whole weights of a folder in 4 or 8 bits, which parallel.tp and parallel.pp need
  lr = 0.0, -- 0: 1e-5 for an adapter, 1e-6 for all weights, 2e-3 for the small model
  schedule = "constant", warmup_steps = 5, -- or "linear", "cosine", "stable_decay"
  neftune = 0.0, -- above 0: the size of noise on embeddings in training (NEFTune)
  max_norm = 1.0,
  parallel = { tp = 1, cp = 1, ep = 1, pp = 1, fully_shard = false, -- the grid of ranks: docs/parallelism.md
    sequence = false, chunks = 1, order = "" }, -- with tp, and with pp; order = "": by the number of chunks
  precision = "auto", -- "bf16" on GPUs, "float32" on CPUs
  server = "", -- samples the answers; each step writes its weights into the run's folder for it
  save_every = 25, export = "", rollouts = "", max_lag = 1, -- of the weights that sampled an answer, in steps
}, { at_least = { seed = 0, warm_steps = 0, steps = 1, problems_per_step = 1, group_size = 2, max_new_tokens = 1,
  max_turns = 1, max_batch_size = 1, updates = 1, seq_len = 1, warmup_steps = 0, ["lora.r"] = 0, save_every = 1,
  max_lag = 0 }, presets = sharding.presets })
if config.loss.beta > 0 and config.lora.r == 0 then error("loss.beta needs an adapter: --set lora.r=16", 0) end
if (config.export == "") ~= (config.rollouts == "") then error("give --set export and --set rollouts together", 0) end
if config.parallel.pp > 1 and config.server == "" and config.rollouts == "" then
  error("parallel.pp divides the model into stages, which cannot sample answers: give --set server, or --set export "
    .. "and --set rollouts, or leave pp out", 0)
end
if config.server ~= "" and config.rollouts ~= "" then error("either server or rollouts samples the answers", 0) end
torch.manual_seed(config.seed)

local tasks, dir = require(config.task), config.model
if dir == "" then
  dir = run.dir .. "/start"
  tasks.write_model(dir, { images = config.images, steps = config.warm_steps })
end
local task = tasks.new(dir, config.images, config)
local score = losses.reward_functions(task.rewards or task.reward, { weights = config.reward_weights })
local packed = nil -- layers in 4 or 8 bits stay so, but where all weights are trained or read_whole says so
if config.lora.r == 0 or config.read_whole then packed = false end
local net = models.load(dir, { device = dist.device(), dtype = run.dtype(config.precision), ignore = config.ignore,
  load_in_4bit = packed, load_in_8bit = packed })
if config.lora.r ~= 0 then log.print(("%d layers have an adapter"):format(lora.apply(net, config.lora))) end
if config.neftune ~= 0 then nn.neftune(net, net:decoder().embed_tokens, { alpha = config.neftune }) end
-- A micro-batch of text leaves the vision tower out, on every rank alike: batching sees to that.
local model, grid = sharding.parallel(net, config.parallel,
  { data_parallel = { find_unused = net.config.vision_config ~= nil } })
-- Ranks that share weights or experts write the same answers. The first of them scores these, for all ranks.
local is_first = grid:rank "tp_ep" == 0 and grid:rank "pp" == 0
local lr = config.lr ~= 0 and config.lr or (config.model == "" and 2e-3 or config.lora.r ~= 0 and 1e-5 or 1e-6)
local optimizer = optim.AdamW(model:parameters(), { lr = lr, weight_decay = 0 })
if config.epochs > 0 and not task.size then error("--set epochs needs a task with a size", 0) end
local steps = optim.schedule.steps { steps = config.steps, epochs = config.epochs, samples = task.size or 0,
  samples_per_step = config.problems_per_step }
local schedule = optim.schedule.named(config.schedule, { warmup_steps = config.warmup_steps, total_steps = steps })
local server = config.server ~= "" and models.server(config.server) or nil
local tail = config.rollouts ~= "" and data.tail(config.rollouts) or nil
local done = { problems = 0, steps = 0, stale = 0 }
run:state({ model = model, optimizer = optimizer, done = done, tail = tail }, { every = config.save_every, keep = 2 })
run:resume()
local function save(folder)
  if config.lora.r > 0 then lora.save(model, folder) else models.save(model, folder, { like = dir }) end
end

-- Writes the weights of now for another engine, and removes those that are older than `lag` steps.
local function publish(root, lag)
  local folder = ("%s/step-%06d"):format(root, done.steps)
  save(folder)
  if dist.rank() == 0 then saving.remove(("%s/step-%06d"):format(root, done.steps - lag - 1)) end
  return folder
end

-- Gives the answers to a problem their rewards.
local function score_group(group)
  local problem = task.problem(group.problem)
  for i, answer in ipairs(group.answers) do
    if type(answer.reward) ~= "number" then -- absent, or null in a line of another engine
      score(answer, problem, ("answer %d to problem %d"):format(i, group.problem))
    end
    answer.messages = nil
  end
  return group
end

-- Samples the next turn of answers. Prompts that are the same are computed once. An answer has a number in its step, so
-- it does not depend on the number of ranks.
local numbers = {}
local function generate(prompts, limits, turn, problems, places)
  local o = { max_new_tokens = limits, stop = task.stop, suppress = task.placeholders, numbers = {},
    temperature = config.temperature, seed = config.seed % 1e6 * 1e9 + done.steps * 1e3 + (turn - 1) % 8 * 1e15 }
  for i, place in ipairs(places) do o.numbers[i] = numbers[place] end
  if server then
    o.problems = problems
    return server:generate(prompts, o)
  end
  o.max_batch_size = config.max_batch_size
  return models.generate(net, prompts, o)
end
local turns = { generate = generate, max_new_tokens = config.max_new_tokens, stop = task.stop, tools = task.tools,
  parse = task.parse, max_turns = config.max_turns, chat = task.tools and text.chat(dir),
  tokenizer = task.tools and text.tokenizer(dir), group = not server and grid:group "tp_ep" or nil }

-- Samples answers to this rank's part of the problems. The part may be empty. Ranks of cp have other problems, too.
local function sample_groups()
  local groups, problems = {}, {}
  if server then server:load(publish(run.dir .. "/weights", 0), config.lora.r > 0) end
  local count = (is_first or not server) and config.problems_per_step or 0
  for i = grid:rank "expert_dp" + 1, count, grid:size "expert_dp" do
    local problem = task.problem(done.problems + i)
    groups[#groups + 1] = { problem = done.problems + i, answers = {} }
    for k = 1, config.group_size do
      problems[#problems + 1] = problem
      numbers[#problems] = (i - 1) * config.group_size + k
    end
  end
  net:eval()
  local answers = server and models.generate_turns(problems, turns)
    or model:full(models.generate_turns, problems, turns)
  net:train()
  done.problems = done.problems + config.problems_per_step
  if not is_first then return {} end
  for i, answer in ipairs(answers) do
    table.insert(groups[math.ceil(i / config.group_size)].answers, answer)
  end
  for _, group in ipairs(groups) do score_group(group) end
  return groups
end

-- Hands the weights to the other engine, and on rank 0 waits for the groups that it samples.
local function receive_groups()
  local groups, oldest = {}, done.steps - config.max_lag
  publish(config.export, config.max_lag)
  while dist.rank() == 0 and #groups < config.problems_per_step do
    local group = run.alone(function() return tail() end)
    if type(group) ~= "table" or not (group.version and group.problem and group.answers) then
      error(("%s, line %d: a group has a version, a problem and answers"):format(config.rollouts, tail.lines), 0)
    end
    if group.version >= oldest then table.insert(groups, score_group(group)) else done.stale = done.stale + 1 end
  end
  local place = dist.all_gather_object { tail:state_dict(), done.stale }[1] -- the same on all: any number can resume
  if dist.rank() > 0 then tail:load_state_dict(place[1]) end
  done.stale = place[2]
  return groups
end

-- Returns the answers of a step, of all ranks, as samples; their mean reward; counts of what teaches nothing; and the
-- mean and the deviation of each reward function.
local function rollouts()
  local groups = {}
  for _, of_rank in ipairs(dist.all_gather_object((tail and receive_groups or sample_groups)())) do
    for _, group in ipairs(of_rank) do groups[#groups + 1] = group end
  end
  done.steps = done.steps + 1
  return losses.rollouts(groups, { prompt = function(group) return task.problem(group.problem).prompt end,
    scale = config.advantage_scale, log_probs = (tail or server) ~= nil, seq_len = config.seq_len,
    max_new_tokens = config.max_new_tokens, stop = task.stop })
end

local function log_probs_of(batch) return (model(batch, "log_probs", { temperature = config.temperature })) end

for step, samples, reward, counts, moments in run:steps(rollouts, steps) do
  local row = grid:rank "dp"
  local batches, report = batching.prepare { samples = samples, seq_len = config.seq_len, rank = row, ranks = grid.dp,
    pad_to_multiple_of = grid.token_multiple,
    streams = { advantages = 0, old_log_probs = (tail or server) and 0 or nil } }
  if config.loss.beta > 0 then -- log-probabilities under the model without its adapter, and without noise
    local references = lora.disabled(model, sharding.infer, model, batches[row + 1], log_probs_of)
    for i, batch in ipairs(batches[row + 1]) do batch.reference = references[i] end
  end
  local divisor = losses.grpo_divisor(config.loss.variant, { tokens = report.loss_tokens,
    sequences = #samples - report.samples_without_loss }) -- an answer may be empty
  local function loss_of(batch)
    local log_probs = log_probs_of(batch)
    batch.old_log_probs = batch.old_log_probs or log_probs:detach() -- by the weights that sampled the answers
    local o = { log_probs = log_probs, old_log_probs = batch.old_log_probs, advantages = batch.advantages,
      loss_mask = batch.loss_mask, seq_lens = batch.seq_lens, reference = batch.reference,
      max_tokens = config.loss.variant == "dr_grpo" and config.max_new_tokens or nil }
    for name, value in pairs(config.loss) do o[name] = value end
    local sum, count, stats = losses.grpo(o)
    return sum, count, stats.clipped * (divisor / report.loss_tokens), stats.kl * (divisor / report.loss_tokens)
  end
  counts.stale = tail and done.stale or nil
  local lr_now = optimizer.groups[1].lr * schedule(step)
  local line = { reward = reward, tokens = report.tokens, lr = lr_now, counts = counts }
  for name, value in pairs(moments) do line[name] = value end
  for _ = 1, config.updates do
    line.loss, line.clipped, line.kl = sharding.accumulate(model, batches[row + 1], divisor, loss_of, { whole = true })
    line.grad_norm = optimizer:step(schedule(step), { max_grad_norm = config.max_norm })
    optimizer:zero_grad()
  end
  log.step(line)
end
log.curve("reward.svg", { "reward" }, { title = "grpo" })
save(run.dir .. "/result")
log.print("wrote " .. run.dir .. "/result")
