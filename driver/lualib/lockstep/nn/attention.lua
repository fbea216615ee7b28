--- Attention over sequences that lie one after the other, without padding.
---
---     local y = nn.attention(q, k, v, { seq_lens = { 5, 3 } })    -- q [8, heads, D], k and v [8, kv_heads, D]
---
--- On an NVIDIA GPU a table chooses one of libtorch's kernels (kernels/attention/backends.cc): cuDNN, FlashAttention
--- (arXiv 2307.08691), also with sinks and windows, or memory-efficient attention. On a CPU the row is one operator,
--- whose threads take sequences. Everything else is a loop of scaled_dot_product_attention over the sequences, or
--- scores that are written out.

local blocks = require "lockstep.nn.blocks"
local chunks = require "lockstep.nn.chunks"
local fused = require "lockstep.nn.fused"
local options = require "lockstep.options"
local plain = require "lockstep.plain"
local shared = require "lockstep.nn.context.shared"
local sinks = require "lockstep.nn.sinks"
local torch = require "lockstep.torch"

local M = {}

local check, fail = plain.checks "nn.attention: "

local function check_tensors(q, k, v)
  for name, x in pairs { q = q or false, k = k or false, v = v or false } do
    if not torch.is_tensor(x) then fail("%s must be a tensor, got a %s", name, type(x or nil)) end
    if x:dim() ~= 3 then fail("%s must be [tokens, heads, head_dim], got shape %s", name, tostring(x.shape)) end
  end
  if k:size(0) ~= v:size(0) or k:size(1) ~= v:size(1) or v:size(2) > k:size(2) then
    fail("k and v must have the same tokens and heads, and v no larger heads, got %s and %s", tostring(k.shape),
      tostring(v.shape))
  elseif q:size(0) ~= k:size(0) or q:size(2) ~= k:size(2) then
    fail("q and k must have the same tokens and head_dim, got %s and %s", tostring(q.shape), tostring(k.shape))
  elseif q:size(1) % k:size(1) ~= 0 then
    fail("%d query heads are not a multiple of %d key heads", q:size(1), k:size(1))
  end
end

local function check_lengths(seq_lens, tokens)
  if type(seq_lens) ~= "table" then fail("seq_lens must be an array of lengths, got a %s", type(seq_lens)) end
  local total = 0
  for i, length in ipairs(seq_lens) do
    if not plain.is_whole(length, 1) then
      fail("seq_lens[%d] must be a whole number of at least 1, got %s", i, tostring(length))
    end
    total = total + length
  end
  local current = chunks.current()
  if current and total ~= tokens then
    fail("seq_lens add up to %d tokens, but the chunks of %d ranks hold %d; within sharding.context_parallel they are "
      .. "the lengths of the whole sequence", total, current.size, tokens)
  end
  if total ~= tokens then fail("seq_lens add up to %d tokens, but q has %d", total, tokens) end
end

local function check_sinks(given, q)
  if torch.is_tensor(given) and given:dim() == 1 and given:size(0) == q:size(1) then return end
  fail("sinks must be a tensor [heads] of %d numbers, got %s", q:size(1),
    torch.is_tensor(given) and "shape " .. tostring(given.shape) or "a " .. type(given))
end

-- On a GPU -----------------------------------------------------------------------------------------------

--- Cumulative lengths by array and device, so that the layers of a pass copy them to the device once. Holds what the
--- array held then: a caller may change it.
local cumulative = setmetatable({}, { __mode = "k" })

local function text_of(seq_lens, device) return device .. ": " .. table.concat(seq_lens, " ") end

--- Returns where each sequence begins, with the end of the last one, and the longest length. Private to the library.
---@param seq_lens integer[]
---@return integer[]
---@return integer
function M.cumulate(seq_lens)
  local sums, longest = { 0 }, 0
  for i, length in ipairs(seq_lens) do
    sums[i + 1], longest = sums[i] + length, math.max(longest, length)
  end
  return sums, longest
end

--- Keeps what M.cumulate returned for an array of lengths, as it is now, on a device. Private to the library.
---@param seq_lens integer[]
---@param device string
---@param sums torch.Tensor int32
---@param longest integer
function M.keep_lengths(seq_lens, device, sums, longest)
  cumulative[seq_lens] = { text = text_of(seq_lens, device), sums = sums, longest = longest }
end

--- Returns what M.cumulate does, on a device. Copies it there once for an array. Private to the library.
---@param seq_lens integer[]
---@param device string
---@return torch.Tensor sums int32
---@return integer longest
function M.cumulative_lengths(seq_lens, device)
  local known = cumulative[seq_lens]
  if not known or known.text ~= text_of(seq_lens, device) then
    local sums, longest = M.cumulate(seq_lens)
    M.keep_lengths(seq_lens, device, torch.tensor(sums, { dtype = torch.int32 }):to(device), longest)
    known = cumulative[seq_lens]
  end
  return known.sums, known.longest
end

local one_sequence = { 0 }

--- Returns the lengths of one sequence: the same array for the layers of a pass. Private to the library.
---@param tokens integer
---@return integer[]
function M.of_one_sequence(tokens)
  if one_sequence[1] ~= tokens then one_sequence = { tokens } end
  return one_sequence
end

--- Returns whether FlashAttention on a GPU takes q: for parts of sequences that several ranks share.
local function can_flash(q)
  return fused.capability_of(q.device) >= 80 and (q.dtype == torch.bfloat16 or q.dtype == torch.float16)
    and q:size(2) % 8 == 0 and q:size(2) <= 256
