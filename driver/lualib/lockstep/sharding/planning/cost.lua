--- The time and the memory of one step on a grid, from formulas. docs/propose.md explains them.
---
--- Memory, in bytes of a parameter that the rank holds: masters, their gradients and two moments of AdamW are
--- float32 and take 16 / n on n ranks of dp x cp. Those of experts take 16 ep / n. Gathered weights are bfloat16 and
--- take 2. Whole gradients are float32 and take 4, where a step has several micro-batches and the last one averages. So
--- with n = dp this is 6 + 16 / dp. Megatron-LM's distributed optimizer has 6 + 12 / dp: it keeps no second gradient.
--- With `reshard` a rank gathers and reduces unit by unit instead.
---
--- Time: (micro-batches + (pp - 1) / chunks) x the slowest stage, and what is not hidden of the collectives, each
--- latency x log2(ranks) + bytes / bandwidth.

local M = {}

local TILE = 1024 -- tokens whose scores the loss holds at a time
local NO_SCRATCH = {}

---@class sharding.Device
---@field flops number dense bfloat16 FLOP/s
---@field efficiency number the share of `flops` that matrix products reach
---@field memory_bandwidth number bytes/s
---@field link_gb_s number to GPUs of the same node
---@field network_gb_s number of each GPU to other nodes
---@field gpus_per_node integer
---@field latency_us number

--- A grid, and how a step runs on it.
---@class sharding.Candidate
---@field tp integer
---@field cp integer
---@field ep integer
---@field pp integer
---@field dp integer
---@field chunks integer
---@field sequences integer of a micro-batch
---@field micro_batches integer
---@field checkpoint boolean
---@field reshard boolean
---@field order string? of a pipeline's micro-batches; default: "1f1b", or "interleaved" with several chunks
---@field weight_bytes integer? of a weight and an activation while it computes: 2 unless given
---@field master_bytes integer? of a master, its gradient and each moment: 4 unless given
---@field reduce_bytes integer? of a whole gradient: 4 unless given
---@field replicas boolean? no weights are shared out
---@field ring boolean? attention over cp is a ring; default: all-to-all where cp divides the heads
---@field scratch {loss: number?, mlp: number?, attention: number?}? bytes that the device's kernels take while they run
---@field sequence boolean? tokens between layers are divided over tp; default: where the model can

--- Returns the seconds of a collective among `size` ranks that are `stride` apart, in which each rank sends `bytes`.
--- Ranks on several nodes are bound by the network. Several ranks of a group on one node use their network cards
--- together.
local function collective(device, size, stride, bytes)
  if size == 1 then return 0 end
  local local_ranks = math.max(1, math.min(size, math.floor(device.gpus_per_node / stride)))
  local rate = device.link_gb_s
  if local_ranks < size then rate = math.min(rate, local_ranks * device.network_gb_s) end
  return device.latency_us * 1e-6 * math.ceil(math.log(size) / math.log(2)) + bytes / (rate * 1e9)
end

--- Returns the seconds of an exchange in which every rank sends bytes / size to each other one.
local function exchange(device, size, stride, bytes)
  if size == 1 then return 0 end
  local local_ranks = math.max(1, math.min(size, math.floor(device.gpus_per_node / stride)))
  local inside, outside = (local_ranks - 1) / size, (size - local_ranks) / size
  return device.latency_us * 1e-6 * math.ceil(math.log(size) / math.log(2))
    + math.max(bytes * inside / (device.link_gb_s * 1e9), bytes * outside / (device.network_gb_s * 1e9))
end

--- Returns how many keys a token sees on average: half of its sequence, or less in a window.
local function keys_of(seq_len, window)
  if window and window < seq_len then return window - window * window / (2 * seq_len) end
  return seq_len / 2
end

--- Returns the seconds of matrix products: at least those of reading the weights.
local function products(device, flops, weights)
  return math.max(flops / (device.flops * device.efficiency), 2 * weights / device.memory_bandwidth)
