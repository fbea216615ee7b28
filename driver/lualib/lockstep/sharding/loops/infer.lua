--- sharding.infer: what a model says of batches that it does not learn from.

local across = require "lockstep.sharding.across"
local agreement = require "lockstep.state.agreement"
local core = require "lockstep.core"
local out_of_training = require "lockstep.sharding.loops.out_of_training"
local torch = require "lockstep.torch"

local NAME = "sharding.infer"

local function check_result(x)
  if torch.is_tensor(x) then return x end
  core.raise(("%s: the function must return a tensor for each batch, not a %s"):format(NAME, type(x)))
end

--- Returns fn(batch) of each batch, a tensor. fn runs without gradients, and with the model's modules out of training
--- mode: for what a loss compares with, such as log-probabilities under a reference.
---
---     local references = lora.disabled(model, sharding.infer, model, micro_batches, score)
---     for i, batch in ipairs(micro_batches) do batch.reference = references[i] end
---
--- With pp fn runs on the rank of every stage, and calls the model once. Every rank returns the last stage's tensors.
---
--- Collective: every rank of a sharded model calls this with equally many batches, as batching.prepare gives them.
---@param model nn.Module|sharding.DataParallel|sharding.FullyShard|sharding.Pipeline
---@param batches models.Batch[]
---@param fn fun(batch: models.Batch): torch.Tensor
---@return torch.Tensor[]
local function infer(model, batches, fn)
  local is_across = across.is_one(model)
  if is_across and not model.infer then
    core.raise(("%s: not for %s, which computes the loss alone"):format(NAME, model.what))
  end
  return out_of_training(model, function()
    if is_across then return model:infer(batches, function(batch) return check_result((fn(batch))) end) end
    local results = {}
    for i, batch in ipairs(batches) do results[i] = check_result((fn(batch))) end
    return results
  end)
end

return agreement.counted(infer)
