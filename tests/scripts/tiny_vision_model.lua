-- Writes what finetune.lua, dpo.lua and chat.lua take: a small model of pictures and text with random weights, a
-- tokenizer, a chat template and a processor; and files of conversations and of preferences about four pictures.
--
-- lockstep tiny_vision_model.lua TOKENIZER PICTURES FOLDER: the names of the pictures are paths in PICTURES.

local core = require "lockstep.core"
local data = require "lockstep.data"
local models = require "lockstep.models"
local run = require "lockstep.run"
local torch = require "lockstep.torch"

local tokenizer_file, pictures, folder = run.args[1], run.args[2], run.args[3]
local dir = folder .. "/model"

local tokenizer, first = data.json(tokenizer_file), 2005
for i, token in ipairs { "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>" } do
  tokenizer.added_tokens[#tokenizer.added_tokens + 1] = { id = first + i - 1, content = token, special = true,
    lstrip = false, rstrip = false, normalized = false, single_word = false }
end

torch.manual_seed(1)
models.save(models.build {
  architectures = { "Qwen3VLForConditionalGeneration" }, model_type = "qwen3_vl", image_token_id = first + 2,
  video_token_id = first + 3, vision_start_token_id = first, vision_end_token_id = first + 1,
  tie_word_embeddings = false, initializer_range = 0.1, eos_token_id = 2002,
  text_config = { vocab_size = 2016, hidden_size = 32, intermediate_size = 48, num_hidden_layers = 2,
    num_attention_heads = 4, num_key_value_heads = 2, head_dim = 16, rms_norm_eps = 1e-6, hidden_act = "silu",
    max_position_embeddings = 512, rope_parameters = { rope_type = "default", rope_theta = 10000,
      mrope_section = { 4, 2, 2 }, mrope_interleaved = true } },
  vision_config = { depth = 2, hidden_size = 24, intermediate_size = 32, num_heads = 2, patch_size = 4,
    spatial_merge_size = 2, temporal_patch_size = 2, in_channels = 3, out_hidden_size = 32,
    num_position_embeddings = 16, deepstack_visual_indexes = { 0 }, hidden_act = "gelu_pytorch_tanh" },
}, dir)
data.save_json(dir .. "/tokenizer.json", tokenizer)
data.save_json(dir .. "/preprocessor_config.json", { image_processor_type = "Qwen2VLImageProcessor", patch_size = 4,
  size = { shortest_edge = 64, longest_edge = 512 } })
core.write_file(dir .. "/chat_template.jinja", { "{% for m in messages %}<|im_start|>{{ m.role }}\n"
  .. "{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}{% if p.type == 'image' %}"
  .. "<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ p.text }}{% endif %}{% endfor %}{% endif %}"
  .. "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}" })

local NAMES = { "jpeg_420.jpg", "png_grey_alpha.png", "webp_lossy.webp", "png_palette4.png" }
local lines = {}
for i, name in ipairs(NAMES) do
  lines[i] = core.json_encode { messages = {
    { role = "user", content = {
      { type = "image", path = pictures .. "/" .. name }, { type = "text", text = "Which picture?" } } },
    { role = "assistant", content = ({ "The first.", "The second.", "The third.", "The fourth." })[i] },
  } }
end
lines[5] = core.json_encode { messages = { { role = "user", content = "Which picture?" },
  { role = "assistant", content = "None." } } }
local text = table.concat(lines, "\n") .. "\n"
core.write_file(folder .. "/pictures.jsonl", { text:rep(8) }) -- so that what is held out is trained on, too

-- The forms of a picture: a column with a place in the prompt, one without, a path in the prompt.
local ANSWERS, pairs_of_answers = { "The first.", "The second.", "The third.", "The fourth." }, {}
local words = { type = "text", text = "Which picture?" }
for i = 1, 12 do
  local number = 1 + i % 4
  local path = pictures .. "/" .. NAMES[number]
  local row = { chosen = ANSWERS[number], rejected = ANSWERS[1 + (i + 1 + i % 3) % 4] }
  if i % 3 == 0 then
    row.images, row.prompt = { path }, { { role = "user", content = { { type = "image" }, words } } }
  elseif i % 3 == 1 then
    row.image, row.prompt = path, "Which picture?"
  else
    row.prompt = { { role = "user", content = { { type = "image", path = path }, words } } }
  end
  pairs_of_answers[i] = core.json_encode(i % 5 == 0 and { prompt = "Which picture?", chosen = "None.",
    rejected = ANSWERS[number] } or row)
end
core.write_file(folder .. "/pairs.jsonl", { table.concat(pairs_of_answers, "\n") .. "\n" })
