--- A mixture of experts: a router sends each token to a few gated MLPs, and adds up what they return.
---
---     self.mlp = experts.Mixture { hidden = 64, intermediate = 24, experts = 8, per_token = 2 }
---     local y, router_logits = self.mlp(x)

local core = require "lockstep.core"
local dist = require "lockstep.distributed"
local nn = require "lockstep.nn"
local options = require "lockstep.options"
local parameter = require "lockstep.nn.parameter"
local torch = require "lockstep.torch"

local M = {}

--- The weights of all experts in two tensors: gate_up_proj [experts, 2 * intermediate, hidden], gate first, and
--- down_proj [experts, hidden, intermediate].
---@class models.Experts: nn.Module
---@field owner sharding.Members? the ranks that share the experts, where sharding.expert_parallel has divided them
---@field float8_recipe string? of the products, where float8.apply has chosen one
local Experts = nn.Module:subclass("Experts")
M.Experts = Experts
Experts.holds_experts = true -- the first dimension of each parameter is the experts'

function Experts:init(o)
  local function uniform(t) t:uniform_(-1 / math.sqrt(t:size(-1)), 1 / math.sqrt(t:size(-1))) end
  self.gate_up_proj = parameter.new({ o.experts, 2 * o.intermediate, o.hidden }, uniform)
  self.down_proj = parameter.new({ o.experts, o.hidden, o.intermediate }, uniform)
end

local GROUPED = { cpu = { torch.float32, torch.bfloat16, torch.float16 }, cuda = { torch.bfloat16 } }

--- Whether _grouped_mm takes these: it wants rows of a multiple of 16 bytes.
local function can_group(x, weight)
  local bytes = x:element_size()
  if x:size(-1) * bytes % 16 ~= 0 or weight:size(-2) * bytes % 16 ~= 0 then return false end
  for _, dtype in ipairs(GROUPED[x.device:match("^%a+")] or {}) do
    if x.dtype == dtype and weight.dtype == dtype then return true end
  end
  return false
end

