--- The gated delta rule (arXiv 2412.06464) and the short convolution before it, over packed sequences.
---
---     local y, tails = delta_rule.convolve(x, weight, { 9, 13 })
---     local out, states = delta_rule.sequences(q, k, v, decay, beta, { 9, 13 })
---
--- Each head has a state S [key_dim, value_dim], 0 where a sequence begins. A token lets it fade, S = exp(decay) S.
--- Then the token corrects what the state answers to its key, S = S + k (beta (v - S^T k))^T. The output is S^T q.
---
--- Within a chunk of tokens all corrections are one triangular system, as the paper derives; from chunk to chunk the
--- state goes on. The chunks of all sequences are one batch in the first part. In the second part the first chunks of
--- all sequences are one step, then the second chunks, and so on.

local core = require "lockstep.core"
local torch = require "lockstep.torch"

local M = {}

local I64 = { dtype = torch.int64 }
local CHUNK = 64

--- Where the tokens of packed sequences lie in chunks.
---@class models.ChunkLayout
---@field size integer tokens of a chunk
---@field tokens torch.Tensor [chunks * size] the token of each place, or T where there is none
---@field places torch.Tensor [T] the place of each token
---@field steps integer[] sequences that have a first, second, ... chunk: those with the most chunks come first
---@field order torch.Tensor [sequences] the place of each sequence among these

