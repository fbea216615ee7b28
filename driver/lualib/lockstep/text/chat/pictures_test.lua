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

local dir = dofile "driver/lualib/lockstep/text/chat/vision_fixture.lua" "vlm"
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

t.test("ModelsOfTextRefusePictures", function()
  t.raises("chat:encode: message 1, part 1 is a picture, and the model takes text alone", chat.encode_sample, chat,
    { messages = question { type = "image", path = PNG } })
end)

t.test("RelativePathsBeginAtTheFolder", function()
  local folder, name = PNG:match "^(.*)/(.*)$"
  local messages = question { type = "image", path = name, image = data.null }

  t.equal(chat:encode(messages, { processor = process, folder = folder }),
    chat:encode(question { type = "image", path = PNG }, { processor = process }))
  t.raises("images.read: " .. name .. ": cannot be read", chat.encode, chat, messages, { processor = process })
end)

t.test("PicturesMayBeDataUrlsInTheFormsOfQwenAndOfOpenAi", function()
  local urls = require "lockstep.text.chat.data_urls"
  local bytes = t.read_file(PNG)
  local expected = chat:encode(question { type = "image", path = PNG }, { processor = process })
  local url = urls.encode(bytes)
  local name = url:sub(1, 60) .. "\n" .. url:sub(61):gsub("=+$", "") -- in lines, without padding

  for _, part in ipairs { { type = "image", image = url }, { type = "image", url = name },
    { type = "image", image = data.null, path = data.null, url = url }, { type = "image_url", image_url = url },
    { type = "image_url", image_url = { url = url, detail = "high" } },
    { type = "image", image = { bytes = bytes, path = data.null } } } do
    t.equal(chat:encode(question(part), { processor = process, folder = "there" }), expected)
    t.raises("is a picture, and the model takes text alone", chat.encode_sample, chat, { messages = question(part) })
  end
  for _, file in ipairs { "copy.png", "two words.png", "a%20b.png", "Zürich.png" } do
    core.write_file(dir .. "/" .. file, { bytes })
  end
  for _, link in ipairs { "//" .. dir .. "/copy.png", "//localhost" .. dir .. "/copy.png",
    "//" .. dir .. "/two%20words.png", "//localhost" .. dir .. "/two words.png", "//" .. dir .. "/a%20b.png",
    "//" .. dir .. "/Z%C3%BCrich.png" } do
    t.equal(chat:encode(question { type = "image", image = "file:" .. link }, { processor = process }), expected, link)
  end
  for _, link in ipairs { "elsewhere" .. dir .. "/copy.png", dir .. "/copy%00.png" } do
    t.raises("which is not a path", chat.encode, chat, question { type = "image", image = "file://" .. link },
      { processor = process })
  end
  for length = 0, 6 do
    local text_of = ("\0\255foo\254"):sub(1, length)
    t.equal(urls.decode(urls.encode(text_of)), text_of)
  end
end)

