--- The parts of a model that decide what a grid costs: its layers by kind, and what is outside of them.
---
--- Parameters are counted on the model itself, which models.outline builds without memory. sharding.tensor_parallel's
--- own plan and checks say what tensor parallelism divides.

local cut = require "lockstep.sharding.pipeline.cut"
local plain = require "lockstep.plain"
local tensor_plan = require "lockstep.sharding.tensor_plan"
local torch = require "lockstep.torch"

local M = {}

--- Elements of a token that a moment of backward holds, and the kernel that runs then.
---@class sharding.Moment
---@field kernel "mlp"|"attention"|"exchange"
---@field split number
---@field kv number
---@field whole number
---@field tokens number

--- Layers of one kind: those with parameters of the same shapes and the same window.
---@class sharding.LayerKind
---@field split integer parameters that tensor parallelism divides
---@field kv integer parameters of keys and values, divided by at most their heads
---@field kv_matrix integer those of `kv` that each token is multiplied by
---@field whole integer other parameters outside of the experts
---@field experts integer parameters of all experts
---@field split_matrix integer those of `split` that each token is multiplied by
---@field whole_matrix integer those of `whole` that each token is multiplied by
---@field expert_matrix integer parameters of the experts that a token is sent to
---@field norms integer norms over the hidden size
---@field per_token integer experts that a token is sent to; 0 without experts
---@field width integer of the MLP, or of an expert
---@field window integer|false
---@field kept {split: number, kv: number, tokens: number, whole: number} elements of a token for backward; see kept_of
---@field moments sharding.Moment[] of backward

---@class sharding.ModelShape
---@field model models.CausalLM on "meta"
---@field parameters integer
---@field kinds sharding.LayerKind[]
---@field layers integer[] the kind of each layer
---@field vocabulary integer vocab_size times hidden_size
---@field is_tied boolean whether the head is the embedding
---@field outside integer parameters outside of layers, embedding and head: the final norm, a vision tower
---@field num_experts integer 0 without experts
---@field hidden integer
---@field heads integer
---@field head_dim integer
---@field kv_heads integer
---@field vocab_size integer
---@field sequence boolean whether tensor parallelism may divide the tokens between the layers
---@field check_tp fun(tp: integer): string? why the model cannot be divided by tp ranks

--- Returns how the weights of each parameter are divided: its own kind by the plan, or nil.
local function planned(model)
  local plan, kinds = type(model.tensor_plan) == "function" and model:tensor_plan() or nil, {}
  if not plan then
    return kinds, function(tp)
      return tp > 1 and model.class_name .. " has no plan for sharding.tensor_parallel" or nil
    end
  end
  local found, owners = tensor_plan.find(model, plan, true), tensor_plan.count_owners(model)
  local has_own_plan = tensor_plan.parts_with_own_plan(model)
  for _, one in ipairs(found) do
    if torch.is_tensor(one.module) then
      kinds[one.module] = tensor_plan.splits_weights(one.kind) and one.kind or nil
    elseif tensor_plan.splits_weights(one.kind) then
      kinds[one.module.weight] = one.kind
      if one.kind ~= "row" and one.module.bias then kinds[one.module.bias] = one.kind end
    end
  end
  return kinds, function(tp)
    if tp == 1 then return nil end
    local ok, reason = pcall(function()
      for _, one in ipairs(found) do one.copies = nil end -- of another tp
      tensor_plan.check_heads(model, found, tp)
      for _, one in ipairs(found) do tensor_plan.check_module(one, tp, owners, has_own_plan(one.name)) end
    end)
    return not ok and tostring(reason):gsub("^.-sharding%.tensor_parallel: ", ""):match "^[^\n]*" or nil
  end
end

local function new_kind(settings, window)
  return { split = 0, kv = 0, whole = 0, experts = 0, split_matrix = 0, kv_matrix = 0, whole_matrix = 0,
    expert_matrix = 0, norms = 0, per_token = 0, width = settings.intermediate_size, window = window }
