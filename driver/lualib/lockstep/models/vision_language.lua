--- Models of pictures and text: a vision tower turns patches into tokens, which take the places of placeholders among
--- the embeddings of a language model.

local chunks = require "lockstep.nn.chunks"
local config = require "lockstep.models.config"
local core = require "lockstep.core"
local decoder = require "lockstep.models.decoder"
local nn = require "lockstep.nn"
local options = require "lockstep.options"
local placeholders = require "lockstep.models.placeholders"
local plain = require "lockstep.plain"
local splits = require "lockstep.nn.splits"
local torch = require "lockstep.torch"

local M = {}

local check, fail = plain.checks "models: "

--- Keys of config.json beside those of the text model.
local OWN = { image_token_id = options.required, video_token_id = options.required, text_config = options.optional,
  vision_config = options.optional, vision_start_token_id = options.optional, vision_end_token_id = options.optional,
  vision_token_id = options.optional, tie_word_embeddings = options.optional }

--- The modules under "model.": `visual` is the tower.
---@class models.VisionLanguageBody: nn.Module
local Body = nn.Module:subclass("VisionLanguageBody")

function Body:init(visual, language_model) self.visual, self.language_model = visual, language_model end

function Body:forward(x, pass) return self.language_model(x, pass) end

--- A subclass sets `tower`, a class that is called with vision_config and the hidden size of the text; `keys`, `theta`,
--- `interleaved`; and may override `layout` and `layouts`.
---@class models.VisionLanguage: models.CausalLM
---@field tower any
---@field theta number of the rotary embedding where the config has none
---@field interleaved boolean whether the frequencies of time, row and column alternate
---@field part "visual"|"language"|nil what take_part has left
local VisionLanguage = decoder.CausalLM:subclass("VisionLanguage")
M.VisionLanguage = VisionLanguage

local function get(raw, key)
  if raw[key] ~= core.null then return raw[key] end
end

--- Returns the settings of the text model, which old configs mix with the others, and the values of OWN's keys.
local function split(class, raw, ignore)
  local text, own = get(raw, "text_config"), {}
  local rest = plain.copy(raw)
  for key in pairs(OWN) do
    own[key], rest[key] = get(raw, key), nil
  end
  for _, key in ipairs { "image_token_id", "video_token_id", "vision_config" } do
    check(own[key] ~= nil, '%s: the config lacks "%s"', class.class_name, key)
  end
  if text then
    -- All keys next to text_config must be known, too.
    config.settings(class.class_name, rest, {}, ignore)
    text = plain.copy(text)
  else
    text = rest
  end
  if own.tie_word_embeddings ~= nil then text.tie_word_embeddings = own.tie_word_embeddings end
  local rope = get(text, "rope_parameters") or get(text, "rope_scaling") or {}
  if get(text, "rope_theta") == nil and rope.rope_theta == nil then text.rope_theta = class.theta end
  return text, own
end

