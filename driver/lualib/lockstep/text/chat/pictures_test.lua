-- Pictures in conversations: chat:encode with a processor gives what a vision-language model takes.

local core = require "lockstep.core"
local data = require "lockstep.data"
local images = require "lockstep.images"
local models = require "lockstep.models"
local run = require "lockstep.run"
local t = require "lockstep.testing"
local text = require "lockstep.text"
local torch = require "lockstep.torch"

local IMAGE = 2007 -- the id of <|image_pad|>
local PNG = "driver/images/testdata/png_rgba.png"

--- A folder with a tokenizer that knows Qwen's tokens for pictures, a template and a processor.
local function make_folder()
  local dir = run.dir .. "/vlm"
  core.make_folder(dir)
  local tokenizer = data.json "driver/text/testdata/qwen2.json"
  for i, token in ipairs { "<|vision_start|>", "<|vision_end|>", "<|image_pad|>" } do
    tokenizer.added_tokens[#tokenizer.added_tokens + 1] = { id = 2004 + i, content = token, special = true,
      lstrip = false, rstrip = false, normalized = false, single_word = false }
  end
  data.save_json(dir .. "/tokenizer.json", tokenizer)
  core.write_file(dir .. "/chat_template.jinja", { "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    .. "{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}{% if p.type == 'image' %}"
    .. "<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ p.text }}{% endif %}{% endfor %}{% endif %}"
    .. "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}" })
  data.save_json(dir .. "/preprocessor_config.json", { image_processor_type = "Qwen2VLImageProcessor", patch_size = 4,
    size = { shortest_edge = 64, longest_edge = 4096 } })
  return dir
end

local dir = make_folder()
local chat, process = text.chat(dir), images.processor(dir)

local function question(...)
  return { { role = "user", content = { ..., { type = "text", text = "How many?" } } },
    { role = "assistant", content = "Two." } }
end

local function picture(height, width) return torch.full({ 3, height, width }, 100, { dtype = torch.uint8 }) end

local function count(list, value)
  local n = 0
  for _, element in ipairs(list) do n = n + (element == value and 1 or 0) end
  return n
end

t.test("EachPictureHasAPlaceholderForEachOfItsTokens", function()
  local messages = question({ type = "image", image = picture(16, 24) }, { type = "text", text = "And" })
  table.insert(messages, { role = "user", content = { { type = "image", path = PNG } } })

  local sample = chat:encode(messages, { processor = process })
  local plain = chat:encode(messages)

  local patches, grid = process(images.read(PNG, { alpha = "drop" })) -- as transformers reads the path of a message
  t.equal(sample.image_grid_thw, torch.cat { torch.tensor({ { 1, 4, 6 } }, { dtype = torch.int64 }), grid })
  t.equal(sample.pixel_values, torch.cat { (process(picture(16, 24))), patches })
  local tokens = 4 * 6 / 4 + patches:size(0) / 4
  t.equal(count(sample.input_ids, IMAGE), tokens)
  t.equal(count(sample.mm_token_type_ids, 1), tokens)
  t.equal(#sample.input_ids, #plain.input_ids - 2 + tokens)
  t.equal(#sample.loss_mask, #sample.input_ids)
  local said = {}
  for i, id in ipairs(sample.input_ids) do
    t.equal(sample.mm_token_type_ids[i] == 1, id == IMAGE)
    if sample.loss_mask[i] == 1 then said[#said + 1] = id end
  end
  t.equal(text.tokenizer(dir):decode(said), "Two.<|im_end|>")
  local rendered = chat:encode(messages, { processor = process, renderer = "qwen3_vl" })
  t.equal({ rendered.input_ids, rendered.loss_mask }, { sample.input_ids, sample.loss_mask })
end)

t.test("TheSampleIsOneThatAModelTakes", function()
  local config = data.json "tests/models/qwen3_vl/config.json"
  config.text_config.vocab_size, config.image_token_id, config.video_token_id = 2010, IMAGE, 2008
  config.vision_config.patch_size = 4
  torch.manual_seed(1)
  local model = models.build(config)
  local sample = chat:encode(question { type = "image", image = picture(16, 24) }, { processor = process })

  local sum, number = model:loss { input_ids = torch.tensor(sample.input_ids, { dtype = torch.int64 }),
    loss_mask = torch.tensor(sample.loss_mask), pixel_values = sample.pixel_values,
    image_grid_thw = sample.image_grid_thw }

  t.equal(number, count(sample.loss_mask, 1))
  t.truthy(sum:item() > 0)
  t.equal(#models.generate(model, { sample }, { max_new_tokens = 3, stop = {} })[1], 3)
end)

t.test("TextAloneHasNoPixels", function()
  local messages = { { role = "user", content = "Hi" }, { role = "assistant", content = "Hello" } }

  local sample, plain = chat:encode(messages, { processor = process }), chat:encode(messages)

  t.equal({ sample.input_ids, sample.loss_mask }, { plain.input_ids, plain.loss_mask })
  t.equal(count(sample.mm_token_type_ids, 0), #sample.input_ids)
  t.equal({ sample.pixel_values, sample.image_grid_thw }, {})
end)

t.test("RelativePathsBeginAtTheFolder", function()
  local folder, name = PNG:match "^(.*)/(.*)$"
  local messages = question { type = "image", path = name, image = data.null }

  t.equal(chat:encode(messages, { processor = process, folder = folder }),
    chat:encode(question { type = "image", path = PNG }, { processor = process }))
  t.raises("images.read: " .. name .. ": cannot be read", chat.encode, chat, messages, { processor = process })
end)

t.test("WhatIsNoPictureIsNamed", function()
  local function refuses(message, messages) t.raises(message, chat.encode, chat, messages, { processor = process }) end

  refuses('chat:encode: message 1, part 1: a picture is {type = "image", path = "cat.png"}, or has a tensor under '
    .. '"image"; got a nil', question { type = "image" })
  refuses('got "https://example.com/x.png", which is not a path', question { type = "image",
    path = "https://example.com/x.png" })
  refuses('message 1, part 1 has the type "video"; known are "text" and "image"', question { type = "video" })
  refuses("the text has more placeholders <|image_pad|> than the messages have pictures, 0",
    { { role = "user", content = "<|image_pad|>" } })
  local blind = dir .. "/blind"
  core.make_folder(blind)
  core.write_file(blind .. "/chat_template.jinja", { "{{ messages[0].role }}" })
  core.write_file(blind .. "/tokenizer.json", { core.json_encode(data.json(dir .. "/tokenizer.json")) })
  t.raises("the template writes 0 placeholders <|image_pad|> for 1 pictures", text.chat(blind).encode, text.chat(blind),
    question { type = "image", path = PNG }, { processor = process, loss = "none" })
end)
