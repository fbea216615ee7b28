-- Talks with a model in the terminal, and shows the answer as it is written.
--
--     ./run --nproc 1 scripts/chat.lua --set model=Qwen/Qwen3-0.6B     # a folder, or a name in Hugging Face's cache
--     ./run --nproc 1 scripts/chat.lua --set model=qwen --set adapter=runs/finetune/adapter
--
-- Type a message and press Enter. /image PATH adds a picture to the next message, for a vision-language model; /reset
-- forgets the conversation; Ctrl-D ends. Lines from a pipe are read the same way: echo "2 + 2?" | ./run ...

local dist = require "lockstep.distributed"
local images = require "lockstep.images"
local lora = require "lockstep.lora"
local models = require "lockstep.models"
local run = require "lockstep.run"
local text = require "lockstep.text"
local torch = require "lockstep.torch"

local config = run.config {
  model = "", -- a folder with config.json, weights, tokenizer.json and a chat template
  ignore = "", -- keys of config.json to pass over, split by commas
  adapter = "", -- a folder of LoRA adapters for it
  system = "", -- what the model is told before the conversation
  dtype = "", -- "bfloat16" or "float32"; default: that of the model's config
  max_new_tokens = 1024,
  temperature = -1.0, top_k = -1, top_p = -1.0, -- -1: as generation_config.json says, else 0.7, 20, 0.8
  seed = 1,
}
if config.model == "" then error("give --set model=FOLDER, or a name in Hugging Face's cache", 0) end
if dist.world_size() > 1 then
  error(("chat.lua runs on one rank, not on %d: start it with --nproc 1"):format(dist.world_size()), 0)
end

-- Everything that reads a file comes first, so that a wrong folder is an error at once.
local dtype = config.dtype ~= "" and torch[config.dtype] or nil
local chat, tokenizer = text.chat(config.model), text.tokenizer(config.model)
local model = models.load(config.model, { device = dist.device(), dtype = dtype, ignore = config.ignore })
local takes_pictures = model.visual ~= nil -- a method of models with a vision tower
local process = takes_pictures and images.processor(config.model) or nil
if config.adapter ~= "" then print(("%d adapters"):format(lora.load(model, config.adapter))) end
model:eval()
local sampling = model.generation or { temperature = 0.7, top_k = 20, top_p = 0.8 } -- temperature 0: the most probable
for _, name in ipairs { "temperature", "top_k", "top_p" } do
  if config[name] >= 0 then sampling[name] = config[name] end
end
sampling.max_new_tokens = config.max_new_tokens

local messages, pictures = {}, {}

-- Forgets the conversation.
local function reset()
  messages, pictures = {}, {}
  if config.system ~= "" then messages[1] = { role = "system", content = config.system } end
end

-- A message of the user, with the pictures that were given before it.
local function message_of(line)
  if #pictures == 0 then return { role = "user", content = line } end
  local parts = {}
  for i, path in ipairs(pictures) do parts[i] = { type = "image", path = path } end
  parts[#parts + 1] = { type = "text", text = line }
  pictures = {}
  return { role = "user", content = parts }
end

-- Writes the model's answer token by token, and adds it to the conversation.
local function answer()
  local prompt = chat:encode(messages, { generation_prompt = true, processor = process })
  local stream, pieces = tokenizer:stream { skip_special = true }, {}
  local function write(piece)
    pieces[#pieces + 1] = piece
    io.write(piece)
    io.flush()
  end
  sampling.seed, sampling.on_token = config.seed + #messages, function(_, id) write(stream:push(id)) end
  local ids = models.generate(model, { prompt }, sampling)[1]
  write(stream:finish())
  io.write(#ids == config.max_new_tokens and " [cut off at max_new_tokens]\n" or "\n")
  messages[#messages + 1] = { role = "assistant", content = table.concat(pieces) }
end

-- Adds a picture to the next message, if it can be read.
local function add_picture(path)
  if not takes_pictures then return print(config.model .. " takes no pictures") end
  local is_picture, image = pcall(images.read, path)
  if not is_picture then return print((tostring(image):gsub("^%S-%.lua:%d+: ", ""))) end
  pictures[#pictures + 1] = path
  print(("%s: %d x %d pixels; now ask about it"):format(path, image:size(2), image:size(1)))
end

print(("Talk to %s. /reset forgets the conversation, %sCtrl-D ends."):format(config.model,
  takes_pictures and "/image PATH adds a picture, " or ""))
reset()
while true do
  io.write("> ")
  io.flush()
  local line = io.read()
  if not line then break end
  local command, argument = line:match("^/(%w+)%s*(.-)%s*$")
  if command == "reset" then
    reset()
  elseif command == "image" then
    add_picture(argument)
  elseif command and argument == "" then
    print(("unknown command /%s; there are /image PATH and /reset"):format(command))
  elseif line:find("%S") then
    messages[#messages + 1] = message_of(line)
    local is_answered, reason = pcall(answer)
    if not is_answered then
      print((tostring(reason):gsub("^%S-%.lua:%d+: ", "")))
      messages[#messages] = nil
    end
  end
end
print()
