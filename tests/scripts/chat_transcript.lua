-- Prints what chat.lua should print after each line of the user, and "<<end>>" behind each answer. Here the model
-- writes the whole answer at once.
--
-- lockstep chat_transcript.lua MODEL ADAPTER LINE...: ADAPTER is a folder, made with random values if it is not there,
-- or "". A line "/reset" forgets the conversation; "PATH: QUESTION" asks about a picture.

local core = require "lockstep.core"
local files = require "lockstep.core.files"
local images = require "lockstep.images"
local lora = require "lockstep.lora"
local models = require "lockstep.models"
local run = require "lockstep.run"
local text = require "lockstep.text"
local torch = require "lockstep.torch"

local dir, adapter = run.args[1], run.args[2]
torch.manual_seed(5)
local model, chat, tokenizer = models.load(dir), text.chat(dir), text.tokenizer(dir)
local process = model.visual and images.processor(dir) or nil
if adapter ~= "" and #files.list(adapter) == 0 then
  lora.apply(model, { r = 2, targets = { "o_proj", "v_proj" } })
  torch.no_grad(function()
    for name, p in model:named_parameters() do
      if name:find("lora_B", 1, true) then p:normal_(0, 1) end
    end
  end)
  core.make_folder(adapter)
  lora.save(model, adapter)
elseif adapter ~= "" then
  lora.load(model, adapter)
end
if adapter ~= "" then lora.merge(model) end

local messages = {}
for i = 3, #run.args do
  local line = run.args[i]
  local path, question = line:match("^(.-): (.*)$")
  if line == "/reset" then
    messages = {}
  else
    local content = path and { { type = "image", path = path }, { type = "text", text = question } } or line
    messages[#messages + 1] = { role = "user", content = content }
    local prompt = chat:encode(messages, { generation_prompt = true, processor = process })
    local ids = models.generate(model, { prompt }, { max_new_tokens = 12, stop = { 2002 } })[1]
    local answer = tokenizer:decode(ids, { skip_special = true })
    print(answer .. (#ids == 12 and " [cut off at max_new_tokens]" or "") .. "<<end>>")
    messages[#messages + 1] = { role = "assistant", content = answer }
  end
end
