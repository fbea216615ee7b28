--- sharding.tensor_parallel: layers whose weights are split over ranks.

local adapters = require "lockstep.lora.adapters"
local data_parallel = require "lockstep.sharding.data_parallel"
local dist = require "lockstep.distributed"
local fully_shard = require "lockstep.sharding.fully_shard"
local members_of = require "lockstep.sharding.members"
local nn = require "lockstep.nn"
local options = require "lockstep.options"
local plain = require "lockstep.plain"
local splits = require "lockstep.nn.splits"
local tensor_plan = require "lockstep.sharding.tensor_plan"
local torch = require "lockstep.torch"

local M = {}

local check, fail = plain.checks "sharding.tensor_parallel: "

--- The ranks that hold the same part as this one.
local function same_part(owner, copies)
  owner.same_part = owner.same_part or {}
  if not owner.same_part[copies] then
    local ranks, first = {}, owner.rank - owner.rank % copies
    for i = 1, copies do ranks[i] = owner.ranks[first + i] end
    owner.same_part[copies] = { group = dist.group { ranks = ranks }, ranks = ranks }
    dist.barrier { group = owner.same_part[copies].group } -- connects now, not in the midst of a backward
  end
  return owner.same_part[copies]
end

--- Makes a parameter this rank's part of it, in memory of its own. It stays the same tensor, also for an optimizer that
--- was made before.
---@param p torch.Tensor
---@param dim integer
---@param one {kind: string, copies: integer?, sections: integer[]?}
---@param owner sharding.Members
local function cut(p, dim, one, owner)
  local copies = one.copies or 1
  local total = p:size(dim)
  local most = splits.largest_part(total, owner.size, copies)
  local split = { owner = owner, dim = dim, total = total, start = most * math.floor(owner.rank / copies),
    kind = one.kind, copies = one.copies, sections = dim == 0 and one.sections or nil }
  local part = splits.own(p:detach(), split):contiguous():clone()
  p.grad = nil
  -- Autograd forgets the old shape, which a graph of an earlier pass keeps, with the dtype alone.
  p:set_data(torch.empty({ 0 }, { dtype = p.dtype == torch.float64 and torch.float32 or torch.float64,
    device = p.device }))
  p:set_data(part)
  splits.note(p, split)
  if copies > 1 then splits.sum_parameter(same_part(owner, copies), p) end
end

M.cut = cut

--- Classes that draw no random numbers.
local IS_DETERMINISTIC = { [nn.LayerNorm] = true, [nn.RMSNorm] = true, [nn.Linear] = true, [nn.Embedding] = true }

--- Lets a module that has no part of a weight see what the plan says.
local function wrap(one, owner)
  local module = one.module
  if torch.is_tensor(module) then return end
  local forward = module.forward
  if one.kind == "split" then
    local function share(x, ...) return splits.split_tokens(owner, x), ... end
    module.forward = function(m, ...) return share(forward(m, ...)) end
  elseif one.kind == "join" then
    module.forward = function(m, x, ...) return forward(m, splits.join_tokens(owner, x), ...) end
  elseif one.kind ~= "whole" and not IS_DETERMINISTIC[getmetatable(module)] then
    module.forward = function(m, ...)
      if not m.training or one.kind == "tokens" and not owner.sequence then return forward(m, ...) end
      return splits.with_own_random(owner, forward, m, ...)
    end
  end
end

--- Splits the factor of an adapter B A that has the layer's split dimension. The other one is whole, and each rank's
--- gradient of it covers a part. DoRA's lengths of rows go with the rows.
local function split_adapter(module, dim, one, owner)
  local parted, whole, lengths = module.lora_B.weight, module.lora_A.weight, module.lora_magnitude_vector
  if dim == 1 then parted, whole = whole, parted end
  cut(parted, dim, one, owner)
  splits.sum_parameter(owner, whole)
  if lengths and dim == 0 then cut(lengths, 0, one, owner) end
  if lengths and dim == 1 then splits.sum_parameter(owner, lengths) end
end

--- `joins`: a head puts the tokens together itself, because the model does not.
local function split_layer(one, owner, joins)
  local module, dim = one.module, one.kind == "row" and 1 or 0
  if torch.is_tensor(module) then return cut(module, 0, one, owner) end
  cut(module.weight, dim, one, owner)
  if dim == 0 and module.bias then cut(module.bias, 0, one, owner) end
  if adapters.of(module) then split_adapter(module, dim, one, owner) end
  if one.sections then
    module.sections = {}
    for i, section in ipairs(one.sections) do module.sections[i] = section / owner.size end
  end
  if getmetatable(module) == nn.RMSNorm then
    module.forward = splits.rms_norm
  elseif one.kind == "column" then
    module.forward = function(layer, x) return splits.column(owner, layer, x) end
  elseif one.kind == "row" then
    module.forward = function(layer, x) return splits.row(owner, layer, x) end
  elseif getmetatable(module) == nn.Embedding then
    module.forward = function(layer, ids) return splits.embedding(layer, ids) end
  else
    module.forward = function(layer, x)
      return splits.scores(joins and splits.join_tokens(owner, x) or x, layer.weight, layer.bias)
    end
  end
