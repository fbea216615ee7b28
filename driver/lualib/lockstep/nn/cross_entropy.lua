--- nn.cross_entropy: the loss of logits and labels.

local core = require "lockstep.core"
local fused = require "lockstep.nn.fused"
local options = require "lockstep.options"
local plain = require "lockstep.plain"
local torch = require "lockstep.torch"

local M = {}

local REDUCTIONS = { none = 0, mean = 1, sum = 2 }

--- Cross entropy of logits [..., classes] and labels [...]; labels equal to `ignore_index` do not count.
---@param logits torch.Tensor
---@param labels torch.Tensor int64
---@param opts {reduction: ("mean"|"sum"|"none")?, ignore_index: integer?, label_smoothing: number?}?
---@return torch.Tensor # a scalar, or [...] for reduction = "none"
function M.cross_entropy(logits, labels, opts)
  local o = options.read("nn.cross_entropy", opts, { reduction = "mean", ignore_index = -100, label_smoothing = 0 })
  local reduction = REDUCTIONS[o.reduction]
  plain.check(reduction, 'nn.cross_entropy: reduction must be "mean", "sum" or "none", not "%s"', o.reduction)
  plain.check(o.ignore_index % 1 == 0, "nn.cross_entropy: ignore_index must be a whole number, not %s", o.ignore_index)
  for name, value in pairs { logits = logits or false, labels = labels or false } do
    if not torch.is_tensor(value) then
      core.raise(string.format("nn.cross_entropy: %s must be a tensor, not %s", name, tostring(value or nil)))
    end
  end
  local fast = fused.cross_entropy(logits, labels, reduction, o)
  if fast then return fast end
  plain.check(logits:dim() > 0 and logits:size(-1) > 0,
    "nn.cross_entropy: logits must be [..., classes] with at least one class, got shape %s", logits.shape)
  local loss = torch.cross_entropy_loss(logits:reshape(-1, logits:size(-1)), labels:reshape(-1), nil, reduction,
    o.ignore_index, o.label_smoothing)
  return reduction == 0 and loss:reshape(labels.shape) or loss
end

return M
