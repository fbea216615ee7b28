--- A task of grpo.lua: questions of a file, whose answers are known.
---
---     ./run scripts/grpo.lua --set model=qwen --set task=questions --set data=openai/gsm8k/main
---
--- A line of the file is {"question": "2 + 2?", "answer": "4"}, or has a `prompt`, a string or messages. Without an
--- `answer` it is the `completion`, or what the assistant says last in messages, ShareGPT and Alpaca. In an answer with
--- "####", as gsm8k has them, the text behind it counts. The reward is 1 if the model's text ends with the answer. With
--- --set images=true prompts may have pictures: {"type": "image", "path": "cat.png"}, from the file's folder on.
--- A task of your own gives `tools` that the model may call, and further reward functions: see docs/scripts.md.

local data = require "lockstep.data"
local files = require "lockstep.files"
local images = require "lockstep.images"
local text = require "lockstep.text"
local torch = require "lockstep.torch"

local M = {}

function M.write_model() error("the task questions needs --set model=FOLDER", 0) end

local PICTURES, VIDEOS = { image = true, image_url = true }, { video = true }

local function has_part(messages, types)
  for _, message in ipairs(messages) do
    for _, part in ipairs(type(message.content) == "table" and message.content or {}) do
      if type(part) == "table" and types[part.type] then return true end
    end
  end
end

local function trimmed(s) return (tostring(s):gsub("^%s+", ""):gsub("[%s.]+$", "")) end

--- Returns the task; see reverse_words.lua.
function M.new(dir, has_images, config, tools)
  local chat, tokenizer = text.chat(dir), text.tokenizer(dir)
  if config.data == "" then error("the task questions needs --set data=FILE", 0) end
  local source = data.conversations(config.data, { kind = "prompt", split = config.split })
  local schemas = tools and text.tool_schemas(tools)
  local folder, process = source.folder, has_images and images.processor(dir) or nil
  local function encode(row)
    return chat:encode(row.messages, text.options(row, { generation_prompt = true, tools = schemas, folder = folder,
      processor = process }))
  end
  source:show { encode = encode, tokenizer = tokenizer, reads = { "answer" } }
  local task = { size = #source, tools = tools }
  local path = chat.dir .. "/config.json"
  local model = files.kind(path) == "file" and data.json(path) or {}
  local image = model.image_token_id or model.image_token_index
  if image then task.placeholders = { image, model.video_token_id } end -- which the model must not write

  --- Returns the problem of a number. After the last question the first one follows.
  function task.problem(number)
    local index = (number - 1) % #source + 1
    local row = source[index]
    if row.answer == nil then error(source:place(index) .. ': a question needs an "answer"', 0) end
    if row.messages[#row.messages].role == "assistant" then
      error(source:place(index) .. ": the prompt ends with the assistant; end it with the question", 0)
    end
    if has_part(row.messages, VIDEOS) then
      error(source:place(index) .. ": the prompt has a video; give pictures", 0)
    end
    if not process and has_part(row.messages, PICTURES) then
      error(source:place(index) .. ": the prompt has a picture; --set images=true reads it", 0)
    end
    local answer = tostring(row.answer)
    local sample = encode(row)
    return { prompt = { input_ids = torch.tensor(sample.input_ids, { dtype = torch.int64 }),
        pixel_values = sample.pixel_values, image_grid_thw = sample.image_grid_thw },
      -- For the turns behind a tool's, and for servers.
      messages = row.messages, options = text.options(row, { tools = schemas, folder = folder }),
      answer = trimmed(answer:match "####(.*)$" or answer) }
  end

  --- Returns 1 for a right answer, else 0.
  function task.reward(problem, ids)
    local answer = trimmed(tokenizer:decode(ids, { skip_special = true }))
    local before, last = answer:sub(1, -#problem.answer - 1), answer:sub(-#problem.answer)
    return last == problem.answer and not before:find "[%w]$" and 1 or 0
  end
  return task
end

return M
