-- Each folder here against the answers of transformers in it (see make.py): logits, loss, gradients, log-probabilities,
-- entropies and generated ids.

local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local parity = dofile "tests/models/parity_fixture.lua"

local FOLDERS = { "llama", "llama_tied", "qwen2", "qwen3", "qwen3_yarn", "qwen3_moe", "qwen3_moe_packed",
  "phi3_longrope", "llama_dynamic" }

local answers_of, load = parity.answers_of, parity.load

local function difference(a, b) return (a - b):abs():max():item() end

for _, folder in ipairs(FOLDERS) do parity.add_text_tests(folder) end

t.test("LogProbsHaveTheGradientOfTheFormula", function()
  local _, batch = answers_of "qwen3"
  local model = load "qwen3"
  local weights = torch.linspace(-1, 1, batch.input_ids:size(0))

  local log_probs, entropy = model(batch, "log_probs", { tile_tokens = 5, temperature = 0.7 })
  local gradients = torch.grad({ ((log_probs + entropy * 0.3) * weights):sum() }, model:parameters())

  local distribution = (model(batch) / 0.7):log_softmax(-1)
  local labels = torch.roll(batch.input_ids, -1):unsqueeze(-1)
  local own = torch.roll(distribution:gather(-1, labels):squeeze(-1), 1)
  local spread = torch.roll(-(distribution:exp() * distribution):sum({ -1 }), 1)
  local start = 0
  local counts = torch.ones(batch.input_ids:size(0))
  for _, length in ipairs(batch.seq_lens) do
    counts[start] = 0
    start = start + length
  end
  local expected = torch.grad({ ((own + spread * 0.3) * weights * counts):sum() }, model:parameters())
  for i, gradient in ipairs(gradients) do
    t.truthy(difference(gradient, expected[i]) <= 1e-4 * expected[i]:abs():max():item(), "gradient " .. i)
  end
end)

t.test("PackedRowsAreTheSequencesAlone", function()
  local _, batch = answers_of "qwen3"
  local model = load "qwen3"

  local together = torch.no_grad(model, { input_ids = batch.input_ids, seq_lens = batch.seq_lens })

  local from = 0
  for _, length in ipairs(batch.seq_lens) do
    local alone = torch.no_grad(model, { input_ids = batch.input_ids:narrow(0, from, length) })
    t.near(together:narrow(0, from, length), alone, 1e-5)
    from = from + length
  end
end)

t.test("CheckpointedLayersGiveTheSameGradients", function()
  local _, batch = answers_of "qwen3_moe"
  local model = load "qwen3_moe"
  local expected = torch.grad({ (model:loss(batch)) }, model:parameters())

  model.checkpoint = require("lockstep.checkpoint").new {}
  local gradients = torch.grad({ (model:loss(batch)) }, model:parameters())

  t.truthy(model.checkpoint:stats().recomputes > 0)
  for i, gradient in ipairs(gradients) do t.equal(difference(gradient, expected[i]), 0, "gradient " .. i) end
end)

-- transformers' label_smoothing_factor: (1 - e) of the loss, and e of the mean of -log p over the vocabulary.
t.test("LabelSmoothingIsThatOfTransformersInTraining", function()
  local _, batch = answers_of "qwen3"
  local model = load "qwen3"
  local plain, count = model:loss(batch)
  model.label_smoothing = 0.1

  local smoothed, same_count = model:loss(batch)

  local minus = -model(batch):log_softmax(-1)
  local expected, last = torch.zeros {}, 0
  for _, length in ipairs(batch.seq_lens) do
    for i = last, last + length - 2 do
      if not batch.loss_mask or batch.loss_mask[i + 1]:to(torch.int64):item() == 1 then
        local own = minus[i][batch.input_ids[i + 1]:item()]
        expected = expected + 0.9 * own + 0.1 * minus[i]:mean()
      end
    end
    last = last + length
  end
  t.equal(same_count, count)
  t.near(smoothed:item() / expected:item(), 1, 1e-5)
  local gradients, right = torch.grad({ smoothed }, model:parameters()), torch.grad({ expected }, model:parameters())
  for i, gradient in ipairs(gradients) do
    t.truthy(difference(gradient, right[i]) <= 1e-4 * right[i]:abs():max():item(), "gradient " .. i)
  end
  model:eval()
  t.equal(model:loss(batch):item(), plain:item())
end)