end

--- Returns this rank's part of what tp divides. Ranks beyond the heads of keys and values hold copies of these.
local function own(shape, c, split, kv) return split / c.tp + kv / math.min(c.tp, shape.kv_heads) end

--- Adds the times of one micro-batch in `count` layers of a kind to `times`.
local function add_layers(times, shape, device, seq_len, c, kind, count)
  local tokens, passes = seq_len * c.sequences / c.cp, c.checkpoint and 4 or 3
  local kept = kind.kept
  local split, whole = own(shape, c, kind.split_matrix, kind.kv_matrix), kind.whole_matrix
  local compute = passes * (products(device, 2 * tokens * split, split) + products(device, 2 * tokens * whole, whole)
    + products(device, 2 * tokens * kind.expert_matrix, kind.experts / c.ep))
  -- Two products of attention; their gradients take five.
  local scores = 4 * tokens * shape.heads * shape.head_dim * keys_of(seq_len, kind.window) / c.tp
  local attention = scores * (passes - 3 + 3.5) / (device.flops * device.efficiency)
  -- Each pass writes and reads the elements that are kept.
  local elements = own(shape, c, kept.split, kept.kv) + kept.whole + kept.tokens / (shape.sequence and c.tp or 1)
  local traffic = passes * 2 * 2 * tokens * elements / device.memory_bandwidth
  times.compute = times.compute + count * (compute + attention + traffic)

  local hidden = 2 * tokens * shape.hidden -- bytes
  local repeats = (passes - 1) / 2 -- 1 without, 1.5 with a second forward
  if c.tp > 1 then
    -- A sum of tokens, or a gathering and a scattering, for each of attention and MLP, forward and backward.
    local sums = kind.per_token > 0 and 1 or 2
    times.tp = times.tp + count * sums * 2 * repeats
      * collective(device, c.tp, 1, hidden * 2 * (c.tp - 1) / c.tp)
  end
  if c.cp > 1 then
    -- Keys and values go round, and in backward their gradients, too; attention hides them.
    local parts = 2 * tokens * 2 * shape.kv_heads * shape.head_dim / math.min(c.tp, shape.kv_heads)
    local ring = (2 * repeats + 1) * collective(device, c.cp, c.tp, parts * (c.cp - 1))
    times.cp = times.cp + count * math.max(0, ring - attention)
  end
  if kind.per_token > 0 then
    times.ep = times.ep + count * 4 * repeats * exchange(device, c.ep, c.tp, hidden * kind.per_token)
  end
end

--- Returns whether a rank has its experts to itself: they are neither gathered nor reduced.
local function has_own_experts(c) return not c.replicas and c.ep > 1 and c.ep == c.dp * c.cp end

--- Returns the parameters of a rank in a stage: shared out over dp x cp, the experts', those of its largest layer that
--- travel, and those outside of layers.
---@param shape sharding.ModelShape
---@param c sharding.Candidate
---@param stage table
---@return number dense
---@return number experts
---@return number largest
---@return number root
function M.parameters_of(shape, c, stage)
  local vocabulary = math.ceil(shape.vocab_size / c.tp) * shape.hidden
  local root = stage.is_last and shape.hidden or 0 -- the final norm
  if stage.is_first then root = root + vocabulary + shape.outside - shape.hidden end
  if stage.is_last and not (shape.is_tied and stage.is_first) then root = root + vocabulary end
  local dense, experts, largest = root, 0, 0
  for kind = 1, #stage.counts do
    local count = stage.counts[kind]
    local one = shape.kinds[kind]
    local layer, of_experts = own(shape, c, one.split, one.kv) + one.whole, one.experts / c.ep
    dense, experts = dense + count * layer, experts + count * of_experts
    if count > 0 then largest = math.max(largest, layer + (has_own_experts(c) and 0 or of_experts)) end
  end
  return dense, experts, largest, root
