--- losses.pairs: pairs of conversations as samples, their scores, and the preference losses by one name.

local checks = require "lockstep.losses.checks"
local core = require "lockstep.core"
local options = require "lockstep.options"
local pictures = require "lockstep.losses.pictures"
local preferences = require "lockstep.losses.preferences"
local read = require "lockstep.losses.reading"
local survey = require "lockstep.batching.survey"
local text = require "lockstep.text"
local torch = require "lockstep.torch"

local I64 = { dtype = torch.int64 }

local M = {}

--- The losses by name: those of losses.dpo, and those that need no reference. `mean` says that they compare means over
--- an answer's tokens, not sums.
local VARIANTS = {
  sigmoid = { reference = true }, hinge = { reference = true }, robust = { reference = true },
  ipo = { reference = true, mean = true }, orpo = { mean = true }, simpo = { mean = true }, cpo = {},
}
local NAMES = { "cpo", "hinge", "ipo", "orpo", "robust", "sigmoid", "simpo" }

--- Returns whether a loss compares answers with a reference.
---
---     if losses.pairs.needs_reference(config.loss.variant) then score_all() end
---@param variant string
---@return boolean
function M.needs_reference(variant)
  checks.choice("pairs", "variant", variant, NAMES)
  return VARIANTS[variant].reference == true
end

--- Raises an error for a picture in what the assistant says: its placeholders are nothing that a model writes. They are
--- not scored, but the token before the first of them is.
local function check_answer(sample)
  local types = sample.mm_token_type_ids or {}
  for i = 2, #types do
    if types[i] == 1 and types[i - 1] ~= 1 and sample.loss_mask[i - 1] == 1 then
      error("losses.pairs: the answer has a picture; only prompts and messages of the user may have some", 0)
    end
  end
end

