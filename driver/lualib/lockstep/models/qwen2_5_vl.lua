--- Qwen2.5-VL (arXiv 2502.13923): Qwen2.5 with a vision tower whose layers see windows of a picture, but for a few that
--- see all of it. On disk the text model lies under "model." and the tower under "visual.".

local config = require "lockstep.models.config"
local core = require "lockstep.core"
local decoder = require "lockstep.models.decoder"
local nn = require "lockstep.nn"
local options = require "lockstep.options"
local torch = require "lockstep.torch"
local vision = require "lockstep.models.vision"
local vision_language = require "lockstep.models.vision_language"

local function norm(size) return nn.RMSNorm(size, { eps = 1e-6 }) end

--- From the patches of a block to one token.
---@class models.Qwen2_5_VLMerger: nn.Module
local Merger = nn.Module:subclass("PatchMerger")

function Merger:init(c)
  self.block = c.hidden_size * c.merge_area
  self.ln_q = norm(c.hidden_size)
  self.mlp = nn.Sequential { nn.Linear(self.block, self.block), vision.Gelu(),
    nn.Linear(self.block, c.out_hidden_size) }
end

function Merger:forward(x) return self.mlp(self.ln_q(x):reshape(-1, self.block)) end

---@class models.Qwen2_5_VLTower: nn.Module
local Tower = nn.Module:subclass("VisionTower")

function Tower:init(raw, text_hidden)
  local c = vision.settings("Qwen2_5_VL", raw, { depth = options.required, hidden_size = options.required,
    intermediate_size = options.required, num_heads = options.required, patch_size = 14, window_size = 112,
    out_hidden_size = options.required, fullatt_block_indexes = { 7, 15, 23, 31 }, tokens_per_second = 4 }, "silu")
  self.settings = c
  c.window = math.floor(math.floor(c.window_size / c.spatial_merge_size) / c.patch_size)
  if c.out_hidden_size ~= text_hidden or c.window < 1 then
    core.raise(string.format("models: Qwen2_5_VL: vision_config: out_hidden_size %d must be the text's hidden_size %d, "
      .. "and window_size %d at least a block of %d pixels", c.out_hidden_size, text_hidden, c.window_size,
      c.spatial_merge_size * c.patch_size))
  end
  c.sees_all = {}
  for _, index in ipairs(c.fullatt_block_indexes) do c.sees_all[index] = true end
  self.patch_embed = vision.PatchEmbed(c, false)
  self.blocks = nn.ModuleList()
  for _ = 1, c.depth do
    self.blocks:append(vision.Block(c, norm, decoder.Mlp(c.hidden_size, c.intermediate_size, { bias = true })))
  end
  self.merger = Merger(c)
end

--- The order of blocks in which each window is one run, and the patches of each window.
local function windows_of(c, grid)
  local order, lengths, first = {}, {}, 0
  for _, item in ipairs(grid) do
    local frames, rows, columns = item[1], item[2] / c.spatial_merge_size, item[3] / c.spatial_merge_size
    for frame = 0, frames - 1 do
      for top = 0, rows - 1, c.window do
        for left = 0, columns - 1, c.window do
          local before = #order
          for y = top, math.min(top + c.window, rows) - 1 do
            for x = left, math.min(left + c.window, columns) - 1 do
              order[#order + 1] = first + (frame * rows + y) * columns + x
            end
          end
          lengths[#lengths + 1] = (#order - before) * c.merge_area
        end
      end
    end
    first = first + frames * rows * columns
  end
  return torch.tensor(order, { dtype = torch.int64 }), lengths
end

--- pixels: [P, D]. grid: {t, h, w} of each item. checkpoint: see CausalLM. Returns [N, hidden].
function Tower:forward(pixels, grid, checkpoint)
  local c = self.settings
  local device = self.patch_embed.proj.weight.device
  local order, windows = windows_of(c, grid)
  order = order:to(device)
  local function reordered(x) return x:unflatten(0, { -1, c.merge_area }):index_select(0, order):flatten(0, 1) end
  local places = vision.places(grid, c.spatial_merge_size)
  local cos, sin = vision.rotation(c, places, device)
  cos, sin = reordered(cos), reordered(sin)
  local x = reordered(self.patch_embed(vision.read_pixels(c, pixels, grid, device)))
  for i, block in ipairs(self.blocks) do
    x = vision.run_block(block, checkpoint, x, c.sees_all[i - 1] and places.frames or windows, cos, sin)
  end
  return self.merger(x):index_select(0, order:argsort())
end

---@class models.Qwen2_5_VL: models.VisionLanguage
local Qwen2_5_VL = vision_language.VisionLanguage:subclass("Qwen2_5_VLForConditionalGeneration")
Qwen2_5_VL.model_type = "qwen2_5_vl"
Qwen2_5_VL.tower = Tower
Qwen2_5_VL.theta, Qwen2_5_VL.interleaved, Qwen2_5_VL.sections = 1000000, false, { 16, 24, 24 }
Qwen2_5_VL.keys = decoder.keys { rms_norm_eps = 1e-5, use_sliding_window = false, sliding_window = 4096,
  max_window_layers = 80, layer_types = options.optional }

--- See CausalLM.read.
---@param c table<string, any>
function Qwen2_5_VL.read(c)
  c.qkv_bias = true
  c.windows = config.windows(c)
  vision_language.read(Qwen2_5_VL, c)
end

--- See VisionLanguage.layout.
---@param raw table<string, any>
---@return models.VisualLayout
function Qwen2_5_VL.layout(raw)
  local layout = vision_language.VisionLanguage.layout(raw)
  local per_second = raw.vision_config.tokens_per_second or 4
  layout.split_frames = false
  layout.interval = function(seconds) return per_second * (seconds or 1) end
  return layout
end

--- See models.position_ids.
---@param raw table<string, any>
---@param sample models.Batch
---@return torch.Tensor # [3, T] int64
function Qwen2_5_VL.positions(raw, sample) return vision_language.VisionLanguage.positions(raw, sample, Qwen2_5_VL) end

--- See CausalLM:layouts.
---@return table<string, torch.Tensor>[]
function Qwen2_5_VL:layouts()
  local state, on_disk = self:state_dict(), {}
  for name, tensor in pairs(state) do
    on_disk[name:gsub("^model%.visual%.", "visual."):gsub("^model%.language_model%.", "model.")] = tensor
  end
  return { on_disk, state }
end

return { Qwen2_5_VL = Qwen2_5_VL }