end

--- Sums the gradients of those weights over the ranks, also of frozen ones, which may be trained later.
local function sum_partial_gradients(model, partial, owner)
  for _, p in ipairs(model:parameters()) do
    if partial[p] then splits.sum_parameter(owner, p) end
  end
end

--- Splits the layers. `has_values`: parameters get the values of the group's first rank.
local function split(model, opts, has_values)
  check(nn.is_module(model), "expected a module, not a %s; call it before data_parallel", type(model))
  if data_parallel.has_replicas(model) or fully_shard.is_sharded(model) then
    fail("the module has been given to sharding.data_parallel or fully_shard, which would not learn of "
      .. "the parts; call this before data_parallel")
  end
  local o = options.read("sharding.tensor_parallel", opts,
    { group = options.optional, plan = options.optional, sequence = false })
  check(model.tensor_plan ~= false, "%s says that its layers cannot be split (tensor_plan = false); take fully_shard "
    .. "or pp", model.class_name)
  local own_plan = type(model.tensor_plan) == "function" and model:tensor_plan() or nil
  check(o.plan == nil or type(o.plan) == "table",
    'plan must be a table of names and kinds, such as { ["layers.*.up"] = "column" }, not a %s', type(o.plan))
  local plan = o.plan or own_plan
  check(plan, '%s has no plan of its own; give one: plan = { ["layers.*.up"] = "column", ["layers.*.down"] = "row" }',
    model.class_name)
  local owner = members_of("sharding.tensor_parallel", "group", o.group)
  local size = owner.size
  owner.sequence = o.sequence and size > 1 ---@cast owner nn.SplitGroup
  local has_own_plan = tensor_plan.parts_with_own_plan(model)
  local found, owners = tensor_plan.find(model, plan, o.plan == nil), tensor_plan.count_owners(model)
  tensor_plan.check_heads(model, found, size)
  for _, one in ipairs(found) do tensor_plan.check_module(one, size, owners, has_own_plan(one.name)) end
  if owner.sequence then tensor_plan.check_sequence(model, found) end
  if size == 1 then return model end
  local partial = tensor_plan.find_partial(model, found, owner.sequence)
  for _, p in ipairs(has_values and model:parameters() or {}) do
    dist.broadcast(p:detach(), owner.ranks[1], { group = o.group })
  end
  for _, buffer in model:named_buffers() do dist.broadcast(buffer, owner.ranks[1], { group = o.group }) end
  if owner.sequence and not own_plan then owner.shares = {} end
  for _, one in ipairs(found) do
    if tensor_plan.splits_weights(one.kind) then
      split_layer(one, owner, not has_own_plan(one.name))
    elseif not one.is_again then
      wrap(one, owner)
    end
  end
  sum_partial_gradients(model, partial, owner)
  splits.note_model(model, owner)
  return model
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
--- "column" is also for an nn.RMSNorm over such output features, whose mean of squares is then over all ranks, and for
--- a parameter with a row for each head. A layer of several weights, one behind another, has their numbers of rows in
--- `layer.sections`. Each is divided, and `layer.sections` then has the numbers of this rank.
---
--- `sequence`: values between the layers are split by tokens, so that norms and residuals take a part of the memory. A
--- batch then has a multiple of the group's size in tokens. A plan of one's own says where tokens are divided ("split":
--- each rank goes on with its share of the module's result) and put together ("join": of the module's input). An
--- embedding and a head of "vocabulary" do so, too. It also says of every other module with a weight or a dropout what
--- it sees: "tokens", this rank's, or "whole", all of them.
---
--- "features": a module between a column and a row layer, which sees this rank's part of the features. Modules of
--- "features" and "tokens" draw random numbers of this rank's own, so that no two ranks drop the same places, and the
--- gradients of their weights are summed over the ranks. All other random numbers must be the same on the ranks: give
--- them one torch.manual_seed.
---
--- Parameters are this rank's parts; their values are those of the group's first rank. AdamW and SGD work on them,
--- optim.clip_grad_norm computes the norm over the ranks, models.save writes whole weights. Replicas: data_parallel in
--- a group of ranks that have the same parts.
---
--- Where a model has fewer heads of keys and values than the group has ranks, consecutive ranks hold the same head, and
--- sum its gradients.
---
--- Collective: every rank of `group` calls this with the same model and options. Source: Megatron-LM (arXiv 1909.08053,
--- 2205.05198).
---@param model nn.Module
---@param opts {group: dist.Group?, plan: table<string, string>?, sequence: boolean?}?
---@return nn.Module model
function M.tensor_parallel(model, opts) return split(model, opts, true) end

--- Does the same to a model that nn.parameter.on_meta built.
---@param model nn.Module
---@param opts {group: dist.Group?, plan: table<string, string>?, sequence: boolean?}?
---@return nn.Module model
function M.on_meta(model, opts) return split(model, opts, false) end

return M
