--- Noise on embeddings in training: see nn.neftune.

local options = require "lockstep.options"
local plain = require "lockstep.plain"
local torch = require "lockstep.torch"

local M = {}

--- The hook of each model that has noise.
---@type table<nn.Module, nn.HookHandle>
local noisy = setmetatable({}, { __mode = "k" })

--- Returns whether a model has noise on its embeddings.
---@param model any
---@return boolean
function M.is_on(model) return noisy[model] ~= nil and not noisy[model].is_removed end

--- Adds noise to what an embedding returns in training: uniform in +-alpha / sqrt(L * dim), with L the length of the
--- token's sequence. The model is called with a batch that has seq_lens; without them all tokens are one sequence.
--- Models that learn from few conversations then give longer and better answers. Evaluation has no noise.
---
---     nn.neftune(net, net:decoder().embed_tokens, { alpha = 5 })
---
--- Source: NEFTune, arXiv 2310.05914.
---@param model nn.Module
---@param embedding nn.Module a part of the model, with results [T, dim]
---@param opts {alpha: number} above 0
---@return nn.HookHandle # its remove() ends the noise
function M.neftune(model, embedding, opts)
  local alpha = options.read("nn.neftune", opts, { alpha = options.required }).alpha
  plain.check(type(alpha) == "number" and alpha > 0 and alpha < math.huge,
    "nn.neftune: alpha must be a number above 0, not %s", alpha)
  local forward, seq_lens = model.forward, nil
  model.forward = function(self, batch, ...)
    seq_lens = type(batch) == "table" and batch.seq_lens or nil
    return forward(self, batch, ...)
  end
  local handle = embedding:register_forward_hook(function(module, _, x)
    if not module.training then return nil end
    local tokens, dim = x:size(0), x:size(1)
    local lengths = torch.tensor(seq_lens or { tokens }, { dtype = torch.int64 })
    local bound = (lengths:to(torch.float32) * dim):rsqrt() * alpha
    local bounds = bound:repeat_interleave(lengths):to(x.device, x.dtype)
    return x + torch.empty_like(x):uniform_(-1, 1) * bounds:unsqueeze(1)
  end)
  noisy[model] = handle
  return handle
end

return M
