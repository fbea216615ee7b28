--- Shared parts of vision towers. The patches of all pictures lie one after the other, [P, hidden], in the order of
--- images.processor: block after block of merge * merge patches.

local config = require "lockstep.models.config"
local core = require "lockstep.core"
local nn = require "lockstep.nn"
local parameter = require "lockstep.nn.parameter"
local torch = require "lockstep.torch"

local M = {}

local function fail(message, ...) core.raise("models: " .. message:format(...)) end

local I64 = { dtype = torch.int64 }

--- Returns the settings of a tower from vision_config.
---@param architecture string for messages
---@param raw table<string, any> vision_config
---@param keys table<string, any> names with defaults; see config.settings
---@param activation string the only hidden_act that is supported
---@return table<string, any>
function M.settings(architecture, raw, keys, activation)
  keys.in_channels, keys.hidden_act, keys.temporal_patch_size, keys.spatial_merge_size = 3, activation, 2, 2
  local c = config.settings(architecture .. ".vision_config", raw, keys, { "in_chans", "spatial_patch_size" })
  local problem = c.hidden_act ~= activation and string.format('hidden_act is "%s"; only "%s" is supported',
    c.hidden_act, activation)
    or (c.rope.rope_type ~= "default" and c.rope.rope_type ~= "axial") and "rope_type is " .. c.rope.rope_type
    or c.hidden_size % (4 * c.num_heads) ~= 0 and string.format(
      "hidden_size %d is not a multiple of 4 * num_heads %d", c.hidden_size, c.num_heads)
    or (raw.in_chans or c.in_channels) ~= c.in_channels and "in_chans and in_channels differ"
  if problem then fail("%s: vision_config: %s", architecture, problem) end
  c.merge_area = c.spatial_merge_size ^ 2
  c.head_dim = c.hidden_size / c.num_heads
  c.patch_values = c.in_channels * c.temporal_patch_size * c.patch_size ^ 2
  return c
end

--- The tokens of each frame, and the row and column of each patch, in the order of the patches.
---@class models.PatchPlaces
---@field rows torch.Tensor [P] int64
---@field columns torch.Tensor [P] int64
---@field frames integer[] patches of each frame: what attention may see