--- Returns the layout of sequences.
---@param seq_lens integer[]
---@param device string
---@return models.ChunkLayout
local function make_layout(seq_lens, device)
  local longest, total, ranked, steps = 1, 0, {}, {}
  for i, length in ipairs(seq_lens) do
    ranked[i] = { index = i, length = length, first = total }
    longest, total = math.max(longest, length), total + length
  end
  local size = math.min(CHUNK, longest)
  table.sort(ranked, function(a, b)
    if a.length ~= b.length then return a.length > b.length end
    return a.index < b.index
  end)
  local tokens, places, order = {}, {}, {}
  local num_chunks = 0
  for i, sequence in ipairs(ranked) do order[sequence.index], places[sequence.index] = i - 1, {} end
  for step = 0, math.ceil(longest / size) - 1 do
    steps[step + 1] = 0
    for _, sequence in ipairs(ranked) do
      local count = math.min(size, sequence.length - step * size)
      if count > 0 then
        local first = sequence.first + step * size
        tokens[#tokens + 1] = torch.arange(first, first + count)
        if count < size then tokens[#tokens + 1] = torch.full({ size - count }, total, I64) end
        table.insert(places[sequence.index], torch.arange(num_chunks * size, num_chunks * size + count))
        num_chunks, steps[step + 1] = num_chunks + 1, steps[step + 1] + 1
      end
    end
  end
  local by_token = {}
  for _, parts in ipairs(places) do
    for _, part in ipairs(parts) do by_token[#by_token + 1] = part end
  end
  return { size = size, steps = steps, tokens = torch.cat(tokens):to(device), places = torch.cat(by_token):to(device),
    order = torch.tensor(order, I64):to(device) }
end

--- Where tokens lie behind K - 1 zeros for each sequence.
---@class models.PaddedLayout
---@field tokens torch.Tensor [T + sequences * (K - 1)] the token of each place, or T
---@field places torch.Tensor [T] the place of each token in the result of the convolution
---@field tails torch.Tensor [sequences, K - 1] the last places of each sequence

local function make_padded(seq_lens, device, width)
  local total, pad, first = 0, width - 1, 0
  for _, length in ipairs(seq_lens) do total = total + length end
  local tokens, places, tails = {}, {}, {}
  local zeros = torch.full({ pad }, total, I64)
  for i, length in ipairs(seq_lens) do
    local begin = first + (i - 1) * pad
    tokens[2 * i - 1], tokens[2 * i] = zeros, torch.arange(first, first + length)
    places[i] = torch.arange(begin, begin + length)
    tails[i] = torch.arange(begin + length, begin + length + pad)
    first = first + length
  end
  return { tokens = torch.cat(tokens):to(device), places = torch.cat(places):to(device),
    tails = torch.stack(tails):to(device) }
end

--- Returns what `make` returned for the same lengths, or calls it. All layers of a pass have the same lengths. What was
--- made in inference mode is no good for training.
local function remembered(make)
  local key, last
  return function(seq_lens, ...)
    if torch.cuda.is_current_stream_capturing() then
      core.raise "models: lockstep.graph cannot record layers with a state, such as Qwen3-Next's; run them without it"
    end
    local asked = table.concat({ table.concat(seq_lens, ","), ... }, " ")
    -- Backward does not take what was made in inference mode.
    if asked ~= key or last.tokens:is_inference() and torch.is_grad_enabled() then
      key, last = asked, make(seq_lens, ...)
    end
    return last
  end
end

local layout_of, padded_of = remembered(make_layout), remembered(make_padded)

--- Selects rows; those of number T are zeros.
local function rows_of(x, tokens)
  return torch.embedding(torch.cat { x, x:new_zeros { 1, x:size(1) } }, tokens)
end

--- Returns the causal convolution of each channel of each sequence, without what came before the sequence.
---@param x torch.Tensor [T, channels]
---@param weight torch.Tensor [channels, 1, K]
---@param seq_lens integer[]
---@return torch.Tensor # [T, channels], in the dtype of weight
---@return torch.Tensor tails [sequences, K - 1, channels] the last inputs of each sequence
function M.convolve(x, weight, seq_lens)
  local width = weight:size(2)
  local layout = padded_of(seq_lens, x.device, width)
  local padded = rows_of(x, layout.tokens)
  local count, y = padded:size(0) - width + 1, nil
  for i = 0, width - 1 do
    local term = padded:narrow(0, i, count) * weight:select(2, i):view(-1)
    y = y and y + term or term
  end
  return torch.embedding(y, layout.places), padded:detach():index_select(0, layout.tails:view(-1))
    :view(#seq_lens, width - 1, x:size(1))
end

--- Returns the convolution at one more token of each sequence, and its last inputs then.
---@param x torch.Tensor [sequences, channels]
---@param weight torch.Tensor [channels, 1, K]
---@param tails torch.Tensor [sequences, K - 1, channels]
---@return torch.Tensor # [sequences, channels]
---@return torch.Tensor tails
function M.convolve_next(x, weight, tails)
  local window = torch.cat({ tails, x:unsqueeze(1) }, 1)
  return (window * weight:squeeze(1):t()):sum(1), window:narrow(1, 1, tails:size(1))
end

--- From [T, heads, dim] or [T, heads] to [chunks, heads, size, dim or 1].
local function in_chunks(x, layout)
  return rows_of(x:flatten(1), layout.tokens):view(-1, layout.size, x:size(1), x:dim() == 3 and x:size(2) or 1)
    :transpose(1, 2)
end

--- Returns the outputs of sequences, and their states behind their last tokens. Everything is float32, or float64.
---@param q torch.Tensor [T, heads, key_dim]
---@param k torch.Tensor [T, heads, key_dim]
---@param v torch.Tensor [T, heads, value_dim]
---@param decay torch.Tensor [T, heads] logarithms, at most 0
---@param beta torch.Tensor [T, heads]
---@param seq_lens integer[]
---@return torch.Tensor # [T, heads, value_dim]
---@return torch.Tensor states [sequences, heads, key_dim, value_dim]
function M.sequences(q, k, v, decay, beta, seq_lens)
  local layout = layout_of(seq_lens, q.device)
  local size, value_dim = layout.size, v:size(2)
  q, k, v = in_chunks(q, layout), in_chunks(k, layout), in_chunks(v, layout)
  beta = in_chunks(beta, layout)
  local sums = in_chunks(decay, layout):cumsum(2)
  -- What is left of the correction of token j at token i.
  local above = torch.ones({ size, size }, { dtype = torch.bool, device = q.device }):triu(1)
  local left = (sums - sums:transpose(2, 3)):masked_fill(above, -math.huge):exp()
  local k_beta = k * beta
  local system = torch.matmul(k_beta, k:transpose(2, 3)) * left
  local solved = torch.linalg_solve_triangular(system, torch.cat({ v * beta, k_beta * sums:exp() }, -1),
    { upper = false, unitriangular = true })
  local values, reads = unpack(solved:split({ value_dim, k:size(3) }, -1))
  local scores, q_faded = torch.matmul(q, k:transpose(2, 3)) * left, q * sums:exp()
  local last = sums:narrow(2, size - 1, 1)
  local k_faded, fade = (k * (last - sums):exp()):transpose(2, 3), last:exp()
  local state = v:new_zeros { #seq_lens, v:size(1), k:size(3), value_dim }
  local outputs, ended, at = {}, {}, 0
  for step, count in ipairs(layout.steps) do
    local function own(x) return x:narrow(0, at, count) end
    if count < state:size(0) then
      table.insert(ended, 1, state:narrow(0, count, state:size(0) - count))
      state = state:narrow(0, 0, count)
    end
    local new = own(values) - torch.matmul(own(reads), state)
    outputs[step] = torch.matmul(own(q_faded), state) + torch.matmul(own(scores), new)
    state, at = state * own(fade) + torch.matmul(own(k_faded), new), at + count
  end
  table.insert(ended, 1, state)
  local flat = torch.cat(outputs):transpose(1, 2):reshape(at * size, -1)
  return torch.embedding(flat, layout.places):view(-1, v:size(1), value_dim),
    torch.cat(ended):index_select(0, layout.order)
end

--- Returns the outputs of one more token of each sequence, and the states behind it. Shapes are those of
--- delta_rule.sequences with a sequence for each token.
---@param q torch.Tensor
---@param k torch.Tensor
---@param v torch.Tensor
---@param decay torch.Tensor
---@param beta torch.Tensor
---@param states torch.Tensor
---@return torch.Tensor
---@return torch.Tensor states
function M.next_tokens(q, k, v, decay, beta, states)
  local faded, keys = states * decay:exp():view(q:size(0), -1, 1, 1), k:unsqueeze(-1)
  local correction = (v - (faded * keys):sum(2)) * beta:unsqueeze(-1)
  local new = faded + keys * correction:unsqueeze(2)
  return (new * q:unsqueeze(-1)):sum(2), new
end

return M
