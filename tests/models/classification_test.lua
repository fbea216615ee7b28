-- Models that score sequences against the answers of transformers (see make.py): scores, and the loss of pairs with its
-- gradients. A language model that gets a head learns preferences, and is saved as transformers opens it.

local core = require "lockstep.core"
local data = require "lockstep.data"
local lora = require "lockstep.lora"
local losses = require "lockstep.losses"
local models = require "lockstep.models"
local optim = require "lockstep.optim"
local run = require "lockstep.run"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local FOLDERS = { llama_classifier = 3, qwen3_reward = 1, gemma3_reward = 1 }

local function difference(a, b) return (a - b):abs():max():item() end

local function answers_of(folder)
  local answers = data.safetensors("tests/models/" .. folder .. "/answers.safetensors")
  return answers, { input_ids = answers.input_ids, seq_lens = answers.seq_lens:totable() }
end

local function pair_loss(model, batch, margin)
  local scores = model(batch):select(1, 0):view(-1, 2)
  return losses.reward { chosen = scores:select(1, 0), rejected = scores:select(1, 1), margin = margin, center = 0.05 }
end

for folder, labels in pairs(FOLDERS) do
  local path = "tests/models/" .. folder

  t.test("ScoresAndGradientsOf_" .. folder, function()
    local answers, batch = answers_of(folder)
    local model = models.load(path)

    t.near(torch.no_grad(model, batch), answers.logits, 5e-5)
    t.equal(model.num_labels, labels)
    local sum, count = pair_loss(model, batch, answers.margin)
    sum:backward()

    t.equal(count, 2)
    t.near(sum:item() / answers.loss:item(), 1, 1e-5)
    local seen = 0
    for name, p in model:named_parameters() do
      local expected = answers["gradient." .. name]
      local relative = difference(p.grad, expected) / expected:abs():max():item()
      t.truthy(relative <= 1e-4, ("%s: gradient off by %.2g of its largest element"):format(name, relative))
      seen = seen + 1
    end
    for name in pairs(answers) do seen = seen - (name:find("^gradient%.") and 1 or 0) end
    t.equal(seen, 0)
  end)

  t.test("ASavedFolderIsTheModel_" .. folder, function()
    local _, batch = answers_of(folder)
    local model = models.load(path)
    models.save(model, run.dir .. "/" .. folder, { like = path })

    local saved = models.load(run.dir .. "/" .. folder)

    t.equal(difference(torch.no_grad(saved, batch), torch.no_grad(model, batch)), 0)
  end)

  t.test("AShardedModelIsThePlainOne_" .. folder, function()
    local answers, batch = answers_of(folder)
    local model = models.load(path, { shard = {} })
    t.near(torch.no_grad(model, batch), answers.logits, 5e-5)
  end)
end

t.test("ALanguageModelWithAHeadLearnsPreferences", function()
  torch.manual_seed(3)
  local path = run.dir .. "/new_reward"
  local model = models.load("tests/models/llama_tied", { num_labels = 1 })
  t.equal({ model.class_name, model.score.weight.shape[1] }, { "LlamaForSequenceClassification", 1 })
  t.truthy(lora.apply(model, { r = 4, alpha = 8, targets = "all-linear", modules_to_save = { "score" } }) == 14)
  local batch = { input_ids = torch.tensor({ 3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8 }, { dtype = torch.int64 }),
    seq_lens = { 4, 2, 3, 3 } }
  local optimizer, first, last = optim.AdamW(model:parameters(), { lr = 0.02 }), nil, nil
  for _ = 1, 12 do
    local sum, count, stats = pair_loss(model, batch)
    first, last = first or sum:item() / count, { sum:item() / count, stats.correct:item(), stats.margin:item() }
    sum:backward()
    optimizer:step()
    optimizer:zero_grad()
  end
  t.truthy(last[1] < 0.5 * first and last[2] == 2 and last[3] > 0, last[1] .. " after " .. first)
  local scores = torch.no_grad(model, batch)
  lora.merge(model)

  models.save(model, path, { like = "tests/models/llama_tied" })

  local config = core.json_decode(assert(io.open(path .. "/config.json")):read "*a")
  t.equal({ config.architectures[1], config.id2label["0"], config.label2id.LABEL_0, config.vocab_size },
    { "LlamaForSequenceClassification", "LABEL_0", 0, 61 })
  t.near(torch.no_grad(models.load(path), batch), scores, 1e-5)
end)

t.test("ClassesOfAThirdKindAndMistakesAreNamed", function()
  local model = models.load("tests/models/qwen3", { num_labels = 4 })
  t.equal(models.load("tests/models/qwen3_reward", { num_labels = 1 }).num_labels, 1)
  t.equal(model({ input_ids = torch.tensor({ 1, 2 }, { dtype = torch.int64 }) }).shape, { 1, 4 })
  for _, method in ipairs { "loss", "log_probs", "generate" } do
    t.raises("Qwen3ForSequenceClassification scores sequences, and predicts no tokens: it has no " .. method,
      model[method], model, {})
  end
  t.raises('forward returns "scores" or "hidden", not "loss"', model, {}, "loss")
  local without_tokens = setmetatable({ hidden = function() return torch.zeros { 3, 20 } end }, { __index = model })
  t.raises("seq_lens[2] is 0: a sequence without tokens has no score", model.scores, without_tokens,
    { seq_lens = { 3, 0 } })
  t.raises("this batch has shares of samples", model.scores, model, { input_ids = torch.arange(3), shares = {} })
  t.raises("num_labels must be a whole number of at least 1, got 0", models.load, "tests/models/qwen3",
    { num_labels = 0 })
  t.raises("num_labels: GraniteForCausalLM has no class for sequence classification", models.load,
    "tests/models/granite", { num_labels = 1 })
  t.raises('unknown architecture "GraniteForSequenceClassification"', models.build,
    { architectures = { "GraniteForSequenceClassification" } })
end)
