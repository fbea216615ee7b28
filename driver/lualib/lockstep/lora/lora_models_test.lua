-- LoRA on the models of lockstep.models: every adapter takes part in the loss, and merged models are saved and loaded.

local core = require "lockstep.core"
local data = require "lockstep.data"
local lora = require "lockstep.lora"
local models = require "lockstep.models"
local run = require "lockstep.run"
local t = require "lockstep.testing"
local tiny = require "tiny_fixture"
local torch = require "lockstep.torch"

local FOLDERS = "tests/models/"

local CASES = {
  qwen2 = { targets = "all-linear", rslora = true },
  llama = { targets = { "v_proj" }, modules_to_save = { "lm_head" } },
  qwen3 = { targets = "all-linear", dora = true },
  llama_tied = { targets = { "q_proj", "down_proj" }, modules_to_save = { "embed_tokens", "lm_head" } },
  qwen3_next = { r = 2, targets = "all-linear", parameters = { "experts.gate_up_proj" } },
  qwen3_moe = { r = 2, targets = { "q_proj", "o_proj" }, parameters = { "experts.gate_up_proj", "experts.down_proj" } },
}

local ids = torch.arange(14)

for name, options in pairs(CASES) do
  t.test("EveryAdapterOf_" .. name .. "_TakesPartAndMerges", function()
    torch.manual_seed(1)
    local model = models.load(FOLDERS .. name)
    local before = torch.no_grad(model, { input_ids = ids })
    lora.apply(model, options)
    torch.no_grad(function()
      for _, p in ipairs(model:parameters()) do
        if p.requires_grad then p:add_(torch.randn_like(p) * 0.1) end
      end
    end)

    local sum, count = model:loss { input_ids = ids, seq_lens = { 9, 5 } }
    local loss = sum / count
    loss:backward()

    for full, p in model:named_parameters() do
      t.equal(p.grad ~= nil, p.requires_grad, full)
      if p.grad then t.truthy(p.grad:abs():max():item() > 0, full) end
    end
    local logits = torch.no_grad(model, { input_ids = ids })
    t.near(lora.disabled(model, model, { input_ids = ids }), before, 1e-5)
    local generated = models.generate(model, { { 3, 1, 4 } }, { max_new_tokens = 4 })
    lora.save(model, run.dir .. "/adapter_" .. name)
    lora.save_merged(run.dir .. "/adapter_" .. name, run.dir .. "/at_once_" .. name, { like = FOLDERS .. name })
    local at_once = models.load(run.dir .. "/at_once_" .. name)
    t.near(torch.no_grad(at_once, { input_ids = ids }), logits, 1e-4)
    lora.merge(model)
    t.near(torch.no_grad(model, { input_ids = ids }), logits, 1e-4)
    models.save(model, run.dir .. "/" .. name, { like = FOLDERS .. name })
    local loaded = models.load(run.dir .. "/" .. name)
    t.near(torch.no_grad(loaded, { input_ids = ids }), logits, 1e-4)
    t.equal(models.generate(loaded, { { 3, 1, 4 } }, { max_new_tokens = 4 }), generated)
    t.truthy((logits - before):abs():max():item() > 0.1)
  end)
end

-- Folders of PEFT for a model whose head is its embedding. PEFT trains and saves the two apart, except in "kept" ones.
local SAVED = { tied_head = 1, tied_embedding = 1, tied_both = 2, tied_head_kept = 2, tied_embedding_kept = 2,
  tied_both_kept = 2 }

for case, saved in pairs(SAVED) do
  t.test("PeftsFolderOfATiedModelComputesTheSame_" .. case, function()
    local folder = tiny.FIXTURES .. "/" .. case
    local expected = data.safetensors(folder .. "/expected.safetensors")
    local batch, is_kept = { input_ids = expected.ids }, case:find "kept$" ~= nil
    local model = models.load(FOLDERS .. "llama_tied")
    local before, parameters = torch.no_grad(model, batch), #model:parameters()

    t.equal(lora.load(model, folder), 2)

    t.equal(#model:parameters(), parameters + 4 + (is_kept and 0 or 1))
    local logits = model(batch)
    t.near(logits:detach(), expected.logits, 5e-5)
    t.near(lora.disabled(model, model, batch), before, 0)
    tiny.loss(logits):backward()
    local gradients = 0
    for name, p in model:named_parameters() do
      local theirs = expected["grad.base_model.model." .. name]
      t.equal(p.grad ~= nil, theirs ~= nil, name)
      if theirs then
        gradients = gradients + 1
        t.near(p.grad, theirs, 1e-4 * theirs:abs():max():item(), name)
      end
    end
    t.equal(gradients, 4 + (is_kept and 1 or saved))

    lora.save(model, run.dir .. "/" .. case)
    local config = core.json_decode(t.read_file(run.dir .. "/" .. case .. "/adapter_config.json"))
    t.equal({ #config.modules_to_save, config.ensure_weight_tying }, { saved, is_kept })
    local again = models.load(FOLDERS .. "llama_tied")
    for _ = 1, 2 do lora.load(again, run.dir .. "/" .. case) end -- the second time into adapters that are there
    t.equal(torch.no_grad(again, batch), logits:detach())

    lora.merge(model)
    models.save(model, run.dir .. "/merged_" .. case, { like = FOLDERS .. "llama_tied" })
    local merged = models.load(run.dir .. "/merged_" .. case)
    t.near(torch.no_grad(merged, batch), expected.logits, 1e-4)
    t.equal(merged.config.tie_word_embeddings, is_kept)
  end)
end

t.test("TheRoutersOfAMixtureAreNoTargets", function()
  local model = models.load(FOLDERS .. "qwen3_moe")
  lora.apply(model, { targets = "all-linear" })

  for full, p in model:named_parameters() do
    t.truthy(not full:find("mlp%.gate%.") or not p.requires_grad, full)
  end
end)
