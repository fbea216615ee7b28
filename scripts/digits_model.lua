--- The model of digits_vlm.lua: a vision tower over patches and a decoder that reads its output as tokens.
--- Parameters are named as in Hugging Face's Qwen2.5-VL.
---
--- Shapes: T tokens of a packed micro-batch, P patches, H hidden size, V vocabulary.

local nn = require "lockstep.nn"
local torch = require "lockstep.torch"

local M = {}

local MERGED = 4 -- patches that become one token

--- [T, H] to [1, heads, T, H / heads].
local function split_heads(x, heads) return x:view(1, x:size(0), heads, -1):transpose(1, 2) end
local function join_heads(x) return x:transpose(1, 2):reshape(x:size(2), -1) end

--- Rotates pairs of channels by angles that grow with the position (arXiv 2104.09864).
local function rotate(x, cos, sin)
  local half = x:size(-1) / 2
  local a, b = x:narrow(-1, 0, half), x:narrow(-1, half, half)
  return torch.cat({ a * cos - b * sin, b * cos + a * sin }, -1)
end

-- Vision ------------------------------------------------------------------------------------------

local VisionBlock = nn.Module:subclass("VisionBlock")

function VisionBlock:init(hidden, heads)
  self.heads = heads
  self.norm1, self.norm2 = nn.RMSNorm(hidden), nn.RMSNorm(hidden)
  self.qkv, self.proj = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
  self.fc1, self.fc2 = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)
end

--- x: [images, patches of one, H]: attention stays within an image.
function VisionBlock:forward(x)
  local images, patches, hidden = x:size(0), x:size(1), x:size(2)
  local qkv = self.qkv(self.norm1(x)):view(images, patches, 3, self.heads, -1):permute(2, 0, 3, 1, 4)
  local attended = torch.scaled_dot_product_attention(qkv[0], qkv[1], qkv[2])
  x = x + self.proj(attended:transpose(1, 2):reshape(images, patches, hidden))
  return x + self.fc2(torch.gelu(self.fc1(self.norm2(x))))
end

local VisionTower = nn.Module:subclass("VisionTower")

function VisionTower:init(config, out_hidden)
  self.patch_embed = nn.Linear(config.patch_dim, config.hidden)
  self.pos_embed = nn.Embedding(config.patches, config.hidden)
  self.blocks = nn.ModuleList()
  for _ = 1, config.depth do self.blocks:append(VisionBlock(config.hidden, config.heads)) end
  self.norm = nn.RMSNorm(config.hidden)
  self.merger = nn.Linear(MERGED * config.hidden, out_hidden)
end

--- pixel_values: [P, patch_dim]; grid_thw: [images, 3]. Returns [P / 4, H].
function VisionTower:forward(pixel_values, grid_thw)
  local images = grid_thw:size(0)
  local x = self.patch_embed(pixel_values):view(images, -1, self.patch_embed.weight:size(0))
  x = x + self.pos_embed.weight
  for _, block in ipairs(self.blocks) do x = block(x) end
  return self.merger(self.norm(x):view(-1, self.merger.weight:size(1)))
end

-- Language ----------------------------------------------------------------------------------------

local Attention = nn.Module:subclass("Attention")

function Attention:init(hidden, heads)
  self.heads = heads
  for _, name in ipairs { "q_proj", "k_proj", "v_proj", "o_proj" } do
    self[name] = nn.Linear(hidden, hidden, { bias = false })
  end
end

function Attention:forward(x, context)
  local q = rotate(split_heads(self.q_proj(x), self.heads), context.cos, context.sin)
  local k = rotate(split_heads(self.k_proj(x), self.heads), context.cos, context.sin)
  local v = split_heads(self.v_proj(x), self.heads)
  return self.o_proj(join_heads(torch.scaled_dot_product_attention(q, k, v, context.mask)))
end

local Mlp = nn.Module:subclass("Mlp")

function Mlp:init(hidden, intermediate)
  self.gate_proj = nn.Linear(hidden, intermediate, { bias = false })
  self.up_proj = nn.Linear(hidden, intermediate, { bias = false })
  self.down_proj = nn.Linear(intermediate, hidden, { bias = false })
end

function Mlp:forward(x) return self.down_proj(torch.silu(self.gate_proj(x)) * self.up_proj(x)) end

local DecoderLayer = nn.Module:subclass("DecoderLayer")

