--- Reads the chat templates and the special tokens of a Hugging Face folder.

local core = require "lockstep.core"
local core_files = require "lockstep.core.files"
local plain = require "lockstep.plain"

local M = {}

-- The tokens that transformers hands to every template.
local SPECIAL = { "bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token" }

local function read(path)
  local text, reason = core_files.read(path)
  if text or reason:find "No such file" or reason:find "Not a directory" then return text end
  core.raise("text.chat: cannot read " .. reason)
end

-- The tokens that Gemma 3 has around and for pictures.
local OF_PICTURES = { "boi_token", "eoi_token", "image_token" }

--- Reads an object; an empty one where the file is not there.
local function read_json(path)
  local text = read(path)
  if not text then return {} end
  local value = core.json_decode(text, path)
  if type(value) ~= "table" then core.raise(("text.chat: %s must hold an object"):format(path)) end
  return value
end

--- Adds what a configuration has under chat_template: one template, or several with names.
local function add_templates(templates, config, path)
  local held = config.chat_template
  if type(held) == "string" then
    templates.default = { source = held, name = path .. ": chat_template" }
  elseif type(held) == "table" then
    for i, entry in ipairs(held) do
      plain.check(type(entry) == "table" and type(entry.name) == "string" and type(entry.template) == "string",
        'text.chat: %s: chat_template[%d]: expected {"name": ..., "template": ...}', path, i)
      templates[entry.name] = { source = entry.template, name = ("%s: chat_template %s"):format(path, entry.name) }
    end
  end
end

--- Returns the templates of a folder by name, {source, name for messages}. One that has no name is "default".
---@param dir string
---@return table<string, {source: string, name: string}>
function M.templates(dir)
  local templates = {}
  for _, name in ipairs { "tokenizer_config.json", "chat_template.json" } do
    add_templates(templates, read_json(dir .. "/" .. name), dir .. "/" .. name)
  end
  local path = dir .. "/chat_template.jinja"
  local source = read(path)
  if source then templates = { default = { source = source, name = path } } end
  for _, name in ipairs(core_files.list(dir .. "/additional_chat_templates")) do
    local stem = name:match("^(.*)%.jinja$")
    path = ("%s/additional_chat_templates/%s"):format(dir, name)
    if stem then templates[stem] = { source = read(path), name = path } end
  end
  if next(templates) then return templates end
  core.raise(("text.chat: %s has no chat template: no chat_template.jinja, and no chat_template in "
    .. "tokenizer_config.json. A base model has none; put a chat_template.jinja there"):format(dir))
end

--- Adds those of the names whose values are tokens.
local function add_tokens(tokens, names, config)
  for _, name in ipairs(names) do
    local value = config[name]
    if type(value) == "table" then value = value.content end
    if type(value) == "string" then tokens[name] = value end
  end
end

--- Returns the special tokens of a folder by the names that templates have for them, and those of pictures.
---@param dir string
---@return table<string, string> tokens
---@return table<string, string> of_pictures
function M.tokens(dir)
  local tokens, of_pictures = {}, {}
  for _, name in ipairs { "special_tokens_map.json", "tokenizer_config.json" } do
    local config = read_json(dir .. "/" .. name)
    add_tokens(tokens, SPECIAL, config)
    add_tokens(of_pictures, OF_PICTURES, config)
    -- Version 4 and version 5 of transformers also write them under these keys.
    for _, key in ipairs { "extra_special_tokens", "model_specific_special_tokens" } do
      if type(config[key]) == "table" then add_tokens(of_pictures, OF_PICTURES, config[key]) end
    end
  end
  return tokens, of_pictures
end

return M
