--- Weights that are split over ranks (sharding.tensor_parallel): which they are, and what a layer computes with its
--- part of one.
---
--- All ranks of the group have the same batch, and the same values between the layers. A layer that is split by its
--- columns computes a part of the features; backward adds up what the parts give to the layer's input. A layer that is
--- split by its rows takes such parts, and adds up the results (arXiv 1909.08053, section 3). With sequence = true
--- the values between the layers are split, too, by tokens (arXiv 2205.05198).
---
--- Random numbers: where all ranks hold the same values, dropout must drop the same ones, so the ranks' generators are
--- in the same state. Where each rank has a part, they must differ. Megatron-LM keeps a second generator for that.
--- Here such a part draws one number from the common generator, and goes on from this number and the rank. So there is
--- no second state that checkpoint regions and saved runs would have to keep.

local core = require "lockstep.core"
local dist = require "lockstep.distributed"
local fused = require "lockstep.nn.fused"
local plain = require "lockstep.plain"
local torch = require "lockstep.torch"

local M = {}

---@class nn.SplitGroup: sharding.Members
---@field sequence boolean whether tokens between the layers are split now
---@field shares table<integer, boolean>? numbers of tokens that the ranks got when tokens were divided; nil where the
--- model's own plan divides them
---@field has_common_generator boolean? the ranks have compared their generators
---@field last_entered table? what the last layer by columns made of its input, so that layers that share an input sum
--- its gradient once. The same on all ranks: it depends on the order of the layers alone

---@class nn.Split
---@field owner nn.SplitGroup
---@field dim integer of the weight
---@field total integer the whole size of this dimension
---@field start integer of this rank's part
---@field kind "column"|"row"|"vocabulary"|"experts"
---@field copies integer? consecutive ranks that hold the same part; 1 unless given
---@field sections integer[]? rows of each of the weights that are one behind another in this one: each is divided

--- The split of each parameter that is one.
---@type table<torch.Tensor, nn.Split>
local splits = setmetatable({}, { __mode = "k" })

---@param p torch.Tensor
---@return nn.Split?
function M.of(p) return splits[p] end

---@param p torch.Tensor
---@param split nn.Split
function M.note(p, split) splits[p] = split end

--- The ranks over which the gradient of each whole parameter is summed, because each rank's covers a part.
local summed = setmetatable({}, { __mode = "k" })

--- Lets another tensor take the place of a parameter: it is the same part, and its gradient is summed as before.
---@param from torch.Tensor
---@param to torch.Tensor
function M.move(from, to)
  splits[to] = splits[from]
  if summed[from] then M.sum_parameter(summed[from], to) end
end

--- The ranks that hold the parts of a model's layers, by the model and each module in it.
local owners = setmetatable({}, { __mode = "k" })

---@param model nn.Module
---@param owner nn.SplitGroup
function M.note_model(model, owner)
  for _, module in model:named_modules() do owners[module] = owner end
end

--- Returns the ranks that hold the parts of a model; nil if its layers are whole.
---@param model nn.Module
---@return nn.SplitGroup?
function M.owner_of(model) return owners[model] end

--- Returns whether one of the tensors is a part of a weight.
---@param params torch.Tensor[]
---@return boolean
function M.has_parts(params)
  for _, p in ipairs(params) do
    if splits[p] then return true end
  end
  return false
end

--- Raises where a tensor is a part of a weight, for code that needs whole weights.
---@param caller string
---@param p any
---@param advice string
function M.refuse(caller, p, advice)
  if splits[p] then
    core.raise(("%s: a weight is split over %d ranks by sharding.tensor_parallel; %s"):format(caller,
      splits[p].owner.size, advice))
  end
end

--- Raises where a module has a weight that is a part of one.
---@param caller string
---@param module nn.Module
---@param advice string
function M.refuse_module(caller, module, advice)
  for _, p in ipairs(module:parameters()) do M.refuse(caller, p, advice) end
end

--- The group that was compared for a module; true: all ranks.
local compared = setmetatable({}, { __mode = "k" })

