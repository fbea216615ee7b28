--- Tests that every architecture passes: its loss and gradients against the answers of transformers.

local models = require "lockstep.models"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local M = {}

local function load(folder) return models.load("tests/models/" .. folder) end

local function difference(a, b) return (a - b):abs():max():item() end

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
      local relative = difference(p.grad, expected) / expected:abs():max():item()
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
        t.truthy(difference(model(batch), before) > 1e-3, name .. " does not change the logits")
        p:copy_(kept)
      end
      t.equal(difference(model(batch), before), 0)
    end)
  end)
end

return M