end

--- Adds a parameter of a layer to its kind, and its shape to the text that tells kinds apart.
local function add(kind, settings, name, p, is_split)
  local count = p:numel()
  if name:find "%.experts%.[%a_]+$" then -- weights, and the biases of gpt-oss
    kind.experts = kind.experts + count
    kind.per_token = settings.num_experts_per_tok
    if p:dim() < 3 then return end
    kind.expert_matrix = kind.expert_matrix + count / p:size(0) * kind.per_token
    kind.width = settings.moe_intermediate_size or settings.intermediate_size
  else
    local what = not is_split and "whole" or name:find "%.[kv]_proj%." and "kv" or "split"
    kind[what] = kind[what] + count
    if p:dim() == 2 then kind[what .. "_matrix"] = kind[what .. "_matrix"] + count end
    if p:dim() == 1 and name:find "norm%.weight$" and p:size(0) == settings.hidden_size
      and not name:find "self_attn" then
      kind.norms = kind.norms + 1
    end
  end
end

--- Returns the elements that a layer keeps of a token for backward, apart by what divides them. tp divides `split`, and
--- `kv` as far as there are heads. It divides `tokens` where the tokens between the layers are split. Nothing divides
--- `whole`. The elements are those of models.Layer: the inputs of linear layers and norms; queries, keys and values,
--- and the attention's result; gate, up and their product.
---@param shape sharding.ModelShape
---@param kind sharding.LayerKind
---@return {split: number, kv: number, tokens: number, whole: number}
local function kept_of(shape, kind)
  local c = shape.model.settings
  local q, kv = c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim
  local split = 2 * q + 2 * c.num_attention_heads -- the log-sum-exp of each head is float32
  if c.qk_norm then split = split + q end
  local kept = { split = split, kv = (c.qk_norm and 3 or 2) * kv, tokens = kind.norms * c.hidden_size,
    whole = 2 * c.hidden_size }
  if kind.per_token > 0 then
    -- Rows before and after the experts; indices and shares of the router, of 8 and 4 bytes.
    kept.whole = kept.whole + kind.per_token * (2 * c.hidden_size + 3 * kind.width + 15) + 3 * shape.num_experts + 2
  else
    kept.split = kept.split + 3 * kind.width
  end
  return kept
end

--- Returns what backward holds of a token at the highest moments of a layer, without the layers before: see kept_of.
---@param shape sharding.ModelShape
---@param kind sharding.LayerKind
---@return sharding.Moment[]
local function moments_of(shape, kind)
  local c = shape.model.settings
  local q, kv = c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim
  local mlp = { kernel = "mlp", split = 0, kv = 0, whole = 0, tokens = c.hidden_size }
  if kind.per_token > 0 then
    mlp.whole = kind.per_token * (2 * c.hidden_size + 2 * kind.width)
  else
    mlp.split = 2 * kind.width -- gradients of the product, of gate and of up; the product itself is freed
  end
  -- The values that the MLP kept are freed. The gradients are those of the layer, of the result, and of queries, keys
  -- and values.
  local attention = { kernel = "attention", split = 2 * q, kv = 2 * kv, whole = -c.hidden_size,
    tokens = c.hidden_size * (1 - kind.norms + 1) }
  if kind.per_token > 0 then
    attention.whole = attention.whole - kind.per_token * (2 * c.hidden_size + 3 * kind.width)
  else
    attention.split = attention.split - 3 * kind.width
  end
  local moments = { mlp, attention }
  if kind.per_token > 0 then
    -- The last exchange of ep in forward: rows before and after each of both exchanges.
    moments[3] = { kernel = "exchange", split = 0, kv = 0, whole = 4 * kind.per_token * c.hidden_size, tokens = 0 }
  end
  return moments
end