end

--- Returns how many micro-batches a stage keeps at the same time, of the most in a step.
local function in_flight(c, stage)
  if c.pp == 1 then return 1 end
  if c.order == "all_forwards_first" then return c.micro_batches end
  if c.chunks == 1 then return math.min(c.micro_batches, c.pp - stage) end
  local parts = 2 * (c.pp - stage - 1) + (c.chunks - 1) * c.pp + 1
  return math.min(c.micro_batches * c.chunks, parts) / c.chunks
end

--- Returns the tokens of the loss's largest tile.
local function tile_of(tokens) return math.ceil(tokens / math.max(1, math.ceil(tokens / TILE))) end

--- The bytes that a rank of a stage holds.
---@class sharding.Memory
---@field masters number float32 weights; of replicas all of them
---@field gradients number of the masters
---@field moments number two of AdamW
---@field gathered number weights in bfloat16 for the computation
---@field buffers number whole gradients, and what travels
---@field activations number kept for backward
---@field workspace number of backward or of the loss, beyond what is kept
---@field late number of the gradients: those that come while backward frees the activations

--- Returns the bytes that are kept for backward, and those that the step's highest moment takes besides. Three
--- moments compete. The loss holds the scores of a tile. The backward of the last MLP holds the gradients of its gate,
--- its up-projection and their product. The third is the backward of the last attention.
local function activation_bytes(shape, seq_len, c, stage)
  local hidden, tokens, w = shape.hidden, seq_len * c.sequences / c.cp, c.weight_bytes or 2
  local divides = (c.sequence == nil and shape.sequence or c.sequence) and c.tp or 1
  local scratch = c.scratch or NO_SCRATCH
  -- All-to-all keeps the attention's result before and after it travels.
  local travelling = c.cp > 1 and not c.ring and shape.heads % (c.tp * c.cp) == 0
    and shape.heads * shape.head_dim / c.tp or 0
  local layers, backward = 0, 0
  for kind = 1, #stage.counts do
    local count, one = stage.counts[kind], shape.kinds[kind]
    local whole = own(shape, c, one.kept.split, one.kept.kv) + one.kept.whole + one.kept.tokens / divides
      + travelling
    layers = layers + count * (c.checkpoint and hidden / divides or whole)
    if count > 0 then
      local again = c.checkpoint and whole - hidden / divides or 0
      for _, moment in ipairs(one.moments) do
        local elements = own(shape, c, moment.split, moment.kv) + moment.whole + moment.tokens / divides
        local bytes = w * tokens * (again + elements) + (scratch[moment.kernel] or 0)
        if moment.kernel ~= "exchange" or c.ep > 1 then backward = math.max(backward, bytes) end
      end
    end
  end
  layers = w * tokens * (layers * in_flight(c, stage.stage) + 2 * shape.head_dim) -- and cos and sin
  if c.pp > 1 then
    -- The results that were sent, for their backward, and two messages that arrive early.
    local results = (stage.is_last and c.chunks == 1) and 0 or in_flight(c, stage.stage) * c.chunks
    local arriving = (stage.is_first and c.chunks == 1) and 0 or 2
    layers = layers + w * tokens * hidden / divides * (results + arriving)
  end
  if not stage.is_last then return layers, backward end
  -- The final norm keeps its input. Its result, and the scores of a tile, are there until backward has left the loss.
  local losses = c.pp > 1 and c.order == "all_forwards_first" and c.micro_batches or 1
  local inputs = losses * w * tokens * (hidden + hidden / divides)
  local scores = tile_of(tokens) * math.ceil(shape.vocab_size / c.tp)
  if c.tp > 1 then
    -- Each part of the vocabulary: scores, their distances to the largest, exponentials, and two gradients, in float32.
    local loss = (w < 4 and w + 20 or 20) * scores
    return layers + inputs, math.max(loss, backward - inputs)
  end
  -- The loss computes its gradients of the head and of its input at once, in the memory of the scores, which have the
  -- dtype of the head.
  local head = losses * shape.vocab_size * hidden * w
  local loss = w * tokens * hidden + w * scores + (scratch.loss or 0)
  -- With reshard the head's gradient waits for the embedding's, which is the last of the root's.
  return layers + inputs + head, math.max(loss, backward - inputs - (c.reshard and 0 or head))
