--- Losses, log-probabilities and entropies of a batch, without the logits of all tokens: at 8,192 tokens and
--- a vocabulary of 152,000 they take 4.6 GiB in float32.
---
---     local sum, count = model:loss(batch)
---     local log_probs, entropy = model:log_probs(batch)

local checkpoint = require "lockstep.checkpoint"
local chunks = require "lockstep.nn.chunks"
local core = require "lockstep.core"
local fused = require "lockstep.nn.fused"
local masks = require "lockstep.losses.mask"
local options = require "lockstep.options"
local plain = require "lockstep.plain"
local sending = require "lockstep.models.sending"
local splits = require "lockstep.nn.splits"
local tiled_mlp = require "lockstep.tiled_mlp"
local torch = require "lockstep.torch"

local M = {}

local IGNORED = -100

--- The label of each token: the next token of its sequence, where that one counts. [T] on `device`
local function next_tokens(batch, device)
  if batch.shares then return batch.shares.labels:to(device) end -- the next token may be on another rank
  local ids = batch.input_ids
  local tokens = ids:size(0)
  local counted = ids:to(torch.int64)
  if batch.loss_mask then
    plain.check(torch.is_tensor(batch.loss_mask),
      "models: loss_mask must be a tensor of shape [T], got a %s", type(batch.loss_mask))
    plain.check(batch.loss_mask:size(-1) == tokens and batch.loss_mask:dim() == 1,
      "models: loss_mask has shape %s, but input_ids holds %d tokens", batch.loss_mask.shape, tokens)
    counted = counted:masked_fill(masks.left_out(batch.loss_mask, "models: loss_mask"):to(ids.device), IGNORED)
  end
  counted = counted:to(device)
  local current = chunks.current()
  if current and not current.table then -- else the batch is whole
    counted = chunks.gather(current, counted) -- a chunk's last label is the next chunk's first token
    tokens = counted:size(0)
  end
  local labels = torch.full_like(counted, IGNORED)
  labels[{ { 0, tokens - 1 } }] = counted[{ { 1, tokens } }]
  local last = -1
  for _, length in ipairs(batch.seq_lens or { tokens }) do
    last = last + length
    labels[last] = IGNORED
  end
  return current and chunks.own(current, labels, 0, IGNORED) or labels
end

--- Returns whether labels can be made and counted on the CPU, and then sent to the device with the ids.
local function is_on_host(batch)
  return batch.input_ids.device == "cpu" and not chunks.current() and not torch.cuda.is_current_stream_capturing()
end

--- See CausalLM:loss.
---@param self models.CausalLM
---@param batch models.Batch
---@return torch.Tensor sum float32
---@return integer count
function M.loss(self, batch)
  local count
  local sent, hidden, seconds = sending.with(batch, function()
    if not is_on_host(batch) then return {} end
    local labels = next_tokens(batch, "cpu")
    count = labels:ne(IGNORED):sum():item()
    return { labels = labels }
  end, function() return self:hidden(batch) end)
  local weight, labels = self:head_weight(), sent.labels or next_tokens(batch, hidden.device)
  local sum
  sum, count = tiled_mlp.cross_entropy { hidden = hidden, weight = weight, labels = labels, ignore_index = IGNORED,
    reduction = "sum", count = count, label_smoothing = self.training and self.label_smoothing or nil }
  local balance = self:balance_loss(chunks.gather_each(seconds)) -- of all tokens
  return balance and sum + balance * count or sum, count
end

--- Returns which tokens are the first of their sequences, on the CPU: bool [T].
local function first_tokens(batch)
  local tokens = batch.input_ids:size(0)
  local is_first, start = torch.zeros({ tokens }, { dtype = torch.bool }), 0
  for _, length in ipairs(batch.seq_lens or { tokens }) do
    is_first[start] = true
    start = start + length
  end
  return is_first
end

--- Returns the log-probability of each label of a tile, and the entropy of its distribution.
local function score(hidden, weight, labels, temperature, split)
  local logits = split and splits.scores(hidden, weight, nil, split) or torch.linear(hidden, weight)
  if temperature ~= 1 then
    if logits.dtype ~= torch.float64 then logits = logits:to(torch.float32) end
    logits = logits / temperature
  end
  local log_probs, entropy
  if not split then log_probs, entropy = fused.scores_of_labels(logits, labels) end
  if log_probs then return log_probs, entropy end
  if logits.dtype ~= torch.float64 then logits = logits:to(torch.float32) end
  local total = logits:logsumexp({ -1 })
  log_probs = logits:gather(-1, labels:unsqueeze(-1)):squeeze(-1) - total
  entropy = total - (logits:softmax(-1) * logits):sum({ -1 })
  return log_probs, entropy
end

--- See CausalLM:log_probs.
---@param self models.CausalLM
---@param batch models.Batch
---@param opts {temperature: number?, tile_tokens: integer?}?
---@return torch.Tensor log_probs [T] float32, or float64 of such a model
---@return torch.Tensor entropy [T]
function M.log_probs(self, batch, opts)
  local o = options.read("models.log_probs", opts, { temperature = 1, tile_tokens = 1024 })
  if o.temperature <= 0 or o.tile_tokens < 1 then
    core.raise("models.log_probs: temperature must be above 0, and tile_tokens at least 1")
  end
  if type(batch) == "table" and batch.shares then
    core.raise("models.log_probs: the batch has shares of samples, whose next tokens are on other ranks; use "
      .. "model:loss, or prepare the micro-batches without split")
  end
  local current = chunks.current()
  if not (current and current.table) then
    chunks.refuse("models.log_probs", "use model:loss, or nn.attention and the hidden states")
  end
  local sent, hidden = sending.with(batch, function() return { is_first = first_tokens(batch) } end,
    function() return self:hidden(batch) end)
  local weight, tokens = self:head_weight(), batch.input_ids:size(0)
  local split = splits.of(weight)
  local ids = not current and sent.ids or batch.input_ids:to(hidden.device)
  local region = checkpoint.new { preserve_rng = false }
  local dtype = hidden.dtype == torch.float64 and torch.float64 or torch.float32
  local zero = torch.zeros({ 1 }, { dtype = dtype, device = hidden.device })
  -- A batch of one token predicts nothing. It is scored with any label, so that its zeros have a gradient, of zeros.
  local start = tokens > 1 and not current and zero or nil
  local log_probs, entropy = { start }, { start }
  local next_ids = tokens > 1 and ids:narrow(0, 1, tokens - 1) or ids
  if current then next_ids = chunks.own(current, tokens > 1 and torch.cat { next_ids, ids:narrow(0, 0, 1) } or ids) end
  for from = 0, next_ids:size(0) - 1, o.tile_tokens do
    local to = math.min(from + o.tile_tokens, next_ids:size(0))
    local labels = next_ids[{ { from, to } }]:to(torch.int64)
    local function tile(h, w) return score(h, w, labels, o.temperature, split) end
    local p, e = region(tile, hidden[{ { from, to } }], weight)
    log_probs[#log_probs + 1], entropy[#entropy + 1] = p, e
  end
  --- Puts a chunk's scores in the batch's order, each at the token that it is of.
  local function whole(scores)
    local all = torch.cat(scores)
    if not current then return all end
    all = chunks.gather(current, all)
    return tokens > 1 and torch.cat { zero, all:narrow(0, 0, tokens - 1) } or all
  end
  local is_first = (sent.is_first or first_tokens(batch)):to { device = hidden.device, dtype = torch.bool }
  return whole(log_probs):masked_fill(is_first, 0), whole(entropy):masked_fill(is_first, 0)
end

return M
