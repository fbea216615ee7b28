--- Cuts a language model's layers into stages, and runs one.
---
---     local stages = cut.plan(net, 4)          -- { { first = 1, last = 7 }, { first = 8, last = 15 }, ... }
---     cut.keep(net, { stages[2] })     -- this rank's; the others' parameters are freed
---     local y, carry = cut.run(net, callee, stages[2], batch, x, carry)
---
--- A stage takes and gives hidden states [T, hidden]. The first takes ids, and the last gives the loss. Names of
--- parameters stay those of the whole model.
---
--- Pictures: the first stage has the vision tower, and all layers behind which features of pictures are added
--- (DeepStack). So later stages need no feature, and messages keep their shapes.

local chunks = require "lockstep.nn.chunks"
local context = require "lockstep.sharding.context"
local core = require "lockstep.core"
local nn = require "lockstep.nn"
local plain = require "lockstep.plain"
local splits = require "lockstep.nn.splits"
local torch = require "lockstep.torch"

local M = {}

---@class pipeline.Stage
---@field index integer from 1
---@field first integer the first layer, from 1
---@field last integer
---@field is_first boolean takes ids
---@field is_last boolean gives the loss

local function fail(message, ...) core.raise("sharding.parallelize: " .. message:format(...)) end

--- Stands for a module that another rank has.
local Elsewhere = nn.Module:subclass("Elsewhere")

function Elsewhere.forward() core.raise("sharding.parallelize: this part of the model is on another rank's stage") end

--- A lookup multiplies nothing, but its gradient and optimizer are as large as the head's.
local EMBEDDING_PART = 0.1

local function size_of(module)
  local sum = 0
  for _, p in ipairs(module:parameters()) do sum = sum + p:numel() end
  return sum
end

--- Returns the cost of a layer: the parameters that a token is multiplied with.
local function cost_of(settings, layer)
  local experts = layer.mlp and layer.mlp.experts
  if not experts then return size_of(layer) end
  local all, one = size_of(experts), experts:parameters()[1]
  return size_of(layer) - all + all * settings.num_experts_per_tok / one:size(0)
end

