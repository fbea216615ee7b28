-- What a model of pictures has beside its weights.

local core = require "lockstep.core"
local data = require "lockstep.data"
local run = require "lockstep.run"

--- Makes a folder with a tokenizer that knows Qwen's tokens for pictures, a template and a processor, and returns it.
return function(name)
  local dir = run.dir .. "/" .. name
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
