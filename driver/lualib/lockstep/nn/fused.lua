--- The fused kernels of //kernels, and the operators of ATen that they stand for. Layers, models and optim.AdamW call
--- these functions; nn.use_fused(false) makes all of them take ATen's way.
---
---     self.down(nn.swiglu(self.gate(x), self.up(x)))
---     local before = nn.use_fused(false)                     -- to compare

local plain = require "lockstep.plain"
local torch = require "lockstep.torch"

local M = {}

-- A program that is linked without //kernels has no torch.ops.
local kernels = rawget(torch, "ops") and torch.ops.lockstep
local fused = kernels ~= nil

--- Chooses between the fused kernels (true, as at first) and ATen's operators, for all that this process computes
--- from now on. torch.scaled_dot_product_attention on a CPU changes with it. Results agree to the rounding of the
--- dtype. Returns the setting before. Kernels run on CPUs, and on NVIDIA GPUs where the program was built with nvcc;
--- elsewhere both ways are ATen's.
---
---     local before = nn.use_fused(false)
---@param enabled boolean
---@return boolean before
function M.use_fused(enabled)
  plain.check(type(enabled) == "boolean", "nn.use_fused: expected true or false, got %s", enabled)
  local before = fused
  fused = enabled and kernels ~= nil
  if kernels then
    kernels.replace_flash_attention(enabled)
    kernels.use_cross_entropy_kernels(enabled) -- of tiled_mlp.cross_entropy, which calls the operator
  end
  return before
end

--- Returns torch.ops.lockstep where its kernels update tensors of this device, else nil.
---@param device string
---@return table?
local function kernels_of(device)
  local has = fused and (device == "cpu" or device:find("^cuda") and kernels.has_cuda_kernels())
  return has and kernels or nil
end

--- Returns silu(gate) * up, the activation of a gated MLP (arXiv 2002.05202): one pass over memory, which keeps only
--- its inputs for backward.
---
---     local y = nn.swiglu(x:matmul(w1), x:matmul(w3))
---@param gate torch.Tensor [...] floating-point
---@param up torch.Tensor [...] of the same shape, dtype and device
---@return torch.Tensor # [...]
function M.swiglu(gate, up)
  if fused then return kernels.swiglu(gate, up) end
  return torch.silu(gate) * up
end

--- Returns x W^T + bias, with the bits of torch.linear. Backward has one node of autograd in place of four. On a CPU
--- a kernel runs if x has at most 8 rows and nothing needs a gradient (as in models.generate). It reads the weight at
--- the speed of memory, and rounds in its own way.
---
---     local logits = nn.linear(hidden, model:head_weight())
---@param x torch.Tensor [..., in]
---@param weight torch.Tensor [out, in]
---@param bias torch.Tensor? [out]
---@return torch.Tensor # [..., out]
function M.linear(x, weight, bias)
  if fused then return kernels.linear(x, weight, bias) end
  return torch.linear(x, weight, bias)
end

--- Returns x W^T + bias of two or three layers, or nil where kernels are off. Private to nn.one_input.
---@param x torch.Tensor [..., in]
---@param weights torch.Tensor[] [out, in] each
---@param biases torch.Tensor[] [out] each, or none
---@return torch.Tensor[]?
function M.linears(x, weights, biases)
  return fused and kernels.linears(x, weights, biases) or nil
end

--- Returns x W^T + bias + scale * x A^T B^T: a linear layer with an adapter of LoRA. The adapter computes in the dtype
--- of a and b. With kernels it is one operator, and one node of autograd. Private to lockstep.lora.
---@param x torch.Tensor [..., in]
---@param weight torch.Tensor [out, in]
---@param bias torch.Tensor? [out]
---@param a torch.Tensor [r, in]
---@param b torch.Tensor [out, r]
---@param scale number
---@param dropout number the probability that a number of the adapter's input is 0
---@return torch.Tensor # [..., out]
function M.lora_linear(x, weight, bias, a, b, scale, dropout)
  if fused then return kernels.lora_linear(x, weight, bias, a, b, scale, dropout) end
  local y = torch.linear(x, weight, bias)
  local update = torch.linear(torch.linear(torch.dropout(x:to(a.dtype), dropout, true), a), b) * scale
  return (y + update):to(y.dtype)
end

--- Returns the same of a layer in 4 or 8 bits, or nil where kernels are off. Private to lockstep.lora.
---@param x torch.Tensor [..., in]
---@param layer nn.LinearFewBits
---@param bias torch.Tensor? [out]
---@param a torch.Tensor [r, in]
---@param b torch.Tensor [out, r]
---@param scale number
---@param dropout number
---@return torch.Tensor? # [..., out]
function M.lora_linear_few_bits(x, layer, bias, a, b, scale, dropout)
  if not fused then return nil end
  local f = layer.format
  return kernels.lora_linear_few_bits(x, layer.weight, layer.weight_absmax, layer.weight_nested_absmax,
    layer.weight_nested_map, f.offset, f.shape, f.blocks, f.type, f.compute_dtype, bias, a, b, scale, dropout)
