--- The attention of one block, and its gradient: the kernels that ring attention calls.
---
--- A kernel returns results of a block's queries over the block's keys alone, with the logarithm of the sum of their
--- exponentials. M.merge puts results of several blocks together. Backward takes the merged result and the merged
--- logarithm: the probabilities are then those over all keys, and the gradients of blocks add up to the whole's.
---
--- Layout: q and y [n, heads, D], k and v [m, kv_heads, D], logarithms [n, heads].

local torch = require "lockstep.torch"

local M = {}

local function check_kernel_dtype(dtype)
  return dtype == torch.float32 or dtype == torch.float64 or dtype == torch.bfloat16 or dtype == torch.float16
end

--- Returns which kernel takes a layer's blocks: "cpu" and "cuda" are FlashAttention, "plain" is written out.
---@param q torch.Tensor
---@param window integer?
---@param can_flash boolean whether FlashAttention on a GPU takes q
---@return "cpu"|"cuda"|"plain"
function M.kernel(q, window, can_flash)
  if window then return "plain" end
  if q.device == "cpu" and check_kernel_dtype(q.dtype) then return "cpu" end
  return can_flash and "cuda" or "plain"
end

--- Returns the dtype in which blocks are merged.
---@param x torch.Tensor
---@return torch.dtype
function M.wide(x) return x.dtype == torch.float64 and torch.float64 or torch.float32 end

--- Key heads become a batch, and the query heads that share one its heads: [kv_heads, group, n, D].
local function queries_of(q, kv_heads)
  return q:view(q:size(0), kv_heads, q:size(1) / kv_heads, q:size(2)):permute(1, 2, 0, 3)
end

local function keys_of(k, group)
  return k:permute(1, 0, 2):unsqueeze(1):expand(k:size(1), group, k:size(0), k:size(2))
end

--- The opposite of queries_of.
local function tokens_of(y) return y:permute(2, 0, 1, 3):reshape(y:size(2), y:size(0) * y:size(1), y:size(3)) end

local function logarithms_of(logs, kv_heads)
  return logs:view(logs:size(0), kv_heads, logs:size(1) / kv_heads):permute(1, 2, 0)
end

--- A block by libtorch's kernel for CPUs. Returns what the queries see of it, and the logarithms of the sums.
local function cpu_forward(q, k, v, block, scale)
  local kv_heads, group = k:size(1), q:size(1) / k:size(1)
  local y, logs = torch._scaled_dot_product_flash_attention_for_cpu(queries_of(q, kv_heads), keys_of(k, group),
    keys_of(v, group), 0, block.causal, { scale = scale })
  return tokens_of(y), logs:permute(2, 0, 1):reshape(q:size(0), q:size(1))
end

--- Returns the gradients of queries, keys and values; y and logs are those of all blocks together.
local function cpu_backward(dy, q, k, v, y, logs, block, scale)
  local kv_heads, group = k:size(1), q:size(1) / k:size(1)
  local dq, dk, dv = torch._scaled_dot_product_flash_attention_for_cpu_backward(queries_of(dy, kv_heads),
    queries_of(q, kv_heads), keys_of(k, group), keys_of(v, group), queries_of(y, kv_heads),
    logarithms_of(logs, kv_heads), 0, block.causal, { scale = scale })
  return tokens_of(dq), dk:sum({ 1 }):permute(1, 0, 2), dv:sum({ 1 }):permute(1, 0, 2)
end

--- True where a query does not see a key. [n, m]
local function hidden_of(block, o, device)
  local distance = (torch.arange(block.queries, { device = device }) + block.ahead):unsqueeze(1)
    - torch.arange(block.keys, { device = device }):unsqueeze(0)
  local hidden = o.causal and distance:lt(0) or nil
  if not o.window then return hidden end
  local far = distance:ge(o.window)
  if not o.causal then far = far:logical_or(distance:le(-o.window)) end
  return hidden and hidden:logical_or(far) or far
end