--- Returns the cost of each layer. The first has the embedding's and a vision tower's in addition, and the last the
--- head's.
---@param net models.CausalLM
---@return number[]
function M.costs(net)
  local body, costs = net:decoder(), {}
  for i, layer in ipairs(body.layers) do costs[i] = cost_of(net.settings, layer) end
  -- Not this rank's own part of it: the last rank of tp may have a smaller one, and would cut elsewhere.
  local owner = splits.owner_of(net)
  local table_size = net.settings.vocab_size * net.settings.hidden_size / (owner and owner.size or 1)
  local tower = net.visual_layout and net.model.visual -- nil where it has ranks of its own
  costs[1] = costs[1] + table_size * EMBEDDING_PART + (tower and size_of(tower) or 0)
  costs[#costs] = costs[#costs] + (net.num_labels and 0 or table_size)
  return costs
end

--- Divides costs into `parts` contiguous parts, each of one cost at least. The largest part is as small as possible,
--- and among such divisions the sum of squares is the least. Returns the last index of each part. O(parts * n^2)
---@param costs number[]
---@param parts integer
---@return integer[]
function M.divide(costs, parts)
  local sums = { [0] = 0 }
  for i, cost in ipairs(costs) do sums[i] = sums[i - 1] + cost end
  --- best[k][i]: of the first i costs in k parts, by `join`; limit: of a part.
  local function solve(value_of, join, limit)
    local best, from = { [0] = { [0] = 0 } }, {}
    for k = 1, parts do
      best[k], from[k] = {}, {}
      for i = k, #costs - (parts - k) do
        for j = k - 1, i - 1 do
          local part, before = sums[i] - sums[j], best[k - 1][j]
          local value = before and part <= limit and join(before, value_of(part))
          if value and value < (best[k][i] or math.huge) then best[k][i], from[k][i] = value, j end
        end
      end
    end
    return best[parts][#costs], from
  end
  local function same(x) return x end
  local largest = solve(same, math.max, math.huge)
  local _, from = solve(function(x) return x * x end, function(a, b) return a + b end, largest * (1 + 1e-12))
  local ends, i = {}, #costs
  for k = parts, 1, -1 do ends[k], i = i, from[k][i] end
  return ends
end

--- Raises unless a model can be cut.
---@param net any
---@param count integer of stages
function M.check(net, count)
  local is_model = nn.is_module(net) and type(net.decoder) == "function" and type(net.inputs) == "function"
  plain.check(is_model, "sharding.parallelize: pp needs a language model of models.load, not %s",
    nn.is_module(net) and "a " .. net.class_name or "a " .. type(net))
  local CausalLM = require("lockstep.models.decoder").CausalLM -- a script without pp need not load models
  local loss = (context.is_attached(net) and getmetatable(net) or net).loss -- cp replaces the model's own
  local has_own_loss = loss ~= CausalLM.loss and not net.num_labels -- models with a head for labels have scores
  local has_own_pass = net.inputs ~= net.staged_inputs or net.hidden ~= net.staged_hidden or has_own_loss
  local loses_balance = net.settings.output_router_logits and net.balance_loss ~= CausalLM.balance_loss
    and not net.balance_size
  if has_own_pass or loses_balance then
    fail("pp cannot cut a %s, %s; take pp = 1 with tp and dp", net.class_name, loses_balance
      and "whose balance loss is not one of parts" or "whose pass is not the one of Llama and its kin")
  end
  local layers, joined = #net:decoder().layers, M.joined_layers(net)
  if layers - joined + 1 < count then
    local about = joined > 1
      and (", and the first %d, which take features of pictures, are on one stage"):format(joined)
    fail("%d stages need as many layers, but the model has %d%s, so a stage would be empty; take fewer ranks along pp, "
      .. "or fewer chunks", count, layers, about or "")
  end
end

--- Returns the number of layers that stay together on the first stage: those behind which features of pictures are
--- added, or 1.
---@param net models.CausalLM
---@return integer
function M.joined_layers(net)
  return net.visual_layout and math.max(net.visual_columns / net.settings.hidden_size - 1, 1) or 1
end

--- Returns the stages of a model, balanced by cost.
---@param net models.CausalLM
---@param count integer
---@return pipeline.Stage[]
function M.plan(net, count)
  M.check(net, count)
  local stages, first, costs, joined = {}, 1, M.costs(net), M.joined_layers(net)
  for _ = 2, joined do costs[1] = costs[1] + table.remove(costs, 2) end
  for index, last in ipairs(M.divide(costs, count)) do
    last = last + joined - 1
    stages[index] = { index = index, first = first, last = last, is_first = index == 1, is_last = index == count }
    first = last + 1
  end
  return stages
end

--- Frees what a module holds, also where a script still has the module.
local function free(module)
  for _, p in ipairs(module:parameters()) do
    p.grad = nil
    p:set_data(torch.empty({ 0 }, { dtype = p.dtype, device = p.device }))
  end
end

--- Returns whether the head is the embedding.
---@param net models.CausalLM
---@return boolean
function M.is_tied(net) return net.lm_head == nil and not net.num_labels end

--- Leaves a model the parameters of some stages. A tied embedding stays on the first and on the last stage.
---@param net models.CausalLM
---@param own pipeline.Stage[] this rank's
function M.keep(net, own)
  local body, keeps = net:decoder(), {}
  local has_first, has_last = false, false
  for _, stage in ipairs(own) do
    for i = stage.first, stage.last do keeps[i] = true end
    has_first, has_last = has_first or stage.is_first, has_last or stage.is_last
  end
  local dropped = {}
  local function drop(from, name)
    dropped[#dropped + 1] = from[name]
    if type(name) == "number" then rawset(from, name, Elsewhere()) else from[name] = Elsewhere() end
  end
  for i = 1, #body.layers do
    if not keeps[i] then drop(body.layers, i) end
  end
  local is_tied = M.is_tied(net)
  if not (has_first or has_last and is_tied) then drop(body, "embed_tokens") end
  if net.visual_layout and net.model.visual and not has_first then drop(net.model, "visual") end
  if not has_last then drop(body, "norm") end
  if not has_last and not is_tied then drop(net, net.num_labels and "score" or "lm_head") end
  for _, module in ipairs(dropped) do free(module) end
end

--- Returns the number of values that travel next to the hidden states: statistics of a mixture of experts, from which
--- the last stage computes the balance loss. nil where nothing does.
---@param net models.CausalLM
---@return integer?
function M.carry_size(net) return net.balance_size and net:balance_size() or nil end

--- Calls fn(...) in which a stage's input is in force.
local function with_input(net, input, batch, fn, ...)
  net.stage_input = input
  return plain.finally(function() net.stage_input = nil end, context.with, net, batch, fn, ...)
end

--- Runs a stage that is not the last.
---@param net models.CausalLM
---@param callee models.CausalLM|sharding.FullyShard the model, or what wraps it
---@param stage pipeline.Stage
---@param batch models.Batch
---@param x torch.Tensor? hidden states; nil on the first stage
---@param carry torch.Tensor? statistics of the stages before
---@return torch.Tensor y
---@return torch.Tensor? carry
function M.run(net, callee, stage, batch, x, carry)
  return with_input(net, { stage = stage, x = x }, batch, function()
    local y, seconds = callee:hidden(batch)
    if not M.carry_size(net) then return y end
    return y, net:balance_statistics(chunks.gather_each(seconds), carry, y)
  end)
end

--- Returns what a method of the model does, on the last stage.
---@param net models.CausalLM
---@param callee models.CausalLM|sharding.FullyShard
---@param stage pipeline.Stage
---@param batch models.Batch
---@param x torch.Tensor
---@param carry torch.Tensor?
---@param what "loss"|"log_probs"|"scores"
---@param ... any further arguments of the method
---@return torch.Tensor
---@return integer|torch.Tensor|nil
function M.result(net, callee, stage, batch, x, carry, what, ...)
  return with_input(net, { stage = stage, x = x, carry = carry }, batch, callee[what], callee, batch, ...)
end

--- Returns zeros in place of what the last stage returns, of the same shapes, for the script's function on the others.
---@param net models.CausalLM
---@param batch models.Batch
---@param what "loss"|"log_probs"|"scores"
---@param like torch.Tensor hidden states
---@return torch.Tensor
---@return integer|torch.Tensor|nil
function M.stand_in(net, batch, what, like)
  local function zeros(shape)
    return torch.zeros(shape, { dtype = like.dtype == torch.float64 and like.dtype or torch.float32,
      device = like.device })
  end
  if what == "loss" then return zeros {}, 0 end
  if what == "scores" then return zeros { batch.seq_lens and #batch.seq_lens or 1, net.num_labels }:to(like.dtype) end
  local tokens = batch.input_ids:size(0)
  return zeros { tokens }, zeros { tokens }
end

return M
