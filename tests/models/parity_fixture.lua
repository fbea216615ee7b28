--- Tests that every architecture passes: its loss and gradients against the answers of transformers.

local data = require "lockstep.data"
local models = require "lockstep.models"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local M = {}

--- Loads a folder of tests/models.
function M.load(folder) return models.load("tests/models/" .. folder) end

local load = M.load

local function difference(a, b) return (a - b):abs():max():item() end

--- Whether a parameter changes nothing: what is added to all keys of an attention without rotation.
local function is_idle(name) return name:find("vision_tower", 1, true) and name:find("k_proj%.bias$") end

--- Adds the tests of a folder. `answers_of(folder)` returns the answers of transformers, and their batch.
function M.add_tests(folder, answers_of)
  t.test("LossAndGradientsOf_" .. folder, function()
    local answers, batch = answers_of(folder)
    local model = load(folder)
    models.generate(model, { { 3, 1 }, { 4 } }, { max_new_tokens = 3 }) -- what this leaves behind is fit for training

    local loss, count = model:loss(batch)
    loss:backward()

    t.equal(count, answers.count:item())
    t.near(loss:item() / answers.loss:item(), 1, 1e-5)
    local seen = 0
    for name, p in model:named_parameters() do
      local expected = answers["gradient." .. name]
      t.truthy(expected, "transformers has no gradient for " .. name)
      local relative = difference(p.grad, expected) / (is_idle(name) and 1 or expected:abs():max():item())
      t.truthy(relative <= 1e-4, string.format("%s: gradient off by %.2g of its largest element", name, relative))
      seen = seen + 1
    end
    for name in pairs(answers) do seen = seen - (name:find("^gradient%.") and 1 or 0) end
    t.equal(seen, 0, "parameters without a peer in transformers")
  end)

  t.test("EveryParameterMattersIn_" .. folder, function()
    local _, batch = answers_of(folder)
    local model = load(folder)
    local before = torch.no_grad(model, batch)
    torch.manual_seed(5)

    torch.no_grad(function()
      for name, p in model:named_parameters() do
        local kept = p:clone()
        p:add_(torch.randn(p.shape) * 0.5)
        t.truthy(is_idle(name) or difference(model(batch), before) > 1e-3, name .. " does not change the logits")
        p:copy_(kept)
      end
      t.equal(difference(model(batch), before), 0)
    end)
  end)
end

--- Returns transformers' answers of a folder, and their batch.
function M.answers_of(folder)
  local answers = data.safetensors("tests/models/" .. folder .. "/answers.safetensors")
  local batch = { input_ids = answers.input_ids, position_ids = answers.position_ids, loss_mask = answers.loss_mask,
    seq_lens = answers.seq_lens:totable() }
  return answers, batch
end

--- Adds the tests of a folder of a model of text: those of add_tests, logits, log-probabilities and entropies, and
--- generated ids.
function M.add_text_tests(folder)
  t.test("LogitsOf_" .. folder, function()
    local answers, batch = M.answers_of(folder)

    local logits = torch.no_grad(load(folder), batch)

    t.equal(logits.shape, answers.logits.shape)
    t.near(logits, answers.logits, 5e-5)
  end)

  M.add_tests(folder, M.answers_of)

  t.test("LogProbsAndEntropyOf_" .. folder, function()
    local answers, batch = M.answers_of(folder)
    local model = load(folder)

    local log_probs, entropy = model:log_probs(batch, { tile_tokens = 5 })

    t.near(log_probs, answers.log_probs, 1e-4)
    t.near(entropy, answers.entropy, 1e-4)
  end)

  t.test("GreedyIdsOf_" .. folder, function()
    local answers, batch = M.answers_of(folder)
    local ids, lengths = batch.input_ids:totable(), batch.seq_lens
    local prompts = { {}, {}, {} }
    for i = 1, lengths[1] do prompts[1][i] = ids[i] end
    for i = 1, lengths[2] do prompts[2][i] = ids[lengths[1] + i] end
    for i = 1, 3 do prompts[3][i] = ids[#ids - 3 + i] end
    local model = load(folder)

    t.equal(models.generate(model, prompts), answers.generated:totable(), "together")
    for i, prompt in ipairs(prompts) do
      t.equal(models.generate(model, { prompt }), { answers.generated[i - 1]:totable() }, "alone")
    end
  end)
end

return M
