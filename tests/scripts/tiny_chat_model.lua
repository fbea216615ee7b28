-- Writes what finetune.lua takes: a small model of random weights with a tokenizer and a chat template, one with
-- experts, one in 8 bits, and a file of conversations that they can learn by heart.

local data = require "lockstep.data"
local models = require "lockstep.models"
local run = require "lockstep.run"
local torch = require "lockstep.torch"

local tokenizer, template, folder = run.args[1], run.args[2], run.args[3]
torch.manual_seed(1)
local model = models.build {
  architectures = { "Qwen3ForCausalLM" }, model_type = "qwen3", hidden_size = 48, intermediate_size = 96,
  num_hidden_layers = 2, num_attention_heads = 4, num_key_value_heads = 2, head_dim = 16, vocab_size = 2005,
  rms_norm_eps = 1e-6, rope_theta = 10000, tie_word_embeddings = false, max_position_embeddings = 512,
  hidden_act = "silu", eos_token_id = 2002, initializer_range = 0.1,
}
models.save(model, folder .. "/model")
models.save(models.build {
  architectures = { "Qwen3MoeForCausalLM" }, model_type = "qwen3_moe", hidden_size = 16, num_hidden_layers = 1,
  num_attention_heads = 2, num_key_value_heads = 2, head_dim = 8, vocab_size = 2005, num_experts = 2,
  num_experts_per_tok = 1, moe_intermediate_size = 8, intermediate_size = 8, eos_token_id = 2002,
}, folder .. "/experts")
local function copy(from, to)
  local file, out = assert(io.open(from, "rb")), assert(io.open(to, "wb"))
  out:write(file:read("*a"))
  file:close()
  out:close()
end

-- The model as load_in_8bit of transformers writes it.
local tensors, eight = {}, folder .. "/int8"
models.save(model, eight)
for name, weight in pairs((data.safetensors(folder .. "/model/model.safetensors"))) do
  tensors[name] = weight
  if name:find "_proj%.weight$" then
    local magnitudes = weight:abs():amax({ 1 })
    tensors[name] = (weight * 127 / magnitudes:unsqueeze(1)):round():to(torch.int8)
    tensors[name:gsub("weight$", "SCB")] = magnitudes
  end
end
data.save_safetensors(eight .. "/model.safetensors", tensors)
local config = data.json(eight .. "/config.json")
config.quantization_config = { quant_method = "bitsandbytes", load_in_8bit = true }
data.save_json(eight .. "/config.json", config)

for _, name in ipairs { "/model", "/experts", "/int8" } do
  copy(tokenizer, folder .. name .. "/tokenizer.json")
  copy(template, folder .. name .. "/chat_template.jinja")
end

local file = assert(io.open(folder .. "/chats.jsonl", "w"))
for number, word in ipairs { "one", "two", "three", "four", "five", "six", "seven", "eight" } do
  local path = folder .. "/line.json"
  data.save_json(path, { messages = {
    { role = "user", content = "How is " .. number .. " written?" },
    { role = "assistant", content = "It is " .. word .. "." },
  } })
  file:write((assert(io.open(path)):read("*a"):gsub("%s*$", "")), "\n")
  os.remove(path)
end
file:close()