--- Raises unless all ranks of `group` hold the same parts of the module's weights: replicas, or chunks of one sequence.
--- Collective, once for a module that has parts.
---@param caller string
---@param module nn.Module
---@param group dist.Group? nil: all ranks
function M.check_same_parts(caller, module, group)
  if compared[module] == (group or true) then return end
  local owner
  for _, p in ipairs(module:parameters()) do
    owner = owner or splits[p] and splits[p].kind ~= "experts" and splits[p].owner or nil
  end
  if owner then
    local what = "the group has ranks that hold different parts of the model's weights"
    local advice = "give a group of ranks with the same parts, as { 0, 2 } next to { 0, 1 } and { 2, 3 }"
    local members, count = {}, 0
    for _, r in ipairs(group and group:ranks() or {}) do members[r] = true end
    for _, r in ipairs(owner.ranks) do count = count + ((not group or members[r]) and 1 or 0) end
    if count > 1 then
      core.raise(("%s: %s, %d of the ranks {%s} of sharding.tensor_parallel; %s"):format(caller, what, count,
        table.concat(owner.ranks, ", "), advice))
    end
    local places = dist.all_gather_object({ owner.rank + 1, owner.size }, { group = group })
    for _, place in ipairs(places) do
      plain.check(place[1] == places[1][1] and place[2] == places[1][2], "%s: %s, part %d of %d and part %d of %d; %s",
        caller, what, places[1][1], places[1][2], place[1], place[2], advice)
    end
  end
  compared[module] = group or true
end

--- Calls fn(...) with whole tokens between the layers, for passes whose tokens cannot be divided by the ranks.
---@param model nn.Module
---@param fn fun(...): ...
---@param ... any
---@return any ...
function M.with_whole_tokens(model, fn, ...)
  local owner = owners[model]
  if not (owner and owner.sequence) then return fn(...) end
  owner.sequence = false
  return plain.finally(function() owner.sequence = true end, fn, ...)
end

-- Steps between the layers --------------------------------------------------------------------------------

--- Adds x up over the ranks, in place, and leaves its gradient as it is. x is the result of an operator that does not
--- keep it for backward.
---@param owner nn.SplitGroup
---@param x torch.Tensor
---@return torch.Tensor x
local function sum_in_place(owner, x)
  dist.all_reduce(x:detach(), "sum", { group = owner.group })
  return x
end
M.sum_in_place = sum_in_place

--- Sums the gradient of a tensor over the ranks.
---@param owner nn.SplitGroup
---@param x torch.Tensor
---@return torch.Tensor x
local function sum_gradient(owner, x)
  x:register_hook(function(grad) return dist.all_reduce(grad:clone(), "sum", { group = owner.group }) end)
  return x
end
M.sum_gradient = sum_gradient

--- Sums the gradients of a parameter over the ranks in each backward, also of a frozen one, which may be trained later.
---@param owner sharding.Members
---@param p torch.Tensor
function M.sum_parameter(owner, p)
  local was_trained = p.requires_grad
  sum_gradient(owner, p:requires_grad_(true))
  p:requires_grad_(was_trained)
  summed[p] = owner
end

--- The dimension of the tokens in [..., tokens, hidden].
local function token_dim(x) return x:dim() - 2 end

--- Returns how many tokens each rank has of x, on `dim`, and notes it for check_share.
local function share_of(owner, x, dim)
  plain.check(x:size(dim) % owner.size == 0, "sharding.tensor_parallel: sequence = true takes a multiple of %d tokens, "
    .. "one share for each rank, got %d; pad the batch (batching.prepare has pad_to_multiple_of)", owner.size,
    x:size(dim))
  local share = x:size(dim) / owner.size
  if owner.shares then owner.shares[share] = true end
  return share
end

--- Raises where a layer that takes this rank's tokens was given another number of them than any that were divided: all
--- tokens, for example, before the module that divides them.
local function check_share(owner, x, dim)
  if owner.shares and not owner.shares[x:size(dim)] then
    core.raise(("sharding.tensor_parallel: sequence = true: a layer takes this rank's share of the tokens, but got %d "
      .. "tokens, and no %d were divided so far; is it in front of the module that divides them (\"split\"), or "
      .. "behind the one that joins them?"):format(x:size(dim), x:size(dim) * owner.size))
  end
end