function DecoderLayer:init(config)
  self.input_layernorm = nn.RMSNorm(config.hidden)
  self.self_attn = Attention(config.hidden, config.heads)
  self.post_attention_layernorm = nn.RMSNorm(config.hidden)
  self.mlp = Mlp(config.hidden, config.intermediate)
end

function DecoderLayer:forward(x, context)
  x = x + self.self_attn(self.input_layernorm(x), context)
  return x + self.mlp(self.post_attention_layernorm(x))
end

--- The attention mask [T, T], and the rotary angles [T, H / heads / 2]. A sequence of the packed row attends only to
--- itself.
local function context_of(batch, head_dim)
  local lengths = torch.tensor(batch.seq_lens, { dtype = torch.int64 })
  local sequence = torch.repeat_interleave(torch.arange(#batch.seq_lens), lengths)
  local mask = torch.logical_and(sequence:unsqueeze(1):eq(sequence:unsqueeze(0)),
    torch.ones({ #sequence, #sequence }, { dtype = torch.bool }):tril())
  local frequency = torch.pow(1e4, torch.arange(0, head_dim, 2):double() / -head_dim)
  local angle = batch.position_ids:double():unsqueeze(1) * frequency
  local dtype = torch.get_default_dtype()
  return { mask = mask, cos = angle:cos():to(dtype), sin = angle:sin():to(dtype) }
end

local VisionLanguageModel = nn.Module:subclass("VisionLanguageModel")
M.VisionLanguageModel = VisionLanguageModel

---@param config {vision: table, text: table, vocab_size: integer, image_token: integer}
function VisionLanguageModel:init(config)
  self.image_token, self.head_dim = config.image_token, config.text.hidden / config.text.heads
  self.visual = VisionTower(config.vision, config.text.hidden)
  self.embed_tokens = nn.Embedding(config.vocab_size, config.text.hidden)
  self.layers = nn.ModuleList()
  for _ = 1, config.text.depth do self.layers:append(DecoderLayer(config.text)) end
  self.norm = nn.RMSNorm(config.text.hidden)
  self.lm_head = nn.Linear(config.text.hidden, config.vocab_size, { bias = false })
end

--- A packed micro-batch to logits [T, V]. Runs the vision tower where the batch holds images.
function VisionLanguageModel:forward(batch)
  local x = self.embed_tokens(batch.input_ids)
  if batch.pixel_values then
    local features = self.visual(batch.pixel_values, batch.image_grid_thw)
    x = x:masked_scatter(batch.input_ids:eq(self.image_token):unsqueeze(1), features)
  end
  local context = context_of(batch, self.head_dim)
  for _, layer in ipairs(self.layers) do x = layer(x, context) end
  return self.lm_head(self.norm(x))
end

--- The sum of the next-token losses over the tokens that loss_mask marks.
---@param model fun(batch: batching.MicroBatch): torch.Tensor
---@param batch batching.MicroBatch
---@return torch.Tensor
function M.loss_sum(model, batch)
  local length = #batch.input_ids
  local logits = model(batch):narrow(0, 0, length - 1)
  local labels = torch.where(batch.loss_mask, batch.input_ids, -100):narrow(0, 1, length - 1)
  return nn.cross_entropy(logits, labels, { reduction = "sum" })
end

--- Continues prompts of one length by `count` tokens each, always the likeliest.
---@param model fun(batch: table): torch.Tensor
---@param prompts {input_ids: integer[], pixel_values: torch.Tensor, image_grid_thw: torch.Tensor}[]
---@param count integer
---@return integer[][]
function M.generate(model, prompts, count)
  local ids, pixels, grids = {}, {}, {}
  for i, prompt in ipairs(prompts) do
    ids[i], pixels[i], grids[i] = prompt.input_ids, prompt.pixel_values, prompt.image_grid_thw
  end
  local tokens = torch.tensor(ids, { dtype = torch.int64 })
  local batch = { pixel_values = torch.cat(pixels), image_grid_thw = torch.cat(grids) }
  local prompt_length = tokens:size(1)
  for length = prompt_length, prompt_length + count - 1 do
    batch.input_ids, batch.seq_lens = tokens:reshape(-1), {}
    for i = 1, #prompts do batch.seq_lens[i] = length end
    batch.position_ids = torch.arange(length):tile({ #prompts })
    local logits = model(batch):view(#prompts, length, -1):select(1, length - 1)
    tokens = torch.cat({ tokens, logits:argmax(-1, true) }, 1)
  end
  return tokens:narrow(1, prompt_length, count):totable()
end

return M