end

--- Calls an attention of values as large as the keys: zeros behind each head add nothing to the result.
local function fill_values(attend, q, k, v, ...)
  local size = v:size(2)
  return attend(q, k, torch.constant_pad_nd(v, { 0, k:size(2) - size }), ...):narrow(2, 0, size)
end

--- Attention of whole sequences.
local function whole(o, q, k, v, own_sinks)
  if o.blocks then return blocks.attention(q, k, v, o) end
  local y = fused.attention_on_device(q, k, v, o, own_sinks, function()
    return (M.cumulative_lengths(o.seq_lens, q.device))
  end)
  if y then return y end
  if v:size(2) < k:size(2) then
    return fill_values(function(...) return whole(o, ...) end, q, k, v, own_sinks)
  end
  if own_sinks then return sinks.attention(q, k, v, plain.copy(o, { sinks = own_sinks })) end
  return fused.attention(q, k, v, o)
end

--- Attention of a micro-batch whose first sequences are shares of samples that groups of ranks hold.
local function with_shares(o, q, k, v)
  if chunks.current() then
    fail("a micro-batch with shares of samples cannot also be cut into chunks (cp); prepare it without split")
  elseif not o.causal or o.blocks ~= nil then
    fail("shares of samples need causal attention without blocks; prepare the micro-batch without split")
  end
  local plan = shared.plan_of(o.shares)
  local own_lens = shared.own_lens(plan, o.seq_lens)
  local function first(x) return x:narrow(0, 0, plan.tokens) end
  local y = chunks.cast(first(q), first(k), first(v), function(queries, keys, values)
    return shared.attention(plan, queries, keys, values, o, can_flash(queries))
  end)
  if #own_lens == 0 then return y end
  local function rest(x) return x:narrow(0, plan.tokens, x:size(0) - plan.tokens) end
  return torch.cat { y, whole(plain.copy(o, { seq_lens = own_lens }), rest(q), rest(k), rest(v), o.sinks) }
end

local OPTIONS = { seq_lens = options.optional, causal = true, scale = options.optional, window = options.optional,
  sinks = options.optional, blocks = options.optional, shares = options.optional }

--- Attention in which a sequence sees itself alone. Several query heads may share a key head.
---
---     local y = nn.attention(q, k, v, { seq_lens = batch.seq_lens, window = 4096 })
---
--- `seq_lens`: the tokens of each sequence, which add up to T; default: one sequence. `causal`: a token sees itself and
--- the tokens before it. `scale`: default D^-0.5. `window`: a token sees itself, window - 1 tokens before it, and if
--- `causal` is false window - 1 after it. `sinks`: [heads], a score of each head that takes part in its softmax and
--- stands for no token; the weights of the tokens then add up to less than 1. `blocks`: [T] whole numbers; the tokens
--- of a sequence with the same number, if it is at least 0, also see those after them. Within sharding.context_parallel
--- q, k and v are this rank's chunk, and seq_lens and blocks those of the whole.
--- `shares`: those of a micro-batch of batching.prepare with `split`, whose first sequences are this rank's parts of
--- samples that several ranks hold. Each part sees the whole sample. Then every rank calls this equally often.
---
--- The heads of v may be smaller than those of q and k. cuDNN takes such values where it runs; elsewhere zeros fill
--- them up.
---@param q torch.Tensor [T, heads, D]
---@param k torch.Tensor [T, kv_heads, D]
---@param v torch.Tensor [T, kv_heads, E] E is at most D
---@param opts {seq_lens: integer[]?, causal: boolean?, scale: number?, window: integer?, sinks: torch.Tensor?,
--- blocks: torch.Tensor?, shares: nn.Shares?}?
---@return torch.Tensor # [T, heads, E]
function M.attention(q, k, v, opts)
  check_tensors(q, k, v)
  local o = options.read("nn.attention", opts, OPTIONS)
  local current = chunks.current()
  if v:size(2) < k:size(2) and (current or o.blocks ~= nil or o.shares ~= nil) then
    return fill_values(M.attention, q, k, v, opts)
  end
  local tokens = current and chunks.whole(current, q:size(0)) or q:size(0)
  o.seq_lens = o.seq_lens or M.of_one_sequence(tokens)
  check_lengths(o.seq_lens, tokens)
  check(o.window == nil or plain.is_whole(o.window, 1), "window must be a whole number of at least 1, got %s",
    tostring(o.window))
  if o.sinks ~= nil then check_sinks(o.sinks, q) end
  if o.shares ~= nil then return with_shares(o, q, k, v) end
  if o.blocks ~= nil then
    local is_right = torch.is_tensor(o.blocks) and o.blocks:dim() == 1 and o.blocks:size(0) == tokens
    check(is_right and o.causal and o.sinks == nil,
      "blocks must be a tensor [T] of %d whole numbers; attention is causal, and without sinks, then", tokens)
    if current and current.size > 1 and (current.form == "ring" or q:size(1) % current.size ~= 0) then
      fail("attention with blocks needs whole sequences: all-to-all over heads, which %d ranks divide; got %d heads%s",
        current.size, q:size(1), current.form == "ring" and " in a ring" or "")
    end
  end
  if current and current.size > 1 then
    return chunks.attention(current, q, k, v, o, function(...) return whole(o, ...) end, can_flash)
  end
  return whole(o, q, k, v, o.sinks)
end

return M