--- Returns a pair of data.conversations as a sample for batching: the chosen conversation, then the rejected one. The
--- second result says why the pair teaches nothing: it is longer than seq_len, or both are the same.
---
---     local sample, reason = losses.pairs.sample(chat, pair, { seq_len = 1024 })
---
--- With `processor = images.processor(dir)` pictures of the messages are read. A picture of the prompt is in the sample
--- once. `image_order` says which row of image_grid_thw stands at each place; `image_counts`, [1, 2], holds the numbers
--- of rows and places.
---@param chat table of text.chat
---@param pair table
---@param opts {seq_len: integer, renderer: string?, processor: images.Processor?, folder: string?} folder: where
--- relative paths of pictures begin; default "."
---@return batching.Sample sample with `lengths`, int64 [1, 2]
---@return string? reason
function M.sample(chat, pair, opts)
  local o = options.read("losses.pairs.sample", opts, { seq_len = options.required, renderer = options.optional,
    processor = options.optional, folder = "." })
  local encode, row = pictures.encoder(chat, o)
  local ids, masks, seen = {}, {}, {}
  for half, messages in ipairs { pair.chosen, pair.rejected } do
    local sample = encode(messages, text.options(pair, { loss_from = pair.first, renderer = o.renderer }))
    sample.loss_mask[1] = 0 -- no token before it predicts it
    check_answer(sample)
    ids[half], masks[half] = torch.tensor(sample.input_ids, I64), torch.tensor(sample.loss_mask)
    seen[half] = { input_ids = ids[half], pixel_values = sample.pixel_values, image_grid_thw = sample.image_grid_thw }
  end
  local lengths = { #ids[1], #ids[2] }
  local reason = lengths[1] + lengths[2] > o.seq_len and ("%d + %d tokens"):format(unpack(lengths))
    or pictures.are_same(seen[1], seen[2]) and "chosen and rejected are the same" or nil
  local pair_sample = { kind = "pair", input_ids = torch.cat(ids), loss_mask = torch.cat(masks):bool(),
    lengths = torch.tensor({ lengths }, I64) }
  if row and #row.grids > 0 then
    local grids = torch.cat(row.grids)
    pair_sample.kind, pair_sample.pixel_values, pair_sample.image_grid_thw = "pair+image", torch.cat(row.pixels), grids
    pair_sample.image_order = torch.tensor(row.order, I64)
    pair_sample.image_counts = torch.tensor({ { grids:size(0), #row.order } }, I64)
  end
  return pair_sample, reason
end

--- The findings of losses.pairs.read and losses.unpaired.read.
---@class losses.Found
---@field skipped integer samples that teach nothing
---@field roles table<string, integer> messages of each role; those of a prompt count once
---@field ids (torch.Tensor|string)[] the ids of every sample, also of those that are skipped, and checksums of pixels
---@field rows integer[] of each sample that is not skipped, the number of its row in the source
---@field tokens integer of the samples that are not skipped
---@field loss_tokens integer of these, those that are scored

--- Returns the pairs of a source as samples, and what it found. Skips pairs that teach nothing: see
--- losses.pairs.sample. A pair that is longer than seq_len is an error with on_cut = "error", and skipped with "drop".
--- Prints the form of the data with its first pair, the counts, how many messages each role has, and the skipped pairs
--- with file and line. All skipped pairs are in skipped.txt of the run's folder.
---
---     local samples, found = losses.pairs.read(source, chat, { tokenizer = tokenizer, seq_len = 1024 })
---
--- With `processor` pairs may have pictures. Their pixels are read again when losses.deal deals the pair out. Until
--- then pixel_values is a stand-in of NaN.
---@param source data.Conversations
---@param chat table of text.chat
---@param opts {tokenizer: text.Tokenizer, seq_len: integer, renderer: string?, on_cut: ("error"|"drop")?,
--- processor: images.Processor?}
---@return batching.Sample[]
---@return losses.Found
function M.read(source, chat, opts)
  local o = options.read("losses.pairs.read", opts, { tokenizer = options.required, seq_len = options.required,
    renderer = options.optional, on_cut = "error", processor = options.optional })
  local how = { seq_len = o.seq_len, renderer = o.renderer, processor = o.processor, folder = source.folder }
  return read(source, {
    name = "pairs", caller = "pairs.read",
    encode = function(pair) return { { M.sample(chat, pair, how) } } end,
    count_roles = function(roles, pair)
      survey.count_roles(roles, pair.chosen)
      survey.count_roles(roles, { unpack(pair.rejected, pair.first) })
    end,
    fields = function(samples) return { pairs = #samples } end,
  }, o)
end

--- Returns what a model takes: the conversations of packed pairs one after the other, with their pictures. Tokens of
--- padding behind them are a sequence of their own.
---
---     local scores = judge(losses.pairs.batch(micro_batch))
---@param batch table of samples of losses.pairs.sample
---@return models.Batch
function M.batch(batch)
  local made = { input_ids = batch.input_ids, seq_lens = batch.lengths:flatten():totable() }
  local padding = #batch.input_ids - batch.lengths:sum():item()
  if padding > 0 then made.seq_lens[#made.seq_lens + 1] = padding end
  if not batch.image_order then return made end
  made.pixel_values, made.image_grid_thw = batch.pixel_values, batch.image_grid_thw
  -- A pair counts its pictures from 0.
  local rows, places = unpack(batch.image_counts:unbind(1))
  made.image_order = batch.image_order + (rows:cumsum(0) - rows):repeat_interleave(places)
  return made
end

--- Returns the log-probabilities of each pair's answers, as a loss compares them, and the means over their tokens.
---
---     local scores, means = losses.pairs.score(model, batch, "sigmoid")
---@param model nn.Module
---@param batch table of samples of losses.pairs.sample
---@param variant string
---@return torch.Tensor scores [pairs, 2]: chosen, rejected
---@return torch.Tensor means [pairs, 2]
function M.score(model, batch, variant)
  checks.choice("pairs", "variant", variant, NAMES)
  local per_sequence = require("lockstep.losses").per_sequence
  local conversations = M.batch(batch)
  local log_probs = model(conversations, "log_probs")
  local function score(mean)
    return per_sequence(log_probs, { seq_lens = conversations.seq_lens, loss_mask = batch.loss_mask, mean = mean })
      :narrow(0, 0, batch.lengths:numel()):view(-1, 2)
  end
  local means = score(true)
  return VARIANTS[variant].mean and means or score(false), means
end

---@class losses.PairOptions
---@field scores torch.Tensor [N, 2] of losses.pairs.score
---@field means torch.Tensor [N, 2]
---@field reference torch.Tensor? [N, 2]: scores under the reference
---@field variant ("sigmoid"|"hinge"|"ipo"|"robust"|"orpo"|"cpo"|"simpo")? default "sigmoid"
---@field beta number? default 0.1
---@field label_smoothing number? default 0
---@field rpo_alpha number? of the variants with a reference; default 0
---@field simpo_gamma number? of "simpo"; default 0.5
---@field mask torch.Tensor? [N]

--- Returns the loss that `variant` names: one of losses.dpo, or losses.orpo, losses.cpo, or its variant "simpo".
---
---     local scores, means = losses.pairs.score(model, batch, "robust")
---     local sum, count, stats = losses.pairs.loss { scores = scores, means = means, reference = batch.reference,
---       variant = "robust", label_smoothing = 0.1 }
---@param opts losses.PairOptions
---@return torch.Tensor sum of one element
---@return integer count of pairs
---@return {correct: torch.Tensor, margin: torch.Tensor} stats
function M.loss(opts)
  local o = options.read("losses.pairs.loss", opts, { scores = options.required, means = options.required,
    reference = options.optional, variant = "sigmoid", beta = 0.1, label_smoothing = 0, rpo_alpha = 0,
    simpo_gamma = options.optional, mask = options.optional })
  local scores, means = o.scores:unbind(1), o.means:unbind(1)
  local common = { chosen = scores[1], rejected = scores[2], beta = o.beta, mask = o.mask }
  if M.needs_reference(o.variant) then
    if o.reference == nil then core.raise(('losses.pairs.loss: "%s" needs a reference'):format(o.variant)) end
    local reference = o.reference:unbind(1)
    common.reference_chosen, common.reference_rejected = reference[1], reference[2]
    common.variant, common.label_smoothing = o.variant, o.label_smoothing
    common.rpo_alpha, common.mean_chosen = o.rpo_alpha, means[1]
    return preferences.dpo(common)
  end
  checks.number("pairs.loss", "rpo_alpha", o.rpo_alpha, o.rpo_alpha == 0, ('0 for variant = "%s"'):format(o.variant))
  if o.variant == "orpo" then
    checks.number("pairs.loss", "label_smoothing", o.label_smoothing, o.label_smoothing == 0, '0 for variant = "orpo"')
    return preferences.orpo(common)
  end
  common.label_smoothing, common.mean_chosen = o.label_smoothing, means[1]
  if o.variant == "simpo" then common.variant, common.simpo_gamma = "simpo", o.simpo_gamma end
  return preferences.cpo(common)
end

return M
