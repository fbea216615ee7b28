--- Gemma 3 with pictures (arXiv 2503.19786): a SigLIP tower (arXiv 2303.15343), whose patches are averaged over squares
--- and projected, in front of the models of text. The tokens of a picture see each other.
---
--- A batch has patches as those of Qwen have: see vision_language.lua. The grid of each picture is {1, side, side}, and
--- positions count up through text and pictures alike.

local chunks = require "lockstep.nn.chunks"
local config = require "lockstep.models.config"
local core = require "lockstep.core"
local decoder = require "lockstep.models.decoder"
local gemma3 = require "lockstep.models.families.gemma3"
local nn = require "lockstep.nn"
local options = require "lockstep.options"
local parameter = require "lockstep.nn.parameter"
local plain = require "lockstep.plain"
local torch = require "lockstep.torch"
local vision = require "lockstep.models.vision"
local vision_language = require "lockstep.models.vision_language"

local NAME = "Gemma3ForConditionalGeneration"

local check, fail = plain.checks("models: " .. NAME .. ": ")

-- The tower -----------------------------------------------------------------------------------------------

---@class models.SiglipAttention: nn.Module
local Attention = nn.Module:subclass("SiglipAttention")

function Attention:init(c)
  self.heads = c.num_attention_heads
  for _, name in ipairs { "q_proj", "k_proj", "v_proj", "out_proj" } do
    self[name] = nn.Linear(c.hidden_size, c.hidden_size)
  end
end

function Attention:forward(x, seq_lens)
  local function of_heads(y) return y:view(y:size(0), self.heads, -1) end
  local y = nn.attention(of_heads(self.q_proj(x)), of_heads(self.k_proj(x)), of_heads(self.v_proj(x)),
    { seq_lens = seq_lens, causal = false })
  return self.out_proj(y:flatten(1))
end

---@class models.SiglipMlp: nn.Module
local Mlp = nn.Module:subclass("SiglipMLP")

function Mlp:init(c)
  self.fc1 = nn.Linear(c.hidden_size, c.intermediate_size)
  self.fc2 = nn.Linear(c.intermediate_size, c.hidden_size)
end

function Mlp:forward(x) return self.fc2(torch.gelu(self.fc1(x), { approximate = "tanh" })) end

---@class models.SiglipLayer: nn.Module
local Layer = nn.Module:subclass("SiglipEncoderLayer")

function Layer:init(c)
  self.layer_norm1 = nn.LayerNorm(c.hidden_size, { eps = c.layer_norm_eps })
  self.layer_norm2 = nn.LayerNorm(c.hidden_size, { eps = c.layer_norm_eps })
  self.self_attn, self.mlp = Attention(c), Mlp(c)
end

function Layer:forward(x, seq_lens)
  x = x + self.self_attn(self.layer_norm1(x), seq_lens)
  return x + self.mlp(self.layer_norm2(x))
end

--- A convolution whose kernel is as large as its stride: one matrix product.
---@class models.SiglipPatches: nn.Module
local Patches = nn.Module:subclass("Conv2d")

function Patches:init(c)
  local function uniform(t) t:uniform_(-c.patch_values ^ -0.5, c.patch_values ^ -0.5) end
  self.weight = parameter.new({ c.hidden_size, c.num_channels, c.patch_size, c.patch_size }, uniform)
  self.bias = parameter.new({ c.hidden_size }, uniform)
end

function Patches:forward(x) return torch.linear(x:to(self.weight.dtype), self.weight:flatten(1), self.bias) end

local Group = nn.Module:subclass("Group") -- gives modules the names that they have on disk

local function group(modules)
  local made = Group()
  for _, name in ipairs(plain.keys(modules)) do made[name] = modules[name] end
  return made
end

local KEYS = { hidden_size = 768, intermediate_size = 3072, num_hidden_layers = 12, num_attention_heads = 12,
  num_channels = 3, image_size = 224, patch_size = 16, hidden_act = "gelu_pytorch_tanh", layer_norm_eps = 1e-6,
  vision_use_head = true, temporal_patch_size = options.optional, in_channels = options.optional }

--- The tower with the projector: both are the part "visual".
---@class models.Gemma3Tower: nn.Module
local Tower = nn.Module:subclass("Gemma3Tower")

