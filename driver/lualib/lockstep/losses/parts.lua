--- Losses over a vocabulary whose head is in parts on the ranks of a tp group (nn.splits). No rank holds the scores of
--- another one's part. All ranks are given the same tokens, and return the same loss.
---
--- Each rank's gradient of its scores is the one that a whole vocabulary gives. Where a value of all ranks, such as the
--- logsumexp, goes into each rank's part of a sum, its gradient is summed over the ranks.

local dist = require "lockstep.distributed"
local fused = require "lockstep.nn.fused"
local splits = require "lockstep.nn.splits"
local torch = require "lockstep.torch"

local M = {}

local function needs_gradient(x) return torch.is_grad_enabled() and x.requires_grad end

--- Lets backward add up what the ranks' parts give to a value that all of them have.
---@param owner nn.SplitGroup
---@param x torch.Tensor
---@return torch.Tensor
function M.shared(owner, x) return needs_gradient(x) and splits.sum_gradient(owner, x:view(x.shape)) or x end

--- Returns this rank's scores, in float32 or float64.
---@param hidden torch.Tensor [rows, hidden]
---@param weight torch.Tensor this rank's rows
---@param bias torch.Tensor?
---@return torch.Tensor
function M.scores(hidden, weight, bias)
  local scores = fused.linear(hidden, weight, bias)
  return scores.dtype == torch.float64 and scores or scores:to(torch.float32)
end

--- Returns the logsumexp of the scores of all ranks.
---@param owner nn.SplitGroup
---@param scores torch.Tensor [rows, this rank's part]
---@return torch.Tensor # [rows]
function M.logsumexp(owner, scores)
  local largest = dist.all_reduce(scores:detach():amax({ -1 }), "max", { group = owner.group })
  return splits.sum_in_place(owner, (scores - largest:unsqueeze(-1)):exp():sum({ -1 })):log() + largest
end

--- Returns this rank's part of the log-probabilities.
---@param owner nn.SplitGroup
---@param scores torch.Tensor [rows, this rank's part]
---@return torch.Tensor
function M.log_softmax(owner, scores)
  return scores - M.shared(owner, M.logsumexp(owner, scores)):unsqueeze(-1)
end

--- Returns the sum over the vocabulary of a value that each rank has of its part.
---@param owner nn.SplitGroup
---@param x torch.Tensor [rows, this rank's part]
---@return torch.Tensor # [rows]
function M.sum(owner, x) return splits.sum_in_place(owner, x:sum({ -1 })) end

--- Returns this rank's part of a value that every rank has of the whole vocabulary.
---@param split nn.Split of the weight
---@param x torch.Tensor [rows, vocabulary]
---@param size integer of the part
---@return torch.Tensor
function M.own(split, x, size) return x:narrow(-1, split.start, size) end

--- Returns the losses of tokens as tiled_mlp.cross_entropy defines them.
---@param split nn.Split of the weight
---@param scores torch.Tensor [rows, this rank's part]
---@param labels torch.Tensor [rows]
---@param o {ignore_index: integer, softcap: number, label_smoothing: number, z_loss: number}
---@return torch.Tensor # [rows]
function M.token_losses(split, scores, labels, o)
  local owner = split.owner
  if o.softcap > 0 then scores = torch.tanh(scores / o.softcap) * o.softcap end
  local total = M.logsumexp(owner, scores)
  local index = labels - split.start
  local elsewhere = index:lt(0):logical_or(index:ge(scores:size(-1)))
  local picked = scores:gather(-1, index:masked_fill(elsewhere, 0):unsqueeze(-1)):squeeze(-1)
  local losses = total - splits.sum_in_place(owner, picked:masked_fill(elsewhere, 0)) * (1 - o.label_smoothing)
  if o.label_smoothing > 0 then losses = losses - M.sum(owner, scores) * (o.label_smoothing / split.total) end
  if o.z_loss > 0 then losses = losses + total:square() * o.z_loss end
  return losses:masked_fill(labels:eq(o.ignore_index), 0)
end

return M
