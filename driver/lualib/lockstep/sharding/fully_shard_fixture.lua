--- Shared code of tests of sharded models: a small network with layers as units, and training of two models alike.

local dist = require "lockstep.distributed"
local nn = require "lockstep.nn"
local optim = require "lockstep.optim"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local M = {}

local Layer = nn.Module:subclass("Layer")

function Layer:init(hidden)
  self.up, self.down = nn.Linear(hidden, 3 * hidden), nn.Linear(3 * hidden, hidden)
  self.scale = torch.ones({}):requires_grad_(true)
end

function Layer:forward(x) return x + self.down(torch.tanh(self.up(x))) * self.scale end

--- An embedding, layers, and a head that may be the embedding's weight.
local Net = nn.Module:subclass("Net")
M.Net = Net

function Net:init(o)
  self.embedding = nn.Embedding(13, o.hidden)
  self.layers = nn.ModuleList {}
  for _ = 1, o.layers do self.layers:append(Layer(o.hidden)) end
  self.head = nn.Linear(o.hidden, 13, { bias = false })
  if o.tied then self.head.weight = self.embedding.weight end
end

function Net:hidden(tokens, calls)
  local x = self.embedding(tokens)
  for _, layer in ipairs(calls or self.layers) do
    x = (type(layer) == "number" and self.layers[layer] or layer)(x)
  end
  return x
end

function Net:forward(tokens, calls) return self.head(self:hidden(tokens, calls)) end

function Net:loss(tokens, calls)
  return torch.cross_entropy_loss(self(tokens, calls), (tokens * 5 + 1):remainder(13))
end

--- The same net on every rank, and in each call.
---@param opts {hidden: integer?, layers: integer?, tied: boolean?}?
function M.net(opts)
  local o = opts or {}
  torch.manual_seed(7)
  return Net { hidden = o.hidden or 6, layers = o.layers or 3, tied = o.tied }
end

--- Tokens of a rank, in a step.
function M.tokens(step, rank)
  return (torch.arange(5) * ((rank or dist.rank()) + 2) + step):remainder(13)
end

--- Trains for some steps, and returns whole parameters by name.
---@param model any with zero_grad, parameters, state_dict
---@param steps integer
---@param pass fun(model: any, step: integer)? forward and backward
---@param opts {clip: number?, optimizer: any?}?
function M.train(model, steps, pass, opts)
  local o = opts or {}
  local optimizer = (o.optimizer or optim.AdamW)(model:parameters(), { lr = 0.05, weight_decay = 0.01 })
  for step = 1, steps do
    if pass then pass(model, step) else model:loss(M.tokens(step)):backward() end
    if o.clip then optim.clip_grad_norm(model:parameters(), o.clip) end
    optimizer:step()
    optimizer:zero_grad()
  end
  return model:state_dict(), optimizer
end

--- The largest difference between two tables of tensors by name.
function M.distance(a, b)
  local largest, count = 0, 0
  for name, tensor in pairs(a) do
    largest = math.max(largest, (tensor:double() - b[name]:double()):abs():max():item())
    count = count + 1
  end
  for name in pairs(b) do assert(a[name], name .. " is missing") end
  assert(count > 0)
  return largest
end

--- The mean over ranks of each parameter's gradient of a plain net: the whole gradients that shards are parts of.
function M.expected_gradients(loss_of, options)
  local net = M.net(options)
  loss_of(net):backward()
  local gradients = {}
  for name, p in net:named_parameters() do
    local zero = torch.zeros_like(p:detach())
    gradients[name] = dist.all_reduce(p.grad and p.grad:clone() or zero, "avg")
  end
  return gradients
end

--- The whole gradients of a sharded model, from the parts that the ranks keep; false for a parameter without one.
function M.whole_gradients(model)
  local gradients = {}
  for name, shard in model:named_parameters() do
    local flat = {}
    for _, part in ipairs(dist.all_gather_object(shard.grad and shard.grad:totable() or false)) do
      flat = part and flat
      for _, value in ipairs(part or {}) do flat[#flat + 1] = value end
    end
    gradients[name] = flat and torch.tensor(flat)
  end
  return gradients
end

--- Compares the whole gradients of a sharded model with expected ones.
function M.check_gradients(model, expected, what)
  local found = M.whole_gradients(model)
  for name, gradient in pairs(expected) do t.near(found[name], gradient:reshape { -1 }, 1e-12, what .. ": " .. name) end
end

return M
