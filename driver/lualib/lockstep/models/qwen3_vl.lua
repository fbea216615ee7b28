--- Qwen3-VL (arXiv 2511.21631): Qwen3 with a vision tower. Tokens of several layers of the tower are added to those
--- of the first layers of the text model (DeepStack, arXiv 2406.04334).

local decoder = require "lockstep.models.decoder"
local nn = require "lockstep.nn"
local options = require "lockstep.options"
local plain = require "lockstep.plain"
local torch = require "lockstep.torch"
local vision = require "lockstep.models.vision"
local vision_language = require "lockstep.models.vision_language"

local function norm(size) return nn.LayerNorm(size, { eps = 1e-6 }) end

---@class models.Qwen3VLMlp: nn.Module
local Mlp = nn.Module:subclass("VisionMlp")

function Mlp:init(c)
  self.linear_fc1 = nn.Linear(c.hidden_size, c.intermediate_size)
  self.linear_fc2 = nn.Linear(c.intermediate_size, c.hidden_size)
end

function Mlp:forward(x) return self.linear_fc2(torch.gelu(self.linear_fc1(x), { approximate = "tanh" })) end

--- From the patches of a block to one token. The norm is of a patch, or of the whole block.
---@class models.Qwen3VLMerger: nn.Module
local Merger = nn.Module:subclass("PatchMerger")

function Merger:init(c, norms_block)
  self.block = c.hidden_size * c.merge_area
  self.norm = norm(norms_block and self.block or c.hidden_size)
  self.linear_fc1 = nn.Linear(self.block, self.block)
  self.linear_fc2 = nn.Linear(self.block, c.out_hidden_size)
  self.norms_block = norms_block
end

function Merger:forward(x)
  if self.norms_block then x = x:reshape(-1, self.block) end
  x = self.norm(x):reshape(-1, self.block)
  return self.linear_fc2(torch.gelu(self.linear_fc1(x)))
end

---@class models.Qwen3VLTower: nn.Module
local Tower = nn.Module:subclass("VisionTower")

function Tower:init(raw, text_hidden)
  local c = vision.settings("Qwen3VL", raw, { depth = options.required, hidden_size = options.required,
    intermediate_size = options.required, num_heads = options.required, patch_size = 16,
    out_hidden_size = options.required, num_position_embeddings = 2304, deepstack_visual_indexes = { 8, 16, 24 } },
    "gelu_pytorch_tanh")
  self.settings = c
  c.side = math.floor(math.sqrt(c.num_position_embeddings))
  plain.check(c.out_hidden_size == text_hidden and c.side ^ 2 == c.num_position_embeddings,
    "models: Qwen3VL: vision_config: out_hidden_size %d must be the text's hidden_size %d, and "
    .. "num_position_embeddings %d a square", c.out_hidden_size, text_hidden, c.num_position_embeddings)
  self.patch_embed = vision.PatchEmbed(c, true)
  self.pos_embed = nn.Embedding(c.num_position_embeddings, c.hidden_size)
  self.blocks = nn.ModuleList()
  for _ = 1, c.depth do self.blocks:append(vision.Block(c, norm, Mlp(c))) end
  self.merger = Merger(c, false)
  self.deepstack_merger_list = nn.ModuleList()
  for _ in ipairs(c.deepstack_visual_indexes) do self.deepstack_merger_list:append(Merger(c, true)) end
end

--- The two learned positions next to each coordinate of a picture stretched to the square, and their shares.
local function neighbours(index, size, side)
  local place = index:to(torch.float32) * (side - 1) / math.max(size - 1, 1)
  local below = place:floor()
  local share = place - below
  local taps = torch.stack({ below, (below + 1):clamp(0, side - 1) }, 1):to(torch.int64)
  return taps, torch.stack({ 1 - share, share }, 1)
end

--- The learned positions of the patches, bilinear between those of the square: [P, hidden].
local function position_embedding(self, grid)
  local c, parts, shares = self.settings, {}, {}
  for i, item in ipairs(grid) do
    local places = vision.places({ item }, c.spatial_merge_size)
    local rows, row_shares = neighbours(places.rows, item[2], c.side)
    local columns, column_shares = neighbours(places.columns, item[3], c.side)
    parts[i] = (rows:unsqueeze(2) * c.side + columns:unsqueeze(1)):flatten(1)
    shares[i] = (row_shares:unsqueeze(2) * column_shares:unsqueeze(1)):flatten(1)
  end
  local device = self.pos_embed.weight.device
  local rows = self.pos_embed(torch.cat(parts):to(device))
  return (rows * torch.cat(shares):to(device):unsqueeze(-1)):sum({ 1 })
end

--- pixels: [P, D]. grid: {t, h, w} of each item. checkpoint: see CausalLM. Returns [N, hidden * (1 + DeepStack
--- layers)].
function Tower:forward(pixels, grid, checkpoint)
  local c = self.settings
  local device = self.pos_embed.weight.device
  local x = self.patch_embed(vision.read_pixels(c, pixels, grid, device))
  x = x + position_embedding(self, grid):to(x.dtype)
  local places = vision.places(grid, c.spatial_merge_size)
  local cos, sin = vision.rotation(c, places, device)
  local deep = {}
  for i, block in ipairs(self.blocks) do
    x = vision.run_block(block, checkpoint, x, places.frames, cos, sin)
    for n, index in ipairs(c.deepstack_visual_indexes) do
      if index == i - 1 then deep[n + 1] = self.deepstack_merger_list[n](x) end
    end
  end
  deep[1] = self.merger(x)
  return torch.cat(deep, -1)
end

---@class models.Qwen3VL: models.VisionLanguage
local Qwen3VL = vision_language.VisionLanguage:subclass("Qwen3VLForConditionalGeneration")
Qwen3VL.model_type = "qwen3_vl"
Qwen3VL.tower = Tower
Qwen3VL.theta, Qwen3VL.interleaved, Qwen3VL.sections = 500000, true, { 24, 20, 20 }
Qwen3VL.keys = decoder.keys { head_dim = 128, attention_bias = false }

--- See CausalLM.read.
---@param c table<string, any>
function Qwen3VL.read(c)
  c.qk_norm, c.qkv_bias, c.output_bias = true, c.attention_bias, c.attention_bias
  vision_language.read(Qwen3VL, c)
end

return { Qwen3VL = Qwen3VL }
