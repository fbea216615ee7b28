--- Attention with several heads, and its projections.

local init = require "lockstep.nn.initializers"
local make = require "lockstep.nn.parameter"
local nn = require "lockstep.nn"
local options = require "lockstep.options"
local plain = require "lockstep.plain"
local torch = require "lockstep.torch"

---@class nn.multihead_attention
local M = {}

---@class nn.MultiheadAttentionOptions
---@field dropout number? default 0; of the attention's weights, while training
---@field bias boolean? default true
---@field add_bias_kv boolean? default false; true: a trained key and value follow the others
---@field add_zero_attn boolean? default false; true: a key and a value of zeros follow the others
---@field kdim integer? default: embed_dim
---@field vdim integer? default: embed_dim
---@field batch_first boolean? default false; true: inputs and outputs are [batch, time, ...]

---@class nn.AttentionCallOptions
---@field attn_mask torch.Tensor? [L, S] or [batch * num_heads, L, S]; true: the query does not see the key; numbers are
--- added to the scores
---@field key_padding_mask torch.Tensor? [batch, S] ([S] without a batch); true: no query sees this key
---@field is_causal boolean? default false; true: query i sees keys 0 to i. A given attn_mask is used in its place
---@field need_weights boolean? default true; false is faster
---@field average_attn_weights boolean? default true; false: the weights of each head

local NAME = "nn.MultiheadAttention"

---@class nn.MultiheadAttention: nn.Module
local MultiheadAttention = nn.Module:subclass("MultiheadAttention")

--- Attention with several heads (arXiv 1706.03762). Called with query, key and value, [time, batch, size] or [time,
--- size], and options. Returns y, [time, batch, embed_dim], and the weights, [batch, L, S], or nil if need_weights is
--- false. A mask is true where a query does NOT see a key, as in PyTorch's layer; in torch.scaled_dot_product_attention
--- it is the other way round. in_proj_weight: [3 * embed_dim, embed_dim]; with kdim or vdim three, q_proj_weight to
--- v_proj_weight; in_proj_bias; out_proj, an nn.Linear; bias_k and bias_v. Names, values and results are PyTorch's.
---
---     local attention = nn.MultiheadAttention(64, 4, { batch_first = true })
---     local y = attention(x, x, x, { is_causal = true, need_weights = false })
---@type fun(embed_dim: integer, num_heads: integer, opts: nn.MultiheadAttentionOptions?): nn.MultiheadAttention
M.MultiheadAttention = MultiheadAttention

function MultiheadAttention:init(embed_dim, num_heads, opts)
  local o = options.read(NAME, opts, { dropout = 0, bias = true, add_bias_kv = false, add_zero_attn = false,
    kdim = options.optional, vdim = options.optional, batch_first = false })
  make.positive("MultiheadAttention", "embed_dim", embed_dim)
  make.positive("MultiheadAttention", "num_heads", num_heads)
  plain.check(embed_dim % num_heads == 0, "%s: embed_dim %d must be a multiple of num_heads %d", NAME, embed_dim,
    num_heads)
  plain.check(o.dropout >= 0 and o.dropout <= 1, "%s: dropout must be a number from 0 to 1, not %s", NAME, o.dropout)
  self.embed_dim, self.num_heads, self.head_dim = embed_dim, num_heads, embed_dim / num_heads
  self.dropout, self.batch_first, self.add_zero_attn = o.dropout, o.batch_first, o.add_zero_attn
  self.kdim = make.positive("MultiheadAttention", "kdim", o.kdim or embed_dim)
  self.vdim = make.positive("MultiheadAttention", "vdim", o.vdim or embed_dim)
  local is_packed = self.kdim == embed_dim and self.vdim == embed_dim
  local function later() end
  if is_packed then
    self.in_proj_weight = make.new({ 3 * embed_dim, embed_dim }, later)
  else
    self.q_proj_weight = make.new({ embed_dim, embed_dim }, later)
    self.k_proj_weight = make.new({ embed_dim, self.kdim }, later)
    self.v_proj_weight = make.new({ embed_dim, self.vdim }, later)
  end
  if o.bias then self.in_proj_bias = make.new({ 3 * embed_dim }, init.zeros_) end
  -- PyTorch draws the values of out_proj first.
  self.out_proj = nn.Linear(embed_dim, embed_dim, { bias = o.bias })
  if o.bias then init.zeros_(self.out_proj.bias) end
  for _, weight in ipairs(is_packed and { self.in_proj_weight }
    or { self.q_proj_weight, self.k_proj_weight, self.v_proj_weight }) do
    init.xavier_uniform_(weight)
  end
  if o.add_bias_kv then
    self.bias_k = make.new({ 1, 1, embed_dim }, init.xavier_normal_)
    self.bias_v = make.new({ 1, 1, embed_dim }, init.xavier_normal_)
  end