--- Returns the shape of a model.
---@param raw table<string, any> as config.json has it
---@return sharding.ModelShape
function M.of(raw)
  local models = require "lockstep.models" -- here, because it requires lockstep.sharding
  local model = models.outline("sharding.propose", raw)
  local settings = model.settings
  local shape = { model = model, parameters = 0, kinds = {}, layers = {}, outside = 0, num_experts = 0,
    sequence = model.splits_tokens, vocabulary = settings.vocab_size * settings.hidden_size,
    hidden = settings.hidden_size, heads = settings.num_attention_heads, head_dim = settings.head_dim,
    kv_heads = settings.num_key_value_heads, vocab_size = settings.vocab_size, is_tied = not model.lm_head }
  local kind_of, check_tp = planned(model)
  shape.check_tp = check_tp
  local decoder, head = model:decoder(), model.lm_head and model.lm_head.weight
  local counted, known = {}, {}
  for i, layer in ipairs(decoder.layers) do
    local kind = new_kind(settings, settings.windows and settings.windows[i] or false)
    local texts = { tostring(kind.window) }
    for name, p in layer:named_parameters() do
      if not counted[p] then
        counted[p] = true
        add(kind, settings, "." .. name, p, kind_of[p] ~= nil)
        texts[#texts + 1] = name .. " " .. tostring(p.shape)
        shape.parameters = shape.parameters + p:numel()
      end
    end
    local mixture = layer.mlp and layer.mlp.experts
    if mixture and mixture.holds_experts then shape.num_experts = mixture.down_proj:size(0) end
    local text = table.concat(texts, "; ")
    if not known[text] then
      shape.kinds[#shape.kinds + 1] = kind
      known[text] = #shape.kinds
    end
    shape.layers[i] = known[text]
  end
  for _, p in ipairs(model:parameters()) do
    if not counted[p] then
      counted[p] = true
      shape.parameters = shape.parameters + p:numel()
      if p ~= decoder.embed_tokens.weight and p ~= head then shape.outside = shape.outside + p:numel() end
    end
  end
  for _, kind in ipairs(shape.kinds) do kind.kept, kind.moments = kept_of(shape, kind), moments_of(shape, kind) end
  return shape
end

--- Returns what each stage of a pipeline holds. Stage s has the chunks s, s + pp, s + 2 pp, ... of pp x chunks parts of
--- the layers, as sharding.parallelize cuts them. Stages that hold the same are there once, as the first of them, which
--- keeps the most micro-batches.
---@param shape sharding.ModelShape
---@param pp integer
---@param chunks integer
---@param all boolean? each stage, also those that hold the same
---@return {stage: integer, counts: integer[], is_first: boolean, is_last: boolean}[] # stages from 0
function M.stages(shape, pp, chunks, all)
  local parts, stages, known = pp * chunks, {}, {}
  local cuts = parts == 1 and { { first = 1, last = #shape.layers } } or cut.plan(shape.model, parts)
  for stage = 0, pp - 1 do
    local counts = {}
    for kind in ipairs(shape.kinds) do counts[kind] = 0 end
    for chunk = stage, parts - 1, pp do
      for layer = cuts[chunk + 1].first, cuts[chunk + 1].last do
        counts[shape.layers[layer]] = counts[shape.layers[layer]] + 1
      end
    end
    local one = { stage = stage, counts = counts, is_first = stage == 0, is_last = stage == pp - 1 }
    local text = table.concat(counts, " ") .. tostring(one.is_first) .. tostring(one.is_last)
    if all or not known[text] then
      known[text] = true
      stages[#stages + 1] = one
    end
  end
  return stages
end

--- Returns the whole numbers that divide `number`, in rising order.
---@param number integer
---@return integer[]
function M.divisors(number)
  local found = {}
  for i = 1, math.floor(math.sqrt(number)) do
    if number % i == 0 then
      found[i] = true
      found[number / i] = true
    end
  end
  return plain.keys(found)
end

return M