end

--- The forward function of nn.RMSNorm.
---@param x torch.Tensor [..., size]
---@param weight torch.Tensor [size]
---@param size integer[] {size}
---@param eps number
---@return torch.Tensor # [..., size]
local function rms_norm(x, weight, size, eps)
  local dtype = x.dtype
  if fused and dtype == weight.dtype then return kernels.rms_norm(x, weight, eps) end
  if dtype == torch.float32 then return torch.rms_norm(x, size, weight, eps) end
  return weight * torch.rms_norm(x, size, nil, eps)
end

--- Returns the result of nn.RMSNorm and x, or nil where there is no kernel for both. Private to nn.one_input.
---@param x torch.Tensor [..., size]
---@param weight torch.Tensor [size]
---@param eps number
---@return torch.Tensor? normalised [..., size]
---@return torch.Tensor? x
function M.rms_norm_and_input(x, weight, eps)
  if fused and x.dtype == weight.dtype then return kernels.rms_norm_and_input(x, weight, eps) end
end

--- The forward function of nn.RMSNorm with a residual.
---@param x torch.Tensor [..., size]
---@param residual torch.Tensor [..., size]
---@param weight torch.Tensor [size]
---@param size integer[] {size}
---@param eps number
---@return torch.Tensor normalised [..., size]
---@return torch.Tensor sum [..., size] x + residual
local function add_rms_norm(x, residual, weight, size, eps)
  local dtype = x.dtype
  if fused and dtype == weight.dtype and dtype == residual.dtype then
    return kernels.add_rms_norm(x, residual, weight, eps)
  end
  local sum = x + residual
  return rms_norm(sum, weight, size, eps), sum
end