t.test("NullIsAbsentInMessagesAndTheirParts", function()
  local folder = dir .. "/asks" -- of Qwen's templates, which ask which keys there are
  core.make_folder(folder)
  core.write_file(folder .. "/tokenizer.json", { t.read_file(dir .. "/tokenizer.json") })
  core.write_file(folder .. "/chat_template.jinja", { "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    .. "{% if 'name' in m %}{{ m.name }}{% endif %}{% if m.content is string %}{{ m.content }}{% else %}"
    .. "{% for p in m.content %}{% if 'image' in p or 'image_url' in p %}<|vision_start|><|image_pad|><|vision_end|>"
    .. "{% elif 'text' in p %}{{ p.text }}{% endif %}{% endfor %}{% endif %}{% if 'tool_calls' in m %}"
    .. "{% for c in m.tool_calls %}{{ c | tojson }}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}" })
  local asks, none = text.chat(folder), data.null
  local call = { type = "function", id = none, ["function"] = { name = "f", arguments = { x = none } } }
  local rows = { { role = "user", name = none, tool_calls = none, content = {
      { type = "image", image = PNG, text = none, image_url = none },
      { type = "text", text = "How many?", image = none, image_url = none } } },
    { role = "assistant", name = none, content = "", tool_calls = { call } },
    { role = "assistant", name = none, content = { { type = "text", text = "Two.", image = none } },
      tool_calls = none } }

  t.equal(asks:encode(rows, { processor = process }), asks:encode({
    { role = "user", content = { { type = "image", image = PNG }, { type = "text", text = "How many?" } } },
    { role = "assistant", content = "",
      tool_calls = { { type = "function", ["function"] = { name = "f", arguments = { x = none } } } } },
    { role = "assistant", content = { { type = "text", text = "Two." } } } }, { processor = process }))
  t.truthy(asks:render(rows):find('{"function": {"arguments": {"x": null}, "name": "f"}, "type": "function"}', 1, true))
  t.equal(select(2, text.last_answer(rows)), "Two.")
  local decoded = core.json_decode '{"role": "user", "tool_calls": [{"b": 1, "n": null, "a": 2.0}], "content": "x"}'
  t.truthy(asks:render({ decoded }):find('{"b": 1, "a": 2.0}', 1, true))
end)

t.test("WhatIsNoPictureIsNamed", function()
  local function refuses(message, messages) t.raises(message, chat.encode, chat, messages, { processor = process }) end

  refuses('chat:encode: message 1, part 1: a picture is {type = "image", path = "cat.png"}, or has a tensor under '
    .. '"image"; got neither, and no column "images" or "image" has a picture for it',
    question { type = "image" })
  t.raises("images.read: not a JPEG, PNG or WebP image: 8 bytes that begin with 47 49 46 38", chat.encode, chat,
    question { type = "image", image = "GIF89a\0\1" }, { processor = process, folder = "there" })
  local data_url = "data:image/png;base64,"
  refuses('got "s3://x.png", which is not a path', question { type = "image", path = "s3://x.png" })
  for _, key in ipairs { "image", "path", "url" } do
    refuses('message 1, part 1: "https://example.com/x.png" is on the network, and only files are read: download it, '
      .. "and give its path", question { type = "image", [key] = "https://example.com/x.png" })
  end
  refuses('"http://x/y.png" is on the network', question { type = "image_url", image_url = { url = "http://x/y.png" } })
  refuses('"' .. data_url .. ("A"):rep(38) .. '..." is not the data URL of a picture: it holds no JPEG, PNG or WebP',
    question { type = "image", path = data_url .. ("A"):rep(1000) })
  refuses('"data:image/png,abc" is not the data URL of a picture: it lacks ";base64," before its data',
    question { type = "image", image = "data:image/png,abc" })
  refuses('its base64 has the character "-"', question { type = "image", image = data_url .. "iVBO-w==" })
  refuses("its base64 is cut off after 5 characters", question { type = "image", image = data_url .. "iVBOR" })
  local digits = "iVBORw0KGgoAAAANSUhEUgAAABUAAAAJ" .. ("A"):rep(400)
  for _, image in ipairs { digits, { bytes = digits, path = data.null } } do
    refuses('"' .. digits:sub(1, 60) .. '..." is base64 without a data URL; write "data:image/png;base64," before it',
      question { type = "image", image = image })
  end
  refuses("the text has more placeholders <|image_pad|> than the messages have pictures, 0",
    { { role = "user", content = "<|image_pad|>" } })
  local blind = dir .. "/blind"
  core.make_folder(blind)
  core.write_file(blind .. "/chat_template.jinja", { "{{ messages[0].role }}" })
  core.write_file(blind .. "/tokenizer.json", { core.json_encode(data.json(dir .. "/tokenizer.json")) })
  t.raises("the template writes 0 placeholders <|image_pad|> for 1 pictures", text.chat(blind).encode, text.chat(blind),
    question { type = "image", path = PNG }, { processor = process, loss = "none" })
end)

-- Gemma 3: tests/images/make_gemma3.py wrote the cases.
local gemma = data.json "driver/images/testdata/gemma3.json"