function Tower:init(raw, text_hidden)
  local c = config.settings(NAME .. ".vision_config", raw, KEYS, { "mm_tokens_per_image" })
  c.side = math.floor(c.image_size / c.patch_size)
  c.tokens = math.floor(math.sqrt(raw.mm_tokens_per_image))
  c.merge, c.patch_values = math.floor(c.side / c.tokens), c.num_channels * c.patch_size ^ 2
  c.in_channels, c.temporal_patch_size = c.num_channels, 1
  if c.hidden_act ~= "gelu_pytorch_tanh" then fail('vision_config: hidden_act is "%s"', c.hidden_act) end
  check(c.merge * c.tokens == c.side and c.tokens ^ 2 == raw.mm_tokens_per_image,
    "mm_tokens_per_image %s must be a square that divides the %d x %d patches of a picture evenly",
    tostring(raw.mm_tokens_per_image), c.side, c.side)
  self.settings = c
  local layers = nn.ModuleList()
  for _ = 1, c.num_hidden_layers do layers:append(Layer(c)) end
  self.vision_tower = group { encoder = group { layers = layers },
    embeddings = group { patch_embedding = Patches(c), position_embedding = nn.Embedding(c.side ^ 2, c.hidden_size) },
    post_layernorm = nn.LayerNorm(c.hidden_size, { eps = c.layer_norm_eps }) }
  self.multi_modal_projector = group { mm_soft_emb_norm = gemma3.Norm(c.hidden_size, c.layer_norm_eps),
    mm_input_projection_weight = parameter.new({ c.hidden_size, text_hidden }, function(w) w:normal_(0, 0.02) end) }
end

--- pixels: [P, D]. grid: {1, side, side} of each picture. checkpoint: see CausalLM. Returns [N, hidden of the text].
function Tower:forward(pixels, grid, checkpoint)
  local c, tower, projector = self.settings, self.vision_tower, self.multi_modal_projector
  for i, item in ipairs(grid) do
    check(item[1] == 1 and item[2] == c.side and item[3] == c.side,
      "image_grid_thw[%d] is {%d, %d, %d}; each picture has {1, %d, %d} patches", i - 1, item[1], item[2], item[3],
      c.side, c.side)
  end
  local device = tower.post_layernorm.weight.device
  local places = vision.places(grid, c.merge)
  local x = tower.embeddings.patch_embedding(vision.read_pixels(c, pixels, grid, device))
  x = x + tower.embeddings.position_embedding((places.rows * c.side + places.columns):to(device))
  for _, layer in ipairs(tower.encoder.layers) do
    x = vision.run_block(layer, checkpoint, x, places.frames)
  end
  x = tower.post_layernorm(x):view(-1, c.merge ^ 2, c.hidden_size):mean { 1 }
  return torch.matmul(projector.mm_soft_emb_norm(x), projector.mm_input_projection_weight)
end

-- The text ------------------------------------------------------------------------------------------------

--- Attention in which the tokens of a picture see each other.
---@class models.Gemma3VisionAttention: models.Gemma3Attention
local TextAttention = gemma3.Attention:subclass("Gemma3VisionAttention")

function TextAttention:forward(x, pass)
  local blocks = pass.cos.blocks
  if not blocks then return gemma3.Attention.forward(self, x, pass) end
  local q, k, v = self:project(x)
  q, k = self:turn(q, pass), self:turn(k, pass)
  local with_blocks = setmetatable({ blocks = blocks }, { __index = self })
  return self.o_proj(pass.attend(q, k, v, with_blocks):reshape(q:size(0), -1))
end

---@class models.Gemma3Vision: models.VisionLanguage
local Gemma3Vision = vision_language.VisionLanguage:subclass(NAME)
Gemma3Vision.model_type = "gemma3"
Gemma3Vision.tower, Gemma3Vision.theta = Tower, 1e6
Gemma3Vision.needs_whole_sequences = true -- tokens of a picture see each other
Gemma3Vision.keys = plain.copy(gemma3.Gemma3.keys, { vocab_size = 262208, hidden_size = 2304, intermediate_size = 9216,
  num_hidden_layers = 26, num_attention_heads = 8 })
Gemma3Vision.read, Gemma3Vision.mlp = gemma3.Gemma3.read, gemma3.Gemma3.mlp

--- See CausalLM.tensor_plan. The tower's layers have names like those of the text, and every rank runs it whole.
---@return table<string, string>
function Gemma3Vision.tensor_plan()
  local plan = { ["model.visual"] = "whole" }
  for name, kind in pairs(decoder.CausalLM.tensor_plan()) do
    plan[name:find "^layers" and "language_model." .. name or name] = kind
  end
  return plan
end

--- See CausalLM.layer.
---@param c table<string, any>
---@param index integer from 1
---@param mlp nn.Module
---@return nn.Module
function Gemma3Vision.layer(c, index, mlp)
  local layer = gemma3.Gemma3.layer(c, index, mlp)
  layer.self_attn = TextAttention(c, index)
  return layer
end