end

--- Returns what a rank of a stage holds at the most, by kind.
---@param shape sharding.ModelShape
---@param seq_len integer
---@param c sharding.Candidate
---@param stage table
---@return sharding.Memory
function M.parts(shape, seq_len, c, stage)
  local dense, experts, largest, root = M.parameters_of(shape, c, stage)
  local ranks = c.replicas and 1 or c.dp * c.cp
  local share = dense / ranks + experts / (c.replicas and 1 or ranks / c.ep)
  local shared = dense + (has_own_experts(c) and 0 or experts)
  local m, w, r = c.master_bytes or 4, c.weight_bytes or 2, c.reduce_bytes or 4
  local several = c.micro_batches > 1
  -- For weights of 2 bytes AdamW keeps masters and moments in float32.
  local parts = { masters = (m < 4 and m + 4 or m) * share, gradients = m * share, moments = 2 * math.max(m, 4) * share,
    gathered = 0, buffers = 0 }
  local is_late = not several
  if c.replicas then
    -- c10d's reducer keeps the gradients in its buckets, and those of earlier micro-batches besides. A pipeline and
    -- ep have no reducer.
    local has_reducer = c.pp == 1 and c.ep == 1
    if has_reducer then parts.buffers, is_late = several and m * share or 0, false end
    if c.pp > 1 and in_flight(c, stage.stage) >= c.micro_batches then is_late = true end
  elseif ranks == 1 then
    -- The masters are the weights, and whole gradients are those of the masters, where the dtypes are the same.
    parts.gathered = w < m and w * shared or 0
    if several and r ~= m then parts.buffers, is_late = r * shared, true end
  else
    -- While they travel, one unit's gradients and the root's have a copy. The unit's takes the memory of freed weights,
    -- where that is enough.
    local copies = r * (root + (r > w and largest or 0))
    if c.reshard then -- the unit in use and the next one, and one unit's gradients
      parts.gathered, parts.buffers = w * (2 * largest + root), r * (largest + root) + copies
    else
      parts.gathered, parts.buffers = w * shared, r * (several and shared or largest + root) + copies
    end
    is_late = not (c.reshard and several)
  end
  -- Late gradients do not add up with the activations. Gradients of a rank's own experts add up where they are.
  parts.late = is_late and parts.gradients - (several and has_own_experts(c) and m * experts or 0) or 0
  parts.activations, parts.workspace = activation_bytes(shape, seq_len, c, stage)
  return parts
end

--- Returns the most bytes that a rank holds at a time. Gradients that come as activations go do not add up with them.
---@param parts sharding.Memory
---@return number
function M.total(parts)
  return parts.masters + parts.moments + parts.gathered + parts.buffers + parts.gradients - parts.late
    + math.max(parts.late, parts.activations + parts.workspace)
end

--- Returns what is not hidden of the collectives of fully_shard: in each micro-batch, and in each step.
local function shard_times(device, c, dense, experts, micro_batch_s)
  local ranks = c.dp * c.cp
  local same = ranks / c.ep -- ranks that hold the same experts
  local function both(bytes)
    return collective(device, ranks, c.tp, bytes * dense * (ranks - 1) / ranks)
      + collective(device, same, c.tp * c.ep, bytes * experts * (same - 1) / same)
  end
  if c.reshard then return math.max(0, 2 * both(2) + both(4) - micro_batch_s), 0 end
  -- The first forward hides the gathering, and the last backward the reduction.
  return 0, math.max(0, both(2) - micro_batch_s / 3) + math.max(0, both(4) - micro_batch_s * 2 / 3)