--- A folder of Gemma 3 with this processor.
local function make_gemma(name, processor)
  local path = run.dir .. "/" .. name
  core.make_folder(path)
  local tokenizer = data.json "driver/text/testdata/gemma.json"
  for i, token in ipairs(gemma.added) do
    tokenizer.added_tokens[#tokenizer.added_tokens + 1] = { id = 2001 + i, content = token,
      special = token:find "image>$" ~= nil, lstrip = false, rstrip = false, normalized = false, single_word = false }
  end
  data.save_json(path .. "/tokenizer.json", tokenizer)
  data.save_json(path .. "/tokenizer_config.json", { bos_token = "<s>", eos_token = "</s>", boi_token = gemma.added[1],
    eoi_token = gemma.added[2], image_token = gemma.added[3] })
  core.write_file(path .. "/chat_template.jinja", { gemma.template })
  local config = data.json "tests/models/gemma3_vision/config.json"
  config.text_config.vocab_size, config.image_token_index, config.mm_tokens_per_image = 2010, 2004, 9
  config.vision_config.image_size, config.vision_config.patch_size = 42, 7
  data.save_json(path .. "/config.json", config)
  local changed = {}
  for key, value in pairs(gemma.config) do changed[key] = value end
  for key, value in pairs(processor) do changed[key] = value end
  data.save_json(path .. "/preprocessor_config.json", changed)
  data.save_json(path .. "/processor_config.json", { image_seq_length = 9 })
  return path, config
end

local gemma_dir, gemma_config = make_gemma("gemma", {})
local gemma_pan = make_gemma("gemma_pan", gemma.pan)

--- The messages of a case, with pictures of its sizes.
local function messages_of(case)
  local number = 0
  for _, message in ipairs(case.messages) do
    for _, part in ipairs(message.content) do
      if part.type == "image" then
        number = number + 1
        part.image = torch.zeros({ 3, case.sizes[number][1], case.sizes[number][2] }, { dtype = torch.uint8 })
      end
    end
  end
  return case.messages
end

t.test("NoLossIsOfAPictureThatTheAssistantShows", function()
  local function check(own, its, placeholder)
    local sample = own:encode({ { role = "user", content = "Show it." }, { role = "assistant", content = {
      { type = "image", image = picture(16, 24) }, { type = "text", text = "Two." } } } }, { processor = its })
    local learnt = 0
    for i, id in ipairs(sample.input_ids) do
      if id == placeholder then t.equal(sample.loss_mask[i], 0) end
      learnt = learnt + sample.loss_mask[i]
    end
    t.truthy(count(sample.input_ids, placeholder) > 1)
    t.truthy(learnt > 1)
  end
  check(chat, process, IMAGE)
  local its = images.processor(gemma_dir)
  check(text.chat(gemma_dir), its, text.tokenizer(gemma_dir):id "<image_soft_token>")
end)