local function get(raw, ...)
  for _, key in ipairs { ... } do
    if raw[key] ~= nil and raw[key] ~= core.null then return raw[key] end
  end
end

--- Returns the config with the names that vision_language reads.
local function renamed(raw)
  local tower = get(raw, "vision_config")
  local tokens = get(raw, "mm_tokens_per_image") or 256
  local changed = plain.copy(raw, { image_token_id = get(raw, "image_token_id", "image_token_index") or 262144,
    video_token_id = -1, vision_config = plain.copy(tower or {}, { mm_tokens_per_image = tokens }) })
  for _, key in ipairs { "image_token_index", "boi_token_index", "eoi_token_index", "boi_token_id", "eoi_token_id",
    "mm_tokens_per_image" } do
    changed[key] = nil
  end
  if changed.tie_word_embeddings == nil then changed.tie_word_embeddings = true end
  return changed
end

function Gemma3Vision:init(raw, opts)
  vision_language.VisionLanguage.init(self, renamed(raw), opts)
  self.config = raw
  gemma3.complete(self, self.model.language_model)
end

--- See VisionLanguage.layout.
---@param _ table<string, any>
---@param own table<string, any>
---@param tower models.Gemma3Tower
---@return models.VisualLayout
function Gemma3Vision.layout(_, own, tower)
  return { image = own.image_token_id, video = -1, split_frames = false, merge = tower.settings.merge,
    interval = function() return 1 end }
end

--- Positions count up, pictures or not.
Gemma3Vision.positions = decoder.CausalLM.positions

--- Returns the number of the picture of each token, or -1: placeholders that follow each other are one picture.
local function blocks_of(ids, seq_lens, image)
  local blocks, picture, at = {}, -1, 0
  for _, length in ipairs(seq_lens) do
    for i = at + 1, at + length do
      if ids[i] == image and (i == at + 1 or ids[i - 1] ~= image) then picture = picture + 1 end
      blocks[i] = ids[i] == image and picture or -1
    end
    at = at + length
  end
  return torch.tensor(blocks, { dtype = torch.int64 })
end

--- See CausalLM:inputs.
---@param batch models.Batch
---@return torch.Tensor x
---@return torch.Tensor[] angles
---@return integer[] seq_lens
function Gemma3Vision:inputs(batch)
  local parts = vision_language.parts
  if self.part == "visual" then
    fail 'the part "visual" has no language model; model:visual(batch) returns its tokens'
  end
  local has_visuals = parts.has_visuals(batch)
  if has_visuals then parts.refuse_chunks() end
  local ids, positions, seq_lens = self:read_batch(batch)
  if positions:dim() ~= 1 then fail("position_ids must have shape [T], got %s", tostring(positions.shape)) end
  local before = self.stage_input and self.stage_input.x
  local x = before or gemma3.scaled(self, self:decoder().embed_tokens(ids))
  local angles = self.rotary:angles(positions, seq_lens)
  if not has_visuals then
    parts.check_text(self, batch)
    return x, angles, seq_lens
  end
  local list = batch.input_ids:totable()
  local visuals = parts.find(self.visual_layout, batch, list, seq_lens)
  angles.blocks = blocks_of(list, seq_lens, self.visual_layout.image):to(x.device)
  if before then return x, angles, seq_lens end
  local visual = batch.own_visual or batch.visual or chunks.with(nil, self.visual, self, batch) -- whole pictures
  return (parts.insert(self, x, visual, visuals.tokens, batch.own_visual)), angles, seq_lens
end

--- See CausalLM.staged_inputs.
Gemma3Vision.staged_inputs = Gemma3Vision.inputs

--- See loading. A head of the tower takes no part.
---@param name string
---@return boolean
function Gemma3Vision:is_unread(name) return name:find("vision_tower[%w_.]*%.head%.") ~= nil end -- luacheck: ignore 212

--- See CausalLM:layouts. The names that Google published, and those that transformers 5 writes and has in memory.
---@return table<string, torch.Tensor>[]
function Gemma3Vision:layouts()
  local published, written, memory = {}, {}, {}
  for name, tensor in pairs(self:state_dict()) do
    local short = name:gsub("^model%.visual%.", "model.")
    local bare = short:gsub("^model%.vision_tower", "vision_tower"):gsub("^model%.multi", "multi")
      :gsub("^model%.language_model%.", "language_model.model."):gsub("^lm_head", "language_model.lm_head")
    published[(bare:gsub("^vision_tower%.", "vision_tower.vision_model."))] = tensor
    memory[short], written[bare] = tensor, tensor
  end
  return { published, written, memory }
end

return { Gemma3Vision = Gemma3Vision }
