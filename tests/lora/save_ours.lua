--- Writes adapters by lora.save, for check_ours.py: a folder per case with the logits and the merged weights.

package.path = "driver/lualib/lockstep/lora/?.lua;" .. package.path

local data = require "lockstep.data"
local lora = require "lockstep.lora"
local models = require "lockstep.models"
local run = require "lockstep.run"
local tiny = require "tiny_fixture"
local torch = require "lockstep.torch"

local CASES = {
  plain = { r = 3, alpha = 5 },
  all_linear = { r = 2, alpha = 4, targets = "all-linear", rslora = true, dropout = 0.1 },
  one_layer = { r = 2, targets = { "layers.1.q_proj", "o_proj" } },
  dora = { r = 4, alpha = 4, targets = { "o_proj", "v_proj" }, dora = true },
  experts = { r = 2, alpha = 3, targets = {}, parameters = { "experts.gate_up_proj", "experts.down_proj" } },
  one_of_experts = { r = 3, alpha = 3, targets = { "q_proj" }, parameters = { "experts.gate_up_proj" }, rslora = true },
  whole = { r = 2, modules_to_save = { "embed_tokens", "lm_head" } },
}

-- Adapters of the models in tests/models, which transformers loads.
local MODELS = {
  qwen2 = { targets = "all-linear", rslora = true },
  qwen3 = { targets = "all-linear", dora = true },
  llama_tied = { targets = { "q_proj", "down_proj" }, modules_to_save = { "embed_tokens", "lm_head" } },
  qwen3_moe = { r = 2, targets = { "q_proj", "o_proj" }, parameters = { "experts.gate_up_proj", "experts.down_proj" } },
}

local function adapt(model, options)
  lora.apply(model, options)
  torch.no_grad(function()
    for _, p in ipairs(model:parameters()) do
      if p.requires_grad then p:add_(torch.randn_like(p) * 0.3) end
    end
  end)
end

local folder = assert(run.args[1], "give the folder to write to")
torch.manual_seed(1)
local ids = torch.randint(11, { 9 }, { dtype = torch.int64 })
for case, options in pairs(CASES) do
  local model = tiny.base_of(case)
  adapt(model, options)
  lora.save(model, folder .. "/" .. case)
  local expected = { ids = ids, logits = torch.no_grad(model:eval(), ids) }
  lora.merge(model)
  for name, tensor in pairs(model:state_dict()) do expected["merged." .. name] = tensor end
  data.save_safetensors(folder .. "/" .. case .. "/expected.safetensors", expected)
end

for name, options in pairs(MODELS) do
  local model, path = models.load("tests/models/" .. name), folder .. "/models." .. name
  adapt(model, options)
  lora.save(model, path)
  local expected = { ids = ids, logits = torch.no_grad(model, { input_ids = ids }) }
  lora.merge(model)
  models.save(model, path .. "/merged", { like = "tests/models/" .. name })
  data.save_safetensors(path .. "/expected.safetensors", expected)
end
