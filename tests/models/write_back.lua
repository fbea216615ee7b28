-- Trains each folder here for a step and saves it; saves models that were built from a config, too. check.py runs this
-- and loads the folders with transformers.

local core = require "lockstep.core"
local data = require "lockstep.data"
local models = require "lockstep.models"
local optim = require "lockstep.optim"
local run = require "lockstep.run"
local torch = require "lockstep.torch"

local out = run.args[1] or error("write_back.lua takes one argument, the folder to write to", 0)
core.make_folder(out)

local function write(name, model, opts)
  models.save(model, out .. "/" .. name, opts)
  local ids = torch.tensor({ 3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5 }, { dtype = torch.int64 })
  local generated = models.generate(model, { ids:totable(), { 2, 7, 1 } })
  data.save_safetensors(out .. "/" .. name .. ".safetensors", { input_ids = ids,
    logits = torch.no_grad(model, { input_ids = ids }), generated = torch.tensor(generated, { dtype = torch.int64 }) })
  core.write_file(out .. "/names.txt", { (io.open(out .. "/names.txt") or io.tmpfile()):read("*a"), name, "\n" })
end

core.write_file(out .. "/names.txt", { "" })
local FOLDERS = { "llama", "llama_tied", "qwen2", "qwen3", "qwen3_yarn", "qwen3_moe", "qwen3_moe_packed" }
for _, name in ipairs(dofile "tests/models/families_fixture.lua") do FOLDERS[#FOLDERS + 1] = name end
for _, name in ipairs(FOLDERS) do
  local like = "tests/models/" .. name
  local model = models.load(like)
  local answers = data.safetensors(like .. "/answers.safetensors")
  local optimizer = optim.AdamW(model:parameters(), { lr = 1e-2 })
  model:loss({ input_ids = answers.input_ids, seq_lens = answers.seq_lens:totable() }):backward()
  optimizer:step()
  write(name, model, { like = like })
  write(name .. "_shards", model, { like = like, max_shard_bytes = 20000 })
end

local SIZES = { vocab_size = 61, hidden_size = 24, intermediate_size = 36, num_hidden_layers = 2,
  num_attention_heads = 6, num_key_value_heads = 2, head_dim = 8, initializer_range = 0.4, rope_theta = 1000000 }
for _, kind in ipairs { "llama", "qwen2", "qwen3", "qwen3_moe" } do
  local config = { model_type = kind }
  for key, value in pairs(SIZES) do config[key] = value end
  if kind == "qwen2" then config.head_dim = nil end
  if kind == "qwen3_moe" then
    config.num_experts, config.num_experts_per_tok, config.moe_intermediate_size = 4, 2, 12
    config.mlp_only_layers = {}
  end
  write("built_" .. kind, models.build(config))
end
