--- The task that grpo.lua and dpo.lua learn unless told otherwise: write a word backwards, letter by letter. With
--- `images` every other word comes as a picture, a column of patches for each letter. Also makes a small model for it.

local batching = require "lockstep.batching"
local data = require "lockstep.data"
local dist = require "lockstep.distributed"
local files = require "lockstep.files"
local models = require "lockstep.models"
local optim = require "lockstep.optim"
local run = require "lockstep.run"
local text = require "lockstep.text"
local torch = require "lockstep.torch"

local M = {}

local SPECIAL = { "<|user|>", "<|assistant|>", "<|end|>", "<|image|>", "<|video|>" }
local TEMPLATE = "{% for m in messages %}<|{{ m.role }}|>{% if m.role == 'assistant' %}{% generation %}{{ m.content }}"
  .. "<|end|>{% endgeneration %}{% else %}{{ m.content }}<|end|>{% endif %}{% endfor %}"
  .. "{% if add_generation_prompt %}<|assistant|>{% endif %}"
local PATCH = 2 -- pixels; 2 x 2 patches are a token, as in Qwen3-VL
local I64 = { dtype = torch.int64 }

--- Returns the word of a number, 3 to 6 letters that look random.
local function word_of(number)
  local state = (number * 7919 + 12345) % 2147483647
  local function draw(n)
    state = state * 48271 % 2147483647
    return math.floor(state / 2147483647 * n)
  end
  local letters = {}
  for i = 1, 3 + draw(4) do letters[i] = string.char(97 + draw(26)) end
  return table.concat(letters)
end