t.test("ChatsOfGemma3HaveTheIdsOfTransformers", function()
  for _, path in ipairs { gemma_dir, gemma_pan } do
    local own, its, num_cases = text.chat(path), images.processor(path), 0
    local tokenizer = text.tokenizer(path)
    for _, case in ipairs(gemma.chats) do
      if case.pan == (path == gemma_pan) then
        local messages = messages_of(case)
        local sample = own:encode(messages, { processor = its })

        t.equal(sample.input_ids, case.input_ids)
        t.equal(sample.mm_token_type_ids, case.types)
        t.equal(sample.image_grid_thw and sample.image_grid_thw:size(0) or 0, case.num_views)
        t.equal(sample.pixel_values and sample.pixel_values:size(0) or 0, case.num_views * 36)
        local said, expected = {}, ""
        for i, id in ipairs(sample.input_ids) do
          if sample.loss_mask[i] == 1 then said[#said + 1] = id end
        end
        for _, message in ipairs(messages) do
          if message.role == "assistant" then
            expected = expected .. message.content[1].text:gsub("^%s+", "") .. "<end_of_turn>"
          end
        end
        t.equal(tokenizer:decode(said):gsub("\n", ""), (expected:gsub("\n", "")))
        num_cases = num_cases + 1
      end
    end
    t.equal(num_cases, 4)
  end
end)

t.test("AModelOfGemma3TrainsAndSpeaksAfterMessages", function()
  local batching = require "lockstep.batching"
  torch.manual_seed(2)
  local model, own, its = models.build(gemma_config), text.chat(gemma_pan), images.processor(gemma_pan)
  local samples, wide = {}, { type = "image", image = picture(30, 90) }
  for i, parts in ipairs { { wide }, { { type = "image", image = picture(20, 21) }, wide } } do
    samples[i] = own:encode({ { role = "user", content = { { type = "text", text = "See" }, unpack(parts) } },
      { role = "assistant", content = "Yes" } }, { processor = its })
  end
  local micro = batching.prepare({ samples = samples, seq_len = 256, ranks = 1 })[1][1]

  local sum, number = model:loss(micro)
  sum:backward()

  t.equal(number, count(samples[1].loss_mask, 1) + count(samples[2].loss_mask, 1))
  local visual = model.model.visual.multi_modal_projector.mm_input_projection_weight.grad
  t.truthy(visual:abs():max():item() > 0)
  local prompt = own:encode({ { role = "user", content = { wide } } }, { processor = its, generation_prompt = true })
  t.equal(#models.generate(model, { prompt, samples[2] }, { max_new_tokens = 3, stop = {} })[2], 3)
end)

t.test("WhatDoesNotMatchInAChatOfGemma3IsNamed", function()
  local own, its = text.chat(gemma_dir), images.processor(gemma_dir)
  local function refuses(message, messages) t.raises(message, own.encode, own, messages, { processor = its }) end
  refuses("the text has 1 tokens <start_of_image>, but the messages have 0 pictures",
    { { role = "user", content = "<start_of_image>" } })
  refuses("the ids have 1 tokens <image_soft_token>, and the pictures need 0",
    { { role = "user", content = "<image_soft_token>" } })
  refuses('message 1, part 1 has the type "video"; known are "text", "image" and "image_url"',
    question { type = "video", video = "cat.mp4" })
  local bare = make_gemma("gemma_bare", {})
  data.save_json(bare .. "/tokenizer_config.json", { bos_token = "<s>" })
  t.raises("tokenizer_config.json lacks boi_token", text.chat(bare).encode, text.chat(bare),
    { { role = "user", content = "Hi" } }, { processor = its })
end)

t.test("QuestionsOfGrpoMayHavePicturesNextToTheirFile", function()
  data.save_json(dir .. "/config.json", { image_token_id = IMAGE, video_token_id = 2008 })
  core.write_file(dir .. "/cat.png", { t.read_file(PNG) })
  local content = { { type = "image", path = "cat.png" }, { type = "text", text = "How many?" } }
  data.save_jsonl(dir .. "/questions.jsonl", { { prompt = { { role = "user", content = content } }, answer = "2" } })
  local task
  t.printed(function()
    task = dofile("scripts/questions.lua").new(dir, true, { data = dir .. "/questions.jsonl", split = "" })
  end)

  local problem = task.problem(1)

  local expected = chat:encode(problem.messages, { processor = process, folder = dir, generation_prompt = true })
  t.equal(problem.prompt.input_ids:totable(), expected.input_ids)
  t.equal({ problem.prompt.pixel_values, problem.prompt.image_grid_thw },
    { expected.pixel_values, expected.image_grid_thw })
  t.equal({ problem.options, task.placeholders }, { { folder = dir }, { IMAGE, 2008 } }) -- a server reads the file
  t.printed(function()
    task = dofile("scripts/questions.lua").new(dir, false, { data = dir .. "/questions.jsonl", split = "" })
  end)
  t.equal(task.placeholders, { IMAGE, 2008 })
  t.raises("questions.jsonl, line 1: the prompt has a picture; --set images=true reads it", task.problem, 1)
end)
