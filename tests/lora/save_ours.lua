--- Writes adapters by lora.save, for check_ours.py: a folder per case with the logits and the merged weights.

package.path = "driver/lua/lockstep/lora/?.lua;" .. package.path

local data = require "lockstep.data"
local lora = require "lockstep.lora"
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

local folder = assert(run.args[1], "give the folder to write to")
torch.manual_seed(1)
local ids = torch.randint(11, { 9 }, { dtype = torch.int64 })
for case, options in pairs(CASES) do
  local model = tiny.base_of(case)
  lora.apply(model, options)
  torch.no_grad(function()
    for _, p in ipairs(model:parameters()) do
      if p.requires_grad then p:add_(torch.randn_like(p) * 0.3) end
    end
  end)
  lora.save(model, folder .. "/" .. case)
  local expected = { ids = ids, logits = torch.no_grad(model:eval(), ids) }
  lora.merge(model)
  for name, tensor in pairs(model:state_dict()) do expected["merged." .. name] = tensor end
  data.save_safetensors(folder .. "/" .. case .. "/expected.safetensors", expected)
end