--- Returns the length of the longest common subsequence.
local function common_length(a, b)
  local row = {}
  for j = 0, #b do row[j] = 0 end
  for i = 1, #a do
    local diagonal = 0
    for j = 1, #b do
      local above = row[j]
      row[j] = a:byte(i) == b:byte(j) and diagonal + 1 or math.max(above, row[j - 1])
      diagonal = above
    end
  end
  return row[#b]
end

--- Returns the task for the tokenizer and the chat template of a model's folder. A task of your own is a module next to
--- the script with such a function. It returns a table with these two functions, with the ids that end an answer and
--- those of placeholders of pictures.
function M.new(dir, images)
  local chat, tokenizer = text.chat(dir), text.tokenizer(dir)
  local per_letter = 4 * 3 * 2 * PATCH * PATCH -- patches, channels, frames, pixels
  local drawings = torch.cos(torch.arange(26 * per_letter):square() * 0.37):view(26 * 4, -1)
  local task = { stop = { tokenizer:id "<|end|>" } }
  task.placeholders = { tokenizer:id "<|image|>", tokenizer:id "<|video|>" }

  --- Returns the problem of a number: messages, the right answer, and `prompt`, which models.generate takes.
  function task.problem(number)
    local word = word_of(number)
    local is_image = images and number % 2 == 1
    local messages = { { role = "user", content = is_image and ("<|image|>"):rep(#word) or word } }
    local ids = chat:encode(messages, { generation_prompt = true }).input_ids
    local problem = { messages = messages, answer = word:reverse() }
    problem.prompt = { input_ids = torch.tensor(ids, I64) }
    if is_image then
      local patches = {}
      for letter in word:gmatch(".") do patches[#patches + 1] = drawings:narrow(0, 4 * (letter:byte() - 97), 4) end
      problem.prompt.pixel_values = torch.cat(patches)
      problem.prompt.image_grid_thw = torch.tensor({ { 1, 2, 2 * #word } }, I64)
    end
    return problem
  end

  --- Returns 1 for the right answer, and less for a part of it in the right order or for too many letters.
  function task.reward(problem, ids)
    local answer = tokenizer:decode(ids, { skip_special = true })
    return 2 * common_length(answer, problem.answer) / (#answer + #problem.answer)
  end
  return task
end

local function write_tokenizer(dir)
  local vocab, added = data.ordered({}, {}), data.array {}
  local count = 0
  for byte = 32, 126 do
    vocab[byte == 32 and "\196\160" or string.char(byte)] = count
    count = count + 1
  end
  for i, content in ipairs(SPECIAL) do
    added[i] = { id = count, content = content, single_word = false, lstrip = false, rstrip = false,
      normalized = false, special = true }
    count = count + 1
  end
  data.save_json(dir .. "/tokenizer.json", { version = "1.0", normalizer = data.null, post_processor = data.null,
    added_tokens = added, decoder = { type = "ByteLevel" },
    model = { type = "BPE", vocab = vocab, merges = data.array {} },
    pre_tokenizer = { type = "ByteLevel", add_prefix_space = false, trim_offsets = true, use_regex = false } })
  files.write(dir .. "/chat_template.jinja", { TEMPLATE })
  return count
end

local function config_of(vocab_size, images)
  local decoder = { architectures = { "Qwen3ForCausalLM" }, model_type = "qwen3", vocab_size = vocab_size,
    hidden_size = 64, intermediate_size = 128, num_hidden_layers = 2, num_attention_heads = 4, num_key_value_heads = 2,
    head_dim = 16, rms_norm_eps = 1e-6, rope_theta = 10000, max_position_embeddings = 256, hidden_act = "silu",
    tie_word_embeddings = false, initializer_range = 0.05 }
  if not images then return decoder end
  decoder.architectures, decoder.model_type, decoder.rope_theta = nil, "qwen3_vl_text", nil
  decoder.rope_parameters = { rope_type = "default", rope_theta = 10000, mrope_interleaved = true,
    mrope_section = { 4, 2, 2 } }
  return { architectures = { "Qwen3VLForConditionalGeneration" }, model_type = "qwen3_vl", text_config = decoder,
    image_token_id = vocab_size - 2, video_token_id = vocab_size - 1, tie_word_embeddings = false,
    vision_config = { model_type = "qwen3_vl_vision", depth = 1, hidden_size = 32, num_heads = 2, out_hidden_size = 64,
      intermediate_size = 64, patch_size = PATCH, temporal_patch_size = 2, spatial_merge_size = 2, in_channels = 3,
      num_position_embeddings = 64, deepstack_visual_indexes = data.array {}, hidden_act = "gelu_pytorch_tanh" } }
end

--- Writes `count` preferences, as dpo.lua reads them, and returns the path: the word backwards is chosen, the word with
--- one letter of the answer changed is rejected. Collective.
function M.write_preferences(path, count)
  local preferences = {}
  for number = 1, count do
    local word = word_of(number)
    local answer, at = word:reverse(), number % #word + 1
    local wrong = answer:sub(1, at - 1) .. string.char(97 + (answer:byte(at) - 97 + 1 + number % 25) % 26)
      .. answer:sub(at + 1)
    local function says(role, content) return { { role = role, content = content } } end
    preferences[number] = { prompt = says("user", word), chosen = says("assistant", answer),
      rejected = says("assistant", wrong) }
  end
  if dist.rank() == 0 then data.save_jsonl(path, preferences) end
  dist.barrier()
  return path
end

--- Returns a problem with its answer, as a sample for batching.
local function sample_of(task, chat, number)
  local problem = task.problem(number)
  problem.messages[2] = { role = "assistant", content = problem.answer }
  local sample = chat:encode(problem.messages)
  sample.pixel_values, sample.image_grid_thw = problem.prompt.pixel_values, problem.prompt.image_grid_thw
  return sample
end

--- Writes a small model with its tokenizer, unless the folder is there. It has learnt the task a little, in
--- `steps` supervised steps on rank 0: reinforcement needs some answers that are better than others. Collective.
function M.write_model(dir, o)
  if dist.all_gather_object(#files.list(dir) > 0)[1] then return end -- what rank 0 sees counts
  local like, config = dir .. ".tokenizer", config_of(95 + #SPECIAL, o.images)
  if dist.rank() == 0 then
    files.make_folder(like)
    write_tokenizer(like)
    data.save_json(like .. "/config.json", config)
  end
  local net = models.build(config)
  local function learn()
    local task, chat, optimizer = M.new(like, o.images), text.chat(like), optim.AdamW(net:parameters(), { lr = 3e-3 })
    for step = 1, o.steps do
      local samples = {}
      for i = 1, 32 do samples[i] = sample_of(task, chat, -32 * step - i) end
      local batches, report = batching.prepare { samples = samples, seq_len = 1024, ranks = 1, check = false }
      for _, batch in ipairs(batches[1]) do (net:loss(batch) / report.loss_tokens):backward() end
      optimizer:step()
      optimizer:zero_grad()
    end
  end
  if dist.rank() == 0 then run.alone(learn) end
  models.save(net, dir, { like = like })
end

return M