--- Returns a function that multiplies rows x [rows, in], sorted by expert, by each expert's weight [experts, out, in].
--- It waits for a GPU once, or not at all where all experts are one call. A recipe of lockstep.float8 makes one product
--- for each expert, so that its rows and its weight have scales of their own.
---@param ends torch.Tensor [experts] int32, the row behind each expert's last one
---@param list integer[]? the same as numbers, where the caller has them
---@param float8_recipe string?
---@return fun(x: torch.Tensor, weight: torch.Tensor): torch.Tensor
function M.multiplier(ends, list, float8_recipe)
  local function product(x, weight)
    if not float8_recipe then return nn.linear(x, weight) end
    return torch.ops.lockstep.float8_linear(x, weight, nil, float8_recipe)
  end
  return function(x, weight)
    if not float8_recipe and can_group(x, weight) and can_group(weight, weight) then
      return torch._grouped_mm(x, weight:transpose(-2, -1), ends)
    end
    list = list or ends:totable()
    local weights = weight:unbind(0) -- the gradients of all experts become one tensor at once
    local results, from = {}, 0
    for expert, to in ipairs(list) do
      if to > from then
        results[#results + 1] = product(x[{ { from, to } }], weights[expert])
        from = to
      end
    end
    -- Without a row the result depends on x and the weight all the same: other ranks wait for their gradients.
    return #results > 0 and torch.cat(results) or product(x, weights[1])
  end
end

--- Returns a parameter. Its gradient is the sum over all ranks that share the experts, and is divided by their number:
--- the average over the ranks that hold the same experts does not do so.
---@param name string
---@return torch.Tensor
function Experts:weight(name)
  local weight, owner = self[name], self.owner
  if not owner or not torch.is_grad_enabled() or not weight.requires_grad then return weight end
  local view = weight:view(weight.shape)
  view:register_hook(function(grad) return grad / owner.size end)
  return view
end

--- x: [rows, hidden], the rows of expert 0 first; ends: [experts] int32, the row behind each expert's last one; list:
--- the same as numbers, where the caller has them. Waits for a GPU once, or not at all where all experts are one call.
function Experts:forward(x, ends, list)
  local multiply = M.multiplier(ends, list, self.float8_recipe)
  local gate, up = unpack(multiply(x, self:weight "gate_up_proj"):chunk(2, -1))
  return multiply(nn.swiglu(gate, up), self:weight "down_proj")
end

--- Returns what the experts of all ranks of a group make of rows. Each rank holds an even part of them.
---
--- Rows travel to the ranks of their experts and back, by two exchanges; an exchange of counts comes first, which is
--- the one time that the host waits. A rank computes the rows of an expert in the order of the ranks that sent them, so
--- results do not depend on what arrives first. Every rank takes part in all exchanges, forward and backward, also
--- where no row leaves it or none arrives. Source: GShard (arXiv 2006.16668).
---
--- Collective: every rank of the group calls this.
---@param owner sharding.Members
---@param experts models.Experts this rank's
---@param rows torch.Tensor [rows, hidden], the rows of expert 0 first
---@param ends torch.Tensor [experts of all ranks] int32, the row behind each expert's last one
---@return torch.Tensor # [rows, hidden]
local function across_ranks(owner, experts, rows, ends)
  local group, own = owner.group, ends:size(0) / owner.size
  local counts = torch.diff(ends:to(torch.int64), 1, 0, ends:new_zeros({ 1 }, { dtype = torch.int64 }))
  local arriving = dist.functional.all_to_all(counts, { split_dim = 0, concat_dim = 0, group = group })
  local numbers = torch.cat({ counts, arriving }):totable()
  local sent, received, of_expert, total = {}, {}, {}, 0
  for r = 1, owner.size do
    sent[r], received[r] = 0, 0
    for expert = 1, own do
      local place = (r - 1) * own + expert
      local count = numbers[ends:size(0) + place]
      sent[r], received[r] = sent[r] + numbers[place], received[r] + count
      of_expert[expert] = (of_expert[expert] or 0) + count
    end
  end
  for expert = 1, own do
    total = total + of_expert[expert]
    of_expert[expert] = total
  end
  local arrived = dist.functional.all_to_all(rows, { sent = sent, received = received, group = group })
  -- By rank, and of one rank by expert. A stable sort makes it by expert, and of one expert by rank.
  local expert_of = (torch.arange(ends:size(0), { device = rows.device }) % own)
    :repeat_interleave(arriving, nil, { output_size = total })
  local sorted, order = expert_of:sort { stable = true }
  local own_ends = torch.searchsorted(sorted, torch.arange(own, { device = rows.device }),
    { right = true, out_int32 = true })
  local y = experts(torch.embedding(arrived, order), own_ends, of_expert)
  return dist.functional.all_to_all(torch.embedding(y, order:argsort()),
    { sent = received, received = sent, group = group })
end

--- The dtype of a router's probabilities: float32, as in transformers, and float64 where the model is.
local function wide(x) return x.dtype == torch.float64 and torch.float64 or torch.float32 end

--- Returns the router's probabilities.
---@param logits torch.Tensor [tokens, experts]
---@return torch.Tensor # [tokens, experts]
function M.probabilities(logits) return logits:softmax(-1, { dtype = wide(logits) }) end

--- Returns y [tokens, hidden] and the router's logits [tokens, experts]. With `normalize` the probabilities of a
--- token's experts add up to 1.
---@class models.Mixture: nn.Module
local Mixture = nn.Module:subclass("Mixture")
---@type fun(opts: {hidden: integer, intermediate: integer, experts: integer, per_token: integer}): models.Mixture
M.Mixture = Mixture

function Mixture:init(opts)
  local o = options.read("models.experts", opts, { hidden = options.required, intermediate = options.required,
    experts = options.required, per_token = options.required, normalize = false })
  if o.per_token > o.experts then
    core.raise(string.format("models: num_experts_per_tok is %d, but there are %d experts", o.per_token, o.experts))
  end
  self.num_experts, self.per_token, self.normalize = o.experts, o.per_token, o.normalize
  self.gate = nn.Linear(o.hidden, o.experts, { bias = false })
  self.experts = Experts(o)
end

--- Overridden by architectures. Chooses the experts of each token.
---@param x torch.Tensor [tokens, hidden]
---@return torch.Tensor shares [tokens, per_token]
---@return torch.Tensor chosen [tokens, per_token] int64
---@return torch.Tensor logits [tokens, experts]
function Mixture:route(x)
  local logits = self.gate(x)
  local shares, chosen = M.probabilities(logits):topk(self.per_token, -1)
  if self.normalize then shares = shares / shares:sum({ -1 }, true) end
  return shares, chosen, logits
end

function Mixture:forward(x)
  local shares, chosen, logits = self:route(x)
  local sorted, order = chosen:view(-1):sort { stable = true }
  local ends = torch.searchsorted(sorted, torch.arange(self.num_experts, { device = x.device }),
    { right = true, out_int32 = true })
  local token = order:div(self.per_token, { rounding_mode = "floor" })
  -- torch.embedding selects rows. Its gradient adds up sorted segments. The gradient of index_select adds with atomics.
  local rows = torch.embedding(x, token)
  local owner = self.experts.owner
  local y = owner and across_ranks(owner, self.experts, rows, ends) or self.experts(rows, ends)
  y = torch.embedding(y, order:argsort()):view(x:size(0), self.per_token, -1)
  return (y * shares:to(x.dtype):unsqueeze(-1)):sum(1), logits
end

--- Returns what the balance loss of layers is computed from: the number of choices of each expert, the sum of its
--- probabilities, and the number of tokens. Adds to those of layers before.
---@param router_logits torch.Tensor[] [tokens, experts] of each layer
---@param per_token integer
---@param before torch.Tensor? what M.statistics returned for the layers before
---@return torch.Tensor|number tokens [experts]
---@return torch.Tensor|number probabilities [experts]
---@return torch.Tensor|number rows
local function count(router_logits, per_token, before)
  local tokens, probabilities, rows = 0, 0, 0
  if before then
    local num_experts = (before:size(0) - 1) / 2
    tokens, probabilities, rows = unpack(before:split({ num_experts, num_experts, 1 }))
  end
  for _, logits in ipairs(router_logits) do
    local shares = M.probabilities(logits)
    local _, chosen = shares:topk(per_token, -1)
    tokens = tokens + torch.zeros_like(shares):scatter(-1, chosen, 1):sum(0)
    probabilities = probabilities + shares:sum({ 0 })
    rows = rows + logits:size(0)
  end
  return tokens, probabilities, rows
end

--- Returns these numbers as one tensor, for the stage that follows in a pipeline.
---@param router_logits torch.Tensor[] [tokens, experts] of each layer
---@param per_token integer
---@param num_experts integer
---@param before torch.Tensor? those of the stages before
---@param like torch.Tensor on the device of the result
---@return torch.Tensor # [2 * num_experts + 1] float64 if `like` is, else float32
function M.statistics(router_logits, per_token, num_experts, before, like)
  local where = { dtype = wide(like), device = like.device }
  if #router_logits == 0 then return before or torch.zeros({ 2 * num_experts + 1 }, where) end
  local tokens, probabilities, rows = count(router_logits, per_token, before)
  if not torch.is_tensor(rows) then rows = torch.full({ 1 }, rows, where) end
  return torch.cat { tokens:to(where.dtype), probabilities:to(where.dtype), rows }
end

--- Returns the balance loss of Switch Transformers (arXiv 2101.03961), as transformers computes it: the sum over
--- experts of the share of tokens times the mean probability, times the number of experts. Shares and means are over
--- the tokens of all layers. The result is per_token where all experts get as many tokens.
---@param router_logits torch.Tensor[] [tokens, experts] of each layer
---@param per_token integer
---@param before torch.Tensor? what M.statistics returned for the layers before these
---@return torch.Tensor
function M.balance_loss(router_logits, per_token, before)
  local tokens, probabilities, rows = count(router_logits, per_token, before)
  return (tokens / rows * (probabilities / rows)):sum() * tokens:size(0)
end

-- On disk -------------------------------------------------------------------------------------------------

local NAME = "^(.*%.experts)%.([%a_]+_proj)$"

--- Views of gate_up_proj, half by half.
local function halves(gate_up, dim)
  local size = gate_up:size(dim) / 2
  return gate_up:narrow(dim, 0, size), gate_up:narrow(dim, size, size)
end

--- Replaces the two tensors of each mixture by what `views` puts in their place.
local function replace(state, views)
  local result = {}
  for name, tensor in pairs(state) do
    local prefix, which = name:match(NAME)
    if which == "gate_up_proj" or which == "down_proj" then
      views(result, prefix, which, tensor)
    else
      result[name] = tensor
    end
  end
  return result
end

--- Returns the state with a tensor for each expert: experts.7.gate_proj.weight, up_proj, down_proj.
---@param state table<string, torch.Tensor> as state_dict() returns it
---@return table<string, torch.Tensor> # views
function M.one_by_one(state)
  return replace(state, function(result, prefix, which, tensor)
    for i = 0, tensor:size(0) - 1 do
      local function put(name, view) result[string.format("%s.%d.%s.weight", prefix, i, name)] = view end
      if which == "down_proj" then
        put("down_proj", tensor[i])
      else
        local gate, up = halves(tensor[i], 0)
        put("gate_proj", gate)
        put("up_proj", up)
      end
    end
  end)
end

--- Returns the state with the experts' tensors transposed: gate_up_proj [experts, hidden, 2 * intermediate].
---@param state table<string, torch.Tensor>
---@return table<string, torch.Tensor> # views
function M.transposed(state)
  return replace(state, function(result, prefix, which, tensor)
    result[prefix .. "." .. which] = tensor:transpose(1, 2)
  end)
end

return M