--- Returns the input of a layer that is split by columns: all tokens, with a gradient that is summed over the ranks.
local function enter(owner, x)
  local needs_gradient = torch.is_grad_enabled() and x.requires_grad
  if not owner.sequence and not needs_gradient then return x end
  -- An inference tensor does not count its changes, so nothing tells whether what it was is what it is now.
  local version = not x:is_inference() and x:_version()
  local last = owner.last_entered
  if last and version and rawequal(last.x, x) and last.version == version and last.sequence == owner.sequence
    and last.needs_gradient == needs_gradient then
    return last.entered
  end
  local entered
  if owner.sequence then
    check_share(owner, x, token_dim(x))
    entered = dist.functional.all_gather(x, { dim = token_dim(x), group = owner.group })
  else
    entered = sum_gradient(owner, x:view(x.shape))
  end
  owner.last_entered = { x = x, version = version, sequence = owner.sequence, needs_gradient = needs_gradient,
    entered = entered }
  return entered
end

--- Returns the sum of all ranks' x: all tokens, or this rank's.
local function leave(owner, x)
  owner.last_entered = nil
  if not owner.sequence then return sum_in_place(owner, x) end
  local dim = token_dim(x)
  share_of(owner, x, dim)
  return dist.functional.reduce_scatter(x, { dim = dim, group = owner.group })
end

--- Puts the parts of all ranks behind one another on `dim`. Every rank goes on with the same values, so the gradient of
--- a rank's part is its part of the gradient. `largest`: the size of the largest part, where they differ. `copies`: so
--- many consecutive ranks have the same part, of which the first is taken.
local function join(owner, x, dim, largest, total, copies)
  local own, padded = x, x:detach()
  if largest > x:size(dim) then
    local shape = {}
    for d = 1, x:dim() do shape[d] = x:size(d - 1) end
    shape[dim + 1] = largest - x:size(dim)
    padded = torch.cat({ padded, x:new_zeros(shape) }, dim)
  end
  local parts = dist.all_gather(padded:contiguous(), { group = owner.group })
  for i = 1, owner.size do
    local size = math.min(largest, total - (i - 1) * largest)
    if copies then size = largest end
    parts[i] = i == owner.rank + 1 and own or parts[i]:narrow(dim, 0, size)
  end
  if copies then
    for i = 1, owner.size / copies do parts[i] = parts[(i - 1) * copies + 1] end
    for i = owner.size, owner.size / copies + 1, -1 do parts[i] = nil end
  end
  return torch.cat(parts, dim)
end

--- Returns this rank's tokens of values that every rank has whole. Every rank gets the gradient of all tokens.
---@param owner nn.SplitGroup
---@param x torch.Tensor [..., tokens, hidden]
---@return torch.Tensor
function M.split_tokens(owner, x)
  if not owner.sequence then return x end
  local dim = token_dim(x)
  local share = share_of(owner, x, dim)
  if torch.is_grad_enabled() and x.requires_grad then x = sum_gradient(owner, x:view(x.shape)) end
  return x:narrow(dim, owner.rank * share, share)
end

--- Returns those of some rows, which every rank has whole, that stand at this rank's tokens, and their places among
--- them. Every rank gets the gradient of all rows.
---@param owner nn.SplitGroup
---@param rows torch.Tensor? [N, ...]; nil: returns the places alone
---@param places torch.Tensor [N] int64 among all tokens
---@param share integer this rank's tokens
---@return torch.Tensor? rows
---@return torch.Tensor places
function M.own_rows(owner, rows, places, share)
  if not owner.sequence then return rows, places end
  local start = owner.rank * share
  local own = places:ge(start):logical_and(places:lt(start + share)):nonzero():squeeze(-1)
  if not rows then return nil, places:index_select(0, own) - start end
  if torch.is_grad_enabled() and rows.requires_grad then rows = sum_gradient(owner, rows:view(rows.shape)) end
  return rows:index_select(0, own:to(rows.device)), places:index_select(0, own) - start
end

--- Puts the ranks' tokens together. Every rank goes on with all of them.
---@param owner nn.SplitGroup
---@param x torch.Tensor [..., tokens, hidden]
---@return torch.Tensor
function M.join_tokens(owner, x)
  if not owner.sequence then return x end
  local dim = token_dim(x)
  check_share(owner, x, dim)
  return join(owner, x, dim, x:size(dim), x:size(dim) * owner.size)
end