--- For each frequency, whether it turns with time (0), row (1) or column (2).
local function axes_of(class, c, sections)
  check(type(sections) == "table" and #sections == 3 and sections[1] + sections[2] + sections[3] == c.head_dim / 2,
    "%s: mrope_section must be three numbers that add up to head_dim / 2 = %d, got %s", class.class_name,
    c.head_dim / 2, type(sections) == "table" and "{" .. table.concat(sections, ", ") .. "}" or tostring(sections))
  local axes = {}
  for axis, count in ipairs(sections) do
    for i = 0, count - 1 do
      if not class.interleaved then axes[#axes + 1] = axis - 1 end
      -- Frequency 3 i + 1 turns with the row, 3 i + 2 with the column, and all that is left with time.
      if class.interleaved and axis > 1 then axes[3 * i + axis] = axis - 1 end
    end
  end
  for i = 1, c.head_dim / 2 do axes[i] = axes[i] or 0 end
  return torch.tensor(axes, { dtype = torch.int64 })
end

--- Takes from the options of the rotary embedding those that say which frequency turns with what.
local function take_sections(class, c)
  local sections, interleaved = c.rope.mrope_section, c.rope.mrope_interleaved
  c.rope.mrope_section, c.rope.mrope_interleaved = nil, nil
  if c.rope.rope_type == "mrope" then c.rope.rope_type = "default" end
  check(interleaved == nil or interleaved == class.interleaved,
    "%s: mrope_interleaved is %s; only %s is supported", class.class_name, interleaved, class.interleaved)
  c.axes = axes_of(class, c, sections or class.sections)
end

function VisionLanguage:init(raw, opts)
  local text, own = split(self, raw, opts and opts.ignore)
  decoder.CausalLM.init(self, text, opts)
  self.config = raw
  self.model = Body(self.tower(own.vision_config, self.settings.hidden_size), self.model)
  self.visual_layout = self.layout(raw, own, self.model.visual)
  -- The tower's output, and what Qwen3-VL adds after its first layers.
  self.visual_columns = self.settings.hidden_size * (1 + #(self.model.visual.settings.deepstack_visual_indexes or {}))
  for _, key in ipairs { "image_token_id", "video_token_id" } do
    if own[key] >= self.settings.vocab_size then
      fail("%s: %s is %d, but vocab_size is %d", self.class_name, key, own[key], self.settings.vocab_size)
    end
  end
end

--- See CausalLM.parts.
VisionLanguage.parts = { "visual", "language" }

--- See CausalLM:take_part.
---@param part "visual"|"language"
function VisionLanguage:take_part(part)
  self.part = part
  if part == "language" then
    self.model.visual = nil
  else
    self.model.language_model, self.lm_head = nil, nil
  end
end

--- See CausalLM:forward. The part "visual" returns the tokens of the pictures and videos.
---@param batch models.Batch
---@param what string?
---@param ... any
---@return any ...
function VisionLanguage:forward(batch, what, ...)
  if self.part == "visual" and what == nil then return self:visual(batch) end
  return decoder.CausalLM.forward(self, batch, what, ...)
end

--- See CausalLM:decoder.
---@return models.Decoder
function VisionLanguage:decoder() return self.model.language_model end

--- Subclasses call this from their `read`.
---@param class any
---@param c table<string, any>
function M.read(class, c) take_sections(class, c) end

--- See CausalLM.tensor_plan. Every rank runs the whole tower.
---@return table<string, string>
function VisionLanguage.tensor_plan()
  return plain.copy(decoder.CausalLM.tensor_plan(), { ["model.visual"] = "whole" })
end

--- Overridden by architectures with other videos: where visual tokens stand and how time advances.
---@param raw table<string, any>
---@return models.VisualLayout
function VisionLanguage.layout(raw)
  return { image = raw.image_token_id, video = raw.video_token_id, split_frames = true,
    merge = get(raw.vision_config, "spatial_merge_size") or 2, interval = function() return 1 end }
end

local function seconds_of(batch)
  local seconds = batch.second_per_grid_ts
  return torch.is_tensor(seconds) and seconds:totable() or seconds
end

--- Finds pictures and videos in a batch.
local function find(layout, batch, ids, lengths)
  local images = placeholders.in_order(placeholders.read_grid("image_grid_thw", batch.image_grid_thw, layout.merge),
    batch.image_order, layout.merge)
  local videos = placeholders.read_grid("video_grid_thw", batch.video_grid_thw, layout.merge)
  return placeholders.find(layout, ids, lengths, images, videos, seconds_of(batch)), images, videos
end

--- See models.position_ids.
---@param raw table<string, any>
---@param sample models.Batch
---@param class any the architecture; default: one with Qwen3-VL's layout
---@return torch.Tensor # [3, T] int64
function VisionLanguage.positions(raw, sample, class)
  local ids = sample.input_ids
  if torch.is_tensor(ids) then ids = ids:totable() end
  return find((class or VisionLanguage).layout(raw), sample, ids, sample.seq_lens or { #ids }).positions
end

-- Batches -------------------------------------------------------------------------------------------------

--- Raises where chunks of a batch are in force without the whole batch, which places of pictures need.
local function refuse_chunks()
  local current = chunks.current()
  if current and current.table then return end -- the batch is whole
  chunks.refuse("models", "a batch with pictures cannot be in chunks; one of text alone can, and sharding.parallelize "
    .. "cuts batches with pictures")
end

--- Returns the visual tokens that this rank holds, and their places in its chunk. Every rank computes all of them:
--- gradients of the tower add up over the ranks.
---@param visual torch.Tensor? nil: returns the places alone
local function own_visuals(visual, tokens)
  local current = chunks.current()
  if not current then return visual, tokens end
  local own = current.table
  local places = own:places(tokens.device):index_select(0, tokens) - current.rank * own.most
  local held = places:ge(0):logical_and(places:lt(own.counts[current.rank + 1])):nonzero():view(-1)
  return visual and visual:index_select(0, held:to(visual.device)), places:index_select(0, held)
end

local function has_visuals(batch)
  for _, key in ipairs { "pixel_values", "pixel_values_videos", "visual", "own_visual", "image_grid_thw",
    "video_grid_thw" } do
    if batch[key] ~= nil and not (torch.is_tensor(batch[key]) and batch[key]:size(0) == 0) then return true end
  end
  return false
end

--- Returns the tokens of all pictures and videos of a batch, [N, hidden * (1 + layers that add more)]. If the tower
--- runs on other ranks, pass them as `batch.visual` in place of pixel values. With `batch.image_order` a picture that
--- has several places goes through the tower once.
---
---     batch.visual = bridge(on_vision_rank and model:visual(batch) or nil)
---@param batch models.Batch
---@return torch.Tensor
function VisionLanguage:visual(batch)
  refuse_chunks()
  check(self.part ~= "language", 'the part "language" has no vision tower; give the tokens that came over the bridge '
    .. "as batch.visual")
  local merge = self.visual_layout.merge
  local grid = placeholders.read_grid("image_grid_thw", batch.image_grid_thw, merge)
  local videos = placeholders.read_grid("video_grid_thw", batch.video_grid_thw, merge)
  local _, rows, of_images = placeholders.in_order(grid, batch.image_order, merge)
  for _, item in ipairs(videos) do grid[#grid + 1] = item end
  local pixels = {}
  if batch.pixel_values then pixels[1] = batch.pixel_values end
  if batch.pixel_values_videos then pixels[#pixels + 1] = batch.pixel_values_videos end
  check(#pixels ~= 0 and #grid ~= 0,
    "pictures need pixel_values and image_grid_thw, videos pixel_values_videos and video_grid_thw")
  local tokens = self.model.visual(#pixels == 1 and pixels[1] or torch.cat(pixels), grid, self.checkpoint)
  if not rows then return tokens end
  rows = torch.cat { rows, torch.arange(of_images, tokens:size(0), { dtype = torch.int64 }) } -- with the videos'
  return tokens:index_select(0, rows:to(tokens.device))
end

--- Whether position ids [T] say no more than that the tokens count up from 0 in each sample.
local function only_counts(positions)
  local steps = positions[{ { 1, positions:size(0) } }] - positions[{ { 0, positions:size(0) - 1 } }]
  return positions[0]:item() == 0
    and steps:eq(1):logical_or(positions[{ { 1, positions:size(0) } }]:eq(0)):all():item()
end

local function check_positions(positions)
  if positions:dim() == 2 and positions:size(0) == 3 then return end
  check(positions:dim() == 1 and only_counts(positions:to "cpu"), "position_ids of a batch with images must be [3, T], "
    .. "as models.position_ids gives them for each sample, or count up from 0 in each; got shape %s", positions.shape)
end

--- Throws where text alone holds a placeholder. New tokens of generation may: then they are ids like others.
local function check_text(self, batch)
  if batch.continues or batch.input_ids.device ~= "cpu" then return end
  for key, kind in pairs { image = "an image", video = "a video" } do
    local id = self.visual_layout[key]
    if batch.input_ids:eq(id):any():item() then
      fail("input_ids has placeholders of %s (id %d), but the batch has no %s", kind, id,
        key == "image" and "pixel_values and image_grid_thw" or "pixel_values_videos and video_grid_thw")
    end
  end
end

--- Puts the visual tokens in their places. Returns the tensors to add after the first layers.
---@param own torch.Tensor? in place of `visual`: the visual tokens whose places are among this rank's tokens
local function insert(self, x, visual, tokens, own)
  local hidden, owner = self.settings.hidden_size, splits.owner_of(self)
  if own then
    tokens = select(2, own_visuals(nil, tokens))
    if owner then tokens = select(2, splits.own_rows(owner, nil, tokens, x:size(0))) end
    visual = own
  end
  if not (torch.is_tensor(visual) and visual:is_floating_point() and visual:dim() == 2) then
    fail("the visual tokens must be a floating-point tensor [tokens, columns], not %s",
      torch.is_tensor(visual) and ("%s of shape %s"):format(tostring(visual.dtype), tostring(visual.shape))
        or "a " .. type(visual))
  end
  if visual:size(0) ~= tokens:size(0) or visual:size(1) ~= self.visual_columns then
    fail("the visual tokens have shape %s, but input_ids has %d placeholders%s, and each needs the %d columns that "
      .. "model:visual returns", tostring(visual.shape), tokens:size(0), own and " on this rank" or "",
      self.visual_columns)
  end
  if not own then
    visual, tokens = own_visuals(visual, tokens)
    if owner then visual, tokens = splits.own_rows(owner, visual, tokens, x:size(0)) end
  end
  tokens = tokens:to(x.device)
  local parts = visual:to { device = x.device, dtype = x.dtype }:split(hidden, 1)
  local function after(index, y) return parts[index + 1] and y:index_add(0, tokens, parts[index + 1]) or y end
  return x:index_copy(0, tokens, parts[1]), #parts > 1 and after or nil
end

--- What architectures with positions of another kind need for `inputs` of their own.
M.parts = { find = find, insert = insert, has_visuals = has_visuals, check_text = check_text,
  refuse_chunks = refuse_chunks }

--- The angles of each token: each frequency turns with one of the three positions.
local function angles_of(self, positions)
  local all = self.rotary:angles(positions)
  if positions:dim() == 1 then return all end
  local axes = self.settings.axes:to(all.device):view(1, 1, -1):expand(1, all:size(1), -1)
  return all:gather(0, axes):squeeze(0)
end

--- See CausalLM:inputs.
---@param batch models.Batch
---@return torch.Tensor x [T, hidden]
---@return torch.Tensor angles [T, head_dim / 2] float32
---@return integer[] seq_lens
---@return (fun(index: integer, x: torch.Tensor): torch.Tensor)? after
function VisionLanguage:inputs(batch)
  check(self.part ~= "visual", 'the part "visual" has no language model; model:visual(batch) returns its tokens')
  local before = self.stage_input and self.stage_input.x
  if type(batch) == "table" and not has_visuals(batch) then
    local ids, positions, seq_lens = self:read_batch(batch)
    check_text(self, batch)
    check(positions:dim() == 1 or positions:dim() == 2 and positions:size(0) == 3,
      "position_ids must have shape [T] or [3, T], got %s", positions.shape)
    return before or self:decoder().embed_tokens(ids), angles_of(self, positions), seq_lens
  end
  check(not batch.shares, "a batch with pictures cannot have shares of samples; batching.prepare splits samples of "
    .. "text alone")
  refuse_chunks()
  local ids, positions, seq_lens = self:read_batch(batch)
  local visuals = find(self.visual_layout, batch, batch.input_ids:totable(), seq_lens)
  if batch.position_ids then check_positions(batch.position_ids) end
  if positions:dim() == 1 then
    local current, all = chunks.current(), visuals.positions
    positions = (current and chunks.own(current, all, 1) or all):to(positions.device)
  end
  -- All layers that take visual tokens are on the first stage.
  if before then return before, angles_of(self, positions), seq_lens end
  local visual = batch.own_visual or batch.visual or chunks.with(nil, self.visual, self, batch) -- whole pictures
  local x, after = insert(self, self:decoder().embed_tokens(ids), visual, visuals.tokens, batch.own_visual)
  return x, angles_of(self, positions), seq_lens, after
end

--- See CausalLM.staged_inputs.
VisionLanguage.staged_inputs = VisionLanguage.inputs

return M
