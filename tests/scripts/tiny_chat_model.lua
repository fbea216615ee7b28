-- Writes what finetune.lua takes: a small model of random weights with a tokenizer and a chat template, and a file of
-- conversations that it can learn by heart.

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
local function copy(from, to)
  local file, out = assert(io.open(from, "rb")), assert(io.open(to, "wb"))
  out:write(file:read("*a"))
  file:close()
  out:close()
end
copy(tokenizer, folder .. "/model/tokenizer.json")
copy(template, folder .. "/model/chat_template.jinja")

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