end

--- Returns the most bytes that a stage takes on a rank.
---@param shape sharding.ModelShape
---@param seq_len integer
---@param c sharding.Candidate
---@param stages table[] of shapes.stages
---@return number
function M.memory(shape, seq_len, c, stages)
  local most = 0
  for i = 1, #stages do
    most = math.max(most, M.total(M.parts(shape, seq_len, c, stages[i])))
  end
  return most
end

--- Returns the seconds of one micro-batch on a stage, by what takes them.
local function micro_batch(shape, device, seq_len, c, stage)
  local times, tokens = { compute = 0, tp = 0, cp = 0, ep = 0, pp = 0, dp = 0 }, seq_len * c.sequences / c.cp
  for kind = 1, #stage.counts do
    local count = stage.counts[kind]
    if count > 0 then add_layers(times, shape, device, seq_len, c, shape.kinds[kind], count) end
  end
  if stage.is_last then
    local head = math.ceil(shape.vocab_size / c.tp) * shape.hidden
    times.compute = times.compute + 4 * products(device, 2 * tokens * head, head) -- the loss computes scores twice
  end
  if c.pp > 1 then
    local bytes = 2 * tokens * shape.hidden / (shape.sequence and c.tp or 1)
    local rate = 2 * c.tp * c.cp * c.dp <= device.gpus_per_node and device.link_gb_s or device.network_gb_s
    times.pp = 2 * c.chunks * (device.latency_us * 1e-6 + bytes / (rate * 1e9))
  end
  return times
end

--- Returns the seconds of a step, which the slowest stage sets, and those of its parts: compute, bubble, tp, cp, ep,
--- pp, dp, optimizer.
---@param shape sharding.ModelShape
---@param device sharding.Device
---@param seq_len integer
---@param c sharding.Candidate
---@param stages table[] of shapes.stages
---@return number
---@return table<string, number> parts
function M.time(shape, device, seq_len, c, stages)
  local slowest, slowest_s, dp_step, optimizer = nil, -1, 0, 0
  for i = 1, #stages do
    local times = micro_batch(shape, device, seq_len, c, stages[i])
    local alone = times.compute + times.tp + times.cp + times.ep + times.pp
    local dense, experts = M.parameters_of(shape, c, stages[i])
    local each, once = shard_times(device, c, dense, experts, alone)
    times.dp = each
    if alone + each > slowest_s then slowest, slowest_s = times, alone + each end
    dp_step = math.max(dp_step, once)
    local ranks = c.dp * c.cp
    -- AdamW reads 16 bytes of a parameter and writes 12.
    optimizer = math.max(optimizer, 28 * (dense / ranks + experts / (ranks / c.ep)) / device.memory_bandwidth)
  end
  local m, bubble = c.micro_batches, (c.pp - 1) / c.chunks * slowest_s
  return m * slowest_s + bubble + dp_step + optimizer, { compute = m * slowest.compute, tp = m * slowest.tp,
    cp = m * slowest.cp, ep = m * slowest.ep, pp = m * slowest.pp, dp = m * slowest.dp + dp_step, bubble = bubble,
    optimizer = optimizer }
end

--- Returns the FLOPs that the model needs for a token, forward and backward. Recomputation does not count.
---@param shape sharding.ModelShape
---@param seq_len integer
---@return number
function M.flops_per_token(shape, seq_len)
  local total = 6 * shape.vocabulary
  for _, index in ipairs(shape.layers) do
    local kind = shape.kinds[index]
    total = total + 6 * (kind.split_matrix + kind.whole_matrix + kind.expert_matrix)
      + 12 * shape.heads * shape.head_dim * keys_of(seq_len, kind.window)
  end
  return total
end

return M