--- Returns nn.cross_entropy's loss by one pass over the logits, which keeps one number of each row for backward.
--- Returns nil where there is no kernel, and for arguments that torch.cross_entropy_loss knows more about: it takes
--- them, or its error says what is wrong with them. Private to nn.cross_entropy.
---@param logits torch.Tensor [..., classes]
---@param labels torch.Tensor [...] int64
---@param reduction integer as torch.cross_entropy_loss takes it
---@param o {ignore_index: integer, label_smoothing: number}
---@return torch.Tensor?
function M.cross_entropy(logits, labels, reduction, o)
  local operators = kernels_of(logits.device)
  local classes = logits:dim() > 0 and logits:size(-1) or 0
  if not operators or not logits:is_floating_point() or labels.dtype ~= torch.int64 or labels.device ~= logits.device
    or classes == 0 or labels:numel() * classes ~= logits:numel() then
    return nil
  end
  local shape = labels.shape
  shape[#shape + 1] = classes
  return operators.cross_entropy_loss(logits:reshape(shape), labels, reduction, o.ignore_index, o.label_smoothing)
end

--- Returns the log-probability of each label, and the entropy of its distribution, in float32 (float64 for float64).
--- One pass over the logits. Returns nil where there is no kernel. Private to the library.
---@param logits torch.Tensor [..., classes]
---@param labels torch.Tensor [...] int64, from 0
---@return torch.Tensor? log_probs [...]
---@return torch.Tensor? entropy [...]
function M.scores_of_labels(logits, labels)
  local operators = kernels_of(logits.device)
  if not operators then return nil end
  local losses, _, entropy = operators.cross_entropy(logits, labels, { entropy = true })
  return -losses, entropy
end

--- Compute capabilities by device, 10 * major + minor.
local capabilities = { cpu = 0 }

--- Returns 10 * major + minor of an NVIDIA GPU's compute capability, or 0 for another device. Private to the library.
---@param device string
---@return integer
function M.capability_of(device)
  if not capabilities[device] then
    local index = device:match "^cuda:(%d+)$"
    local major, minor = 0, 0
    if index then major, minor = torch.cuda.get_device_capability(tonumber(index)) end
    capabilities[device] = 10 * major + minor
  end
  return capabilities[device]
end

--- Attention in generation: writes the keys and values of one new token of each sequence into a cache, and returns
--- what the tokens see in the columns from `first` to `column`. On a CPU it is one kernel.
---@param q torch.Tensor [sequences, heads, D]
---@param k torch.Tensor [sequences, kv_heads, D]
---@param v torch.Tensor [sequences, kv_heads, D]
---@param keys torch.Tensor [sequences, kv_heads, columns, D]
---@param values torch.Tensor [sequences, kv_heads, columns, D]
---@param column integer
---@param first integer
---@param mask torch.Tensor? [sequences, columns], is added to the scores
---@return torch.Tensor # [sequences, heads, D]
local function cached_attention(q, k, v, keys, values, column, first, mask)
  -- In autocast a norm of q and k leaves float32, next to bfloat16 values; ATen's operator then casts them.
  if fused and q.device == "cpu" and q.dtype == v.dtype then
    return kernels.cached_attention(q, k, v, keys, values, column, first, mask)
  end
  keys:select(2, column):copy_(k)
  values:select(2, column):copy_(v)
  local sequences, kv_heads, dim = k:size(0), k:size(1), k:size(2)
  local count = column + 1 - first
  -- The query heads that share a key head are its rows.
  local rows, capability = q:view(sequences, kv_heads, -1, dim), M.capability_of(q.device)
  keys, values = keys:narrow(2, first, count), values:narrow(2, first, count)
  mask = mask and mask:narrow(1, first, count)
  local y
  if fused and capability > 0 then
    y = kernels.cached_attention_on_device(rows, keys, values, capability, mask)
  else
    y = torch.scaled_dot_product_attention(rows, keys, values, mask and mask:view(sequences, 1, 1, -1))
  end
  return y:reshape(sequences, -1, dim)
end

--- Returns attention over packed sequences for nn.attention, which has checked the arguments. Both ways have the same
--- bits on a CPU.
---@param q torch.Tensor [T, heads, D]
---@param k torch.Tensor [T, kv_heads, D]
---@param v torch.Tensor [T, kv_heads, D]
---@param o {seq_lens: integer[], causal: boolean, scale: number?, window: integer?}
---@return torch.Tensor # [T, heads, D]
local function attention(q, k, v, o)
  local operator = fused and kernels.attention or kernels.attention_by_sequence
  return operator(q, k, v, o.seq_lens, { causal = o.causal, scale = o.scale, window = o.window })
end

--- Returns attention over packed sequences on an NVIDIA GPU by one of libtorch's kernels, as the table of
--- kernels/attention/backends.cc chooses it. Returns nil on other devices, where none of them can run, and for values
--- of another size than keys unless it is cuDNN.
---@param q torch.Tensor [T, heads, D]
---@param k torch.Tensor [T, kv_heads, D]
---@param v torch.Tensor [T, kv_heads, E]
---@param o {seq_lens: integer[], causal: boolean, scale: number?, window: integer?}
---@param sinks torch.Tensor? [heads]
---@param ends_of fun(): torch.Tensor returns 0 and where each sequence ends, int32 on the device
---@return torch.Tensor? # [T, heads, E]
function M.attention_on_device(q, k, v, o, sinks, ends_of)
  local capability = kernels and M.capability_of(q.device) or 0
  if capability == 0 or #o.seq_lens == 0 then return nil end
  local backend = kernels.attention_backend(capability, q, k, v, o.seq_lens,
    { causal = o.causal, window = o.window, sinks = sinks ~= nil })
  -- FlashAttention of values that are filled up is preferred to memory-efficient attention.
  if backend == "math" or backend ~= "cudnn" and v:size(2) ~= k:size(2) then return nil end
  return kernels.attention_on_device(q, k, v, ends_of(), o.seq_lens, backend,
    { causal = o.causal, scale = o.scale, window = o.window, sinks = sinks })
end

M.rms_norm, M.add_rms_norm, M.kernels_of = rms_norm, add_rms_norm, kernels_of
M.attention, M.cached_attention = attention, cached_attention

--- Returns the cosines and sines of angles for M.rotate, times `factor`. On a CPU it is one operator.
---@param angles torch.Tensor [T, D / 2] float32
---@param factor number
---@param dtype torch.dtype
---@return torch.Tensor cos [T, 1, D]
---@return torch.Tensor sin [T, 1, D] the first half negated
function M.turns_of(angles, factor, dtype)
  if fused and angles.device == "cpu" and not angles.requires_grad then
    return kernels.turns_of(angles, factor, dtype)
  end
  local both = torch.cat({ angles, angles }, -1):unsqueeze(-2)
  local cos, sin = both:cos(), both:sin()
  sin:narrow(-1, 0, angles:size(-1)):neg_()
  if factor ~= 1 then cos, sin = cos * factor, sin * factor end
  return cos:to(dtype), sin:to(dtype)
end

--- Rotates the pairs (i, i + D / 2) of the last dimension by the angles of cos and sin. The result has x's dtype;
--- float32 cos and sin of a float16 or bfloat16 x are not rounded first.
---@param x torch.Tensor [T, heads, D]
---@param cos torch.Tensor [T, 1, D]
---@param sin torch.Tensor [T, 1, D] the first half negated, as nn.rotary returns it
---@return torch.Tensor # [T, heads, D]
function M.rotate(x, cos, sin)
  if fused then return kernels.rotate(x, cos, sin) end
  local wide = x:to(cos.dtype)
  return torch.addcmul(wide * cos, torch.roll(wide, x:size(-1) / 2, -1), sin):to(x.dtype)
end

return M
