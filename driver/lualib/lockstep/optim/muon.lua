--- optim.Muon: momentum whose update is made orthogonal, for matrices.
---
--- Source: Keller Jordan, "Muon: An optimizer for hidden layers in neural networks" (2024), and torch.optim.Muon, whose
--- options, defaults and numbers these are. `adjust_lr = "match_rms_adamw"` is from arXiv 2502.16982.

local core = require "lockstep.core"
local fully_shard = require "lockstep.sharding.fully_shard"
local splits = require "lockstep.nn.splits"
local torch = require "lockstep.torch"

local COEFFICIENTS = { 3.4445, -4.7750, 2.0315 }

--- Returns a matrix with about the singular vectors of `x` and singular values near 1. An odd polynomial of x, applied
--- `iterations` times, moves every singular value towards 1. [rows, columns] in and out, in the dtype of the products.
local function orthogonalize(x, group)
  local is_tall = x:size(0) > x:size(1)
  x = x:to(torch[group.precision])
  if is_tall then x = x:t() end -- products of the smaller side
  x = x:div(x:norm():clamp { min = group.eps }) -- no singular value is above 1
  local a, b, c = unpack(group.coefficients)
  for _ = 1, group.iterations do
    local gram = x:matmul(x:t())
    x = torch.addmm(x, torch.addmm(gram, gram, gram, { beta = b, alpha = c }), x, { beta = a })
  end
  return is_tall and x:t() or x
end

--- Returns the factor of lr by which updates of all shapes change a layer's output alike.
local RATIOS = {
  original = function(rows, columns) return math.sqrt(math.max(1, rows / columns)) end,
  match_rms_adamw = function(rows, columns) return 0.2 * math.sqrt(math.max(rows, columns)) end,
}

--- The shape of the matrix that a parameter is, or is a part of.
local function whole_shape(p)
  local place, split = fully_shard.place_of(p), splits.of(p)
  return place and place.shape or split and splits.whole_shape(p, split) or p:size()
end

---@type OptimizerKind
local M = {}

--- The name that errors begin with.
M.name = "optim.Muon"
--- Ranks that share out a model exchange matrices in `update`.
M.is_collective = true
--- The options and their defaults.
M.defaults = {
  lr = 1e-3, momentum = 0.95, nesterov = true, weight_decay = 0.1, eps = 1e-7, iterations = 5,
  coefficients = COEFFICIENTS, adjust_lr = "original", precision = "bfloat16",
}

M.check = function(o, check)
  check(o.momentum >= 0 and o.momentum < 1, "momentum must be a number from 0 to below 1", o.momentum)
  check(o.eps > 0, "eps must be a number above 0", o.eps)
  check(o.iterations >= 1 and o.iterations % 1 == 0 and o.iterations < 100,
    "iterations must be a whole number from 1 to 99", o.iterations)
  check(#o.coefficients == 3, "coefficients must be three numbers", "an array of " .. #o.coefficients)
  check(RATIOS[o.adjust_lr], 'adjust_lr must be "original" or "match_rms_adamw"', '"' .. o.adjust_lr .. '"')
  check(o.precision == "bfloat16" or o.precision == "float32", 'precision must be "bfloat16" or "float32"',
    '"' .. o.precision .. '"')
end

M.check_parameter = function(p, what)
  local place, shape = fully_shard.place_of(p), whole_shape(p)
  if #shape == 2 then return end
  core.raise(string.format("%s%s has shape {%s}, and only matrices can be made orthogonal; give it to optim.AdamW, as "
    .. "embeddings and heads", what, place and (' ("%s")'):format(place.name) or "", table.concat(shape, ", ")))
end

M.moments = function() return { "momentum_buffer" } end

--- A rank's parts of the updates of a sharded model's matrices are gathered unit by unit. Each rank makes only those
--- matrices orthogonal that it keeps a part of, so that the ranks share the work. Collective.
---@param updates table<torch.Tensor, torch.Tensor> by parameter: this rank's part; becomes its part of the result
---@param places table<torch.Tensor, sharding.Place>
---@param order torch.Tensor[] the parameters, the same on all ranks
local function orthogonalize_parts(updates, places, order, group)
  local is_done = {}
  local function update_unit(p)
    local members, pieces = places[p].unit_parameters(), {}
    if is_done[members] then return end
    is_done[members] = true
    for i, one in ipairs(members) do
      pieces[i] = updates[one.shard] or updates[p]:new_zeros { one.shard:numel() }
    end
    local whole = places[p].gather(pieces)
    for i, one in ipairs(members) do
      if places[one.shard] and pieces[i]:numel() > 0 then
        updates[one.shard] = torch.empty_like(pieces[i])
        places[one.shard].load(orthogonalize(whole[one.name], group), updates[one.shard])
      end
    end
  end
  for _, p in ipairs(order) do update_unit(p) end
end

M.update = function(bucket, group, lr)
  local updates, places, order = {}, {}, {}
  for i, grad in ipairs(bucket.grads) do
    local owner, buffer = bucket.owners[i], bucket.moments.momentum_buffer[i]
    buffer:lerp_(grad, 1 - group.momentum)
    updates[owner] = group.nesterov and grad:lerp(buffer, group.momentum) or buffer
    places[owner] = fully_shard.place_of(owner)
    local split = splits.of(owner)
    if places[owner] then
      order[#order + 1] = owner
    elseif split then -- every rank of tensor_parallel makes the whole matrix orthogonal, and keeps its part
      updates[owner] = splits.own(orthogonalize(splits.whole(updates[owner], split), group), split)
    else
      updates[owner] = orthogonalize(updates[owner], group)
    end
  end
  orthogonalize_parts(updates, places, order, group)
  for i, p in ipairs(bucket.params) do
    local owner = bucket.owners[i]
    local shape = whole_shape(owner)
    p:mul_(1 - lr * group.weight_decay)
    p:sub_(updates[owner]:to(p.dtype) * (lr * RATIOS[group.adjust_lr](shape[1], shape[2])))
  end
end

return M