--- Does the same for values between the layers of a model. A stage of a pipeline may have no head.
---@param model nn.Module
---@param x torch.Tensor [..., tokens, hidden]
---@return torch.Tensor
function M.whole_tokens(model, x)
  local weight = model:head_weight()
  local split = weight and splits[weight]
  local owner = split and split.owner or not weight and owners[model]
  return owner and M.join_tokens(owner, x) or x
end

--- Raises unless the ranks have drawn the same number.
local function check_common_generator(owner, number)
  local numbers = dist.all_gather_object(number, { group = owner.group })
  for i, other in ipairs(numbers) do
    plain.check(other == numbers[1], "sharding.tensor_parallel: ranks %d and %d of the group draw different random "
      .. "numbers, so dropout between the layers would drop different values of the same token; give all ranks of the "
      .. "group one torch.manual_seed", owner.ranks[1], owner.ranks[i])
  end
  owner.has_common_generator = true
end

--- Calls fn(...) with random numbers of this rank's own, for its part of a value. The ranks' common generator moves on
--- by one number. The first call is collective.
---@param owner nn.SplitGroup
---@param fn fun(...): ...
---@param ... any
---@return any ...
function M.with_own_random(owner, fn, ...)
  local number = torch.randint(2 ^ 40, {}, { dtype = torch.int64 }):item()
  if not owner.has_common_generator then check_common_generator(owner, number) end
  local device = dist.device()
  local state, device_state = torch.get_rng_state(), device ~= "cpu" and torch.get_rng_state(device)
  torch.manual_seed(number * 4096 + owner.rank)
  return plain.finally(function()
    torch.set_rng_state(state)
    if device_state then torch.set_rng_state(device_state, device) end
  end, fn, ...)
end

--- Returns the size of the largest part, which all but the last ranks have.
---@param total integer
---@param size integer ranks
---@param copies integer? consecutive ranks that hold the same part
---@return integer
function M.largest_part(total, size, copies) return math.ceil(total / (size / (copies or 1))) end

local function largest_part(split) return M.largest_part(split.total, split.owner.size, split.copies) end

--- Returns each section of parts that lie one behind another, whole.
local function join_sections(parts, split)
  local size, start = split.owner.size, 0
  local wholes = {}
  for i, section in ipairs(split.sections) do
    local of_ranks = {}
    for r = 1, size do of_ranks[r] = parts:narrow(split.dim, (r - 1) * split.total / size + start, section / size) end
    wholes[i], start = torch.cat(of_ranks, split.dim), start + section / size
  end
  return torch.cat(wholes, split.dim)
end

--- Returns the whole of a tensor whose parts are split as `split` says. Collective.
---@param part torch.Tensor of a parameter, or of what an optimizer keeps of one
---@param split nn.Split
---@return torch.Tensor
function M.whole(part, split)
  return torch.no_grad(function()
    local parts = join(split.owner, part:detach(), split.dim, largest_part(split), split.total, split.copies)
    return split.sections and join_sections(parts, split) or parts
  end)
end

--- Returns the shape of that whole.
---@param part torch.Tensor
---@param split nn.Split
---@return integer[]
function M.whole_shape(part, split)
  local shape = { unpack(part.shape) }
  shape[split.dim + 1] = split.total
  return shape
end

--- Returns this rank's part of a whole tensor: a view, but of a weight with sections.
---@param whole torch.Tensor
---@param split nn.Split
---@param name string? of the parameter, for the error
---@return torch.Tensor
function M.own(whole, split, name)
  plain.check(whole:dim() > split.dim and whole:size(split.dim) == split.total, '"%s": a whole value has %d elements '
    .. 'on dimension %d, which is split over ranks, got shape %s', name or "a tensor", split.total, split.dim,
    whole.shape)
  if split.sections then
    local own, start, size, rank = {}, 0, split.owner.size, split.owner.rank
    for i, section in ipairs(split.sections) do
      own[i], start = whole:narrow(split.dim, start + rank * section / size, section / size), start + section
    end
    return torch.cat(own, split.dim)
  end
  return whole:narrow(split.dim, split.start, math.min(largest_part(split), split.total - split.start))
end

-- Layers --------------------------------------------------------------------------------------------------

