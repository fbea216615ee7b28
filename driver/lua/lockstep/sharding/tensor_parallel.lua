--- sharding.tensor_parallel: layers whose weights are split over ranks.

local core = require "lockstep.core"
local data_parallel = require "lockstep.sharding.data_parallel"
local dist = require "lockstep.distributed"
local fully_shard = require "lockstep.sharding.fully_shard"
local members_of = require "lockstep.sharding.members"
local nn = require "lockstep.nn"
local options = require "lockstep.options"
local plain = require "lockstep.plain"
local splits = require "lockstep.nn.splits"
local torch = require "lockstep.torch"

local M = {}

local CALLER = "sharding.tensor_parallel: "

local function fail(message, ...) core.raise(CALLER .. message:format(...)) end
local function check(holds, message, ...) if not holds then fail(message, ...) end end

local KINDS = { column = true, row = true, vocabulary = true }

--- A Lua pattern for names that end so, with "*" in place of any one part.
local function pattern_of(text)
  local escaped = text:gsub("[%^%$%(%)%%%.%[%]%+%-%?]", "%%%0"):gsub("%*", "[^.]+")
  return "^" .. escaped .. "$", "%." .. escaped .. "$"
end

local function check_plan(plan)
  for pattern, kind in pairs(plan) do
    if type(pattern) ~= "string" or pattern == "" then
      fail('a key of plan must be a name such as "layers.*.mlp.up_proj", not %s',
        pattern == "" and "an empty one" or "a " .. type(pattern))
    end
    if not KINDS[kind] then
      fail('plan: "%s" must be "column", "row" or "vocabulary", not %s', pattern,
        type(kind) == "string" and '"' .. kind .. '"' or "a " .. type(kind))
    end
  end
end

