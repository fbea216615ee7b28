--- The first sample of a batch as text, for --dry-run: its ids, the text with the part that is trained on, and its
--- pictures in characters.

local plain = require "lockstep.plain"
local torch = require "lockstep.torch"

local M = {}

local DEPTH = 4 -- of tables in which batches are searched
local SPANS, RUNS = 12, 48 -- shown of a sample, and of a span
local PICTURES, COLUMNS, LINES = 2, 64, 40
local REPEATS = 4 -- equal ids in a row, from which on they are counted
local SHADES = " .:-=+*#%@"

-- Tensors that hold pictures, what lists their sizes in patches, and the placeholders' type.
local MODALITIES = {
  { name = "picture", rows = "pixel_values", grids = "image_grid_thw", type = 1, id = "image_token_id" },
  { name = "video", rows = "pixel_values_videos", grids = "video_grid_thw", type = 2, id = "video_token_id" },
}

-- Batches -------------------------------------------------------------------------------------------

--- Returns the tables in `value` that hold ids: the first of each kind, without padding.
---@param value any
---@return table[]
function M.find(value)
  local found, kinds, seen = {}, {}, {}
  local function visit(t, depth)
    if type(t) ~= "table" or seen[t] or depth > DEPTH then return end
    seen[t] = true
    local ids = rawget(t, "input_ids")
    if torch.is_tensor(ids) or type(ids) == "table" and type(ids[1]) == "number" then
      local kind = tostring(rawget(t, "kind"))
      if not kinds[kind] and rawget(t, "padding") ~= true then
        kinds[kind], found[#found + 1] = true, t
      end
      return
    end
    local names = plain.keys(t, function(name) return type(name) == "string" end)
    for i = 1, #t do visit(rawget(t, i), depth + 1) end
    for _, name in ipairs(names) do visit(rawget(t, name), depth + 1) end
  end
  visit(value, 1)
  return found
end

--- Returns the first `length` values of an array, or of a tensor's first row; all without `length`.
local function row(x, length)
  if torch.is_tensor(x) then
    while x:dim() > 1 do x = x[0] end
    x = x:totable()
  end
  local values = {}
  for i = 1, length or #x do values[i] = x[i] end
  return values
end

-- Text ----------------------------------------------------------------------------------------------

--- Returns text that a terminal prints as it is, in lines that begin with spaces.
local function printable(text)
  local escaped = text:gsub("[%z\1-\8\11-\31\127]", function(c) return ("\\x%02x"):format(c:byte()) end)
  return (escaped:gsub("\n", "\n          "))
end

--- Returns the ids in spans of one mark, each in runs of one id: {{is_learned, {id, count, text}, ...}, ...}.
local function spans_of(ids, mask, stream)
  local spans, span, run = {}, nil, nil
  for i, id in ipairs(ids) do
    local is_learned = mask ~= nil and mask[i] ~= 0 and mask[i] ~= false
    if not span or span.is_learned ~= is_learned then
      span, run = { is_learned = is_learned }, nil
      spans[#spans + 1] = span
    end
    if not run or run.id ~= id then
      run = { id = id, count = 0, text = "" }
      span[#span + 1] = run
    end
    run.count = run.count + 1
    if stream then
      local piece = stream:push(id)
      -- A token may complete a character of the token before it: then two equal ids have different texts.
      if run.count == 1 then run.first = piece end
      run.is_uniform = (run.count == 1 or run.is_uniform) and piece == run.first
      run.text = run.text .. piece
    end
  end
  if stream and run then run.text = run.text .. stream:finish() end
  return spans
end

--- Joins what `show` returns for each run, and puts learned spans in [[ ]].
local function join(spans, separator, show)
  local parts = {}
  for s = 1, math.min(#spans, SPANS) do
    local span, runs, left_out = spans[s], {}, 0
    for r, run in ipairs(span) do
      if r <= RUNS then runs[r] = show(run) else left_out = left_out + run.count end
    end
    if left_out > 0 then runs[#runs + 1] = (" (and %d more tokens)"):format(left_out) end
    local shown = table.concat(runs, separator)
    parts[s] = span.is_learned and "[[" .. shown .. "]]" or shown
  end
  if #spans > SPANS then parts[#parts + 1] = (" (and %d more parts)"):format(#spans - SPANS) end
  return table.concat(parts, separator)
end

local function show_id(run)
  if run.count >= REPEATS then return ("%d (%d times)"):format(run.id, run.count) end
  return (("%d "):format(run.id):rep(run.count):gsub(" $", ""))
end

local function show_text(run)
  if run.count < REPEATS or not run.is_uniform then return run.text end
  return ("%s (%d times)"):format(run.first, run.count)
end

-- Pictures ------------------------------------------------------------------------------------------

--- Returns the placeholders of a modality in the sample and in all of the batch; nil where they are not known.
local function placeholders(batch, modality, length, opts)
  local types, wanted = rawget(batch, opts.token_types or "mm_token_type_ids"), modality.type
  if types == nil then types, wanted = batch.input_ids, opts[modality.id] end
  if wanted == nil then return nil end
  local own, all = 0, 0
  for i, value in ipairs(row(types)) do
    if value == wanted then
      all = all + 1
      if i <= length then own = own + 1 end
    end
  end
  return own, all
end

--- Returns how a row of `values` numbers is divided: into channels, frames and a square's side. No two of these fit.
local function divide(values)
  for _, part in ipairs { { 3, 2 }, { 3, 1 }, { 1, 1 }, { 1, 2 } } do
    local side = math.sqrt(values / part[1] / part[2])
    if side >= 1 and side % 1 == 0 then return part[1], part[2], side end
  end
end

--- Returns the first frame of patches [t h w, D], in blocks of merge x merge, as a grey picture [H, W].
local function unpatch(patches, h, w, merge)
  local channels, frames, side = divide(patches:size(1))
  if not channels then return nil end
  return patches:narrow(0, 0, h * w)
    :view(h / merge, w / merge, merge, merge, channels, frames, side, side):select(5, 0)
    :permute(4, 0, 2, 5, 1, 3, 6):reshape(channels, h * side, w * side):mean(0)
end

--- Returns the first grey pictures of the sample, and how many it has in words. Where it is not known which pictures of
--- a micro-batch are the sample's, these are all.
local function pictures(batch, modality, length, opts)
  local rows, grids = rawget(batch, modality.rows), rawget(batch, modality.grids)
  if not torch.is_tensor(rows) or rows:numel() == 0 then return {} end
  rows = rows:detach():to("cpu"):to(torch.float32)
  if not torch.is_tensor(grids) then
    if rows:dim() == 3 then rows = rows:unsqueeze(0) end
    local shown = {}
    for i = 1, rows:dim() == 4 and math.min(rows:size(0), PICTURES) or 0 do shown[i] = rows[i - 1]:mean(0) end
    return shown, rows:size(0) .. " in the batch"
  end
  local own, all = placeholders(batch, modality, length, opts)
  local count, merge = rows:size(0), nil
  if own and all > 0 then
    merge = math.floor(math.sqrt(count / all) + 0.5)
    count = count * own / all
  end
  local shown, num, at = {}, 0, 0
  for _, grid in ipairs(grids:totable()) do
    local t, h, w = unpack(grid)
    if at + t * h * w > count then break end
    num = num + 1
    if num <= PICTURES then
      local block = merge or (h % 2 == 0 and w % 2 == 0) and 2 or 1
      shown[num] = unpatch(rows:narrow(0, at, t * h * w), h, w, block)
    end
    at = at + t * h * w
  end
  return shown, num .. (own and "" or " in the batch")
end

--- Returns a grey picture [H, W] in characters: the brightest pixel is "@", the darkest " ".
local function art(grey)
  local height, width = grey:size(0), grey:size(1)
  -- A character is twice as high as it is wide.
  local columns = math.min(2 * width, COLUMNS, math.floor(2 * LINES * width / height))
  columns = math.max(columns, 1)
  local lines = math.max(math.floor(columns * height / width / 2 + 0.5), 1)
  local small = torch.adaptive_avg_pool2d(grey:unsqueeze(0), { lines, columns })[0]
  local darkest = small:min():item()
  local range = math.max(small:max():item() - darkest, 1e-12)
  local text = {}
  for y, values in ipairs(small:totable()) do
    local shades = {}
    for x, value in ipairs(values) do
      local shade = 1 + math.floor((value - darkest) / range * (#SHADES - 1) + 0.5)
      shades[x] = SHADES:sub(shade, shade)
    end
    text[y] = "          " .. table.concat(shades)
  end
  return table.concat(text, "\n")
end

--- Returns a sample's text, with the part that is trained on in [[ ]].
---@param sample table with input_ids, and loss_mask
---@param tokenizer text.Tokenizer
---@return string
function M.text(sample, tokenizer)
  local ids = row(sample.input_ids)
  local mask = rawget(sample, "loss_mask") and row(sample.loss_mask, #ids)
  return printable(join(spans_of(ids, mask, tokenizer:stream()), "", show_text))
end

-- All -----------------------------------------------------------------------------------------------

--- Returns the first sample of a batch as text. Without a tokenizer there are only ids.
---@param batch table a micro-batch, or a sample
---@param tokenizer text.Tokenizer?
---@param opts {token_types: string?, image_token_id: integer?, video_token_id: integer?}? of batching.prepare
---@return string
function M.describe(batch, tokenizer, opts)
  local length = (rawget(batch, "seq_lens") or {})[1]
  local ids = row(batch.input_ids, length)
  local mask = rawget(batch, "loss_mask") and row(batch.loss_mask, #ids)
  local spans, learned = spans_of(ids, mask, tokenizer and tokenizer:stream()), 0
  for _, span in ipairs(spans) do
    for _, run in ipairs(span) do learned = learned + (span.is_learned and run.count or 0) end
  end
  local kind = rawget(batch, "kind")
  local lines = { ("sample      %sthe first of %s: %d tokens, %s"):format(kind and kind .. ", " or "",
    length and "its micro-batch" or "its batch", #ids,
    mask and ("%d of them trained on, in [[ ]]"):format(learned) or "without a loss_mask") }
  lines[2] = "  ids     " .. join(spans, " ", show_id)
  lines[3] = "  text    " .. (tokenizer and printable(join(spans, "", show_text))
    or "not known: the script has opened no text.tokenizer")
  for _, modality in ipairs(MODALITIES) do
    local shown, num = pictures(batch, modality, #ids, opts or {})
    for i, grey in ipairs(shown) do
      lines[#lines + 1] = ("  %s %d of %s, %d x %d pixels (width x height)"):format(modality.name, i, num,
        grey:size(1), grey:size(0))
      lines[#lines + 1] = art(grey)
    end
  end
  return table.concat(lines, "\n")
end

return M