--- Returns what an adapter adds to a layer's result, from this rank's part of it and all that the layer sees, in the
--- result's dtype; nil where the layer has none. lockstep.lora.adapters sets it. `owner` is given where x is a part of
--- the features, of which each rank drops its own.
---@type (fun(layer: nn.Linear, x: torch.Tensor, result: torch.Tensor, owner: nn.SplitGroup?): torch.Tensor?)?
M.update_of = nil

--- Adds it.
local function with_update(layer, x, result, owner)
  local update = M.update_of and M.update_of(layer, x, result, owner)
  return update and result + update or result
end

--- A linear layer's part of the features.
---@param owner nn.SplitGroup
---@param layer nn.Linear
---@param x torch.Tensor
---@return torch.Tensor
function M.column(owner, layer, x)
  local entered = enter(owner, x)
  return with_update(layer, entered, fused.linear(entered, layer.weight, layer.bias))
end

--- Returns x as the layers see it that are split by columns: all tokens, with a gradient that is summed over the
--- ranks. For values that their parts of the features use next to their own results.
---@param weight torch.Tensor of such a layer; nothing is done where it is whole
---@param x torch.Tensor [tokens, features]
---@return torch.Tensor
function M.entered(weight, x)
  local split = splits[weight]
  return split and enter(split.owner, x) or x
end

--- Normalises features that lie in parts on the ranks. The mean of squares is over all of them.
---@param layer nn.RMSNorm
---@param x torch.Tensor [..., this rank's features]
---@return torch.Tensor
function M.rms_norm(layer, x)
  local split = splits[layer.weight]
  local y = x:to(x.dtype == torch.float64 and torch.float64 or torch.float32)
  local squares = sum_in_place(split.owner, y:square():sum({ -1 }, true))
  if torch.is_grad_enabled() and squares.requires_grad then squares = sum_gradient(split.owner, squares) end
  local mean = squares / (split.total * (split.copies or 1)) -- each part is there so many times
  return layer.weight * (y * torch.rsqrt(mean + layer.eps)):to(x.dtype)
end

--- A linear layer whose input is a part of the features.
---@param owner nn.SplitGroup
---@param layer nn.Linear
---@param x torch.Tensor
---@return torch.Tensor
function M.row(owner, layer, x)
  plain.check(x:size(-1) == layer.weight:size(1), 'sharding.tensor_parallel: a "row" layer takes a part of the '
    .. 'features on each of %d ranks, %d, and was given %d; the layer before it must be a "column" layer', owner.size,
    layer.weight:size(1), x:size(-1))
  local y = leave(owner, with_update(layer, x, fused.linear(x, layer.weight), owner))
  if layer.bias then y = y + layer.bias end
  return y
end

--- Rows of a table that is in parts.
---@param layer nn.Embedding
---@param ids torch.Tensor
---@return torch.Tensor
function M.embedding(layer, ids)
  local split = splits[layer.weight]
  local owner, size = split.owner, layer.weight:size(0)
  local index, elsewhere = ids - split.start, nil
  -- The first rank looks up ids below 0, and the last one those that are too large: that is an error there.
  if owner.rank > 0 then elsewhere = index:lt(0) end
  if owner.rank < owner.size - 1 then
    local above = index:ge(size)
    elsewhere = elsewhere and elsewhere:logical_or(above) or above
  end
  if not elsewhere then return leave(owner, torch.embedding(layer.weight, index):clone()) end
  local rows = torch.embedding(layer.weight, index:masked_fill(elsewhere, 0))
  return leave(owner, rows:masked_fill(elsewhere:unsqueeze(-1), 0))
end

--- The scores of the whole vocabulary, from whole tokens.
---@param x torch.Tensor [..., hidden]
---@param weight torch.Tensor this rank's rows
---@param bias torch.Tensor?
---@param split nn.Split? default: the weight's
---@return torch.Tensor # [..., vocabulary]
function M.scores(x, weight, bias, split)
  split = split or splits[weight]
  local owner = split.owner
  local needs_gradient = torch.is_grad_enabled() and x.requires_grad
  local entered = needs_gradient and sum_gradient(owner, x:view(x.shape)) or x
  local own = fused.linear(entered, weight, bias)
  return join(owner, own, own:dim() - 1, largest_part(split), split.total)
end

return M