--- The module of each planned layer with its name and kind, in the model's order.
local function find_layers(model, plan, is_own)
  local layers, names, used = {}, {}, {}
  for name, module in model:named_modules() do
    if name ~= "" then names[#names + 1] = name end
    local chosen, by
    for pattern, kind in pairs(plan) do
      local whole, tail = pattern_of(pattern)
      if name:find(whole) or name:find(tail) then
        if chosen and chosen ~= kind then
          fail('plan: "%s" is a %s layer by "%s", and a %s layer by "%s"', name, chosen, by, kind, pattern)
        end
        chosen, by, used[pattern] = kind, pattern, true
      end
    end
    if chosen then layers[#layers + 1] = { name = name, module = module, kind = chosen } end
  end
  for pattern in pairs(plan) do
    if not used[pattern] and not is_own then
      local nearest = core.nearest(pattern, names)
      fail('plan: no module is named "%s"%s', pattern, nearest and ('; did you mean "%s"?'):format(nearest) or "")
    end
  end
  return layers
end

local function check_layer(one, size, owners)
  local module, class = one.module, getmetatable(one.module)
  if class ~= nn.Linear and not (one.kind == "vocabulary" and class == nn.Embedding) then
    fail('"%s" is of the class %s; a "%s" layer is an nn.Linear%s', one.name, module.class_name, one.kind,
      one.kind == "vocabulary" and " or an nn.Embedding" or "")
  end
  local weight = module.weight
  local dim = one.kind == "row" and 1 or 0
  local features = weight:size(dim)
  if one.kind == "vocabulary" then
    -- Parts of ceil(features / size); the last one may be smaller, and must not be empty.
    if math.ceil(features / size) * (size - 1) >= features then
      fail('"%s": a vocabulary of %d is too small for %d ranks', one.name, features, size)
    end
  elseif features % size ~= 0 then
    fail('"%s": %d %s features cannot be divided by %d ranks', one.name, features,
      dim == 0 and "output" or "input", size)
  end
  splits.refuse("sharding.tensor_parallel", weight, "call it once for each model")
  for _, name in ipairs { "weight", "bias" } do
    if module[name] and owners[module[name]] > 1 then
      fail('"%s" shares its %s with another module, which would get a part of it', one.name, name)
    end
  end
  if nn.fields(module).forward then fail('"%s" has a forward of its own, which would be lost', one.name) end
end

--- Returns how many fields of modules hold each tensor.
local function count_owners(model)
  local owners = {}
  for _, module in model:named_modules() do
    for _, value in pairs(nn.fields(module)) do
      if torch.is_tensor(value) then owners[value] = (owners[value] or 0) + 1 end
    end
  end
  return owners
end

--- Makes a parameter this rank's part of it, in memory of its own. It stays the same tensor, also for an optimizer that
--- was made before.
local function cut(p, dim, one, owner)
  local total = p:size(dim)
  local most = math.ceil(total / owner.size)
  local start = most * owner.rank
  local part = p:detach():narrow(dim, start, math.min(most, total - start)):contiguous():clone()
  p.grad = nil
  -- Autograd forgets the old shape, which a graph of an earlier pass keeps, with the dtype alone.
  p:set_data(torch.empty({ 0 }, { dtype = p.dtype == torch.float64 and torch.float32 or torch.float64,
    device = p.device }))
  p:set_data(part)
  splits.note(p, { owner = owner, dim = dim, total = total, start = start, kind = one.kind })
end

local function split_layer(one, owner)
  local module, dim = one.module, one.kind == "row" and 1 or 0
  cut(module.weight, dim, one, owner)
  if dim == 0 and module.bias then cut(module.bias, 0, one, owner) end
  if one.kind == "column" then
    module.forward = function(layer, x) return splits.column(owner, layer, x) end
  elseif one.kind == "row" then
    module.forward = function(layer, x) return splits.row(owner, layer, x) end
  elseif getmetatable(module) == nn.Embedding then
    module.forward = function(layer, ids) return splits.embedding(layer, ids) end
  else
    module.forward = function(layer, x) return splits.scores(x, layer.weight, layer.bias) end
  end
end

--- Sums over the ranks the gradients of whole weights that see a part: of the tokens, or of the heads.
local function sum_partial_gradients(model, owner)
  local partial = {}
  for _, module in model:named_modules() do
    local fields = nn.fields(module)
    for _, name in ipairs { "q", "k" } do
      local norm, projection = fields[name .. "_norm"], fields[name .. "_proj"]
      if nn.is_module(norm) and nn.is_module(projection) and splits.of(projection.weight) then
        partial[norm.weight] = true
      end
    end
  end
  for _, p in ipairs(model:parameters()) do
    if not splits.of(p) and (partial[p] or owner.sequence) then
      local was_trained = p.requires_grad
      splits.sum_gradient(owner, p:requires_grad_(true)) -- also of a frozen one, which may be trained later
      p:requires_grad_(was_trained)
    end
  end
end

--- Raises where a rank's queries would meet keys of other heads.
local function check_heads(model, layers, size)
  local settings, kinds = model.settings, {}
  if type(settings) ~= "table" then return end
  local heads_of = { q_proj = settings.num_attention_heads, k_proj = settings.num_key_value_heads,
    v_proj = settings.num_key_value_heads }
  for _, one in ipairs(layers) do kinds[one.name] = one.kind end
  for _, one in ipairs(layers) do
    local parent, field = one.name:match "^(.-)([^.]*)$"
    local heads = heads_of[field]
    if heads and heads % size ~= 0 then
      fail('"%s": %d heads cannot be divided by %d ranks', one.name, heads, size)
    end
    for other in pairs(heads and heads_of or {}) do
      if kinds[parent .. other] ~= one.kind then
        fail('"%s" is a %s layer, but "%s" is not; queries, keys and values are split together', one.name, one.kind,
          parent .. other)
      end
    end
  end
end

local function check_sequence(model, layers)
  if not model.tensor_plan then return end
  check(model.splits_tokens, "sequence = true: %s does not support it; leave it out", model.class_name)
  local has = {}
  for _, one in ipairs(layers) do has[one.module] = one.kind end
  local head = nn.fields(model).lm_head or model:decoder().embed_tokens
  if has[model:decoder().embed_tokens] ~= "vocabulary" or has[head] ~= "vocabulary" then
    fail 'sequence = true: plan must make "embed_tokens" and the head "vocabulary", which split and join the tokens'
  end
end

--- Splits layers of a model over the ranks of a group, in place, and returns the model. All ranks of the group give it
--- the same batches, and have the same results and the same loss. Models of models.load compare each batch, and raise
--- on every rank where one differs.
---
---     local model = sharding.tensor_parallel(models.load("Qwen/Qwen3-8B"), { sequence = true })
---     local sum, count = model:loss(batch)
---
--- `plan`: names of layers, "*" for any one part, by the whole name or its end, and how each is split. "column": each
--- rank computes a part of an nn.Linear's output features. "row": each rank takes a part of the input features, those
--- of the columns before, and results are added up. "vocabulary": a table of embeddings, or a head whose scores are put
--- together. Default: the model's own plan, of models that models.load returns.
---
--- `sequence`: values between the layers are split by tokens, so that norms and residuals take a part of the memory. A
--- batch then has a multiple of the group's size in tokens.
---
--- Parameters are this rank's parts; their values are those of the group's first rank. AdamW and SGD work on them,
--- optim.clip_grad_norm computes the norm over the ranks, models.save writes whole weights. Replicas: data_parallel in
--- a group of ranks that have the same parts.
---
--- Collective: every rank of `group` calls this with the same model and options. Source: Megatron-LM (arXiv 1909.08053,
--- 2205.05198).
---@param model nn.Module
---@param opts {group: dist.Group?, plan: table<string, "column"|"row"|"vocabulary">?, sequence: boolean?}?
---@return nn.Module model
function M.tensor_parallel(model, opts)
  plain.check(nn.is_module(model), "%sexpected a module, not a %s; call it before data_parallel", CALLER, type(model))
  if data_parallel.has_replicas(model) or fully_shard.is_sharded(model) then
    core.raise(CALLER .. "the module has been given to sharding.data_parallel or fully_shard, which would not learn of "
      .. "the parts; call this before data_parallel")
  end
  local o = options.read("sharding.tensor_parallel", opts,
    { group = options.optional, plan = options.optional, sequence = false })
  local own_plan = type(model.tensor_plan) == "function" and model:tensor_plan() or nil
  check(o.plan == nil or type(o.plan) == "table",
    'plan must be a table of names and kinds, such as { ["layers.*.up"] = "column" }, not a %s', type(o.plan))
  local plan = o.plan or own_plan
  check(plan, '%s has no plan of its own; give one: plan = { ["layers.*.up"] = "column", ["layers.*.down"] = "row" }',
    model.class_name)
  check_plan(plan)
  local owner = members_of("sharding.tensor_parallel", "group", o.group)
  local size = owner.size
  owner.sequence = o.sequence and size > 1 ---@cast owner nn.SplitGroup
  local layers, owners = find_layers(model, plan, o.plan == nil), count_owners(model)
  check_heads(model, layers, size)
  for _, one in ipairs(layers) do check_layer(one, size, owners) end
  if owner.sequence then check_sequence(model, layers) end
  if size == 1 then return model end
  for _, p in ipairs(model:parameters()) do dist.broadcast(p:detach(), owner.ranks[1], { group = o.group }) end
  for _, buffer in model:named_buffers() do dist.broadcast(buffer, owner.ranks[1], { group = o.group }) end
  for _, one in ipairs(layers) do split_layer(one, owner) end
  sum_partial_gradients(model, owner)
  splits.note_model(model, owner)
  return model
end

return M