end

local function check_inputs(self, query, key, value)
  local layout = self.batch_first and "[batch, time, %d]" or "[time, batch, %d]"
  local inputs, names, sizes = { query, key, value }, { "query", "key", "value" },
    { self.embed_dim, self.kdim, self.vdim }
  for i, name in ipairs(names) do
    local x, size = inputs[i], sizes[i]
    plain.check(torch.is_tensor(x), "%s: %s must be a tensor, not a %s", NAME, name, type(x))
    plain.check((x:dim() == 2 or x:dim() == 3) and x:dim() == query:dim() and x:size(-1) == size,
      "%s: %s must be " .. layout .. " or [time, %d], with as many dimensions as the query, got %s", NAME, name, size,
      size, tostring(x.shape))
  end
  local dims = query:dim()
  plain.check(key:size(0) == value:size(0) and (dims == 2 or key:size(1) == value:size(1)),
    "%s: key and value must have one batch and one time, got %s and %s", NAME, tostring(key.shape),
    tostring(value.shape))
  local batch_dim = self.batch_first and 0 or 1
  plain.check(dims == 2 or query:size(batch_dim) == key:size(batch_dim),
    "%s: query and key must have one batch, got %s and %s", NAME, tostring(query.shape), tostring(key.shape))
end

--- Returns a mask as numbers that are added to the scores, after a check of its shape: one of `shapes`.
local function additive(mask, name, dtype, shapes)
  plain.check(torch.is_tensor(mask), "%s: %s must be a tensor, not a %s", NAME, name, type(mask))
  local known, texts = false, {}
  for i, shape in ipairs(shapes) do
    texts[i] = "{" .. table.concat(shape, ", ") .. "}"
    known = known or texts[i] == tostring(mask.shape)
  end
  plain.check(known, "%s: %s must have shape %s, got %s", NAME, name, table.concat(texts, " or "), tostring(mask.shape))
  if mask.dtype == torch.bool then
    return torch.zeros_like(mask, { dtype = dtype }):masked_fill(mask, -math.huge)
  end
  plain.check(mask:is_floating_point(), "%s: %s must be of booleans or floating-point numbers, not %s", NAME, name,
    tostring(mask.dtype))
  return mask
end

--- Returns query, key and value after their projections.
local function project(self, query, key, value)
  local size, bias = self.embed_dim, self.in_proj_bias
  if self.in_proj_weight and query == key and key == value then
    return unpack(nn.linear(query, self.in_proj_weight, bias):chunk(3, -1))
  end
  local weights = { self.q_proj_weight, self.k_proj_weight, self.v_proj_weight }
  if self.in_proj_weight then weights = self.in_proj_weight:chunk(3, 0) end
  local projected = {}
  for i, x in ipairs { query, key, value } do
    projected[i] = nn.linear(x, weights[i], bias and bias:narrow(0, (i - 1) * size, size))
  end
  return unpack(projected)
end

--- Returns k or v with `row`, [1, 1 or batch * heads, size], behind its last token, along `dim`.
local function followed(x, row, dim)
  local size = x.shape
  size[dim + 1] = 1
  return torch.cat({ x, row:expand(size) }, dim)
end

