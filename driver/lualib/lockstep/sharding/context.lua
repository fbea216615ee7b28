--- Models whose batches are cut over the ranks of a context-parallel group: what sharding.parallelize makes of cp.

local chunk_table = require "lockstep.nn.context.table"
local chunks = require "lockstep.nn.chunks"
local plain = require "lockstep.plain"
local splits = require "lockstep.nn.splits"
local torch = require "lockstep.torch"

local M = {}

--- Returns the lengths of a batch's documents, or nil where the batch is not one that a model takes.
local function lengths_of(batch)
  if type(batch) ~= "table" or not torch.is_tensor(batch.input_ids) or batch.input_ids:dim() ~= 1 then return end
  local tokens, sum = batch.input_ids:size(0), 0
  local seq_lens = batch.seq_lens or { tokens }
  if tokens == 0 or type(seq_lens) ~= "table" then return end
  for _, length in ipairs(seq_lens) do
    if not plain.is_whole(length, 0) then return end
    sum = sum + length
  end
  return sum == tokens and seq_lens or nil
end

--- Puts results together that have a row for each token of the chunk. A loss is the chunk's; log_probs and scores are
--- whole.
local function whole(state, what, first, seconds, ...)
  if what ~= "logits" and what ~= "hidden" then return first, seconds, ... end
  first = chunks.gather(state, first)
  if type(seconds) ~= "table" then return first, seconds, ... end
  local all = {}
  for i, x in ipairs(seconds) do all[i] = chunks.gather(state, x) end
  return first, all, ...
end

--- The ranks, and the form of attention, of each model whose batches are cut.
---@type table<nn.Module, {members: sharding.Members, form: "ring"|"all_to_all"|nil}>
local attached = setmetatable({}, { __mode = "k" })

--- Returns the chunks of a batch. Returns nil where the model sees whole batches, and where the batch is a mistake,
--- which the model names.
local function chunks_of(model, batch)
  local own = attached[model]
  local seq_lens = own and lengths_of(batch)
  if not seq_lens then return nil end
  return plain.copy(own.members, { form = own.form, table = chunk_table.balanced(seq_lens, own.members.size) })
end

--- Returns whether attach has replaced methods of a model.
---@param model nn.Module
---@return boolean
function M.is_attached(model) return attached[model] ~= nil end

--- Calls fn(...) in which the model sees this rank's chunk of a batch, for parts of a forward pass. Private to
--- pipelines.
---@param model nn.Module
---@param batch models.Batch
---@param fn fun(...): ...
---@param ... any
---@return any ...
function M.with(model, batch, fn, ...)
  local state = not chunks.current() and chunks_of(model, batch) or nil
  if not state then return fn(...) end
  return chunks.with(state, fn, ...)
end

--- Returns the number of tokens that the model computes of a batch on this rank: at least 1 (see nn.chunks). Private to
--- pipelines.
---@param model nn.Module
---@param batch models.Batch
---@return integer
function M.tokens(model, batch)
  local state = chunks_of(model, batch)
  return state and math.max(state.table.counts[state.rank + 1], 1) or batch.input_ids:size(0)
end

--- Lets a method of the model work on this rank's chunk of its batch. `what_of` says what it returns.
local function wrap(model, name, what_of)
  local method = model[name]
  model[name] = function(self, batch, ...)
    local state = not chunks.current() and chunks_of(model, batch) or nil
    if not state then return method(self, batch, ...) end -- an inner call, or a mistake
    local what = what_of(...)
    return chunks.with(state, function(...) return whole(state, what, method(self, batch, ...)) end, ...)
  end
end

--- Makes a language model of models.load compute each batch over the ranks of a group: each holds a chunk of the
--- tokens. All ranks of the group give it the same batch. `loss` returns the sum and the count of this rank's chunk.
--- Logits, hidden states, log-probabilities and scores are those of the whole batch, in its order, on every rank.
---
--- `form` is how attention sees the other chunks. "all_to_all" has equal work on all ranks, and needs query heads that
--- the ranks divide. "ring" takes any heads. Default: all-to-all where heads divide.
---@param caller string
---@param model models.CausalLM
---@param members sharding.Members
---@param form "ring"|"all_to_all"|nil
---@return models.CausalLM model
function M.attach(caller, model, members, form)
  plain.check(type(model.hidden) == "function" and type(model.loss) == "function",
    "%s: cp needs a language model of models.load, not a %s; for other modules use sharding.context_parallel", caller,
    model.class_name)
  if members.size == 1 then return model end
  plain.check(not model.has_states, "%s: layers of a %s pass a state along the sequence, which chunks do not hand on; "
    .. "take cp = 1", caller, model.class_name)
  if model.needs_whole_sequences then
    local owner = splits.owner_of(model)
    local heads = model.settings.num_attention_heads / (owner and owner.size or 1)
    local advice = form == "ring" and 'take cp = "all_to_all"'
      or ("cp %d does not divide the %g query heads of a rank"):format(members.size, heads)
    plain.check(form ~= "ring" and heads % members.size == 0, "%s: the attention of a %s needs whole sequences, which "
      .. "all-to-all over heads alone gives it: %s", caller, model.class_name, advice)
  end
  attached[model] = { members = members, form = form }
  wrap(model, "loss", function() return "loss" end)
  wrap(model, "log_probs", function() return "log_probs" end)
  local of_forward = model.num_labels and "scores" or "logits"
  wrap(model, "forward", function(what) return what ~= "logits" and what or of_forward end)
  if model.num_labels then wrap(model, "scores", function() return "scores" end) end
  return model
end

return M