--- Returns where the patches lie.
---@param grid integer[][] {t, h, w} of each item
---@param merge integer
---@return models.PatchPlaces
function M.places(grid, merge)
  local rows, columns, frames = {}, {}, {}
  for _, item in ipairs(grid) do
    local t, h, w = unpack(item)
    local blocks = { t, h / merge, w / merge, merge, merge }
    rows[#rows + 1] = torch.arange(h, I64):view(1, h / merge, 1, merge, 1):expand(blocks):reshape(-1)
    columns[#columns + 1] = torch.arange(w, I64):view(1, 1, w / merge, 1, merge):expand(blocks):reshape(-1)
    for _ = 1, t do frames[#frames + 1] = h * w end
  end
  return { rows = torch.cat(rows), columns = torch.cat(columns), frames = frames }
end

--- A convolution whose kernel is as large as its stride: one matrix product. weight has the shape on disk.
---@class models.PatchProjection: nn.Module
local PatchProjection = nn.Module:subclass("Conv3d")

function PatchProjection:init(c, bias)
  local bound = 1 / math.sqrt(c.patch_values)
  local function uniform(t) t:uniform_(-bound, bound) end
  self.weight = parameter.new({ c.hidden_size, c.in_channels, c.temporal_patch_size, c.patch_size, c.patch_size },
    uniform)
  if bias then self.bias = parameter.new({ c.hidden_size }, uniform) end
end

function PatchProjection:forward(x) return torch.linear(x:to(self.weight.dtype), self.weight:flatten(1), self.bias) end

--- From pixel values [P, D] to [P, hidden].
---@class models.PatchEmbed: nn.Module
local PatchEmbed = nn.Module:subclass("PatchEmbed")
---@type fun(c: table, bias: boolean): models.PatchEmbed
M.PatchEmbed = PatchEmbed

function PatchEmbed:init(c, bias) self.proj = PatchProjection(c, bias) end

function PatchEmbed:forward(x) return self.proj(x) end

--- Attention within the sequences of pass.seq_lens, in both directions, with the angles of pass.cos and pass.sin.
---@class models.VisionAttention: nn.Module
local Attention = nn.Module:subclass("VisionAttention")
---@type fun(c: table): models.VisionAttention
M.Attention = Attention

function Attention:init(c)
  self.heads = c.num_heads
  self.qkv = nn.Linear(c.hidden_size, 3 * c.hidden_size)
  self.proj = nn.Linear(c.hidden_size, c.hidden_size)
end

function Attention:forward(x, seq_lens, cos, sin)
  local tokens, hidden = x:size(0), x:size(1)
  local qkv = self.qkv(x):view(tokens, 3, self.heads, hidden / self.heads)
  -- cos and sin are float32: the rotation is computed in float32, in bfloat16 and float16 too.
  if x.dtype == torch.float64 then cos, sin = cos:to(x.dtype), sin:to(x.dtype) end
  local q, k = nn.rotate(qkv:select(1, 0), cos, sin), nn.rotate(qkv:select(1, 1), cos, sin)
  local y = nn.attention(q, k, qkv:select(1, 2), { seq_lens = seq_lens, causal = false })
  return self.proj(y:reshape(tokens, hidden))
end

--- One layer: norms and MLP are the architecture's.
---@class models.VisionBlock: nn.Module
local Block = nn.Module:subclass("VisionBlock")
---@type fun(c: table, norm: (fun(size: integer): nn.Module), mlp: nn.Module): models.VisionBlock
M.Block = Block

function Block:init(c, norm, mlp)
  self.norm1, self.norm2 = norm(c.hidden_size), norm(c.hidden_size)
  self.attn, self.mlp = Attention(c), mlp
end

function Block:forward(x, seq_lens, cos, sin)
  x = x + self.attn(self.norm1(x), seq_lens, cos, sin)
  return x + self.mlp(self.norm2(x))
end

--- Runs a block of a tower; as a region of `checkpoint`, if there is one and backward will come to the block.
---@param block models.VisionBlock
---@param checkpoint checkpoint.Checkpoint?
---@param x torch.Tensor [P, hidden]
---@param seq_lens integer[]
---@param cos torch.Tensor
---@param sin torch.Tensor
---@return torch.Tensor # [P, hidden]
function M.run_block(block, checkpoint, x, seq_lens, cos, sin)
  if not checkpoint or not (x.requires_grad or #nn.parameter_places(block) > 0) then
    return block(x, seq_lens, cos, sin)
  end
  return checkpoint(function(input) return block(input, seq_lens, cos, sin) end, x)
end

--- The exact GELU, as a module: it has a place among the names on disk.
---@class models.Gelu: nn.Module
local Gelu = nn.Module:subclass("GELU")
M.Gelu = Gelu

function Gelu:forward(x) return torch.gelu(x) end -- luacheck: ignore 212

--- Returns cosines and sines of the rows and columns: half of the frequencies turn with each.
---@param c table settings of the tower
---@param places models.PatchPlaces
---@param device string
---@return torch.Tensor cos [P, 1, head_dim]
---@return torch.Tensor sin [P, 1, head_dim]
function M.rotation(c, places, device)
  local rotary = nn.rotary { dim = c.head_dim / 2, rope_theta = c.rope.rope_theta }
  local both = torch.stack({ places.rows, places.columns }, 1):to(device)
  return rotary:cos_sin(rotary:angles(both):flatten(1))
end

--- Checks pixel values against the grid, and returns them on the device of the tower.
---@param c table settings of the tower
---@param pixels torch.Tensor
---@param grid integer[][]
---@param device string
---@return torch.Tensor
function M.read_pixels(c, pixels, grid, device)
  local patches = 0
  for _, item in ipairs(grid) do patches = patches + item[1] * item[2] * item[3] end
  if not torch.is_tensor(pixels) or pixels:dim() ~= 2 or pixels:size(0) ~= patches
    or pixels:size(1) ~= c.patch_values then
    fail("pixel values must be [%d, %d] (patches as the grids say, and %d x %d x %d x %d values of each), got %s",
      patches, c.patch_values, c.in_channels, c.temporal_patch_size, c.patch_size, c.patch_size,
      torch.is_tensor(pixels) and tostring(pixels.shape) or "a " .. type(pixels))
  end
  return pixels:to(device)
end

return M