---@param query torch.Tensor
---@param key torch.Tensor
---@param value torch.Tensor
---@param opts nn.AttentionCallOptions?
---@return torch.Tensor
---@return torch.Tensor? # the weights
function MultiheadAttention:forward(query, key, value, opts)
  local o = options.read(NAME, opts, { attn_mask = options.optional, key_padding_mask = options.optional,
    is_causal = false, need_weights = true, average_attn_weights = true })
  check_inputs(self, query, key, value)
  local is_self, is_batched = query == key and key == value, query:dim() == 3
  local function with_time_first(x)
    if not is_batched then return x:unsqueeze(1) end
    return self.batch_first and x:transpose(0, 1) or x
  end
  query = with_time_first(query)
  if is_self then key, value = query, query else key, value = with_time_first(key), with_time_first(value) end
  local time, batch, heads = query:size(0), query:size(1), self.num_heads
  local keys = key:size(0)
  local q, k, v = project(self, query, key, value)

  local mask, padding
  if o.attn_mask then
    mask = additive(o.attn_mask, "attn_mask", q.dtype, { { time, keys }, { batch * heads, time, keys } })
  end
  if o.key_padding_mask then
    padding = additive(o.key_padding_mask, "key_padding_mask", q.dtype, { is_batched and { batch, keys } or { keys } })
    padding = padding:view(batch, 1, 1, keys)
  end
  local is_plain = not padding and not o.need_weights and self.bias_k == nil and not self.add_zero_attn
  local is_causal = o.is_causal and not mask and is_plain
  if o.is_causal and not mask and not is_causal then
    local later = torch.ones({ time, keys }, { dtype = torch.bool, device = q.device }):triu(1)
    mask = additive(later, "attn_mask", q.dtype, { { time, keys } })
  end
  if mask then mask = mask:dim() == 2 and mask:view(1, 1, time, keys) or mask:view(batch, heads, time, keys) end

  if self.bias_k ~= nil then k, v = followed(k, self.bias_k, 0), followed(v, self.bias_v, 0) end
  q = q:reshape(time, batch * heads, self.head_dim):transpose(0, 1)
  k = k:reshape(-1, batch * heads, self.head_dim):transpose(0, 1)
  v = v:reshape(-1, batch * heads, self.head_dim):transpose(0, 1)
  if self.add_zero_attn then
    local zero = torch.zeros({ 1, 1, self.head_dim }, { dtype = k.dtype, device = k.device })
    k, v = followed(k, zero, 1), followed(v, zero, 1)
  end
  local more = k:size(1) - keys -- every query sees those that were added
  if more > 0 then
    mask = mask and torch.constant_pad_nd(mask, { 0, more })
    padding = padding and torch.constant_pad_nd(padding, { 0, more })
    keys = k:size(1)
  end
  if mask and padding then mask = mask + padding else mask = mask or padding end

  local dropout = self.training and self.dropout or 0
  local y, weights
  if o.need_weights then
    local scores = (q * math.sqrt(1 / self.head_dim)):bmm(k:transpose(1, 2))
    if mask then scores = (scores:view(batch, heads, time, keys) + mask):view(batch * heads, time, keys) end
    weights = torch.softmax(scores, -1)
    if dropout > 0 then weights = torch.dropout(weights, dropout, true) end
    y = weights:bmm(v):transpose(0, 1)
    weights = weights:view(batch, heads, time, keys)
    if o.average_attn_weights then weights = weights:mean(1) end
    if not is_batched then weights = weights:squeeze(0) end
  else
    y = torch.scaled_dot_product_attention(q:view(batch, heads, time, self.head_dim),
      k:view(batch, heads, keys, self.head_dim), v:view(batch, heads, keys, self.head_dim),
      { attn_mask = mask and mask:expand(batch, heads, time, keys), dropout_p = dropout, is_causal = is_causal })
    y = y:permute(2, 0, 1, 3)
  end
  y = self.out_proj(y:reshape(time * batch, self.embed_dim)):view(time, batch, self.embed_dim)
  if not is_batched then
    y = y:squeeze(1)
  elseif self.batch_first then
    y = y:transpose(0, 1)
  end
  return y, weights
end

return M