--- Scores in the wide dtype, minus infinity where hidden. [kv_heads, group, n, m]
local function scores_of(q, k, block, o, wide)
  local kv_heads, group = k:size(1), q:size(1) / k:size(1)
  local scale = o.scale or q:size(2) ^ -0.5
  local scores = queries_of(q, kv_heads):to(wide):matmul(keys_of(k, group):to(wide):transpose(2, 3)) * scale
  if block.masked then scores:masked_fill_(hidden_of(block, o, q.device), -math.huge) end
  return scores, scale
end

--- The same as cpu_forward, written out, for every mask and device.
local function plain_forward(q, k, v, block, _, o)
  local wide, group = M.wide(q), q:size(1) / k:size(1)
  local scores = scores_of(q, k, block, o, wide)
  local logs = scores:logsumexp({ -1 })
  local base = logs:masked_fill(logs:eq(-math.huge), 0) -- of a query without a key: exp(-inf - 0) is 0
  local y = (scores - base:unsqueeze(-1)):exp():matmul(keys_of(v, group):to(wide))
  return tokens_of(y), logs:permute(2, 0, 1):reshape(q:size(0), q:size(1))
end

--- The same as cpu_backward.
local function plain_backward(dy, q, k, v, y, logs, block, _, o)
  local wide, kv_heads, group = M.wide(q), k:size(1), q:size(1) / k:size(1)
  local scores, scale = scores_of(q, k, block, o, wide)
  local p = (scores - logarithms_of(logs, kv_heads):unsqueeze(-1)):exp()
  local dys = queries_of(dy, kv_heads):to(wide)
  local dp = dys:matmul(keys_of(v, group):to(wide):transpose(2, 3))
  local delta = (dys * queries_of(y, kv_heads):to(wide)):sum({ -1 }, true)
  local ds = p * (dp - delta) * scale
  local dq = ds:matmul(keys_of(k, group):to(wide))
  local dk = ds:transpose(2, 3):matmul(queries_of(q, kv_heads):to(wide)):sum({ 1 })
  local dv = p:transpose(2, 3):matmul(dys):sum({ 1 })
  return tokens_of(dq), dk:permute(1, 0, 2), dv:permute(1, 0, 2)
end

--- Lets each head's sink, a score that stands for no token, take part in the softmax of merged blocks. In place.
---@param y torch.Tensor [n, heads, D]
---@param logs torch.Tensor [n, heads]
---@param sinks torch.Tensor [heads]
function M.add_sinks(y, logs, sinks)
  local sum = torch.logaddexp(logs, sinks:to(logs.dtype))
  y:mul_((logs - sum):exp():unsqueeze(-1))
  logs:copy_(sum)
end

--- Returns the gradient of the sinks: this rank's queries' part of it. `y` and `logs` are those with sinks.
---@param dy torch.Tensor [n, heads, D]
---@param y torch.Tensor [n, heads, D]
---@param logs torch.Tensor [n, heads]
---@param sinks torch.Tensor [heads]
---@return torch.Tensor # [heads]
function M.sinks_gradient(dy, y, logs, sinks)
  local delta = (dy:to(logs.dtype) * y:to(logs.dtype)):sum { -1 }
  return ((sinks:to(logs.dtype) - logs):exp() * delta):sum({ 0 }):neg():to(sinks.dtype)
end

M.kernels = {
  cpu = { forward = cpu_forward, backward = cpu_backward },
  plain = { forward = plain_forward, backward = plain_backward },
}

--- Adds a block's results to those of the blocks before, in place. `y` [n, heads, D] and `logs` [n, heads] are of the
--- wide dtype; logs are minus infinity where there was no key yet.
---@param y torch.Tensor
---@param logs torch.Tensor
---@param more torch.Tensor
---@param more_logs torch.Tensor
function M.merge(y, logs, more, more_logs)
  local sum = torch.logaddexp(logs, more_logs)
  local base = sum:masked_fill(sum:eq(-math.huge), 0)
  y:mul_((logs - base):exp():unsqueeze(-1)):add_(more * (more_logs - base):exp():unsqueeze(-1))
  logs:copy_(sum)
end

return M
